# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""fp8 GEMM benchmark: checks every element of every call, then times, and prints one RESULT_JSON line.

`measure` runs a case, `main` is the command line. Emulated calls have no GPU time; what they took on this CPU is given
as such, next to a batched float32 matmul, of which a good emulator reaches a share.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Read once, when NumPy loads. Below, the repository root makes `benchmark` importable when the script runs by path.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import statistics
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmark.bench_emulator import BATCH, SIDE, reference_seconds
from benchmark.gemm_check import FEW, MAX_REL_L2, deviation, product_bound
from benchmark.report import git_commit, print_result, print_table, progress, versions
from mori_gemm_ar.errors import MoriGemmArError
from mori_gemm_ar.layout import BLayout, Recipe

if TYPE_CHECKING:
    import torch

    from mori_gemm_ar.gemm import GemmOp

REFERENCE_FLOPS = 2 * BATCH * SIDE**3


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured. Each call gets new data; `warmup` calls are checked and not timed."""

    m: int
    n: int
    k: int
    quant: Recipe
    b_layout: BLayout = BLayout.PRESHUFFLED
    calls: int = 3
    warmup: int = 1
    seed: int = 0
    device: str = "auto"


@dataclass(frozen=True, slots=True)
class _Data:
    """Operands of one call, and float64 factors of A [M, K] and B [N, K]."""

    operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
    a: torch.Tensor
    b: torch.Tensor


def _data(case: Case, call: int) -> _Data:
    import torch

    from mori_gemm_ar.gemm import pack_a_exponents, preshuffle_b

    g = torch.Generator().manual_seed(case.seed * 1009 + call)
    a, b = ((torch.randn(rows, case.k, generator=g) * 64).to(torch.float8_e4m3fn) for rows in (case.m, case.n))
    edge = {Recipe.PTPC: 1, Recipe.BLOCKSCALE: 128, Recipe.MXFP8: 32}[case.quant]
    width = case.k if case.quant is Recipe.PTPC else edge
    blocks = case.k // width
    exponents = [
        torch.randint(-4, 3, (rows, blocks), generator=g) for rows in (case.m, -(-case.n // edge))
    ]  # powers of two are scales in every recipe
    factors = [torch.exp2(e.double()).repeat_interleave(width, 1) for e in exponents]
    wide_a = a.double() * factors[0]
    wide_b = b.double() * factors[1].repeat_interleave(edge, 0)[: case.n]
    if case.quant is Recipe.MXFP8:
        biased = [(e + 127).to(torch.uint8) for e in exponents]
        scales = [pack_a_exponents(biased[0]), biased[1]]
    else:
        scales = [torch.exp2(e.float()) for e in exponents]
        scales[0] = scales[0].t().contiguous() if case.quant is Recipe.BLOCKSCALE else scales[0][:, 0].contiguous()
        scales[1] = scales[1] if case.quant is Recipe.BLOCKSCALE else scales[1][:, 0].contiguous()
    stored = preshuffle_b(b) if case.b_layout is BLayout.PRESHUFFLED else b
    return _Data((a, stored, scales[0], scales[1]), wide_a, wide_b)


def _failure(out: torch.Tensor, data: _Data, k: int) -> tuple[float, str | None]:
    """relL2, and what is wrong: an element past half an ulp of bf16 plus the rounding of a sum of k products."""
    reference, got = data.a @ data.b.t(), out.double().cpu()
    found = deviation(got, reference, product_bound(reference, data.a.abs() @ data.b.abs().t(), k))
    rel_l2 = found.rel_l2
    if found.first is not None:
        at = found.first
        return rel_l2, f"{found.wrong} elements differ, the first at {at}: {float(got[at])}, not {float(reference[at])}"
    few = reference.numel() < FEW
    return rel_l2, None if rel_l2 <= MAX_REL_L2 or few else f"relL2={rel_l2:.2e} must be at most {MAX_REL_L2}"


def _timed(op: GemmOp, operands: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, float, float | None]:
    """(result, seconds on this CPU, microseconds on the GPU)."""
    import torch

    if op.target.name != "rocm":
        started = time.perf_counter()
        out = op(*operands)  # type: ignore[arg-type]
        return out, time.perf_counter() - started, None
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    started = time.perf_counter()
    first.record()
    out = op(*operands)  # type: ignore[arg-type]
    last.record()
    last.synchronize()
    return out, time.perf_counter() - started, first.elapsed_time(last) * 1e3


def measure(case: Case) -> dict[str, Any]:
    """Run a case; the row says so when a call was wrong, and then gives no times."""
    from mori_gemm_ar.gemm import GemmOp

    op = GemmOp.create(n=case.n, k=case.k, quant=case.quant, b_layout=case.b_layout, device=case.device)
    op.warmup()
    walls, device_us, worst, failure = [], [], 0.0, None
    with progress("calls", case.warmup + case.calls) as step:
        for call in range(case.warmup + case.calls):
            data = _data(case, call)
            moved = tuple(tensor.to(op.target.torch_device) for tensor in data.operands)
            out, wall, on_gpu = _timed(op, moved)
            rel_l2, failure = _failure(out, data, case.k)
            worst = max(worst, rel_l2)
            if failure:
                failure = f"call {call}: {failure}"
                break
            if call >= case.warmup:
                walls.append(wall)
                device_us += [] if on_gpu is None else [on_gpu]
            step()
    flops = 2 * case.m * case.n * case.k
    emulated = op.target.name == "emulated"
    best = min(walls) if walls and not failure else None
    rate = flops / best / 1e9 if best and emulated else None
    share = rate * 1e9 / (REFERENCE_FLOPS / reference_seconds()) if rate else None
    return {
        **{name: getattr(value, "value", value) for name, value in asdict(case).items()},
        "op": "gemm",
        "device": op.target.name,
        "kernel": op.plan(case.m).key if case.m else None,
        "validated": failure is None,
        "failure": failure,
        "rel_l2": worst,
        "time_us": statistics.median(device_us) if device_us and not failure else None,
        "emulated_wall_s": statistics.median(walls) if best and emulated else None,
        "emulated_wall_best_s": best if emulated else None,
        "emulated_gflops": rate,
        "emulated_of_float32_matmul": share,
        "versions": versions(),
        "commit": git_commit(),
    }


def show(row: dict[str, Any]) -> None:
    """The row as a table on stderr."""
    lines = [
        ("validated", "yes, every element of every call" if row["validated"] else f"NO: {row['failure']}"),
        ("largest relL2", f"{row['rel_l2']:.3e}"),
        ("kernel", str(row["kernel"])),
        ("GPU time", "none, emulated" if row["time_us"] is None else f"median {row['time_us']:.1f} us"),
    ]
    if row["emulated_wall_s"] is not None:
        share = row["emulated_of_float32_matmul"]
        lines.append(
            ("CPU time of a call", f"median {row['emulated_wall_s']:.3f} s, {row['emulated_gflops']:.1f} GFLOP/s")
        )
        lines.append(("of this CPU's float32 matmul", f"{share:.1%}" if share else "no work"))
    shape = f"[{row['m']}, {row['k']}] x [{row['n']}, {row['k']}]"
    print_table(f"fp8 GEMM {shape}, {row['quant']}, B {row['b_layout']}", ("", ""), lines)


app = typer.Typer(add_completion=False)


@app.command()
def main(
    m: Annotated[int, typer.Option(help="rows of A and C")] = 1024,
    n: Annotated[int, typer.Option(help="rows of B, columns of C; a multiple of 16")] = 1024,
    k: Annotated[int, typer.Option(help="columns of A and B; a multiple of 128")] = 512,
    quant: Annotated[Recipe, typer.Option(help="how the operands are scaled")] = Recipe.BLOCKSCALE,
    b_layout: Annotated[BLayout, typer.Option(help="order of B's bytes")] = BLayout.PRESHUFFLED,
    calls: Annotated[int, typer.Option(min=1, help="timed calls")] = 3,
    warmup: Annotated[int, typer.Option(min=0, help="calls before them")] = 1,
    seed: Annotated[int, typer.Option(help="of the data")] = 0,
    device: Annotated[str, typer.Option(help="auto, rocm or emulated")] = "auto",
) -> None:
    """Check and time C[m, n] = A[m, k] B[n, k]^T; exit status 1 when a result is wrong."""
    try:
        row = measure(Case(m, n, k, quant, b_layout, calls, warmup, seed, device))
    except MoriGemmArError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    show(row)
    print_result(row)
    raise typer.Exit(0 if row["validated"] else 1)


if __name__ == "__main__":
    app()
