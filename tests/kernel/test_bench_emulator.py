# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The emulator benchmark: what it prints and when it fails. Limits are held generously: CI machines are noisy."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from benchmark import bench_emulator, emulator_kernels
from mori_gemm_ar.errors import EmulatorError

GEMMS = (bench_emulator.GEMM, bench_emulator.BLOCKSCALE_GEMM)
GENEROUS = 8.0  # times the limit; the suite may share two cores


@pytest.fixture(scope="module")
def row() -> dict[str, Any]:
    """One quick measurement."""
    return bench_emulator.measure(repeats=1)


@pytest.fixture
def fixed(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], tuple[int, str, str]]:
    """Run the command line on the measured row with `within_limits` set."""

    def invoke(within: bool, *options: str) -> tuple[int, str, str]:
        monkeypatch.setattr(bench_emulator, "measure", lambda repeats: {**row, "within_limits": within})
        result = CliRunner().invoke(bench_emulator.app, options)
        return result.exit_code, result.stdout, result.stderr

    return invoke


def test_every_kernel_has_its_figures(row: dict[str, Any]) -> None:
    assert (row["device"], row["time_us"], row["repeats"]) == ("emulated", None, 1)
    assert row["reference"]["gflops"] > 0
    assert "OPENBLAS_NUM_THREADS=1" in row["reference"]["how"]
    assert len(row["kernels"]) == 8
    assert {bench_emulator.SMALL, bench_emulator.LARGE, *GEMMS} < set(row["kernels"])
    for name, figures in row["kernels"].items():
        assert 0 < figures["best_s"] <= figures["median_s"], name
        assert figures["wave_instructions"] > 1000, name
        assert figures["wave_instructions_per_s"] == figures["wave_instructions"] / figures["best_s"], name
        assert figures["in_reference_products"] > 0, name
        assert (figures["of_reference"] is not None) is (figures["matmul_share"] > 0) is name.startswith(GEMMS)
        weak = name.endswith(bench_emulator.WEAK)
        assert (figures["of_functional"] is not None) is weak, name
    assert all(row["kernels"][name]["matmul_share"] < 1 for name in GEMMS)


def test_limits_within_reach(row: dict[str, Any]) -> None:
    assert len(row["limits"]) == len(bench_emulator.LIMITS) == 7
    for limit in bench_emulator.LIMITS:
        value = row["kernels"][limit.name][limit.field]
        near = value <= limit.bound * GENEROUS if limit.at_most else value >= limit.bound / GENEROUS
        assert near, f"{limit}: {value}"


def test_a_limit_that_cannot_hold_fails(row: dict[str, Any]) -> None:
    for field, bound, at_most in (("best_s", 0.0, True), ("of_reference", 1e9, False)):
        assert not bench_emulator.Limit(bench_emulator.GEMM, field, bound, at_most).holds(row["kernels"])


@pytest.mark.parametrize(
    ("within", "options", "expected"), [(True, ("--check",), 0), (False, ("--check",), 1), (False, (), 0)]
)
def test_exit_code(fixed: Any, within: bool, options: tuple[str, ...], expected: int) -> None:
    code, stdout, stderr = fixed(within, *options)
    assert code == expected
    assert len(stdout.splitlines()) == 1
    printed = json.loads(stdout.removeprefix("RESULT_JSON "))
    assert printed["within_limits"] is within
    for name in printed["kernels"]:
        assert all(word in stderr for word in name.split())
    assert "says nothing about a GPU" in stderr


def test_a_wrong_kernel_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 1 before anything is measured, whether limits are checked or not."""

    def wrong(repeats: int) -> None:
        emulator_kernels._require_close("sum", torch.ones(4), torch.ones(4).double() * 1.01, 2e-3)

    monkeypatch.setattr(bench_emulator, "measure", wrong)
    result = CliRunner().invoke(bench_emulator.app, [])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "sum: relative L2 error=9.901e-03 must be at most 2.0e-03" in result.stderr


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nothing_passes_as_close_that_is_not_a_number(value: float) -> None:
    with pytest.raises(EmulatorError, match="must be at most"):
        emulator_kernels._require_close("sum", torch.tensor([value]), torch.ones(1).double(), 1.0)
