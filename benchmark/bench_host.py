# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Host time of a whole call of the fused op, with a HIP that does nothing: checks, order, launches, result.

The op is created on emulated GPUs and then given the rocm target, whose HIP library is replaced by a C function that
returns at once. What torch takes to name its current stream and device is not in it. Prints one RESULT_JSON line.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

# Read once, when NumPy loads. Below, the repository root makes `benchmark` importable when the script runs by path.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gc
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmark.report import git_commit, print_result, print_table, versions
from mori_gemm_ar.errors import MoriGemmArError
from mori_gemm_ar.layout import Recipe, Wire
from mori_gemm_ar.model import Mode

if TYPE_CHECKING:
    import torch

    from mori_gemm_ar.op import GemmAllReduceOp
    from mori_gemm_ar.runtime import RankContext

MAX_CALL_US = 10.0
MAX_SHARE = 2.5  # of the bare launches
_HANDLE = 1 << 40  # of a kernel; other than any grid


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured: `repeats` times the mean of `calls` calls, of which the best counts."""

    m: int = 1024
    n: int = 512
    k: int = 128
    world: int = 2
    quant: Recipe = Recipe.BLOCKSCALE
    mode: Mode = Mode.FUSED_SDMA
    wire: Wire = Wire.EXACT
    calls: int = 100
    repeats: int = 300


class NoOpHip:
    """HIP's part that calls need. A launch is a call of a C function with a launch's arguments that returns 0."""

    def __init__(self) -> None:
        # Compares its first two arguments, a kernel's handle and a grid: never equal.
        self._nothing = ctypes.CDLL(None)["pthread_equal"]
        self._nothing.argtypes = (
            ctypes.c_void_p,
            *(ctypes.c_uint,) * 7,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.POINTER(ctypes.c_void_p),
        )
        self._nothing.restype = ctypes.c_int

    def arch(self, device: int) -> str:
        """Of the only device."""
        return "gfx950"

    def prepare(self) -> Any:
        """See `Hip.prepare`."""
        from mori_gemm_ar.runtime.hip import PreparedLaunches

        return PreparedLaunches(self, self._nothing)  # type: ignore[arg-type]


class OneGpu:
    """The device that torch would name: always the current one, with one stream."""

    index = 0
    torch_device = "cpu"

    def is_current(self) -> bool:
        """Whether it is current."""
        return True

    def guard(self) -> AbstractContextManager[Any]:
        """Nothing to change."""
        return nullcontext()

    def stream(self) -> int:
        """The only one."""
        return 1

    def capturing(self) -> bool:
        """Never."""
        return False

    def tensor(self, address: int, nbytes: int) -> torch.Tensor:
        """Memory that this process has."""
        import torch

        return torch.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype=torch.uint8)


def best_us(run: Callable[[], object], calls: int, repeats: int) -> float:
    """Microseconds of one run: the best of `repeats` means."""
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        for _ in range(calls):
            run()
        best = min(best, time.perf_counter() - started)
    return best / calls * 1e6


def _timed(op: GemmAllReduceOp, case: Case) -> dict[str, Any]:
    """Times of an op whose launches do nothing."""
    from mori_gemm_ar.gemm.launches import blank_rows, blank_weight
    from mori_gemm_ar.runtime.rocm import RocmTarget

    (a, a_scale), (b, b_scale) = blank_rows(op._contract, case.m), blank_weight(op._contract)
    operands = a, b, a_scale, b_scale
    target = RocmTarget(None, NoOpHip(), None, OneGpu())  # type: ignore[arg-type]
    target._functions = {code.key: _HANDLE for code in op._codes.values()}
    emulated, op.target = op.target, target
    op._ready.clear()
    try:
        op(*operands)  # type: ignore[arg-type]
        ((run, _),) = op._ready.values()
        launches = run.__self__.launches  # type: ignore[attr-defined]
        gc.disable()
        try:
            return {
                "op_call_us": best_us(lambda: op(*operands), case.calls, case.repeats),  # type: ignore[arg-type]
                "checks_us": best_us(lambda: op._usual(*operands), case.calls, case.repeats),  # type: ignore[arg-type]
                "launch_us": best_us(lambda: launches.run(1), case.calls, case.repeats),
                "launches": len(launches),
            }
        finally:
            gc.enable()
    finally:
        op.target = emulated
        op._ready.clear()


def measure(case: Case) -> dict[str, Any]:
    """Run a case; microseconds of this CPU."""
    from mori_gemm_ar.op import GemmAllReduceOp
    from mori_gemm_ar.runtime import LocalWorld

    def rank_body(context: RankContext) -> dict[str, Any] | None:
        shape: dict[str, Any] = {"n": case.n, "k": case.k, "m_max": case.m, "quant": case.quant, "b_layout": "row"}
        with GemmAllReduceOp.create(context, **shape, mode=case.mode, wire=case.wire, device="emulated") as op:
            return _timed(op, case) if context.rank == 0 else None

    times = LocalWorld(case.world, seed=0).run(rank_body)[0]
    assert times is not None, "rank 0 measures"
    share = times["op_call_us"] / times["launch_us"]
    return {
        **{name: getattr(value, "value", value) for name, value in asdict(case).items()},
        "op": "gemm_ar host",
        "device": "none, HIP does nothing",
        **times,
        "op_call_of_launch": share,
        "limits_hold": times["op_call_us"] <= MAX_CALL_US and share <= MAX_SHARE,
        "versions": versions(),
        "commit": git_commit(),
    }


def show(row: dict[str, Any]) -> None:
    """The row as a table on stderr."""
    lines = [
        ("whole call", f"{row['op_call_us']:.2f} us (limit {MAX_CALL_US:g})"),
        ("of it checks of operands", f"{row['checks_us']:.2f} us"),
        (f"{row['launches']} bare launches", f"{row['launch_us']:.2f} us"),
        ("call over launches", f"{row['op_call_of_launch']:.2f} (limit {MAX_SHARE:g})"),
    ]
    print_table(f"host time, {row['mode']}, m={row['m']}", ("", ""), lines)


app = typer.Typer(add_completion=False)


@app.command()
def main(
    m: Annotated[int, typer.Option(help="rows")] = 1024,
    world: Annotated[int, typer.Option(help="ranks")] = 2,
    quant: Annotated[Recipe, typer.Option(help="how the operands are scaled")] = Recipe.BLOCKSCALE,
    mode: Annotated[Mode, typer.Option(help="how the layer runs")] = Mode.FUSED_SDMA,
    wire: Annotated[Wire, typer.Option(help="what crosses the links")] = Wire.EXACT,
    calls: Annotated[int, typer.Option(min=1, help="calls of a repeat")] = 100,
    repeats: Annotated[int, typer.Option(min=1, help="repeats, of which the best counts")] = 300,
    check: Annotated[bool, typer.Option("--check", help="exit status 1 above the limits")] = False,
) -> None:
    """Time the host's part of a call of GemmAllReduceOp with a HIP that does nothing."""
    try:
        row = measure(Case(m=m, world=world, quant=quant, mode=mode, wire=wire, calls=calls, repeats=repeats))
    except MoriGemmArError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    show(row)
    print_result(row)
    raise typer.Exit(1 if check and not row["limits_hold"] else 0)


if __name__ == "__main__":
    app()
