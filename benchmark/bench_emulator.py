# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Emulator benchmark: CPU time per kernel, in seconds and in units of this machine's own batched float32 matmul.

Every kernel is verified before it is timed. `measure` returns the row, `main` is the command line.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Threads inside OpenBLAS slow small products down; it reads the variable when NumPy loads. `tests` and `benchmark`
# are importable from the repository root.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import importlib
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, cast
from unittest import mock

import typer

from benchmark.emulator_kernels import BLOCKSCALE_GEMM, GEMM, Kernel, blockscale_gemm, gemm, rms_norm, vector_add
from benchmark.report import git_commit, print_result, print_table, progress, versions
from mori_gemm_ar.errors import EmulatorError

if TYPE_CHECKING:
    from mori_gemm_ar.emulator import Node
    from mori_gemm_ar.runtime import RankContext

BATCH, SIDE = 32, 256  # of the reference product: large enough for full speed, small enough for the cache
REFERENCE_RUNS = 10  # before and after each kernel, so that both meet the same load on the machine
REFERENCE_FLOPS = 2 * BATCH * SIDE**3
REFERENCE_HOW = (
    f"numpy.matmul(out=...) of float32 {BATCH} x [{SIDE},{SIDE}] x [{SIDE},{SIDE}], OPENBLAS_NUM_THREADS=1, "
    "best of all runs between the kernels"
)
RANKS = 4


@dataclass(frozen=True, slots=True)
class Measured:
    """One kernel: seconds of each run, wave-instructions of one run, seconds of one run that np.matmul took."""

    name: str
    seconds: tuple[float, ...]
    instructions: int
    matmul_share: float
    flops: int = 0


@dataclass(frozen=True, slots=True)
class Limit:
    """A figure that the emulator has to reach: `field` of the kernel `name` at most or at least `bound`."""

    name: str
    field: str
    bound: float
    at_most: bool

    def holds(self, kernels: dict[str, dict[str, Any]]) -> bool:
        """Whether the measured kernels stay within it."""
        value = kernels[self.name][self.field]
        return bool(value <= self.bound if self.at_most else value >= self.bound)


SMALL, LARGE = "all-reduce [128,1024]", "all-reduce [512,7168]"
WEAK = ", weak mode"
# Best of the repeats, because other load on the machine only ever adds time.
LIMITS = (
    Limit(SMALL, "best_s", 0.025, at_most=True),
    Limit(LARGE, "best_s", 1.0, at_most=True),
    Limit(GEMM, "of_reference", 0.12, at_most=False),
    Limit(BLOCKSCALE_GEMM, "of_reference", 0.12, at_most=False),
    Limit(BLOCKSCALE_GEMM, "best_s", 0.15, at_most=True),
    Limit(SMALL + WEAK, "of_functional", 5.0, at_most=True),
    Limit(GEMM + WEAK, "of_functional", 2.5, at_most=True),
)


# --- time ---


def reference_seconds() -> float:
    """Best time of the reference product on this machine."""
    import numpy as np

    random = np.random.default_rng(0)
    a, b = (random.standard_normal((BATCH, SIDE, SIDE), dtype=np.float32) for _ in range(2))
    out, best = np.empty_like(a), float("inf")
    for _ in range(REFERENCE_RUNS):
        started = time.perf_counter()
        np.matmul(a, b, out=out)
        best = min(best, time.perf_counter() - started)
    return best


