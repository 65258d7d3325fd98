# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""All-reduce by load and store over symmetric windows (LSA), one and two stages: one kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mori_gemm_ar.ar.call import Call, Codes, OpWindow, launch
from mori_gemm_ar.layout import MI355X, AllReduceConfig, DType, Stage, call_tag, lsa_geometry, select_config
from mori_gemm_ar.runtime import Pipeline


def lsa_configs(world: int, dtypes: Iterable[DType]) -> Iterator[AllReduceConfig]:
    """The kernels that calls of these types may need."""
    for dtype in dtypes:
        for stage in Stage:
            yield AllReduceConfig(world, dtype, stage)


def lsa_pipeline(window: OpWindow, codes: Codes, call: Call) -> Pipeline:
    """The launch of one call."""
    problem = call.problem
    in_window = call.destination == window.at("input") and problem.numel > 0
    config = select_config(problem, MI355X, call.stage, in_window)
    geometry = lsa_geometry(problem, config, MI355X)
    values = (
        window.base,
        window.stride,
        window.rank,
        geometry.blocks,
        call.source,
        call.destination,
        problem.numel,
        call_tag(problem.numel, problem.dtype, config.stage),
        window.map.offset("input"),
        window.map.offset("reduced"),
        call.budget,
        window.error.address,
    )
    return Pipeline(config.key, (launch(codes, config, geometry, values),), call.buffers)
