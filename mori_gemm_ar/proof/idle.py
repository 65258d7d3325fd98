# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Waits that never wait: as many operations as they allow are the most that can be under way there.

LLVM does not read inline assembly, so that it waits once more for what a hand-written wait has covered. To leave such a
wait out changes nothing, on any machine that counts as this one does.
"""

from __future__ import annotations

from dataclasses import dataclass

from mori_gemm_ar.audit.flow import Flow, states
from mori_gemm_ar.audit.operations import LGKM_LIMIT, VM_LIMIT, Kind, Op, decode
from mori_gemm_ar.isa import Kernel

_CACHES = (Kind.WRITEBACK, Kind.INVALIDATE)


@dataclass(frozen=True, slots=True)
class _Most:
    """Upper bounds of the two counters; a bound at the limit is none."""

    vm: int = 0
    lgkm: int = 0

    def after(self, op: Op) -> _Most:
        vm, lgkm = self.vm, self.lgkm
        if op.wait_vm is not None:
            vm = min(vm, op.wait_vm)
        if op.wait_lgkm is not None:
            lgkm = min(lgkm, op.wait_lgkm)
        # Fences count here: tools do not agree, and what is allowed to be too large is the bound.
        vm += op.vm or op.flat or op.kind in _CACHES
        # A scalar load of several dwords counts twice.
        lgkm += 2 if op.smem else op.lds or op.flat
        return _Most(min(vm, VM_LIMIT), min(lgkm, LGKM_LIMIT))

    def joined(self, other: _Most) -> _Most:
        return _Most(max(self.vm, other.vm), max(self.lgkm, other.lgkm))


def idle_waits(kernel: Kernel) -> dict[tuple[int, str], int]:
    """(line, "vmcnt" or "lgkmcnt") of each wait that never waits -> the most operations that can be under way."""
    ops = [decode(i) for i in kernel.instructions]
    idle = {}
    for index, most in states(Flow(kernel), _Most(), lambda state, n: state.after(ops[n]), _Most.joined):
        line = kernel.instructions[index].line
        waits = (("vmcnt", ops[index].wait_vm, most.vm), ("lgkmcnt", ops[index].wait_lgkm, most.lgkm))
        for counter, count, bound in waits:
            if count is not None and bound <= count:
                idle[line, counter] = bound
    return idle
