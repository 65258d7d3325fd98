# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The benchmark card of a layer: runs what this machine can run, predicts the rest, prints Markdown.

`python benchmark/card.py` verifies torch's matmul and all-reduce and our emulated all-reduce at a small shape. On a
machine with enough GPUs the torch baseline is timed at the layer's own shape.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import typer

from benchmark.report import PREFIX, ROOT, git_commit, versions
from mori_gemm_ar.errors import MoriGemmArError, RendezvousError
from mori_gemm_ar.model.accuracy import held_out_error
from mori_gemm_ar.model.card import Card, Status, card
from mori_gemm_ar.model.constants import load
from mori_gemm_ar.model.records import load_records
from mori_gemm_ar.model.results import read_results, state_of
from mori_gemm_ar.model.terms import Layer, Quant

if TYPE_CHECKING:
    import torch

TORCH = "torch matmul (dequantised) + torch.distributed"
SMALL = (256, 1024, 512)  # rows of each rank, N, K of what is verified without GPUs: seconds, not minutes
ROUNDING = 1.66e-3  # relative L2 of one rounding to bf16, as published for these GEMMs
MARGIN = 1.3  # a gate below this multiple of the format's own error catches what a loose one passes
WARMUP, SAMPLES = 10, 50
RANKS_TIMEOUT_S = 300.0
TITLE_COLUMNS = 110  # of a drawing's title


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a rank of the torch baseline runs."""

    m: int
    n: int
    k: int
    world: int
    timed: bool
    port: int
    out: str


# --- torch ---


def tolerance(world: int) -> float:
    """Relative L2 that bf16 alone explains: each partial rounded once, then world - 1 sums of a growing total."""
    rounded = 1.0 + sum(k / world for k in range(2, world + 1))
    return MARGIN * ROUNDING * math.sqrt(rounded)


def _operands(case: Baseline, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A [m, k] and B [n, k] of a rank in fp32: e4m3 values times their 1x128 and 128x128 scales."""
    import torch

    generator = torch.Generator().manual_seed(1000 + rank)
    blocks = -(-case.n // 128)
    a = torch.randn((case.m, case.k // 128, 128), generator=generator).to(torch.float8_e4m3fn).float()
    b = torch.randn((case.n, case.k // 128, 128), generator=generator).to(torch.float8_e4m3fn).float()
    a_scale = 0.5 + torch.rand((case.m, case.k // 128, 1), generator=generator)
    b_scale = 0.5 + torch.rand((blocks, case.k // 128, 1), generator=generator)
    b_rows = b_scale.repeat_interleave(128, dim=0)[: case.n]
    return (a * a_scale).reshape(case.m, case.k), (b * b_rows).reshape(case.n, case.k)


def torch_rank(rank: int, case: Baseline) -> None:
    """One rank: matmul, all-reduce, check against fp64, and the time of both where there is a GPU."""
    import torch
    import torch.distributed as dist

    gpu = case.timed
    dist.init_process_group(
        "nccl" if gpu else "gloo", init_method=f"tcp://127.0.0.1:{case.port}", rank=rank, world_size=case.world
    )
    try:
        device = torch.device("cuda", rank) if gpu else torch.device("cpu")
        a32, b32 = _operands(case, rank)
        a, b = a32.to(device, torch.bfloat16), b32.to(device, torch.bfloat16)
        # bf16 holds e4m3 values exactly, their product with a scale it rounds: the reference starts from what it holds.
        reference = (a.double() @ b.double().T).contiguous()
        out = (a @ b.T).contiguous()
        dist.all_reduce(out)
        dist.all_reduce(reference)
        rel_l2 = float((out.double() - reference).norm() / reference.norm())
        times = _times(a, b) if gpu else []
        gathered: list[Any] = [None] * case.world
        dist.all_gather_object(gathered, (rel_l2, times))
        if rank == 0:
            # Maximum over ranks per sample first, then the median.
            slowest = sorted(max(sample) for sample in zip(*(times for _, times in gathered), strict=True))
            row = {
                "rel_l2": max(error for error, _ in gathered),
                "time_us": slowest[len(slowest) // 2] if slowest else None,
            }
            Path(case.out).write_text(json.dumps(row), encoding="utf-8")
    finally:
        dist.destroy_process_group()


def _times(a: torch.Tensor, b: torch.Tensor) -> list[float]:
    """Microseconds of matmul and all-reduce, a sample for each pair of events."""
    import torch
    import torch.distributed as dist

    found = []
    for sample in range(WARMUP + SAMPLES):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        dist.barrier()
        start.record()
        dist.all_reduce(a @ b.T)
        end.record()
        end.synchronize()
        if sample >= WARMUP:
            found.append(start.elapsed_time(end) * 1e3)
    return found


def _join(ranks: Any) -> None:
    """Wait for all ranks, end those that hang; a rank's own error comes through."""
    deadline = time.monotonic() + RANKS_TIMEOUT_S
    try:
        while not ranks.join(timeout=max(deadline - time.monotonic(), 0.1)):
            if time.monotonic() > deadline:
                raise RendezvousError(f"a rank of the torch baseline was not done after {RANKS_TIMEOUT_S:.0f} s")
    finally:
        for process in ranks.processes:
            process.kill()


def torch_row(layer: Layer, ranks: int) -> dict[str, Any]:
    """RESULT_JSON row of the torch baseline: timed at the layer's shape with enough GPUs, else verified small."""
    import torch
    import torch.multiprocessing as mp

    timed = torch.cuda.is_available() and torch.cuda.device_count() >= layer.world > 1
    world = layer.world if timed else ranks
    m, n, k = (layer.m, layer.n, layer.k) if timed else (SMALL[0] * ranks, SMALL[1], SMALL[2])
    with TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        case = Baseline(m, n, k, world, timed, port, str(Path(folder, "row.json")))
        _join(mp.spawn(torch_rank, args=(case,), nprocs=world, join=False))
        outcome = json.loads(Path(case.out).read_text(encoding="utf-8"))
    limit = tolerance(world)
    good = outcome["rel_l2"] <= limit
    return {
        "mode": TORCH,
        "wire": "bf16",
        "validated": good,
        "failure": None if good else f"rel_l2={outcome['rel_l2']:.3e} must be at most {limit:.3e}",
        "rel_l2": outcome["rel_l2"],
        "device": torch.cuda.get_device_name(0) if timed else "cpu, gloo",
        "time_us": outcome["time_us"],
        "m": m,
        "n": n,
        "k": k,
        "world_size": world,
        "quant": layer.quant.value,
        **state(),
    }


# --- ours and others ---


def emulated_row(ranks: int) -> dict[str, Any]:
    """RESULT_JSON row of our all-reduce on emulated GPUs, in a process of its own."""
    script = ROOT / "benchmark" / "bench_ar.py"
    command = [sys.executable, str(script), "--local-world", str(ranks), "--m", str(SMALL[0]), "--n", str(SMALL[1])]
    run = subprocess.run(command, text=True, capture_output=True, timeout=RANKS_TIMEOUT_S, cwd=ROOT)
    for line in run.stdout.splitlines():
        if line.startswith(PREFIX):
            return dict(json.loads(line[len(PREFIX) :]))
    failure = (run.stderr.strip().splitlines() or ["bench_ar.py printed no row"])[-1]
    return {"benchmark": "all_reduce", "validated": False, "failure": failure, "world_size": ranks, **state()}


def state() -> dict[str, Any]:
    """The state of the software that rows of one card share."""
    return {"git_commit": git_commit(), "versions": versions()}


def absent() -> Iterator[str]:
    """Baselines that this machine cannot run, with the way to get them."""
    others = (
        ("mori.ops.gemm_ar", "mori", "pip install 'mori_gemm_ar[rocm]' on a machine with ROCm and a gfx950"),
        ("aiter", "aiter", "install aiter on a machine with ROCm and a gfx950"),
    )
    for name, module, way in others:
        if importlib.util.find_spec(module) is None:
            yield f"{name}: not run, not importable; {way}"
        else:
            yield f"{name}: not run by this script; run its own benchmark and pass its RESULT_JSON rows with --rows"


def plot(path: Path, page: Card) -> None:
    """Bars of all rows with a time, measured ones filled."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [(row, row.us) for row in page.rows if row.us is not None and row.status is not Status.REFUSED]
    figure = Figure(figsize=(11, 1.5 + 0.32 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for position, (row, us) in enumerate(rows):
        measured = row.status is Status.MEASURED
        fill: dict[str, Any] = {"color": "tab:blue"}
        axes.barh(position, us, **(fill if measured else {"color": "none", "edgecolor": "tab:blue", "hatch": "///"}))
    axes.set_yticks(range(len(rows)), [f"{row.name}, {row.wire}" for row, _ in rows])
    axes.invert_yaxis()
    axes.set(xlabel="us, hatched bars are predicted", title="\n".join(textwrap.wrap(page.header, TITLE_COLUMNS)))
    axes.title.set_fontsize(8)
    figure.savefig(path, dpi=130)


# --- command line ---

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    m: Annotated[int, typer.Option(help="Rows of the layer.")] = 16384,
    n: Annotated[int, typer.Option(help="Columns.")] = 7168,
    k: Annotated[int, typer.Option(help="K of one rank.")] = 2048,
    world: Annotated[int, typer.Option(help="Ranks of the layer.")] = 8,
    quant: Annotated[Quant, typer.Option(help="Scaling of the operands.")] = Quant.BLOCKSCALE,
    ranks: Annotated[int, typer.Option(min=2, max=8, help="Ranks of what is verified without GPUs.")] = 2,
    rows: Annotated[Path | None, typer.Option(help="Folder or file with more RESULT_JSON rows.")] = None,
    machine: Annotated[Path | None, typer.Option(help="Constants file of the predictions.")] = None,
    run: Annotated[bool, typer.Option(help="Run and verify what this machine can run.")] = True,
    markdown: Annotated[Path | None, typer.Option(help="Write the card to this file too.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the card as JSON.")] = None,
    plot_file: Annotated[Path | None, typer.Option("--plot", help="Draw the card.")] = None,
) -> None:
    """Print the card of a layer. Exit 1: something that ran did not verify; 2: bad arguments."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        layer, constants = Layer(m, n, k, world, quant), load(machine)
        results = [torch_row(layer, ranks), emulated_row(ranks)] if run else []
        given = [] if rows is None else read_results(rows)
        error = held_out_error(constants, load_records())
        page = card(constants, error, layer, [*results, *given], state_of(state()))
    except MoriGemmArError as problem:
        print(f"card: {problem}", file=sys.stderr)
        raise typer.Exit(2) from None
    text = page.to_markdown() + "".join(f"\n- {line}" for line in absent()) + "\n"
    print(text)
    if markdown is not None:
        markdown.write_text(text, encoding="utf-8")
    if json_file is not None:
        json_file.write_text(json.dumps(page.to_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if plot_file is not None:
        plot(plot_file, page)
    if any(result.get("validated") is not True for result in results):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
