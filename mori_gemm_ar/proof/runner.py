# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Runs mutants and clean seeds, and says which check caught what."""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files

from mori_gemm_ar.errors import (
    CollectiveError,
    DeadlockError,
    EmulatorError,
    IsaError,
    MoriGemmArError,
)
from mori_gemm_ar.proof.mutants import Mutant, Operator, pipeline_mutants
from mori_gemm_ar.proof.pipelines import Codes, Pipeline, WrongResult, kernel_named, mutated, original
from mori_gemm_ar.proof.registry import pipeline_named

# Seeds that a mutant may live through before it counts as a survivor.
MUTANT_SEEDS = 6


class Catcher(enum.Enum):
    """What noticed a fault."""

    AUDIT = "audit"
    NUMERICS = "numerics"
    RACE = "race"
    WATCHDOG = "watchdog"  # a bounded wait ran out, or nothing could progress
    FAULT = "fault"  # an access or state that the emulator refuses
    EQUIVALENT = "equivalent"  # it changes nothing, for a written reason
    SURVIVED = "survived"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one mutant ended."""

    pipeline: str
    mutant: str
    original: str
    changed: str
    ranks: str
    catcher: Catcher
    seed: int
    detail: str

    @property
    def replay(self) -> str:
        """Command that runs this mutant and seed alone."""
        return f"python -m mori_gemm_ar prove --pipeline {self.pipeline} --mutant {self.mutant} --seed {self.seed}"


def _classify(error: Exception) -> Catcher:
    if type(error).__name__ == "RaceError":
        return Catcher.RACE
    if isinstance(error, WrongResult):
        return Catcher.NUMERICS
    if isinstance(error, DeadlockError | CollectiveError):
        return Catcher.WATCHDOG
    if isinstance(error, EmulatorError | IsaError):
        return Catcher.FAULT
    raise error


def observe(pipeline: Pipeline, seed: int, codes: Codes) -> tuple[Catcher, str] | None:
    """Exercise a pipeline; None when nothing was noticed."""
    try:
        pipeline.exercise(seed, codes)
    except (WrongResult, MoriGemmArError) as error:
        return _classify(error), str(error).splitlines()[0]
    return None


# ---- equivalent mutants --------------------------------------------------------------------------------------
@cache
def _equivalents() -> dict[tuple[str, int, str], str]:
    text = files("mori_gemm_ar.proof").joinpath("equivalents.json").read_text()
    return {(e["isa"], e["line"], e["operator"]): e["reason"] for e in json.loads(text)["equivalents"]}


def isa_hash(isa: str) -> str:
    """Key of an ISA text in equivalents.json."""
    return sha256(isa.encode()).hexdigest()[:16]


def equivalence(pipeline: Pipeline, mutant: Mutant) -> str | None:
    """The written reason why a mutant changes nothing, if there is one for exactly this text, line and operator."""
    isa = kernel_named(pipeline, mutant.kernel).code.isa
    return _equivalents().get((isa_hash(isa), mutant.line, mutant.operator.value))


# ---- mutants -------------------------------------------------------------------------------------------------
def _audit(pipeline: Pipeline, mutant: Mutant) -> str | None:
    """The first rule that the mutant breaks."""
    from mori_gemm_ar.audit import audit_text

    report = audit_text(mutant.isa, kernel_named(pipeline, mutant.kernel).config)
    for rule in report.rules:
        if not rule.ok:
            return f"{rule.name}: {rule.findings[0].why}" if rule.findings else rule.name
    return None


def try_mutant(pipeline: Pipeline, mutant: Mutant, seeds: Sequence[int]) -> list[Verdict]:
    """Apply a mutant to one rank and, where there are more, to all; one verdict for each."""

    def verdict(ranks: str, catcher: Catcher, seed: int, detail: str) -> Verdict:
        return Verdict(pipeline.name, mutant.name, mutant.original, mutant.changed, ranks, catcher, seed, detail)

    everyone = frozenset(range(pipeline.world))
    choices = {"all": everyone} if pipeline.world == 1 else {"one": frozenset({pipeline.world // 2}), "all": everyone}
    # A wait for a register result is not needed by any other thread: only dataflow can tell.
    static_first = mutant.operator in (Operator.DROP_WAIT, Operator.LOOSEN_WAIT)
    broken = _audit(pipeline, mutant) if static_first else None
    if broken:
        return [verdict(ranks, Catcher.AUDIT, -1, broken) for ranks in choices]
    verdicts = []
    for ranks, chosen in choices.items():
        verdicts.append(_try_on(pipeline, mutant, ranks, chosen, seeds, verdict))
    return verdicts


def _try_on(
    pipeline: Pipeline,
    mutant: Mutant,
    ranks: str,
    chosen: frozenset[int],
    seeds: Sequence[int],
    verdict: Callable[[str, Catcher, int, str], Verdict],
) -> Verdict:
    for seed in seeds:
        noticed = observe(pipeline, seed, mutated(mutant.kernel, mutant.isa, chosen))
        if noticed is not None:
            return verdict(ranks, noticed[0], seed, noticed[1])
    broken = _audit(pipeline, mutant)
    if broken:
        return verdict(ranks, Catcher.AUDIT, -1, broken)
    reason = equivalence(pipeline, mutant)
    if reason is not None:
        return verdict(ranks, Catcher.EQUIVALENT, -1, reason)
    return verdict(ranks, Catcher.SURVIVED, seeds[-1], "nothing noticed it")


def run_clean(pipeline: Pipeline, seed: int) -> Verdict | None:
    """Run the shipped code; a verdict when something was noticed, that is, a false alarm or a real fault."""
    noticed = observe(pipeline, seed, original)
    if noticed is None:
        return None
    return Verdict(pipeline.name, "none", "", "", "all", noticed[0], seed, noticed[1])


# ---- the whole proof -----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Task:
    """One unit of work for a worker process: a mutant (by name), or a clean seed (mutant "")."""

    pipeline: str
    mutant: str
    seeds: tuple[int, ...]


def tasks_for(pipelines: Sequence[Pipeline], seeds: int, *, per_pipeline: bool) -> list[Task]:
    """All mutants of all pipelines, and clean seeds: `seeds` for each pipeline, or spread over all of them."""
    tasks = []
    for number, pipeline in enumerate(pipelines):
        # A name can stand for two mutants: a scope can be weakened in more than one step.
        names = dict.fromkeys(mutant.name for mutant in pipeline_mutants(pipeline))
        tasks += [Task(pipeline.name, name, tuple(range(MUTANT_SEEDS))) for name in names]
        clean = range(seeds) if per_pipeline else range(number, seeds, len(pipelines))
        tasks += [Task(pipeline.name, "", (seed,)) for seed in clean]
    return tasks


def find_mutants(pipeline: Pipeline, name: str) -> list[Mutant]:
    """The mutants of that name; a scope can be weakened in more than one step."""
    return [mutant for mutant in pipeline_mutants(pipeline) if mutant.name == name]


def work(task: Task) -> list[Verdict]:
    """Run one task; an empty list is a clean seed."""
    pipeline = pipeline_named(task.pipeline)
    if not task.mutant:
        found = run_clean(pipeline, task.seeds[0])
        return [found] if found else []
    return [v for m in find_mutants(pipeline, task.mutant) for v in try_mutant(pipeline, m, task.seeds)]


_ORDER = (Catcher.NUMERICS, Catcher.RACE, Catcher.WATCHDOG, Catcher.FAULT, Catcher.AUDIT, Catcher.EQUIVALENT)


@dataclass(frozen=True, slots=True)
class Summary:
    """A proof run: one verdict per application (to one rank, to all), false alarms, and clean seeds."""

    verdicts: tuple[Verdict, ...]
    false_alarms: tuple[Verdict, ...]
    clean_seeds: int

    @property
    def mutants(self) -> tuple[Verdict, ...]:
        """One verdict per mutant: the strongest of its applications. A late but complete signal of one rank harms
        nobody, so that being noticed on all ranks is enough."""
        best: dict[tuple[str, str, str], Verdict] = {}
        for verdict in self.verdicts:
            key = (verdict.pipeline, verdict.mutant, verdict.changed)
            if key not in best or _rank(verdict) < _rank(best[key]):
                best[key] = verdict
        return tuple(best.values())

    def count(self, catcher: Catcher) -> int:
        """Mutants with this end."""
        return sum(v.catcher is catcher for v in self.mutants)

    @property
    def ok(self) -> bool:
        """No survivor and no false alarm."""
        return not self.false_alarms and self.count(Catcher.SURVIVED) == 0

    @property
    def line(self) -> str:
        """`killed K/T, equivalent E, survivors S, seeds N clean`."""
        total, equal, left = len(self.mutants), self.count(Catcher.EQUIVALENT), self.count(Catcher.SURVIVED)
        return (
            f"killed {total - equal - left}/{total}, equivalent {equal}, survivors {left}, "
            f"seeds {self.clean_seeds} clean"
        )


def _rank(verdict: Verdict) -> int:
    return _ORDER.index(verdict.catcher) if verdict.catcher in _ORDER else len(_ORDER)


def prove(
    pipelines: Sequence[Pipeline],
    seeds: int,
    *,
    per_pipeline: bool = False,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Summary:
    """Prove pipelines: every mutant has to be noticed, and no clean seed may be."""
    tasks = tasks_for(pipelines, seeds, per_pipeline=per_pipeline)
    verdicts: list[Verdict] = []
    alarms: list[Verdict] = []
    clean = 0
    for done, (task, found) in enumerate(_results(tasks, workers or os.cpu_count() or 1), start=1):
        if task.mutant:
            verdicts += found
        else:
            alarms += found
            clean += not found
        progress(done, len(tasks))
    return Summary(tuple(verdicts), tuple(alarms), clean)


def _results(tasks: Sequence[Task], workers: int) -> Iterator[tuple[Task, list[Verdict]]]:
    if workers == 1:
        yield from ((task, work(task)) for task in tasks)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from zip(tasks, pool.map(work, tasks, chunksize=1), strict=True)