@contextmanager
def _matmul_clock() -> Iterator[list[float]]:
    """Collects the seconds of every np.matmul, which is all that the emulator uses for matrix instructions."""
    import numpy as np

    spent: list[float] = []
    plain = np.matmul

    def timed(*arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        result = plain(*arguments, **options)
        spent.append(time.perf_counter() - started)
        return result

    with mock.patch.object(np, "matmul", timed):
        yield spent


# --- kernels of one GPU ---


def _node(gpus: int, weak: bool) -> Node:
    from mori_gemm_ar.emulator import Node
    from mori_gemm_ar.emulator.weak import WeakMemory

    return Node(gpus, memory=WeakMemory(seed=0)) if weak else Node(gpus)


def _measure_kernel(kernel: Kernel, repeats: int, on_step: Callable[[], None], weak: bool = False) -> Measured:
    """Run once to translate and verify, then timed, then once more under the clock of np.matmul."""
    from mori_gemm_ar.emulator import KernelLaunch, MemoryRegion
    from mori_gemm_ar.runtime import kernel_of, pack_arguments

    node, parsed = _node(1, weak), kernel_of(kernel.code)
    for name, tensor in kernel.tensors.items():
        node.regions.add(MemoryRegion(name, tensor.data_ptr(), tensor.numel() * tensor.element_size(), 0))
    block, arguments = (kernel.threads, 1, 1), pack_arguments(parsed.args, kernel.arguments)

    def once() -> float:
        node.submit(0, KernelLaunch(parsed, (*kernel.grid, 1), block, arguments, kernel.name))
        started = time.perf_counter()
        node.run()
        on_step()
        return time.perf_counter() - started

    once()
    kernel.verify()
    instructions = node.instructions
    seconds = tuple(once() for _ in range(repeats))
    with _matmul_clock() as spent:
        share_of = once()
    name = kernel.name + WEAK * weak
    return Measured(name, seconds, instructions, sum(spent) / share_of, kernel.flops)


# --- all-reduce ---


def _measure_all_reduce(
    name: str, m: int, n: int, repeats: int, on_step: Callable[[], None], weak: bool = False
) -> Measured:
    from mori_gemm_ar.runtime import LocalWorld

    world = LocalWorld(RANKS, node=partial(_node, weak=weak))
    results = world.run(partial(_all_reduce_rank, shape=(m, n), repeats=repeats, on_step=on_step))
    seconds, instructions = results[0]
    return Measured(name + WEAK * weak, seconds, instructions, 0.0)


def _all_reduce_rank(
    context: RankContext, shape: tuple[int, int], repeats: int, on_step: Callable[[], None]
) -> tuple[tuple[float, ...], int]:
    """One rank: a verified call, then timed ones. Returns the slowest rank's seconds of each, and instructions."""
    import torch

    from mori_gemm_ar.ar import AllReduceOp
    from mori_gemm_ar.layout import Stage

    # Small integers: the sum is exact in every order.
    inputs = [
        torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(rank)) for rank in range(context.size)
    ]
    x, expected = inputs[context.rank].bfloat16(), torch.stack(inputs).sum(dim=0).bfloat16()
    out, instructions = torch.zeros_like(x), 0
    seconds: list[float] = []
    with AllReduceOp.create(context, x.nbytes, stage=Stage.TWO, dtypes=(x.dtype,)) as op:
        for call in range(repeats + 1):
            context.exchange("start", None)
            before, started = context.node.instructions, time.perf_counter()
            op(x, out=out)
            mine = time.perf_counter() - started
            slowest = max(cast("list[float]", context.exchange("seconds", mine)))
            if call == 0:
                instructions = context.node.instructions - before
                if not torch.equal(out, expected):
                    raise EmulatorError(f"all-reduce of {shape}: rank {context.rank} is wrong; nothing was timed")
            else:
                seconds.append(slowest)
            if context.rank == 0:
                on_step()
    return tuple(seconds), instructions


# --- the row ---


