# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""All-reduce by copy engines (SDMA) over symmetric windows: scatter, reduce and gather, three kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from mori_gemm_ar.ar.call import Call, Codes, OpWindow, launch
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import MI355X, WAVE_LANES, DType, LaunchGeometry, Stage, Wire, WireSplit, call_tag
from mori_gemm_ar.layout.sdma import ByteSlices, SdmaConfig, SdmaPhase, sdma_config, sdma_geometry
from mori_gemm_ar.layout.wire_terms import RUN
from mori_gemm_ar.runtime import Launch, Pipeline, Target
from mori_gemm_ar.runtime.target import Closable, DeviceComm

_NO_WAVE = 2**32 - 1


def sdma_configs(
    world: int, dtypes: Iterable[DType], wire: Wire = Wire.EXACT, bitcode: str = ""
) -> Iterator[SdmaConfig]:
    """The kernels that calls of these types need."""
    for dtype in dtypes:
        for phase in SdmaPhase:
            yield sdma_config(world, dtype, phase, wire, bitcode)


def sdma_pipeline(window: OpWindow, codes: Codes, call: Call) -> Pipeline:
    """The launches of one call."""
    name = f"sdma_allreduce_w{call.problem.world}_{call.problem.dtype.label}"
    launches = sdma_launches(window, codes, call, tuple(SdmaPhase))
    return Pipeline(f"{name}_{call.wire.label}" if call.wire.lossy else name, tuple(launches), call.buffers)


def sdma_launches(window: OpWindow, codes: Codes, call: Call, phases: Sequence[SdmaPhase]) -> list[Launch]:
    """Launches of some phases of a call."""
    return [_launch(window, codes, call, phase) for phase in phases]


def _launch(window: OpWindow, codes: Codes, call: Call, phase: SdmaPhase) -> Launch:
    problem, wire = call.problem, call.wire
    if phase is SdmaPhase.SCATTER and call.scattered:
        # Nothing is left to put: the kernel waits for its queues and meets the peers.
        wire, problem = Wire.EXACT, replace(problem, numel=0)
    config = sdma_config(problem.world, problem.dtype, phase, wire, window.bitcode)
    geometry = sdma_geometry(call.problem, config, MI355X, call.columns, call.slice_elements)
    transport = _transport_arguments(window, call)
    if wire.lossy:
        own = (*_wire_sizes(window, call, phase, geometry), *transport, *_wire_places(window, call))
    else:
        slices = ByteSlices.of(problem, call.slice_elements)
        own = (slices.total, slices.part, *transport)
    return launch(window, codes, call, config, geometry, (*own, call.budget, window.error.address))


def describe_queues(window: OpWindow, target: Target, comm: DeviceComm, registered: Closable) -> None:
    """With amd-mori's device code: put into the window what that takes for each queue, in place of their handles."""
    if window.bitcode and window.queues is not None:
        table = window.at("records")
        target.write(table, comm.put_records(registered, window.address))
        window.queues = replace(window.queues, table=table)


def in_window(window: OpWindow, target: Target, call: Call) -> Call:
    """The call with its input where the code that submits can send it from; mori's sends window memory only.

    Otherwise a copy is queued. What peers read of the input by load and store they have read when that call has ended.
    """
    inside = call.source == window.at("input") or call.wire.both  # both legs: partials are sent
    if not window.bitcode or inside or not call.problem.nbytes:
        return call
    target.copy(window.at("input"), call.source, call.problem.nbytes)
    return replace(call, source=window.at("input"))


def slot_bytes(window: OpWindow, region: str, world: int) -> int:
    """Distance of the slots of a region that has one for each rank."""
    return window.map.region(region).nbytes // world


def _transport_arguments(window: OpWindow, call: Call) -> tuple[int, ...]:
    """Tag, queues, the landing slots, and where sums are gathered."""
    if window.queues is None:
        raise ConfigError("transport=SDMA must have copy engines; create the op with transport='sdma'")
    problem, tag = call.problem, call.tag
    if tag is None:
        tag = call_tag(problem.numel, problem.dtype, Stage.TWO, call.wire, call.columns)
    return (
        tag,
        window.queues.per_peer,
        window.queues.table,
        window.map.offset("landing"),
        slot_bytes(window, "landing", problem.world),
        window.map.offset("gathered" if call.wire.lossy else call.sums),
    )


def _wire_sizes(window: OpWindow, call: Call, phase: SdmaPhase, geometry: LaunchGeometry) -> tuple[int, ...]:
    problem, columns = call.problem, call.columns
    split = WireSplit(problem.world, problem.numel, call.wire, columns, call.slice_elements)
    # The short group follows the whole ones.
    whole = problem.numel // split.unit * split.unit
    owner, before = divmod(whole, split.part) if split.part else (0, 0)
    waves = geometry.blocks * geometry.threads // WAVE_LANES
    quantises = whole < problem.numel and (phase is SdmaPhase.SCATTER or window.rank == owner)
    return (
        problem.numel,
        split.part,
        split.slice_layout.nbytes,
        owner,
        before // RUN // WAVE_LANES % waves if quantises else _NO_WAVE,
        problem.numel // columns if columns else 0,
        columns or 0,
    )


def _wire_places(window: OpWindow, call: Call) -> tuple[int, int]:
    """Bytes of a slot for sums, and where the own input goes as wire slices."""
    partials = window.map.offset("partials") if call.wire.both else 0
    return slot_bytes(window, "gathered", call.problem.world), partials
