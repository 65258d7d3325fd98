# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The proof of the all-reduce, in small: clean seeds, and mutants that have to be noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mori_gemm_ar.errors import CollectiveTimeout, RaceError
from mori_gemm_ar.proof import (
    Catcher,
    Mutant,
    Operator,
    WrongResult,
    mutated,
    original,
    pipeline_mutants,
    pipeline_named,
    run_clean,
    runner,
    try_mutant,
)
from mori_gemm_ar.proof.all_reduce import ALL_REDUCES, AllReducePipeline
from mori_gemm_ar.proof.runner import MUTANT_SEEDS, Summary, Verdict, find_mutants

SMALL = ["lsa-1stage-w2", "lsa-2stage-w2", "lsa-2stage-w3"]
SEEDS = range(MUTANT_SEEDS)


def all_reduce(name: str) -> AllReducePipeline:
    return next(pipeline for pipeline in ALL_REDUCES if pipeline.name == name)


def mutants(pipeline: str, operator: Operator) -> list[Mutant]:
    found = [m for m in pipeline_mutants(pipeline_named(pipeline)) if m.operator is operator]
    assert found, f"{pipeline} has no {operator.value}"
    return found


@pytest.mark.parametrize("pipeline", [p.name for p in ALL_REDUCES])
def test_the_shipped_code_is_clean(pipeline: str) -> None:
    assert run_clean(pipeline_named(pipeline), seed=11) is None


@pytest.mark.parametrize("pipeline", SMALL)
def test_functional_mode_is_blind_to_a_dropped_writeback_and_weak_mode_is_not(pipeline: str) -> None:
    unwatched = replace(all_reduce(pipeline), races=False)
    for mutant in mutants(pipeline, Operator.DROP_WRITEBACK):
        codes = mutated(mutant.kernel, mutant.isa, frozenset(range(8)))
        unwatched._calls(0, codes, None)
        with pytest.raises((WrongResult, CollectiveTimeout)):
            unwatched.exercise(0, codes)


@pytest.mark.parametrize("pipeline", SMALL)
@pytest.mark.parametrize(
    ("operator", "missing"),
    [
        (Operator.DROP_WRITEBACK, "no writeback"),
        (Operator.WEAKEN_WRITEBACK, "agent scope only"),
        (Operator.DROP_INVALIDATE, "no invalidate"),
        (Operator.WEAKEN_INVALIDATE, "no invalidate"),
        (Operator.DROP_BARRIER, "no workgroup barrier"),
        (Operator.PUBLISH_EARLY, "no writeback"),
    ],
)
def test_the_race_detector_needs_no_weak_memory(pipeline: str, operator: Operator, missing: str) -> None:
    for mutant in mutants(pipeline, operator):
        with pytest.raises(RaceError, match=f"race on window of rank .*{missing}"):
            pipeline_named(pipeline).exercise(0, mutated(mutant.kernel, mutant.isa, frozenset({0})), None)


@pytest.mark.parametrize("pipeline", SMALL)
@pytest.mark.parametrize(
    "operator",
    [
        Operator.DROP_INVALIDATE,
        Operator.WEAKEN_INVALIDATE,
        Operator.WEAKEN_WRITEBACK,
        Operator.DROP_BARRIER,
        Operator.SKIP_POLL,
        Operator.PUBLISH_EARLY,
    ],
)
def test_each_part_of_the_hand_over_is_needed(pipeline: str, operator: Operator) -> None:
    for mutant in mutants(pipeline, operator):
        caught = {v.catcher for v in try_mutant(pipeline_named(pipeline), mutant, SEEDS)}
        assert caught - {Catcher.SURVIVED}, f"{mutant.name}: {mutant.original} survived"


@pytest.mark.parametrize("full", [True, False])
def test_tier_ci_runs_no_mutant_that_the_audit_sees(full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    monkeypatch.setattr(runner, "observe", lambda pipeline, seed, codes: runs.append(seed))
    (mutant, *_) = mutants("lsa-2stage-w2", Operator.DROP_INVALIDATE)
    ends = try_mutant(pipeline_named("lsa-2stage-w2"), mutant, SEEDS, full=full)
    assert [end.catcher for end in ends] == [Catcher.AUDIT, Catcher.AUDIT]
    assert runs == ([0, 0] if full else [])


def test_more_seeds_are_for_a_mutant_that_nothing_has_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    (mutant, *_) = mutants("lsa-1stage-w2", Operator.SKIP_POLL)
    alone = pipeline_named("lsa-1stage-w2")

    def ends(noticing: int) -> tuple[list[Catcher], list[int]]:
        runs: list[int] = []

        def observed(pipeline: object, seed: int, codes: object) -> tuple[Catcher, str] | None:
            runs.append(seed)
            return (Catcher.NUMERICS, "wrong") if seed == noticing else None

        monkeypatch.setattr(runner, "observe", observed)
        monkeypatch.setattr(runner, "_audit", lambda *_: None)
        return [v.catcher for v in try_mutant(alone, mutant, (0, 1), more_seeds=(2, 3))], runs

    assert ends(1) == ([Catcher.NUMERICS, Catcher.NUMERICS], [0, 1, 0, 1])
    assert ends(2) == ([Catcher.SURVIVED, Catcher.NUMERICS], [0, 1, 0, 1, 2])
    assert ends(9) == ([Catcher.SURVIVED, Catcher.SURVIVED], [0, 1, 0, 1, 2, 3])


def test_a_late_epoch_is_not_an_early_one() -> None:
    """The failure scenario itself can fail: without an absent rank nobody may report one."""
    pipeline = pipeline_named("lsa-1stage-w2")
    pipeline.exercise(0, original, None)


def test_mutants_have_replayable_names_and_change_one_place() -> None:
    pipeline = pipeline_named("lsa-2stage-w4")
    (kernel,) = pipeline.kernels()
    for mutant in pipeline_mutants(pipeline):
        before, after = kernel.code.isa.splitlines(), mutant.isa.splitlines()
        changed = [n for n, (a, b) in enumerate(zip(before, after, strict=False), start=1) if a != b]
        assert changed, mutant.name
        if mutant.operator not in (Operator.PUBLISH_EARLY, Operator.RELEASE_ONCE):
            assert changed == [mutant.line]
        assert mutant.isa in [m.isa for m in find_mutants(pipeline, mutant.name)]


def test_a_summary_fails_on_survivors_and_false_alarms() -> None:
    def verdict(ranks: str, catcher: Catcher) -> Verdict:
        return Verdict("p", "all-reduce:drop-barrier@9", "s_barrier", "(deleted)", ranks, catcher, 3, "why")

    one, everyone = verdict("one", Catcher.SURVIVED), verdict("all", Catcher.NUMERICS)
    assert Summary((one, everyone), (), 5).line == "killed 1/1, equivalent 0, survivors 0, pacing 0, seeds 5 clean"
    assert Summary((one, everyone), (), 5).ok
    assert not Summary((one,), (), 5).ok
    assert not Summary((everyone,), (one,), 5).ok
    assert "--pipeline p --mutant all-reduce:drop-barrier@9 --seed 3" in one.replay
