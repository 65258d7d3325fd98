# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Failure cases that others met, on the fused op: groups, world sizes, endings, empty batches, capacity, range."""

from __future__ import annotations

import math
import random

import pytest
import torch

from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.errors import CollectiveError, ConfigError
from mori_gemm_ar.layout import Recipe
from mori_gemm_ar.op import GemmAllReduceOp, Mode, Support
from mori_gemm_ar.runtime import LocalWorld, RankContext
from tests.kernel.gemm_data import FP8
from tests.ranks.layers import (
    FUSED_LSA,
    FUSED_SDMA,
    FUSED_SDMA_PULLED,
    SPLIT_LSA,
    N,
    Tensors,
    Way,
    constant,
    create,
    each_main_way,
    each_push,
    layer,
)
from tests.ranks.worlds import BF16, Delays, Guarded, require_all, require_bits, run

# --- world sizes ---


@pytest.mark.parametrize(("world", "total"), [(1, 1), (3, 6), (7, 28)])
def test_supported_world_sizes(world: int, total: int) -> None:
    """N need not be a multiple of the ranks."""

    def body(ctx: RankContext) -> None:
        with create(ctx, FUSED_LSA, world * 128, n=384) as op:
            for m in (7, world * 128):
                y = op(*constant(ctx, m, ctx.rank + 1.0, n=384))
                require_all(y, total, world=world, m=m, rank=ctx.rank)
            assert op.plan(world * 128).mode is (Mode.FUSED_LSA if world > 1 else Mode.GEMM_ONLY)

    run(world, body)


@pytest.mark.parametrize("world", [9, 16])
def test_unsupported_world_sizes(world: int) -> None:
    """Decided at creation, alike on all ranks; `supports` gives the same reason."""
    support = GemmAllReduceOp.supports(world, n=N, k=128, m_max=7, quant="ptpc", b_layout="row")
    assert support == Support(False, f"world={world} must be one of 1..8; use a group of 1 to 8 ranks")

    def body(ctx: RankContext) -> str:
        with pytest.raises(ConfigError) as caught:
            create(ctx, SPLIT_LSA, 7)
        return str(caught.value)

    assert run(world, body) == [support.reason] * world


# --- several ops ---


def test_calls_interleaved_over_live_ops() -> None:
    """Ops of two modes and an all-reduce share the engines and the group."""

    def body(ctx: RankContext) -> None:
        shared = random.Random(2)
        reduce = AllReduceOp.create(ctx, 1 << 14, transport="sdma", dtypes=(BF16,))
        with reduce, create(ctx, FUSED_SDMA, 300) as pushed, create(ctx, FUSED_SDMA_PULLED, 300) as pulled:
            for number in range(9):
                op = shared.choice((pushed, pulled, reduce))
                if isinstance(op, AllReduceOp):
                    require_all(op(torch.full((4000,), ctx.rank + 1.0, dtype=BF16)), 3, call=number)
                    continue
                data = layer(2, shared.choice((300, 5)), number)
                require_bits(op(*data.of(ctx.rank)), data.expected(), call=number, rank=ctx.rank)

    run(2, body)


# --- close order, no close ---


@each_push
def test_a_rank_may_close_while_others_still_work(way: Way) -> None:
    """Rank 0 leaves at once; the late rank's last result is right."""

    def body(ctx: RankContext) -> None:
        op = create(ctx, way, 300)
        for number in range(3):
            if ctx.rank == 1 and number == 2:
                ctx.sleep(1)
            data = layer(2, 300, number)
            require_bits(op(*data.of(ctx.rank)), data.expected(), call=number, rank=ctx.rank)
        op.close()

    run(2, body)


def test_many_ops_in_one_world_leave_nothing() -> None:
    def body(ctx: RankContext) -> None:
        for turn in range(4):
            with create(ctx, FUSED_SDMA, 256) as op:
                require_all(op(*constant(ctx, 256, ctx.rank + 1.0)), 3, turn=turn)
            ctx.barrier()
            assert len(ctx.node.regions) == 0 and ctx.node.engines.report() == []
            ctx.barrier()

    run(2, body)


