# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The proof of the copy-engine all-reduce, in small: clean seeds, and faults that have to be noticed.

FlyDSL reads the bodies of jit functions again, so this file does not postpone annotations.
"""

from dataclasses import replace
from functools import cache

import flydsl.compiler as flyc
import flydsl.expr as fx
import pytest

from mori_gemm_ar.compile.build import build_kernel
from mori_gemm_ar.compile.store import CodeObject
from mori_gemm_ar.errors import CollectiveError, RaceError
from mori_gemm_ar.kernels import sdma as kernels
from mori_gemm_ar.kernels.device import library, sdma
from mori_gemm_ar.kernels.device.exchange import Exchange
from mori_gemm_ar.layout.sdma import SdmaPhase
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
    try_mutant,
)
from mori_gemm_ar.proof.copies import COPIES, LAST_MOMENT, CopyPipeline
from mori_gemm_ar.proof.runner import observe

TWO = next(pipeline for pipeline in COPIES if pipeline.world == 2)


def mutants(operator: Operator) -> list[Mutant]:
    found = [m for m in pipeline_mutants(TWO) if m.operator is operator]
    assert found, f"{TWO.name} has no {operator.value}"
    return found


@pytest.mark.parametrize("pipeline", [p.name for p in COPIES])
def test_the_shipped_code_is_clean(pipeline: str) -> None:
    assert run_clean(pipeline_named(pipeline), seed=11) is None


@pytest.mark.parametrize(
    "operator",
    [
        Operator.DROP_WRITEBACK,
        Operator.WEAKEN_WRITEBACK,
        Operator.RELEASE_ONCE,
        Operator.SKIP_TURN,
        Operator.DROP_BARRIER,
    ],
)
def test_a_part_left_out_is_noticed(operator: Operator) -> None:
    for mutant in mutants(operator):
        codes = mutated(mutant.kernel, mutant.isa, frozenset(range(TWO.world)))
        ends = [observe(TWO, seed, codes) for seed in range(3)]
        assert {end[0] for end in ends if end} & {Catcher.RACE, Catcher.NUMERICS}


def test_without_the_detector_weak_memory_shows_a_release_by_one_block_of_many() -> None:
    unwatched = replace(TWO, races=False)
    (mutant,) = mutants(Operator.RELEASE_ONCE)
    ends = [verdict.catcher for verdict in try_mutant(unwatched, mutant, range(6))]
    assert ends == [Catcher.NUMERICS, Catcher.NUMERICS]


class FlagFirst(Exchange):
    """Tells the peers before the copies are drained."""

    @flyc.jit
    def run(self, source, target, nbytes):  # type: ignore[no-untyped-def]
        late = fx.Uint32(0)
        if self.serves():
            late = sdma.put(sdma.queue(self.table, self.lane), target, source, nbytes, self.budget)
        missed = fx.Uint32(0)
        if self.meets():
            missed = self.meet()
        if self.serves():
            late = late | sdma.drain(sdma.queue(self.table, self.lane), self.budget)
        return library.any_lane(missed | late) == 0


class NoDrain(Exchange):
    """Takes a posted copy for a finished one."""

    def put(self, source, target, nbytes):  # type: ignore[no-untyped-def]
        return sdma.put(sdma.queue(self.table, self.lane), target, source, nbytes, self.budget)


@cache
def faulty(exchange: type[Exchange]) -> dict[str, CodeObject]:
    """The two kernels that put, with another exchange."""
    codes = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "Exchange", exchange)
        for phase, config in TWO.configs().items():
            if phase is not SdmaPhase.GATHER:
                codes[phase.value] = build_kernel(kernels.sdma_kernel(config), key=f"{exchange.__name__}_{config.key}")
    return codes


def runs(pipeline: CopyPipeline, exchange: type[Exchange], seed: int) -> None:
    def pick(rank: int, name: str, code: CodeObject) -> CodeObject:
        return faulty(exchange).get(name, original(rank, name, code))

    pipeline._calls(seed, pick, LAST_MOMENT)


def noticed(exchange: type[Exchange], seed: int) -> bool:
    """Whether weak memory alone shows it."""
    try:
        runs(replace(TWO, races=False), exchange, seed)
    except (WrongResult, CollectiveError):
        return True
    return False


@pytest.mark.parametrize("exchange", [FlagFirst, NoDrain])
def test_a_flag_before_the_drain_is_a_race_and_gives_wrong_sums(exchange: type[Exchange]) -> None:
    with pytest.raises(RaceError, match=r"landing|reduced"):
        runs(TWO, exchange, 0)
    assert any(noticed(exchange, seed) for seed in range(4))


def test_the_same_build_with_the_shipped_exchange_is_right() -> None:
    """Negative control."""
    runs(TWO, Exchange, 0)
