# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Estimated issue cycles of one instruction of one wave: static figures, good for comparing texts and nothing else.

Derived from published peak rates of MI355X at 2.4 GHz: per SIMD and cycle 2048 fp8, 1024 bf16 or fp16 and 64 fp32
matrix operations; 16 vector lanes, quarter rate for transcendental functions and 32-bit products; per compute unit
128 bytes of LDS and 64 bytes of vector memory. No stall, conflict, cache miss or dependency is in them.
"""

from __future__ import annotations

import re

from mori_gemm_ar.audit.operations import Kind, Op
from mori_gemm_ar.errors import IsaError
from mori_gemm_ar.isa import Instruction

LANES = 64
LDS_BYTES, MEMORY_BYTES = 128, 64  # of a compute unit per cycle
VALU, QUARTER_RATE = 4, 16

_MATRIX = re.compile(r"^v_s?mf(?:ma|mac)_(?:scale_)?[fi]\d+_(\d+)x(\d+)x(\d+)_?(\w+)$")
_PER_CYCLE = {"f8f6f4": 2048, "fp8": 1024, "bf8": 1024, "bf16": 1024, "f16": 1024, "i8": 1024, "f32": 64, "f64": 32}
_NARROW = frozenset({"2", "3", "4"})  # cbsz and blgp: fp6 and fp4 run at twice the rate of fp8
_SLOW = re.compile(
    r"^v_(exp|log|rcp|rsq|sqrt|sin|cos|rcp_iflag)_f|^v_mul_(lo|hi)_[iu]32|^v_mad_[iu]64|^v_div_(scale|fmas|fixup)"
)


def matrix_cycles(i: Instruction) -> int:
    """Cycles that the matrix core of a SIMD is busy."""
    match = _MATRIX.match(i.name)
    kind = match[4].split("_")[0] if match else ""
    if match is None or kind not in _PER_CYCLE:
        raise IsaError(f"{i}: the audit does not know the rate of {i.name!r}; add it to audit/cycles.py")
    rate = _PER_CYCLE[kind]
    rows, columns, depth = (int(match[n]) for n in (1, 2, 3))
    if kind in ("f16", "bf16") and rows * depth <= 256:
        rate //= 2  # the shapes of the generation before
    if kind == "f8f6f4" and {i.modifiers.get("cbsz", "0"), i.modifiers.get("blgp", "0")} <= _NARROW:
        rate *= 2
    return 2 * rows * columns * depth // rate


def cycles_of(i: Instruction, op: Op) -> tuple[int, int, int, int]:
    """(matrix, vector, LDS, memory) cycles of one instruction."""
    if i.name.startswith(("v_mfma", "v_smfmac")):
        return matrix_cycles(i), 0, 0, 0
    if i.name.startswith("v_"):
        return 0, QUARTER_RATE if _SLOW.match(i.name) else VALU, 0, 0
    access = op.access
    if access is None or access.space in ("scalar", "cache"):
        return 0, 0, 0, 0
    nbytes = LANES * access.nbytes
    if access.space == "lds":
        return 0, 0, _divide(nbytes, LDS_BYTES), 0
    return 0, 0, _divide(nbytes, LDS_BYTES) if op.kind is Kind.COPY else 0, _divide(nbytes, MEMORY_BYTES)


def _divide(a: int, b: int) -> int:
    return -(-a // b)
