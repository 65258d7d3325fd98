# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Plans of the fused op: what any M may need is known at creation, and a mode is never changed in silence."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import BLayout, Recipe, SmallGemmConfig, SmallRows, Tile, Wire
from mori_gemm_ar.layout.sdma import Transport
from mori_gemm_ar.model import Mode, Tail
from mori_gemm_ar.model.modes import FUSED
from mori_gemm_ar.plan import LayerSpec, Tuning, plan_layer

MODES = (None, Mode.SPLIT_LSA, Mode.SPLIT_SDMA, Mode.FUSED_SDMA, Mode.FUSED_LSA)


@st.composite
def specs(draw: st.DrawFn, least: int = 1, modes: tuple[Mode | None, ...] = MODES) -> LayerSpec:
    """Any that the rules accept, of at least so many ranks."""
    gather = draw(st.sampled_from((None, *Transport)))
    wire = draw(st.sampled_from((Wire.EXACT, Wire.FP8, Wire.FP8_BOTH)))
    streams = wire is Wire.EXACT and gather is not Transport.LSA
    tuning = Tuning(
        gather=gather,
        chunks=draw(st.none() | st.integers(1, 64)),
        stripe=draw(st.integers(1, 8)),
        tile=draw(st.sampled_from((None, *Tile))),
        queues=draw(st.integers(1, 2)),
        outputs=draw(st.integers(1, 2)),
        batch_invariant=draw(st.booleans()),
        tail=draw(st.sampled_from((Tail.PHASED, Tail.STREAMED))) if streams else Tail.PHASED,
    )
    try:
        return LayerSpec(
            draw(st.integers(least, 8)),
            16 * draw(st.integers(1, 80)),
            128 * draw(st.integers(1, 20)),
            draw(st.integers(1, 64) | st.integers(1, 20_000)),
            draw(st.sampled_from(Recipe)),
            draw(st.sampled_from(BLayout)),
            wire,
            draw(st.sampled_from(modes)),
            tuning,
        )
    except ConfigError:
        assume(False)
        raise


@settings(max_examples=60)
@given(specs(), st.data())
def test_every_m_finds_its_kernels(spec: LayerSpec, data: st.DataObject) -> None:
    """Nothing is compiled after `create`: products and fused kernels of all M are among those that it loads."""
    kernels = set(spec.kernels())
    for m in {0, 1, spec.m_max, *data.draw(st.lists(st.integers(0, spec.m_max), max_size=3))}:
        plan = plan_layer(spec, m, engines=spec.wants_engines)
        assert plan.gemm in kernels or plan.fused is not None or m == 0, (m, plan)
        assert plan.fused is None or plan.fused in kernels, (m, plan)
        assert plan.mode in (*spec.modes, Mode.GEMM_ONLY), (m, plan)
        assert plan.gather is None or plan.gather in spec.gathers(plan.mode), (m, plan)


@settings(max_examples=60)
@given(specs(2, MODES[1:]), st.data())
def test_another_mode_than_the_one_asked_for_says_why(spec: LayerSpec, data: st.DataObject) -> None:
    m = data.draw(st.integers(1, spec.m_max))
    plan = plan_layer(spec, m)
    assert (plan.mode is spec.mode) == (plan.why == ""), plan
    if plan.mode is not spec.mode:
        assert spec.mode in FUSED and plan.mode is Mode.SPLIT_LSA
        assert m < spec.world * min(tile.m for tile in spec.tiles)


@pytest.mark.parametrize("m_max", [1, 8, 16, 17, 32, 33, 64, 65])
def test_kernels_for_few_rows(m_max: int) -> None:
    """Those that some M uses, and no others."""
    spec = LayerSpec(2, 512, 128, m_max, Recipe.BLOCKSCALE, BLayout.ROW, mode=Mode.SPLIT_LSA)
    loaded = {config.rows for config in spec.kernels() if isinstance(config, SmallGemmConfig)}
    plans = [plan_layer(spec, m).gemm for m in range(1, m_max + 1)]
    assert loaded == {config.rows for config in plans if isinstance(config, SmallGemmConfig)}
    assert SmallRows.M16 in loaded
