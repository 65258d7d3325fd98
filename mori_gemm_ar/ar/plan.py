# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What a call of an all-reduce op resolves to, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass

from mori_gemm_ar.ar.options import Options
from mori_gemm_ar.layout import MI355X, AllReduceConfig, AllReduceProblem, lsa_geometry, select_config
from mori_gemm_ar.layout.sdma import SdmaConfig, SdmaPhase, Transport, sdma_config, sdma_geometry


@dataclass(frozen=True, slots=True)
class CallPlan:
    """What one call resolved to. `config` and `blocks` are those of the kernel that sums."""

    transport: Transport
    config: AllReduceConfig | SdmaConfig
    blocks: int
    in_place_in_window: bool


def plan_call(
    options: Options, problem: AllReduceProblem, transport: Transport, in_window: bool, columns: int | None
) -> CallPlan:
    """The plan of a call. `columns`: elements of a row, where the wire scales rows."""
    if transport is Transport.SDMA:
        reduce = sdma_config(problem.world, problem.dtype, SdmaPhase.REDUCE, options.wire, options.bitcode)
        return CallPlan(transport, reduce, sdma_geometry(problem, reduce, MI355X, columns).blocks, in_window)
    config = select_config(problem, MI355X, options.stage, in_window, options.wire)
    return CallPlan(transport, config, lsa_geometry(problem, config, MI355X, columns).blocks, in_window)
