# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The all-reduce benchmark: it validates what is right, refuses what is wrong, and prints one strict line."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from benchmark import all_reduce_cases, all_reduce_rank, bench_ar, report
from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.layout import DType, Stage
from mori_gemm_ar.runtime import LocalWorld

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmark" / "bench_ar.py"
FIELDS = {
    "benchmark", "validated", "failure", "rel_l2", "bitwise_equal_across_ranks", "digest", "calls_verified",
    "device", "time_us", "emulated_wall_s", "emulated_wall_best_s", "world_size", "m", "n", "dtype", "calls", "warmup",
    "seed", "requested", "resolved", "versions", "git_commit",
}  # fmt: skip
QUICK = ("--calls", "1", "--warmup", "1")
Call = Callable[..., torch.Tensor]


def strict_rows(stdout: str) -> list[dict[str, Any]]:
    """All lines of stdout, with the non-JSON words that Python accepts refused."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    lines = stdout.splitlines()
    assert all(line.startswith("RESULT_JSON ") for line in lines)
    return [json.loads(line.removeprefix("RESULT_JSON "), parse_constant=refuse) for line in lines]


def strict(stdout: str) -> dict[str, Any]:
    """The only line of stdout."""
    (row,) = strict_rows(stdout)
    assert set(row) == FIELDS
    return row


def invoke(*arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command line, in this process."""
    result = CliRunner().invoke(bench_ar.app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_validates(ranks: int, stage: int) -> None:
    code, stdout, stderr = invoke("--local-world", ranks, "--m", 64, "--n", 7168, "--stage", stage, *QUICK)
    assert code == 0, stderr
    row = strict(stdout)
    assert row["validated"] is True
    assert row["rel_l2"] == 0.0
    assert row["bitwise_equal_across_ranks"] is True
    assert (row["device"], row["time_us"]) == ("emulated", None)
    assert row["emulated_wall_s"] > 0
    assert (row["world_size"], row["m"], row["n"], row["dtype"]) == (ranks, 64, 7168, "bf16")
    assert row["requested"]["stage"] == row["resolved"]["stage"] == stage
    assert row["resolved"]["kernel"] == f"lsa_allreduce_w{ranks}_bf16_{stage}stage"
    assert row["requested"]["backend"] == "auto" and row["resolved"]["backend"] == "lsa"
    assert row["versions"]["torch"] == torch.__version__
    assert row["calls_verified"] == 2
    assert "says nothing" in stderr or "nothing ran on a GPU" in stderr


@pytest.mark.parametrize(
    ("options", "stage"),
    [
        (("--dtype", "fp16", "--in-place"), 1),
        (("--dtype", "fp32", "--zero-copy", "--stage", 1), 1),
        (("--in-place", "--zero-copy"), 2),
        (("--n", 0), 1),
    ],
)
def test_placements(options: tuple[object, ...], stage: int) -> None:
    """Ragged sizes; the automatic stage is resolved, and `requested` keeps what was asked."""
    code, stdout, stderr = invoke("--local-world", 3, "--m", 5, "--n", 7, "--seed", 11, *options, *QUICK)
    assert code == 0, stderr
    row = strict(stdout)
    assert row["validated"] is True
    assert row["rel_l2"] == 0.0
    assert row["resolved"]["stage"] == stage
    assert row["requested"]["stage"] == (1 if "--stage" in options else "auto")
    for name in ("in_place", "zero_copy"):
        asked = f"--{name.replace('_', '-')}" in options
        assert row["requested"][name] is row["resolved"][name] is asked


def corrupted(when: Callable[[AllReduceOp, int], bool], change: Callable[[torch.Tensor], None]) -> Call:
    """An op whose result `change` spoils on the chosen rank and call."""
    plain, calls = AllReduceOp.__call__, dict.fromkeys(range(8), 0)

    def call(self: AllReduceOp, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        result = plain(self, x, out)
        if when(self, calls[self.rank]):
            change(result)
        calls[self.rank] += 1
        return result

    return call


def spoil(result: torch.Tensor, value: float) -> None:
    result[1, 2] = value


@pytest.mark.parametrize("value", [100.0, math.nan, math.inf])
def test_one_wrong_element_fails(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """On one rank in the last timed call: exit 1, no time, the element named, and the line is still JSON."""
    wrong = corrupted(lambda op, call: op.rank == 1 and call == 2, lambda result: spoil(result, value))
    monkeypatch.setattr(AllReduceOp, "__call__", wrong)
    code, stdout, stderr = invoke("--local-world", 2, "--m", 4, "--n", 8, "--calls", 2, "--warmup", 1)
    row = strict(stdout)
    assert code == 1
    assert row["validated"] is False
    assert row["bitwise_equal_across_ranks"] is False
    assert (row["rel_l2"] or 1.0) > 0.1
    assert row["emulated_wall_s"] is None
    for part in ("call 2, rank 1 of 2", f"y[1, 2]={value}", "1 of 32 elements differ", "in_place=False"):
        assert part in row["failure"]
    assert "NO" in stderr


def test_a_zero_of_the_wrong_sign_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits are compared, not values: the error norm alone would be 0."""
    monkeypatch.setattr(all_reduce_cases, "data", lambda case, call, rank: torch.zeros(4, 8, dtype=torch.bfloat16))
    monkeypatch.setattr(AllReduceOp, "__call__", corrupted(lambda op, call: True, lambda result: spoil(result, -0.0)))
    all_reduce_cases.reference.cache_clear()
    code, stdout, _ = invoke("--local-world", 2, "--m", 4, "--n", 8)
    all_reduce_cases.reference.cache_clear()
    assert code == 1
    row = strict(stdout)
    assert row["calls_verified"] == 1, "nothing is timed after a failed check"
    assert row["bitwise_equal_across_ranks"] is True


def test_a_late_reader_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The input is overwritten at once: a rank that reads its peers' inputs after they returned reads NaN."""
    plain, inputs = AllReduceOp.__call__, {}

    def late(self: AllReduceOp, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        inputs[self.rank] = x
        plain(self, x, out)  # a meeting: all inputs are known behind it, and one rank goes on before the other
        return out.copy_(inputs[0].float() + inputs[1].float())

    monkeypatch.setattr(AllReduceOp, "__call__", late)
    code, stdout, _ = invoke("--local-world", 2, "--m", 4, "--n", 8)
    assert code == 1
    assert "y[0, 0]=nan must be" in strict(stdout)["failure"]


def test_a_failed_collective_is_a_failed_row(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = AllReduceOp.__call__

    def absent(self: AllReduceOp, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return x if self.rank == 1 else plain(self, x, out)

    monkeypatch.setattr(AllReduceOp, "__call__", absent)
    code, stdout, _ = invoke("--local-world", 2, "--m", 4, "--n", 8, "--timeout-s", 0.5)
    row = strict(stdout)
    assert code == 1
    assert row["validated"] is False
    assert "CollectiveTimeout: rank 0 waited 0.5 s for rank 1" in row["failure"]
    assert row["resolved"] is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "--local-world must be given"),
        (("--local-world", 9), "world=9 must be one of 1..8"),
        (("--local-world", 2, "--timeout-s", 0), "timeout_s=0.0 must be"),
        (("--local-world", 2, "--in-place", "--zero-copy", "--stage", 1), "must be Stage.TWO"),
        (("--local-world", 2, "--dtype", "fp8"), "fp8"),
        (("--local-world", 2, "--backend", "rccl"), "rccl"),
        (("--local-world", 2, "--wire", "FP8"), "FP8"),
        (("--local-world", 2, "--backend", "sdma", "--queues", 9), "queues=9 must be"),
        (("--local-world", 2, "--backend", "sdma", "--stage", 2), "only load and store has stages"),
        (("--local-world", 0), "--local-world"),
        (("--local-world", 2, "--calls", 0), "--calls"),
    ],
)
def test_bad_arguments(options: tuple[object, ...], text: str) -> None:
    code, stdout, stderr = invoke(*options)
    assert code == 2
    assert stdout == ""
    assert text in stderr


def test_every_rank_gets_the_same_row() -> None:
    """What a group of processes relies on: each of them knows the exit code."""
    case = all_reduce_cases.Case(3, 5, DType.FP16, Stage.TWO, calls=2, warmup=1)
    rows = LocalWorld(3).run(lambda rank: all_reduce_rank.measure(rank, case))
    assert rows[0]["validated"] is True
    assert rows[0] == rows[1] == rows[2]


def test_data_differs_in_every_call_and_rank() -> None:
    case = all_reduce_cases.Case(2, 3, DType.FP32)
    inputs = {tuple(all_reduce_cases.data(case, c, r).flatten().tolist()) for c in range(5) for r in range(8)}
    assert len(inputs) == 40


def test_script_in_a_process_of_its_own(tmp_path: Path) -> None:
    """From elsewhere, with a cold cache: one entry per configuration, not per rank."""
    command = [sys.executable, str(SCRIPT), "--local-world", "4", "--m", "128", "--n", "1024"]
    env = {**os.environ, "MORI_GEMM_AR_CACHE": str(tmp_path / "cache"), "OPENBLAS_NUM_THREADS": "8"}
    run = subprocess.run(command, cwd=tmp_path, env=env, text=True, capture_output=True, timeout=300)
    assert run.returncode == 0, run.stderr
    row = strict(run.stdout)
    assert row["validated"] is True
    assert row["resolved"]["stage"] == 2
    entries = sorted(path.name.rpartition("-")[0] for path in (tmp_path / "cache").glob("*.isa"))
    assert entries == ["lsa_allreduce_w4_bf16_1stage", "lsa_allreduce_w4_bf16_2stage"]


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_for_terminals(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with report.progress("calls", 2) as on_step:
        on_step()
        on_step()
    assert ("2/2" in stream.getvalue()) is terminal
    assert terminal or not stream.getvalue().strip()


def test_help_loads_nothing_heavy() -> None:
    code = (
        f"import runpy, sys; sys.argv = ['bench_ar', '--help']\ntry: runpy.run_path({str(SCRIPT)!r}, "
        "run_name='__main__')\nexcept SystemExit: pass\nprint('loaded:', *sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert "--local-world" in run.stdout
    loaded = run.stdout.rpartition("loaded:")[2].split()
    assert "typer" in loaded
    assert not {"torch", "numpy", "flydsl"} & set(loaded)
