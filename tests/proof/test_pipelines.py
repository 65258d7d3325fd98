# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What all kinds of pipelines share: names, kernels that are mutated one by one, replay."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from typer.testing import CliRunner

from mori_gemm_ar.cli import app
from mori_gemm_ar.emulator.adversary import Adversary
from mori_gemm_ar.proof import PIPELINES, Catcher, Pipeline, ProvedKernel, WrongResult, pipeline_mutants, try_mutant
from mori_gemm_ar.proof.pipelines import Codes


@dataclass(frozen=True)
class Two:
    """Two kernels on two ranks. The scenario runs neither: it calls wrong what differs from the shipped code."""

    name: str = "two"
    world: int = 2
    judged: str = "second"
    seen: list[tuple[int, str]] = field(default_factory=list)

    def kernels(self) -> tuple[ProvedKernel, ...]:
        (first,), (second,) = PIPELINES[0].kernels(), PIPELINES[1].kernels()
        return (
            ProvedKernel("first", first.code, first.config),
            ProvedKernel("second", second.code, second.config),
        )

    def exercise(self, seed: int, codes: Codes, adversary: Adversary | None = None) -> None:
        for rank in range(self.world):
            for kernel in self.kernels():
                if codes(rank, kernel.name, kernel.code).isa != kernel.code.isa:
                    self.seen.append((rank, kernel.name))
                    if kernel.name == self.judged:
                        raise WrongResult(f"rank {rank}")


def test_names_are_unique() -> None:
    names = [pipeline.name for pipeline in PIPELINES]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("pipeline", [*PIPELINES, Two()], ids=lambda pipeline: pipeline.name)
def test_every_kernel_has_a_name_and_mutants_name_it(pipeline: Pipeline) -> None:
    names = [kernel.name for kernel in pipeline.kernels()]
    assert len(names) == len(set(names))
    mutants = pipeline_mutants(pipeline)
    assert {mutant.kernel for mutant in mutants} <= set(names)
    assert all(mutant.name.startswith(f"{mutant.kernel}:") for mutant in mutants)


def test_a_mutant_changes_its_own_kernel_on_the_chosen_ranks_only() -> None:
    pipeline = Two()
    found = {kernel: [m for m in pipeline_mutants(pipeline) if m.kernel == kernel] for kernel in ("first", "second")}
    barrier = {kernel: next(m for m in found[kernel] if "barrier" in m.name) for kernel in found}
    caught = [verdict.catcher for verdict in try_mutant(pipeline, barrier["second"], [0])]
    assert caught == [Catcher.NUMERICS, Catcher.NUMERICS]
    assert pipeline.seen == [(1, "second"), (0, "second")]
    pipeline.seen.clear()
    # Nothing judges the first kernel's result here, so that the audit has the last word.
    assert {verdict.catcher for verdict in try_mutant(pipeline, barrier["first"], [0])} == {Catcher.AUDIT}
    assert pipeline.seen == [(1, "first"), (0, "first"), (1, "first")]


@pytest.mark.parametrize(
    ("pipeline", "mutant"),
    [
        ("lsa-1stage-w2", "all-reduce:drop-barrier@1"),
        ("lsa-1stage-w2", "other:drop-barrier@95"),
        ("lsa-1stage-w9", "all-reduce:drop-barrier@95"),
    ],
)
def test_a_replay_of_an_unknown_name_is_refused(pipeline: str, mutant: str) -> None:
    run = CliRunner().invoke(app, ["prove", "--pipeline", pipeline, "--seed", "0", "--mutant", mutant])
    assert run.exit_code == 2
    assert "must be one of" in run.output
