# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Control flow for the rules: blocks, dominators, loops, and a solver for forward dataflow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mori_gemm_ar.isa import BasicBlock, Instruction, Kernel, basic_blocks

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Loop:
    """A natural loop: the blocks between a header and the branches back to it."""

    header: int
    latches: tuple[int, ...]
    blocks: frozenset[int]


class Flow:
    """The control-flow graph of a kernel. Blocks that no path reaches take part in nothing."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.code: tuple[Instruction, ...] = kernel.instructions
        self.blocks: tuple[BasicBlock, ...] = basic_blocks(kernel)
        self.successors = [tuple(dict.fromkeys(block.successors)) for block in self.blocks]
        self.order = reverse_postorder(self.successors, 0)
        self.predecessors = _invert(self.successors, self.order)
        self.block_of = [0] * len(self.code)
        for block in self.blocks:
            self.block_of[block.start : block.end] = [block.number] * (block.end - block.start)
        self._dominators: list[int] | None = None
        self._post: list[int] | None = None
        self._loops: tuple[Loop, ...] | None = None

    def narrowed(self, successors: Sequence[tuple[int, ...]]) -> Flow:
        """The same kernel with some of the ways only, such as those that one wave can take."""
        flow = Flow(self.kernel)
        flow.successors = list(successors)
        flow.order = reverse_postorder(flow.successors, 0)
        flow.predecessors = _invert(flow.successors, flow.order)
        return flow

    @property
    def dominators(self) -> list[int]:
        """Immediate dominator of each block; the entry's is itself, -1 for unreachable blocks."""
        if self._dominators is None:
            self._dominators = immediate_dominators(self.order, self.predecessors, len(self.blocks))
        return self._dominators

    @property
    def post_dominators(self) -> list[int]:
        """Immediate post-dominator of each block; len(blocks) stands for the end of the program, -1 for none."""
        if self._post is None:
            end = len(self.blocks)
            exits = tuple(n for n in self.order if not self.successors[n])
            backward = [tuple(self.predecessors[n]) for n in range(end)]
            order = reverse_postorder([*backward, exits], end)
            forward = [(*self.successors[n], end) if n in exits else self.successors[n] for n in range(end)]
            self._post = immediate_dominators(order, [*forward, ()], end + 1)[:end]
        return self._post

    def dominates(self, a: int, b: int) -> bool:
        """Whether every path from the entry to block b passes block a."""
        while b != a and self.dominators[b] not in (b, -1):
            b = self.dominators[b]
        return a == b

    @property
    def loops(self) -> tuple[Loop, ...]:
        """All natural loops, inner before outer; loops with one header are one loop."""
        if self._loops is None:
            bodies: dict[int, tuple[set[int], list[int]]] = {}
            for latch in self.order:
                for header in self.successors[latch]:
                    if self.dominates(header, latch):
                        body, latches = bodies.setdefault(header, ({header}, []))
                        latches.append(latch)
                        self._collect(latch, body)
            loops = [Loop(h, tuple(latches), frozenset(body)) for h, (body, latches) in bodies.items()]
            self._loops = tuple(sorted(loops, key=lambda loop: (len(loop.blocks), loop.header)))
        return self._loops

    def _collect(self, latch: int, body: set[int]) -> None:
        pending = [latch]
        while pending:
            block = pending.pop()
            if block not in body:
                body.add(block)
                pending.extend(self.predecessors[block])

    def irreducible(self) -> tuple[int, ...]:
        """Blocks that a backward edge enters without dominating its source: cycles that are no natural loop."""
        position = {block: n for n, block in enumerate(self.order)}
        edges = ((a, b) for a in self.order for b in self.successors[a])
        return tuple(b for a, b in edges if position[b] <= position[a] and not self.dominates(b, a))

    def indices(self, blocks: Iterable[int]) -> list[int]:
        """Instruction indices of some blocks, in program order."""
        return [index for n in sorted(blocks) for index in range(self.blocks[n].start, self.blocks[n].end)]

    def last(self, block: int) -> int:
        """Index of the last instruction of a block."""
        return self.blocks[block].end - 1


def solve(
    flow: Flow,
    entry: State,
    transfer: Callable[[int, State], State],
    join: Callable[[State, State], State],
) -> list[State | None]:
    """State at the start of each block, None where unreachable.

    `transfer(block, state)` gives the state at its end and must not change the one it gets; `join` must be monotone.
    """
    before: list[State | None] = [None] * len(flow.blocks)
    before[0] = entry
    position = {block: n for n, block in enumerate(flow.order)}
    pending = {0}
    while pending:
        block = min(pending, key=position.__getitem__)
        pending.discard(block)
        state = before[block]
        assert state is not None
        after = transfer(block, state)
        for successor in flow.successors[block]:
            old = before[successor]
            new = after if old is None else join(old, after)
            if old is None or new != old:
                before[successor] = new
                pending.add(successor)
    return before


def states(
    flow: Flow,
    entry: State,
    step: Callable[[State, int], State],
    join: Callable[[State, State], State],
) -> Iterator[tuple[int, State]]:
    """(instruction, state before it) of all that a path reaches; `step(state, index)` gives the state after one."""

    def transfer(block: int, state: State) -> State:
        for index in range(flow.blocks[block].start, flow.blocks[block].end):
            state = step(state, index)
        return state

    before: list[State | None] = solve(flow, entry, transfer, join)
    for block in flow.blocks:
        state = before[block.number]
        if state is not None:
            for index in range(block.start, block.end):
                yield index, state
                state = step(state, index)


def open_sets(
    flow: Flow, step: Callable[[frozenset[int], int], frozenset[int]]
) -> Iterator[tuple[int, frozenset[int]]]:
    """`states` of sets of instructions that may be unfinished; where paths meet, all of them may be."""
    nothing: frozenset[int] = frozenset()
    return states(flow, nothing, step, frozenset.union)


def reverse_postorder(successors: Sequence[Sequence[int]], entry: int) -> list[int]:
    """Nodes that a path from the entry reaches, each before its successors but for backward edges."""
    order: list[int] = []
    seen = {entry}
    stack = [(entry, iter(successors[entry]))]
    while stack:
        block, rest = stack[-1]
        for successor in rest:
            if successor not in seen:
                seen.add(successor)
                stack.append((successor, iter(successors[successor])))
                break
        else:
            order.append(block)
            stack.pop()
    return order[::-1]


def _invert(successors: Sequence[Sequence[int]], order: Iterable[int]) -> list[list[int]]:
    inverse: list[list[int]] = [[] for _ in successors]
    for block in order:
        for successor in successors[block]:
            inverse[successor].append(block)
    return inverse


def immediate_dominators(order: Sequence[int], predecessors: Sequence[Sequence[int]], count: int) -> list[int]:
    """Cooper, Harvey and Kennedy's iteration; `order` is a reverse postorder from the entry, order[0]."""
    position = {block: n for n, block in enumerate(order)}
    parent = [-1] * count
    parent[order[0]] = order[0]
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            new = -1
            for other in predecessors[block]:
                if other not in position or parent[other] < 0:
                    continue
                a, b = other, new if new >= 0 else other
                while a != b:
                    while position[a] > position[b]:
                        a = parent[a]
                    while position[b] > position[a]:
                        b = parent[b]
                new = a
            if parent[block] != new:
                parent[block] = new
                changed = True
    return parent
