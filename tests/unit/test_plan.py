# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What an op accepts, what it loads, and how each M runs: one rule, and no M without its kernels."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import MI355X, AllReduceProblem, BLayout, DType, Recipe, Tile, Wire, select_config
from mori_gemm_ar.layout.fused_rules import reason_not_fused_rows
from mori_gemm_ar.layout.gemm_rules import reason_not_tile
from mori_gemm_ar.layout.pull import PullPhase, pull_config
from mori_gemm_ar.layout.sdma import SdmaPhase, Transport, sdma_config
from mori_gemm_ar.model import Mode
from mori_gemm_ar.model.modes import FUSED
from mori_gemm_ar.model.terms import Quant
from mori_gemm_ar.model.tiles import TILES
from mori_gemm_ar.op import GemmAllReduceOp
from mori_gemm_ar.plan import LayerPlan, LayerSpec, Tuning, plan_layer

few = settings(max_examples=12, deadline=None, database=None)
MODES = [None, Mode.SPLIT_LSA, Mode.SPLIT_SDMA, Mode.FUSED_SDMA, Mode.FUSED_LSA]
WIRES = [Wire.EXACT, Wire.FP8, Wire.FP8_BOTH]

GOOD: dict[str, Any] = {
    "world": 2, "n": 512, "k": 256, "m_max": 600, "recipe": Recipe.BLOCKSCALE, "b_layout": BLayout.ROW,
    "wire": Wire.EXACT, "mode": Mode.FUSED_SDMA, "tuning": Tuning(),
}  # fmt: skip
tuned: Any = Tuning  # also with values of other types
# Field -> values to try in place of the good one: at and past each limit, negative, of another type.
VALUES: dict[str, list[Any]] = {
    "world": [-1, 0, 1, 2, 3, 8, 9, 16, True, 2.0, "2", None],
    "n": [-16, 0, 8, 16, 24, 32, 48, 7168, 2**31, True, 16.0, "16", None],
    "k": [-128, 0, 1, 64, 128, 192, 384, 2**31, True, 128.0, None],
    "m_max": [-1, 0, 1, 255, 256, 16384, 2**22, 2**32, True, 1.0, "1", None],
    "recipe": [*Recipe, "ptpc", None, 0],
    "b_layout": [*BLayout, "row", None, True],
    "wire": [*Wire, None, 0],
    "mode": [*MODES, Mode.GEMM_ONLY, "fused-sdma", 0, True],
    "tuning": [
        tuned(), *(tuned(gather=gather) for gather in (*Transport, "sdma", 0)),
        *(tuned(chunks=chunks) for chunks in (-1, 0, 1, 64, 65, True, 1.0)),
        *(tuned(stripe=stripe) for stripe in (-1, 0, 1, 99, None, True)),
        *(tuned(tile=tile) for tile in (*Tile, "128x256", 0)),
        *(tuned(queues=queues) for queues in (-1, 0, 1, 8, 9, None)),
        *(tuned(outputs=outputs) for outputs in (0, 1, 2, 3, True)),
        *(tuned(batch_invariant=value) for value in (True, False, None, 1)),
    ],
}  # fmt: skip


def refusal(values: dict[str, Any]) -> str | None:
    """What the constructor says."""
    try:
        LayerSpec(**values)
    except ConfigError as error:
        return str(error)
    return None


def supports(values: dict[str, Any]) -> str | None:
    """What the op's question says; names of its arguments are the op's."""
    asked = {("quant" if name == "recipe" else name): value for name, value in values.items()}
    support = GemmAllReduceOp.supports(asked.pop("world"), **asked)
    assert bool(support) == support.ok == (support.reason is None)
    return support.reason


@pytest.mark.parametrize("field", VALUES)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value if mode else "auto")
def test_what_is_supported_constructs_and_so_do_its_kernels(field: str, mode: Mode | None) -> None:
    outcomes = set()
    for value in VALUES[field]:
        values = GOOD | {"mode": mode} | {field: value}
        reason = refusal(values)
        outcomes.add(reason is None)
        if reason is None:
            assert supports(values) is None, values
            spec = LayerSpec(**values)
            kernels = list(spec.kernels())
            assert kernels and len({kernel.key for kernel in kernels}) == len(kernels), values
            assert spec.window().map().nbytes > 0
        else:
            assert " must be " in reason, reason
    assert outcomes == {True, False} or field in ("recipe", "b_layout", "wire", "mode")


