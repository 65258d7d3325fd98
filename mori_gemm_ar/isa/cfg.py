# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Basic blocks of a kernel."""

from __future__ import annotations

from dataclasses import dataclass

from mori_gemm_ar.errors import IsaError
from mori_gemm_ar.isa.text import Instruction, Kernel

UNCONDITIONAL = frozenset({"s_branch"})
ENDS = frozenset({"s_endpgm", "s_endpgm_saved"})


@dataclass(frozen=True, slots=True)
class BasicBlock:
    """Instructions `[start, end)` with one entry; `successors` are block numbers, fall-through first."""

    number: int
    start: int
    end: int
    successors: tuple[int, ...]


def is_branch(instruction: Instruction) -> bool:
    """Whether the instruction may jump."""
    return instruction.name.startswith(("s_branch", "s_cbranch"))


def basic_blocks(kernel: Kernel) -> tuple[BasicBlock, ...]:
    """Blocks in program order. Raises `IsaError` when control runs off the end of the kernel."""
    code = kernel.instructions
    leaders = {0, *kernel.labels.values()}
    leaders.update(i.index + 1 for i in code if is_branch(i) or i.name in ENDS)
    starts = sorted(s for s in leaders if s < len(code))
    number = {start: n for n, start in enumerate(starts)}
    blocks = []
    for n, start in enumerate(starts):
        end = starts[n + 1] if n + 1 < len(starts) else len(code)
        last = code[end - 1]
        successors: list[int] = []
        if last.name not in ENDS and last.name not in UNCONDITIONAL:
            if end not in number:
                raise IsaError(f"kernel {kernel.name!r} runs off its end after {last}")
            successors.append(number[end])
        if last.target:
            if kernel.labels[last.target] not in number:
                raise IsaError(f"kernel {kernel.name!r} branches to its end after {last}")
            successors.append(number[kernel.labels[last.target]])
        blocks.append(BasicBlock(n, start, end, tuple(successors)))
    return tuple(blocks)
