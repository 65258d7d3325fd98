# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The layer benchmark on emulated ranks: every mode validates, a wrong result fails, and phases add up to a call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from benchmark import bench_gemm_ar, layer_rank
from benchmark.layer_cases import ALL_MODES, Case, ModeChoice, operands
from benchmark.layer_check import digest
from benchmark.layer_phases import Timing, phase_names, single_launches, timed
from benchmark.report import PREFIX
from mori_gemm_ar.errors import CollectiveError
from mori_gemm_ar.layout import BLayout, Recipe
from mori_gemm_ar.op import GemmAllReduceOp
from mori_gemm_ar.op.options import layer_spec
from mori_gemm_ar.plan import plan_layer
from mori_gemm_ar.runtime import LocalWorld, RankContext, Target

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmark" / "bench_gemm_ar.py"
SMALL = ("--m", "256", "--n", "512", "--k", "128", "--b-layout", "row", "--calls", "1")
SMALL_CASE = Case(256, 512, 128, Recipe.BLOCKSCALE, b_layout=BLayout.ROW)


def strict_rows(stdout: str) -> list[dict[str, Any]]:
    """All lines of stdout, with the non-JSON words that Python accepts refused."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    lines = stdout.splitlines()
    assert all(line.startswith(PREFIX) for line in lines)
    return [json.loads(line.removeprefix(PREFIX), parse_constant=refuse) for line in lines]


def invoke(*arguments: object) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, rows and stderr of the command line, in this process."""
    result = CliRunner().invoke(bench_gemm_ar.app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, strict_rows(result.stdout), result.stderr


def test_every_mode_validates_and_gives_the_same_bits() -> None:
    code, rows, stderr = invoke("--local-world", 2, *SMALL)
    assert code == 0, stderr
    assert [row["mode"] for row in rows] == [mode.value for mode in ALL_MODES]
    assert len({row["product_digest"] for row in rows}) == 1
    alone, *summed = rows
    assert alone["digest"] is None and alone["gemm_rel_l2"] < 2.1e-3
    assert len({row["digest"] for row in summed}) == 1
    for row in summed:
        assert row["resolved"]["mode"] == row["mode"], "nothing fell back"
        assert row["bitwise_equal_across_ranks"] and row["bitwise_equal_to_rank_order"]
        assert row["rel_l2"] < row["worst_tile_rel_l2"]
        assert row["resolved"]["window_bytes"] == GemmAllReduceOp.window_bytes_for(
            2, n=512, k=128, m_max=256, quant="blockscale", mode=row["mode"]
        )
        assert row["resolved"]["launches"] == len(row["resolved"]["kernels"])
    for row in rows:
        assert (row["device"], row["time_us"], row["phases_us"]) == ("emulated", None, None), "no GPU, no time"
        assert row["predicted"]["predicted_us"] > 0
        assert row["emulated_wall_s"] > 0
        assert row["rows_compared_with_fp64"] == 256
    fused = next(row for row in rows if row["mode"] == "fused-sdma")
    assert [kernel["phase"] for kernel in fused["resolved"]["kernels"]] == ["gemm", "drain", "reduce, put, meet"]
    assert fused["resolved"]["kernels"][0]["blocks"] == 4
    assert "drain" in fused["predicted"]["phases_predicted_us"]


def test_a_lossy_wire_and_a_mode_that_has_none() -> None:
    """`all` goes on without a mode that the library refuses, and the row says why."""
    code, rows, stderr = invoke("--local-world", 2, *SMALL, "--wire", "fp8-both", "--warmup", 0)
    assert code == 0, stderr
    found = {row["mode"]: row for row in rows}
    assert 3.0e-2 < found["split-sdma"]["rel_l2"] < 4.2e-2
    assert found["split-sdma"]["bitwise_equal_to_rank_order"] is None
    fused = found["fused-sdma"]
    assert 3.0e-2 < fused["rel_l2"] < 4.2e-2
    assert fused["gemm_rel_l2"] is None and fused["product_digest"] is None, "narrow before it is stored"
    declined = [mode for mode, row in found.items() if row["declined"]]
    assert declined == ["fused-lsa"]
    assert "wire='fp8-both' must be" in found["fused-lsa"]["declined"]
    assert all(found[mode]["validated"] for mode in found if mode not in declined)


def test_a_streamed_tail() -> None:
    """Its launches have names, and its bits are those of the phased one."""
    code, (row,), stderr = invoke(
        "--local-world", 2, *SMALL, "--mode", "fused-sdma", "--tail", "streamed", "--warmup", 0
    )
    assert code == 0, stderr
    assert (row["resolved"]["tail"], row["requested"]["tail"]) == ("streamed", "streamed")
    assert [kernel["phase"] for kernel in row["resolved"]["kernels"]] == ["gemm", "sum", "end"]
    code, (phased,), stderr = invoke("--local-world", 2, *SMALL, "--mode", "fused-sdma", "--warmup", 0)
    assert (row["digest"], row["product_digest"]) == (phased["digest"], phased["product_digest"])


def test_few_rows_say_why_another_mode_ran() -> None:
    code, (row,), _ = invoke("--local-world", 2, *SMALL, "--m", 20, "--mode", "fused-sdma")
    assert code == 0
    assert row["resolved"]["mode"] == "split-lsa"
    assert "m=20 must be at least world*tile_m=256" in row["resolved"]["why"]


@pytest.mark.parametrize("mode", ["fused-sdma", "fused-lsa"])
def test_a_wrong_element_fails(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """On one rank, in the last row of its own slice: exit 1, no time."""
    plain = GemmAllReduceOp.__call__

    def wrong(self: GemmAllReduceOp, *tensors: torch.Tensor) -> torch.Tensor:
        result = plain(self, *tensors).clone()
        if self.rank == 1:
            result[-1, -1] += 1.0
        return result

    monkeypatch.setattr(GemmAllReduceOp, "__call__", wrong)
    code, (row,), stderr = invoke("--local-world", 2, *SMALL, "--mode", mode)
    assert code == 1
    assert row["validated"] is False and row["emulated_wall_s"] is None
    assert "call 0, rank 1 of 2" in row["failure"] and "[255, 511]" in row["failure"]
    assert row["calls_verified"] == 1, "nothing is timed after a failed check"
    assert row["failure"] in stderr


def test_a_lost_tile_of_the_product_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the sum would hide: products and sum agree with each other and not with the operands."""
    held = layer_rank._held
    plain = GemmAllReduceOp.__call__

    def without(op: GemmAllReduceOp, region: str, start: int, rows: int) -> torch.Tensor:
        product = held(op, region, start, rows)
        product[:16, :16] = 0.0
        return product

    def call(self: GemmAllReduceOp, *tensors: torch.Tensor) -> torch.Tensor:
        result = plain(self, *tensors).clone()
        result[:16, :16] = 0.0
        return result

    monkeypatch.setattr(layer_rank, "_held", without)
    monkeypatch.setattr(GemmAllReduceOp, "__call__", call)
    code, (row,), _ = invoke("--local-world", 2, *SMALL, "--mode", "fused-sdma")
    assert code == 1
    assert "product of rank 0 at [0, 0] is 0.0" in row["failure"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "--local-world must be given"),
        (("--local-world", 9), "world=9 must be"),
        (("--local-world", 2, "--k", 100), "k=100 must be"),
        (("--local-world", 2, "--mode", "fused-sdma", "--wire", "fp8-row"), "wire='fp8-row' must be"),
        (("--local-world", 2, "--mode", "fused-sdma", "--chunks", 99), "chunks=99 must be"),
        (("--local-world", 2, "--tile", "64x64"), "64x64"),
        (("--local-world", 2, "--mode", "fused"), "fused"),
    ],
)
def test_bad_arguments(options: tuple[object, ...], text: str) -> None:
    code, rows, stderr = invoke(*options)
    assert (code, rows) == (2, [])
    assert text in stderr


# ---- times ---------------------------------------------------------------------------------------------------


class CountingClock:
    """Ranks of a made-up GPU: the time between two marks is what the test says."""

    def __init__(self, target: Target, us: Callable[[int], float]) -> None:
        self._target, self._us, self.marks = target, us, 0

    def mark(self) -> int:
        self.marks += 1
        return self.marks

    def finish(self) -> None:
        self._target.synchronize()

    def us(self, first: int, last: int) -> float:
        assert last == first + 1
        return self._us(last)


@pytest.mark.parametrize("mode", ["fused-sdma", "fused-lsa", "split-lsa"])
def test_launches_one_by_one_give_the_result_of_the_call(mode: str) -> None:
    """What phases are timed with, recorded replays and calls: the same bits in a cleared output."""

    def body(rank: RankContext) -> Timing:
        case = SMALL_CASE
        with GemmAllReduceOp.create(
            rank, n=case.n, k=case.k, m_max=case.m, quant=case.quant, b_layout=case.b_layout, mode=mode
        ) as op:
            own = operands(case, 0, rank.rank).stored(case.b_layout)
            expected = digest(op(*own))
            clock = CountingClock(op.target, lambda mark: 10.0 * rank.rank + mark)
            steps = single_launches(op, case.m, own)
            assert len(phase_names(op.plan(case.m), len(steps))) == len(steps)
            separate = op.output(case.m)
            layer_rank.timed_and_checked(rank, op, clock, steps, lambda: separate, expected)
            with op.target.record() as recording:
                recorded = op(*own)
            timing = timed(rank, clock, [recording.replay], warmup=1, samples=2)
            with pytest.raises(CollectiveError, match="other bits"):
                layer_rank.timed_and_checked(rank, op, clock, [recording.replay], lambda: recorded, "other")
            return timing

    monkey = pytest.MonkeyPatch()
    monkey.setattr(layer_rank, "timed", lambda world, clock, steps: timed(world, clock, steps, warmup=1, samples=1))
    try:
        first, second = LocalWorld(2, seed=0).run(body)
    finally:
        monkey.undo()
    assert first == second, "every rank has the samples of all"
    assert first.critical_rank == 1 and len(first.samples) == 2


def test_columns_take_the_slowest_rank_of_each_sample() -> None:
    samples = tuple(((1.0, float(i)), (2.0, 50.0 - i)) for i in range(51))
    timing = Timing(samples)
    assert timing.slowest[0] == 52.0 and timing.slowest[50] == 51.0
    assert timing.critical_rank == 1, "slowest in 26 of 51"
    assert timing.column() == {"p50": pytest.approx(39.0), "p95": pytest.approx(50.5)}
    assert timing.steps(("gemm", "tail")) == {"gemm": 2.0, "tail": 38.0}


@pytest.mark.parametrize("gather", ["sdma", "lsa"])
@pytest.mark.parametrize("mode", ["split-sdma", "fused-sdma", "fused-lsa"])
def test_phases_have_names(mode: str, gather: str) -> None:
    from mori_gemm_ar.layout.sdma import Transport
    from mori_gemm_ar.plan import Tuning

    spec = layer_spec(2, 512, 128, 512, "blockscale", "row", mode, "exact", Tuning(gather=Transport(gather)))
    names = phase_names(plan_layer(spec, 512), 4)
    assert len(set(names)) == len(names) == 4 and names[0] == "gemm"
    assert ("pull" in names) is (gather == "lsa")


# ---- processes -----------------------------------------------------------------------------------------------


def test_torchrun_gives_the_bits_of_one_process(tmp_path: Path) -> None:
    """As a user runs it, from elsewhere."""
    options = (*SMALL, "--mode", "fused-sdma", "--warmup", "1")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--", str(SCRIPT), *options]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run(command, cwd=tmp_path, env=env, text=True, capture_output=True, timeout=300)
    assert run.returncode == 0, run.stderr
    (row,) = strict_rows(run.stdout)
    assert row["validated"] and row["resolved"]["ranks"] == "processes" and row["resolved"]["mode"] == "fused-sdma"
    code, (same,), _ = invoke("--local-world", 2, *options)
    assert code == 0
    for name in ("digest", "product_digest", "rel_l2", "worst_tile_rel_l2", "predicted"):
        assert same[name] == row[name]
    assert same["resolved"] == {**row["resolved"], "ranks": "threads"}


def test_help_loads_nothing_heavy() -> None:
    code = (
        f"import runpy, sys; sys.argv = ['bench', '--help']\ntry: runpy.run_path({str(SCRIPT)!r}, "
        "run_name='__main__')\nexcept SystemExit: pass\nprint('loaded:', *sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, timeout=60)
    assert run.returncode == 0, run.stderr
    loaded = run.stdout.rpartition("loaded:")[2].split()
    assert "typer" in loaded
    assert not {"torch", "numpy", "flydsl"} & set(loaded)


def test_modes_of_the_command_line_are_those_of_the_library() -> None:
    from mori_gemm_ar.model import Mode

    assert {mode.value for mode in ALL_MODES} == {mode.value for mode in Mode}
    assert ModeChoice.AUTO.value == "auto"
