# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Who knows what of whom: agents, what their waves publish, and sets of publications that an agent has come to know.

A position is the number of a memory operation among those of its wave. What a publication says of its own agent is
one position per wave; what an agent knows is the last publication of each other wave, and the last kernel of each
stream that it knows to have ended.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from mori_gemm_ar.emulator.memory_ops import SC0, SC1

if TYPE_CHECKING:
    from mori_gemm_ar.emulator.races.clocks import WaveClocks
    from mori_gemm_ar.isa import Kernel

# Waves of an agent: actor = agent * MAX_WAVES + wave.
MAX_WAVES = 16
NEVER, ALWAYS = -1, 1 << 60


class Scope(enum.IntEnum):
    """How far an access or a cache operation reaches."""

    NONE = 0  # the waves of one workgroup
    AGENT = 1  # the workgroups of one GPU
    SYSTEM = 2  # all GPUs and the host


def scope_of(policy: int) -> Scope:
    """Scope of a load, store or cache operation."""
    if policy & SC1:
        return Scope.SYSTEM if policy & SC0 else Scope.AGENT
    return Scope.NONE


class Reach(NamedTuple):
    """Per wave of an agent: the last operation known to be complete, and the last released at each scope."""

    ordered: list[int]
    agent: list[int]
    system: list[int]

    def released(self, scope: Scope) -> list[int]:
        """Positions up to which stores can be seen at a scope."""
        return self.system if scope is Scope.SYSTEM else self.agent


def ended_key(stream: int) -> int:
    """Key under which a `Known` holds the last kernel of a stream known to have ended."""
    return -1 - 2 * stream


def visible_key(stream: int) -> int:
    """The same for kernels whose stores everybody sees, because the host waited for an idle GPU."""
    return -2 - 2 * stream


def _merged(one: dict[int, int], other: dict[int, int]) -> dict[int, int]:
    """Per key the larger value; one of the two when that is all."""
    small, large = (one, other) if len(one) < len(other) else (other, one)
    fresh = {key: value for key, value in small.items() if value > large.get(key, NEVER)}
    return {**large, **fresh} if fresh else large


class Known:
    """Immutable set of events known to have happened: key -> number of the last one. `base` is shared by many."""

    __slots__ = ("_joins", "base", "of", "reaches")

    def __init__(self, of: dict[int, int], base: Known | None = None) -> None:
        self.of, self.base = of, base
        self.reaches: dict[int, Reach] = {}
        self._joins: dict[int, tuple[Known, Known]] = {}

    def get(self, key: int) -> int:
        """Number of the last event known under a key."""
        own = self.of.get(key, NEVER)
        return own if self.base is None else max(own, self.base.of.get(key, NEVER))

    def joined(self, other: Known) -> Known:
        """What either knows."""
        if other is self:
            return self
        base, of = self._base_with(other.base), _merged(self.of, other.of)
        if base is self.base and of is self.of:
            return self
        if base is other.base and of is other.of:
            return other
        return Known(of, base)

    def _base_with(self, other: Known | None) -> Known | None:
        mine = self.base
        if other is None or other is mine:
            return mine
        if mine is None:
            return other
        found = mine._joins.get(id(other))
        if found is None:
            of = _merged(mine.of, other.of)
            result = mine if of is mine.of else other if of is other.of else Known(of)
            # Many workgroups join the same two bases. The entry keeps `other` alive, so that its id stays its own.
            found = mine._joins[id(other)] = (other, result)
        return found[1]

    def flat(self) -> dict[int, int]:
        """All entries."""
        return self.of if self.base is None else _merged(self.of, self.base.of)


NOTHING = Known({})


class Knowledge(NamedTuple):
    """What a wave knows of others. `agent` and `system`: what it also acquired, by an invalidate of that scope."""

    ordered: Known
    agent: Known
    system: Known
    heard: Known  # flags read although a scope was too narrow: orders nothing, but explains

    def acquired(self, scope: Scope) -> Knowledge:
        """After an invalidate."""
        if scope is Scope.NONE:
            return self
        agent = self.agent.joined(self.ordered)
        system = self.system.joined(self.ordered) if scope is Scope.SYSTEM else self.system
        return Knowledge(self.ordered, agent, system, self.heard)

    def joined(self, other: Knowledge) -> Knowledge:
        """What two waves know after a barrier."""
        if other is self:
            return self
        return Knowledge(*(mine.joined(theirs) for mine, theirs in zip(self, other, strict=True)))


IGNORANT = Knowledge(NOTHING, NOTHING, NOTHING, NOTHING)


@dataclass(slots=True, eq=False)
class Agent:
    """What accesses memory on its own: a workgroup, or an engine. `serial` numbers kernels in order of their start."""

    number: int
    gpu: int
    name: str
    waves: int
    stream: int
    serial: int
    clocks: WaveClocks
    slot: int
    kernel: Kernel | None = None  # an engine runs none
    final: list[int] = field(default_factory=list)  # per wave, once ended: what was released at system scope
    last: Known = NOTHING

    def describe(self, wave: int, site: int) -> str:
        """`kernel k, line 12: global_load_dword ..., GPU 1, workgroup (0, 0, 0), wave 3`."""
        if self.kernel is None:
            return f"{self.name}, GPU {self.gpu}"
        instruction = self.kernel.instructions[site]
        return f"kernel {self.kernel.name}, {instruction}, GPU {self.gpu}, {self.name}, wave {wave}"


@dataclass(slots=True, eq=False)
class Publication:
    """A scoped store or atomic, and what stood before it. Lists hold one position per wave of the agent."""

    number: int
    agent: Agent
    wave: int
    scope: Scope
    site: int
    known: Known
    ordered: list[int]  # complete, and joined by a barrier with the publishing wave
    released: tuple[list[int], list[int]]  # covered by a complete writeback of agent, system scope
    # Only to explain: issued before it; complete, joined or not; issued before a writeback; rightly before one.
    issued: list[int]
    completed: list[int]
    attempted: tuple[list[int], list[int]]
    covered: tuple[list[int], list[int]]

    @property
    def actor(self) -> int:
        """Key of the publishing wave."""
        return self.agent.number * MAX_WAVES + self.wave


class Signal:
    """What a location says: a publication, after those that it continues as a read-modify-write."""

    __slots__ = ("chain", "known", "publication")

    def __init__(self, publication: Publication, chain: Known | None = None) -> None:
        self.publication, self.chain = publication, chain
        known = publication.known.joined(Known({publication.actor: publication.number}))
        self.known = known.joined(chain) if chain is not None else known


def reach(known: Known, agent: Agent, publications: list[Publication]) -> Reach:
    """What someone with this knowledge can rely on of an agent's operations."""
    found = known.reaches.get(agent.number)
    if found is None:
        found = known.reaches[agent.number] = _reach(known, agent, publications)
    return found


def _reach(known: Known, agent: Agent, publications: list[Publication]) -> Reach:
    if known.get(ended_key(agent.stream)) >= agent.serial:
        always = [ALWAYS] * agent.waves
        return Reach(always, always, always if known.get(visible_key(agent.stream)) >= agent.serial else agent.final)
    lists = [[NEVER] * agent.waves for _ in range(3)]
    for wave in range(agent.waves):
        number = known.get(agent.number * MAX_WAVES + wave)
        if number != NEVER:
            said = publications[number]
            for mine, theirs in zip(lists, (said.ordered, *said.released), strict=True):
                mine[:] = map(max, mine, theirs)
    return Reach(*lists)
