# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The stand-in: an emulated node where a GPU would be, with deliberate faults, which notes what it was made to do.

Its launches really run. Its times are predicted: `clock` prices what was noted.
"""

from __future__ import annotations

import ctypes
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mori_gemm_ar.emulator import EVERYWHERE, EngineFaults, Engines, EngineSettings, Node, Program, RegionTable
from mori_gemm_ar.emulator.engine import CopyEngine, QueueAddresses
from mori_gemm_ar.emulator.held import HeldOperation, Kind
from mori_gemm_ar.emulator.memory import FunctionalMemory
from mori_gemm_ar.emulator.memory_ops import SC0, SC1, Access
from mori_gemm_ar.emulator.weak import WeakMemory
from mori_gemm_ar.hwcheck.alterations import Alteration, Fault
from mori_gemm_ar.hwcheck.settings import SectionName
from mori_gemm_ar.isa import Kernel
from mori_gemm_ar.layout.copy_queue import Copy, Packet
from mori_gemm_ar.runtime import Launch, Pipeline, RankContext
from mori_gemm_ar.runtime.emulated import EmulatedTarget, Host

if TYPE_CHECKING:
    from mori_gemm_ar.emulator.group import Group

_SYSTEM = SC0 | SC1


@dataclass(slots=True)
class Seen:
    """What one GPU has done since its notes were begun."""

    launches: list[Launch] = field(default_factory=list)
    releases: Counter[bool] = field(default_factory=Counter)  # by whether they were of system scope
    puts: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))  # bytes, by peer, queue
    moved: int = 0  # bytes loaded and stored by its waves


class Notes:
    """What each GPU of a node has done."""

    def __init__(self) -> None:
        self._seen: dict[int, Seen] = {}

    def of(self, gpu: int) -> Seen:
        """Notes of a GPU."""
        return self._seen.setdefault(gpu, Seen())

    def begin(self, gpu: int) -> None:
        """Forget what a GPU has done."""
        self._seen[gpu] = Seen()


# --- memory ---


class NotedMemory(FunctionalMemory):
    """Functional memory that notes releases and bytes."""

    def __init__(self, notes: Notes) -> None:
        super().__init__(RegionTable())
        self._notes = notes

    def _note(self, g: Group, k: Any, nbytes: int) -> None:
        gpus = g.pool.wave_gpu[g.sel]
        lanes = np.full(len(gpus), 64) if k is True else k.sum(axis=1)
        for gpu in np.unique(gpus).tolist():
            self._notes.of(gpu).moved += nbytes * int(lanes[gpus == gpu].sum())

    def load(self, g: Group, site: int, k: Any, address: Any, access: Access, rows: Any, policy: int) -> None:
        """Load and note."""
        self._note(g, k, access.nbytes)
        super().load(g, site, k, address, access, rows, policy)

    def store(self, g: Group, site: int, k: Any, address: Any, access: Access, rows: Any, policy: int) -> None:
        """Store and note."""
        self._note(g, k, access.nbytes)
        super().store(g, site, k, address, access, rows, policy)

    def write_back(self, g: Group, site: int, policy: int) -> None:
        """Note a release of each wave."""
        for gpu in g.pool.wave_gpu[g.sel].tolist():
            self._notes.of(gpu).releases[policy & _SYSTEM == _SYSTEM] += 1


class AlteredMemory(WeakMemory):
    """Weak memory with the faults that are switched on."""

    def __init__(self, seed: int, faults: frozenset[Fault]) -> None:
        super().__init__(seed)
        self._faults = faults
        # By region: what engines read there last, and where they have read.
        self._read_before: dict[int, tuple[bytearray, bytearray]] = {}

    def _apply(self, h: HeldOperation) -> None:
        if h.kind is Kind.WRITE_BACK:
            if Fault.WRITEBACK in self._faults:
                return
            if Fault.WRITEBACK_SCOPE in self._faults:
                h = replace(h, policy=h.policy & ~SC0)
        super()._apply(h)

    def invalidate(self, g: Group, site: int, policy: int) -> None:
        """Acquire, unless that is switched off."""
        if Fault.INVALIDATE not in self._faults:
            super().invalidate(g, site, policy)

    def wait(self, g: Group, vmcnt: int) -> None:
        """Wait for operations; one less than asked for where that is the fault."""
        super().wait(g, vmcnt + (vmcnt > 0 and Fault.LDS_COPY in self._faults))

    def engine_read(self, gpu: int, address: int, nbytes: int) -> np.ndarray:
        """What an engine finds, or found there the time before."""
        found = super().engine_read(gpu, address, nbytes)
        if Fault.ENGINE_STALE not in self._faults:
            return found
        region = self.regions.find(address, nbytes)
        assert region is not None, "engines check their addresses"
        held, known = self._read_before.setdefault(region.address, (bytearray(region.nbytes), bytearray(region.nbytes)))
        part = slice(address - region.address, address - region.address + nbytes)
        before = np.where(np.frombuffer(known[part], np.uint8) != 0, np.frombuffer(held[part], np.uint8), found)
        held[part], known[part] = found.tobytes(), b"\1" * nbytes
        return before


# --- engines ---


class _NotedEngine(CopyEngine):
    """Notes the copies that it starts; may let signals overtake them."""

    notes: Notes
    hasty = False

    def _fetch(self) -> tuple[Packet | None, int]:
        packet, size = super()._fetch()
        if isinstance(packet, Copy):
            self.notes.of(self.gpu).puts[self.peer, self.number].append(packet.nbytes)
        return packet, size

    def _passes(self, one: Any) -> bool:
        return self.hasty or super()._passes(one)

    def _may_move(self, one: Any, last_moment: bool) -> bool:
        if self.hasty and isinstance(one.packet, Copy) and not last_moment and self._random.random() < 0.8:
            return False
        return super()._may_move(one, last_moment)

    def _retire(self) -> bool:
        if not self.hasty:
            return super()._retire()
        # The read pointer says that all is done while copies are still under way.
        end = max((one.end for one in self._started), default=self._rptr)
        under_way = [one for one in self._started if not one.done]
        moved = end != self._rptr or len(under_way) < len(self._started)
        self._started = deque(under_way)
        if end != self._rptr:
            self._rptr = end
            ctypes.c_uint64.from_address(self.addresses.rptr).value = end
        return moved


class _NotedEngines(Engines):
    """Engines that note what they do."""

    def __init__(self, node: Node, settings: EngineSettings, notes: Notes, hasty: bool) -> None:
        super().__init__(node, settings)
        self._notes, self._hasty = notes, hasty

    def start(self, gpu: int, peer: int, number: int, addresses: QueueAddresses) -> CopyEngine:
        """The engine of one queue."""
        engine = _NotedEngine(self.node, self.settings, self.random, (gpu, peer, number), addresses)
        engine.notes, engine.hasty = self._notes, self._hasty
        self._engines.append(engine)
        return engine


# --- node ---


class StandInNode(Node):
    """Emulated GPUs of one section: weak memory for litmus tests, functional memory for the rest."""

    def __init__(self, gpus: int, section: SectionName, alterations: tuple[Alteration, ...], seed: int) -> None:
        self.notes = Notes()
        faults = frozenset(alteration.fault for alteration in alterations)
        memory = AlteredMemory(seed, faults) if section is SectionName.LITMUS else NotedMemory(self.notes)
        torn = Fault.TORN in faults and section in (SectionName.MICROBENCHMARKS, SectionName.PRODUCT)
        settings = EngineSettings(faults=EngineFaults(torn=EVERYWHERE if torn else ()))
        super().__init__(gpus, memory=memory, engines=settings)
        self.engines = _NotedEngines(self, settings, self.notes, hasty=Fault.ENGINE_ORDER in faults)
        self._renamed = {a.name: a.value for a in alterations if a.fault is Fault.MNEMONIC}

    def translate(self, kernel: Kernel) -> Program:
        """A kernel as this node runs it, with altered mnemonics."""
        if any(one.name in self._renamed for one in kernel.instructions):
            changed = tuple(replace(one, name=self._renamed.get(one.name, one.name)) for one in kernel.instructions)
            kernel = replace(kernel, instructions=changed, sha=f"{kernel.sha} altered {sorted(self._renamed.items())}")
        return super().translate(kernel)


class StandInTarget(EmulatedTarget):
    """A GPU of the stand-in."""

    def __init__(self, host: Host, notes: Notes, rank: int) -> None:
        super().__init__(host)
        self._notes, self._rank = notes, rank

    def submit(self, pipeline: Pipeline) -> None:
        """Queue a pipeline, and note its launches unless they are recorded."""
        if not self.recording:
            self._notes.of(self._rank).launches.extend(pipeline.launches)
        super().submit(pipeline)


class StandInRank:
    """One rank of the stand-in: a `World`, as ops take it."""

    def __init__(self, context: RankContext) -> None:
        self._context = context
        self.rank, self.size = context.rank, context.size

    @property
    def notes(self) -> Notes:
        """What its node notes."""
        node = self._context.node
        assert isinstance(node, StandInNode)
        return node.notes

    def target(self, device: str = "auto") -> StandInTarget:
        """A device of this rank."""
        self._context.target(device)  # checks the name
        return StandInTarget(self._context, self.notes, self.rank)

    def exchange(self, step: str, value: object) -> list[object]:
        """One value from every rank."""
        return self._context.exchange(step, value)
