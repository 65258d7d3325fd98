# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""From the plan of one M to its launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mori_gemm_ar.ar.call import Call, Codes, OpWindow, launch
from mori_gemm_ar.ar.lsa import lsa_pipeline
from mori_gemm_ar.ar.sdma import sdma_launches, slot_bytes
from mori_gemm_ar.gemm.launches import gemm_launch
from mori_gemm_ar.layout import MI355X, AllReduceProblem, DType, WireSplit
from mori_gemm_ar.layout.bands import BandsConfig, bands_geometry
from mori_gemm_ar.layout.fused import LayerTag
from mori_gemm_ar.layout.pull import PullPhase, pull_config, pull_geometry
from mori_gemm_ar.layout.sdma import SdmaPhase, Transport
from mori_gemm_ar.layout.stream import StreamConfig, StreamPhase, stream_geometry
from mori_gemm_ar.model import Mode, Tail
from mori_gemm_ar.plan import LayerPlan, LayerSpec
from mori_gemm_ar.runtime import Buffer, Launch, Pipeline
from mori_gemm_ar.runtime.launch import STAND_IN

_BYTES = 2  # of an element of C


@dataclass(frozen=True, slots=True)
class LayerCall:
    """Addresses of one call. `slot`: which output of the window; `destination`: there, or the caller's memory."""

    a: int
    b: int
    a_scale: int
    b_scale: int
    destination: int
    slot: int
    budget: int  # of each wait, in ticks
    buffers: tuple[Buffer, ...] = ()


