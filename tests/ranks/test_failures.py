# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Ranks that disagree, are late, never come, or leave with an error: everyone hears of it, and nothing stays behind."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.errors import CollectiveMismatch, CollectiveTimeout, EmulatorError, MemoryFault, RendezvousError
from mori_gemm_ar.layout import Stage
from mori_gemm_ar.runtime import LocalWorld, RankContext
from tests.ranks.worlds import BF16, FP16, FP32, both_stages, errors, now, require_all, run

WALL_S = 20.0  # far above what these take, far below a budget that is really waited for


@pytest.fixture(autouse=True)
def no_wall_time():
    """Budgets of minutes pass in virtual time only."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < WALL_S


def ones(rank: int, numel: int = 64, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.full((numel,), rank + 1.0, dtype=dtype)


# --- ranks that disagree about a call ---

CALLS: dict[str, tuple[Callable[[int], torch.Tensor], tuple[str, str]]] = {
    "numel": (lambda rank: ones(rank, 64 + rank // 2), ("64 x bf16", "65 x bf16")),
    "numel_by_blocks": (lambda rank: ones(rank, 8 if rank == 2 else 60_000), ("60000 x bf16", "8 x bf16")),
    "dtype": (lambda rank: ones(rank, 64, FP16 if rank == 2 else BF16), ("64 x bf16", "64 x fp16")),
    "dtype_of_equal_bytes": (
        lambda rank: ones(rank, 32, FP32) if rank == 2 else ones(rank, 64),
        ("64 x bf16", "32 x fp32"),
    ),
    "empty": (lambda rank: ones(rank, 0 if rank == 2 else 64), ("64 x bf16", "0 x bf16")),
}


@both_stages
@pytest.mark.parametrize("name", CALLS)
def test_ranks_that_call_differently(name: str, stage: Stage) -> None:
    """Both calls are named on every rank, within the budget; the op is done with, and a new one works."""
    make, texts = CALLS[name]

    def body(ctx: RankContext) -> None:
        op = AllReduceOp.create(ctx, 1 << 17, stage=stage, timeout_s=30)
        require_all(op(ones(ctx.rank)), 6)
        start = now(ctx)
        with pytest.raises(CollectiveMismatch) as caught:
            op(make(ctx.rank))
        assert now(ctx) - start < 2 * 30
        message = str(caught.value)
        assert all(f"{text}, {stage.value}-stage" in message for text in texts), message
        assert f"rank {ctx.rank} called" in message and "entry barrier" in message
        peers = (2,) if ctx.rank < 2 else (0, 1)
        assert any(f"but rank {peer} with" in message for peer in peers), message
        for use in (lambda: op(ones(ctx.rank)), op.check):
            with pytest.raises(CollectiveMismatch):
                use()
        op.close()
        ctx.barrier()
        assert len(ctx.node.regions) == 0
        with AllReduceOp.create(ctx, 1 << 10, dtypes=(BF16,)) as new:
            require_all(new(ones(ctx.rank)), 6)

    assert errors(3, body) == [None] * 3


def test_in_place_in_the_window_on_one_rank_only() -> None:
    """Without a fixed stage this is another call than its peers make: refused, never a wrong sum."""

    def body(ctx: RankContext) -> str:
        op = AllReduceOp.create(ctx, 1 << 10, dtypes=(BF16,))
        x = op.buffer((64,), BF16).copy_(ones(ctx.rank))
        with pytest.raises(CollectiveMismatch) as caught:
            op(x, out=x if ctx.rank == 0 else None)
        op.close()
        return str(caught.value)

    for text in run(3, body):
        assert "64 x bf16, 1-stage" in text and "64 x bf16, 2-stage" in text


# --- ranks that do not come ---


@both_stages
@pytest.mark.parametrize("absence", ["sleeps", "has_ended", "waits_elsewhere"])
def test_a_rank_that_never_calls(absence: str, stage: Stage) -> None:
    """The others name phase, rank and peer once the budget is spent; then their op refuses work but closes."""

    def body(ctx: RankContext) -> float:
        op = AllReduceOp.create(ctx, 1 << 16, timeout_s=5, stage=stage, dtypes=(BF16,))
        require_all(op(ones(ctx.rank)), 6)
        if ctx.rank == 1:
            if absence == "sleeps":
                ctx.sleep(100)
            elif absence == "waits_elsewhere":
                with pytest.raises(
                    RendezvousError, match=r"rank [02] ended before step 'elsewhere'; rank 1 cannot go on"
                ):
                    ctx.exchange("elsewhere", None)
            op.close()
            return 0.0
        start = now(ctx)
        with pytest.raises(CollectiveTimeout) as caught:
            op(ones(ctx.rank, 20_000))
        waited = now(ctx) - start
        assert f"rank {ctx.rank} waited 5 s for rank 1 at the entry barrier (all inputs are there)" in str(caught.value)
        assert "expected call 4, saw call 3; rank 1 is dead, stuck or too slow; create a new op" in str(caught.value)
        for use in (lambda: op(ones(ctx.rank)), op.check):
            with pytest.raises(CollectiveTimeout) as again:
                use()
            assert again.value is caught.value
        op.close()
        op.close()
        return waited

    node_regions: list[int] = []

    def watched(ctx: RankContext) -> float:
        try:
            return body(ctx)
        finally:
            node_regions.append(len(ctx.node.regions))

    waits = run(3, watched)
    assert all(5 <= waits[rank] < 60 for rank in (0, 2))
    assert node_regions[-1] == 0  # the last rank to leave took everything with it


def test_a_slow_rank_within_the_budget_is_waited_for() -> None:
    """Negative control: lateness alone is no failure."""

    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 1 << 10, timeout_s=5, dtypes=(BF16,)) as op:
            for call in range(10):
                if ctx.rank == 1 and call == 4:
                    ctx.sleep(3)
                require_all(op(ones(ctx.rank)), 6, call=call, rank=ctx.rank)

    run(3, body)


# --- a failure that nobody has asked for yet ---


@pytest.mark.parametrize("way", ["call", "check", "close", "with"])
def test_an_unseen_failure_is_raised_by_the_next_use(way: str) -> None:
    """A replay itself reports nothing; whoever asks next hears of it, and close releases everything all the same."""

    def body(ctx: RankContext) -> None:
        op = AllReduceOp.create(ctx, 1 << 10, timeout_s=1, dtypes=(BF16,))
        x = ones(ctx.rank)
        with op.target.record() as recording:
            op(x)
        if ctx.rank == 1:
            ctx.exchange("failed", None)
            if way == "call":
                op(x)
            op.close()
        else:
            recording.replay()
            ctx.exchange("failed", None)
            with pytest.raises(CollectiveTimeout, match="rank 0 waited 1 s for rank 1 at the entry barrier"):
                {
                    "call": lambda: op(x),
                    "check": op.check,
                    "close": op.close,
                    "with": lambda: op.__exit__(None, None, None),
                }[way]()
            op.close()
        ctx.barrier()
        assert op.closed and len(ctx.node.regions) == 0

    assert errors(2, body) == [None, None]


def test_an_error_on_its_way_wins_over_what_closing_finds() -> None:
    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 1 << 10, timeout_s=1, dtypes=(BF16,)) as op:
            x = ones(ctx.rank)
            with op.target.record() as recording:
                op(x)
            if ctx.rank == 0:
                recording.replay()
                raise KeyError("mine")

    first, second = errors(2, body)
    assert isinstance(first, KeyError) and second is None


# --- errors of ranks ---


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_an_exception_on_one_rank_does_not_hang_the_others(rank: int) -> None:
    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 1 << 10, timeout_s=5, dtypes=(BF16,)) as op:
            for call in range(10):
                if ctx.rank == rank and call == 4:
                    raise ZeroDivisionError(f"on rank {rank}")
                require_all(op(ones(ctx.rank)), 6, call=call, rank=ctx.rank)

    found = errors(3, body)
    for r, error in enumerate(found):
        if r == rank:
            assert isinstance(error, ZeroDivisionError)
        else:
            assert isinstance(error, CollectiveTimeout) and "call 7, saw call 6" in str(error)
    with pytest.raises(ZeroDivisionError, match=f"on rank {rank}"):
        run(3, body)  # the cause, not what it made the others see


def test_a_fault_of_the_kernel_reaches_every_rank_as_itself() -> None:
    """Leaving the `with` block after it does not hide it."""

    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 1 << 10, dtypes=(BF16,)) as op:
            ctx.barrier()
            if ctx.rank == 1:
                op._window.base -= 1 << 40
            op(ones(ctx.rank))

    found = errors(2, body)
    assert isinstance(found[1], MemoryFault)
    assert all(
        isinstance(error, EmulatorError) and "lsa_allreduce_w2_bf16_1stage, line" in str(error) for error in found
    )
    assert all("GPU 1, workgroup (0, 0, 0), wave 0, lane 0" in str(error) for error in found)


def test_a_rank_may_close_while_others_still_read_its_memory() -> None:
    """Rank 0 leaves at once; the late rank's last sum is right."""

    def body(ctx: RankContext) -> None:
        op = AllReduceOp.create(ctx, 1 << 14, dtypes=(BF16,))
        for call in range(10):
            if ctx.rank == 1 and call == 9:
                ctx.sleep(1)
            require_all(op(ones(ctx.rank, 8000)), 10, call=call, rank=ctx.rank)
        op.close()

    run(4, body)


def test_many_ops_in_one_world_leave_nothing() -> None:
    """Create, one call, close: regions and the emulator's pools stay as few as after the first round."""

    def body(ctx: RankContext) -> None:
        pools = []
        for turn in range(25):
            with AllReduceOp.create(ctx, 1 << 12, dtypes=(BF16,)) as op:
                require_all(op(ones(ctx.rank)), 3, turn=turn)
            ctx.barrier()
            assert len(ctx.node.regions) == 0
            pools.append(len(ctx.node._pools))
            ctx.barrier()
        assert pools[0] == pools[-1]

    run(2, body)


def test_worlds_can_be_run_again_after_a_failure() -> None:
    world = LocalWorld(2, seed=3)

    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 1 << 10, timeout_s=1, dtypes=(BF16,)) as op:
            op(ones(ctx.rank)) if ctx.rank else None

    assert [type(o.error) for o in world.outcomes(body)] == [type(None), CollectiveTimeout]
    assert world.run(lambda ctx: ctx.rank) == [0, 1]
