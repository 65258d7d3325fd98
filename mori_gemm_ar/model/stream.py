# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Event simulation of the links: how chunks of a fused GEMM drain, and how a streamed tail follows them.

All ranks start together. A link serves its puts in order of readiness, one after the other.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mori_gemm_ar.model.costs import MB, REDUCE_BLOCKS, Leg, leg_bytes, link_rate_gbs, more_puts, releases_us
from mori_gemm_ar.model.terms import OUT_BYTES, Layer, Wire
from mori_gemm_ar.model.tiles import Order, TileGrid, progress
from mori_gemm_ar.model.values import Values


@dataclass(frozen=True, slots=True)
class Span:
    """One bar of a timeline, in microseconds from the start of the GEMM."""

    track: str
    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Put:
    """A chunk on its way from `source` to `dest`; `ready` when its last tile is computed."""

    source: int
    dest: int
    chunk: int
    ready: float
    nbytes: int


def chunk_puts(
    v: Values, layer: Layer, grid: TileGrid, chunks: int, gemm: float, order: Order, everybody: bool
) -> Iterator[Put]:
    """Every put of the scatter, of all ranks or of rank 0; `source == dest` stands for rows that stay at home."""
    rows = [grid.chunk_rows(dest, chunks) for dest in range(layer.world)]
    for source in range(layer.world if everybody else 1):
        for (dest, chunk), tiles in grid.finished(source, chunks, order).items():
            ready = gemm * progress(tiles, grid.tiles, v.wave_partial_share)
            yield Put(source, dest, chunk, ready, leg_bytes(layer, rows[dest][chunk], Leg.SCATTER))


class Link:
    """One direction between two ranks. Each put after the first of a busy spell pays its dispatch, or part of it."""

    def __init__(self, v: Values, world: int) -> None:
        self.rate = link_rate_gbs(v, world) * 1e3  # bytes a microsecond
        self.put_us = v.sdma_put_us
        self.busy_put_us = v.sdma_put_us * (1.0 - v.put_hidden_share)
        self.free = 0.0

    def serve(self, ready: float, nbytes: int) -> tuple[float, float]:
        """(start, end) of the next put in the queue."""
        start = max(self.free, ready)
        dispatch = (self.busy_put_us if ready < self.free else self.put_us) + more_puts(nbytes) * self.put_us
        self.free = start + dispatch + nbytes / self.rate
        return start, self.free


def drain_end(v: Values, layer: Layer, grid: TileGrid, chunks: int, gemm: float, order: Order) -> float:
    """When the last rank knows that its partial sums have arrived: last put, drained and flagged."""
    return max((span.end for span in drain_spans(v, layer, grid, chunks, gemm, order)), default=gemm)


def drain_spans(v: Values, layer: Layer, grid: TileGrid, chunks: int, gemm: float, order: Order) -> list[Span]:
    """Every put of the scatter and, at the end, the flag phase."""
    links: dict[tuple[int, int], Link] = defaultdict(lambda: Link(v, layer.world))
    spans, last = [], 0.0
    # Where slices are equal all ranks are alike, and rank 0's links stand for every other.
    puts = chunk_puts(v, layer, grid, chunks, gemm, order, everybody=not grid.rectangular)
    for put in sorted(puts, key=lambda p: (p.ready, p.chunk)):
        if put.source == put.dest:
            continue
        start, end = links[put.source, put.dest].serve(put.ready, put.nbytes)
        spans.append(Span(f"link {put.source}>{put.dest}", f"scatter {put.chunk}", start, end))
        last = max(last, end)
    if spans:
        spans.append(Span("flags", "drain", last, max(last, gemm) + v.sdma_phase_us - v.sdma_put_us))
    return spans


