# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The benchmark card: nothing unverified, nothing from another state, and no time without its label."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmark import card as script
from mori_gemm_ar.model import Layer, Quant, Wire, load, load_records
from mori_gemm_ar.model.accuracy import held_out_error
from mori_gemm_ar.model.card import Card, CardRow, Status, card, reason_not_comparable
from mori_gemm_ar.model.results import state_of
from tests.unit.model_samples import PUBLISHED, write_log

SOFTWARE = {"git_commit": "abc", "versions": {"torch": "2"}}
STATE = state_of(SOFTWARE)
GOOD: dict[str, Any] = {
    "mode": "fused-sdma",
    "wire": "bf16",
    "validated": True,
    "rel_l2": 2.35e-3,
    "device": "AMD Instinct MI355X",
    "time_us": 1150.25,
    "m": 16384,
    "n": 7168,
    "k": 2048,
    "world_size": 8,
    "quant": "blockscale",
    **SOFTWARE,
}


def make(*results: dict[str, Any], layer: Layer = PUBLISHED) -> Card:
    constants = load()
    return card(constants, held_out_error(constants, load_records()), layer, results, STATE)


def row_of(page: Card, name: str, wire: str = "bf16") -> CardRow:
    (row,) = [row for row in page.rows if (row.name, row.wire) == (name, wire) and row.status is not Status.REFUSED]
    return row


def test_without_results_every_time_is_marked_predicted() -> None:
    page = make()
    assert {row.status for row in page.rows} == {Status.PREDICTED}
    assert {(row.name, row.wire) for row in page.rows} >= {
        ("split-lsa", "bf16"),
        ("split-sdma", "bf16"),
        ("fused-sdma", "bf16"),
        ("fused-lsa", "bf16"),
        ("fused-sdma", "fp8-gather"),
        ("fused-sdma", "fp8"),
    }
    assert all(row.cell.endswith("(predicted)") and row.reason for row in page.rows)
    text = page.to_markdown()
    assert f"0 of {len(page.rows)} times measured" in text
    assert str(held_out_error(load(), load_records())) in text
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert all("(predicted)" in line for line in lines)


def test_a_verified_timed_row_is_a_bare_number() -> None:
    page = make(GOOD)
    row = row_of(page, "fused-sdma")
    assert (row.status, row.measured_us, row.cell) == (Status.MEASURED, 1150.25, "1150.2")
    assert row.predicted_us == pytest.approx(1148.8, rel=0.02)
    assert f"1 of {len(page.rows)} times measured" in page.header


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"validated": False, "failure": "y[0, 0]=1 must be 2"}, "validated=False must be true; y[0, 0]=1 must be 2"),
        ({"validated": None}, "validated=None must be true"),
        ({"validated": 1}, "validated=1 must be true"),
        ({"git_commit": "def"}, "software="),
        ({"versions": {"torch": "3"}}, "software="),
        ({"m": 8192}, "m=8192 must be 16384"),
        ({"n": 5120}, "n=5120 must be 7168"),
        ({"k": 1024}, "k=1024 must be 2048"),
        ({"world_size": 4}, "world=4 must be 8"),
        ({"quant": "ptpc"}, "quant='ptpc' must be 'blockscale'"),
    ],
)
def test_a_row_that_may_not_be_compared_is_refused(change: dict[str, Any], reason: str) -> None:
    result = {**GOOD, **change}
    assert str(reason_not_comparable(result, PUBLISHED, STATE)).startswith(reason)
    page = make(result)
    (refused,) = [row for row in page.rows if row.status is Status.REFUSED]
    assert (refused.cell, refused.measured_us) == ("-", None)
    assert refused.reason.startswith(reason)
    assert row_of(page, "fused-sdma").status is Status.PREDICTED


def test_an_emulated_row_verifies_and_times_nothing() -> None:
    for result in ({**GOOD, "time_us": None}, {**GOOD, "device": "emulated"}, {**GOOD, "m": 64, "time_us": None}):
        row = row_of(make(result), "fused-sdma")
        assert (row.status, row.measured_us) == (Status.VERIFIED, None)
        assert row.cell.endswith("(predicted)")
        assert row.reason.startswith("verified at [")


def test_an_all_reduce_row_has_no_gemm_to_agree_on() -> None:
    result = {"benchmark": "all_reduce", "m": 16384, "n": 7168, "world_size": 8, "time_us": 1030.0}
    page = make({**result, "validated": True, "device": "MI355X", **SOFTWARE})
    row = row_of(page, "all-reduce alone, lsa")
    assert row.status is Status.MEASURED
    assert "27" not in page.to_markdown().split(row.name)[1].split("|")[3]