def measure(repeats: int) -> dict[str, Any]:
    """Measure everything; raises `EmulatorError` when a kernel computes the wrong result."""
    lab = importlib.import_module("tests.kernel.flydsl_kernels")
    measured, reference = [], reference_seconds()
    small, product = partial(_measure_all_reduce, SMALL, 128, 1024), partial(_measure_kernel, gemm(lab))
    with progress("kernels", 3 * (repeats + 1) + 5 * (repeats + 2)) as on_step:
        for work in (
            small,
            partial(small, weak=True),
            partial(_measure_all_reduce, LARGE, 512, 7168),
            partial(_measure_kernel, vector_add(lab)),
            partial(_measure_kernel, rms_norm(lab)),
            product,
            partial(product, weak=True),
            partial(_measure_kernel, blockscale_gemm()),
        ):
            measured.append(work(repeats, on_step))
            reference = min(reference, reference_seconds())
    best = {one.name: min(one.seconds) for one in measured}
    kernels = {one.name: _figures(one, reference, best.get(one.name.removesuffix(WEAK))) for one in measured}
    limits = [
        {"kernel": i.name, "field": i.field, "at_most" if i.at_most else "at_least": i.bound, "holds": i.holds(kernels)}
        for i in LIMITS
    ]
    return {
        "benchmark": "emulator",
        "device": "emulated",
        "time_us": None,  # a GPU's time; an emulated run has none
        "repeats": repeats,
        "reference": {"how": REFERENCE_HOW, "best_s": reference, "gflops": REFERENCE_FLOPS / reference / 1e9},
        "kernels": kernels,
        "limits": limits,
        "within_limits": all(limit["holds"] for limit in limits),
        "cpus": os.cpu_count(),
        "versions": versions(),
        "git_commit": git_commit(),
    }


def _figures(one: Measured, reference: float, functional: float | None) -> dict[str, Any]:
    best = min(one.seconds)
    return {
        "median_s": statistics.median(one.seconds),
        "best_s": best,
        "wave_instructions": one.instructions,
        "wave_instructions_per_s": one.instructions / best,
        "matmul_share": one.matmul_share,
        "in_reference_products": best / reference,
        # The rate of the kernel's own multiplications over the reference's rate.
        "of_reference": (one.flops / best) / (REFERENCE_FLOPS / reference) if one.flops else None,
        "of_functional": best / functional if one.name.endswith(WEAK) and functional else None,
    }


def show(row: dict[str, Any]) -> None:
    """The row as a table on stderr."""
    columns = (
        "kernel",
        "median ms",
        "best ms",
        "M wave-instr/s",
        "in matmul",
        "products",
        "of product rate",
        "x functional",
    )
    lines = []
    for name, k in row["kernels"].items():
        rate = "" if k["of_reference"] is None else f"{k['of_reference']:.1%}"
        lines.append(
            (
                name,
                f"{k['median_s'] * 1e3:.1f}",
                f"{k['best_s'] * 1e3:.1f}",
                f"{k['wave_instructions_per_s'] / 1e6:.2f}",
                f"{k['matmul_share']:.0%}",
                f"{k['in_reference_products']:.2f}",
                rate,
                "" if k["of_functional"] is None else f"{k['of_functional']:.2f}",
            )
        )
    print_table("emulator: time of this CPU, which says nothing about a GPU", columns, lines)
    reference = row["reference"]
    print(f"1 product = {reference['best_s'] * 1e3:.2f} ms, {reference['gflops']:.1f} GFLOP/s:", file=sys.stderr)
    print(f"  {reference['how']}", file=sys.stderr)
    for limit in row["limits"]:
        value = row["kernels"][limit["kernel"]][limit["field"]]
        bound = f"<= {limit['at_most']:g}" if "at_most" in limit else f">= {limit['at_least']:g}"
        verdict = "ok" if limit["holds"] else "FAILS"
        print(f"{verdict}: {limit['kernel']}: {limit['field']} = {value:.4g}, limit {bound}", file=sys.stderr)


# --- command line ---

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of each kernel.")] = 5,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 when a limit fails.")] = False,
) -> None:
    """Measure what the emulator costs. Exit 1: a kernel is wrong, or with --check a limit fails."""
    try:
        row = measure(repeats)
    except EmulatorError as error:
        print(f"bench_emulator: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    show(row)
    print_result(row)
    if check and not row["within_limits"]:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
