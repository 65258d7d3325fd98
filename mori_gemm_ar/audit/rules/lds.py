# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""LDS at barriers: what a wave wrote or copied is there before the barrier that hands it over.

Kernels with copies from memory to LDS are walked with addresses (audit.timeline), so that buffers are told apart and
half-waves that run a barrier apart are compared as they run. For the others the order alone has to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mori_gemm_ar.audit.findings import Finding, at
from mori_gemm_ar.audit.flow import states
from mori_gemm_ar.audit.operations import Kind
from mori_gemm_ar.audit.subject import Subject
from mori_gemm_ar.audit.timeline import GRANULE, MAX_STEPS, Span, Track, Waited

_MAX_FINDINGS = 20
_NONE = (1 << 30, -1)  # (age of the youngest open write in LDS operations, its index)


def lds_copies(subject: Subject) -> Iterator[Finding]:
    """While a copy may be writing a buffer, no other wave touches it: the wait counts are derived (lesson L6).

    Before a barrier hands an LDS buffer on, at most the copies issued after the last copy into that buffer may be in
    flight. An LDS read counts at its issue: LDS serves it before what is copied after the next barrier.
    """
    if any(op.kind is Kind.COPY for op in subject.ops):
        yield from _clashes(subject, Kind.COPY)


def lds_handover(subject: Subject) -> Iterator[Finding]:
    """Every ds_write is waited for by lgkmcnt before the barrier that hands it to other waves."""
    if not any(op.kind is Kind.LDS_WRITE for op in subject.ops) or not any(op.barrier for op in subject.ops):
        return
    if any(op.kind is Kind.COPY for op in subject.ops):
        yield from _clashes(subject, Kind.LDS_WRITE)
    else:
        yield from _open_writes(subject)


# ---- by order alone -----------------------------------------------------------------------------------------------


def _open_writes(subject: Subject) -> Iterator[Finding]:
    ops = subject.ops

    def step(state: tuple[int, int], index: int) -> tuple[int, int]:
        op = ops[index]
        if op.kind is Kind.LDS_WRITE:
            return 0, index
        if op.wait_lgkm is not None and state[0] >= op.wait_lgkm:
            return _NONE
        return (state[0] + 1, state[1]) if op.lds and state != _NONE else state

    for index, state in states(subject.flow, _NONE, step, min):
        if ops[index].barrier and state != _NONE:
            line = subject.line(state[1])
            yield at(subject.code[index], f"entered with no s_waitcnt lgkmcnt for the LDS write of line {line}")


# ---- by address ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Touch:
    """An LDS operation of one wave, and the places that it touches."""

    track: Track
    span: Span
    wave: int
    places: int


def _clashes(subject: Subject, kind: Kind) -> Iterator[Finding]:
    """Operations of a kind that are under way while another wave, or a later access of this one, touches the same."""
    reported: set[tuple[int, int]] = set()
    for tracks in subject.walks:
        for finding, key in _clashes_of_walk(subject, tracks, kind):
            if key not in reported and len(reported) < _MAX_FINDINGS:
                reported.add(key)
                yield finding
    if subject.timeline.truncated:
        yield Finding(0, "loops", f"a walk is longer than {MAX_STEPS} blocks; what comes later was not looked at")


def _clashes_of_walk(subject: Subject, tracks: list[Track], kind: Kind) -> Iterator[tuple[Finding, tuple[int, int]]]:
    busy = _busy_intervals(tracks, kind)
    touches: dict[int, list[_Touch]] = {}  # by interval
    for track in tracks:
        for span in track.spans:
            if span.kind not in (kind, Kind.LDS_READ) and kind is not Kind.COPY:
                continue
            intervals = [n for n in range(span.start, min(span.end, track.intervals) + 1) if n in busy]
            for wave in track.waves if intervals else ():
                places = subject.timeline.places(span, wave)
                if places is None:
                    why = "its LDS address must follow from the thread number and constants while others write LDS"
                    yield at(subject.code[span.index], why), (span.index, -1)
                    break
                for interval in intervals:
                    touches.setdefault(interval, []).append(_Touch(track, span, wave, places))
    for interval in sorted(touches):
        yield from _meet(subject, touches[interval], kind)


def _busy_intervals(tracks: list[Track], kind: Kind) -> frozenset[int]:
    return frozenset(
        n
        for track in tracks
        for span in track.spans
        if span.kind is kind
        for n in range(span.start, min(span.end, track.intervals) + 1)
    )


def _meet(subject: Subject, touches: list[_Touch], kind: Kind) -> Iterator[tuple[Finding, tuple[int, int]]]:
    """Clashes among operations of one interval."""
    # Sets of whole waves first: most intervals have no clash.
    whole: dict[int, int] = {}
    for touch in touches:
        whole[touch.wave] = whole.get(touch.wave, 0) | touch.places
    for writer in touches:
        if writer.span.kind is not kind:
            continue
        for wave, places in whole.items():
            if not places & writer.places:
                continue
            for touch in touches:
                if touch.wave == wave and touch.places & writer.places and _unordered(writer, touch):
                    finding = _finding(subject, writer, touch)
                    yield finding, (finding.line, writer.span.index)


def _unordered(writer: _Touch, touch: _Touch) -> bool:
    """Whether two operations on one place are unordered. LDS serves a wave's own accesses in order, not its copies."""
    if touch.wave != writer.wave:
        return writer.span.kind is Kind.COPY or touch.span.kind is Kind.LDS_READ
    if writer.span.kind is not Kind.COPY or touch.span.kind is Kind.COPY:
        return False
    return writer.span.at < touch.span.at < writer.span.waited_at


def _finding(subject: Subject, writer: _Touch, touch: _Touch) -> Finding:
    verb = {Kind.LDS_READ: "reads", Kind.LDS_WRITE: "writes"}.get(touch.span.kind, "copies into")
    common = writer.places & touch.places
    lowest = GRANULE * ((common & -common).bit_length() - 1)
    place = f"{verb} LDS bytes from {lowest} at line {subject.line(touch.span.index)}"
    source = subject.code[writer.span.index]
    if writer.span.kind is Kind.LDS_WRITE:
        return at(
            source, f"wave {writer.wave} writes it while wave {touch.wave} {place}; wait for lgkmcnt, then a barrier"
        )
    if touch.span.start <= writer.span.start and touch.wave != writer.wave:
        return at(
            source, f"refills a buffer (wave {writer.wave}) in the barrier interval in which wave {touch.wave} {place}"
        )
    wait = _last_wait(writer, touch)
    if wait is None:
        return at(source, f"no wait for vmcnt covers it (wave {writer.wave}) before wave {touch.wave} {place}")
    bound = wait.issued - writer.span.order - 1
    why = f"leaves the copy of line {source.line} (wave {writer.wave}) in flight, and wave {touch.wave} {place}"
    return at(subject.code[wait.index], f"{why}; vmcnt({wait.count}) must be at most vmcnt({bound})")


def _last_wait(writer: _Touch, touch: _Touch) -> Waited | None:
    """The last wait for vmcnt that a copy's wave makes after it and that comes in time for another access."""
    same = touch.wave == writer.wave
    waits = [
        wait
        for wait in writer.track.waits
        if wait.at > writer.span.at and (wait.at < touch.span.at if same else wait.interval < touch.span.start)
    ]
    return waits[-1] if waits else None
