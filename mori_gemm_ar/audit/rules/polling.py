# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Wait loops: they exist, they look at memory that others write, they end, and what follows reads afresh."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mori_gemm_ar.audit.findings import Finding, at
from mori_gemm_ar.audit.flow import Loop, open_sets
from mori_gemm_ar.audit.operations import Kind
from mori_gemm_ar.audit.registers import EXEC_MASK, bits_of
from mori_gemm_ar.audit.subject import Subject
from mori_gemm_ar.audit.uniform import Way

_MEMORY = frozenset({Kind.LOAD, Kind.ATOMIC})


@dataclass(frozen=True, slots=True)
class Wait:
    """A loop whose end depends on what it reads from memory."""

    loop: Loop
    reads: tuple[int, ...]  # loads and atomics that decide
    clocks: tuple[int, ...]  # clock reads that decide
    exits: tuple[int, ...]  # branches that may leave it


def find_waits(subject: Subject) -> list[Wait]:
    """All wait loops of a kernel, in program order.

    A loop waits when a load or atomic in it decides whether it goes on. An exit that all waves take alike is no wait
    of a wave: it depends on arguments, or on LDS words that were agreed upon at a barrier.
    """
    waits = []
    for loop in subject.flow.loops:
        indices = subject.flow.indices(loop.blocks)
        blocking = any(subject.ops[n].barrier for n in indices)
        kinds = _MEMORY if blocking else _MEMORY | {Kind.LDS_READ}
        if not any(subject.ops[n].kind in kinds for n in indices):
            continue
        exits = exits_of(subject, loop)
        # A post leaves the execution mask as it was, so what it waits for decides nothing around it.
        posted = frozenset[int]().union(*(post.blocks for post in subject.posts if post.blocks < loop.blocks))
        slice_ = deciding(subject, loop, [n for n in exits if _is_open(subject, n)], posted)
        reads = tuple(n for n in slice_ if subject.ops[n].kind in kinds)
        clocks = tuple(n for n in slice_ if subject.ops[n].kind is Kind.CLOCK)
        if reads:
            waits.append(Wait(loop, reads, clocks, tuple(exits)))
    # An outer loop waits only if something outside its inner waits decides.
    inner = [w.loop.blocks for w in waits]
    kept = [w for w in waits if not any(b < w.loop.blocks and _all_in(subject, w.reads, b) for b in inner)]
    return sorted(kept, key=lambda w: w.reads[0])


def _is_open(subject: Subject, index: int) -> bool:
    decision = subject.uniformity.decisions.get(subject.flow.block_of[index])
    return decision is None or decision.way is Way.OPEN


def _all_in(subject: Subject, indices: tuple[int, ...], blocks: frozenset[int]) -> bool:
    return all(subject.flow.block_of[n] in blocks for n in indices)


def exits_of(subject: Subject, loop: Loop) -> list[int]:
    """Branches with one way out of the loop and one that stays."""
    return [
        subject.flow.last(block)
        for block in sorted(loop.blocks)
        if any(s not in loop.blocks for s in subject.flow.successors[block])
    ]


def deciding(subject: Subject, loop: Loop, branches: list[int], beside: frozenset[int] = frozenset()) -> list[int]:
    """Instructions of a loop on whose results some branches depend, over any number of iterations.

    Follows each register back to the writes that may have made it, and adds the branches inside the loop that choose
    between such writes. What stands in the blocks `beside` is left out.
    """
    chosen: set[int] = set()
    asked: set[tuple[int, int]] = set()
    pending = [(index, subject.ops[index].reads) for index in branches]
    while pending:
        index, registers = pending.pop()
        for bit in bits_of(registers):
            for source in _sources(subject, loop, index, 1 << bit, asked):
                if source not in chosen and subject.flow.block_of[source] not in beside:
                    chosen.add(source)
                    if source not in subject.uniformity.full_exec:
                        pending.append((source, subject.ops[source].reads))
        if not pending:
            pending = [(n, subject.ops[n].reads) for n in _choosers(subject, loop, chosen) if n not in chosen]
            pending = [(n, reads) for n, reads in pending if subject.flow.block_of[n] not in beside]
            chosen.update(n for n, _ in pending)
    return sorted(chosen)


def _sources(subject: Subject, loop: Loop, index: int, register: int, asked: set[tuple[int, int]]) -> list[int]:
    """Writes inside the loop from which a register's value may come to an instruction."""
    found, flow, ops = [], subject.flow, subject.ops
    block = flow.block_of[index]
    pending = [(block, index)]
    first = True
    while pending:
        block, end = pending.pop()
        if not first:
            if (block, register) in asked:
                continue
            asked.add((block, register))
        narrowed = False  # exec changed between the write and here: a vector write may have left lanes out
        done = False
        for at_ in range(end - 1, flow.blocks[block].start - 1, -1):
            op = ops[at_]
            if op.writes & register:
                found.append(at_)
                if (first and not narrowed) or not op.name.startswith("v_"):
                    done = True
                    break
            narrowed = narrowed or bool(op.writes & EXEC_MASK)
        if not done:
            pending.extend((p, flow.blocks[p].end) for p in flow.predecessors[block] if p in loop.blocks)
        first = False
    return found


