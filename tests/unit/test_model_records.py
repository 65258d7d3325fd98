# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Published readings: every row has a role, roles carry the accuracy figures, racy rows never calibrate."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.model import Role, load_records
from mori_gemm_ar.model.calibrate import STAGES
from mori_gemm_ar.model.records import SHIPPED, parse_records
from mori_gemm_ar.model.replay import record_layer, record_plan


def test_every_row_is_used_or_has_a_reason() -> None:
    records = load_records()
    assert len({row.id for row in records.rows}) == len(records.rows) > 1000
    for row in records.rows:
        assert row.reason if row.role is Role.EXCLUDED else row.series, row.id
        assert row.source in records.sources, row.id
        assert row.state is None or row.state in records.states, row.id


def test_rows_that_are_wrong_or_racy_never_calibrate() -> None:
    rows = load_records().rows
    assert Counter(row.correct for row in rows)["racy"] > 50
    fitted = [row for row in rows if row.role is Role.FIT]
    assert fitted
    assert not [row.id for row in fitted if row.correct not in (True, None)]
    # One racy time is held out; it is compared and never used.
    assert [row.role for row in rows if row.correct == "racy" and row.role is not Role.EXCLUDED] == [Role.HELD_OUT]


def test_end_to_end_roles_are_the_published_split() -> None:
    """Modes and lines of the layers that were fixed as fit and as held out before anything was calibrated."""
    rows = load_records().series("end-to-end")
    lines = {role: sorted(row.line for row in rows if row.role is role) for role in Role}
    assert lines[Role.FIT] == [248, 357, 845, 847, 905]
    assert lines[Role.HELD_OUT] == [337, 655, 725, 846, 854, 855, 856, 874, 951, 952, 953, 954]
    assert not lines[Role.EXTERNAL]
    external = load_records().series("external")
    assert Counter((row.mode, row.world, row.role) for row in external) == {
        ("split-sdma", 8, Role.EXTERNAL): 3,
        ("fused-sdma", 8, Role.EXTERNAL): 3,
        ("split-sdma", 4, Role.EXTERNAL): 3,
        ("fused-sdma", 4, Role.EXTERNAL): 3,
    }


@pytest.mark.parametrize(
    ("mode", "fit_m", "held_out_m"),
    [
        ("lsa-ar", {64, 512, 2048, 8192}, {128, 1024, 4096}),
        ("sdma-ar", {512, 2048, 8192}, {64, 4096}),
        ("aiter-ar", {512, 2048, 8192}, {1024, 4096}),
    ],
)
def test_all_reduce_roles_are_the_published_split(mode: str, fit_m: set[int], held_out_m: set[int]) -> None:
    rows = [row for row in load_records().series("all-reduce") if row.mode == mode]
    assert {row.m for row in rows if row.role is Role.FIT} == fit_m
    assert {row.m for row in rows if row.role is Role.HELD_OUT} == held_out_m


def test_no_held_out_configuration_is_fitted() -> None:
    """A row that repeats a held-out layer would bring its time into the fit by the back door."""
    rows = load_records().rows
    layers = [
        row for row in rows if row.what == "end_to_end" and not row.mode.endswith("-ar") and row.mode != "gemm-only"
    ]
    keys = {
        row.id: (record_layer(row), record_plan(row), row.c_store) for row in layers if row.role is not Role.EXCLUDED
    }
    held = {keys[row.id] for row in layers if row.role in (Role.HELD_OUT, Role.EXTERNAL)}
    fitted = {keys[row.id]: row.id for row in layers if row.role is Role.FIT}
    assert held
    assert fitted
    assert not held & fitted.keys(), [fitted[key] for key in held & fitted.keys()]


def test_only_rows_of_role_fit_enter_a_stage() -> None:
    taken = {row.id for row in load_records().rows for stage in STAGES if row.role is Role.FIT and stage.takes(row)}
    held = {row.id for row in load_records().rows if row.role in (Role.HELD_OUT, Role.EXTERNAL)}
    assert len(taken) > 80
    assert not taken & held


Spoil = Callable[[dict[str, Any]], object]


def _cell(row: int, column: str, value: object) -> Spoil:
    return lambda d: d["rows"][row].__setitem__(d["columns"].index(column), value)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: d.update(schema="x"), "schema must be"),
        (lambda d: d.update(columns=["id"]), "columns="),
        (_cell(0, "role", "perhaps"), "must be one of fit, held_out, external, excluded"),
        (_cell(0, "reason", None), "must say why the row is excluded"),
    ],
)
def test_a_broken_file_is_refused(spoil: Spoil, message: str) -> None:
    document = json.loads(SHIPPED.read_text(encoding="utf-8"))
    assert document["rows"][0][document["columns"].index("role")] == "excluded"
    spoil(document)
    with pytest.raises(ConfigError, match=message):
        parse_records(document)


def test_a_racy_row_with_role_fit_is_refused() -> None:
    document = json.loads(SHIPPED.read_text(encoding="utf-8"))
    role, correct = (document["columns"].index(name) for name in ("role", "correct"))
    row = next(row for row in document["rows"] if row[role] == "fit")
    row[correct] = "racy"
    with pytest.raises(ConfigError, match="must not be given to a row with correct='racy'"):
        parse_records(document)
