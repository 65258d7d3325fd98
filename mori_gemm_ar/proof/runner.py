# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Runs mutants and clean seeds, and says which check caught what."""

from __future__ import annotations

import enum
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from hashlib import sha256
from importlib.resources import files

from mori_gemm_ar.audit import RULES, audit_text
from mori_gemm_ar.audit.rules import Rule, register_waits
from mori_gemm_ar.errors import (
    CollectiveError,
    DeadlockError,
    EmulatorError,
    IsaError,
    MoriGemmArError,
)
from mori_gemm_ar.proof.mutants import WAITS, Mutant, Role, pipeline_mutants
from mori_gemm_ar.proof.pipelines import Codes, Pipeline, WrongResult, kernel_named, mutated, original
from mori_gemm_ar.proof.registry import FULL_ONLY, pipeline_named

# Seeds that a mutant may live through before it counts as a survivor, and more of them for tier full: a scenario that
# stands in every fourth seed, and shows a fault in one run of some, needs them.
MUTANT_SEEDS = 6
MORE_SEEDS = range(MUTANT_SEEDS, 34)


class Catcher(enum.Enum):
    """What noticed a fault."""

    AUDIT = "audit"
    NUMERICS = "numerics"
    RACE = "race"
    WATCHDOG = "watchdog"  # a bounded wait ran out, or nothing could progress
    FAULT = "fault"  # an access or state that the emulator refuses
    EQUIVALENT = "equivalent"  # it changes nothing, for a written reason
    SURVIVED = "survived"
    PACING = "pacing"  # a barrier that is declared to only pace: nothing noticed that it was gone
    NEEDED = "needed"  # a barrier that is declared to only pace: something did


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
# One config in some builds has these the other way round; nothing else of a text varies.
_COMMUTATIVE = re.compile(r"(\s*s_(?:addc?|mul|and|or|xor)_[biu]\d+ [^,]+), ([^,\s]+), ([^,\s]+)$")


@cache
def _equivalents() -> dict[tuple[str, int, str], str]:
    text = files("mori_gemm_ar.proof").joinpath("equivalents.json").read_text()
    return {(e["isa"], e["line"], e["operator"]): e["reason"] for e in json.loads(text)["equivalents"]}


def _sorted_sources(line: str) -> str:
    """A line of ISA text, its two sources in one order where the order means nothing."""
    found = _COMMUTATIVE.match(line)
    return f"{found[1]}, {', '.join(sorted(found.groups()[1:]))}" if found else line


@lru_cache(maxsize=8)
def isa_hash(isa: str) -> str:
    """Key of an ISA text in equivalents.json, whichever source of a sum LLVM happens to write first."""
    return sha256("\n".join(map(_sorted_sources, isa.splitlines())).encode()).hexdigest()[:16]


def equivalence(pipeline: Pipeline, mutant: Mutant) -> str | None:
    """The written reason why a mutant changes nothing, if there is one for exactly this text, line and operator."""
    isa = kernel_named(pipeline, mutant.kernel).code.isa
    return _equivalents().get((isa_hash(isa), mutant.line, mutant.operator.value))


# ---- mutants -------------------------------------------------------------------------------------------------
def _audit(pipeline: Pipeline, mutant: Mutant, rules: Sequence[Rule] = RULES) -> str | None:
    """The first rule that the mutant breaks."""
    report = audit_text(mutant.isa, kernel_named(pipeline, mutant.kernel).config, rules)
    for rule in report.rules:
        if not rule.ok:
            return f"{rule.name}: {rule.findings[0].why}" if rule.findings else rule.name
    return None


