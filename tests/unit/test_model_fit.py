# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Calibration: the solver, a fit of a user's own rows, and what may not calibrate."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.model import (
    Layer,
    Mode,
    Plan,
    Quant,
    Role,
    Tile,
    fit,
    fitted_constants,
    load,
    load_records,
)
from mori_gemm_ar.model.calibrate import STAGES
from mori_gemm_ar.model.leastsq import solve
from mori_gemm_ar.model.modes import default_plan
from mori_gemm_ar.model.replay import predict_record
from mori_gemm_ar.model.results import read_results, readings_of, records_of
from mori_gemm_ar.model.tiles import TILES
from tests.unit.model_samples import ALTERED, V, altered, good, own_rows, row, write_log


@given(st.lists(st.floats(0.5, 50), min_size=2, max_size=4), st.lists(st.floats(1, 9), min_size=8, max_size=8))
def test_the_solver_finds_a_linear_law(truth: list[float], points: list[float]) -> None:
    rows = [[(x + 0.37 * i) ** power for power in range(len(truth))] for i, x in enumerate(points)]
    times = [sum(a * b for a, b in zip(row, truth, strict=True)) for row in rows]

    def residuals(p: Any) -> list[float]:
        return [
            sum(a * b for a, b in zip(row, p, strict=True)) / time - 1 for row, time in zip(rows, times, strict=True)
        ]

    solution = solve(residuals, [1.0] * len(truth))
    if not solution.undetermined:
        assert max(abs(r) for r in residuals(solution.values)) < 1e-4


def test_the_solver_names_what_no_row_tells_apart() -> None:
    def residuals(p: Any) -> list[float]:
        return [(p[0] + p[1]) * x / (3 * x) - 1 for x in (1.0, 2.0, 5.0)]

    solution = solve(residuals, [1.0, 1.5])
    assert solution.undetermined == (1,)
    assert solution.values == pytest.approx((1.5, 1.5))
    assert solve(lambda p: [p[0] - 2.0 + 0 * p[1]], [1.0, 7.0]).values == pytest.approx((2.0, 7.0))


def test_the_solver_keeps_parameters_at_zero_or_above() -> None:
    assert solve(lambda p: [p[0] + 1.0], [0.5]).values == (0.0,)


def test_a_fit_starts_anywhere_and_ends_in_the_same_place() -> None:
    constants = load()
    spoilt = tuple(
        replace(c, value=min(c.value * 1.3, 1.0) if c.unit == "share" else c.value * 1.3)
        if c.confidence.value == "fitted"
        else c
        for c in constants.constants
    )
    again, _ = fit(replace(constants, constants=spoilt), load_records().rows)
    for stage in STAGES:
        for name in stage.constants:
            assert getattr(again, name) == pytest.approx(getattr(V, name), rel=2e-3), name


def test_a_fit_has_more_rows_than_constants() -> None:
    _, results = fit(load(), load_records().rows)
    assert all(result.freedom >= 0 for result in results)
    assert sum(result.freedom for result in results) > 60
    assert all(row.role is Role.FIT for result in results for row in result.rows)


# --- a user's own rows ---


def test_own_rows_give_back_the_constants_that_made_them(tmp_path: Path) -> None:
    write_log(tmp_path, list(own_rows(altered())))
    records = records_of(read_results(tmp_path), load())
    assert {record.role for record in records} == {Role.FIT}
    fitted, results = fit(load(), records)
    lost = {name for result in results for name in result.undetermined}
    assert not lost & ALTERED.keys()
    for name, factor in ALTERED.items():
        assert getattr(fitted, name) == pytest.approx(getattr(V, name) * factor, rel=0.02), name
    # What no row speaks of keeps its value: other recipes, other libraries.
    for name in ("wave_k_mxfp8_us", "aiter_ar_us", "release_agent_us"):
        assert getattr(fitted, name) == getattr(V, name)
    own = fitted_constants(load(), results, "own rows")
    assert own.fingerprint != load().fingerprint


def test_one_row_moves_one_constant_and_says_what_it_kept(tmp_path: Path) -> None:
    write_log(
        tmp_path, [row(altered(), Layer(4096, 7168, 2048, 1, Quant.BLOCKSCALE), Plan(Mode.GEMM_ONLY, Tile(128, 256)))]
    )
    _, results = fit(load(), records_of(read_results(tmp_path), load()))
    (gemm,) = results
    assert len(gemm.undetermined) >= len(gemm.stage.constants) - 2
    assert gemm.freedom >= 0


