# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Races in words: both accesses, the place, and the part of the missing edge that is absent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mori_gemm_ar.emulator.races.clocks import WaveClocks
from mori_gemm_ar.emulator.races.knowledge import (
    MAX_WAVES,
    NEVER,
    Agent,
    Knowledge,
    Publication,
    Scope,
    ended_key,
    reach,
)
from mori_gemm_ar.errors import RaceError

_FLAGS = {Scope.NONE: "no scope", Scope.AGENT: "agent scope (sc1)", Scope.SYSTEM: "system scope (sc0 sc1)"}


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two accesses, one of them a write. `need`: the scope that lies between them."""

    first: Agent
    wave: int
    position: int
    site: int
    was_write: bool
    old_scope: Scope
    second: Agent
    second_wave: int
    second_site: int
    is_write: bool
    scope: Scope
    need: Scope
    place: str

    @property
    def cached(self) -> bool:
        """Whether the first access left something in a cache."""
        return self.was_write and self.old_scope < self.need


def _kind(write: bool) -> str:
    return "write" if write else "read"


def race(place: str, missing: str, first: str, second: str) -> RaceError:
    """The error. The first line says where and why, the others which accesses."""
    return RaceError(f"race on {place}: {missing}\n  {first}\n  {second}")


def global_race(c: Conflict, clocks: WaveClocks, publications: list[Publication]) -> RaceError:
    """A race on global memory."""
    first = f"{_kind(c.was_write)} by {c.first.describe(c.wave, c.site)}"
    second = f"then {_kind(c.is_write)} by {c.second.describe(c.second_wave, c.second_site)}"
    return race(c.place, _missing(c, clocks, publications), first, second)


# ---- the missing part ----------------------------------------------------------------------------------------
def _missing(c: Conflict, clocks: WaveClocks, publications: list[Publication]) -> str:
    if c.first is c.second:
        return f"no workgroup barrier between wave {c.wave} and wave {c.second_wave} of one workgroup"
    own = clocks.known(c.second.slot * clocks.waves + c.second_wave)
    ended = own.ordered.get(ended_key(c.first.stream)) >= c.first.serial
    if ended:
        return _after_end(c, own)
    flag = _flag(c)
    heard = _latest(c, own, publications)
    if heard is not None and (flag is None or heard.issued[c.wave] >= c.position):
        return _about(c, heard, own, clocks, publications)
    if flag is not None:
        return flag
    for wave, said in clocks.unread(c.second.slot):
        if said.agent is c.first and said.issued[c.wave] >= c.position:
            return f"no s_waitcnt vmcnt in wave {wave} between the poll of the flag and what follows it"
    for wave, other in _fellows(c, clocks):
        if (heard := _latest(c, other, publications)) is not None:
            # The wave that polled knows more than the one that accesses: judge by it first.
            if (missing := _in_publication(c, heard)) is None and _scopes(c, heard, other) is None:
                return f"no workgroup barrier between wave {wave}, which read the flag, and wave {c.second_wave}"
            return missing or _about(c, heard, other, clocks, publications)
    return _unheard(c)


def _flag(c: Conflict) -> str | None:
    """Two sides of a flag, at least one of which is not wide enough."""
    if not (c.old_scope or c.scope) or (c.old_scope >= c.need and c.scope >= c.need):
        return None
    return f"the {_kind(c.was_write)} has {_FLAGS[c.old_scope]} and the {_kind(c.is_write)} {_FLAGS[c.scope]}; " + (
        f"a flag needs {_FLAGS[c.need]} on both sides"
    )


def _unheard(c: Conflict) -> str:
    """Nothing of the first agent has reached the second one."""
    if c.first.kernel is None or c.second.kernel is None:
        return "no signal between them"
    if c.first.serial == c.second.serial:
        return "no flag, counter or kernel boundary between these workgroups of one kernel"
    if c.first.stream == c.second.stream:
        return "no flag or counter between them"
    where = "of one GPU" if c.first.gpu == c.second.gpu else f"of GPUs {c.first.gpu} and {c.second.gpu}"
    return f"no flag, and no host synchronisation between these streams {where}"


def _after_end(c: Conflict, own: Knowledge) -> str:
    """The kernel of the first access is known to have ended: only the reach of its end can be too short."""
    need = _FLAGS[c.need]
    if c.cached and c.position > c.first.final[c.wave]:
        return (
            f"no writeback of {need} in the workgroup that wrote: the end of its kernel reaches its own GPU, and "
            f"another kernel's writeback cleans another workgroup's cache"
        )
    return f"no invalidate of {need} in the workgroup that reads"


def _latest(c: Conflict, knowledge: Knowledge, publications: list[Publication]) -> Publication | None:
    """The publication of the first agent that says most, in what someone knows or has merely heard."""
    found = None
    for known in (knowledge.ordered, knowledge.heard):
        for wave in range(c.first.waves):
            number = known.get(c.first.number * MAX_WAVES + wave)
            if number != NEVER and (found is None or number > found.number):
                found = publications[number]
    return found


def _fellows(c: Conflict, clocks: WaveClocks) -> Iterator[tuple[int, Knowledge]]:
    for wave in range(clocks.waves):
        if wave != c.second_wave:
            yield wave, clocks.known(c.second.slot * clocks.waves + wave)


def _about(c: Conflict, said: Publication, own: Knowledge, clocks: WaveClocks, publications: list[Publication]) -> str:
    """A publication has been read: what it lacks, or what its reader lacks."""
    missing = _in_publication(c, said) or _scopes(c, said, own)
    if missing is not None:
        return missing
    for wave, other in _fellows(c, clocks):
        known = other.agent if c.need is Scope.AGENT else other.system
        if c.position <= reach(known, c.first, publications).released(c.need)[c.wave]:
            return f"no workgroup barrier between the invalidate by wave {wave} and wave {c.second_wave}"
    return f"no invalidate (buffer_inv) of {_FLAGS[c.need]} between the poll and the read"


def _in_publication(c: Conflict, said: Publication) -> str | None:
    """What the writer's side lacks before its flag."""
    flag = f"the flag of wave {said.wave} (line {_line(said)})"
    access = _kind(c.was_write)
    if said.issued[c.wave] < c.position:
        return f"{flag} was stored before the {access}, and none after it was read"
    ordered, level = c.position <= said.ordered[c.wave], c.need - 1
    if not c.cached:
        return None if ordered else _unwaited(c, said, access, flag)
    if c.position <= said.released[level][c.wave]:
        return None
    if not ordered and said.wave != c.wave:
        return _unwaited(c, said, access, flag)
    if said.attempted[level][c.wave] < c.position:
        if level and said.attempted[0][c.wave] >= c.position:
            return f"the writeback between the {access} and {flag} has agent scope only (sc1); sc0 sc1 is needed"
        return f"no writeback (buffer_wbl2) of {_FLAGS[c.need]} between the {access} and {flag}"
    if said.covered[level][c.wave] < c.position:
        return f"the writeback came before wave {c.wave} had waited for its {access} and met the others at a barrier"
    return f"no s_waitcnt vmcnt (or barrier) between the writeback and {flag}"


def _unwaited(c: Conflict, said: Publication, access: str, flag: str) -> str:
    if said.completed[c.wave] < c.position:
        return f"no s_waitcnt vmcnt in wave {c.wave} between the {access} and {flag}"
    return f"no workgroup barrier between the s_waitcnt of wave {c.wave} and {flag}"


def _scopes(c: Conflict, said: Publication, own: Knowledge) -> str | None:
    """Whether the flag was heard, but does not count."""
    if own.ordered.get(said.actor) >= said.number:
        return None
    if said.scope < c.need:
        return f"the flag of wave {said.wave} (line {_line(said)}) has {_FLAGS[said.scope]}; {_FLAGS[c.need]} is needed"
    return f"the poll of the flag (stored at line {_line(said)}) has a scope below {_FLAGS[c.need]}"


def _line(said: Publication) -> int:
    kernel = said.agent.kernel
    return kernel.instructions[said.site].line if kernel is not None else 0