@pytest.mark.parametrize("field", ["world", "n", "k", "m_max", "tuning"])
def test_what_is_refused_is_not_supported_and_says_the_same(field: str) -> None:
    """Names of recipes, modes and wires are the op's, so those are its own to parse."""
    for value in VALUES[field]:
        values = GOOD | {field: value}
        assert supports(values) == refusal(values), values


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"wire": Wire.FP8, "n": 48}, "n=48 must be a multiple of 32 for wire='fp8'"),
        ({"wire": Wire.FP8_ROW}, "wire='fp8-row' must be 'exact', 'fp8' or 'fp8-both' here"),
        ({"mode": Mode.GEMM_ONLY}, "mode='gemm-only' must be a mode that reduces"),
        ({"tuning": Tuning(tile=Tile.M256_N256)}, "tile="),
        ({"m_max": 2**21}, "bands=8192 of a slice must be fewer on 2 ranks"),
    ],
)
def test_reasons_name_the_field(change: dict[str, Any], message: str) -> None:
    reason = refusal(GOOD | change)
    assert reason is not None and reason.startswith(message)


# --- every M has its kernels ---


def needed(spec: LayerSpec, plan: LayerPlan) -> Iterator[Any]:
    """What a call of a plan launches."""
    if plan.m == 0:
        return
    yield plan.gemm if plan.fused is None else plan.fused
    if plan.mode is Mode.SPLIT_LSA:
        problem = AllReduceProblem(spec.world, plan.m * spec.n, DType.BF16)
        yield select_config(problem, MI355X, None, False, spec.wire)
    elif plan.gather is Transport.SDMA:
        for phase in SdmaPhase:
            drains = phase is SdmaPhase.SCATTER and plan.fused is not None
            yield sdma_config(spec.world, DType.BF16, phase, Wire.EXACT if drains else spec.wire)
    elif plan.gather is Transport.LSA:
        push = Transport.LSA if plan.mode is Mode.FUSED_LSA else Transport.SDMA
        yield from (pull_config(spec.world, phase, push, spec.wire) for phase in PullPhase)