def test_rows_that_may_not_calibrate_keep_their_reason(tmp_path: Path) -> None:
    base = row(V, Layer(4096, 7168, 2048, 8, Quant.BLOCKSCALE), default_plan(Mode.SPLIT_SDMA, Tile(128, 256)))
    bad = [
        {**base, "validated": False},
        {**base, "time_us": None},
        {**base, "device": "emulated"},
        {**base, "time_us": -3.0},
        {**base, "time_us": True},
        {**base, "mode": "warp"},
        {**base, "m": None},
        {**base, "quant": "int4"},
    ]
    write_log(tmp_path, bad)
    records = [record for record in records_of(read_results(tmp_path), load()) if record.what == "end_to_end"]
    assert [record.role for record in records] == [Role.EXCLUDED] * len(bad)
    reasons = [str(record.reason) for record in records]
    assert reasons[:3] == ["not validated: never calibrates", "no time of a GPU", "no time of a GPU"]
    assert reasons[5].startswith("no formula: mode='warp' must be one of")
    values, results = fit(load(), records)
    assert (values, results) == (V, ())


def test_all_reduces_calibrate_what_really_ran() -> None:
    """By the transport of `resolved`; a lossy wire and a library without a formula calibrate nothing."""
    base = {**good(), "benchmark": "all_reduce", "m": 1024, "n": 7168, "world_size": 8, "time_us": 90.0}
    other = {**base, "benchmark": "all_reduce_baseline"}
    rows = [
        {**base, "resolved": {"backend": "lsa", "stage": 2, "wire": "exact", "gather": "interleaved"}},
        {**base, "resolved": {"backend": "sdma", "stage": 2, "wire": "exact", "gather": "copied"}},
        {**base, "resolved": {"backend": "lsa", "stage": 2, "wire": "fp8", "gather": "interleaved"}},
        {**other, "backend": "aiter"},
        {**other, "backend": "nccl"},
    ]
    records = records_of(rows, load())
    assert [record.mode for record in records] == ["lsa-ar", "sdma-ar", "lsa-ar", "aiter-ar", "nccl-ar"]
    assert [record.role is Role.FIT for record in records] == [True, True, False, True, False]
    assert {record.wire for record in records[:2]} == {None}
    assert records[2].reason == "no formula: an all-reduce with wire='fp8'"


def test_rows_of_two_states_are_refused(tmp_path: Path) -> None:
    rows = list(own_rows(V))[:2]
    write_log(tmp_path, [rows[0], {**rows[1], "git_commit": "def"}])
    with pytest.raises(ConfigError, match=r"must equal .* fit each state apart"):
        records_of(read_results(tmp_path), load())


@pytest.mark.parametrize("shape", ["object", "list", "results"])
def test_rows_are_found_in_json_files_too(tmp_path: Path, shape: str) -> None:
    rows = list(own_rows(V))[:1]
    document: Any = {"object": rows[0], "list": rows, "results": {"results": rows}}[shape]
    (tmp_path / "one.json").write_text(json.dumps(document), encoding="utf-8")
    assert read_results(tmp_path) == rows
    assert read_results(tmp_path / "one.json") == rows


def test_a_place_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing here", encoding="utf-8")
    (tmp_path / "rows.bin").write_text("RESULT_JSON {}", encoding="utf-8")
    for place in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match="from="):
            read_results(place)


def test_a_microbenchmark_names_a_constant_directly(tmp_path: Path) -> None:
    reading = {**good(), "constant": "put_hidden_share", "value": 0.4, "unit": "share"}
    write_log(tmp_path, [reading, {**reading, "validated": False, "value": 0.9}])
    rows = read_results(tmp_path)
    assert readings_of(rows) == {"put_hidden_share": (0.4, "share")}
    assert records_of(rows, load()) == ()


@settings(max_examples=20)
@given(st.sampled_from(Quant), st.sampled_from((2, 4, 8)), st.sampled_from((1024, 4096, 16384)))
def test_a_row_is_predicted_as_the_layer_it_came_from(quant: Quant, world: int, m: int) -> None:
    layer = Layer(m, 5120, 2048, world, quant)
    plan = default_plan(Mode.SPLIT_SDMA, TILES[quant][0])
    for record in records_of([row(V, layer, plan)], load()):
        assert predict_record(V, record) == pytest.approx(record.value, rel=1e-9), record.phase
