# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Which way each wave of a workgroup takes at each branch, as far as the text says.

A branch goes one way for all waves, a known way for each wave, the same unknown way for all waves (it depends on
arguments, workgroup numbers or agreed LDS words), or it may differ between waves in a way that is not known.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from mori_gemm_ar.audit.flow import Flow
from mori_gemm_ar.audit.operations import Kind, Op
from mori_gemm_ar.audit.registers import EXEC_MASK, SCC, SCC_BIT, VCC_MASK, bit_of
from mori_gemm_ar.audit.semantics import EXEC_BIT, VCC_BIT, Step, Values, step_of
from mori_gemm_ar.audit.values import FULL, LANES, THREAD, UNIFORM, Evaluator, Node, Value, apply, is_full
from mori_gemm_ar.errors import IsaError
from mori_gemm_ar.isa import Instruction, Kernel, Reg

_MAX_ROUNDS = 1000  # visits of a block, on average; a handful is usual
_SCALARS = 106  # s0..s105 may hold launch values: equal in all waves of a workgroup


class Way(enum.Enum):
    """How much is known of a branch."""

    KNOWN = "known"  # for each wave
    SAME = "same"  # equal in all waves, either way
    OPEN = "open"  # may differ between waves


@dataclass(frozen=True, slots=True)
class Decision:
    """What a conditional branch does; `taken` has an entry for each wave when the way is KNOWN."""

    way: Way
    taken: tuple[bool, ...] = ()

    @property
    def splits(self) -> bool:
        """Whether waves may part here."""
        return self.way is Way.OPEN or len(set(self.taken)) > 1


OPEN, SAME = Decision(Way.OPEN), Decision(Way.SAME)


class Uniformity:
    """Decisions of all conditional branches of a kernel whose workgroups have `waves` waves."""

    def __init__(self, flow: Flow, ops: list[Op], waves: int) -> None:
        self.flow, self.ops, self.waves = flow, ops, waves
        self.evaluator = Evaluator(waves)
        self.decisions: dict[int, Decision] = {}  # block -> its branch
        self.full_exec: set[int] = set()  # writes of exec after which all lanes are active again
        self._steps = self._steps_of_blocks()
        self._position = {block: n for n, block in enumerate(flow.order)}
        self._parted: set[int] = set()  # blocks where waves meet that came by different ways
        while True:
            self._run()
            parted = self._meeting_points()
            if parted <= self._parted:
                break
            self._parted |= parted
        self._find_full_exec()

    # ---- dataflow ----------------------------------------------------------------------------------------------

    def _steps_of_blocks(self) -> list[list[tuple[int, Step]]]:
        """What each block does to values that a branch may depend on, by instruction."""
        agreed = agreed_lds_reads(self.flow, self.ops)
        relevant = relevant_registers(self.ops)
        blocks: list[list[tuple[int, Step]]] = []
        for block in self.flow.blocks:
            steps = []
            for index in range(block.start, block.end):
                if not self.ops[index].writes & relevant:
                    continue
                i = self.flow.code[index]
                step = agreed_read(i) if index in agreed else step_of(i, self.ops[index])
                if step is not None:
                    steps.append((index, step))
            blocks.append(steps)
        return blocks

    def _run(self) -> None:
        """One fixed point. A block's values are joined anew from its edges, so that what is old news on one edge does
        not count as a difference; values that come back to a loop are forgotten when those that enter it change."""
        flow, position = self.flow, self._position
        edges: dict[tuple[int, int], Values] = {}
        entered: dict[int, Values] = {}
        self._before = before = dict[int, Values]()
        self.decisions = {}
        start, pending, rounds = entry_values(flow.kernel), {0}, 0
        while pending:
            rounds += 1
            if rounds > _MAX_ROUNDS * len(flow.order):
                raise IsaError(f"kernel {flow.kernel.name!r}: its control flow is too tangled to follow its values")
            block = min(pending, key=position.__getitem__)
            pending.discard(block)
            forward = [p for p in flow.predecessors[block] if position[p] < position[block]]
            backward = [p for p in flow.predecessors[block] if position[p] >= position[block]]
            sources = [start] if block == 0 else []
            entering = self._join([*sources, *(edges[p, block] for p in forward if (p, block) in edges)], block)
            if block in entered and entering.known != entered[block].known:
                for p in backward:
                    edges.pop((p, block), None)
            entered[block] = entering
            returning = [edges[p, block] for p in backward if (p, block) in edges]
            values = self._join([entering, *returning], block) if returning else entering
            if block in before and before[block].known == values.known:
                continue
            before[block] = values
            after = values.copy()
            for _, step in self._steps[block]:
                step(after)
            for successor in self._ways_out(block, after):
                old = edges.get((block, successor))
                if old is None or old.known != after.known:
                    edges[block, successor] = after
                    pending.add(successor)

    def _find_full_exec(self) -> None:
        for block, values in self._before.items():
            values = values.copy()
            for index, step in self._steps[block]:
                step(values)
                if self.ops[index].writes & EXEC_MASK and is_full(values.pair(EXEC_BIT)):
                    self.full_exec.add(index)

    def _ways_out(self, block: int, values: Values) -> tuple[int, ...]:
        successors = self.flow.successors[block]
        last = self.flow.code[self.flow.last(block)]
        if not last.name.startswith("s_cbranch") or len(successors) < 2:
            return successors
        decision = self.decisions[block] = decision_of(condition_of(last.name, values), self.evaluator)
        if decision.way is Way.KNOWN and not decision.splits:
            return (successors[1] if decision.taken[0] else successors[0],)
        return successors

    def _join(self, sources: list[Values], block: int) -> Values:
        if len(sources) == 1:
            return sources[0]
        together = block not in self._parted
        known = sources[0].known
        for other in sources[1:]:
            merged: dict[int, Node] = {}
            get = other.known.get
            for bit, node in known.items():
                match = get(bit)
                if match is node:
                    merged[bit] = node
                elif match is not None and together and node.uniform and match.uniform:
                    merged[bit] = UNIFORM
            known = merged
        return Values(known)

    def _meeting_points(self) -> set[int]:
        """Blocks between a branch that parts waves and the block where all its ways meet, and that block."""
        points: set[int] = set()
        for block, decision in self.decisions.items():
            if not decision.splits:
                continue
            meet = self.flow.post_dominators[block]
            pending = list(self.flow.successors[block])
            seen: set[int] = set()
            while pending:
                at = pending.pop()
                if at in seen:
                    continue
                seen.add(at)
                if at != meet:
                    pending.extend(self.flow.successors[at])
            points |= seen
        return points


