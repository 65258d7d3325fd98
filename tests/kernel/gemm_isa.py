# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What a GEMM kernel executes in each K step, by class of instruction, read off its ISA text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from mori_gemm_ar.compile.store import CodeObject, default_store
from mori_gemm_ar.isa import Instruction, basic_blocks, parse_isa
from mori_gemm_ar.layout.gemm import AnyGemmConfig

LOOP_STEPS = 2  # K steps in one round of the loop


def kind(i: Instruction) -> str:
    """Class of an instruction, as the tables of docs/gemm.md name it."""
    name = i.name
    for prefix, label in (
        ("v_mfma", "MFMA"), ("ds_", "LDS"), ("s_waitcnt", "wait"), ("s_barrier", "barrier"), ("s_nop", "nop"),
        ("s_load", "scale"), ("s_buffer_load", "scale"), ("buffer_store", "store"), ("v_", "VALU"),
    ):  # fmt: skip
        if name.startswith(prefix):
            return label
    if name.startswith("buffer_load"):
        return "copy" if i.has("lds") else "scale"
    return "scalar"


@dataclass(frozen=True)
class Static:
    """Figures of one kernel; `step` counts what a wave executes for one K step in the loop, copies included."""

    resources: dict[str, Any]
    step: dict[str, float]
    total: dict[str, int]

    @property
    def instructions(self) -> float:
        return sum(self.step.values())


def static_of(config: AnyGemmConfig) -> Static:
    """Figures of a config's kernel."""
    code: CodeObject = default_store().get(config)
    kernel = parse_isa(code.isa).kernel(code.kernel)
    blocks = basic_blocks(kernel)
    inside = loop_blocks([(b.number, b.successors) for b in blocks])
    step = Counter(kind(i) for b in blocks if b.number in inside for i in kernel.instructions[b.start : b.end])
    total = Counter(kind(i) for i in kernel.instructions)
    return Static(code.manifest["resources"], {k: n / LOOP_STEPS for k, n in step.items()}, dict(total))


def loop_blocks(blocks: list[tuple[int, tuple[int, ...]]]) -> set[int]:
    """Blocks that reach themselves."""
    successors = dict(blocks)

    def reachable(start: int) -> set[int]:
        seen: set[int] = set()
        pending = list(successors[start])
        while pending:
            block = pending.pop()
            if block not in seen:
                seen.add(block)
                pending += successors[block]
        return seen

    return {block for block in successors if block in reachable(block)}
