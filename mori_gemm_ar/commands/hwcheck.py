# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""`hwcheck`: what the library assumes of the hardware, asked of the hardware; one report to send back."""

from __future__ import annotations

import os
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy loads: BLAS threads cost the emulator a factor of six

import typer

from mori_gemm_ar.commands.show import errors_as_exit, line, table

if TYPE_CHECKING:
    from mori_gemm_ar.hwcheck.report import Report
    from mori_gemm_ar.hwcheck.settings import Settings
    from mori_gemm_ar.runtime import World

_DEFAULT_RANKS = 2  # of the stand-in
_DEFAULT_MINUTES = 10.0


class Part(str, Enum):
    """Sections by name."""

    SEMANTICS = "semantics"
    LITMUS = "litmus"
    MICROBENCHMARKS = "microbenchmarks"
    PRODUCT = "product"


class Size(str, Enum):
    """How much is asked; auto: by the hardware."""

    AUTO = "auto"
    GPU = "gpu"
    STAND_IN = "stand-in"
    TINY = "tiny"


def hwcheck(
    world: Annotated[int, typer.Option(min=0, max=8, help="Ranks; 0: those of torchrun, else 2 of a stand-in.")] = 0,
    minutes: Annotated[float, typer.Option(help="Bound of the whole run.")] = _DEFAULT_MINUTES,
    out: Annotated[Path, typer.Option(help="The report, written anew after each section.")] = Path("report.json"),
    section: Annotated[list[Part] | None, typer.Option(help="Only this section, repeatable.")] = None,
    seed: Annotated[int, typer.Option(help="Of the inputs.")] = 0,
    effort: Annotated[Size, typer.Option(help="Sizes of everything.")] = Size.AUTO,
    alter: Annotated[list[str] | None, typer.Option(help="Deliberate fault of the stand-in, repeatable.")] = None,
) -> None:
    """Check emulator, memory model, time model and ops against this machine's GPUs; without one, against a stand-in.

    Exit 0: all confirmed; 1: something is refuted; 2: an argument; 3: incomplete, the report says why. Under torchrun
    each process is a rank with its GPU, and rank 0 writes the report.
    """
    with errors_as_exit():
        from mori_gemm_ar.hwcheck.hardware import close_world, open_world
        from mori_gemm_ar.hwcheck.run import hwcheck as run

        group = open_world(world)
        settings = _settings(world or _ranks(group), minutes, seed, effort, alter or [], section)
        leads = group is None or group.rank == 0
        say = (lambda text: print(text, file=sys.stderr, flush=True)) if leads else (lambda text: None)
        try:
            report = run(settings, group, out, say)
        finally:
            close_world(group)
        if leads:
            show(report, out)
    raise typer.Exit(report.outcome.value)


def _ranks(group: World | None) -> int:
    return _DEFAULT_RANKS if group is None else group.size


def _settings(
    world: int, minutes: float, seed: int, effort: Size, alter: list[str], section: list[Part] | None
) -> Settings:
    from mori_gemm_ar.hwcheck.alterations import parse_alteration
    from mori_gemm_ar.hwcheck.settings import EFFORTS, SectionName, Settings
    from mori_gemm_ar.runtime.select import DeviceKind, choose_device

    size = effort.value
    if effort is Size.AUTO:
        size = "gpu" if choose_device() is DeviceKind.ROCM else "stand-in"
    sections = tuple(SectionName(part.value) for part in section) if section else tuple(SectionName)
    return Settings(world, minutes, EFFORTS[size], seed, tuple(map(parse_alteration, alter)), sections)


# --- summary ---


def show(report: Report, out: Path) -> None:
    """What was confirmed, what was refuted, and which numbers are new."""
    from mori_gemm_ar.hwcheck.report import Verdict, count

    verdicts = [verdict for verdict in Verdict if any(check.verdict is verdict for _, check in report.checks)]
    rows = []
    for section in report.sections:
        numbers = [str(count(section.checks, verdict) or "") for verdict in verdicts]
        rows.append([section.name, section.status.value, f"{section.seconds:.0f}", *numbers, section.reason])
    columns = ("section", "status", "seconds", *(verdict.value for verdict in verdicts), "reason")
    kind = report.hardware["kind"]
    table(f"hwcheck of {kind}, clock: {report.hardware['clock']}", columns, rows, left=("status", "reason"))
    _show_checks(report, "litmus tests", ("litmus",))
    _show_constants(report)
    _show_effect(report)
    for title, verdict in (("REFUTED", Verdict.REFUTED), ("NO ANSWER", Verdict.FAILED)):
        for section, check in report.checks:
            if check.verdict is verdict:
                line(f"{title} {section.name}: {check.name}: {check.detail}")
    for text in report.suspects:
        line(f"SUSPECT {text}")
    if report.hardware["times_are_predicted"]:
        line(f"No GPU took part: this is {report.hardware['kind']}, and every time is predicted by the time model.")
    line(f"{report.outcome.name.lower()}; report in {out}")


def _show_checks(report: Report, title: str, names: tuple[str, ...]) -> None:
    rows = [
        (check.name, check.verdict.value, check.detail) for section, check in report.checks if section.name in names
    ]
    if rows:
        table(title, ("test", "verdict", "outcomes"), rows, left=("verdict", "outcomes"))


def _show_constants(report: Report) -> None:
    rows = []
    for _, check in report.checks:
        if check.name.startswith("constant ") and "unit" in check.data:
            data = check.data
            spread = "" if data.get("spread") is None else " to ".join(f"{one:.5g}" for one in data["spread"])
            value, shipped = f"{data['value']:.5g}", f"{data['shipped']:.5g}"
            rows.append(
                (check.name.removeprefix("constant "), shipped, value, spread, data["unit"], check.verdict.value)
            )
    if rows:
        table("constants of the time model", ("constant", "shipped", "new", "spread", "unit", "verdict"), rows)


def _show_effect(report: Report) -> None:
    rows = []
    for one in report.effect:
        shape = f"[{one['m']}, {one['n']}] K={one['k']} x{one['world']} {one['quant']}"
        before, after = (f"{one[f'{when}_us']:.1f} ({one[f'{when}_mode']})" for when in ("before", "after"))
        rows.append((shape, before, after, f"{100 * (one['after_us'] / one['before_us'] - 1):+.2f} %"))
    if rows:
        title = "effect of the new values on predictions, us, predicted"
        table(title, ("layer", "shipped constants", "new constants", "change"), rows)
