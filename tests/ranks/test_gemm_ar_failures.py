# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Ranks that call the fused op differently, are late, never come or leave with an error: everyone hears of it."""

from __future__ import annotations

import re

import pytest
import torch

from mori_gemm_ar.errors import (
    ClosedError,
    CollectiveError,
    CollectiveMismatch,
    CollectiveTimeout,
    ConcurrentUseError,
    ConfigError,
)
from mori_gemm_ar.op import GemmAllReduceOp
from mori_gemm_ar.runtime import RankContext
from tests.ranks.layers import FUSED_SDMA, MAIN_WAYS, SPLIT_LSA, STREAMED, Way, create, each_main_way, layer
from tests.ranks.worlds import errors, now, require_bits, run

TIMEOUT_S = 5
M = 400  # fused on three ranks, ragged
WORLD = 3


def call(op: GemmAllReduceOp, m: int, *seed: int) -> None:
    """A call that must be right."""
    data = layer(op.world_size, m, *seed)
    require_bits(op(*data.of(op.rank)), data.expected(), m=m, rank=op.rank)


def refuses(op: GemmAllReduceOp, error: CollectiveError) -> None:
    """A failed op does nothing more, says why each time, and closes."""
    for use in (lambda: op(*layer(WORLD, M, 0).of(op.rank)), op.check, op.self_test):
        with pytest.raises(type(error)) as again:
            use()
        assert again.value is error
    op.close()
    op.close()
    with pytest.raises(ClosedError):
        op(*layer(WORLD, M, 0).of(op.rank))


# The same kernels with another size, another path, and nearly none.
OTHERS = [(way, M - 1) for way in MAIN_WAYS] + [(SPLIT_LSA, 0), (FUSED_SDMA, 5), (STREAMED, 0)]
MORE = [(way, m) for way in MAIN_WAYS for m in (5, 0, 1, M - 130) if (way, m) not in OTHERS]


@pytest.mark.parametrize(("way", "other"), [*OTHERS, *(pytest.param(*more, marks=pytest.mark.slow) for more in MORE)])
def test_ranks_with_another_m(way: Way, other: int) -> None:
    """An error on every rank within the budget, then a new op works."""

    def body(ctx: RankContext) -> str:
        op = create(ctx, way, M, timeout_s=TIMEOUT_S)
        start = now(ctx)

        def two_calls() -> None:
            op(*layer(WORLD, other if ctx.rank == 2 else M, 2).of(ctx.rank))
            call(op, M, 3)  # a rank that had nothing to wait for hears of it in its next call

        with pytest.raises(CollectiveError) as caught:
            two_calls()
        assert now(ctx) - start < 3 * TIMEOUT_S
        refuses(op, caught.value)
        ctx.barrier()
        assert len(ctx.node.regions) == 0
        if other == 5:
            with create(ctx, way, M) as new:
                call(new, M, 4)
        return f"{type(caught.value).__name__}: {caught.value}"

    found = run(WORLD, body)
    if other == M - 1:  # the same kernels, so the calls meet and are compared
        for rank, text in enumerate(found):
            assert text.startswith("CollectiveMismatch"), text
            assert f"rank {rank} called" in text, text
            sizes = {str(M), str(M - 1)} if way != SPLIT_LSA else {str(M * 512), str((M - 1) * 512)}
            assert sizes <= set(re.findall(r"\d+", text)), text
    else:
        for text in found:
            assert "rank 2" in text or text.startswith("CollectiveMismatch"), text


@each_main_way
@pytest.mark.parametrize("absence", ["sleeps", "has ended"])
def test_a_rank_that_never_calls(absence: str, way: Way) -> None:
    """The others name it, the phase and the call once their budget is spent.

    In the streamed tail a rank that owns no rows waits for the others' end only, so it may name one that is stuck.
    """

    def body(ctx: RankContext) -> float:
        op = create(ctx, way, M, timeout_s=TIMEOUT_S)
        call(op, M, 1)
        if ctx.rank == 1:
            if absence == "sleeps":
                ctx.sleep(20 * TIMEOUT_S)
            op.close()
            return 0.0
        start = now(ctx)
        with pytest.raises(CollectiveTimeout) as caught:
            op(*layer(WORLD, M, 2).of(ctx.rank))
        waited = now(ctx) - start
        whom = "[01]" if way == STREAMED and ctx.rank == 2 else "1"
        text = rf"rank {ctx.rank} waited 5 s for rank {whom} at the \w+ .*; rank {whom} is dead, stuck"
        assert re.search(text, str(caught.value)), str(caught.value)
        refuses(op, caught.value)
        return waited

    waits = run(WORLD, body)
    assert all(TIMEOUT_S <= waits[rank] < 6 * TIMEOUT_S for rank in (0, 2)), waits


