# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The proof of the GEMM kernels, in small: what is covered, clean seeds, mutants that have to be noticed."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from mori_gemm_ar.compile.store import CodeObject
from mori_gemm_ar.errors import RaceError
from mori_gemm_ar.layout import MI355X, BLayout, GemmProblem, Recipe, select_gemm
from mori_gemm_ar.layout.gemm import AnyGemmConfig, GemmConfig, gemm_candidates
from mori_gemm_ar.proof import (
    Catcher,
    Operator,
    Pipeline,
    ProvedKernel,
    WrongResult,
    mutated,
    original,
    pipeline_mutants,
    pipeline_named,
    run_clean,
    try_mutant,
)
from mori_gemm_ar.proof.gemm import APART, GEMM, GEMMS, QUANTIZERS, GemmPipeline
from mori_gemm_ar.proof.mutants import WAITS, Role
from mori_gemm_ar.proof.pipelines import Codes
from mori_gemm_ar.proof.runner import Summary

FEW = ["gemm-blockscale-m16-row", "gemm-mxfp8-m64-preshuffled"]
TILES = ["gemm-ptpc-128x256-preshuffled", "gemm-blockscale-256x128-row", "gemm-mxfp8-256x256-row"]


def gemm(name: str) -> GemmPipeline:
    return next(pipeline for pipeline in GEMMS if pipeline.name == name)


def kind(config: AnyGemmConfig) -> tuple[object, ...]:
    """What names a kernel but for N and K."""
    return config.recipe, config.b_layout, config.tile if isinstance(config, GemmConfig) else config.rows


def test_every_kernel_that_may_be_chosen_has_a_pipeline() -> None:
    proved = {kind(pipeline.config) for pipeline in GEMMS}
    assert len(proved) == len(GEMMS)
    for recipe, layout in itertools.product(Recipe, BLayout):
        assert {kind(config) for config in gemm_candidates(recipe, 7168, 2048, layout)} <= proved
        for n, m in itertools.product((16, 256, 7168), (1, 17, 64, 65, 300, 5000, 60000)):
            assert kind(select_gemm(GemmProblem(m, n, 512, recipe), layout, MI355X)) in proved


@pytest.mark.parametrize("pipeline", GEMMS, ids=lambda pipeline: pipeline.name)
def test_calls_change_m_and_reach_nine_workgroups(pipeline: GemmPipeline) -> None:
    sizes = pipeline.sizes()
    assert len(set(sizes)) >= 3
    assert max(pipeline.config.blocks(m) for m in sizes) >= 9
    if isinstance(pipeline.config, GemmConfig):
        assert pipeline.config.n % pipeline.config.tile.n
        assert any(m % pipeline.config.tile.m for m in sizes)


@pytest.mark.parametrize("name", [*FEW, TILES[1], *(pipeline.name for pipeline in QUANTIZERS)])
def test_the_shipped_code_is_clean(name: str) -> None:
    assert run_clean(pipeline_named(name), seed=11) is None


@pytest.mark.parametrize("name", [FEW[0], TILES[0]])
def test_a_result_that_is_not_stored_is_noticed(name: str) -> None:
    pipeline = gemm(name)
    (kernel,) = pipeline.kernels()
    lines = kernel.code.isa.splitlines()
    lines.remove(next(line for line in lines if line.strip().startswith("buffer_store_dwordx4")))
    with pytest.raises(WrongResult, match="call 0, m="):
        pipeline.exercise(0, mutated(GEMM, "\n".join(lines) + "\n", frozenset({0})), None)


@pytest.mark.parametrize("name", [*FEW, TILES[0]])
def test_each_handover_is_needed(name: str) -> None:
    pipeline = gemm(name)
    handovers = [mutant for mutant in pipeline_mutants(pipeline) if mutant.role is Role.HANDOVER]
    assert {mutant.operator for mutant in handovers} >= {Operator.DROP_BARRIER, Operator.DROP_LGKM}
    for mutant in handovers:
        with pytest.raises(RaceError):
            pipeline.exercise(0, mutated(mutant.kernel, mutant.isa, frozenset({0})), None)


def is_wrong(pipeline: Pipeline, seed: int, codes: Codes) -> bool:
    try:
        pipeline.exercise(seed, codes)
    except WrongResult:
        return True
    return False


def test_weak_memory_needs_no_race_detector_for_a_copy_that_is_not_waited_for() -> None:
    pipeline = gemm(TILES[0])
    waits = [m for m in pipeline_mutants(pipeline) if m.role is Role.HANDOVER and m.operator is Operator.DROP_WAIT]
    unwatched = replace(pipeline, races=False)
    for mutant in waits:
        codes = mutated(mutant.kernel, mutant.isa, frozenset({0}))
        unwatched.exercise(0, codes, None)
        assert any(is_wrong(unwatched, seed, codes) for seed in range(6)), mutant.name


@pytest.mark.parametrize("name", [*FEW, TILES[2]])
def test_the_compilers_waits_fail_the_rule_or_never_wait(name: str) -> None:
    pipeline = pipeline_named(name)
    waits = [m for m in pipeline_mutants(pipeline) if m.operator in WAITS and m.role is Role.UNMARKED]
    assert waits
    for mutant in waits:
        (verdict,) = try_mutant(pipeline, mutant, ())  # no seed: nothing may be left to them
        assert verdict.catcher is (Catcher.EQUIVALENT if mutant.idle else Catcher.AUDIT), mutant.name
        assert mutant.idle or verdict.detail.startswith("register_waits:")


class Marked:
    """A pipeline whose kernel has another text."""

    def __init__(self, inner: GemmPipeline, old: str, new: str) -> None:
        self.inner, self.name, self.world = inner, inner.name, inner.world
        (kernel,) = inner.kernels()
        assert old in kernel.code.isa
        self.code = replace(kernel.code, isa=kernel.code.isa.replace(old, new))

    def kernels(self) -> tuple[ProvedKernel, ...]:
        return (replace(self.inner.kernels()[0], code=self.code),)

    def exercise(self, seed: int, codes: Codes, adversary: object = APART) -> None:
        def pick(rank: int, name: str, code: CodeObject) -> CodeObject:
            return codes(rank, name, self.code)

        self.inner.exercise(seed, pick)


def barriers(pipeline: Pipeline, role: Role) -> Summary:
    found = [m for m in pipeline_mutants(pipeline) if m.operator is Operator.DROP_BARRIER and m.role is role]
    assert found
    return Summary(tuple(v for m in found for v in try_mutant(pipeline, m, range(2))), (), 0)


def test_a_barrier_that_only_paces_is_listed_apart() -> None:
    marked = Marked(gemm(FEW[0]), "s_barrier ; handover sums", "s_barrier ; handover sums\ns_barrier ; pacing waves")
    assert run_clean(marked, 0) is None
    summary = barriers(marked, Role.PACING)
    assert summary.ok
    assert summary.line == "killed 0/0, equivalent 0, survivors 0, pacing 1, seeds 0 clean"
    # Beside another barrier neither is needed, but this one is declared to be.
    assert not barriers(marked, Role.HANDOVER).ok


def test_a_barrier_that_hands_over_must_not_be_declared_to_pace() -> None:
    summary = barriers(Marked(gemm(FEW[0]), "s_barrier ; handover", "s_barrier ; pacing"), Role.PACING)
    assert [verdict.catcher for verdict in summary.mutants] == [Catcher.NEEDED]
    assert not summary.ok
    assert "pacing 0 (and 1 that are needed)" in summary.line


def test_functional_mode_is_clean_too() -> None:
    for name in FEW:
        gemm(name).exercise(0, original, None)
