# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""warmup() of the fused op: every kernel that was loaded has run once when it returns."""

from __future__ import annotations

import pytest

from mori_gemm_ar.layout import BLayout, Recipe, Wire
from mori_gemm_ar.model import Mode
from mori_gemm_ar.op.warm import warm_rows
from mori_gemm_ar.plan import LayerSpec
from mori_gemm_ar.runtime import LocalWorld, Pipeline, RankContext
from mori_gemm_ar.runtime.emulated import EmulatedTarget
from tests.ranks.layers import FUSED_LSA, FUSED_SDMA, SPLIT_LSA, STREAMED, Way, create


@pytest.mark.parametrize("way", [SPLIT_LSA, FUSED_SDMA, STREAMED, FUSED_LSA], ids=str)
def test_every_kernel_runs(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[set[str]] = [set(), set()]
    submit = EmulatedTarget.submit

    def watched(target: EmulatedTarget, pipeline: Pipeline) -> None:
        ran[target._host.rank].update(launch.code.kernel for launch in pipeline.launches)
        submit(target, pipeline)

    def body(ctx: RankContext) -> set[str]:
        with create(ctx, way, 300) as op:
            before = {code.kernel for code in op._codes.values()} - ran[ctx.rank]
            ctx.barrier()
            op.warmup()
            assert {code.kernel for code in op._codes.values()} - ran[ctx.rank] <= NEVER
            return before

    monkeypatch.setattr(EmulatedTarget, "submit", watched)
    assert all(LocalWorld(2).run(body)), "the self-test alone leaves some out"


# Two ranks gain nothing by a second stage, which another M of the same op never takes either.
NEVER = {"lsa_allreduce_w2_bf16_2stage"}


@pytest.mark.parametrize("mode", [Mode.SPLIT_LSA, Mode.FUSED_SDMA])
def test_rows_reach_both_stages_and_stay_few(mode: Mode) -> None:
    spec = LayerSpec(8, 7168, 2048, 16384, Recipe.BLOCKSCALE, BLayout.ROW, Wire.EXACT, mode)
    rows = warm_rows(spec)
    assert {1, 17, 33, 65} <= set(rows) and max(rows) == 8 * 256
    assert 157333 < 2 * 7168 * min(m for m in rows if m not in (1,)) and 11 in rows  # bytes from which two stages win
    assert warm_rows(LayerSpec(2, 512, 128, 1, Recipe.PTPC, BLayout.ROW)) == (1,)
