# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""One workgroup walked barrier by barrier, with LDS addresses: which bytes each wave's operations touch, and when.

Branches whose way is known are followed; loops go round a few times; of the other branches the way that falls through
is walked, then each turn by itself. Time is counted in barriers: an operation spans the intervals from its issue to
the wait that covers it; an LDS read counts where it is issued.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from mori_gemm_ar.audit.flow import Flow
from mori_gemm_ar.audit.operations import Kind, Op
from mori_gemm_ar.audit.registers import M0_MASK, bit_of
from mori_gemm_ar.audit.semantics import Step, Values, step_of
from mori_gemm_ar.audit.uniform import (
    CONDITIONS,
    Way,
    condition_of,
    decision_of,
    entry_values,
    relevant_registers,
)
from mori_gemm_ar.audit.values import LANES, UNIFORM, Evaluator, Node, Value
from mori_gemm_ar.isa import M0, Instruction

ROUNDS = 4  # iterations of a loop: enough for three buffers to go round
MAX_WALKS = 12
MAX_STEPS = 200_000  # blocks of one walk
GRANULE = 4  # bytes of LDS that count as one place
OPEN_END = 1 << 30  # the interval of a wait that never comes


@dataclass(slots=True)
class Span:
    """One LDS operation of the waves that walk together."""

    index: int  # instruction
    kind: Kind
    address: Value
    start: int  # interval of the issue
    end: int = OPEN_END  # interval of the wait that covers it
    order: int = 0  # position among the vector memory operations
    at: int = 0  # step of the walk, and that of the wait
    waited_at: int = OPEN_END


@dataclass(frozen=True, slots=True)
class Waited:
    """One wait for vmcnt: where, with what operand, after how many vector memory operations."""

    interval: int
    index: int
    count: int
    issued: int
    at: int


@dataclass(slots=True)
class Track:
    """What a set of waves did, in order."""

    waves: tuple[int, ...]
    spans: list[Span] = field(default_factory=list)
    waits: list[Waited] = field(default_factory=list)  # for vmcnt
    intervals: int = 0


@dataclass(slots=True)
class _Walker:
    """Waves on one way, with what they have under way."""

    block: int
    values: Values
    track: Track
    visits: dict[int, int]
    vm: list[Span | None] = field(default_factory=list)  # outstanding, oldest first; None is not an LDS copy
    lds: list[Span] = field(default_factory=list)
    issued: int = 0
    step: int = 0