class LayerLaunches:
    """The launches of calls of one op on one rank."""

    def __init__(self, spec: LayerSpec, window: OpWindow, codes: Codes) -> None:
        self.spec, self.window, self.codes = spec, window, codes

    def template(self, plan: LayerPlan, slot: int, budget: int, sizes: Sequence[int], *, foreign: bool) -> Pipeline:
        """The launches with stand-ins for the operands a, b, a_scale, b_scale and, if `foreign`, the result.

        sizes: bytes of each.
        """
        names = ("a", "b", "a_scale", "b_scale", "out")
        buffers = tuple(
            Buffer(name, STAND_IN + number, nbytes)
            for number, (name, nbytes) in enumerate(zip(names, sizes, strict=False))
        )
        a, b, a_scale, b_scale, *out = (buffer.address for buffer in buffers)
        destination = out[0] if foreign else self.window.at(f"output{slot}")
        return self.pipeline(plan, LayerCall(a, b, a_scale, b_scale, destination, slot, budget, buffers))

    def pipeline(self, plan: LayerPlan, call: LayerCall) -> Pipeline:
        """All launches of a call in order. Without rows ranks meet too, or they get out of step."""
        name = f"gemm_ar_{plan.mode.value}"
        if plan.m == 0:
            return Pipeline(name, self._empty(plan, call), call.buffers)
        if plan.mode is Mode.GEMM_ONLY:
            return Pipeline(name, (self._gemm(plan, call, call.destination),), call.buffers)
        if plan.mode is Mode.SPLIT_LSA:
            launches = (self._gemm(plan, call, self.window.at("input")), *self._all_reduce(plan, call))
        else:
            launches = (self._product(plan, call), *self._tail(plan, call))
        return Pipeline(name, launches, call.buffers)

    def _empty(self, plan: LayerPlan, call: LayerCall) -> tuple[Launch, ...]:
        """An all-reduce of nothing, by kernels that the op has."""
        problem = AllReduceProblem(self.spec.world, 0, DType.BF16)
        source = self.window.at("input")
        if self.spec.world == 1:
            return ()
        if Mode.SPLIT_LSA in self.spec.modes:
            inner = Call(problem, source, call.destination, call.budget, wire=self.spec.wire)
            return lsa_pipeline(self.window, self.codes, inner).launches
        inner = Call(
            problem, source, call.destination, call.budget, wire=self.spec.wire, slice_elements=self.spec.n,
            sums=f"output{call.slot}", tag=self._tag(plan, call),
        )  # fmt: skip
        return tuple(sdma_launches(self.window, self.codes, inner, [SdmaPhase.SCATTER, SdmaPhase.REDUCE]))

    # ---- product ---------------------------------------------------------------------------------------------
    def _product(self, plan: LayerPlan, call: LayerCall) -> Launch:
        return self._gemm(plan, call, self.window.at("input")) if plan.fused is None else self._fused(plan, call)

    def _gemm(self, plan: LayerPlan, call: LayerCall, c: int) -> Launch:
        return gemm_launch(self.codes[plan.gemm], plan.gemm, (call.a, call.b, c, call.a_scale, call.b_scale), plan.m)

    def _fused(self, plan: LayerPlan, call: LayerCall) -> Launch:
        window, config = self.window, plan.fused
        assert config is not None, "the plan has a fused kernel"
        queues = window.queues
        more = (
            window.base, window.stride, window.rank, *plan.grid.arguments(),
            window.map.offset("landing"), self._slot, self._tag(plan, call),
            queues.per_peer if queues else 0, queues.table if queues else 0, call.budget, window.error.address,
        )  # fmt: skip
        c = window.at("partials" if config.wire.both else "input")
        addresses = (call.a, call.b, c, call.a_scale, call.b_scale)
        made = gemm_launch(self.codes[config], plan.gemm, addresses, plan.m, more)
        return Launch(made.code, (plan.grid.blocks, 1, 1), made.block, made.arguments, config.key)

    # ---- what follows it -------------------------------------------------------------------------------------
    def _all_reduce(self, plan: LayerPlan, call: LayerCall) -> tuple[Launch, ...]:
        return lsa_pipeline(self.window, self.codes, self._call(plan, call)).launches

    def _tail(self, plan: LayerPlan, call: LayerCall) -> tuple[Launch, ...]:
        inner = self._call(plan, call)
        if plan.tail is Tail.STREAMED:
            return self._streamed(plan, inner)
        if plan.gather is Transport.LSA:
            return tuple(self._pulled(plan, inner, phase) for phase in PullPhase)
        if plan.fused is not None and plan.fused.wire.both:
            return self._banded(plan, inner)
        phases = [SdmaPhase.SCATTER, SdmaPhase.REDUCE]
        # Sums land in the output itself, unless they are narrow or wanted elsewhere.
        if self.spec.wire.lossy or call.destination != self.window.at(inner.sums):
            phases.append(SdmaPhase.GATHER)
        return tuple(sdma_launches(self.window, self.codes, inner, phases))

    def _banded(self, plan: LayerPlan, call: Call) -> tuple[Launch, ...]:
        """Partial sums came as quantised bands."""
        window, spec, fused = self.window, self.spec, plan.fused
        assert fused is not None and window.queues is not None, "only copy engines carry bands"
        config, band = BandsConfig(spec.world), fused.gemm.tile.m * spec.n
        split = WireSplit(spec.world, call.problem.numel, call.wire, slice_elements=call.slice_elements)
        own = (
            call.problem.numel, split.part, split.slice_layout.nbytes, 0, call.tag or 0,
            window.queues.per_peer, window.queues.table, window.map.offset("landing"), self._slot,
            window.map.offset("gathered"), slot_bytes(window, "gathered", spec.world), window.map.offset("partials"),
            band, len(plan.grid.slices.bands(window.rank)), call.budget, window.error.address,
        )  # fmt: skip
        reduce = launch(window, self.codes, call, config, bands_geometry(config, band, MI355X), own)
        drain, gather = sdma_launches(window, self.codes, call, (SdmaPhase.SCATTER, SdmaPhase.GATHER))
        return drain, reduce, gather

    def _streamed(self, plan: LayerPlan, call: Call) -> tuple[Launch, ...]:
        window, spec, slices = self.window, self.spec, plan.grid.slices
        assert window.queues is not None, "only copy engines signal"
        table, row = plan.grid.table, spec.n * _BYTES
        full = plan.m // slices.slice_rows
        ragged = len(slices.chunks(full, plan.chunks)) if full < spec.world else 0
        own = (
            call.problem.nbytes, slices.slice_rows * row, slices.tile_m * row,
            full, table.chunks, ragged, table.short_chunks, table.few,
            call.tag or 0, window.queues.per_peer, window.queues.table,
            window.map.offset("landing"), self._slot, window.map.offset(call.sums), call.budget, window.error.address,
        )  # fmt: skip
        launches = []
        for phase in StreamPhase:
            config = StreamConfig(spec.world, phase)
            geometry = stream_geometry(config, slices, plan.chunks, spec.n)
            launches.append(launch(window, self.codes, call, config, geometry, own))
        if call.destination != window.at(call.sums):
            launches += sdma_launches(window, self.codes, call, [SdmaPhase.GATHER])
        return tuple(launches)

    def _call(self, plan: LayerPlan, call: LayerCall) -> Call:
        problem = AllReduceProblem(self.spec.world, plan.m * self.spec.n, DType.BF16)
        if plan.mode is Mode.SPLIT_LSA:
            source = self.window.at("input")
            return Call(problem, source, call.destination, call.budget, wire=self.spec.wire)
        elements = plan.slice_rows * self.spec.n
        return Call(
            problem, self._own_product(plan), call.destination, call.budget,
            wire=self.spec.wire, slice_elements=elements, sums=f"output{call.slot}",
            scattered=plan.fused is not None, tag=self._tag(plan, call),
        )  # fmt: skip

    def _own_product(self, plan: LayerPlan) -> int:
        """Where C begins; with tiles stored by their owners' places the own slice lies in the own landing slot."""
        if plan.mode is not Mode.FUSED_LSA:
            return self.window.at("input")
        start = min(plan.slice_rows * self.window.rank, plan.m) * self.spec.n * _BYTES
        return self.window.at("landing") + self._slot * self.window.rank - start

    def _pulled(self, plan: LayerPlan, call: Call, phase: PullPhase) -> Launch:
        window, wire = self.window, self.spec.wire
        push = Transport.LSA if plan.mode is Mode.FUSED_LSA else Transport.SDMA
        config = pull_config(self.spec.world, phase, push, wire)
        part = plan.slice_rows * self.spec.n
        put = phase is PullPhase.MEET and plan.fused is not None
        queues = window.queues
        own = (
            0 if put else call.problem.nbytes, part * _BYTES, call.tag or 0,
            queues.per_peer if queues else 1, queues.table if queues else 0,
            window.map.offset("landing"), self._slot, window.map.offset("quantized" if wire.lossy else "reduced"),
            call.budget, window.error.address,
        )  # fmt: skip
        return launch(window, self.codes, call, config, pull_geometry(config, part, MI355X), own)

    @property
    def _slot(self) -> int:
        return slot_bytes(self.window, "landing", self.spec.world)

    def _tag(self, plan: LayerPlan, call: LayerCall) -> int:
        return LayerTag(plan.m, call.slot, plan.gather is Transport.LSA, self.spec.wire.lossy).word