def _choosers(subject: Subject, loop: Loop, chosen: set[int]) -> list[int]:
    """Branches of a loop that decide whether one of the chosen instructions runs before its ways meet again."""
    blocks = {subject.flow.block_of[n] for n in chosen}
    choosers = []
    for block in loop.blocks:
        successors = subject.flow.successors[block]
        if len(successors) < 2 or not _is_open(subject, subject.flow.last(block)):
            continue
        meet, pending, seen = subject.flow.post_dominators[block], list(successors), set[int]()
        while pending:
            other = pending.pop()
            if other in seen or other == meet or other not in loop.blocks:
                continue
            seen.add(other)
            pending.extend(subject.flow.successors[other])
        if seen & blocks and subject.flow.last(block) not in chosen:
            choosers.append(subject.flow.last(block))
    return choosers


# ---- rules --------------------------------------------------------------------------------------------------------


def wait_loops(subject: Subject) -> Iterator[Finding]:
    """Every declared wait is a loop with a scoped load and a branch back, and no other loop waits (lesson L1)."""
    declared = subject.contract.polls
    waits = [wait for wait in find_waits(subject) if not _posts(subject, wait)]
    if declared is not None:
        spellings = [subject.spelling(n) for wait in waits for n in wait.reads if _polls(subject, n)]
        for poll in declared:
            found = spellings.count(poll.access)
            if found != poll.count:
                yield Finding(
                    0, str(poll.access), f"the text must wait in {poll.count} loops on this load, not {found}"
                )
        known = {poll.access for poll in declared}
        for wait in waits:
            for index in wait.reads:
                if _polls(subject, index) and subject.spelling(index) not in known:
                    yield at(subject.code[index], "a loop waits for this load, and the contract does not declare it")
    for wait in waits:
        for index in wait.reads:
            access = subject.ops[index].access
            if access is not None and access.kind is Kind.LOAD and not access.policy.scoped:
                yield at(subject.code[index], "a loop waits for a plain load: a cache may answer it for ever")


def _posts(subject: Subject, wait: Wait) -> bool:
    """Whether it waits for room in the ring of a copy engine, or for its turn there: it reads no data afterwards."""
    return any(wait.loop.blocks <= post.blocks for post in subject.posts)


def _polls(subject: Subject, index: int) -> bool:
    access = subject.ops[index].access
    return access is not None and access.space != "lds"


def bounded_waits(subject: Subject) -> Iterator[Finding]:
    """A wait loop reads the clock, and what it read takes part in leaving the loop (lesson L15)."""
    for wait in find_waits(subject):
        first = subject.code[wait.reads[0]]
        if not wait.exits:
            yield at(first, "a loop waits for this and no branch leaves it")
        elif not wait.clocks:
            yield at(first, "a loop waits for this without a bound: no clock read takes part in leaving it")
    for loop in subject.flow.loops:
        if not exits_of(subject, loop):
            yield at(subject.code[subject.flow.blocks[loop.header].start], "the loop that starts here has no way out")
    for block in subject.flow.irreducible():
        start = subject.flow.blocks[block].start
        yield at(subject.code[start], "a loop is entered at two places here: the audit cannot tell how it ends")


def acquire_after_wait(subject: Subject) -> Iterator[Finding]:
    """After a wait comes buffer_inv, before any barrier or load of data: else caches may hold what was there before."""
    declared = {poll.access: poll.acquire for poll in subject.contract.polls or ()}
    found = [w for w in find_waits(subject) if not _posts(subject, w)]
    waits = [w for w in found if subject.spelling(w.reads[0]) in declared]
    if not waits:
        return
    ops = subject.ops
    polls = {n: declared[subject.spelling(n)] for w in waits for n in w.reads if subject.spelling(n) in declared}

    def step(open_: frozenset[int], index: int) -> frozenset[int]:
        op = ops[index]
        if index in polls:
            return open_ | {index}
        if op.kind is Kind.INVALIDATE and op.access is not None:
            reach = op.access.policy.reach
            return frozenset(n for n in open_ if polls[n].reach > reach)
        return frozenset() if open_ and _uses_data(subject, index) else open_  # one finding for each way

    for index, open_ in open_sets(subject.flow, step):
        if open_ and _uses_data(subject, index):
            lines = ", ".join(str(subject.line(n)) for n in sorted(open_))
            need = max((polls[n] for n in open_), key=lambda policy: policy.reach).value
            yield at(subject.code[index], f"follows the wait of line {lines} with no buffer_inv {need} in between")


def acquire_after_count(subject: Subject) -> Iterator[Finding]:
    """Who completes a count acts for all that were counted: its answer, vmcnt(0), buffer_inv, then anything (L11)."""
    needed = {p.access: p.acquire.reach for p in subject.contract.publishes if p.acquire is not None}
    if not needed:
        return
    counts = {n: needed[subject.spelling(n)] for n in subject.publishing if subject.spelling(n) in needed}
    doorbells = {post.doorbell for post in subject.posts}

    def step(open_: frozenset[int], index: int) -> frozenset[int]:
        op = subject.ops[index]  # counts that have been answered are complemented
        if index in counts:
            return open_ | {index}
        if op.wait_vm == 0:
            return frozenset(min(n, ~n) for n in open_)
        if op.kind is Kind.INVALIDATE and op.access is not None:
            reach = op.access.policy.reach
            return frozenset(n for n in open_ if n >= 0 or counts[~n] > reach)
        return open_

    for index, open_ in open_sets(subject.flow, step):
        if open_ and (index in doorbells or _uses_data(subject, index)):
            lines = ", ".join(str(subject.line(max(n, ~n))) for n in sorted(open_))
            yield at(subject.code[index], f"follows the count of line {lines} with no vmcnt(0) and buffer_inv between")


def _uses_data(subject: Subject, index: int) -> bool:
    op = subject.ops[index]
    if op.barrier:
        return True
    access = op.access
    return access is not None and access.kind in (Kind.LOAD, Kind.COPY) and not access.policy.scoped
