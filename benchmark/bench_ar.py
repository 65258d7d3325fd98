# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""All-reduce benchmark: verifies every call, then times, and prints one RESULT_JSON line.

`measure` runs on one rank of any group, `run` and `run_here` supply the group, `main` is the command line. Under
torchrun every process is a rank; otherwise `--local-world` says how many this process shall hold. In
`torchrun --nproc-per-node=4 -- benchmark/bench_ar.py --m 64`, the `--` keeps torchrun from reading `--m` as its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Read once, when NumPy loads. Below, the repository root makes `benchmark` importable when the script runs by path.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import hashlib
import math
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from benchmark.report import git_commit, print_result, print_table, progress, versions
from mori_gemm_ar.errors import ConfigError, MoriGemmArError
from mori_gemm_ar.layout import DType, Stage

if TYPE_CHECKING:
    import torch

    from mori_gemm_ar.ar.op import AllReduceOp, World

_TORCH_NAMES = {DType.BF16: "bfloat16", DType.FP16: "float16", DType.FP32: "float32"}
_BITS = {2: "int16", 4: "int32"}  # torch integer of an element's size, to compare bits


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured. `stage=None` lets the library choose; `timeout_s=None` is the target's default.

    in_place: the sum goes into the input tensor. zero_copy: the input tensor lies in the op's window.
    """

    m: int
    n: int
    dtype: DType
    stage: Stage | None = None
    calls: int = 5
    warmup: int = 2
    seed: int = 0
    in_place: bool = False
    zero_copy: bool = False
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("m", 0), ("n", 0), ("calls", 1), ("warmup", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least {least}")

    @property
    def max_bytes(self) -> int:
        """Capacity of the op; at least one byte."""
        return max(1, self.m * self.n * self.dtype.nbytes)

    @property
    def requested(self) -> dict[str, Any]:
        """What the caller asked for, before the library resolves it."""
        return {
            "device": "auto",
            "stage": "auto" if self.stage is None else self.stage.value,
            "in_place": self.in_place,
            "zero_copy": self.zero_copy,
            "timeout_s": self.timeout_s,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """One rank's result of one call. rel_l2 may be NaN or infinity; `failure` names the first wrong element."""

    rel_l2: float
    failure: str | None
    digest: str
    seconds: float


# --- data ---


