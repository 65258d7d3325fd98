# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The all-reduce against the same-order torch reference, bit by bit, on every rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from mori_gemm_ar.ar import AllReduceOp, lsa
from mori_gemm_ar.compile.store import CACHE_VARIABLE, default_store
from mori_gemm_ar.emulator import Node, RegionTable
from mori_gemm_ar.emulator.memory import FunctionalMemory
from mori_gemm_ar.layout import (
    MI355X,
    AllReduceConfig,
    AllReduceProblem,
    DType,
    Gather,
    LaunchGeometry,
    Stage,
    select_stage,
)
from mori_gemm_ar.runtime import RankContext
from tests.ranks.worlds import (
    BF16,
    DTYPES,
    FP16,
    FP32,
    MAX_BYTES,
    Delays,
    Guarded,
    both_stages,
    errors,
    fresh,
    reference,
    require_all,
    require_bits,
    run,
    unfair,
)


def sizes(world: int, dtype: torch.dtype) -> list[int]:
    """Empty, below and around a pack, around one pack for each rank, odd, around a block, and at the limit."""
    pack, most = 16 // dtype.itemsize, MAX_BYTES // dtype.itemsize
    edges = {0, 1, 2, 7, 8, 9, 15, 17, 333, 7 * 143, 512 * pack + 1, most - 1, most}
    return sorted(edges | {world * pack - 1, world * pack, world * pack + 1})


def test_reference_can_tell_orders_and_accumulators_apart() -> None:
    """Negative control: equal bits below mean this order and this accumulator."""
    for dtype in DTYPES:
        inputs = [fresh(4096, dtype, rank) for rank in range(4)]
        low = inputs[0].clone()
        for x in inputs[1:]:
            low += x
        for name, other in (("reversed", reference(inputs[::-1])), ("no accumulator", low)):
            if dtype is FP32 and name == "no accumulator":
                continue
            with pytest.raises(AssertionError, match=r"elements differ, first at \(\d+,\)"):
                require_bits(other, reference(inputs), dtype=dtype)


# --- all worlds, dtypes and sizes ---


@both_stages
@pytest.mark.parametrize("world", range(1, 9))
def test_bits_of_every_size_and_dtype(world: int, stage: Stage) -> None:
    """New data in each call; every other call writes into guarded memory at an odd place."""

    def body(ctx: RankContext) -> list[tuple[torch.dtype, int, torch.Tensor, torch.Tensor]]:
        results = []
        with AllReduceOp.create(ctx, MAX_BYTES, stage=stage) as op:
            for dtype in DTYPES:
                for call, numel in enumerate(sizes(world, dtype)):
                    x = fresh(numel, dtype, world, numel, ctx.rank)
                    before = x.clone()
                    out = Guarded(numel, dtype, shift=call % 8) if call % 2 else None
                    y = op(x, out=out.tensor if out else None)
                    require_bits(x, before, what="input", numel=numel, dtype=dtype, rank=ctx.rank)
                    if out:
                        assert y is out.tensor
                        out.require_intact(numel=numel, dtype=dtype, rank=ctx.rank)
                    results.append((dtype, numel, before, y.clone()))
        return results

    ranks = run(world, body, seed=world)
    for call in zip(*ranks, strict=True):
        dtype, numel = call[0][:2]
        expected = reference([x for _, _, x, _ in call])
        for rank, (_, _, _, y) in enumerate(call):
            require_bits(y, expected, world=world, stage=stage, dtype=dtype, numel=numel, rank=rank)


@pytest.mark.parametrize("world", [3, 4])
def test_bits_of_the_stage_that_the_size_chooses(world: int) -> None:
    """Both stages in one op, in turn; the larger calls have several blocks and a tail."""

    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 1 << 19, dtypes=(BF16, FP32)) as op:
            stages = set()
            for numel in (1000, 200_003, 7, 123_457, 0, 200_000):
                dtype = FP32 if numel == 123_457 else BF16
                stages.add(op.plan(numel, dtype).config.stage)
                inputs = [fresh(numel, dtype, numel, rank) for rank in range(world)]
                require_bits(op(inputs[ctx.rank]), reference(inputs), world=world, numel=numel, rank=ctx.rank)
            assert stages == {Stage.ONE, Stage.TWO}

    run(world, body)