@cache
def rows_of(world: int, m_max: int) -> tuple[int, ...]:
    """Every limit of a rule or of a kernel, its neighbours, and some in between."""
    edges = {64, m_max, *(world * tile.m for tile in Tile)}
    near = {m + step for m in edges for step in (-1, 0, 1)} | {0, 1, 13 * 128 * world, m_max // 2 + 7}
    return tuple(sorted(m for m in near if 0 <= m <= m_max))


@st.composite
def specs(draw: st.DrawFn) -> LayerSpec:
    recipe, wire, mode = draw(st.sampled_from(Recipe)), draw(st.sampled_from(WIRES)), draw(st.sampled_from(MODES))
    if mode in FUSED and wire is Wire.FP8_BOTH:
        wire = Wire.FP8
    gathers = [None, Transport.SDMA] if wire is Wire.FP8_BOTH else [None, *Transport]
    tiles = [None, *(tile for tile in Tile if recipe is not Recipe.BLOCKSCALE or tile is not Tile.M256_N256)]
    tuning = Tuning(
        gather=draw(st.sampled_from(gathers)), chunks=draw(st.sampled_from([None, 1, 3, 64])),
        stripe=draw(st.integers(1, 4)), tile=draw(st.sampled_from(tiles)), queues=draw(st.integers(1, 2)),
        outputs=draw(st.integers(1, 2)), batch_invariant=draw(st.booleans()),
    )  # fmt: skip
    n, k = draw(st.sampled_from([32, 512, 5120, 7168])), draw(st.sampled_from([128, 2048]))
    m_max = draw(st.sampled_from([1, 64, 65, 300, 1024, 5000, 16384]))
    return LayerSpec(draw(st.integers(1, 8)), n, k, m_max, recipe, draw(st.sampled_from(BLayout)), wire, mode, tuning)


@few
@given(specs(), st.booleans())
def test_every_plan_finds_its_kernels(spec: LayerSpec, engines: bool) -> None:
    kernels = set(spec.kernels())
    for m in rows_of(spec.world, spec.m_max):
        plan = plan_layer(spec, m, engines=engines or spec.mode is not None)
        assert plan.m == m
        missing = [config.key for config in needed(spec, plan) if config not in kernels]
        assert not missing, f"m={m}, {plan.label}: {missing}"
        assert engines or spec.mode is not None or plan.mode in (Mode.SPLIT_LSA, Mode.GEMM_ONLY)
        if plan.fused is not None:
            assert plan.grid.table.chunks >= 1 and plan.slice_rows % plan.fused.gemm.tile.m == 0
        if plan.mode is Mode.SPLIT_SDMA:
            assert plan.slice_rows * spec.world >= m


@few
@given(specs())
def test_the_mode_that_was_asked_for_runs_or_the_plan_says_why(spec: LayerSpec) -> None:
    if spec.mode is None or spec.world == 1:
        return
    for m in rows_of(spec.world, spec.m_max):
        plan = plan_layer(spec, m)
        if m == 0:
            assert plan.mode is Mode.GEMM_ONLY
        elif spec.mode not in FUSED:
            assert plan.mode is spec.mode and not plan.why
        else:
            least = min(tile.m for tile in spec.tiles)
            short = reason_not_fused_rows(m, spec.world, least)
            assert plan.mode is (Mode.SPLIT_LSA if short else spec.mode), f"m={m}: {plan.label}"
            assert plan.why == (short or "")


@few
@given(specs())
def test_tuning_is_kept(spec: LayerSpec) -> None:
    tuning = spec.tuning
    for m in rows_of(spec.world, spec.m_max):
        plan = plan_layer(spec, m)
        assert tuning.gather in (None, plan.gather) or plan.gather is None
        if plan.fused is not None:
            assert tuning.tile in (None, plan.fused.gemm.tile)
        if plan.mode is Mode.FUSED_SDMA and tuning.chunks is not None:
            assert plan.chunks == tuning.chunks
        if plan.mode is Mode.FUSED_LSA:
            assert plan.fused is not None and plan.fused.stripe == min(tuning.stripe, plan.fused.columns)


@pytest.mark.parametrize("recipe", Recipe)
def test_every_tile_of_the_model_has_a_kernel(recipe: Recipe) -> None:
    spec = LayerSpec(**GOOD | {"recipe": recipe})
    assert {(tile.m, tile.n) for tile in spec.tiles} == {(tile.m, tile.n) for tile in TILES[Quant(recipe.value)]}
    for tile in spec.tiles:
        assert reason_not_tile(tile, recipe) is None


@pytest.mark.parametrize(("m", "reason"), [(601, "m=601 must be"), (-1, "m=-1 must be"), (True, "m=True must be")])
def test_rows_that_an_op_has_no_room_for(m: Any, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_layer(LayerSpec(**GOOD), m)
    assert str(caught.value).startswith(reason)


# --- pure ---


@few
@given(specs())
def test_equal_specs_give_equal_plans(spec: LayerSpec) -> None:
    again = replace(spec, tuning=replace(spec.tuning))
    assert list(spec.kernels()) == list(again.kernels()) and spec.window() == again.window()
    for m in rows_of(spec.world, spec.m_max):
        assert plan_layer(spec, m) == plan_layer(again, m)


PRINT = """
from mori_gemm_ar.layout import BLayout, Recipe, Wire
from mori_gemm_ar.model import Mode
from mori_gemm_ar.plan import LayerSpec, plan_layer
asked = (
    (Recipe.BLOCKSCALE, Wire.EXACT, None), (Recipe.MXFP8, Wire.FP8, None), (Recipe.PTPC, Wire.FP8_BOTH, None),
    (Recipe.MXFP8, Wire.FP8, Mode.FUSED_SDMA),
)
for recipe, wire, mode in asked:
    spec = LayerSpec(8, 7168, 2048, 16384, recipe, BLayout.PRESHUFFLED, wire, mode)
    print([kernel.key for kernel in spec.kernels()], [plan_layer(spec, m) for m in (1, 1024, 5000, 16384)])
"""
# Every plan is predicted to take equally long.
EQUALS = """
from mori_gemm_ar import plan
from mori_gemm_ar.model.choice import Candidate
plan._cases = lambda: type("Flat", (), {"candidate": lambda self, layer, plan: Candidate(plan, None, 1.0, 1.0)})()
"""


@pytest.mark.parametrize("prices", ["", EQUALS], ids=["predicted", "equal"])
def test_ranks_agree_whatever_their_process(prices: str) -> None:
    """No order of a set, no environment variable and no device takes part."""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", prices + PRINT], capture_output=True, text=True, check=True, timeout=60,
            env={"PYTHONHASHSEED": seed, "LOCAL_RANK": rank, "RANK": rank, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed, rank in (("0", "0"), ("1", "7"), ("2", "3"), ("3", "5"))
    ]  # fmt: skip
    assert len(set(outputs)) == 1 and "fused_sdma" in outputs[0]


@pytest.mark.parametrize(("mode", "world"), list(product(MODES, (1, 2, 8))))
def test_engines_are_wanted_where_some_m_uses_them(mode: Mode | None, world: int) -> None:
    for wire, m_max in product((Wire.EXACT, Wire.FP8), (100, 16384)):
        spec = LayerSpec(world, 7168, 2048, m_max, Recipe.MXFP8, BLayout.PRESHUFFLED, wire, mode)
        modes = {plan_layer(spec, m).mode for m in rows_of(world, m_max)}
        assert spec.wants_engines or not modes & {Mode.SPLIT_SDMA, Mode.FUSED_SDMA}
        assert modes - {Mode.GEMM_ONLY} <= set(spec.modes) or world == 1
