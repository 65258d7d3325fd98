# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""All-reduce by copy engines (SDMA) over symmetric windows: scatter, reduce and gather, three kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mori_gemm_ar.ar.call import Call, Codes, OpWindow, launch
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import MI355X, DType, Stage, call_tag
from mori_gemm_ar.layout.sdma import ByteSlices, SdmaConfig, SdmaPhase, sdma_config, sdma_geometry
from mori_gemm_ar.runtime import Pipeline


def sdma_configs(world: int, dtypes: Iterable[DType]) -> Iterator[SdmaConfig]:
    """The kernels that calls of these types need."""
    for dtype in dtypes:
        for phase in SdmaPhase:
            yield sdma_config(world, dtype, phase)


def sdma_pipeline(window: OpWindow, codes: Codes, call: Call) -> Pipeline:
    """The launches of one call."""
    if window.queues is None:
        raise ConfigError("transport=SDMA must have copy engines; create the op with transport='sdma'")
    problem = call.problem
    slices = ByteSlices.of(problem)
    slot = window.map.region("landing").nbytes // problem.world
    launches = []
    for phase in SdmaPhase:
        config = sdma_config(problem.world, problem.dtype, phase)
        geometry = sdma_geometry(problem, config, MI355X)
        values = (
            window.base,
            window.stride,
            window.rank,
            geometry.blocks,
            call.source,
            call.destination,
            slices.total,
            slices.part,
            call_tag(problem.numel, problem.dtype, Stage.TWO),
            window.queues.per_peer,
            window.queues.table,
            window.map.offset("landing"),
            slot,
            window.map.offset("reduced"),
            call.budget,
            window.error.address,
        )
        launches.append(launch(codes, config, geometry, values))
    name = f"sdma_allreduce_w{problem.world}_{problem.dtype.label}"
    return Pipeline(name, tuple(launches), call.buffers)