class Timeline:
    """Walks of a kernel. Iterate over `walks()`; each is a list of tracks that together hold all waves."""

    def __init__(self, flow: Flow, ops: list[Op], waves: int) -> None:
        self.flow, self.ops, self.waves = flow, ops, waves
        self.evaluator = Evaluator(waves)
        self._steps = self._relevant_steps()
        self._loops = {n: [loop for loop in flow.loops if n in loop.blocks] for n in flow.order}
        self._matters = self._blocks_that_matter()
        self._alive = self._blocks_before_lds()
        self.truncated = False  # a walk was longer than MAX_STEPS blocks
        self._turnable: dict[int, bool] = {}  # branches whose way was chosen -> whether the choice matters
        self._places: dict[tuple[int, Node, int], int] = {}

    def _relevant_steps(self) -> dict[int, Step]:
        wanted = CONDITIONS | M0_MASK
        for op in self.ops:
            if op.kind in (Kind.LDS_READ, Kind.LDS_WRITE):
                wanted |= op.reads
        wanted = relevant_registers(self.ops, wanted)
        steps = {}
        for index, op in enumerate(self.ops):
            step = step_of(self.flow.code[index], op) if op.writes & wanted else None
            if step is not None:
                steps[index] = step
        return steps

    def _blocks_that_matter(self) -> frozenset[int]:
        """Blocks with LDS operations, vector memory operations or barriers."""
        return frozenset(
            block.number
            for block in self.flow.blocks
            if any(op.barrier or op.vm or op.lds for op in self.ops[block.start : block.end])
        )

    def _blocks_before_lds(self) -> frozenset[int]:
        """Blocks from which a barrier or an LDS operation can be reached: behind the last one no access can meet."""
        alive = {
            block.number
            for block in self.flow.blocks
            if any(op.barrier or op.lds or op.kind is Kind.COPY for op in self.ops[block.start : block.end])
        }
        while True:
            before = {n for n in self.flow.order if n not in alive and alive.intersection(self.flow.successors[n])}
            if not before:
                return frozenset(alive)
            alive |= before

    # ---- walking -----------------------------------------------------------------------------------------------

    def walks(self) -> Iterator[list[Track]]:
        """The walk that falls through where nothing is known, then each with one such branch turned."""
        yield self._walk({})
        for branch in [b for b, matters in self._turnable.items() if matters][: MAX_WALKS - 1]:
            yield self._walk({branch: 1})

    def _walk(self, turned: dict[int, int]) -> list[Track]:
        self._turnable = {}
        everyone = tuple(range(self.waves))
        values = entry_values(self.flow.kernel)
        values.lenient = True
        pending = [_Walker(0, values, Track(everyone), {})]
        done, steps = [], 0
        while pending:
            walker = pending.pop()
            while True:
                if walker.block not in self._alive:
                    done.append(walker.track)
                    break
                self._run_block(walker)
                steps += 1
                ways = self._next(walker, turned) if steps < MAX_STEPS else {}
                self.truncated = self.truncated or steps >= MAX_STEPS
                if not ways:
                    done.append(walker.track)
                    break
                (block, waves), *others = ways.items()
                for other, rest in others:
                    pending.append(_fork(walker, other, rest))
                walker.block = block
                if others:
                    walker.track.waves = waves
        return done

    def _run_block(self, walker: _Walker) -> None:
        values, ops, track = walker.values, self.ops, walker.track
        block = self.flow.blocks[walker.block]
        for index in range(block.start, block.end):
            op = ops[index]
            walker.step += 1
            if op.wait_vm is not None or op.wait_lgkm is not None:
                _wait(walker, op, index)
            elif op.barrier:
                track.intervals += 1
            elif op.vm:
                copy = None
                if op.kind is Kind.COPY:
                    copy = Span(index, Kind.COPY, values.known.get(bit_of(M0)), track.intervals, order=walker.issued)
                    copy.at = walker.step
                    track.spans.append(copy)
                walker.vm.append(copy)
                walker.issued += 1
            elif op.lds:
                address = _address(self.flow.code[index], op, values)
                span = Span(index, op.kind or Kind.EXCHANGE, address, track.intervals, at=walker.step)
                if span.kind is Kind.LDS_READ:  # LDS serves it before any copy that is issued after a barrier
                    span.end, span.waited_at = track.intervals, walker.step
                if span.kind is not Kind.EXCHANGE:
                    track.spans.append(span)
                walker.lds.append(span)
            step = self._steps.get(index)
            if step is not None:
                step(values)

    def _next(self, walker: _Walker, turned: dict[int, int]) -> dict[int, tuple[int, ...]]:
        """Next block -> the waves that go there."""
        block, flow = walker.block, self.flow
        successors = flow.successors[block]
        waves = walker.track.waves
        if len(successors) < 2:
            return dict.fromkeys(successors, waves)
        last = flow.code[flow.last(block)]
        decision = decision_of(condition_of(last.name, walker.values), self.evaluator)
        if decision.way is Way.KNOWN:
            ways: dict[int, tuple[int, ...]] = {}
            for wave in waves:
                way = successors[1] if decision.taken[wave] else successors[0]
                ways[way] = (*ways.get(way, ()), wave)
            return ways
        return {self._choose(walker, successors, turned): waves}

    def _choose(self, walker: _Walker, successors: tuple[int, ...], turned: dict[int, int]) -> int:
        block = walker.block
        for loop in self._loops[block]:
            stays = [s for s in successors if s in loop.blocks]
            leaves = [s for s in successors if s not in loop.blocks]
            if stays and leaves:
                walker.visits[block] = walker.visits.get(block, 0) + 1
                if walker.visits[block] < ROUNDS:
                    return stays[0]
                walker.visits[block] = 0
                return leaves[0]
        if block not in self._turnable:
            self._turnable[block] = self._region_matters(block)
        return successors[turned.get(block, 0)]

    def _region_matters(self, block: int) -> bool:
        meet, pending, seen = self.flow.post_dominators[block], list(self.flow.successors[block]), set[int]()
        while pending:
            other = pending.pop()
            if other != meet and other not in seen:
                seen.add(other)
                pending.extend(self.flow.successors[other])
        return bool(seen & self._matters)

    # ---- places ------------------------------------------------------------------------------------------------

    def places(self, span: Span, wave: int) -> int | None:
        """LDS granules that an operation of one wave touches, as a set; None when the address is not known."""
        if span.address is None or span.address is UNIFORM:
            return None
        key = (span.index, span.address, wave)
        if key not in self._places:
            self._places[key] = self._compute_places(span, span.address, wave)
        return self._places[key]

    def _compute_places(self, span: Span, address: Node, wave: int) -> int:
        i, op = self.flow.code[span.index], self.ops[span.index]
        assert op.access is not None
        bases = self.evaluator.of(address)[wave]
        if span.kind is Kind.COPY:
            start = (bases[0] & 0xFFFFFFFF) + i.option("offset")
            return _granules(start, LANES * op.access.nbytes)
        offsets, nbytes = _offsets(i, op.access.nbytes)
        touched = 0
        for base in set(bases):
            for offset in offsets:
                touched |= _granules((base & 0xFFFFFFFF) + offset, nbytes)
        return touched


