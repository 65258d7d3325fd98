# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The wait counters as a dataflow state: which registers may still be on their way.

What finishes in order is kept by *age*, the number of younger operations of the same kind that were certainly issued
since: a wait for `count <= n` covers everything of age >= n. Where paths meet, the smaller age stays. Scalar loads
finish in any order, so only a wait for zero covers them; they never make a count smaller than LDS operations
alone would, hence LDS operations keep their ages beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mori_gemm_ar.audit.operations import LGKM_LIMIT, VM_LIMIT, Op

Ladder = tuple[int, ...]  # [age] -> set of registers


def _step(ladder: Ladder, arriving: int, limit: int) -> Ladder:
    """One more operation was issued: everything ages, and `arriving` is the youngest."""
    if not ladder and not arriving:
        return ladder
    if arriving:
        ladder = tuple([rung & ~arriving for rung in ladder])
    stepped = (arriving, *ladder)
    if len(stepped) > limit + 1:
        # A wait cannot name a larger count: what is older shares the last rung.
        stepped = (*stepped[:limit], stepped[limit] | stepped[limit + 1])
    return stepped


def _merge(one: Ladder, other: Ladder) -> Ladder:
    """The smaller age of each register."""
    if one == other:
        return one
    seen, rungs = 0, []
    for age in range(max(len(one), len(other))):
        rung = (one[age] if age < len(one) else 0) | (other[age] if age < len(other) else 0)
        rungs.append(rung & ~seen)
        seen |= rung
    while rungs and not rungs[-1]:
        rungs.pop()
    return tuple(rungs)


@dataclass(frozen=True, slots=True)
class Pending:
    """Registers on their way, by what brings them."""

    vm: Ladder = ()
    lds: Ladder = ()
    smem: int = 0
    flat_vm: int = 0  # of FLAT loads: until vmcnt(0), and
    flat_lgkm: int = 0  # until lgkmcnt(0)
    everything: int = 0

    def after(self, op: Op) -> Pending:
        """State after one operation."""
        if op.wait_vm is not None or op.wait_lgkm is not None:
            return self._waited(op.wait_vm, op.wait_lgkm)
        if not (op.vm or op.lds or op.loads or op.writes & self.everything):
            return self
        # Whatever replaces a register, its older value no longer matters to readers.
        state = self._without(op.writes) if op.writes & self.everything and not op.loads else self
        loads = op.loads
        if op.vm:
            return _pending(_step(state.vm, loads, VM_LIMIT), state.lds, state.smem, state.flat_vm, state.flat_lgkm)
        if op.lds:
            return _pending(state.vm, _step(state.lds, loads, LGKM_LIMIT), state.smem, state.flat_vm, state.flat_lgkm)
        if op.smem:
            return _pending(state.vm, state.lds, state.smem | loads, state.flat_vm, state.flat_lgkm)
        if op.flat:
            return _pending(state.vm, state.lds, state.smem, state.flat_vm | loads, state.flat_lgkm | loads)
        return state

    def _waited(self, vm: int | None, lgkm: int | None) -> Pending:
        return _pending(
            self.vm if vm is None else self.vm[:vm],
            self.lds if lgkm is None else self.lds[:lgkm],
            0 if lgkm == 0 else self.smem,
            0 if vm == 0 else self.flat_vm,
            0 if lgkm == 0 else self.flat_lgkm,
        )

    def _without(self, registers: int) -> Pending:
        keep = ~registers
        return _pending(
            tuple([rung & keep for rung in self.vm]),
            tuple([rung & keep for rung in self.lds]),
            self.smem & keep,
            self.flat_vm & keep,
            self.flat_lgkm & keep,
        )

    def joined(self, other: Pending) -> Pending:
        """What may be on its way where two paths meet."""
        if self == other:
            return self
        return _pending(
            _merge(self.vm, other.vm),
            _merge(self.lds, other.lds),
            self.smem | other.smem,
            self.flat_vm | other.flat_vm,
            self.flat_lgkm | other.flat_lgkm,
        )

    def overwritten(self, op: Op) -> int:
        """Registers that an operation writes while a load that may finish later still brings them."""
        hit = op.writes & self.everything
        if not hit or not op.loads:
            return hit
        # Loads of one ordered kind land in the order of issue, so the younger value stays.
        ordered = _union(self.vm) if op.vm else _union(self.lds) if op.lds else 0
        elsewhere = self.smem | self.flat_vm | self.flat_lgkm
        elsewhere |= _union(self.lds) if op.vm else _union(self.vm) if op.lds else self.everything
        return hit & (elsewhere | ~ordered)


def _union(ladder: Sequence[int]) -> int:
    whole = 0
    for rung in ladder:
        whole |= rung
    return whole


def _pending(vm: Ladder, lds: Ladder, smem: int, flat_vm: int, flat_lgkm: int) -> Pending:
    everything = smem | flat_vm | flat_lgkm
    for rung in vm:
        everything |= rung
    for rung in lds:
        everything |= rung
    return Pending(vm, lds, smem, flat_vm, flat_lgkm, everything)
