# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What is published has been written back first, and what was waited for is read afresh."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from mori_gemm_ar.audit.findings import Finding, at
from mori_gemm_ar.audit.flow import open_sets, states
from mori_gemm_ar.audit.operations import Kind, Op
from mori_gemm_ar.audit.policies import Policy
from mori_gemm_ar.audit.subject import Subject

FAR = 1 << 30  # an age: nothing of this kind is under way


@dataclass(frozen=True, slots=True)
class Writes:
    """Stores of this wave, and how far the release of the block's stores has come.

    `store` is the age of the youngest plain store that is not known to have left the wave, in vector memory operations
    issued after it. `met`: a barrier was passed with every wave's stores out. `cleaned`: reach of the writeback issued
    since, -1 for none. `landed`: reach of the writeback waited for.
    """

    store: int = FAR
    met: bool = False
    cleaned: int = -1
    landed: int = -1
    writebacks: int = 0  # since the last barrier, at most 2

    def after(self, op: Op) -> Writes:
        """State after one operation."""
        if op.wait_vm is not None:
            landed = self.cleaned if op.wait_vm == 0 else self.landed
            return Writes(
                FAR if self.store >= op.wait_vm else self.store, self.met, self.cleaned, landed, self.writebacks
            )
        if op.barrier:
            return Writes(self.store, self.store == FAR)
        if op.kind is Kind.WRITEBACK:
            assert op.access is not None
            return Writes(self.store, self.met, op.access.policy.reach, -1, min(2, self.writebacks + 1))
        if op.kind is Kind.STORE and op.access is not None and not op.access.policy.scoped:
            # What is stored after a writeback is not part of it.
            return Writes(0, False, -1, -1, self.writebacks)
        if op.vm or op.flat:
            aged = self.store if self.store == FAR else self.store + int(op.vm)
            return Writes(aged, self.met, self.cleaned, self.landed, self.writebacks)
        return self

    def joined(self, other: Writes) -> Writes:
        """The worse of two paths."""
        return Writes(
            min(self.store, other.store),
            self.met and other.met,
            min(self.cleaned, other.cleaned),
            min(self.landed, other.landed),
            max(self.writebacks, other.writebacks),
        )


def release_states(subject: Subject) -> Iterator[tuple[int, Writes]]:
    """(index, state before it) of all instructions that a wave may come to, for each class of waves."""
    step = release_step(subject)
    for wave in subject.wave_classes:
        yield from states(subject.graphs[wave].narrowed_flow(), Writes(met=True), step, Writes.joined)


def release_step(subject: Subject) -> Callable[[Writes, int], Writes]:
    """The state after an instruction of one wave; a barrier tells of all waves, whichever way they came to it."""
    ops = subject.ops
    alone = subject.waves == 1  # a workgroup of one wave needs no barrier

    def after(state: Writes, index: int) -> Writes:
        if index in subject.ring_stores:
            return state  # no cache holds the ring, and a rule of its own waits for it
        state = state.after(ops[index])
        return replace(state, met=True) if alone else state

    everyone = states(subject.flow, Writes(met=True), after, Writes.joined)
    sent = {index: state.store == FAR for index, state in everyone if ops[index].barrier}

    def step(state: Writes, index: int) -> Writes:
        state = after(state, index)
        return replace(state, met=sent[index]) if ops[index].barrier else state

    return step


def publish_order(subject: Subject) -> Iterator[Finding]:
    """Stores leave every wave, a barrier, a writeback that reaches the readers, a wait for it, then the publication.

    Lessons L7, L8, L9, L10, L11 and L16: vmcnt(0) per wave, balanced barrier, release, flag or counter.
    """
    if not subject.contract.publishes:
        return
    needed = {publish.access: publish.release for publish in subject.contract.publishes}
    for publish in subject.contract.publishes:
        found = sum(subject.spelling(n) == publish.access for n in subject.publishing)
        if found != publish.count:
            yield Finding(0, str(publish.access), f"the text must publish {publish.count} times by this, not {found}")
    publishing = frozenset(subject.publishing)
    for index, state in release_states(subject):
        if index in publishing:
            release = needed[subject.spelling(index)]
            why = unreleased(state, release) if release is not None else _unsent(state)
            if why:
                yield at(subject.code[index], why)


def _unsent(state: Writes) -> str:
    """Why a kernel that declares nothing to release must not publish, or an empty string."""
    if state.store == FAR and state.met:
        return ""
    return "publishes after a store of this kernel, which must be released first; declare the release"


def unreleased(state: Writes, release: Policy) -> str:
    """Why a publication comes too early, or an empty string."""
    if state.landed >= release.reach and state.met:
        return ""
    if state.store != FAR:
        return "publishes while a store of this wave is not waited for by vmcnt(0), or follows the writeback"
    if not state.met:
        return (
            "publishes with no barrier that every path enters after s_waitcnt vmcnt(0): other waves' stores may be open"
        )
    if state.cleaned < 0:
        return "publishes with no buffer_wbl2 since the barrier: what the block wrote may stay in its L2"
    if state.cleaned < release.reach:
        return f"publishes after a writeback of too small a scope; it must be buffer_wbl2 {release.value}"
    return "publishes before s_waitcnt vmcnt(0) says that the writeback is done"