def try_mutant(
    pipeline: Pipeline, mutant: Mutant, seeds: Sequence[int], *, more_seeds: Sequence[int] = (), full: bool = True
) -> list[Verdict]:
    """Apply a mutant to one rank and, where there are more, to all; one verdict for each.

    more_seeds: for one that neither shows with, applied to all ranks. Not in full, one that the audit sees is not run,
    and the second is left out where the first is noticed.
    """

    def verdict(ranks: str, catcher: Catcher, seed: int, detail: str) -> Verdict:
        return Verdict(pipeline.name, mutant.name, mutant.original, mutant.changed, ranks, catcher, seed, detail)

    everyone = frozenset(range(pipeline.world))
    choices = {"all": everyone} if pipeline.world == 1 else {"one": frozenset({pipeline.world // 2}), "all": everyone}
    # A wait for a register result is not needed by any other thread: only dataflow can tell.
    for_registers = mutant.operator in WAITS and mutant.role is Role.UNMARKED
    broken = (for_registers and _audit(pipeline, mutant, (register_waits,))) or _audit(pipeline, mutant)
    unrun = for_registers or (not full and mutant.role is not Role.PACING)
    if unrun and broken:
        return [verdict(ranks, Catcher.AUDIT, -1, broken) for ranks in choices]
    if mutant.idle:
        return [verdict(ranks, Catcher.EQUIVALENT, -1, mutant.idle) for ranks in choices]
    verdicts = []
    for ranks, chosen in choices.items():
        end = _try_on(pipeline, mutant, ranks, chosen, seeds, broken, verdict)
        verdicts.append(_as_pacing(end) if mutant.role is Role.PACING else end)
        if not full and end.catcher not in (Catcher.SURVIVED, Catcher.EQUIVALENT) and mutant.role is not Role.PACING:
            break
    if more_seeds and all(end.catcher is Catcher.SURVIVED for end in verdicts):
        verdicts[-1] = _try_on(pipeline, mutant, "all", everyone, more_seeds, broken, verdict)
    return verdicts


def _as_pacing(end: Verdict) -> Verdict:
    """A barrier that only paces is one that nothing misses."""
    return replace(end, catcher=Catcher.PACING if end.catcher is Catcher.SURVIVED else Catcher.NEEDED)


def _try_on(
    pipeline: Pipeline,
    mutant: Mutant,
    ranks: str,
    chosen: frozenset[int],
    seeds: Sequence[int],
    broken: str | None,
    verdict: Callable[[str, Catcher, int, str], Verdict],
) -> Verdict:
    reason = equivalence(pipeline, mutant)
    # What the audit sees is caught, and one seed tells whether it shows in a run too. A written reason is put to the
    # test by one seed.
    for seed in seeds[:1] if broken or reason else seeds:
        noticed = observe(pipeline, seed, mutated(mutant.kernel, mutant.isa, chosen))
        if noticed is not None:
            return verdict(ranks, noticed[0], seed, noticed[1])
    if broken:
        return verdict(ranks, Catcher.AUDIT, -1, broken)
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
    full: bool = True  # see try_mutant


def tasks_for(pipelines: Sequence[Pipeline], seeds: Mapping[str, Iterable[int]], *, full: bool = True) -> list[Task]:
    """All mutants of all pipelines, and the clean seeds of each, by its name. Not in full: see `try_mutant`,
    and the pipelines of `FULL_ONLY` have clean seeds only."""
    tasks = []
    for pipeline in pipelines:
        # A name can stand for two mutants: a scope can be weakened in more than one step.
        names = dict.fromkeys(mutant.name for mutant in pipeline_mutants(pipeline))
        if full or pipeline.name not in FULL_ONLY:
            tasks += [Task(pipeline.name, name, tuple(range(MUTANT_SEEDS)), full) for name in names]
        tasks += [Task(pipeline.name, "", (seed,)) for seed in seeds.get(pipeline.name, ())]
    return tasks


def find_mutants(pipeline: Pipeline, name: str) -> list[Mutant]:
    """The mutants of that name; a scope can be weakened in more than one step."""
    return _by_name(pipeline).get(name, [])


@lru_cache(maxsize=2)  # a worker gets the tasks of one pipeline after those of another
def _by_name(pipeline: Pipeline) -> dict[str, list[Mutant]]:
    found: dict[str, list[Mutant]] = {}
    for mutant in pipeline_mutants(pipeline):
        found.setdefault(mutant.name, []).append(mutant)
    return found


def work(task: Task) -> list[Verdict]:
    """Run one task; an empty list is a clean seed."""
    pipeline = pipeline_named(task.pipeline)
    if not task.mutant:
        found = run_clean(pipeline, task.seeds[0])
        return [found] if found else []
    more = MORE_SEEDS if task.full else ()
    return [
        verdict
        for mutant in find_mutants(pipeline, task.mutant)
        for verdict in try_mutant(pipeline, mutant, task.seeds, more_seeds=more, full=task.full)
    ]


_ORDER = (
    Catcher.NEEDED,
    Catcher.NUMERICS,
    Catcher.RACE,
    Catcher.WATCHDOG,
    Catcher.FAULT,
    Catcher.AUDIT,
    Catcher.EQUIVALENT,
)


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
        """No survivor, no false alarm, and no barrier declared to only pace that is needed."""
        return not self.false_alarms and not self.count(Catcher.SURVIVED) and not self.count(Catcher.NEEDED)

    @property
    def line(self) -> str:
        """`killed K/T, equivalent E, survivors S, pacing P, seeds N clean`. Pacing barriers are none of the T."""
        equal, left = self.count(Catcher.EQUIVALENT), self.count(Catcher.SURVIVED)
        pacing, needed = self.count(Catcher.PACING), self.count(Catcher.NEEDED)
        total = len(self.mutants) - pacing - needed
        return (
            f"killed {total - equal - left}/{total}, equivalent {equal}, survivors {left}, "
            f"pacing {pacing}{f' (and {needed} that are needed)' if needed else ''}, seeds {self.clean_seeds} clean"
        )


def _rank(verdict: Verdict) -> int:
    return _ORDER.index(verdict.catcher) if verdict.catcher in _ORDER else len(_ORDER)


def prove(
    pipelines: Sequence[Pipeline],
    seeds: Mapping[str, Iterable[int]],
    *,
    workers: int | None = None,
    full: bool = True,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Summary:
    """Prove pipelines: every mutant has to be noticed, and no clean seed may be. `seeds`: see `clean_seeds`; `full`:
    see `tasks_for`."""
    tasks = tasks_for(pipelines, seeds, full=full)
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