@each_main_way
def test_a_slow_rank_within_the_budget_is_waited_for(way: Way) -> None:
    """Negative control: lateness alone is no failure."""

    def body(ctx: RankContext) -> None:
        with create(ctx, way, M, timeout_s=TIMEOUT_S) as op:
            for number, m in enumerate((M, 7)):
                if ctx.rank == 1:
                    ctx.sleep(0.6 * TIMEOUT_S)
                call(op, m, number)

    run(WORLD, body)


def test_an_exception_on_one_rank_does_not_hang_the_others() -> None:
    def body(ctx: RankContext) -> None:
        with create(ctx, FUSED_SDMA, M, timeout_s=TIMEOUT_S) as op:
            for number in range(3):
                if ctx.rank == 1 and number == 2:
                    raise ZeroDivisionError("mine")
                call(op, M, number)

    first, second, third = errors(WORLD, body)
    assert isinstance(second, ZeroDivisionError)
    assert isinstance(first, CollectiveTimeout) and isinstance(third, CollectiveTimeout)


@pytest.mark.parametrize("way", ["call", "check", "close", "with"])
def test_an_unseen_failure_is_raised_by_the_next_use(way: str) -> None:
    """A replay itself reports nothing; whoever asks next hears of it, and everything is given back."""

    def body(ctx: RankContext) -> None:
        op = create(ctx, FUSED_SDMA, M, timeout_s=1)
        operands = layer(2, M, 0).of(ctx.rank)
        with op.target.record() as recording:
            op(*operands)
        if ctx.rank == 1:
            ctx.exchange("failed", None)
            if way == "call":
                with pytest.raises(CollectiveError):
                    op(*operands)
            op.close()
        else:
            recording.replay()
            ctx.exchange("failed", None)
            uses = {
                "call": lambda: op(*operands),
                "check": op.check,
                "close": op.close,
                "with": lambda: op.__exit__(None, None, None),
            }
            with pytest.raises(CollectiveTimeout, match="rank 0 waited 1 s for rank 1"):
                uses[way]()
            op.close()
        ctx.barrier()
        assert op.closed and len(ctx.node.regions) == 0

    assert errors(2, body) == [None, None]


def test_a_closed_op_and_one_of_another_thread() -> None:
    """As the all-reduce: closing twice is fine, use after it is an error, and `bind` hands the op on."""

    def body(ctx: RankContext) -> None:
        op = create(ctx, FUSED_SDMA, 300)

        def elsewhere() -> None:
            with pytest.raises(ConcurrentUseError, match="op belongs to another thread; call bind"):
                op(*layer(2, 300, 0).of(ctx.rank))
            op.bind()
            call(op, 300, 0)

        ctx.spawn(elsewhere).join()
        with pytest.raises(ConcurrentUseError):
            op(*layer(2, 300, 0).of(ctx.rank))
        op.bind()
        call(op, 300, 1)
        op.close()
        op.close()
        for use in (
            lambda: op(*layer(2, 300, 0).of(ctx.rank)), lambda: op.output(1), op.check, op.bind, op.freeze,
            op.self_test, lambda: op.quantize(torch.zeros(1, 128, dtype=torch.bfloat16)),
        ):  # fmt: skip
            with pytest.raises(ClosedError):
                use()

    run(2, body)


def test_a_refused_call_is_no_failure() -> None:
    """Alike on all ranks, it leaves the op as it was."""

    def body(ctx: RankContext) -> None:
        with create(ctx, FUSED_SDMA, 300) as op:
            with pytest.raises(ConfigError):
                op(*layer(2, 301, 0).of(ctx.rank))
            op.check()
            call(op, 300, 0)

    run(2, body)


def test_the_mismatch_names_both_calls() -> None:
    """Output and gather are part of a call: ranks that have made another number of calls are told apart."""

    def body(ctx: RankContext) -> str:
        op = create(ctx, FUSED_SDMA, 300, timeout_s=TIMEOUT_S)
        if ctx.rank == 1:
            op._next = 1
        with pytest.raises(CollectiveMismatch) as caught:
            op(*layer(2, 300, 0).of(ctx.rank))
        op.close()
        return str(caught.value)

    for rank, text in enumerate(run(2, body)):
        assert f"rank {rank} called GEMM and all-reduce with m=300, sums pushed by copy engine, output {rank}" in text
        assert f"but rank {1 - rank} with m=300, sums pushed by copy engine, output {1 - rank}" in text
