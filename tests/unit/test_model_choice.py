# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The choice of a path: legal, never behind the split layer in its own prediction, the same everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mori_gemm_ar
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.model import (
    Case,
    Layer,
    Mode,
    Plan,
    Quant,
    Tail,
    Tile,
    Transport,
    Wire,
    choose,
    explain,
    load,
    load_records,
    predict,
    reason_not_plan,
    sweep,
)
from mori_gemm_ar.model.choice import Cases, plans
from mori_gemm_ar.model.constants import Override
from mori_gemm_ar.model.explanation import assumptions, crossovers, padding
from mori_gemm_ar.model.modes import FUSED
from tests.unit.model_samples import PUBLISHED, layers, planned

ROOT = Path(mori_gemm_ar.__file__).parents[1]
CONSTANTS = load()


@settings(max_examples=60)
@given(layers)
def test_auto_is_legal_and_never_behind_the_split_layer(layer: Layer) -> None:
    choice = choose(CONSTANTS, layer)
    assert reason_not_plan(layer, choice.chosen.plan) is None
    split = [best for best in choice.best if best.plan.mode not in FUSED]
    assert split
    for case in (Case.PESSIMISTIC, Case.EXPECTED):
        own = predict(CONSTANTS.at(case), layer, choice.chosen.plan).total_us
        assert own <= min(predict(CONSTANTS.at(case), layer, best.plan).total_us for best in split) or (
            choice.chosen.plan.mode not in FUSED
        )
    assert choice.chosen.pessimistic_us == min(
        best.pessimistic_us for best in choice.best if best.plan.mode not in FUSED or best is choice.chosen
    )


@settings(max_examples=40)
@given(layers)
def test_every_path_is_chosen_offered_or_refused_with_a_reason(layer: Layer) -> None:
    choice = choose(CONSTANTS, layer)
    assert all(refusal.reason for refusal in choice.refused)
    taken = {best.plan.label for best in choice.best} - {choice.chosen.plan.label}
    assert taken <= {refusal.path for refusal in choice.refused}
    if layer.world > 1:
        named = {best.plan.mode.value for best in choice.best} | {r.path.partition(",")[0] for r in choice.refused}
        assert named == {mode.value for mode in Mode} - {"gemm-only"}
    else:
        assert choice.chosen.plan.mode is Mode.GEMM_ONLY


@settings(max_examples=40)
@given(case=planned())
def test_the_price_of_a_case_is_the_predictor(case: tuple[Layer, Plan]) -> None:
    layer, plan = case
    priced = Cases.of(CONSTANTS).candidate(layer, plan)
    for name, us in (("value", priced.expected_us), ("pessimistic", priced.pessimistic_us)):
        assert us == predict(CONSTANTS.at(Case(name)), layer, plan).total_us
    assert priced.optimistic_us <= priced.expected_us + 1e-9 <= priced.pessimistic_us + 2e-9


def test_small_layers_take_the_load_store_all_reduce() -> None:
    for m in (0, 1, 8, 64, 512, 1023):
        choice = choose(CONSTANTS, replace(PUBLISHED, m=m))
        assert choice.chosen.plan.mode is Mode.SPLIT_LSA
        reasons = {refusal.path: refusal.reason for refusal in choice.refused}
        assert reasons["fused-sdma"].startswith(f"m={m} must be at least world*tile.m=1024")


@pytest.mark.parametrize(
    ("layer", "plan", "message"),
    [
        (PUBLISHED, Plan(Mode.GEMM_ONLY, Tile(128, 256)), "mode=gemm-only must be gemm-only for world=1"),
        (replace(PUBLISHED, world=1), Plan(Mode.SPLIT_LSA, Tile(128, 256)), "mode=split-lsa must be gemm-only"),
        (replace(PUBLISHED, wire=Wire.FP8), Plan(Mode.SPLIT_LSA, Tile(128, 256)), "wire=fp8 must be bf16"),
        (
            replace(PUBLISHED, wire=Wire.FP8),
            Plan(Mode.FUSED_LSA, Tile(128, 256)),
            "wire=fp8 must leave the scatter bf16",
        ),
        (
            replace(PUBLISHED, m=1023),
            Plan(Mode.FUSED_SDMA, Tile(128, 256)),
            "m=1023 must be at least world*tile.m=1024",
        ),
        (PUBLISHED, Plan(Mode.FUSED_LSA, Tile(128, 256), tail=Tail.STREAMED), "tail=streamed must be phased"),
        (
            PUBLISHED,
            Plan(Mode.FUSED_SDMA, Tile(128, 256), gather=Transport.LSA, tail=Tail.STREAMED),
            "tail=streamed must be phased",
        ),
        (PUBLISHED, Plan(Mode.SPLIT_SDMA, Tile(128, 256), chunks=8), "chunks=8 must be 1 for split-sdma"),
    ],
)
def test_an_illegal_plan_is_refused_by_predicate_and_price(layer: Layer, plan: Plan, message: str) -> None:
    assert str(reason_not_plan(layer, plan)).startswith(message)
    with pytest.raises(ConfigError) as error:
        Cases.of(CONSTANTS).candidate(layer, plan)
    assert str(error.value).startswith(message)


