# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The GEMM benchmark: what it prints, and that it refuses to time a wrong product."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmark import bench_gemm
from benchmark.report import PREFIX
from mori_gemm_ar.gemm import GemmOp

SMALL = ("--m", "70", "--n", "48", "--k", "256", "--calls", "1", "--device", "emulated")


def run(*options: str) -> tuple[int, dict]:
    result = CliRunner().invoke(bench_gemm.app, [*SMALL, *options])
    lines = [line for line in result.stdout.splitlines() if line.startswith(PREFIX)]
    return result.exit_code, json.loads(lines[0].removeprefix(PREFIX)) if lines else {}


@pytest.mark.parametrize("quant", ["ptpc", "blockscale", "mxfp8"])
def test_a_row_is_checked_and_has_no_gpu_time(quant: str) -> None:
    status, row = run("--quant", quant, "--b-layout", "row")
    assert status == 0
    assert (row["validated"], row["device"], row["time_us"]) == (True, "emulated", None)
    assert row["rel_l2"] < bench_gemm.MAX_REL_L2
    assert row["emulated_wall_best_s"] > 0


def test_a_wrong_product_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = GemmOp.__call__
    monkeypatch.setattr(GemmOp, "__call__", lambda *operands: right(*operands) * 1.02)
    status, row = run()
    assert status == 1
    assert not row["validated"]
    assert "elements differ" in row["failure"]
    assert row["emulated_wall_s"] is None


def test_a_refused_shape_says_why() -> None:
    result = CliRunner().invoke(bench_gemm.app, ["--k", "100"])
    assert result.exit_code == 2
    assert "k=100 must be" in result.output