# --- zero rows ---


@each_main_way
def test_no_rows(way: Way) -> None:
    """An empty call has the right shape and keeps the neighbouring calls in step."""

    def body(ctx: RankContext) -> None:
        delays = Delays(ctx)
        with create(ctx, way, 300) as op:
            for number, m in enumerate((300, 0, 4, 0, 0, 1, 300)):
                delays.maybe()
                out = torch.empty(m, N, dtype=BF16) if number % 2 else None
                y = op(*constant(ctx, m, ctx.rank + 1.0), out=out)
                assert tuple(y.shape) == (m, N) and y.dtype is BF16
                require_all(y, 3, call=number, m=m, rank=ctx.rank)

    run(2, body)


@pytest.mark.parametrize("outputs", [1, 2])
@each_main_way
def test_no_rows_on_one_rank_only(way: Way, outputs: int) -> None:
    """An error on both ranks, and not the sum of one rank's call with another's next; a new op is not touched by it."""

    def body(ctx: RankContext) -> None:
        op = create(ctx, way, 300, timeout_s=5, tuning={"outputs": outputs})

        def calls() -> None:
            for number, m in enumerate((0, 0, 300) if ctx.rank else (300, 300, 300)):
                require_all(op(*constant(ctx, m, number + 1.0)), 2 * (number + 1.0), call=number)

        with pytest.raises(CollectiveError):
            calls()
        op.close()
        ctx.barrier()
        if way == FUSED_SDMA:
            with create(ctx, way, 300) as new:
                require_all(new(*constant(ctx, 300, ctx.rank + 1.0)), 3, rank=ctx.rank)

    assert [outcome.error for outcome in LocalWorld(2).outcomes(body)] == [None, None]


# --- workspace and its limit ---


@pytest.mark.parametrize("way", [SPLIT_LSA, FUSED_SDMA_PULLED], ids=str)
def test_capacity_is_what_the_check_says(way: Way) -> None:
    """All sizes up to m_max, with a neighbour's window beside it; the first call's bits come again at the end."""

    def body(ctx: RankContext) -> None:
        neighbour = AllReduceOp.create(ctx, 65536, dtypes=(BF16,))
        with neighbour, create(ctx, way, 513) as op:
            pattern = neighbour.buffer((32768,), BF16).copy_(torch.arange(32768) % 251)
            before, results = pattern.clone(), []
            for m in (513, 10, 128, 129, 256, 513):
                data, out = layer(2, m, 0), Guarded((m, N), BF16)
                require_bits(op(*data.of(ctx.rank), out=out.tensor), data.expected(), m=m, rank=ctx.rank)
                out.require_intact(m=m, rank=ctx.rank)
                require_bits(pattern, before, what="neighbour", m=m, rank=ctx.rank)
                results.append(out.tensor)
            require_bits(results[-1], results[0], what="last call", rank=ctx.rank)

    run(2, body)


# --- rows that carry old or foreign data ---


@each_push
def test_results_do_not_depend_on_earlier_calls(way: Way) -> None:
    """After a call full of NaN and huge values, the bits of a fresh op; rows past M stay as they were."""

    def body(ctx: RankContext) -> None:
        with create(ctx, way, 400) as op:
            a, b, a_scale, b_scale = layer(2, 400, 0).of(ctx.rank)
            a.view(torch.uint8).fill_(0x7E)
            a.view(torch.uint8)[::7, ::5] = 0x7F
            for number, m in enumerate((1, 15, 127, 257)):
                assert op(a, b, a_scale.fill_(1e30), b_scale).isnan().any()
                data = layer(2, m, number)
                out = Guarded((m, N), BF16)
                y = op(*data.of(ctx.rank), out=out.tensor if number % 2 else None)
                require_bits(y, data.expected(), m=m, rank=ctx.rank)
                out.require_intact(m=m, rank=ctx.rank)

    run(2, body)