def test_tails_that_are_not_offered_are_refused_and_can_be_allowed() -> None:
    layer = replace(PUBLISHED, wire=Wire.FP8)
    assert choose(CONSTANTS, layer).chosen.plan.tail is Tail.PHASED
    assert ("fused-sdma, beside", "this version does not offer it") in [
        (r.path, r.reason) for r in choose(CONSTANTS, layer).refused
    ]
    allowed = choose(CONSTANTS, layer, offered=tuple(Tail))
    assert allowed.chosen.plan.tail is Tail.BESIDE
    assert allowed.chosen.pessimistic_us < choose(CONSTANTS, layer).chosen.pessimistic_us


def test_choices_are_made_at_the_pessimistic_value() -> None:
    """At its best a streamed bf16 tail wins, at its worst it does not: the choice does not gamble."""
    cases = Cases.of(CONSTANTS)
    streamed = Plan(Mode.FUSED_SDMA, Tile(128, 256), 4, tail=Tail.STREAMED)
    phased = choose(CONSTANTS, PUBLISHED, offered=tuple(Tail)).chosen
    assert cases.candidate(PUBLISHED, streamed).optimistic_us < phased.optimistic_us
    assert phased.plan.tail is Tail.PHASED


def test_chunks_are_as_many_as_bands_allow_and_puts_repay() -> None:
    chosen = {m: choose(CONSTANTS, replace(PUBLISHED, m=m)).chosen.plan.chunks for m in (4096, 8192, 16384)}
    assert chosen == {4096: 4, 8192: 8, 16384: 8}
    options = {plan.chunks for plan in plans(replace(PUBLISHED, m=3072), Mode.FUSED_SDMA)}
    assert options == {1, 2, 3}


def test_a_table_beats_the_formula_in_its_bucket_only() -> None:
    entry = Override(4000, 5000, 7168, 2048, 8, "blockscale", "bf16", "split-sdma", 1, 128, 256)
    tuned = replace(CONSTANTS, overrides=(entry,))
    inside, outside = (choose(tuned, replace(PUBLISHED, m=m)) for m in (4096, 8192))
    assert (inside.chosen.plan.mode, inside.overridden) == (Mode.SPLIT_SDMA, True)
    assert (outside.chosen.plan.mode, outside.overridden) == (Mode.FUSED_SDMA, False)
    assert not choose(tuned, replace(PUBLISHED, m=4096, wire=Wire.FP8)).overridden
    illegal = replace(CONSTANTS, overrides=(replace(entry, mode="gemm-only"),))
    with pytest.raises(ConfigError, match="mode=gemm-only must be"):
        choose(illegal, replace(PUBLISHED, m=4096))
    unknown = replace(CONSTANTS, overrides=(replace(entry, mode="warp"),))
    with pytest.raises(ConfigError, match=r"overrides\.mode='warp' must be one of"):
        choose(unknown, replace(PUBLISHED, m=4096))


PROCESS = """
import json, sys
from mori_gemm_ar.model import Layer, Quant, Wire, choose, explain, load, load_records
answers = []
for m, world, quant, wire in json.loads(sys.argv[1]):
    choice = choose(load(), Layer(m, 7168, 2048, world, Quant(quant), Wire(wire)))
    answers.append([repr(choice.chosen), [repr(r) for r in choice.refused]])
document = explain(load(), load_records(), Layer(4200, 5120, 2048, 4, Quant.MXFP8)).to_dict()
print(json.dumps([answers, document, load().fingerprint]))
loaded = {name.partition(".")[0] for name in sys.modules}
print(*sorted(loaded - set(sys.stdlib_module_names) - {"mori_gemm_ar", "__main__"}))
"""
QUESTIONS = [
    (16384, 8, "blockscale", "bf16"),
    (4200, 4, "mxfp8", "fp8-gather"),
    (5000, 3, "ptpc", "fp8"),
    (7, 2, "ptpc", "bf16"),
]


