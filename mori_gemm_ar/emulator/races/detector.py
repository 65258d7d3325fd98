# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The race detector: turns what a node reports into agents and what they know of each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mori_gemm_ar.emulator.observer import Observer
from mori_gemm_ar.emulator.races.accesses import Accesses
from mori_gemm_ar.emulator.races.clocks import WaveClocks
from mori_gemm_ar.emulator.races.engine import EngineAgent
from mori_gemm_ar.emulator.races.group import WatchedGroup
from mori_gemm_ar.emulator.races.knowledge import (
    MAX_WAVES,
    NOTHING,
    Agent,
    Knowledge,
    Known,
    ended_key,
    visible_key,
)
from mori_gemm_ar.emulator.races.lds import LdsLedger
from mori_gemm_ar.emulator.races.ledger import Ledger
from mori_gemm_ar.errors import ConfigError

if TYPE_CHECKING:
    from mori_gemm_ar.emulator.node import Dispatch, KernelLaunch, Node
    from mori_gemm_ar.emulator.pool import Pool


@dataclass(frozen=True, slots=True)
class Watch:
    """What is known of a pool."""

    clocks: WaveClocks
    lds: LdsLedger


@dataclass(slots=True)
class _Running:
    """A dispatch: its place among all, what it started with, and its workgroups."""

    stream: int
    serial: int
    knowledge: Knowledge
    agents: list[Agent]


