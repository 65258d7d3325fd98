# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""A whole run: the sections one after the other, each within its share of the time, and the report after each."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from mori_gemm_ar.errors import EmulatorError, HipError, MoriGemmArError
from mori_gemm_ar.hwcheck.hardware import Hardware, Processes, Rank, StandIn
from mori_gemm_ar.hwcheck.litmus import litmus
from mori_gemm_ar.hwcheck.machine import machine_facts, version_facts
from mori_gemm_ar.hwcheck.micro import effect_of, microbenchmarks
from mori_gemm_ar.hwcheck.product import product
from mori_gemm_ar.hwcheck.report import Report, Section, Status, Verdict
from mori_gemm_ar.hwcheck.section import Log, SectionWork
from mori_gemm_ar.hwcheck.semantics import semantics
from mori_gemm_ar.hwcheck.settings import Budget, SectionName, Settings
from mori_gemm_ar.hwcheck.suspects import suspects
from mori_gemm_ar.runtime import World

WORK: dict[SectionName, SectionWork] = {
    SectionName.SEMANTICS: semantics,
    SectionName.LITMUS: litmus,
    SectionName.MICROBENCHMARKS: microbenchmarks,
    SectionName.PRODUCT: product,
}
_NO_ANSWER = (Verdict.FAILED,)


def hardware_for(settings: Settings, world: World | None) -> Hardware:
    """The GPUs of `world`, a process for each; or, without one, a stand-in for all ranks."""
    return StandIn(settings) if world is None else Processes(settings, world)


def hwcheck(
    settings: Settings,
    world: World | None = None,
    out: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Run all sections and return the report; `out` is written anew after each. Collective where there is a world.

    An error of the library ends its section, not the run. Raises ConfigError for settings that make no sense here.
    """
    hardware = hardware_for(settings, world)
    report = _empty(hardware, settings)
    started = time.monotonic()
    for section in report.sections:
        if out is not None and hardware.leads:
            report.write(out)
        name = SectionName(section.name)
        progress(f"{section.name} ...")
        left = 60.0 * settings.minutes - (time.monotonic() - started)
        _run_section(hardware, section, name, Budget.start(min(60.0 * settings.minutes * name.share, left)), report)
        report.suspects = suspects(report)
    report.effect = effect_of(report.results)
    if out is not None and hardware.leads:
        report.write(out)
    return report


def _empty(hardware: Hardware, settings: Settings) -> Report:
    facts = {"kind": hardware.kind, "clock": hardware.clock, "times_are_predicted": hardware.predicted}
    chosen = {
        "world": settings.world,
        "minutes": settings.minutes,
        "seed": settings.seed,
        "alterations": [str(one) for one in settings.alterations],
    }
    sections = [Section(name.value) for name in settings.sections]
    return Report(facts, machine_facts(), version_facts(), chosen, sections)


def _run_section(hardware: Hardware, section: Section, name: SectionName, budget: Budget, report: Report) -> None:
    log = Log(section)
    started = time.monotonic()
    try:
        hardware.run(name, partial(_on_rank, name, log), budget)
        section.status, section.reason = Status.COMPLETE, log.cut
    except (EmulatorError, HipError) as error:
        # A machine that punishes what is allowed has answered.
        log.add(f"{name.value} without a fault", Verdict.REFUTED, f"{type(error).__name__}: {error}")
        section.status, section.reason = Status.FAILED, "a fault of the hardware ended it"
    except MoriGemmArError as error:
        section.status, section.reason = Status.FAILED, f"{type(error).__name__}: {error}"
    unanswered = [check.name for check in section.checks if check.verdict in _NO_ANSWER]
    if section.status is Status.COMPLETE and (log.cut or unanswered):
        section.status = Status.PARTIAL
        section.reason = log.cut or f"no answer to {', '.join(unanswered)}"
    section.seconds = time.monotonic() - started
    report.results.extend(log.rows)


def _on_rank(name: SectionName, log: Log, rank: Rank) -> Any:
    """Only rank 0's notes are kept."""
    WORK[name](rank, log if rank.rank == 0 else Log(Section(name.value)))