CONDITIONS = SCC | VCC_MASK | EXEC_MASK


def relevant_registers(ops: list[Op], relevant: int = CONDITIONS) -> int:
    """Registers that some registers, by default those of branch conditions, may depend on, wherever written."""
    before = 0
    while relevant != before:
        before = relevant
        for op in reversed(ops):
            # What memory gives is not followed, but for LDS reads, whose address matters.
            if op.writes & relevant and op.kind in (None, Kind.SCALAR_LOAD, Kind.LDS_READ):
                relevant |= op.reads
    return relevant


def agreed_read(i: Instruction) -> Step:
    """An LDS read that gives all waves the same, if they read the same address."""
    address, outs = i.operands[1].reg, [bit_of(part) for part in i.operands[0].reg or ()]

    def step(values: Values) -> None:
        where = None if address is None else values.known.get(bit_of(address))
        agreed = where is not None and where.uniform and is_full(values.pair(EXEC_BIT))
        for out in outs:
            values.put(out, UNIFORM if agreed else None)

    return step


def entry_values(kernel: Kernel) -> Values:
    """Values when a wave starts: launch values are uniform, v0 is the thread number of a one-dimensional block."""
    known: dict[int, Node] = {bit_of(Reg("s", n)): UNIFORM for n in range(_SCALARS)}
    if kernel.descriptor.get("amdhsa_system_vgpr_workitem_id", 0) == 0:
        known[bit_of(Reg("v", 0))] = THREAD
    values = Values(known)
    if kernel.metadata.get("max_flat_workgroup_size", LANES) % LANES == 0:
        values.put_pair(EXEC_BIT, FULL)
    return values


def condition_of(name: str, values: Values) -> tuple[Value, bool]:
    """(value, whether the branch is taken where it is not zero)."""
    test = name.removeprefix("s_cbranch_")
    if test.startswith("scc"):
        return values.known.get(SCC_BIT), test == "scc1"
    mask = values.pair(VCC_BIT if test.startswith("vcc") else EXEC_BIT)
    return apply("nonzero", mask), test.endswith("nz")


def decision_of(condition: tuple[Value, bool], evaluator: Evaluator) -> Decision:
    """What a branch does on a condition."""
    value, when = condition
    if value is None:
        return OPEN
    if value is UNIFORM:
        return SAME
    per_wave = evaluator.per_wave(value)
    if per_wave is None:
        return OPEN
    return Decision(Way.KNOWN, tuple((bool(v) == when) for v in per_wave))


def agreed_lds_reads(flow: Flow, ops: list[Op]) -> frozenset[int]:
    """LDS reads that no write can meet between two barriers: all waves that read one address get one value."""
    writes = frozenset(n for n, op in enumerate(ops) if op.kind in (Kind.LDS_WRITE, Kind.COPY))
    reads = [n for n, op in enumerate(ops) if op.kind is Kind.LDS_READ]
    if not reads:
        return frozenset()
    after_write = reach_without_barrier(flow, ops, writes)
    return frozenset(
        read for read in reads if read not in after_write and not (reach_without_barrier(flow, ops, {read}) & writes)
    )


def reach_without_barrier(flow: Flow, ops: list[Op], starts: frozenset[int] | set[int]) -> frozenset[int]:
    """Instructions that a path from one of the starts reaches with no barrier in between."""
    reached: set[int] = set()
    pending: list[int] = []
    entered: set[int] = set()

    def walk(index: int, end: int, block: int) -> None:
        for at in range(index, end):
            if ops[at].barrier:
                return
            reached.add(at)
        pending.extend(flow.successors[block])

    for start in starts:
        block = flow.block_of[start]
        walk(start + 1, flow.blocks[block].end, block)
    while pending:
        block = pending.pop()
        if block not in entered:
            entered.add(block)
            walk(flow.blocks[block].start, flow.blocks[block].end, block)
    return frozenset(reached)