@pytest.mark.parametrize("world", [2, 5, 8])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_integers_are_exact(world: int, dtype: torch.dtype) -> None:
    """Rank-specific integers, so that a missing, doubled or foreign contribution shows in the value."""

    def body(ctx: RankContext) -> None:
        pattern = (torch.arange(1001) % 11).to(dtype)
        for stage in (Stage.ONE, Stage.TWO):
            with AllReduceOp.create(ctx, 1 << 16, stage=stage, dtypes=(dtype,)) as op:
                y = op(pattern * (ctx.rank + 1))
                total = world * (world + 1) // 2
                expected = ((torch.arange(1001) % 11) * total).to(dtype)
                assert int(expected.max()) == 10 * total
                require_bits(y, expected, world=world, dtype=dtype, stage=stage, rank=ctx.rank)

    run(world, body)


# --- orders and delays ---


@both_stages
@pytest.mark.parametrize("seed", range(4))
def test_neither_seed_nor_delays_change_bits(seed: int, stage: Stage) -> None:
    """Ranks and blocks drift apart; every rank is late in turn."""

    def body(ctx: RankContext) -> None:
        delays = Delays(ctx, seed)
        with AllReduceOp.create(ctx, 1 << 16, stage=stage, dtypes=(BF16,)) as op:
            for call, numel in enumerate((20_000, 4096, 9, 32_768, 0, 12_345)):
                inputs = [fresh(numel, BF16, call, rank) for rank in range(ctx.size)]
                delays.only(call) if seed % 2 else delays.maybe()
                require_bits(op(inputs[ctx.rank]), reference(inputs), seed=seed, call=call, rank=ctx.rank)

    run(4, body, seed=seed, node=unfair(seed))


def test_a_seed_fixes_the_whole_course() -> None:
    """Virtual times of all calls on all ranks repeat under a seed, and differ under another."""

    def body(ctx: RankContext) -> list[int]:
        ticks = []
        with AllReduceOp.create(ctx, 1 << 14, dtypes=(BF16,)) as op:
            for numel in (9, 4096, 100, 8000):
                op(fresh(numel, BF16, ctx.rank))
                ticks.append(ctx.node.clock.ticks)
        return ticks

    courses = [run(3, body, seed=seed) for seed in (0, 0, 1, 2, 3, 4)]
    assert courses[0] == courses[1]
    assert len({str(course) for course in courses}) > 2


