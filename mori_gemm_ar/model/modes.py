# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Whole layers: a plan's phases and their sum, predicted."""

from __future__ import annotations

from dataclasses import dataclass

from mori_gemm_ar.layout.ownership import DEFAULT_CHUNKS
from mori_gemm_ar.layout.terms import Stage, ceil_div
from mori_gemm_ar.model import costs
from mori_gemm_ar.model.costs import Leg
from mori_gemm_ar.model.stream import Span, StreamedTail, drain_end, drain_spans
from mori_gemm_ar.model.terms import Layer, Mode, Tail, Tile, Transport, Wire
from mori_gemm_ar.model.tiles import Order, TileGrid
from mori_gemm_ar.model.values import Values

SPLIT = (Mode.SPLIT_LSA, Mode.SPLIT_SDMA)
FUSED = (Mode.FUSED_SDMA, Mode.FUSED_LSA)
DEFAULT_STRIPE = 2  # columns before a peer-storing GEMM changes its destination; flat below, dearer above


@dataclass(frozen=True, slots=True)
class Plan:
    """How a layer is run. Fields that a mode does not read keep their defaults, so equal work means equal plans."""

    mode: Mode
    tile: Tile
    chunks: int = 1  # puts of a slice, fused-sdma only
    gather: Transport = Transport.SDMA  # who moves the second leg
    tail: Tail = Tail.PHASED
    stripe: int | None = None  # fused-lsa: columns before the destination changes; None: a whole row
    order: Order = Order.ROTATED

    @property
    def label(self) -> str:
        """Short name of the path, as tables print it."""
        parts = [self.mode.value]
        if self.tail is not Tail.PHASED:
            parts.append(self.tail.value)
        if self.mode is Mode.FUSED_SDMA:
            parts.append(f"{self.chunks} chunks")
        if self.mode not in (Mode.GEMM_ONLY, Mode.SPLIT_LSA):
            parts.append({Transport.LSA: "gather pulled", Transport.SDMA: "gather pushed"}[self.gather])
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Phase:
    """One step on the critical path. `link_bytes` cross each link meanwhile, counted where they are submitted."""

    name: str
    us: float
    link_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a plan would take, in microseconds. `overhead` is the graph replay's share, not a phase."""

    plan: Plan
    phases: tuple[Phase, ...]
    overhead_us: float

    @property
    def total_us(self) -> float:
        return sum(phase.us for phase in self.phases) + self.overhead_us

    @property
    def link_bytes(self) -> int:
        """Bytes that the busiest link carries in one direction."""
        return sum(phase.link_bytes for phase in self.phases)


def predict(v: Values, layer: Layer, plan: Plan, short_store: bool = False) -> Prediction:
    """Microseconds of a layer under a plan that `reason_not_plan` accepts."""
    phases = {
        Mode.GEMM_ONLY: _gemm_only,
        Mode.SPLIT_LSA: _split_lsa,
        Mode.SPLIT_SDMA: _split_sdma,
        Mode.FUSED_SDMA: _fused_sdma,
        Mode.FUSED_LSA: _fused_lsa,
    }[plan.mode](v, layer, plan, short_store)
    # The load/store all-reduce was measured as a replay and brings its overhead with it.
    overhead = {Mode.GEMM_ONLY: v.graph_one_us, Mode.SPLIT_LSA: 0.0}.get(plan.mode, v.graph_layer_us)
    return Prediction(plan, tuple(phase for phase in phases if phase.us or phase.link_bytes), overhead)


def _gemm_only(v: Values, layer: Layer, plan: Plan, short_store: bool) -> list[Phase]:
    return [Phase("gemm", costs.gemm_us(v, layer, plan.tile, short_store))]


def _split_lsa(v: Values, layer: Layer, plan: Plan, short_store: bool) -> list[Phase]:
    config, _, _ = costs.lsa_trips(layer.m, layer.n, layer.world)
    legs = 1 if config.stage is Stage.ONE else 2
    part = layer.out_bytes if config.stage is Stage.ONE else ceil_div(layer.out_bytes, layer.world)
    return [
        *_gemm_only(v, layer, plan, short_store),
        Phase("all-reduce", costs.lsa_allreduce_us(v, layer.m, layer.n, layer.world), legs * part),
    ]


def even_rows(layer: Layer) -> int:
    """Rows of the largest slice when rows are cut evenly, as a split layer does."""
    return ceil_div(layer.m, layer.world)


def _split_sdma(v: Values, layer: Layer, plan: Plan, short_store: bool) -> list[Phase]:
    rows = even_rows(layer)
    nbytes = costs.leg_bytes(layer, rows, Leg.SCATTER)
    gemm = costs.gemm_us(v, layer, plan.tile, short_store) + costs.scatter_quantize_us(v, layer)
    return [
        Phase("gemm", gemm),
        Phase("scatter", costs.push_us(v, layer.world, nbytes), nbytes),
        Phase("reduce", costs.reduce_us(v, layer, rows)),
        *_gather(v, layer, plan, rows),
    ]


