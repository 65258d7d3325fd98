# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""`prove`: mutants of every pipeline, and clean seeds."""

from __future__ import annotations

import json
import os
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy loads: BLAS threads cost the emulator a factor of six

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table


class Tier(str, Enum):
    """How much is run."""

    CI = "ci"  # clean seeds spread over the pipelines of a family
    FULL = "full"  # clean seeds for each pipeline


def prove(
    pipeline: Annotated[str, typer.Option(help="A pipeline or family (lsa, sdma, gemm, layers); all without it.")] = "",
    tier: Annotated[Tier, typer.Option(help="ci: clean seeds spread over a family; full: for each.")] = Tier.CI,
    seeds: Annotated[int, typer.Option(help="Clean seeds; 0: what family and tier say.")] = 0,
    workers: Annotated[int, typer.Option(help="Processes; 0: one per core.")] = 0,
    mutant: Annotated[str, typer.Option(help="Replay one mutant, e.g. all-reduce:drop-barrier@95.")] = "",
    seed: Annotated[int, typer.Option(help="Replay this seed (with --mutant, or alone with --pipeline).")] = -1,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write all verdicts here.")] = None,
) -> None:
    """Every mutant must be noticed, and no clean seed may be. Exit 1 on a survivor or a false alarm, 2 for a name that
    there is not."""
    from mori_gemm_ar.commands.show import errors_as_exit
    from mori_gemm_ar.proof import PIPELINES, clean_seeds, pipelines_named
    from mori_gemm_ar.proof import prove as run_proof

    console = Console()
    with errors_as_exit():
        chosen = list(pipelines_named(pipeline) if pipeline else PIPELINES)
        if mutant or seed >= 0:
            raise typer.Exit(_replay(console, chosen, mutant, max(seed, 0)))
    columns = ("[progress.description]{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("mutants and clean seeds")
        summary = run_proof(
            chosen,
            clean_seeds(chosen, full=tier is Tier.FULL, seeds=seeds),
            workers=workers or os.cpu_count() or 1,
            full=tier is Tier.FULL or bool(pipeline),  # whoever names one wants all of it
            progress=lambda done, total: progress.update(bar, completed=done, total=total),
        )
    _print(console, summary)
    if json_path is not None:
        json_path.write_text(json.dumps(_as_json(summary), indent=1) + "\n")
    console.print(summary.line, soft_wrap=True, highlight=False)
    raise typer.Exit(0 if summary.ok else 1)


def _replay(console: Console, pipelines: list[Any], mutant: str, seed: int) -> int:
    from mori_gemm_ar.errors import ConfigError
    from mori_gemm_ar.proof.runner import find_mutants, run_clean, try_mutant

    noticed = 0
    if mutant and not any(find_mutants(pipeline, mutant) for pipeline in pipelines):
        raise ConfigError(f"mutant={mutant!r} must be one of its pipeline, as <kernel>:<operator>@<line>")
    for pipeline in pipelines:
        if not mutant:
            verdict = run_clean(pipeline, seed)
            noticed += verdict is not None
            text = f"{verdict.catcher.value}: {verdict.detail}" if verdict else "clean"
            console.print(f"{pipeline.name}, seed {seed}: {text}", soft_wrap=True)
            continue
        for found in find_mutants(pipeline, mutant):
            console.print(f"{pipeline.name}, {found.name}: {found.original}  ->  {found.changed}", soft_wrap=True)
            for verdict in try_mutant(pipeline, found, [seed]):
                noticed += verdict.catcher.value in ("survived",)
                console.print(f"  on {verdict.ranks}: {verdict.catcher.value}: {verdict.detail}", soft_wrap=True)
    return 1 if noticed else 0


def _print(console: Console, summary: Any) -> None:
    from mori_gemm_ar.proof import Catcher

    table = Table(title="Mutants by pipeline and by what noticed them")
    catchers = [c for c in Catcher if any(v.catcher is c for v in summary.mutants)]
    table.add_column("pipeline")
    table.add_column("mutants", justify="right")
    for catcher in catchers:
        table.add_column(catcher.value, justify="right")
    for name in dict.fromkeys(v.pipeline for v in summary.mutants):
        own = [v for v in summary.mutants if v.pipeline == name]
        table.add_row(name, str(len(own)), *(str(sum(v.catcher is c for v in own)) for c in catchers))
    console.print(table)
    for verdict in [*summary.false_alarms, *(v for v in summary.mutants if v.catcher is Catcher.SURVIVED)]:
        title = "FALSE ALARM" if verdict in summary.false_alarms else "SURVIVOR"
        console.print(
            f"{title} {verdict.pipeline} {verdict.mutant}: {verdict.original} -> {verdict.changed}", soft_wrap=True
        )
        console.print(f"  {verdict.catcher.value}: {verdict.detail}\n  replay: {verdict.replay}", soft_wrap=True)


def _as_json(summary: Any) -> dict[str, Any]:
    from dataclasses import asdict

    def row(verdict: Any) -> dict[str, Any]:
        return {**asdict(verdict), "catcher": verdict.catcher.value, "replay": verdict.replay}

    return {
        "summary": summary.line,
        "ok": summary.ok,
        "clean_seeds": summary.clean_seeds,
        "mutants": [row(v) for v in summary.mutants],
        "applications": [row(v) for v in summary.verdicts],
        "false_alarms": [row(v) for v in summary.false_alarms],
    }
