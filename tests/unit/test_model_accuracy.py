# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""How good the model is, computed from the published rows, and that a wrong model would not pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mori_gemm_ar.model import Case, Constants, Quant, Report, Role, Wire, check, choose, load, load_records
from mori_gemm_ar.model.accuracy import GATES, held_out_error, mean_absolute, predicted_rows
from tests.unit.model_samples import PUBLISHED


@pytest.fixture(scope="module")
def report() -> Report:
    return check(load(), load_records())


def test_the_gates_hold(report: Report) -> None:
    assert [gate.name for gate in report.gates] == [name for name, _, _ in GATES]
    for gate in report.gates:
        assert gate.passed, f"{gate.name}: {gate.percent:.2f} % of {gate.count} rows, at most {gate.limit} %"
    # What each gate is about: 9 and 12 held-out layers, 12 external ones, 5 all-reduces, one layer twice.
    assert [gate.count for gate in report.gates] == [9, 12, 12, 5, 1, 1]
    assert [gate.limit for gate in report.gates] == [1.6, 3.5, 2.1, 2.2, 2.0, 5.0]


def test_every_row_is_predicted_or_excluded(report: Report) -> None:
    records = load_records()
    assert len(report.rows) + sum(count for _, count in report.excluded) == len(records.rows)
    assert all(row.predicted > 0 for row in report.rows)


def test_weak_spots_of_the_first_formulas_are_better() -> None:
    """Direct peer stores, four ranks, and all-reduces below 512 rows: largest error of a row, percent."""
    rows = predicted_rows(load(), load_records())
    lsa = [row for row in rows if row.record.series == "end-to-end" and row.record.mode == "fused-lsa"]
    four = [row for row in rows if row.record.series == "external" and row.record.world == 4]
    small = [row for row in rows if row.record.mode == "lsa-ar" and (row.record.m or 0) < 512]
    for members, limit in ((lsa, 5.5), (four, 3.5), (small, 4.5)):
        assert len(members) >= 2
        assert max(abs(100 * row.error) for row in members) <= limit


def test_four_ranks_rank_fused_and_split_layers_as_measured() -> None:
    """The gain of fusing grows with M from next to nothing; the model must say the same."""
    found = [row for row in predicted_rows(load(), load_records()) if row.record.series == "external"]
    rows = {(row.record.mode, row.record.m): row for row in found if row.record.world == 4}
    gains = []
    for m in (4096, 8192, 16384):
        split, fused = rows["split-sdma", m], rows["fused-sdma", m]
        gains.append((1 - fused.record.value / split.record.value, 1 - fused.predicted / split.predicted))
    assert all(abs(measured - predicted) < 0.025 for measured, predicted in gains), gains
    assert gains == sorted(gains)


def test_leave_one_shape_out_covers_every_fitted_row(report: Report) -> None:
    used = [row for row in report.rows if row.stages]
    judged = [row for fold in report.folds for row in fold.rows]
    assert len(judged) + sum(fold.skipped for fold in report.folds) == len(used)
    assert len(judged) > 70
    assert mean_absolute(judged) < 6.0
    # A fold whose shape carries a constant alone says so instead of judging it.
    assert all(fold.undetermined for fold in report.folds if fold.skipped)


def test_the_stated_error_is_the_gate(report: Report) -> None:
    error = held_out_error(load(), load_records())
    assert error.percent == pytest.approx(report.gates[0].percent)
    assert error.percent_all == pytest.approx(report.gates[1].percent)
    assert f"{error.percent:.2f} %" in str(error)


@pytest.mark.parametrize(
    ("constant", "factor"),
    [("sdma_rate_gbs", 0.9), ("wave_k_blockscale_us", 2.0), ("lsa_rate_gbs", 1.2), ("pull_base_us", 0.0)],
)
def test_a_corrupt_constant_fails_a_gate(constant: str, factor: float) -> None:
    assert not check(_scaled(load(), constant, factor), load_records(), folds=False).passed


def _scaled(constants: Constants, name: str, factor: float) -> Constants:
    changed = tuple(replace(c, value=c.value * factor) if c.name == name else c for c in constants.constants)
    return replace(constants, constants=changed)


def test_a_gate_without_rows_fails() -> None:
    records = load_records()
    none = replace(records, rows=tuple(row for row in records.rows if row.role is Role.FIT))
    report = check(load(), none, folds=False)
    assert not any(gate.passed for gate in report.gates)


def test_the_published_layer() -> None:
    """fused-sdma, phased, and with the fp8 gather pulled: against the published rows, from the choice's own plan."""
    rows = {r.series: r.value for r in load_records().rows if r.source == "readme" and r.line == 604 and r.chunks == 8}
    bf16 = choose(load(), PUBLISHED).chosen
    assert bf16.plan.label == "fused-sdma, 8 chunks, gather pushed"
    assert bf16.expected_us == pytest.approx(rows["external"], rel=0.02)
    fp8 = choose(load(), replace(PUBLISHED, wire=Wire.FP8_GATHER)).chosen
    assert fp8.plan.label == "fused-sdma, 8 chunks, gather pulled"
    assert fp8.expected_us == pytest.approx(rows["external-fp8"], rel=0.05)


def test_the_gemm_alone_at_shapes_that_were_held_out() -> None:
    rows = [row for row in predicted_rows(load(), load_records()) if row.record.series == "gemm"]
    held = [row for row in rows if row.record.role is Role.HELD_OUT and row.record.quant != Quant.MXFP8.value]
    assert len(held) > 10
    assert mean_absolute(held) < 3.0


def test_measured_constants_do_not_depend_on_the_case() -> None:
    constants = load()
    measured = {c.name for c in constants.constants} - {c.name for c in constants.unmeasured}
    values = [constants.at(case) for case in Case]
    assert all(len({getattr(v, name) for v in values}) == 1 for name in measured)


def test_the_documentation_quotes_these_figures(report: Report) -> None:
    text = (Path(__file__).parents[2] / "docs" / "model.md").read_text(encoding="utf-8")
    table = [
        line for line in text.split("## How good it is")[1].split("`model check`")[0].splitlines() if line[:1] == "|"
    ]
    for line, gate in zip(table[2:], report.gates, strict=True):
        assert line.endswith(f"| {gate.count} | {gate.percent:.2f} % | {gate.limit:g} % |"), line
    judged = [row for fold in report.folds for row in fold.rows]
    skipped = sum(fold.skipped for fold in report.folds)
    quoted = f"gives {mean_absolute(judged):.1f} % over {len(judged)} rows; {skipped} rows"
    assert quoted in " ".join(text.split())
    used = sum(bool(row.stages) for row in report.rows)
    assert f"constants are fitted to {used} rows" in text
    assert f"`measurements.json`: {len(load_records().rows)} published readings" in text