def writeback_wait(subject: Subject) -> Iterator[Finding]:
    """Every buffer_wbl2 is waited for by vmcnt(0) before the next atomic, scoped store, barrier or end (lesson L10)."""
    ops = subject.ops
    if not any(op.kind is Kind.WRITEBACK for op in ops):
        return

    def step(open_: frozenset[int], index: int) -> frozenset[int]:
        if ops[index].kind is Kind.WRITEBACK:
            return open_ | {index}
        return frozenset() if ops[index].wait_vm == 0 else open_

    for index, open_ in open_sets(subject.flow, step):
        if open_ and _tells(ops[index]):
            lines = ", ".join(str(subject.line(n)) for n in sorted(open_))
            yield at(subject.code[index], f"comes before s_waitcnt vmcnt(0) for the writeback at line {lines}")


def _tells(op: Op) -> bool:
    """Whether others may learn of earlier stores by it."""
    if op.barrier or op.ends or op.kind is Kind.ATOMIC:
        return True
    return op.kind is Kind.STORE and op.access is not None and op.access.policy.scoped


def one_release(subject: Subject) -> Iterator[Finding]:
    """One wave of a block executes one writeback between two barriers, and the text has as many as declared.

    Lessons L8 and L9: a release per wave, or a second one beside the counter's, costs time and orders nothing more.
    """
    found = [n for n, op in enumerate(subject.ops) if op.kind is Kind.WRITEBACK]
    declared = subject.contract.releases
    if declared is None:
        return
    if len(found) != declared:
        where = ", ".join(str(subject.line(n)) for n in found) or "none"
        yield Finding(0, "buffer_wbl2", f"the text must hold {declared} of them; lines: {where}")
    for index in found:
        waves = [w for first, all_ in subject.wave_classes.items() for w in all_ if _reaches(subject, first, index)]
        if len(waves) != 1:
            yield at(subject.code[index], f"one wave of a block must release, but waves {waves} may come here")
    for index, state in release_states(subject):
        if subject.ops[index].kind is Kind.WRITEBACK and state.writebacks:
            yield at(subject.code[index], "a second writeback since the last barrier; one release per block is enough")


def released_end(subject: Subject) -> Iterator[Finding]:
    """Where the next kernel tells others, all that a block stored is released when the block ends (lessons L7 and L16).

    The wave that releases does so after a barrier that every wave enters with its stores out, and waits for it.
    """
    needed = subject.contract.ends
    if needed is None:
        return
    ops = subject.ops
    for index, writes in release_states(subject):
        if ops[index].kind is Kind.WRITEBACK and not (writes.store == FAR and writes.met):
            yield at(subject.code[index], "releases while stores of the block may be open: vmcnt(0), barrier, release")
    for wave, waves in subject.wave_classes.items():
        releases = any(op.kind is Kind.WRITEBACK and _reaches(subject, wave, n) for n, op in enumerate(ops))
        reach = needed.reach if releases else -1
        for index, kept in _kept_back(subject, wave, reach):
            if ops[index].ends and kept.open:
                why = (
                    f"waves {list(waves)} may end here with stores that are not released by buffer_wbl2 {needed.value}"
                )
                yield at(subject.code[index], why)
    if not any(op.kind is Kind.WRITEBACK for op in ops):
        yield Finding(0, "buffer_wbl2", f"the kernel must release what it stored by buffer_wbl2 {needed.value}")


@dataclass(frozen=True, slots=True)
class _Kept:
    """Whether one wave has stored what no release, of its own or behind the next barrier, is known to cover."""

    writes: Writes
    open: bool

    def joined(self, other: _Kept) -> _Kept:
        return _Kept(self.writes.joined(other.writes), self.open or other.open)


def _kept_back(subject: Subject, wave: int, reach: int) -> Iterator[tuple[int, _Kept]]:
    """(index, state before it) on the ways of one wave. reach -1: it leaves the release to another wave."""

    step_of_writes = release_step(subject)

    def step(state: _Kept, index: int) -> _Kept:
        op = subject.ops[index]
        writes = step_of_writes(state.writes, index)
        stored = op.kind is Kind.STORE and op.access is not None and not op.access.policy.scoped
        covered = writes.met and writes.landed >= reach
        return _Kept(writes, stored or (state.open and not covered))

    return states(subject.graphs[wave].narrowed_flow(), _Kept(Writes(met=True), False), step, _Kept.joined)


def _reaches(subject: Subject, wave: int, index: int) -> bool:
    return subject.flow.block_of[index] in subject.graphs[wave].blocks()
