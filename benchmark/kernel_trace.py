# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Kernel times of a run under ROCm's profiler: `rocprofv3 --kernel-trace`, and the median of each kernel.

`kernel_trace.py run DIR -- python benchmark/bench_gemm_ar.py ...` traces a command, `kernel_trace.py show DIR` reads
traces that are there. Columns as rocprofv3 documents them for `*_kernel_trace.csv`; only the names below are used, so
versions that add or leave out others are read alike.
"""

from __future__ import annotations

import csv
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import typer

from benchmark.report import print_result, print_table
from mori_gemm_ar.errors import ConfigError, MissingDependencyError, MoriGemmArError

PROFILER = "rocprofv3"
PATTERN = "*kernel_trace.csv"
DISPATCH = "KERNEL_DISPATCH"
COLUMNS = ("Kernel_Name", "Start_Timestamp", "End_Timestamp")
KIND, AGENT = "Kind", "Agent_Id"  # not in every version


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One kernel that ran; times in nanoseconds."""

    kernel: str
    agent: str
    start: int
    end: int

    @property
    def us(self) -> float:
        return (self.end - self.start) / 1e3


@dataclass(frozen=True, slots=True)
class KernelTime:
    """All runs of one kernel that count, over all GPUs of the trace."""

    kernel: str
    agents: int
    count: int
    p50_us: float
    p95_us: float


def command(folder: Path, traced: Sequence[str]) -> list[str]:
    """What to run to trace a command, its children included; one file for each process below `folder`."""
    return [PROFILER, "--kernel-trace", "--output-format", "csv", "--output-directory", str(folder), "--", *traced]


def read_traces(path: Path) -> list[Dispatch]:
    """Dispatches of one file, or of all traces below a folder, by start. Errors: `ConfigError`."""
    files = sorted(path.rglob(PATTERN)) if path.is_dir() else [path]
    found = [dispatch for file in files for dispatch in _read(file)]
    if not found:
        raise ConfigError(f"path={str(path)!r} must hold {PATTERN} with kernels in it; trace a command with `run`")
    return sorted(found, key=lambda dispatch: dispatch.start)


def _read(file: Path) -> Iterator[Dispatch]:
    try:
        with file.open(newline="", encoding="utf-8") as stream:
            rows = csv.DictReader(stream)
            missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise ConfigError(
                    f"file={str(file)!r} must have the columns {', '.join(COLUMNS)}, but lacks {', '.join(missing)}; "
                    f"write it with {PROFILER} --kernel-trace --output-format csv"
                )
            for row in rows:
                if row.get(KIND) in (None, DISPATCH):
                    start, end = (int(row[name]) for name in COLUMNS[1:])
                    yield Dispatch(row[COLUMNS[0]], row.get(AGENT) or "", start, end)
    except (OSError, UnicodeDecodeError, ValueError, TypeError) as error:
        raise ConfigError(f"file={str(file)!r} must be a kernel trace ({error}); trace the command again") from None


def kernel_times(dispatches: Iterable[Dispatch], skip: int = 0) -> list[KernelTime]:
    """Median and p95 of each kernel, in the order of first start; `skip`: first runs on each GPU that do not count."""
    runs: dict[str, dict[str, list[float]]] = {}
    for dispatch in dispatches:
        runs.setdefault(dispatch.kernel, {}).setdefault(dispatch.agent, []).append(dispatch.us)
    found = []
    for kernel, agents in runs.items():
        times = [us for own in agents.values() for us in own[skip:]]
        if times:
            p95 = statistics.quantiles(times, n=20, method="inclusive")[-1] if len(times) > 1 else times[0]
            found.append(KernelTime(kernel, len(agents), len(times), statistics.median(times), p95))
    return found


def row_of(path: Path, times: Sequence[KernelTime], skip: int) -> dict[str, Any]:
    """The RESULT_JSON row of a trace."""
    return {
        "benchmark": "kernel_trace",
        "trace": str(path),
        "skipped": skip,
        "kernels": [
            {"kernel": t.kernel, "agents": t.agents, "count": t.count, "p50_us": t.p50_us, "p95_us": t.p95_us}
            for t in times
        ],
    }


# ---- command line --------------------------------------------------------------------------------------------

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Skip = Annotated[int, typer.Option(min=0, help="First runs of each kernel on each GPU that do not count.")]


@app.command()
def show(path: Annotated[Path, typer.Argument(help="A trace, or a folder with traces.")], skip: Skip = 10) -> None:
    """Print the median of each kernel."""
    try:
        _show(path, skip)
    except MoriGemmArError as error:
        _fail(error)


@app.command()
def run(
    folder: Annotated[Path, typer.Argument(help="Where the traces go.")],
    traced: Annotated[list[str], typer.Argument(help="The command, behind --.")],
    skip: Skip = 10,
) -> None:
    """Trace a command and print the median of each kernel. Exit status: the command's, if that failed."""
    try:
        if shutil.which(PROFILER) is None:
            raise MissingDependencyError(f"{PROFILER} must be on PATH; it comes with ROCm's rocprofiler-sdk")
        status = subprocess.run(command(folder, traced)).returncode
        if status:
            raise typer.Exit(status)
        _show(folder, skip)
    except MoriGemmArError as error:
        _fail(error)


def _show(path: Path, skip: int) -> None:
    times = kernel_times(read_traces(path), skip)
    if not times:
        raise ConfigError(f"skip={skip} must leave a run of some kernel; give a smaller one")
    lines = [(t.kernel, str(t.agents), str(t.count), f"{t.p50_us:.2f}", f"{t.p95_us:.2f}") for t in times]
    print_table(f"kernels of {path}", ("kernel", "GPUs", "runs", "p50 us", "p95 us"), lines)
    print_result(row_of(path, times, skip))


def _fail(error: MoriGemmArError) -> None:
    print(f"kernel_trace: {error}", file=sys.stderr)
    raise typer.Exit(2)


if __name__ == "__main__":
    app()
