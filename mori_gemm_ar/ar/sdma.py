# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""All-reduce by copy engines (SDMA) over symmetric windows: scatter, reduce and gather, three kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mori_gemm_ar.ar.call import Call, Codes, OpWindow, launch
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import MI355X, WAVE_LANES, DType, LaunchGeometry, Stage, Wire, WireSplit, call_tag
from mori_gemm_ar.layout.sdma import ByteSlices, SdmaConfig, SdmaPhase, sdma_config, sdma_geometry
from mori_gemm_ar.layout.wire_terms import RUN
from mori_gemm_ar.runtime import CopyQueues, Pipeline

_NO_WAVE = 2**32 - 1


def sdma_configs(world: int, dtypes: Iterable[DType], wire: Wire = Wire.EXACT) -> Iterator[SdmaConfig]:
    """The kernels that calls of these types need."""
    for dtype in dtypes:
        for phase in SdmaPhase:
            yield sdma_config(world, dtype, phase, wire)


def sdma_pipeline(window: OpWindow, codes: Codes, call: Call) -> Pipeline:
    """The launches of one call."""
    if window.queues is None:
        raise ConfigError("transport=SDMA must have copy engines; create the op with transport='sdma'")
    problem, wire = call.problem, call.wire
    exact = () if wire.lossy else _exact_arguments(window, window.queues, call)
    launches = []
    for phase in SdmaPhase:
        config = sdma_config(problem.world, problem.dtype, phase, wire)
        geometry = sdma_geometry(problem, config, MI355X, call.columns)
        values = (
            window.base,
            window.stride,
            window.rank,
            geometry.blocks,
            call.source,
            call.destination,
            *(_wire_arguments(window, window.queues, call, phase, geometry) if wire.lossy else exact),
            call.budget,
            window.error.address,
        )
        launches.append(launch(codes, config, geometry, values))
    name = f"sdma_allreduce_w{problem.world}_{problem.dtype.label}"
    return Pipeline(f"{name}_{wire.label}" if wire.lossy else name, tuple(launches), call.buffers)


def slot_bytes(window: OpWindow, region: str, world: int) -> int:
    """Distance of the slots of a region that has one for each rank."""
    return window.map.region(region).nbytes // world


def _exact_arguments(window: OpWindow, queues: CopyQueues, call: Call) -> tuple[int, ...]:
    problem = call.problem
    slices = ByteSlices.of(problem)
    return (
        slices.total,
        slices.part,
        call_tag(problem.numel, problem.dtype, Stage.TWO),
        queues.per_peer,
        queues.table,
        window.map.offset("landing"),
        slot_bytes(window, "landing", problem.world),
        window.map.offset("reduced"),
    )


def _wire_arguments(
    window: OpWindow, queues: CopyQueues, call: Call, phase: SdmaPhase, geometry: LaunchGeometry
) -> tuple[int, ...]:
    problem, wire, columns = call.problem, call.wire, call.columns
    split = WireSplit(problem.world, problem.numel, wire, columns)
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
        call_tag(problem.numel, problem.dtype, Stage.TWO, wire, columns),
        queues.per_peer,
        queues.table,
        window.map.offset("landing"),
        slot_bytes(window, "landing", problem.world),
        window.map.offset("gathered"),
        slot_bytes(window, "gathered", problem.world),
        window.map.offset("partials") if wire.both else 0,
    )