def _ask(seed: str) -> tuple[str, str]:
    # -S: no site packages, so nothing but the standard library can be loaded.
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-S", "-c", PROCESS, json.dumps(QUESTIONS)]
    run = subprocess.run(command, env=env, text=True, capture_output=True, timeout=120)
    assert run.returncode == 0, run.stderr
    answers, loaded = run.stdout.splitlines()
    return answers, loaded


def test_the_answer_is_the_same_in_every_process_and_needs_the_standard_library_only() -> None:
    first, second = _ask("1"), _ask("4711")
    assert first == second
    assert first[1] == ""


def test_padding_counts_rows_and_link_bytes() -> None:
    layer = Layer(4200, 5120, 2048, 4, Quant.MXFP8)
    fused, split = (padding(layer, Plan(mode, Tile(256, 256))) for mode in (Mode.FUSED_SDMA, Mode.SPLIT_SDMA))
    assert fused.rows_computed == split.rows_computed == 4352
    assert fused.wasted_rows == pytest.approx(1 - 4200 / 4352)
    assert fused.wasted_link_bytes == pytest.approx(1280 / 1050 - 1)
    assert split.wasted_link_bytes == pytest.approx(0)
    assert padding(PUBLISHED, Plan(Mode.FUSED_SDMA, Tile(128, 256))).wasted_rows == 0


def test_an_explanation_says_everything() -> None:
    document = explain(CONSTANTS, load_records(), replace(PUBLISHED, m=4096)).to_dict()
    json.dumps(document, allow_nan=False)
    assert [line["name"] for line in document["launches"]] == ["gemm", "drain", "reduce", "gather"]
    assert document["path"]["predicted_us"] > 0
    assert document["link_bytes"] == 2 * 512 * 7168 * 2
    assert {entry["tail"] for entry in document["outlook"]} == {tail.value for tail in Tail}
    assert {entry["wire"] for entry in document["outlook"]} == {wire.value for wire in Wire}
    assert {name for entry in document["outlook"] for name in entry["assumes"]} == {
        c["name"] for c in document["assumed"]
    }
    times = [key for key in _keys(document) if key.endswith("_us")]
    assert times
    assert all("predicted" in key for key in times)


def _keys(value: object) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(key for entry in value.values() for key in _keys(entry))]
    return [key for entry in value for key in _keys(entry)] if isinstance(value, list) else []


def test_assumptions_are_the_constants_that_matter() -> None:
    phased = set(assumptions(CONSTANTS, PUBLISHED, Plan(Mode.FUSED_SDMA, Tile(128, 256), 8)))
    assert phased == {"put_hidden_share"}
    beside = Plan(Mode.FUSED_SDMA, Tile(128, 256), 8, tail=Tail.BESIDE)
    four = replace(PUBLISHED, world=4, wire=Wire.FP8)
    assert set(assumptions(CONSTANTS, four, beside)) == {
        "beside_us",
        "epilogue_links_share",
        "few_links_ratio",
        "fp8_scatter_share",
        "put_hidden_share",
        "stream_signal_us",
    }


def test_a_sweep_finds_where_the_mode_changes() -> None:
    rows = sweep(CONSTANTS, replace(PUBLISHED, m=5120))
    assert [row.m for row in rows] == sorted({row.m for row in rows})
    assert rows[-1].m == 5120
    changes = crossovers(rows)
    assert changes[0] == (1, "split-lsa")
    assert changes[-1][1] == "fused-sdma"
    where = [row.m for row in rows]
    for m, mode in changes[1:]:
        before = rows[where.index(m) - 1]
        assert before.mode != mode
        assert m - before.m <= 128
    assert [row.m for row in sweep(CONSTANTS, PUBLISHED, [64, 2048])] == [64, 2048]


@settings(max_examples=6)
@given(st.sampled_from(Quant), st.integers(2, 8))
def test_auto_time_is_monotone_in_the_wire(quant: Quant, world: int) -> None:
    """Each narrower wire has fewer bytes; where a mode has both, the best time does not rise at large M."""
    times = [choose(CONSTANTS, Layer(16384, 7168, 2048, world, quant, wire)).chosen.expected_us for wire in Wire]
    assert times == sorted(times, reverse=True)