def test_a_result_that_is_read_too_early_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of every test here that delays a rank: without waiting for the kernel they fail."""

    def body(ctx: RankContext) -> torch.Tensor:
        with AllReduceOp.create(ctx, 1 << 12, dtypes=(BF16,)) as op:
            monkeypatch.setattr(type(op.target), "settle", lambda target: None)
            Delays(ctx).only(1)
            x, out = torch.full((64,), ctx.rank + 1.0, dtype=BF16), torch.zeros(64, dtype=BF16)
            early = op(x, out=out).clone()
            op.check()
            require_all(out, 3, rank=ctx.rank)
        return early

    with pytest.raises(AssertionError, match="64 of 64 elements differ"):
        require_all(run(2, body)[0], 3)


# --- several ops ---


def test_two_ops_side_by_side() -> None:
    """Their windows, epochs and stages have nothing to do with each other."""

    def body(ctx: RankContext) -> None:
        small = AllReduceOp.create(ctx, 1 << 12, stage=Stage.TWO, dtypes=(BF16,))
        with small, AllReduceOp.create(ctx, 1 << 15, stage=Stage.ONE, dtypes=(BF16, FP32)) as large:
            for call in range(6):
                inputs = [fresh(1500, BF16, call, rank) for rank in range(ctx.size)]
                others = [fresh(8000, FP32, call, rank) for rank in range(ctx.size)]
                require_bits(small(inputs[ctx.rank]), reference(inputs), op="small", call=call, rank=ctx.rank)
                if call % 3 != 1:
                    require_bits(large(others[ctx.rank]), reference(others), op="large", call=call, rank=ctx.rank)

    run(3, body, node=unfair(1))


# --- what a call resolves to ---


def test_plan_says_what_runs() -> None:
    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 1 << 20) as op:
            for numel in (0, 8, 4096, 1 << 19):
                plan = op.plan(numel, BF16)
                problem = AllReduceProblem(ctx.size, numel, DType.BF16)
                assert plan.config == AllReduceConfig(ctx.size, DType.BF16, select_stage(problem, MI355X))
                assert 1 <= plan.blocks <= MI355X.remote_load_blocks and not plan.in_place_in_window
            assert {op.plan(n, BF16).config.stage for n in (8, 1 << 19)} == {Stage.ONE, Stage.TWO}
            assert op.plan(0, FP32).blocks == 1
            inside = op.plan(8, FP16, in_place_in_window=True)
            assert inside.in_place_in_window and inside.config == AllReduceConfig(ctx.size, DType.FP16, Stage.TWO)
        with AllReduceOp.create(ctx, 1 << 20, stage=Stage.ONE, dtypes=(BF16,)) as forced:
            assert forced.plan(1 << 19, BF16).config.stage is Stage.ONE

    run(4, body)


def entries(folder: Path) -> list[str]:
    return [path.name.rpartition("-")[0] for path in sorted(folder.glob("*.isa"))]


def test_one_code_object_per_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not per rank, size, call or op."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))

    def body(ctx: RankContext, dtypes: Sequence[torch.dtype] = (BF16,)) -> None:
        with AllReduceOp.create(ctx, 1 << 14, dtypes=dtypes) as op:
            for dtype in dtypes:
                for numel in (0, 9, 2048, 4096):
                    total = ctx.size * (ctx.size + 1) // 2
                    require_all(op(torch.full((numel,), ctx.rank + 1.0, dtype=dtype)), total, numel=numel)

    run(4, body)
    run(4, body, seed=1)
    bf16 = ["lsa_allreduce_w4_bf16_1stage", "lsa_allreduce_w4_bf16_2stage"]
    assert entries(tmp_path) == bf16
    run(4, lambda ctx: body(ctx, (FP16, BF16)))
    assert entries(tmp_path) == [*bf16, "lsa_allreduce_w4_fp16_1stage", "lsa_allreduce_w4_fp16_2stage"]


# --- order of the gather ---


class TracingMemory(FunctionalMemory):
    """Notes the owner of what each wave loads from a peer's `reduced` region."""

    def __init__(self) -> None:
        super().__init__(RegionTable())
        self.owners: dict[tuple[int, int], list[int]] = {}

    def load(self, g, site, k, address, access, rows, policy) -> None:
        super().load(g, site, k, address, access, rows, policy)
        for n, (wave, gpu) in enumerate(zip(g.waves.tolist(), g.gpus().tolist(), strict=True)):
            active = range(64) if k is True else k[n].nonzero()[0]
            region = self.regions.find(int(address[n, active[0]])) if len(active) else None
            if region is None or region.home in (None, gpu):
                continue
            if ": reduced" in region.describe(int(address[n, active[0]])):
                self.owners.setdefault((gpu, wave), []).append(region.home)


@pytest.mark.parametrize("gather", list(Gather), ids=lambda gather: gather.name)
def test_order_of_remote_loads_in_the_gather(gather: Gather, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any W-1 consecutive remote loads of a wave name W-1 peers; the sequential control only has the same bits."""
    world, turns, memory = 5, 3, TracingMemory()
    numel = world * turns * 512 * 8
    # One block, so that each thread takes several turns of the loop.
    monkeypatch.setattr(lsa, "lsa_geometry", lambda problem, config, *_: LaunchGeometry(1, config.threads))

    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 2 * numel, stage=Stage.TWO, dtypes=(BF16,)) as op:
            config = AllReduceConfig(world, DType.BF16, Stage.TWO)
            op._codes[config] = default_store().get(dataclasses.replace(config, gather=gather))
            ctx.barrier()
            memory.owners.clear()
            ctx.barrier()
            inputs = [fresh(numel, BF16, 3, rank) for rank in range(world)]
            require_bits(op(inputs[ctx.rank]), reference(inputs), gather=gather, rank=ctx.rank)

    run(world, body, node=lambda gpus: Node(gpus, memory=memory))
    assert len(memory.owners) == 8 * world  # eight waves on each rank
    assert {len(owners) for owners in memory.owners.values()} == {turns * (world - 1)}
    spread = [
        len(set(owners[at : at + world - 1])) == world - 1
        for owners in memory.owners.values()
        for at in range(len(owners) - world + 2)
    ]
    assert spread and all(spread) == (gather is Gather.INTERLEAVED)


def test_a_world_of_one_is_the_identity() -> None:
    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 1 << 16) as op:
            for dtype in DTYPES:
                x = fresh(10_001, dtype, 1)
                x[:3] = torch.tensor([float("nan"), float("inf"), -0.0])
                y = op(x)
                require_bits(y, x, dtype=dtype)
                assert y.data_ptr() != x.data_ptr()

    assert errors(1, body) == [None]
