# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""One process per rank as a user has it: the benchmark, under torchrun too, and the documented example."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.ranks.processes import Launch, Launcher

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmark" / "bench_ar.py"
SHAPE = ("--m", "64", "--n", "7168")


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def rows_of(stdout: str) -> list[dict[str, Any]]:
    """All lines."""
    lines = stdout.splitlines()
    assert all(line.startswith("RESULT_JSON ") for line in lines)
    return [json.loads(line.removeprefix("RESULT_JSON ")) for line in lines]


def row_of(stdout: str) -> dict[str, Any]:
    """The only line."""
    (row,) = rows_of(stdout)
    return row


def require_valid(row: dict[str, Any], ranks: int) -> None:
    assert row["validated"] is True, row["failure"]
    assert (row["rel_l2"], row["bitwise_equal_across_ranks"]) == (0.0, True)
    assert (row["world_size"], row["m"], row["n"]) == (ranks, 64, 7168)
    assert (row["device"], row["time_us"], row["resolved"]["ranks"]) == ("emulated", None, "processes")
    assert row["emulated_wall_s"] >= row["emulated_wall_best_s"] > 0


def outputs(launch: Launch) -> list[str]:
    return [(launch.folder / f"{rank}.out").read_text() for rank in range(launch.size)]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_one_process_per_rank(ranks: int, launcher: Launcher) -> None:
    options = {"port": free_port(), "options": [*SHAPE, "--calls", "2", "--warmup", "1"]}
    with launcher.start("bench", ranks, options) as launch:
        assert [outcome.code for outcome in launch.outcomes()] == [0] * ranks
        first, *others = outputs(launch)
        assert others == [""] * (ranks - 1)
        require_valid(row_of(first), ranks)
        assert not any(launch.outcome(rank).stderr for rank in range(1, ranks))


def test_a_bad_argument(launcher: Launcher) -> None:
    """Once on stderr, and the same exit code everywhere."""
    for options, text in (
        (["--local-world", "2"], "--local-world must be left out where torchrun starts the 2 ranks"),
        (["--in-place", "--zero-copy", "--stage", "1"], "must be Stage.TWO"),
    ):
        with launcher.start("bench", 2, {"port": free_port(), "options": options}) as launch:
            first, second = launch.outcomes()
            assert (first.code, second.code) == (2, 2)
            assert text in first.stderr and second.stderr == ""
            assert outputs(launch) == ["", ""]


def test_a_rank_that_dies(launcher: Launcher) -> None:
    """The others end by themselves, and rank 0's row names the dead one."""
    options = {"port": free_port(), "options": [*SHAPE, "--calls", "100000"]}
    with launcher.start("bench", 3, options) as launch:
        deadline = time.monotonic() + 60
        while b"memfd:mori_gemm_ar" not in Path(f"/proc/{launch.pids[2]}/maps").read_bytes():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)
        launch.kill(2)
        first, second, _ = launch.outcomes(60)
        assert (first.code, second.code) == (1, 1)
        row = row_of(outputs(launch)[0])
        assert row["validated"] is False
        assert f"rank 2 (process {launch.pids[2]}) ended before step" in row["failure"] or (
            f"rank 2 has died (process {launch.pids[2]})" in row["failure"]
        )


def test_the_example_in_the_documentation(launcher: Launcher) -> None:
    page = (ROOT / "docs" / "processes.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert launcher.run("example", 4, {"port": free_port(), "source": source}) == [10.0] * 4


@pytest.mark.parametrize("ranks", [2, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (3, 4, 8))])
def test_torchrun(ranks: int, tmp_path: Path) -> None:
    """As a user runs it, from elsewhere, within a minute."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--", str(SCRIPT), *SHAPE]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    start = time.monotonic()
    run = subprocess.run(command, cwd=tmp_path, env=env, text=True, capture_output=True, timeout=300)
    assert run.returncode == 0, run.stderr
    require_valid(row_of(run.stdout), ranks)
    assert time.monotonic() - start < 60


@pytest.mark.parametrize("ranks", [2, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (3, 4, 8))])
def test_torchrun_with_copy_engines_and_baselines(ranks: int, tmp_path: Path) -> None:
    """Engines of one process write what other processes read; torch's own group sums the same data."""
    options = ("--m", "7", "--n", "515", "--backend", "sdma", "--queues", "2", "--baseline")
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--", str(SCRIPT), *options]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run(command, cwd=tmp_path, env=env, text=True, capture_output=True, timeout=300)
    assert run.returncode == 0, run.stderr
    own, torchs, aiter = rows_of(run.stdout)
    assert (own["validated"], own["rel_l2"], own["bitwise_equal_across_ranks"]) == (True, 0.0, True)
    assert (own["resolved"]["backend"], own["resolved"]["queues"], own["resolved"]["ranks"]) == ("sdma", 2, "processes")
    assert (torchs["backend"], torchs["outcome"], torchs["validated"]) == ("gloo", "measured", True)
    assert (aiter["backend"], aiter["outcome"]) == ("aiter", "declined")
    command = [sys.executable, str(SCRIPT), "--local-world", str(ranks), "--m", "7", "--n", "515", "--backend", "lsa"]
    run = subprocess.run(command, cwd=tmp_path, env=env, text=True, capture_output=True, timeout=300)
    assert row_of(run.stdout)["digest"] == own["digest"], "load and store in one process gives the same bits"
