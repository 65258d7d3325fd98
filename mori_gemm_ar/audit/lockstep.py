# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Waves of a workgroup side by side, from barrier to barrier.

A barrier only counts arrivals, so it pairs whatever barrier each wave has reached. Pieces of blocks that end at a
barrier, and the ways between them, are walked for two waves at once. A branch that all waves take alike is decided
once: if one wave comes to it a barrier earlier, the other wave finds the decision made.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from mori_gemm_ar.audit.flow import Flow
from mori_gemm_ar.audit.operations import Op
from mori_gemm_ar.audit.uniform import Decision, Way

Made = tuple[tuple[int, int], ...]  # (block, way) of the shared branches on a walk
Ahead = tuple[tuple[int, int, int], ...]  # (which of two waves made it, block, way), not yet met by the other one

END = -1  # instead of a barrier: the program ends
_MAX_AHEAD = 64  # decisions that one wave may be ahead of another
_MAX_STATES = 20_000


@dataclass(frozen=True, slots=True)
class Piece:
    """Instructions `[start, end)` of a block up to a barrier (the last one) or the end of the block."""

    start: int
    end: int
    block: int
    barrier: bool


class WaveGraph:
    """Pieces and the ways between them that one wave can take."""

    def __init__(self, flow: Flow, ops: list[Op], decisions: dict[int, Decision], wave: int) -> None:
        self.flow, self.ops = flow, ops
        self.pieces: list[Piece] = []
        self.first_of: dict[int, int] = {}
        self._cut()
        self.ways = [self._ways(n, decisions, wave) for n in range(len(self.pieces))]
        # Branches that all waves take alike.
        self.shared = {b for b, d in decisions.items() if d.way is Way.SAME}
        self.reachable = self._reach()
        self.next_events = self._next_events()
        self.cyclic = self._cyclic()

    def _cut(self) -> None:
        for block in self.flow.order:
            start = self.flow.blocks[block].start
            end = self.flow.blocks[block].end
            self.first_of[block] = len(self.pieces)
            for index in range(start, end):
                if self.ops[index].barrier:
                    self.pieces.append(Piece(start, index + 1, block, True))
                    start = index + 1
            # The rest, which may be empty: a block's last piece is never a barrier.
            self.pieces.append(Piece(start, end, block, False))

    def _ways(self, number: int, decisions: dict[int, Decision], wave: int) -> tuple[int, ...]:
        piece = self.pieces[number]
        if piece.barrier:
            return (number + 1,)
        successors = self.flow.successors[piece.block]
        decision = decisions.get(piece.block)
        if decision is not None and decision.way is Way.KNOWN and len(successors) == 2:
            successors = (successors[1] if decision.taken[wave] else successors[0],)
        return tuple(self.first_of[s] for s in successors)

    def _reach(self) -> frozenset[int]:
        seen, pending = {0}, [0]
        while pending:
            for way in self.ways[pending.pop()]:
                if way not in seen:
                    seen.add(way)
                    pending.append(way)
        return frozenset(seen)

    def _next_events(self) -> list[frozenset[int]]:
        """Barriers (their pieces) or END that a path from the start of each piece meets first."""
        events: list[set[int]] = [set() for _ in self.pieces]
        for number in self.reachable:
            if self.pieces[number].barrier:
                events[number].add(number)
            elif not self.ways[number]:
                events[number].add(END)
        changed = True
        while changed:
            changed = False
            for number in sorted(self.reachable, reverse=True):
                if not self.pieces[number].barrier:
                    new = set().union(*(events[way] for way in self.ways[number]), events[number])
                    changed |= new != events[number]
                    events[number] = new
        return [frozenset(e) for e in events]

    def _cyclic(self) -> frozenset[int]:
        """Pieces on a cycle without a barrier."""
        cyclic = set()
        for number in self.reachable:
            seen: set[int] = set()
            pending = [number] if not self.pieces[number].barrier else []
            while pending:
                for way in self.ways[pending.pop()]:
                    if way == number:
                        cyclic.add(number)
                    if way not in seen and not self.pieces[way].barrier:
                        seen.add(way)
                        pending.append(way)
        return frozenset(cyclic)

    def narrowed_flow(self) -> Flow:
        """The flow that this wave can take."""
        successors: list[tuple[int, ...]] = [()] * len(self.flow.blocks)
        for number in self.reachable:
            piece = self.pieces[number]
            if not piece.barrier:
                successors[piece.block] = tuple(self.pieces[way].block for way in self.ways[number])
        return self.flow.narrowed(successors)

    def blocks(self) -> frozenset[int]:
        """Blocks that this wave may enter."""
        return frozenset(self.pieces[n].block for n in self.reachable)

    def between(self, after: int) -> frozenset[int]:
        """Pieces from one position (a piece's start) up to the next barriers, those included."""
        seen, pending = {after}, [after]
        while pending:
            number = pending.pop()
            if self.pieces[number].barrier:
                continue
            for way in self.ways[number]:
                if way not in seen:
                    seen.add(way)
                    pending.append(way)
        return frozenset(seen)

    def choices(self) -> frozenset[int]:
        """Blocks whose branch all waves take alike and which decides what barrier comes next."""
        return frozenset(
            self.pieces[n].block
            for n in self.reachable - self.cyclic
            if len(self.ways[n]) == 2 and len(self.next_events[n]) > 1 and self.pieces[n].block in self.shared
        )

    def walks(self, start: int, shared: frozenset[int]) -> list[tuple[int, Made]]:
        """(next barrier piece or END, decisions of `shared` branches on the way) for each way from a piece's start."""
        pending: list[tuple[int, Made]] = [(start, ())]
        seen, found = set(pending), set[tuple[int, Made]]()
        while pending:
            number, made = pending.pop()
            events = self.next_events[number]
            if len(events) == 1:
                found.add((next(iter(events)), made))
                continue
            decides = len(self.ways[number]) == 2 and self.pieces[number].block in shared
            for choice, way in enumerate(self.ways[number]):
                then = (way, (*made, (self.pieces[number].block, choice)) if decides else made)
                if then not in seen:
                    seen.add(then)
                    pending.append(then)
        return sorted(found)


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two waves at one moment: the barriers passed last, as pieces; None at the entry."""

    one: int | None
    other: int | None


@dataclass(frozen=True, slots=True)
class Parting:
    """From a meeting, one wave reaches `one` while the other reaches `other` (pieces, or END): they do not match."""

    at: Meeting
    one: int
    other: int


class Lockstep:
    """All moments in which two waves stand between barriers together."""

    def __init__(self, one: WaveGraph, other: WaveGraph) -> None:
        self.one, self.other = one, other
        self.meetings: list[Meeting] = []  # in the order in which they are reached first
        self.partings: list[Parting] = []
        self.drifts: list[Meeting] = []  # one wave runs ahead without end
        self._shared = one.choices() & other.choices()
        self._explore()

    def _explore(self) -> None:
        start: tuple[int | None, int | None, Ahead] = (None, None, ())
        seen, pending = {start}, deque([start])
        found: dict[Meeting, None] = {}
        while pending and len(seen) < _MAX_STATES and not self.drifts:
            a, b, ahead = pending.popleft()
            here = Meeting(a, b)
            found[here] = None
            walks_a = self.one.walks(0 if a is None else a + 1, self._shared)
            walks_b = self.other.walks(0 if b is None else b + 1, self._shared)
            for event_a, made_a in walks_a:
                for event_b, made_b in walks_b:
                    left = _settle(ahead, made_a, made_b)
                    if left is None:
                        continue
                    if (event_a == END) != (event_b == END):
                        self.partings.append(Parting(here, event_a, event_b))
                    elif event_a != END and len(left) > _MAX_AHEAD:
                        self.drifts.append(here)
                    elif event_a != END and (event_a, event_b, left) not in seen:
                        seen.add((event_a, event_b, left))
                        pending.append((event_a, event_b, left))
        if pending and not self.drifts:  # too many moments to tell
            self.drifts.append(here)
        self.meetings = list(found)


def _settle(ahead: Ahead, made_a: Made, made_b: Made) -> Ahead | None:
    """Decisions that one wave has made and the other has not come to; None when they contradict each other."""
    queue = list(ahead)
    for who, made in ((0, made_a), (1, made_b)):
        for block, choice in made:
            match = next((n for n, (w, at, _) in enumerate(queue) if at == block and w != who), None)
            if match is None:
                queue.append((who, block, choice))
            elif queue[match][2] != choice:
                return None
            else:
                del queue[match]
    return tuple(queue)