@pytest.mark.parametrize(
    ("change", "name", "wire"),
    [
        ({"resolved": {"backend": "sdma", "wire": "exact"}}, "all-reduce alone, sdma", "bf16"),
        ({"resolved": {"backend": "lsa", "wire": "fp8"}}, "all-reduce alone, lsa", "fp8"),
        ({"benchmark": "all_reduce_baseline", "backend": "nccl"}, "all-reduce alone, nccl", "bf16"),
    ],
)
def test_an_all_reduce_row_stands_where_it_really_ran(change: dict[str, Any], name: str, wire: str) -> None:
    result = {"benchmark": "all_reduce", "m": 16384, "n": 7168, "world_size": 8, "time_us": 1030.0}
    page = make({**result, "validated": True, "device": "MI355X", **SOFTWARE, **change})
    assert row_of(page, name, wire).status is Status.MEASURED
    assert [row.name for row in page.rows if row.status is Status.MEASURED] == [name]


def test_a_baseline_that_declined_says_why() -> None:
    page = make({"benchmark": "all_reduce_baseline", "backend": "aiter", "reason": "not importable", **SOFTWARE})
    (refused,) = [row for row in page.rows if row.status is Status.REFUSED]
    assert (refused.name, refused.measured_us) == ("all-reduce alone, aiter", None)
    assert refused.reason.endswith("not importable")


def test_a_baseline_without_a_formula_has_no_time_until_it_is_measured() -> None:
    name = "torch matmul"
    verified = row_of(make({**GOOD, "mode": name, "time_us": None}), name)
    assert (verified.status, verified.cell) == (Status.VERIFIED, "-")
    assert row_of(make({**GOOD, "mode": name}), name).cell == "1150.2"


def test_json_agrees_with_the_table() -> None:
    page = make(GOOD)
    document = json.loads(json.dumps(page.to_dict(), allow_nan=False))
    assert len(document["rows"]) == len(page.rows)
    assert document["header"] == page.header
    for row in document["rows"]:
        assert (row["measured_us"] is not None) == (row["status"] == "measured")


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("m", [1, 512, 4200])
def test_any_layer_has_a_card(world: int, m: int) -> None:
    page = make(layer=Layer(m, 5120, 2048, world, Quant.MXFP8))
    assert page.rows
    assert all((row.predicted_us or 0) > 0 for row in page.rows)
    wires = {row.wire for row in page.rows}
    assert wires == ({wire.value for wire in Wire} if world > 1 else {"bf16"})


# --- the script ---


def test_the_tolerance_belongs_to_the_format() -> None:
    """Just above what bf16 costs, 2.35e-3 at two ranks; grows with the roundings of more ranks."""
    assert 2.35e-3 < script.tolerance(2) < 1.35 * 2.35e-3
    assert [script.tolerance(w) for w in range(2, 9)] == sorted(script.tolerance(w) for w in range(2, 9))


def test_torch_is_verified_on_this_machine() -> None:
    row = script.torch_row(PUBLISHED, 2)
    assert row["validated"], row["failure"]
    assert 1e-3 < row["rel_l2"] <= script.tolerance(row["world_size"])
    if row["time_us"] is None:
        assert (row["device"], row["m"]) == ("cpu, gloo", 512)


def test_the_script_prints_a_card_without_running_anything(tmp_path: Path) -> None:
    rows, json_file, markdown = (tmp_path / name for name in ("bench.log", "card.json", "card.md"))
    good = {**GOOD, **script.state()}
    write_log(tmp_path, [good, {**good, "m": 8192}])
    words = ["--no-run", "--rows", str(rows), "--json", str(json_file), "--markdown", str(markdown)]
    result = CliRunner().invoke(script.app, words)
    assert result.exit_code == 0, result.output
    assert markdown.read_text(encoding="utf-8") in result.output
    statuses = [row["status"] for row in json.loads(json_file.read_text(encoding="utf-8"))["rows"]]
    assert (statuses.count("measured"), statuses.count("refused")) == (1, 1)
    assert "mori.ops.gemm_ar: not run" in result.output


def test_the_script_refuses_a_layer_that_cannot_be() -> None:
    result = CliRunner().invoke(script.app, ["--no-run", "--world", "9"])
    assert result.exit_code == 2
    assert "world=9 must be one of 1..8" in result.output


def test_a_row_that_does_not_verify_fails_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        script, "torch_row", lambda *_: {**GOOD, **script.state(), "validated": False, "failure": "off"}
    )
    monkeypatch.setattr(script, "emulated_row", lambda *_: {**GOOD, **script.state(), "time_us": None})
    result = CliRunner().invoke(script.app, [])
    assert result.exit_code == 1
    assert "refused" in result.output
