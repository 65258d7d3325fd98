# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The all-reduce by copy engines in weak memory and under the race detector; engines wait as long as is legal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.compile.store import CodeObject
from mori_gemm_ar.emulator import EngineSettings, Node
from mori_gemm_ar.emulator.adversary import DEFAULT_ADVERSARY
from mori_gemm_ar.emulator.races.detector import RaceDetector
from mori_gemm_ar.emulator.weak import WeakMemory
from mori_gemm_ar.errors import CollectiveError, RaceError
from mori_gemm_ar.layout import DType
from mori_gemm_ar.layout.sdma import SdmaPhase, sdma_config
from mori_gemm_ar.runtime import LocalWorld, RankContext
from tests.ranks.worlds import BF16, Delays, fresh, reference, require_bits

LAST_MOMENT = replace(DEFAULT_ADVERSARY, engine=1.0)  # every packet waits until nothing else can move
# Several blocks, one block, less than a pack for each rank, a smaller call after a larger one.
SIZES = (2 * 512 * 8 * 2 + 3, 1000, 5, 4096)


def weak_and_watched(seed: int) -> Callable[[int], Node]:
    return lambda size: Node(size, memory=WeakMemory(seed, LAST_MOMENT), races=RaceDetector())


def calls(seed: int, queues: int = 1, change: Callable[[CodeObject], CodeObject] | None = None):
    """What every rank does; `change` edits the reduce kernel once the self-test has passed."""

    def body(ctx: RankContext) -> None:
        delays = Delays(ctx, seed)
        with AllReduceOp.create(ctx, 1 << 16, transport="sdma", queues=queues, timeout_s=5, dtypes=(BF16,)) as op:
            if change is not None:
                config = sdma_config(ctx.size, DType.BF16, SdmaPhase.REDUCE)
                op._codes[config] = change(op._codes[config])
            for call, numel in enumerate(SIZES):
                inputs = [fresh(numel, BF16, seed, call, rank) for rank in range(ctx.size)]
                delays.only(call + seed)
                y = op(inputs[ctx.rank])
                require_bits(y, reference(inputs), seed=seed, call=call, numel=numel, rank=ctx.rank)

    return body


def settings(seed: int) -> EngineSettings:
    return EngineSettings(busy=(0.0, 0.5, 1.0)[seed % 3])


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("seed", range(10))
def test_bits_in_weak_memory_without_a_race(world: int, seed: int) -> None:
    body = calls(seed, queues=1 + seed % 2)
    LocalWorld(world, seed, node=weak_and_watched(seed), engines=settings(seed)).run(body)


# --- negative controls ---

MISSING = {
    "release": ("\tbuffer_wbl2 sc0 sc1\n", ""),
    "stores of other waves are not waited for": ("\ts_waitcnt vmcnt(0)\n\ts_barrier\n", "\ts_barrier\n"),
    "other waves do not wait for the acquire": ("\ts_barrier\n", ""),
    "what engines wrote is not acquired": ("\tbuffer_inv sc0 sc1\n", ""),
}


@pytest.mark.parametrize("name", MISSING)
def test_without_a_part_of_the_order_it_is_noticed(name: str) -> None:
    """By wrong bits or a race, on the first seeds."""
    old, new = MISSING[name]

    def change(code: CodeObject) -> CodeObject:
        assert old in code.isa
        return replace(code, isa=code.isa.replace(old, new, 1))

    noticed = set()
    for seed in range(3):
        try:
            LocalWorld(2, seed, node=weak_and_watched(seed), engines=settings(seed)).run(calls(seed, 1, change))
        except (RaceError, AssertionError, CollectiveError) as error:
            noticed.add(type(error).__name__)
    assert noticed & {"RaceError", "AssertionError"}, noticed
