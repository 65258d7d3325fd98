# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""All-reduce by load and store over symmetric windows (LSA), one and two stages: one kernel."""

from __future__ import annotations

from mori_gemm_ar.ar import wire as wires
from mori_gemm_ar.ar.call import Call, Codes, OpWindow, launch
from mori_gemm_ar.layout import MI355X, call_tag, lsa_geometry, select_config
from mori_gemm_ar.runtime import Pipeline


def lsa_pipeline(window: OpWindow, codes: Codes, call: Call) -> Pipeline:
    """The launch of one call."""
    problem = call.problem
    in_window = call.destination == window.at("input") and problem.numel > 0
    config = select_config(problem, MI355X, call.stage, in_window, call.wire)
    geometry = lsa_geometry(problem, config, MI355X, call.columns)
    own = (
        problem.numel,
        call_tag(problem.numel, problem.dtype, config.stage, config.wire, call.columns),
        window.map.offset("input"),
        window.map.offset(wires.reduced_region(window.map)),
        call.budget,
        window.error.address,
        *wires.wire_arguments(window.map, config, problem.numel, call.columns),
    )
    return Pipeline(config.key, (launch(window, codes, call, config, geometry, own),), call.buffers)
