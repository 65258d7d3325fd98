# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Barriers pair what they should: balanced over all waves, and at one place where something is published."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement

from mori_gemm_ar.audit.findings import Finding, at
from mori_gemm_ar.audit.flow import Loop
from mori_gemm_ar.audit.lockstep import END, Lockstep, Meeting, WaveGraph
from mori_gemm_ar.audit.subject import Subject


def barrier_balance(subject: Subject) -> Iterator[Finding]:
    """All waves execute the same number of barriers, and have passed the same one at each publishing point.

    Lessons L4 and L5: half the waves with an extra barrier publish tiles half written. L17: a loop body is neutral.
    """
    if not any(op.barrier for op in subject.ops):
        return
    seen: set[tuple[int, str]] = set()
    for one, other in combinations_with_replacement(subject.wave_classes, 2):
        if one == other and len(subject.wave_classes[one]) < 2:
            continue
        second = subject.wave_classes[one][1] if one == other else other
        for finding in _pair(subject, one, other, f"waves {one} and {second}"):
            if (finding.line, finding.why) not in seen:
                seen.add((finding.line, finding.why))
                yield finding
    yield from _loops(subject)


def _pair(subject: Subject, one: int, other: int, who: str) -> Iterator[Finding]:
    graphs = subject.graphs[one], subject.graphs[other]
    lockstep = Lockstep(*graphs)
    crossed = next((m for m in lockstep.meetings if m.one != m.other), None)
    first = "" if crossed is None else f"; they first pass different ones at {_places(subject, graphs[0], crossed)}"
    reported: set[int] = set()
    for parting in lockstep.partings:
        barrier = parting.one if parting.other == END else parting.other
        if barrier in reported:
            continue
        reported.add(barrier)
        i = subject.code[graphs[0].pieces[barrier].end - 1]
        yield at(i, f"{who} may execute unequal numbers of barriers: one ends while the other waits here{first}")
    for meeting in lockstep.drifts[:1]:
        i = subject.code[graphs[0].pieces[meeting.one or 0].end - 1]
        yield at(i, f"{who} cannot be shown to execute equal numbers of barriers: one runs ahead{first}")
    if subject.publishing:
        yield from _publishing(subject, graphs, lockstep, who)


def _publishing(
    subject: Subject, graphs: tuple[WaveGraph, WaveGraph], lockstep: Lockstep, who: str
) -> Iterator[Finding]:
    published: set[int] = set()
    for meeting in lockstep.meetings:
        if meeting.one == meeting.other:
            continue
        for graph, after in zip(graphs, (meeting.one, meeting.other), strict=True):
            for number in graph.between(0 if after is None else after + 1):
                piece = graph.pieces[number]
                published.update(n for n in subject.publishing if piece.start <= n < piece.end)
        for index in sorted(published):
            why = (
                f"{who} have not passed the same barrier when this is published: {_places(subject, graphs[0], meeting)}"
            )
            yield at(subject.code[index], why)
        if published:
            return


def _places(subject: Subject, graph: WaveGraph, meeting: Meeting) -> str:
    places = []
    for piece in (meeting.one, meeting.other):
        places.append("the start" if piece is None else f"line {subject.line(graph.pieces[piece].end - 1)}")
    return " and ".join(places)


def _loops(subject: Subject) -> Iterator[Finding]:
    for loop in subject.flow.loops:
        barriers = [n for n in subject.flow.indices(loop.blocks) if subject.ops[n].barrier]
        if not barriers:
            continue
        counts: dict[int, tuple[int, int]] = {}
        for wave in subject.wave_classes:
            count = _per_iteration(subject, subject.graphs[wave], loop)
            if count is not None:
                counts[wave] = count
        if len(set(counts.values())) > 1:
            text = ", ".join(
                f"wave {w} {low}" + (f" to {high}" if high != low else "") for w, (low, high) in counts.items()
            )
            yield at(subject.code[barriers[0]], f"the loop around it must hold as many barriers for each wave: {text}")


def _per_iteration(subject: Subject, graph: WaveGraph, loop: Loop) -> tuple[int, int] | None:
    """Fewest and most barriers from a loop's header back to it, inner loops counted once; None: it never comes back."""
    position = {block: n for n, block in enumerate(subject.flow.order)}
    header = graph.first_of[loop.header]
    counts: dict[int, tuple[int, int]] = {header: (0, 0)}
    back: list[tuple[int, int]] = []
    order = sorted(
        (n for n, p in enumerate(graph.pieces) if p.block in loop.blocks),
        key=lambda n: (position[graph.pieces[n].block], n),
    )
    for number in order:
        if number not in counts or number not in graph.reachable:
            continue
        low, high = counts[number]
        step = int(graph.pieces[number].barrier)
        for way in graph.ways[number]:
            if way == header:
                back.append((low + step, high + step))
            elif graph.pieces[way].block in loop.blocks:
                old = counts.get(way, (low + step, high + step))
                counts[way] = min(old[0], low + step), max(old[1], high + step)
    return (min(b[0] for b in back), max(b[1] for b in back)) if back else None