class StreamedTail:
    """The tail as a stream: a chunk is reduced when all ranks' parts have arrived, and gathered at once.

    The links stay in use while other chunks are still computed. Each rank has one reducer; unless reducers run beside
    the GEMM, they start when it has ended. Where slices are equal all ranks do the same, and rank 0 stands for them.
    """

    def __init__(self, v: Values, layer: Layer, grid: TileGrid, chunks: int, gemm: float, beside: bool) -> None:
        self.v, self.layer, self.grid, self.chunks, self.gemm = v, layer, grid, chunks, gemm
        self.alike = grid.rectangular
        self.rows = [grid.chunk_rows(owner, chunks) for owner in range(layer.world)]
        self.reducer_free = [0.0 if beside else gemm] * layer.world
        self.convert_free = [0.0] * layer.world
        self.links: dict[tuple[int, int], Link] = defaultdict(lambda: Link(v, layer.world))
        self.arrived: dict[tuple[int, int], int] = defaultdict(int)
        self.spans: list[Span] = []
        self.end = gemm
        self._events: list[tuple[float, int, str, int, int, int, Leg]] = []
        self._sequence = 0

    def run(self) -> float:
        """Microseconds until every rank holds every reduced row."""
        puts = chunk_puts(
            self.v, self.layer, self.grid, self.chunks, self.gemm, Order.ROTATED, everybody=not self.alike
        )
        for put in puts:
            kind = "arrive" if put.source == put.dest else "ready"
            self._at(put.ready, kind, put.source, put.dest, put.chunk, Leg.SCATTER)
        while self._events:
            time, _, kind, source, dest, chunk, leg = heapq.heappop(self._events)
            getattr(self, f"_{kind}")(time, source, dest, chunk, leg)
        return self.end + self.v.sdma_phase_us - self.v.sdma_put_us

    def _at(self, time: float, kind: str, source: int, dest: int, chunk: int, leg: Leg) -> None:
        # The sequence number makes equal times a total order, the same in every process.
        heapq.heappush(self._events, (time, self._sequence, kind, source, dest, chunk, leg))
        self._sequence += 1

    def _ready(self, time: float, source: int, dest: int, chunk: int, leg: Leg) -> None:
        """A put may be submitted."""
        rows = self.rows[dest if leg is Leg.SCATTER else source][chunk]
        start, end = self.links[source, dest].serve(time, leg_bytes(self.layer, rows, leg))
        end += self.v.stream_signal_us
        self.links[source, dest].free = end
        self.spans.append(Span(f"link {source}>{dest}", f"{leg.value} {chunk}", start, end))
        self._at(end, "arrive", source, dest, chunk, leg)

    def _arrive(self, time: float, source: int, dest: int, chunk: int, leg: Leg) -> None:
        """A chunk is in place at `dest`. Among equals, what 0 sends to d tells what 0 gets from -d at that time."""
        if self.alike:
            source, dest = (source - dest) % self.layer.world, 0
        if leg is Leg.GATHER:
            self.end = max(self.end, self._widen(time, source, dest, chunk))
            return
        self.arrived[dest, chunk] += 1
        if self.arrived[dest, chunk] == self.layer.world:
            start = max(time, self.reducer_free[dest])
            end = self.reducer_free[dest] = start + self._reduce_us(self.rows[dest][chunk])
            self.spans.append(Span(f"reduce {dest}", f"reduce {chunk}", start, end))
            self.end = max(self.end, end)
            for peer in range(self.layer.world):
                if peer != dest:
                    self._at(end, "ready", dest, peer, chunk, Leg.GATHER)

    def _reduce_us(self, rows: int) -> float:
        """One chunk of a resident reducer: its bytes, narrowed for the gather, and a release by each workgroup."""
        layer, v = self.layer, self.v
        read = layer.world * leg_bytes(layer, rows, Leg.SCATTER)
        rate = v.reduce_rate_tbs if layer.wire is Wire.BF16 else v.convert_rate_tbs
        written = rows * layer.n * OUT_BYTES + (0 if layer.wire is Wire.BF16 else leg_bytes(layer, rows, Leg.GATHER))
        return (read + written) / (rate * MB) + releases_us(v, REDUCE_BLOCKS)

    def _widen(self, time: float, source: int, dest: int, chunk: int) -> float:
        if self.layer.wire is Wire.BF16:
            return time
        rows = self.rows[source][chunk]
        nbytes = rows * self.layer.n * OUT_BYTES + leg_bytes(self.layer, rows, Leg.GATHER)
        start = max(time, self.convert_free[dest])
        end = self.convert_free[dest] = start + nbytes / (self.v.convert_rate_tbs * MB)
        self.spans.append(Span(f"convert {dest}", f"widen {chunk} of {source}", start, end))
        return end


def track_order(spans: list[Span]) -> Mapping[str, int]:
    """Rows of a drawing: links, then local work, each in order of first use."""
    names = sorted({span.track for span in spans}, key=lambda name: (not name.startswith("link"), name))
    return {name: row for row, name in enumerate(names)}
