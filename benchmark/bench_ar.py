# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""All-reduce benchmark: verifies every call, then times, and prints one RESULT_JSON line, and one for each baseline.

`all_reduce_rank.measure` runs on one rank of any group, `run` and `run_here` supply the group, `main` is the command
line. Under torchrun every process is a rank; otherwise `--local-world` says how many this process shall hold. In
`torchrun --nproc-per-node=4 -- benchmark/bench_ar.py --m 64`, the `--` keeps torchrun from reading `--m` as its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Read once, when NumPy loads. Below, the repository root makes `benchmark` importable when the script runs by path.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from collections.abc import Callable
from contextlib import nullcontext
from enum import Enum
from functools import partial
from typing import Annotated, Any

import typer

from benchmark import all_reduce_baseline as baselines
from benchmark.all_reduce_cases import Case
from benchmark.all_reduce_rank import measure
from benchmark.report import print_result, print_table, progress
from benchmark.start import refused, require_one_start
from mori_gemm_ar.errors import ConfigError, MoriGemmArError
from mori_gemm_ar.layout import DType, Stage, Wire

Rows = list[dict[str, Any]]
_ONE_PROCESS = "--local-world holds all ranks in one process, without a group of torch; start ranks with torchrun"

# --- all ranks ---


def run(world_size: int, case: Case) -> dict[str, Any]:
    """The row of `world_size` ranks in this process. A collective that fails on the device gives a failed row."""
    from mori_gemm_ar.runtime import LocalWorld

    with progress("all-reduce", case.warmup + case.calls) as on_call:
        world = LocalWorld(world_size, case.seed)
        fields = _attempt(lambda: world.run(partial(measure, case=case, on_call=on_call))[0])
    return _row(world_size, case, fields)


def run_here(case: Case, baseline: bool) -> tuple[bool, Rows]:
    """Collective over processes that torchrun started: whether all went well, and on rank 0 the rows."""
    import torch.distributed as dist

    from mori_gemm_ar.runtime import connect

    dist.init_process_group("gloo")  # its store is all that the library uses
    try:
        rank, size = dist.get_rank(), dist.get_world_size()
        bar = progress("all-reduce", case.warmup + case.calls) if rank == 0 else nullcontext(lambda: None)
        with bar as on_call:
            fields = _attempt(lambda: measure(connect(), case, on_call))
        valid, others = bool(fields["validated"]), Rows()
        if baseline and valid:
            others = baselines.measured_rows(connect(), case)
        elif baseline:
            others = baselines.declined_rows(size, case, "our own run failed before")
        valid = valid and not baselines.any_failed(others)
        if valid:
            dist.barrier()  # rank 0 may hold the store, so it must not end while others still read from it
        return valid, [_row(size, case, fields), *others] if rank == 0 else []
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
        "requested": case.requested,
        **case.origin(world_size),
    }


# Fields of a row that only a run can fill; None in a row that failed before.
_MEASURED = (
    "validated",
    "failure",
    "rel_l2",
    "bitwise_equal_across_ranks",
    "digest",
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
    on_gpu = row["device"] not in (None, "emulated")
    lines = [
        ("validated", f"yes, all {row['calls_verified']} calls" if row["validated"] else f"NO: {row['failure']}"),
        ("relative L2 error", f"{row['rel_l2']} against the same-order fp32 sum"),
        ("ranks bitwise equal", {True: "yes", False: "NO", None: "not known"}[row["bitwise_equal_across_ranks"]]),
    ]
    if on_gpu:
        lines += [("device", row["device"]), ("GPU time", f"median {row['time_us']} us, slowest rank, host calls")]
    else:
        lines.append(("device", "emulated: gfx950 machine code, executed by this CPU"))
        lines.append(("GPU time", "none, nothing ran on a GPU"))
    if wall is not None:
        lines.append(("CPU time of a call", f"median {wall * 1e3:.2f} ms, best {best * 1e3:.2f} ms, all ranks"))
    if resolved is not None:
        lines += _show_resolved(resolved)
    title = f"all-reduce of [{row['m']}, {row['n']}] {row['dtype']} over {row['world_size']} ranks"
    print_table(title, ("", ""), lines)


def _show_resolved(resolved: dict[str, Any]) -> list[tuple[str, str]]:
    by = {"lsa": f"load and store, {resolved['stage']}-stage", "sdma": f"copy engines, {resolved['queues']} to a peer"}
    source = "from the caller's tensor" if resolved["backend"] == "sdma" else "staged into the window"
    source = "from the window" if resolved["zero_copy"] else source
    target = "in place" if resolved["in_place"] else "to another tensor"
    shape = f"grid of {resolved['blocks']} x {resolved['threads']} threads"
    return [
        ("resolved", f"{by[resolved['backend']]}, wire {resolved['wire']}, {shape}, {source}, {target}"),
        ("kernels", ", ".join(resolved["kernels"])),
    ]


# --- command line ---


class StageChoice(str, Enum):
    """Values of --stage."""

    AUTO = "auto"
    ONE = "1"
    TWO = "2"


class BackendChoice(str, Enum):
    """Values of --backend."""

    AUTO = "auto"
    LSA = "lsa"
    SDMA = "sdma"


class DTypeChoice(str, Enum):
    """Values of --dtype."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


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
    backend: Annotated[
        BackendChoice, typer.Option(help="Load and store, or copy engines; auto chooses by size.")
    ] = BackendChoice.AUTO,
    queues: Annotated[int, typer.Option(help="Copy-engine queues to each peer.")] = 1,
    wire: Annotated[Wire, typer.Option(help="What crosses the links; all but exact lose precision.")] = Wire.EXACT,
    baseline: Annotated[bool, typer.Option("--baseline", help="Also run torch's and aiter's all-reduce.")] = False,
) -> None:
    """Verify an all-reduce against the same-order sum, then time it. Exit 1: a check failed; 2: bad arguments."""
    try:
        require_one_start(local_world, "bench_ar", 4)
        choice = None if stage is StageChoice.AUTO else Stage(int(stage.value))
        label = DType.from_label(dtype.value)
        case = Case(
            m, n, label, choice, calls, warmup, seed, in_place, zero_copy, timeout_s, backend.value, queues, wire
        )
        valid, rows = run_here(case, baseline) if local_world is None else _run_local(local_world, case, baseline)
    except ConfigError as error:
        raise refused("bench_ar", error) from None
    if rows:
        show(rows[0])
        baselines.show(rows[1:])
    for row in rows:
        print_result(row)
    if not valid:
        raise typer.Exit(1)


def _run_local(world_size: int, case: Case, baseline: bool) -> tuple[bool, Rows]:
    row = run(world_size, case)
    others = baselines.declined_rows(world_size, case, _ONE_PROCESS) if baseline else Rows()
    return bool(row["validated"]), [row, *others]


if __name__ == "__main__":
    app()
