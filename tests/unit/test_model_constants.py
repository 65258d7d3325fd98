# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The constants file: read whole, or refused with the field and the unit that it must have."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.model import Case, Constants, Values, dump, fit, fitted_constants, load, load_records
from mori_gemm_ar.model.constants import SHIPPED, Confidence, parse


@pytest.fixture
def document() -> dict[str, Any]:
    """The shipped file, decoded, to be spoilt."""
    return dict(json.loads(SHIPPED.read_text(encoding="utf-8")))


def test_every_constant_has_its_unit_its_source_and_a_line() -> None:
    constants = load()
    assert [c.name for c in constants.constants] == [field.name for field in fields(Values)]
    known = dict(constants.sources)
    for constant in constants.constants:
        assert constant.source
        assert constant.lines or constant.confidence is Confidence.ASSUMED, constant.name
        assert {line.partition(":")[0] for line in constant.lines} <= known.keys(), constant.name


def test_an_unmeasured_constant_has_two_cases_and_a_measured_one_has_none() -> None:
    constants = load()
    assert len(constants.unmeasured) >= 5
    for constant in constants.constants:
        cases = {constant.at(case) for case in Case}
        assert len(cases) > 1 if constant.confidence is Confidence.ASSUMED else cases == {constant.value}


def test_the_file_survives_a_round_trip(tmp_path: Path) -> None:
    constants = load()
    file = tmp_path / "machine.json"
    file.write_text(dump(constants), encoding="utf-8")
    assert load(file) == constants
    assert load(file).fingerprint == constants.fingerprint
    assert SHIPPED.read_text(encoding="utf-8") == dump(constants)


def test_the_shipped_values_are_what_the_fit_gives() -> None:
    constants = load()
    _, results = fit(constants, load_records().rows)
    again = fitted_constants(constants, results, "any")
    for name in (field.name for field in fields(Values)):
        assert getattr(again.at(Case.EXPECTED), name) == pytest.approx(
            getattr(constants.at(Case.EXPECTED), name), rel=1e-4
        )


def test_a_changed_number_changes_the_fingerprint(document: dict[str, Any]) -> None:
    document["constants"]["sdma_rate_gbs"]["value"] *= 1.0001
    assert parse(document).fingerprint != load().fingerprint


Spoil = Callable[[dict[str, Any]], object]
BROKEN: list[tuple[str, Spoil, str]] = [
    ("foreign schema", lambda d: d.update(schema="other"), "schema='other' must be 'mori_gemm_ar.machine'"),
    ("later version", lambda d: d.update(version=99), "version=99 must be 1"),
    ("no machine", lambda d: d.pop("machine"), "machine=None must be a non-empty text"),
    ("no constants", lambda d: d.pop("constants"), "constants=None must be a JSON object"),
    ("no sources", lambda d: d.pop("sources"), "sources=None must be a JSON object"),
    (
        "missing",
        lambda d: d["constants"].pop("sdma_rate_gbs"),
        "constants.sdma_rate_gbs must be there, a number in GB/s",
    ),
    (
        "unknown",
        lambda d: d["constants"].update(x=d["constants"]["barrier_us"]),
        "constants.x must be one of gemm_base_us",
    ),
    (
        "wrong unit",
        lambda d: d["constants"]["barrier_us"].update(unit="ms"),
        "constants.barrier_us.unit='ms' must be 'us'",
    ),
    (
        "text",
        lambda d: d["constants"]["reduce_rate_tbs"].update(value="6.5"),
        "constants.reduce_rate_tbs.value='6.5' must be a finite number in TB/s",
    ),
    (
        "bool",
        lambda d: d["constants"]["barrier_us"].update(value=True),
        "constants.barrier_us.value=True must be a finite number in us",
    ),
    (
        "NaN",
        lambda d: d["constants"]["barrier_us"].update(value=float("nan")),
        "constants.barrier_us.value=nan must be a finite number in us",
    ),
    (
        "negative",
        lambda d: d["constants"]["barrier_us"].update(value=-1.0),
        "constants.barrier_us.value=-1.0 must be 0.0 to 1000.0 us",
    ),
    (
        "share above one",
        lambda d: d["constants"]["wave_partial_share"].update(value=1.5),
        "constants.wave_partial_share.value=1.5 must be 0.0 to 1.0 share",
    ),
    (
        "zero rate",
        lambda d: d["constants"]["sdma_rate_gbs"].update(value=0),
        "constants.sdma_rate_gbs.value=0 must be 0.01 to 10000.0 GB/s",
    ),
    (
        "assumed without cases",
        lambda d: d["constants"]["beside_us"].pop("pessimistic"),
        "constants.beside_us.pessimistic=None must be a number in us",
    ),
    (
        "measured with a case",
        lambda d: d["constants"]["barrier_us"].update(optimistic=1.0),
        "constants.barrier_us.optimistic=1.0 must be left out",
    ),
    (
        "expected outside",
        lambda d: d["constants"]["beside_us"].update(value=500.0),
        "constants.beside_us.value=500.0 must lie between its two cases",
    ),
    (
        "confidence",
        lambda d: d["constants"]["barrier_us"].update(confidence="sure"),
        "constants.barrier_us.confidence='sure' must be one of fitted",
    ),
    ("no source", lambda d: d["constants"]["barrier_us"].pop("source"), "constants.barrier_us.source=None must be"),
    ("lines", lambda d: d["constants"]["barrier_us"].update(lines=[4]), "constants.barrier_us.lines=[4] must be"),
    ("more", lambda d: d["constants"]["barrier_us"].update(note="x"), "constants.barrier_us.note must not be there"),
    ("override", lambda d: d["overrides"].append({"m_low": 1}), "overrides.0.m_high=None must be of type int"),
]


@pytest.mark.parametrize(("spoil", "message"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_a_broken_file_is_refused_by_field_and_unit(document: dict[str, Any], spoil: Spoil, message: str) -> None:
    spoil(document)
    with pytest.raises(ConfigError) as error:
        parse(document)
    assert str(error.value).startswith(message)


def test_the_unspoilt_file_is_accepted(document: dict[str, Any]) -> None:
    assert isinstance(parse(document), Constants)


@pytest.mark.parametrize("text", ["", "{", "[]", '"mi355x"', "null"])
def test_a_file_that_holds_something_else_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "machine.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="must be"):
        load(file)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(ConfigError, match="must be a readable constants file"):
            load(path)
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="must be a readable constants file"):
        load(binary)
