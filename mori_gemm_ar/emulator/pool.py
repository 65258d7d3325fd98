# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Waves of one kernel: registers, LDS, and the loop that runs all waves standing at the same segment together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mori_gemm_ar.emulator.group import Group
from mori_gemm_ar.emulator.helpers import execution_mask
from mori_gemm_ar.emulator.translate import Ending, Program, Segment
from mori_gemm_ar.errors import DeadlockError
from mori_gemm_ar.isa import EXEC, VCC

if TYPE_CHECKING:
    from mori_gemm_ar.emulator.node import Dispatch, Node

FREE, READY, AT_BARRIER, DONE = range(4)
_FAR = np.iinfo(np.int32).max
# Iterations of a loop before the other waves get a turn, and how many such turns a kernel may take.
_PATIENCE, _MAX_OVERRUNS = 4096, 1024
_POISON = np.uint32(0x7FA5A5A5)  # a signalling NaN: reading a register before writing it shows


@dataclass(slots=True)
class Slot:
    """A resident workgroup."""

    dispatch: Dispatch
    workgroup: tuple[int, int, int]
    number: int


class Pool:
    """All resident waves of one program on all GPUs of the node."""

    def __init__(self, node: Node, program: Program, waves_per_group: int, slots: int) -> None:
        kernel = program.kernel
        self.node, self.program, self.memory = node, program, node.memory
        self.waves_per_group, self.slots = waves_per_group, slots
        waves = waves_per_group * slots
        self.V = np.full((program.vector_registers, waves, 64), _POISON, np.uint32)
        self.S = np.full((64, waves, 2), _POISON, np.uint32)
        self.S64 = self.S.view(np.uint64)[..., 0]
        self.scc = np.zeros(waves, bool)
        self.pc = np.zeros(waves, np.int32)
        self.status = np.full(waves, FREE, np.int8)
        self.yielded = np.zeros(waves, bool)
        self.polled = np.zeros((waves, 64), np.uint64)
        self.wave_gpu = np.zeros(waves, np.int32)
        self.wave_xcd = np.zeros(waves, np.int32)
        self.wave_cache = np.zeros(waves, np.int32)
        self.lds_bytes = max(kernel.lds_bytes, 0)
        stride = -(-self.lds_bytes // 16) * 16
        self.lds = np.zeros(max(16, stride * slots), np.uint8)
        self.wave_lds = np.repeat(np.arange(slots, dtype=np.int64) * stride, waves_per_group)
        self.scratch_bytes = kernel.scratch_bytes
        self.scratch = np.zeros(max(16, waves * 64 * self.scratch_bytes), np.uint8)
        self.slot: list[Slot | None] = [None] * slots
        self.bound: dict[tuple[int, int, int], tuple] = {}
        self.instructions = 0
        self.overruns = 0
        self.free_slots = list(range(slots - 1, -1, -1))

    # ---- workgroups ------------------------------------------------------------------------------------------
    def place(self, dispatch: Dispatch, number: int) -> None:
        """Start a workgroup in a free slot."""
        index = self.free_slots.pop()
        self.overruns = 0
        workgroup = dispatch.workgroup(number)
        self.slot[index] = Slot(dispatch, workgroup, number)
        waves = slice(index * self.waves_per_group, (index + 1) * self.waves_per_group)
        self.memory.leave_places(self, waves)
        self.status[waves] = READY
        self.pc[waves] = 0
        self.yielded[waves] = False
        self.wave_gpu[waves] = dispatch.gpu
        self.wave_xcd[waves] = number % 8
        dispatch.initialise(self, waves, workgroup)
        self.memory.begin_workgroup(self, waves, dispatch, number)
        self.node.races.begin_workgroup(self, index, dispatch, number)

    def _finish(self, waves: np.ndarray) -> None:
        self.status[waves] = DONE
        for index in np.unique(waves // self.waves_per_group).tolist():
            members = slice(index * self.waves_per_group, (index + 1) * self.waves_per_group)
            if (self.status[members] == DONE).all():
                slot = self.slot[index]
                assert slot is not None
                self.node.races.end_workgroup(self, index)
                self.status[members] = FREE
                self.slot[index] = None
                self.free_slots.append(index)
                slot.dispatch.workgroup_done()
            else:
                self._release_barrier(index)
        self.free_slots.sort(reverse=True)

    def _release_barrier(self, index: int) -> None:
        members = slice(index * self.waves_per_group, (index + 1) * self.waves_per_group)
        status = self.status[members]
        waiting = status == AT_BARRIER
        if waiting.any() and (waiting | (status == DONE)).all():
            self.node.races.joined(self, [index])
            status[waiting] = READY

    @property
    def busy(self) -> bool:
        """Whether any workgroup is resident."""
        return len(self.free_slots) < self.slots

    # ---- execution -------------------------------------------------------------------------------------------
    def run_round(self) -> bool:
        """Run until every wave has ended, waits, or has polled once. Returns whether anything moved."""
        self.yielded[:] = False
        moved = False
        while True:
            ready = (self.status == READY) & ~self.yielded
            if not ready.any():
                return moved
            order = np.where(ready, self.pc, _FAR)
            chosen = self.memory.choose(self, order)
            if chosen is None:
                chosen = np.nonzero(order == order.min())[0]
            chosen = chosen[: self.node.window]
            first = int(order[chosen[0]])
            order[chosen] = _FAR
            moved |= self._run_group(self.node.races.group(self, chosen), first, int(order.min()))

    def _run_group(self, g: Group, number: int, other: int) -> bool:
        """Run a group until it splits, stops, polls, or reaches where others stand."""
        moved = False
        repeats = 0
        segments = self.program.segments
        execution = self.S64[EXEC.index >> 1]
        while True:
            segment = segments[number]
            moved |= not segment.waits
            k = execution_mask(execution[g.sel]) if segment.masked else True
            segment.function(g.bind(segment), k, g.n, g)  # type: ignore[misc]
            g.write_back_registers(segment)
            self.instructions += (segment.end - segment.start) * g.n
            following = self._next(g, segment)
            if following is None:
                return moved
            back = following <= number
            repeats += back
            if segment.publishes and self.memory.preempts():
                self.pc[g.sel] = following
                self.yielded[g.sel] = True
                return moved
            if following >= other or (back and (segment.waits or repeats > _PATIENCE)):
                self.pc[g.sel] = following
                self.yielded[g.sel] = back and (segment.waits or repeats > _PATIENCE)
                if repeats > _PATIENCE:
                    self._count_overrun(g, segment)
                return moved
            number = following

    def _count_overrun(self, g: Group, segment: Segment) -> None:
        """A loop that polls nothing must end by itself."""
        self.overruns += 1
        if self.overruns > _MAX_OVERRUNS:
            raise DeadlockError(f"{g.where(segment.start, 0)} repeats for ever without polling anything")

    def _next(self, g: Group, segment: Segment) -> int | None:
        """Segment the whole group goes to, or None when it stopped or split."""
        ending = segment.ending
        if ending is Ending.FALL:
            return segment.number + 1
        if ending is Ending.JUMP:
            return segment.target
        if ending is Ending.BRANCH:
            return self._branch(g, segment)
        if ending is Ending.END:
            self._finish(np.asarray(g.waves))
            return None
        self.pc[g.sel] = segment.number + 1
        if ending is Ending.SLEEP:
            self.yielded[g.sel] = True
            return None
        groups = np.unique(np.asarray(g.waves) // self.waves_per_group).tolist()
        if len(groups) * self.waves_per_group == g.n:
            self.node.races.joined(self, groups)
            return segment.number + 1
        self.status[g.sel] = AT_BARRIER
        for index in groups:
            self._release_barrier(index)
        return None

    def _branch(self, g: Group, segment: Segment) -> int | None:
        condition = segment.condition
        if condition.startswith("scc"):
            taken = self.scc[g.sel]
        else:
            taken = self.S64[(VCC if condition.startswith("vcc") else EXEC).index >> 1][g.sel] != 0
        if condition in ("scc0", "vccz", "execz"):
            taken = ~taken
        count = int(np.count_nonzero(taken))
        if count == g.n:
            return segment.target
        if count == 0:
            return segment.number + 1
        self.pc[g.sel] = np.where(taken, segment.target, segment.number + 1)
        if segment.waits and segment.target <= segment.number:
            self.yielded[g.sel] = taken
        return None

    # ---- reports ---------------------------------------------------------------------------------------------
    def describe_wave(self, wave: int) -> str:
        """`GPU 1, workgroup (0, 0, 0), wave 3`."""
        slot = self.slot[wave // self.waves_per_group]
        place = slot.workgroup if slot else "(none)"
        return f"GPU {int(self.wave_gpu[wave])}, workgroup {place}, wave {wave % self.waves_per_group}"

    def waiting_report(self) -> list[str]:
        """One line per live wave: where it stands and what it waits for."""
        lines = []
        for wave in np.nonzero((self.status == READY) | (self.status == AT_BARRIER))[0].tolist():
            segment = self.program.segments[int(self.pc[wave])]
            where = f"{self.describe_wave(wave)} at {self.program.instruction(segment.start)}"
            if self.status[wave] == AT_BARRIER:
                lines.append(f"{where}: waits at the barrier before it")
            else:
                lines.append(f"{where}: polls {self._polled(wave)}")
        return lines

    def _polled(self, wave: int) -> str:
        """What the lanes of a wave last read in a scoped load, with what stands there now."""
        targets = []
        for address in dict.fromkeys(self.polled[wave][self.polled[wave] != 0].tolist()):
            region = self.memory.regions.find(address, 4)
            if region is None:
                targets.append(f"{address:#x}")
            else:
                value = int.from_bytes(self.memory.host_view(address, 4), "little")
                targets.append(f"{region.describe(address)} (now {value:#x})")
        return ", ".join(targets[:8]) or "nothing"