def _data(case: Case, call: int, rank: int) -> torch.Tensor:
    """The input of one rank in one call; no two are alike."""
    import torch

    key = hashlib.sha256(f"{case.seed} {call} {rank}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:7], "little"))
    return torch.randn((case.m, case.n), generator=generator).to(getattr(torch, _TORCH_NAMES[case.dtype]))


@lru_cache(maxsize=1)  # ranks that share a process share it
def _reference(case: Case, call: int, world_size: int) -> torch.Tensor:
    """fp32 sum in rank order, rounded once."""
    first = _data(case, call, 0)
    total = first.float()
    for rank in range(1, world_size):
        total = total + _data(case, call, rank).float()
    return total.to(first.dtype)


def _verdict(result: torch.Tensor, expected: torch.Tensor, where: str, seconds: float) -> Verdict:
    """Compare bits, and say how far off the values are."""
    import torch

    bits = getattr(torch, _BITS[result.element_size()])
    wrong = result.view(bits) != expected.view(bits)
    failure, rel_l2 = None, 0.0
    if bool(wrong.any()):
        # Infinities of equal sign differ by zero here, not by NaN.
        difference = torch.where(wrong, result.double() - expected.double(), 0.0)
        norm = float(expected.double().norm())
        rel_l2 = float(difference.norm()) / norm if norm else math.inf
        row, column = (int(i) for i in wrong.nonzero()[0])
        failure = (
            f"{where}: y[{row}, {column}]={result[row, column].item()} must be {expected[row, column].item()}; "
            f"{int(wrong.sum())} of {wrong.numel()} elements differ"
        )
    digest = hashlib.sha256(result.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
    return Verdict(rel_l2, failure, digest, seconds)


# --- one rank ---


def measure(world: World, case: Case, on_call: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Collective: the measured fields of the row, equal on all ranks.

    The first `warmup` calls only verify; the others verify and are timed, unless a check failed before. `on_call`
    runs on rank 0 after each call.
    """
    import torch

    from mori_gemm_ar.ar import AllReduceOp

    dtype = getattr(torch, _TORCH_NAMES[case.dtype])
    calls: list[list[Verdict]] = []
    with AllReduceOp.create(world, case.max_bytes, timeout_s=case.timeout_s, stage=case.stage, dtypes=(dtype,)) as op:
        if op.target.name != "emulated":
            raise ConfigError(f"device={op.target.name} must be emulated; this script has no timer of a GPU yet")
        for call in range(case.warmup + case.calls):
            verdict = _one_call(world, op, case, call)
            calls.append(cast("list[Verdict]", world.exchange("verdict", verdict)))
            if world.rank == 0:
                on_call()
            if _failures(calls[-1]):
                break
        return {**_outcome(case, calls), **_resolution(world, op, case, dtype)}


def _one_call(world: World, op: AllReduceOp, case: Case, call: int) -> Verdict:
    """New data, one timed call, the input overwritten at once, then the check."""
    import torch

    data = _data(case, call, world.rank).to(op.target.torch_device)
    x = op.buffer(data.shape, data.dtype).copy_(data) if case.zero_copy else data
    out = x if case.in_place else torch.full_like(x, math.nan)
    world.exchange("start", None)
    started = time.perf_counter()
    result = op(x, out=out)
    seconds = time.perf_counter() - started
    if case.in_place:
        result = result.clone()
    x.fill_(math.nan)  # allowed by now: a peer that still reads x would show it
    expected = _reference(case, call, world.size)
    return _verdict(result.cpu(), expected, f"call {call}, rank {world.rank} of {world.size}, {case}", seconds)


def _failures(verdicts: list[Verdict]) -> list[str]:
    found = [v.failure for v in verdicts if v.failure is not None]
    if not found and len({v.digest for v in verdicts}) > 1:
        found = ["ranks hold different bits"]
    return found


def _outcome(case: Case, calls: list[list[Verdict]]) -> dict[str, Any]:
    failures = _failures(calls[-1])
    # The slowest rank is the time of a call. A failed run has no time.
    seconds = [] if failures else [max(v.seconds for v in verdicts) for verdicts in calls[case.warmup :]]
    rel_l2 = max((v.rel_l2 for verdicts in calls for v in verdicts), key=lambda r: (math.isnan(r), r))
    return {
        "validated": not failures,
        "failure": failures[0] if failures else None,
        "rel_l2": rel_l2 if math.isfinite(rel_l2) else None,
        "bitwise_equal_across_ranks": all(len({v.digest for v in verdicts}) == 1 for verdicts in calls),
        "calls_verified": len(calls),
        "emulated_wall_s": statistics.median(seconds) if seconds else None,
        "emulated_wall_best_s": min(seconds, default=None),
    }


def _resolution(world: World, op: AllReduceOp, case: Case, dtype: torch.dtype) -> dict[str, Any]:
    from mori_gemm_ar.layout import AllReduceConfig
    from mori_gemm_ar.layout.sdma import Transport
    from mori_gemm_ar.runtime import ProcessWorld

    numel = case.m * case.n
    plan = op.plan(numel, dtype, in_place_in_window=case.in_place and case.zero_copy and numel > 0)
    return {
        "device": op.target.name,
        "time_us": None,  # a GPU's time; an emulated run has none
        "resolved": {
            "device": op.target.name,
            "ranks": "processes" if isinstance(world, ProcessWorld) else "threads",
            "kernel": plan.config.key,
            "backend": plan.transport.value,
            "stage": plan.config.stage.value if isinstance(plan.config, AllReduceConfig) else 2,
            "gather": plan.config.gather.value if isinstance(plan.config, AllReduceConfig) else "copied",
            "queues": op.queues if plan.transport is Transport.SDMA else 0,
            "threads": plan.config.threads,
            "blocks": plan.blocks,
            "in_place": case.in_place,
            "zero_copy": case.zero_copy,
            "timeout_s": op.timeout_s,
        },
    }


# --- all ranks ---


def run(world_size: int, case: Case) -> dict[str, Any]:
    """The row of `world_size` ranks in this process. A collective that fails on the device gives a failed row."""
    from mori_gemm_ar.runtime import LocalWorld

    with progress("all-reduce", case.warmup + case.calls) as on_call:
        world = LocalWorld(world_size, case.seed)
        fields = _attempt(lambda: world.run(partial(measure, case=case, on_call=on_call))[0])
    return _row(world_size, case, fields)


def run_here(case: Case) -> tuple[bool, dict[str, Any] | None]:
    """Collective over processes that torchrun started: whether all went well, and the row on rank 0."""
    import torch.distributed as dist

    from mori_gemm_ar.runtime import connect

    dist.init_process_group("gloo")  # its store is all that the library uses
    try:
        rank, size = dist.get_rank(), dist.get_world_size()
        bar = progress("all-reduce", case.warmup + case.calls) if rank == 0 else nullcontext(lambda: None)
        with bar as on_call:
            fields = _attempt(lambda: measure(connect(), case, on_call))
        if fields["validated"]:
            dist.barrier()  # rank 0 may hold the store, so it must not end while others still read from it
        return bool(fields["validated"]), _row(size, case, fields) if rank == 0 else None
    finally:
        dist.destroy_process_group()


def _attempt(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The measured fields; those of a failed row where a collective failed."""
    fields: dict[str, Any] = dict.fromkeys(_MEASURED)
    try:
        return fields | work()
    except ConfigError:
        raise
    except MoriGemmArError as error:
        return fields | {"validated": False, "failure": f"{type(error).__name__}: {error}"}


def _row(world_size: int, case: Case, fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "benchmark": "all_reduce",
        **fields,
        "world_size": world_size,
        "m": case.m,
        "n": case.n,
        "dtype": case.dtype.label,
        "calls": case.calls,
        "warmup": case.warmup,
        "seed": case.seed,
        "requested": case.requested,
        "versions": versions(),
        "git_commit": git_commit(),
    }


# Fields of a row that only a run can fill; None in a row that failed before.
_MEASURED = (
    "validated",
    "failure",
    "rel_l2",
    "bitwise_equal_across_ranks",
    "calls_verified",
    "device",
    "time_us",
    "emulated_wall_s",
    "emulated_wall_best_s",
    "resolved",
)


def show(row: dict[str, Any]) -> None:
    """The row as a table on stderr."""
    wall, best, resolved = row["emulated_wall_s"], row["emulated_wall_best_s"], row["resolved"]
    lines = [
        ("validated", f"yes, all {row['calls_verified']} calls" if row["validated"] else f"NO: {row['failure']}"),
        ("relative L2 error", f"{row['rel_l2']} against the same-order fp32 sum"),
        ("ranks bitwise equal", {True: "yes", False: "NO", None: "not known"}[row["bitwise_equal_across_ranks"]]),
        ("device", f"{row['device'] or 'emulated'}: gfx950 machine code, executed by this CPU"),
        ("GPU time", "none, nothing ran on a GPU"),
    ]
    if wall is not None:
        lines.append(("CPU time of a call", f"median {wall * 1e3:.2f} ms, best {best * 1e3:.2f} ms, all ranks"))
    if resolved is not None:
        source = "from the window" if resolved["zero_copy"] else "staged into the window"
        target = "in place" if resolved["in_place"] else "to another tensor"
        shape = f"grid of {resolved['blocks']} x {resolved['threads']} threads"
        lines.append(("resolved", f"{resolved['stage']}-stage, {shape}, {source}, {target}"))
    title = f"all-reduce of [{row['m']}, {row['n']}] {row['dtype']} over {row['world_size']} ranks"
    print_table(title, ("", ""), lines)


# --- command line ---


class StageChoice(str, Enum):
    """Values of --stage."""

    AUTO = "auto"
    ONE = "1"
    TWO = "2"


class DTypeChoice(str, Enum):
    """Values of --dtype."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


def _started_ranks() -> int | None:
    """Number of processes of which torchrun started this one; None outside it."""
    variables = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in variables) else None


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    local_world: Annotated[int | None, typer.Option(min=1, help="Run this many ranks in this process.")] = None,
    m: Annotated[int, typer.Option(min=0, help="Rows.")] = 128,
    n: Annotated[int, typer.Option(min=0, help="Columns.")] = 1024,
    dtype: Annotated[DTypeChoice, typer.Option(help="Element type.")] = DTypeChoice.BF16,
    stage: Annotated[StageChoice, typer.Option(help="One or two stages; auto chooses by size.")] = StageChoice.AUTO,
    calls: Annotated[int, typer.Option(min=1, help="Timed calls; each one is verified too.")] = 5,
    warmup: Annotated[int, typer.Option(min=1, help="Calls that are verified before anything is timed.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Of the data and of the order in which ranks run.")] = 0,
    in_place: Annotated[bool, typer.Option("--in-place", help="Put the sum into the input tensor.")] = False,
    zero_copy: Annotated[bool, typer.Option("--zero-copy", help="Keep the input in the op's window.")] = False,
    timeout_s: Annotated[float | None, typer.Option(help="Budget of each wait on the device.")] = None,
) -> None:
    """Verify an all-reduce against the same-order sum, then time it. Exit 1: a check failed; 2: bad arguments."""
    ranks = _started_ranks()
    row: dict[str, Any] | None
    try:
        if local_world is None and ranks is None:
            raise ConfigError(
                "--local-world must be given, e.g. --local-world 4; or start one process per rank: "
                "torchrun --nproc-per-node=4 -- benchmark/bench_ar.py ..."
            )
        if local_world is not None and ranks is not None:
            raise ConfigError(f"--local-world must be left out where torchrun starts the {ranks} ranks")
        choice = None if stage is StageChoice.AUTO else Stage(int(stage.value))
        label = DType.from_label(dtype.value)
        case = Case(m, n, label, choice, calls, warmup, seed, in_place, zero_copy, timeout_s)
        if local_world is not None:
            row = run(local_world, case)
            valid = bool(row["validated"])
        else:
            valid, row = run_here(case)
    except ConfigError as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"bench_ar: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    if row is not None:
        show(row)
        print_result(row)
    if not valid:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