def _granules(start: int, nbytes: int) -> int:
    first, last = start // GRANULE, (start + nbytes - 1) // GRANULE
    return ((1 << last - first + 1) - 1) << first


def _offsets(i: Instruction, nbytes: int) -> tuple[tuple[int, ...], int]:
    """(byte offsets of the items, bytes of an item) of an LDS read or write."""
    if "offset0" in i.modifiers or "offset1" in i.modifiers or i.name.startswith(("ds_read2", "ds_write2")):
        unit = nbytes // 2 * (64 if "st64" in i.name else 1)
        return (i.option("offset0") * unit, i.option("offset1") * unit), nbytes // 2
    return (i.option("offset"),), nbytes


def _address(i: Instruction, op: Op, values: Values) -> Value:
    """Address register of an LDS operation: its first operand, or the one after the destination."""
    position = 1 if op.writes else 0
    reg = i.operands[position].reg if position < len(i.operands) else None
    return None if reg is None else values.known.get(bit_of(reg))


def _wait(walker: _Walker, op: Op, index: int) -> None:
    track = walker.track
    if op.wait_vm is not None:
        track.waits.append(Waited(track.intervals, index, op.wait_vm, walker.issued, walker.step))
        keep = len(walker.vm) - op.wait_vm
        for span in walker.vm[: max(0, keep)]:
            if span is not None:
                span.end, span.waited_at = track.intervals, walker.step
        if keep > 0:
            del walker.vm[:keep]
    if op.wait_lgkm is not None:
        keep = len(walker.lds) - op.wait_lgkm
        for span in walker.lds[: max(0, keep)]:
            if span.kind is Kind.LDS_WRITE:
                span.end, span.waited_at = track.intervals, walker.step
        if keep > 0:
            del walker.lds[:keep]


def _fork(walker: _Walker, block: int, waves: tuple[int, ...]) -> _Walker:
    """The same past for other waves. Spans are copied, since the two pasts end differently."""
    old = walker.track
    copies = {id(span): replace(span) for span in [*old.spans, *walker.lds]}
    track = Track(waves, [copies[id(s)] for s in old.spans], list(old.waits), old.intervals)
    return replace(
        walker,
        block=block,
        values=walker.values.copy(),
        track=track,
        visits=dict(walker.visits),
        vm=[None if s is None else copies[id(s)] for s in walker.vm],
        lds=[copies[id(s)] for s in walker.lds],
    )