def _gather(v: Values, layer: Layer, plan: Plan, rows: int) -> list[Phase]:
    """The second leg, with what a narrow wire adds before and after it."""
    nbytes = costs.leg_bytes(layer, rows, Leg.GATHER)
    quantize = Phase("quantize", costs.quantize_us(v, layer, rows))
    if plan.gather is Transport.LSA:
        return [quantize, Phase("pull", costs.pull_us(v, layer.world, nbytes), nbytes)]
    widened = rows * (layer.world - 1)
    push = Phase("gather", costs.push_us(v, layer.world, nbytes), nbytes)
    return [quantize, push, Phase("dequantize", costs.dequantize_us(v, layer, widened))]


def _fused_sdma(v: Values, layer: Layer, plan: Plan, short_store: bool) -> list[Phase]:
    grid = TileGrid.of(layer, plan.tile)
    rows = grid.slices.slice_rows
    gemm = fused_gemm_us(v, layer, plan, short_store)
    scattered = costs.leg_bytes(layer, rows, Leg.SCATTER)
    if plan.tail is Tail.PHASED:
        drained = drain_end(v, layer, grid, plan.chunks, gemm, plan.order)
        return [
            Phase("gemm", gemm, scattered),
            Phase("drain", max(drained - gemm, 0.0)),
            Phase("reduce", costs.reduce_us(v, layer, rows)),
            *_gather(v, layer, plan, rows),
        ]
    end = StreamedTail(v, layer, grid, plan.chunks, gemm, plan.tail is Tail.BESIDE).run()
    gathered = costs.leg_bytes(layer, rows, Leg.GATHER)
    return [Phase("gemm", gemm, scattered), Phase("stream", max(end - gemm, 0.0), gathered)]


def fused_gemm_us(v: Values, layer: Layer, plan: Plan, short_store: bool = False) -> float:
    """The GEMM phase of fused-sdma; reducers beside it slow it down."""
    beside = v.beside_us if plan.tail is Tail.BESIDE else 0.0
    return costs.fused_gemm_us(v, layer, plan.tile, short_store) + beside


def _fused_lsa(v: Values, layer: Layer, plan: Plan, short_store: bool) -> list[Phase]:
    rows = TileGrid.of(layer, plan.tile).slices.slice_rows
    gemm = costs.peer_store_gemm_us(v, layer, plan.tile, plan.stripe)
    return [
        Phase("gemm", gemm, costs.leg_bytes(layer, rows, Leg.SCATTER)),
        Phase("barrier", v.barrier_us + v.rank_skew_share * gemm),
        Phase("reduce", costs.reduce_us(v, layer, rows)),
        *_gather(v, layer, plan, rows),
    ]


def timeline(v: Values, layer: Layer, plan: Plan) -> list[Span]:
    """The plan as bars: GEMM, links, local work. Ends where `predict` ends, without the replay's overhead."""
    prediction = predict(v, layer, plan)
    spans: list[Span] = []
    now = 0.0
    grid = TileGrid.of(layer, plan.tile)
    for phase in prediction.phases:
        if phase.name == "drain":
            drained = drain_spans(v, layer, grid, plan.chunks, now, plan.order)
            spans.extend(drained)
        elif phase.name == "stream":
            tail = StreamedTail(v, layer, grid, plan.chunks, now, plan.tail is Tail.BESIDE)
            tail.run()
            spans.extend(tail.spans)
        else:
            links = [f"link 0>{peer}" for peer in range(1, layer.world)]
            whole = {"scatter": links, "gather": links, "pull": links, "all-reduce": links}
            tracks = whole.get(phase.name, ["gemm" if phase.name == "gemm" else "local"])
            spans.extend(Span(track, phase.name, now, now + phase.us) for track in tracks)
        now += phase.us
    return spans


def reason_not_plan(layer: Layer, plan: Plan) -> str | None:
    """Whether a plan can run a layer: one predicate for choice, tables and callers."""
    mode, wire = plan.mode.value, layer.wire.value
    if (plan.mode is Mode.GEMM_ONLY) != (layer.world == 1):
        return f"mode={mode} must be {Mode.GEMM_ONLY.value} for world=1 and only there; one rank has nothing to reduce"
    if plan.mode is Mode.SPLIT_LSA and layer.wire is not Wire.BF16:
        return f"wire={wire} must be bf16 for split-lsa, which has no narrow leg; use split-sdma or a fused mode"
    if plan.mode is Mode.FUSED_LSA and layer.wire is Wire.FP8:
        return f"wire={wire} must leave the scatter bf16 for fused-lsa, whose tiles go out as they are; use fused-sdma"
    if plan.mode in FUSED and layer.m < layer.world * plan.tile.m:
        least = layer.world * plan.tile.m
        return f"m={layer.m} must be at least world*tile.m={least} for {mode}; smaller ones run GEMM, then all-reduce"
    if plan.tail is not Tail.PHASED and (plan.mode is not Mode.FUSED_SDMA or plan.gather is not Transport.SDMA):
        return f"tail={plan.tail.value} must be phased for {mode} with this gather; only pushed chunks can be streamed"
    if plan.mode is not Mode.FUSED_SDMA and plan.chunks != 1:
        return f"chunks={plan.chunks} must be 1 for {mode}; only fused-sdma sends a slice in parts"
    return None


def default_plan(mode: Mode, tile: Tile, gather: Transport = Transport.SDMA) -> Plan:
    """A mode with the measured defaults."""
    chunks = DEFAULT_CHUNKS if mode is Mode.FUSED_SDMA else 1
    return Plan(mode, tile, chunks, gather, stripe=DEFAULT_STRIPE if mode is Mode.FUSED_LSA else None)
