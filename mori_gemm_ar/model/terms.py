# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Closed sets of the time model, and what is asked: one layer of a group of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout.rules import (
    reason_not_int,
    reason_not_member,
    reason_not_owner_slices,
    reason_not_world,
    require,
)
from mori_gemm_ar.layout.terms import MAX_BYTES, MAX_ROWS

OUT_BYTES = 2  # the product and the bf16 wire
K_BLOCK = 128  # K of one scale block and of one trip of the GEMM's main loop
N_UNIT = 16  # columns of one matrix instruction
MX_BLOCK = 32  # columns that share one e8m0 scale

_E = TypeVar("_E", bound=Enum)


class Quant(Enum):
    """How A and B are scaled."""

    PTPC = "ptpc"  # one scale per token of A and per channel of B
    BLOCKSCALE = "blockscale"  # A 1x128, B 128x128
    MXFP8 = "mxfp8"  # one e8m0 scale per 32 values of K


class Wire(Enum):
    """What crosses the links on the scatter and on the gather leg."""

    BF16 = "bf16"  # both legs bf16: bitwise equal to the same-order sum
    FP8_GATHER = "fp8-gather"  # reduced rows as e4m3: one rounding more
    FP8 = "fp8"  # both legs e4m3: partial sums are rounded too


class Transport(Enum):
    """Who moves a leg."""

    SDMA = "sdma"  # copy engines push
    LSA = "lsa"  # compute units load from, or store to, the peers' windows


class Mode(Enum):
    """A whole layer: GEMM and all-reduce."""

    GEMM_ONLY = "gemm-only"  # world 1: nothing to reduce
    SPLIT_LSA = "split-lsa"  # GEMM, then the load/store all-reduce
    SPLIT_SDMA = "split-sdma"  # GEMM, then scatter, reduce, gather by copy engines
    FUSED_SDMA = "fused-sdma"  # copy engines scatter each finished chunk during the GEMM
    FUSED_LSA = "fused-lsa"  # the GEMM stores its tiles into the owners' windows


class Tail(Enum):
    """What follows the scatter of a fused mode."""

    PHASED = "phased"  # drain, then reduce, then gather
    STREAMED = "streamed"  # each chunk is reduced and gathered as soon as it has arrived everywhere
    BESIDE = "beside"  # streamed, with reducers resident beside the GEMM


class Case(Enum):
    """Which value of an unmeasured constant is taken."""

    EXPECTED = "value"
    PESSIMISTIC = "pessimistic"  # choices are made here
    OPTIMISTIC = "optimistic"


def member(name: str, label: str, kind: type[_E]) -> _E:
    """The member whose value is this label; ConfigError that lists them for anything else."""
    for candidate in kind:
        if candidate.value == label:
            return candidate
    labels = ", ".join(str(candidate.value) for candidate in kind)
    raise ConfigError(f"{name}={label!r} must be one of {labels}; spell it as in the list")


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows and columns of the output that one workgroup computes."""

    m: int
    n: int

    def __post_init__(self) -> None:
        require(reason_not_tile(self.m, self.n))

    def __str__(self) -> str:
        return f"{self.m}x{self.n}"


@dataclass(frozen=True, slots=True)
class Layer:
    """What is asked: out[m, n] bf16 = sum over `world` ranks of A[m, k] @ B[n, k]^T, k per rank."""

    m: int
    n: int
    k: int
    world: int
    quant: Quant
    wire: Wire = Wire.BF16

    def __post_init__(self) -> None:
        require(reason_not_layer(self.m, self.n, self.k, self.world, self.quant, self.wire))

    @property
    def out_bytes(self) -> int:
        return self.m * self.n * OUT_BYTES


def reason_not_tile(m: object, n: object) -> str | None:
    """The sides of a tile."""
    way_out = "tiles are 128 or 256 on a side"
    reason = reason_not_int("tile.m", m, 128, 256, way_out) or reason_not_int("tile.n", n, 128, 256, way_out)
    if reason is None and (m not in (128, 256) or n not in (128, 256)):
        reason = f"tile={m}x{n} must be 128 or 256 on a side; use one of TILES[quant]"
    return reason


def reason_not_layer(m: Any, n: Any, k: Any, world: object, quant: object, wire: object) -> str | None:
    """The fields of Layer."""
    reason = (
        reason_not_int("m", m, 0, MAX_ROWS, "split the rows over several calls")
        or reason_not_int("n", n, N_UNIT, MAX_ROWS, "pad the weight")
        or reason_not_int("k", k, K_BLOCK, MAX_ROWS, "pad K with zeros")
        or reason_not_world(world)
        or reason_not_member("quant", quant, Quant, "say how the operands are scaled")
        or reason_not_member("wire", wire, Wire, "Wire.BF16 is exact")
        or reason_not_owner_slices(world, m, K_BLOCK)
    )
    if reason is not None:
        return reason
    if n % N_UNIT:
        return f"n={n} must be a multiple of {N_UNIT}; pad the weight with zero rows"
    if wire is not Wire.BF16 and n % MX_BLOCK:
        return f"n={n} must be a multiple of {MX_BLOCK} on an fp8 wire; pad the weight, or use Wire.BF16"
    if k % K_BLOCK:
        return f"k={k} must be a multiple of {K_BLOCK}; pad K with zeros"
    if m * n * OUT_BYTES > MAX_BYTES:
        return f"m*n*{OUT_BYTES}={m * n * OUT_BYTES} must be at most {MAX_BYTES}; split the rows over several calls"
    return None