class RaceDetector(Observer):
    """Give one to `Node(races=...)`. Raises `RaceError` where two accesses conflict and nothing orders them.

    Works with every memory of the node, and finds a race in whatever order the waves happen to run, as long as both
    accesses happen. One detector serves one node.
    """

    group = WatchedGroup
    waits = True

    def attach(self, node: Node) -> None:
        """Begin. Raises `ConfigError` when the detector serves another node."""
        if hasattr(self, "lanes"):
            raise ConfigError("races must be a detector of this node's own; make a new RaceDetector")
        self.lanes = max(1, node.gpus)
        self.accesses = Accesses(Ledger(node.regions, self.lanes), delayed=node.memory.weak)
        self.order = self.accesses.order
        node.memory.landed = self._landed
        self._watches: dict[int, Watch] = {}
        self._running: dict[int, _Running] = {}
        self._submitted: dict[int, tuple[Known, Known]] = {}
        self._streams: dict[int, int] = {}
        self._keys: list[object] = []  # by stream
        self._gpu_of: list[int] = []  # by stream
        self._ended: list[Known] = []  # by stream: what its last finished kernel knew
        self._host: dict[int, Known] = {}  # by GPU: what the host thread that drives it knows
        self._host_idle: dict[int, Known] = {}  # the same when it last submitted to an idle GPU
        self._serial = 0

    def release(self) -> None:
        """The node forgets its pools: they and the node refer to each other."""
        self._watches.clear()
        self._running.clear()

    def engine(self, name: str, gpu: int) -> EngineAgent:
        """An agent that is no workgroup, for a model of an engine to report its accesses to."""
        return EngineAgent(self, name, gpu)

    def uncached(self, address: int) -> bool:
        """Whether no cache holds what is stored there."""
        regions = self.accesses.ledger.regions
        region = regions.find(address) if regions.uncached else None
        return region is not None and region.uncached

    def watch_of(self, pool: Pool) -> Watch:
        """State of a pool."""
        return self._watches[id(pool)]

    # ---- host and kernels ------------------------------------------------------------------------------------
    def stream_of(self, key: object, gpu: int) -> int:
        """Number of a stream or engine."""
        if id(key) not in self._streams:
            self._streams[id(key)] = len(self._keys)
            self._keys.append(key)  # alive, so that its id stays its own
            self._gpu_of.append(gpu)
            self._ended.append(NOTHING)
        return self._streams[id(key)]

    def submitted(self, gpu: int, launch: KernelLaunch, idle: bool) -> None:
        """The host may have waited for every kernel of this GPU that has ended."""
        known = self._host_knows(gpu)
        if idle:
            self._host_idle[gpu] = known
        self._submitted[id(launch)] = known, self._host_idle.get(gpu, NOTHING)

    def _host_knows(self, gpu: int) -> Known:
        known = self._host.get(gpu, NOTHING)
        for stream, ended in enumerate(self._ended):
            if self._gpu_of[stream] == gpu:
                known = known.joined(ended)
        self._host[gpu] = known
        return known

    def hosts_met(self) -> None:
        """All host threads know what each of them knew."""
        gpus = set(self._gpu_of) | set(self._host) | set(range(self.lanes))
        known = NOTHING
        for gpu in gpus:
            known = known.joined(self._host_knows(gpu))
        self._host = dict.fromkeys(gpus, known)

    def begin_dispatch(self, dispatch: Dispatch) -> None:
        """A kernel knows what the kernel before it in its stream knew, and what the host knew at submission."""
        stream = self.stream_of(dispatch.stream, dispatch.gpu)
        host, idle = self._submitted.pop(id(dispatch.launch))
        before = self._shared(self._ended[stream].joined(host))
        self._serial += 1
        knowledge = Knowledge(before, before, self._shared(idle), NOTHING)
        self._running[id(dispatch)] = _Running(stream, self._serial, knowledge, [])

    @staticmethod
    def _shared(known: Known) -> Known:
        """The same, as the base of what many workgroups will know."""
        return Known({}, known if known.base is None else Known(known.flat()))

    def end_dispatch(self, dispatch: Dispatch) -> None:
        """Its stream now knows that it has ended, and what its workgroups knew."""
        running = self._running.pop(id(dispatch))
        known = running.knowledge.ordered
        for agent in running.agents:
            known = known.joined(agent.last)
        self._ended[running.stream] = self._pruned({**known.flat(), ended_key(running.stream): running.serial})

    def _pruned(self, of: dict[int, int]) -> Known:
        """Without publications of kernels that are known to have ended."""

        def useful(key: int) -> bool:
            if key < 0:
                return True
            agent = self.order.agents[key // MAX_WAVES]
            return of.get(ended_key(agent.stream), -1) < agent.serial

        return Known({key: value for key, value in of.items() if useful(key)})

    def gpu_idle(self, gpu: int) -> None:
        """What the kernels of this GPU wrote is visible to everybody who knows that they have ended."""
        for stream, known in enumerate(self._ended):
            if self._gpu_of[stream] == gpu:
                of = known.flat()
                serial = of.get(ended_key(stream))
                if serial is not None:
                    self._ended[stream] = Known({**of, visible_key(stream): serial})

    # ---- workgroups ------------------------------------------------------------------------------------------
    def begin_workgroup(self, pool: Pool, slot: int, dispatch: Dispatch, number: int) -> None:
        """A workgroup is a new agent."""
        if id(pool) not in self._watches:
            clocks = WaveClocks(pool.slots, pool.waves_per_group)
            self._watches[id(pool)] = Watch(clocks, LdsLedger(pool, clocks))
        clocks, running = self.watch_of(pool).clocks, self._running[id(dispatch)]
        agent = Agent(
            len(self.order.agents),
            dispatch.gpu,
            f"workgroup {dispatch.workgroup(number)}",
            pool.waves_per_group,
            running.stream,
            running.serial,
            clocks,
            slot,
            dispatch.launch.kernel,
        )
        self.order.add(agent)
        running.agents.append(agent)
        clocks.begin(agent, running.knowledge, dispatch.gpu % self.lanes)

    def end_workgroup(self, pool: Pool, slot: int) -> None:
        """Its operations are complete."""
        clocks = self.watch_of(pool).clocks
        known, agent = clocks.end(slot), clocks.agents[slot]
        assert agent is not None
        agent.last = known

    def joined(self, pool: Pool, slots: Sequence[int]) -> None:
        """Workgroup barrier."""
        self.watch_of(pool).clocks.join(slots)

    def _landed(self, pool: Pool, rows, flat) -> None:
        self.accesses.landed(self.watch_of(pool).clocks, rows, flat)
