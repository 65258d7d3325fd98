# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""How a layer runs for each M: pure functions of what was asked and the model, equal on all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from mori_gemm_ar.layout import (
    MI355X,
    AllReduceConfig,
    BLayout,
    DType,
    GemmConfig,
    GemmProblem,
    Recipe,
    SmallGemmConfig,
    Stage,
    Tile,
    Wire,
    gemm_candidates,
    select_gemm,
)
from mori_gemm_ar.layout.bands import BandsConfig
from mori_gemm_ar.layout.fused import DEFAULT_STRIPE, FusedConfig, FusedGrid
from mori_gemm_ar.layout.fused_rules import reason_not_fused_rows
from mori_gemm_ar.layout.fused_window import FusedWindow
from mori_gemm_ar.layout.gemm import AnyGemmConfig
from mori_gemm_ar.layout.ownership import OwnerSlices
from mori_gemm_ar.layout.pull import PullPhase, pull_config
from mori_gemm_ar.layout.rules import reason_not_m, require
from mori_gemm_ar.layout.sdma import SdmaPhase, Transport, sdma_config
from mori_gemm_ar.layout.stream import STREAM_CHUNKS, StreamConfig, StreamPhase
from mori_gemm_ar.layout.terms import ceil_div
from mori_gemm_ar.model import Constants, Layer, Mode, Plan, Quant, Tail, load
from mori_gemm_ar.model import Tile as ModelTile
from mori_gemm_ar.model import Transport as ModelTransport
from mori_gemm_ar.model import Wire as ModelWire
from mori_gemm_ar.model.choice import Candidate, Cases, plans
from mori_gemm_ar.model.modes import FUSED, reason_not_plan
from mori_gemm_ar.plan_rules import reason_not_layer_spec

ENGINE_MODES = (Mode.SPLIT_SDMA, Mode.FUSED_SDMA)
# What "auto" chooses from. Stores into peers' windows were slower than a split layer in every published cell.
AUTO_MODES = (Mode.SPLIT_LSA, Mode.SPLIT_SDMA, Mode.FUSED_SDMA)
_PUSH = {Mode.FUSED_SDMA: Transport.SDMA, Mode.FUSED_LSA: Transport.LSA}
_WIRES = {Wire.EXACT: ModelWire.BF16, Wire.FP8: ModelWire.FP8_GATHER, Wire.FP8_BOTH: ModelWire.FP8}


