# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The benchmark of a call's host time: what it counts, and that its HIP sees whole launches."""

from __future__ import annotations

import ctypes

import pytest
from typer.testing import CliRunner

from benchmark import bench_host
from benchmark.bench_host import Case, NoOpHip, measure
from mori_gemm_ar.errors import HipError


def test_a_row_counts_launches_and_relates_the_call_to_them() -> None:
    row = measure(Case(m=256, calls=3, repeats=2))
    assert row["mode"] == "fused-sdma" and row["launches"] == 3  # GEMM, drain, reduce
    assert 0 < row["checks_us"] < row["op_call_us"] and row["launch_us"] > 0
    assert row["op_call_of_launch"] == pytest.approx(row["op_call_us"] / row["launch_us"])
    limits = row["op_call_us"] <= bench_host.MAX_CALL_US and row["op_call_of_launch"] <= bench_host.MAX_SHARE
    assert row["limits_hold"] == limits


def test_the_hip_that_does_nothing_gets_what_hip_would_get() -> None:
    """A launch whose C function fails raises, so the calls that are timed do reach it."""
    launches = NoOpHip().prepare()
    launches.add(bench_host._HANDLE, (7, 1, 1), (512, 1, 1), b"12345678", "kernel")
    launches.run(1)
    assert len(launches) == 1 and launches.arguments[0].raw == b"12345678"

    seen = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *(ctypes.c_uint,) * 7, *(ctypes.c_void_p,) * 3)
    def fails(*arguments: object) -> int:
        seen.append(arguments)
        return 98

    class Hip(NoOpHip):
        def fail(self, name: str, code: int, about: str = "") -> None:
            raise HipError(f"{name} ({about}) failed with error {code}")

    broken = type(launches)(Hip(), fails)  # type: ignore[arg-type]
    broken.add(bench_host._HANDLE, (7, 1, 1), (512, 1, 1), b"12345678", "kernel")
    with pytest.raises(HipError, match=r"hipModuleLaunchKernel \(kernel\) failed with error 98"):
        broken.run(5)
    assert seen[0][:9] == (bench_host._HANDLE, 7, 1, 1, 512, 1, 1, 0, 5)


def test_the_command_fails_above_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_host, "MAX_CALL_US", 0.0)
    arguments = ["--m", "256", "--calls", "2", "--repeats", "1"]
    assert CliRunner().invoke(bench_host.app, arguments).exit_code == 0
    assert CliRunner().invoke(bench_host.app, [*arguments, "--check"]).exit_code == 1
    assert CliRunner().invoke(bench_host.app, [*arguments, "--mode", "gemm-only"]).exit_code == 2