@pytest.mark.parametrize("recipe", list(Recipe), ids=lambda recipe: recipe.value)
def test_a_row_that_is_not_finite_stays_alone(recipe: Recipe) -> None:
    """NaN in its data or its scale, on one rank: that row is NaN, all others have the bits they have without."""

    def body(ctx: RankContext) -> None:
        m, bad = 270, (5, 140, 269)
        clean = torch.ones(m, dtype=torch.bool)
        clean[list(bad)] = False
        with create(ctx, FUSED_SDMA, m, recipe) as op:
            data = layer(2, m, 7, recipe=recipe)
            a, b, a_scale, b_scale = data.of(ctx.rank)
            if ctx.rank == 1:
                a.view(torch.uint8)[bad[0]] = 0x7F
                a.view(torch.uint8)[bad[1], 3] = 0xFF
                nan = 255 if recipe is Recipe.MXFP8 else math.nan
                if recipe is Recipe.MXFP8:
                    group, rest = divmod(bad[2], 64)
                    a_scale[:, group, rest % 16, rest // 16] = nan
                else:
                    a_scale.view(-1)[bad[2]] = nan
            y = op(a, b, a_scale, b_scale)
            assert y[~clean].isnan().all(), recipe
            require_bits(y[clean], data.expected()[clean], recipe=recipe, rank=ctx.rank)

    run(2, body)


# --- range and accumulator ---


def partial(m: int, value: float, n: int = N) -> Tensors:
    """Operands whose product is `value` everywhere."""
    a, b = torch.zeros(m, 128), torch.zeros(n, 128)
    a[:, 0] = b[:, 0] = 1.0
    return a.to(FP8), b.to(FP8), torch.full((1, m), value), torch.ones(-(-n // 128), 1)


def sums(way: Way, values: list[list[float]]) -> list[list[float]]:
    """For each case, one value of each rank: what every rank gets, of every element."""
    world = len(values[0])

    def body(ctx: RankContext) -> list[torch.Tensor]:
        with create(ctx, way, world * 128) as op:
            return [op(*partial(world * 128, case[ctx.rank])).clone() for case in values]

    first, *others = run(world, body)
    for other in others:
        for mine, theirs in zip(first, other, strict=True):
            require_bits(mine, theirs, way=way)
    for y in first:
        require_all(y, float(y[0, 0]), way=way)
    return [float(y[0, 0]) for y in first]


@each_main_way
def test_range_of_the_sum(way: Way) -> None:
    """Beyond fp16; overflow is infinity; what cancels in rank order is finite, and never NaN."""
    cases = [[1e30, 1.0], [70000.0, 70000.0], [3e38, 3e38], [3e38, -3e38]]
    expected = [float(torch.tensor(1e30).to(BF16)), 140288.0, math.inf, 0.0]
    assert sums(way, cases) == expected


def test_order_and_width_of_the_sum() -> None:
    """Four ranks: a bf16 accumulator would give 256; overflow on the way stays infinite."""
    cases = [[256.0, 1.0, 1.0, 1.0], [3e38, 3e38, -3e38, -3e38], [3e38, -3e38, 3e38, -3e38]]
    assert sums(FUSED_LSA, cases) == [260.0, math.inf, 0.0]


# --- a transport that is silently not in force ---


def test_what_is_in_force_can_be_read() -> None:
    """`plan` and the launches say what a call does; near misses of names are refused."""

    def body(ctx: RankContext) -> None:
        for way in (FUSED_SDMA, FUSED_SDMA_PULLED, FUSED_LSA, SPLIT_LSA):
            with create(ctx, way, 256) as op:
                plan = op.plan(256)
                assert plan.mode is way.mode and plan.gather is way.gather
                with op.target.record() as recording:
                    op(*constant(ctx, 256, 1.0))
                names = " ".join(launch.name for launch in recording.launches)
                kind = "lsa_allreduce" if way is SPLIT_LSA else way.mode.value.replace("-", "_")
                assert kind in names, names
        for name in ("sdma", "fused_sdma", "FUSED-SDMA", "", " auto", "gemm-only", 3):
            with pytest.raises(ConfigError, match="mode="):
                GemmAllReduceOp.create(ctx, n=N, k=128, m_max=8, quant="ptpc", b_layout="row", mode=name)

    run(2, body)
