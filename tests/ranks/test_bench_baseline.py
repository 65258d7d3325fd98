# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""All-reduces of others in the benchmark: measured, declined with a reason, or failed, and never silently absent."""

from __future__ import annotations

from typing import Any

import pytest

from benchmark import all_reduce_baseline as baselines
from tests.ranks.processes import Launcher
from tests.ranks.test_bench_ar import QUICK, invoke, strict_rows
from tests.ranks.test_process_bench import free_port, outputs, rows_of

FIELDS = {
    "benchmark", "backend", "outcome", "reason", "validated", "failure", "rel_l2", "bitwise_equal_across_ranks",
    "digest", "calls_verified", "device", "time_us", "wall_s", "wall_best_s", "world_size", "m", "n", "dtype", "calls",
    "warmup", "seed", "versions", "git_commit",
}  # fmt: skip
SMALL = ["--m", "5", "--n", "8", *map(str, QUICK)]


def ranks_run(launcher: Launcher, size: int, options: list[str], kind: str | None = None) -> tuple[int, Any]:
    """Exit code, the same on all ranks, and rank 0's rows; with a stand-in for aiter where `kind` says which."""
    job = "bench" if kind is None else "bench_with_aiter"
    with launcher.start(job, size, {"port": free_port(), "options": options, "kind": kind}) as launch:
        outcomes = launch.outcomes()
        first, *others = outputs(launch)
        assert others == [""] * (size - 1)
        codes = {outcome.code for outcome in outcomes}
        assert len(codes) == 1, outcomes
        return codes.pop(), rows_of(first)


def test_ranks_in_one_process_have_no_group() -> None:
    code, stdout, stderr = invoke("--local-world", 2, *SMALL, "--baseline")
    own, *others = strict_rows(stdout)
    assert (code, own["benchmark"], own["validated"]) == (0, "all_reduce", True)
    assert [row["backend"] for row in others] == ["gloo", "aiter"]
    for row in others:
        assert set(row) == FIELDS
        assert (row["benchmark"], row["outcome"], row["validated"]) == ("all_reduce_baseline", "declined", None)
        assert "without a group of torch" in row["reason"]
        assert row["wall_s"] is None
    assert "declined" in stderr


def test_there_are_no_baselines_unless_asked_for() -> None:
    code, stdout, _ = invoke("--local-world", 2, *SMALL)
    assert (code, len(strict_rows(stdout))) == (0, 1)


@pytest.mark.parametrize(("ranks", "dtype"), [(2, "fp16"), (3, "fp32"), (4, "bf16")])
def test_the_group_of_torch_is_measured(ranks: int, dtype: str, launcher: Launcher) -> None:
    code, (own, torchs, aiter) = ranks_run(launcher, ranks, [*SMALL, "--dtype", dtype, "--baseline"])
    assert (code, own["validated"]) == (0, True)
    assert set(torchs) == FIELDS
    assert (torchs["backend"], torchs["outcome"], torchs["validated"]) == ("gloo", "measured", True)
    assert (torchs["device"], torchs["time_us"], torchs["calls_verified"]) == ("cpu", None, 2)
    assert torchs["wall_s"] >= torchs["wall_best_s"] > 0
    assert torchs["rel_l2"] < 1e-2
    assert (aiter["outcome"], aiter["wall_s"]) == ("declined", None)
    assert aiter["reason"].startswith("aiter is not importable")


def test_aiter_is_measured_where_it_runs(launcher: Launcher) -> None:
    """Its stand-in, that is: aiter itself was never run here."""
    code, rows = ranks_run(launcher, 2, [*SMALL, "--baseline"], "right")
    assert (code, rows[2]["outcome"], rows[2]["validated"], rows[2]["failure"]) == (0, "measured", True, None)
    assert rows[2]["digest"] == rows[1]["digest"]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("moved", "must offer aiter.dist.device_communicators.custom_all_reduce.CustomAllreduce"),
        ("old", "must take (group, device, max_size)"),
        ("disabled", "is disabled here"),
        ("refuses", "does not take 80 bytes"),
    ],
)
def test_aiter_declines(kind: str, reason: str, launcher: Launcher) -> None:
    code, rows = ranks_run(launcher, 2, [*SMALL, "--baseline"], kind)
    assert (code, rows[2]["outcome"], rows[2]["validated"]) == (0, "declined", None)
    assert reason in rows[2]["reason"]


@pytest.mark.parametrize(("kind", "failure"), [("wrong", "must be within"), ("raises", "rank 1: RuntimeError: out of")])
def test_a_baseline_that_goes_wrong_fails(kind: str, failure: str, launcher: Launcher) -> None:
    """A wrong sum, and an error on one rank only: exit 1 on all ranks, our own row stays valid."""
    code, rows = ranks_run(launcher, 2, [*SMALL, "--baseline"], kind)
    assert (code, rows[0]["validated"]) == (1, True)
    assert (rows[2]["outcome"], rows[2]["validated"], rows[2]["wall_s"]) == ("failed", False, None)
    assert failure in rows[2]["failure"]


def test_aiter_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "find_spec", lambda name: True)
    with pytest.raises(baselines.Declined, match="needs torch's ROCm build"):
        baselines.require_aiter()