@dataclass(frozen=True, slots=True)
class Tuning:
    """What the model would choose, and what costs memory. None leaves the choice to the model.

    gather: who moves the sums to all ranks, copy engines or loads. chunks: puts of a slice, fused-sdma. stripe: columns
    of tiles before fused-lsa changes its destination. tile: of the GEMM, where M is not small. queues: copy-engine
    queues to each peer. outputs: results that rotate in the window; with 1 the next call overwrites the last result.
    batch_invariant: a row's bits do not depend on M. tail: what follows the scatter of fused-sdma; the streamed one is
    predicted slower at the pessimistic value of what is unmeasured, and needs wire "exact" and a pushed gather.
    """

    gather: Transport | None = None
    chunks: int | None = None
    stripe: int = DEFAULT_STRIPE
    tile: Tile | None = None
    queues: int = 1
    outputs: int = 2
    batch_invariant: bool = False
    tail: Tail = Tail.PHASED


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What an op is created for. mode None: chosen for each M."""

    world: int
    n: int
    k: int
    m_max: int
    recipe: Recipe
    b_layout: BLayout
    wire: Wire = Wire.EXACT
    mode: Mode | None = None
    tuning: Tuning = field(default_factory=Tuning)

    def __post_init__(self) -> None:
        require(reason_not_layer_spec(self))

    # ---- what is needed for every M --------------------------------------------------------------------------
    @property
    def modes(self) -> tuple[Mode, ...]:
        """Modes that some M may use, copy engines given."""
        if self.world == 1:
            return (Mode.GEMM_ONLY,)
        if self.mode is None:
            return AUTO_MODES if self.m_max >= self.world * Tile.M128_N256.m else (Mode.SPLIT_LSA,)
        return (Mode.SPLIT_LSA, self.mode) if self.mode in FUSED else (self.mode,)

    @property
    def wants_engines(self) -> bool:
        """Whether some M may use copy engines."""
        pushed = self.mode is Mode.FUSED_LSA and self.tuning.gather is Transport.SDMA
        return pushed or any(mode in ENGINE_MODES for mode in self.modes)

    @property
    def tiles(self) -> tuple[Tile, ...]:
        """Tiles of fused kernels: those that the model knows for the recipe, or the one that was asked for."""
        if self.tuning.tile is not None:
            return (self.tuning.tile,)
        known = {(plan.tile.m, plan.tile.n) for plan in plans(model_layer(self, self.m_max), Mode.FUSED_SDMA)}
        return tuple(tile for tile in Tile if (tile.m, tile.n) in known)

    def gathers(self, mode: Mode) -> tuple[Transport, ...]:
        """Who may move the sums in a mode."""
        if self.tuning.gather is not None:
            return (self.tuning.gather,)
        if mode is Mode.FUSED_LSA:
            return (Transport.LSA,)
        return tuple(Transport) if self.wire is Wire.FP8 else (Transport.SDMA,)

    def kernels(self) -> Iterator[Any]:
        """Compile keys of everything that some M may launch."""
        yield from self._gemms()
        if self.world == 1:
            return
        if Mode.SPLIT_LSA in self.modes:
            stages = (Stage.TWO,) if self.wire.lossy else tuple(Stage)
            yield from (AllReduceConfig(self.world, DType.BF16, stage, wire=self.wire) for stage in stages)
        tails = [mode for mode in self.modes if mode is not Mode.SPLIT_LSA]
        gathers = {(mode, gather) for mode in tails for gather in self.gathers(mode)}
        if self.tuning.tail is Tail.STREAMED:
            yield from (StreamConfig(self.world, phase) for phase in StreamPhase)
        pushed = {mode for mode, gather in gathers if gather is Transport.SDMA}
        if pushed:
            streamed = self.tuning.tail is Tail.STREAMED and pushed == {Mode.FUSED_SDMA}
            phases = (SdmaPhase.GATHER,) if streamed else tuple(SdmaPhase)
            yield from (sdma_config(self.world, DType.BF16, phase, self.wire) for phase in phases)
            if self.wire.lossy:  # what only drains
                yield sdma_config(self.world, DType.BF16, SdmaPhase.SCATTER)
            if self.wire.both and Mode.FUSED_SDMA in self.modes:
                yield BandsConfig(self.world)
        pushes = {_PUSH.get(mode, Transport.SDMA) for mode, gather in gathers if gather is Transport.LSA}
        yield from (pull_config(self.world, PullPhase.MEET, push, self.wire) for push in Transport if push in pushes)
        if pushes:
            for phase in (PullPhase.SUM, PullPhase.PULL):
                yield pull_config(self.world, phase, Transport.LSA, self.wire)
        for mode in tails:
            if mode in FUSED:
                yield from (self.fused(mode, tile) for tile in self.tiles if self.m_max >= self.world * tile.m)

    def _gemms(self) -> Iterator[AnyGemmConfig]:
        for config in gemm_candidates(self.recipe, self.n, self.k, self.b_layout):
            if isinstance(config, SmallGemmConfig):
                if not self.tuning.batch_invariant and self.m_max >= config.rows.least:
                    yield config
            elif self.tuning.tile in (None, config.tile):
                yield config

    def fused(self, mode: Mode, tile: Tile) -> FusedConfig:
        """The kernel of a fused mode."""
        gemm = GemmConfig(self.recipe, self.n, self.k, tile, self.b_layout)
        push = _PUSH[mode]
        stripe = min(self.tuning.stripe, ceil_div(self.n, tile.n)) if push is Transport.LSA else None
        signals = push is Transport.SDMA and self.tuning.tail is Tail.STREAMED
        wire = self.wire if self.wire.both else Wire.EXACT
        return FusedConfig(gemm, self.world, push, stripe, signals, wire)

    def window(self) -> FusedWindow:
        """The payload of the op's window."""
        if self.world == 1 or set(self.modes) == {Mode.SPLIT_LSA}:
            rows, landing = self.m_max, False
        else:
            # Below one band for each rank the load/store all-reduce runs; "auto" may choose it for any M.
            rows = self.m_max if self.mode is None else self.world * max(tile.m for tile in Tile)
            landing = True
        return FusedWindow(self.world, self.n, self.m_max, self.wire, self.tuning.outputs, landing, rows)


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """How one M runs. `why`: what made the mode another one than was asked for; empty otherwise."""

    m: int
    mode: Mode
    gemm: AnyGemmConfig
    fused: FusedConfig | None = None
    chunks: int = 1
    gather: Transport | None = None
    slice_rows: int = 0  # rows of a full slice of owners
    tail: Tail = Tail.PHASED
    why: str = ""

    @property
    def grid(self) -> FusedGrid:
        """Tiles of the fused kernel."""
        assert self.fused is not None, "only fused modes have one"
        return FusedGrid(self.fused, self.m, self.chunks)

    @property
    def label(self) -> str:
        """Short name of the path, as rows and messages show it."""
        parts = [self.mode.value]
        if self.tail is not Tail.PHASED:
            parts.append(self.tail.value)
        if self.mode is Mode.FUSED_SDMA:
            parts.append(f"{self.chunks} chunks")
        if self.gather is not None:
            parts.append({Transport.SDMA: "gather pushed", Transport.LSA: "gather pulled"}[self.gather])
        return ", ".join(parts)


def plan_layer(spec: LayerSpec, m: int, *, engines: bool = True) -> LayerPlan:
    """The plan of an M; ConfigError for one that the spec has no room for."""
    require(reason_not_m(m, spec.m_max))
    gemm = _gemm(spec, m)
    if spec.world == 1 or m == 0:
        return LayerPlan(m, Mode.GEMM_ONLY, gemm)
    mode, why = spec.mode, ""
    if mode in FUSED:
        least = min(tile.m for tile in spec.tiles)
        why = reason_not_fused_rows(m, spec.world, least) or ""
        mode = Mode.SPLIT_LSA if why else mode
    best = _best(spec, m, (mode,) if mode is not None else (spec.modes if engines else (Mode.SPLIT_LSA,)))
    if best is None or best.plan.mode is Mode.SPLIT_LSA:
        return LayerPlan(m, Mode.SPLIT_LSA, gemm, why=why)
    return _tailed(spec, m, gemm, best.plan)


def _tailed(spec: LayerSpec, m: int, gemm: AnyGemmConfig, plan: Plan) -> LayerPlan:
    """A plan with owner slices: of a fused mode whole bands of the tile, of another one rows shared out evenly."""
    gather = Transport.SDMA if plan.gather is ModelTransport.SDMA else Transport.LSA
    if plan.mode not in FUSED:
        return LayerPlan(m, plan.mode, gemm, gather=gather, slice_rows=ceil_div(m, spec.world))
    tile = next(tile for tile in Tile if (tile.m, tile.n) == (plan.tile.m, plan.tile.n))
    fused = spec.fused(plan.mode, tile)
    rows = OwnerSlices(spec.world, m, tile.m).slice_rows
    return LayerPlan(m, plan.mode, fused.gemm, fused, plan.chunks, gather, rows, plan.tail)


def _gemm(spec: LayerSpec, m: int) -> AnyGemmConfig:
    config = select_gemm(GemmProblem(m, spec.n, spec.k, spec.recipe), spec.b_layout, MI355X)
    tile = spec.tuning.tile
    if isinstance(config, SmallGemmConfig) and spec.tuning.batch_invariant:
        tile = tile or Tile.M128_N256
    if tile is None or (isinstance(config, SmallGemmConfig) and not spec.tuning.batch_invariant):
        return config
    return GemmConfig(spec.recipe, spec.n, spec.k, tile, spec.b_layout)


# ---- the model's part ----------------------------------------------------------------------------------------


@cache
def constants() -> Constants:
    """The constants that come with the library."""
    return load()


@cache
def _cases() -> Cases:
    return Cases.of(constants())


def model_layer(spec: LayerSpec, m: int) -> Layer:
    """The layer that the model is asked about."""
    return Layer(m, spec.n, spec.k, spec.world, Quant(spec.recipe.value), _WIRES[spec.wire])


def _best(spec: LayerSpec, m: int, modes: tuple[Mode, ...]) -> Candidate | None:
    """The plan with the least time at the pessimistic values among those that the tuning leaves."""
    layer, cases = model_layer(spec, m), _cases()
    found = []
    for mode in modes:
        tail = spec.tuning.tail if mode is Mode.FUSED_SDMA else Tail.PHASED
        # In order: every rank must take the same one of equals, and a set's order differs between processes.
        options = dict.fromkeys(_tuned(spec, plan) for plan in plans(layer, mode, tail))
        found += [cases.candidate(layer, plan) for plan in options if reason_not_plan(layer, plan) is None]
    # The simplest of equals: modes are listed simplest first.
    return min(found, key=lambda c: (c.pessimistic_us, modes.index(c.plan.mode), c.plan.chunks), default=None)


def _tuned(spec: LayerSpec, plan: Plan) -> Plan:
    tuning = spec.tuning
    if plan.mode is Mode.SPLIT_LSA:
        return plan
    if tuning.tile is not None and plan.mode in FUSED:
        plan = replace(plan, tile=ModelTile(tuning.tile.m, tuning.tile.n))
    if tuning.chunks is not None and plan.mode is Mode.FUSED_SDMA:
        plan = replace(plan, chunks=tuning.chunks)
    if plan.tail is Tail.STREAMED:
        plan = replace(plan, chunks=min(plan.chunks, STREAM_CHUNKS))
    gathers = spec.gathers(plan.mode)
    if len(gathers) == 1:
        plan = replace(plan, gather=ModelTransport(gathers[0].value))
    return plan
