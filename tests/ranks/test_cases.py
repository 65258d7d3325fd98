# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Failure cases that others met in synchronisation: reuse, changing shapes, threads, replay, wrapping counters."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.errors import ConcurrentUseError
from mori_gemm_ar.layout import Stage
from mori_gemm_ar.runtime import RankContext
from tests.ranks.worlds import BF16, Delays, both_stages, now, require_all, run, unfair


def triangle(world: int) -> int:
    """1 + 2 + ... + world: the sum of rank + 1."""
    return world * (world + 1) // 2


# --- input overwritten straight after the call ---


def overwrite(world: int, stage: Stage, in_window: bool, calls: int) -> None:
    """Calls on one input that is overwritten when each returns, one rank late each time."""

    def body(ctx: RankContext) -> None:
        delays = Delays(ctx)
        with AllReduceOp.create(ctx, 1 << 14, stage=stage, dtypes=(BF16,)) as op:
            x = op.buffer((8, 1024), BF16) if in_window else torch.empty(8, 1024, dtype=BF16)
            kept = []
            for i in range(calls):
                x.fill_(ctx.rank + 1 + i % 16)
                delays.only(i)
                kept.append(op(x))
                x.fill_(float("nan"))
        for i, y in enumerate(kept):
            require_all(y, triangle(world) + world * (i % 16), world=world, call=i, rank=ctx.rank)

    run(world, body, seed=world, node=unfair(world))


in_and_out = pytest.mark.parametrize("in_window", [False, True], ids=["staged", "zero_copy"])


@in_and_out
@pytest.mark.parametrize(("world", "stage", "calls"), [(2, Stage.ONE, 200), (4, Stage.TWO, 60), (8, Stage.ONE, 40)])
def test_input_overwritten_at_once(world: int, stage: Stage, calls: int, in_window: bool) -> None:
    """A fast rank must not rewrite what a slow one is still reading."""
    overwrite(world, stage, in_window, calls)


@pytest.mark.slow
@both_stages
@in_and_out
@pytest.mark.parametrize("world", [4, 8])
def test_input_overwritten_at_once_in_full(world: int, stage: Stage, in_window: bool) -> None:
    overwrite(world, stage, in_window, 200)


# --- shape changes between consecutive calls ---


def changing_shapes(world: int, calls: int, rows: tuple[int, ...], node: Callable | None = None) -> None:
    def body(ctx: RankContext) -> None:
        delays, shared = Delays(ctx), random.Random(7)
        with AllReduceOp.create(ctx, max(rows) * 2880 * 2, dtypes=(BF16,)) as op:
            for call in range(calls):
                m = shared.choice(rows)
                delays.maybe()
                y = op(torch.full((m, 2880), ctx.rank + 1.0, dtype=BF16))
                require_all(y, triangle(world), world=world, call=call, m=m, rank=ctx.rank)

    run(world, body, seed=world, **({"node": node} if node else {}))


@pytest.mark.parametrize("world", [4, 8])
def test_shapes_that_change_in_every_call(world: int) -> None:
    changing_shapes(world, 20, (1, 3, 7, 8), unfair(world))
    changing_shapes(world, 10, (1, 3, 7, 8, 64, 127, 128))


@pytest.mark.slow
@pytest.mark.parametrize("world", [4, 8])
def test_shapes_that_change_in_every_call_in_full(world: int) -> None:
    changing_shapes(world, 300, (1, 3, 7, 8, 64, 127, 128, 512, 1024))


# --- one op used from two threads ---


def stream(op: AllReduceOp, value: float, calls: int, shape: tuple[int, int] = (640, 1024)) -> Callable[[], int]:
    """A thread's work: sums of `value` over two ranks, and how many elements of all calls were wrong."""

    def work() -> int:
        op.bind()
        results = [op(torch.full(shape, value, dtype=BF16)) for _ in range(calls)]
        return sum(int((y != value * 3 / (op.rank + 1)).sum()) for y in results)

    return work


def test_one_op_belongs_to_one_thread() -> None:
    """The second thread is refused, whether the first is inside a call or not; the sums of the first stay right."""

    def body(ctx: RankContext) -> set[str]:
        with AllReduceOp.create(ctx, 2 << 20, dtypes=(BF16,)) as op:

            def intruder() -> list[str]:
                refused = []
                for _ in range(160):
                    with pytest.raises(ConcurrentUseError) as caught:
                        op(torch.full((640, 1024), 10.0 * (ctx.rank + 1), dtype=BF16))
                    refused.append(str(caught.value))
                    ctx.sleep(2e-6)
                return refused

            second = ctx.spawn(intruder)
            for call in range(8):
                require_all(op(torch.full((640, 1024), ctx.rank + 1.0, dtype=BF16)), 3, call=call, rank=ctx.rank)
                ctx.sleep(2e-6)
            return set(second.join())

    # In one order of threads or another it is met inside a call and between two.
    refused = [one for seed in range(3) for one in run(2, body, seed=seed)]
    assert all(refused)
    assert set().union(*refused) == {
        "op must not be called while another thread is in it; give each thread its own op",
        "op belongs to another thread; call bind() on all ranks, or create one op per thread",
    }


def test_an_op_can_be_handed_to_another_thread() -> None:
    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 2 << 20, dtypes=(BF16,)) as op:
            assert ctx.spawn(stream(op, ctx.rank + 1.0, 3)).join() == 0
            with pytest.raises(ConcurrentUseError, match="belongs to another thread"):
                op(torch.ones(8, dtype=BF16))
            op.bind()
            require_all(op(torch.full((8,), ctx.rank + 1.0, dtype=BF16)), 3)

    run(2, body)


def two_threads(calls: int, seed: int) -> None:
    def body(ctx: RankContext) -> None:
        a = AllReduceOp.create(ctx, 2 << 20, dtypes=(BF16,))
        with a, AllReduceOp.create(ctx, 2 << 20, dtypes=(BF16,)) as b:
            threads = [ctx.spawn(stream(a, ctx.rank + 1.0, calls)), ctx.spawn(stream(b, 10.0 * (ctx.rank + 1), calls))]
            assert [thread.join() for thread in threads] == [0, 0]

    run(2, body, seed=seed)


@pytest.mark.parametrize("seed", range(3))
def test_two_ops_in_two_threads(seed: int) -> None:
    """Ranks submit in different orders; neither op's kernels may keep the other's from running."""
    two_threads(8, seed)


@pytest.mark.slow
def test_two_ops_in_two_threads_in_full() -> None:
    two_threads(200, 0)


# --- recorded and replayed ---


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(("world", "stage"), [(2, Stage.ONE), (4, Stage.TWO)])
def test_replays_use_new_data_and_new_epochs(world: int, count: int, stage: Stage) -> None:
    """Replays of 1, 2 and 3 calls, an eager call after every 7th, one rank late each time."""
    replays = 100 if world * count < 6 else 40

    def body(ctx: RankContext) -> None:
        delays = Delays(ctx)
        with AllReduceOp.create(ctx, 1 << 12, stage=stage, dtypes=(BF16,)) as op:
            inputs = [torch.empty(4, 512, dtype=BF16) for _ in range(count)]
            with op.target.record() as recording:
                outputs = [op(x) for x in inputs]
            for replay in range(replays):
                for j, x in enumerate(inputs):
                    x.fill_(ctx.rank + 1 + (replay + j) % 16)
                delays.only(replay)
                recording.replay()
                where = {"world": world, "replay": replay, "rank": ctx.rank}
                for j, y in enumerate(outputs):
                    require_all(y, triangle(world) + world * ((replay + j) % 16), call=j, **where)
                if replay % 7 == 6:
                    require_all(op(torch.full((3,), ctx.rank + 2.0, dtype=BF16)), triangle(world) + world, **where)
            op.check()

    run(world, body, seed=count, node=unfair(count))


# --- call counter wraps round ---


@both_stages
@pytest.mark.parametrize("start", [2**31 - 4, 2**32 - 4])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_call_counter_wraps(world: int, start: int, stage: Stage) -> None:
    """16 calls over the wrap; blocks 1, 3, 4 and 12 advance unequally, and nobody goes on before the late rank came."""

    def body(ctx: RankContext) -> list[tuple[float, float]]:
        times, delays = [], Delays(ctx, seed=world)
        slices = world if stage is Stage.TWO else 1
        with AllReduceOp.create(ctx, 1 << 19, stage=stage, dtypes=(BF16,)) as op:
            ctx.barrier()
            op._start_epoch(start)
            ctx.barrier()
            for call in range(16):
                blocks = (12, 1, 3, 4)[call % 4]
                numel = blocks * 512 * 8 * slices
                assert op.plan(numel, BF16).blocks == blocks
                delays.only(call)
                entered = now(ctx)
                y = op(torch.full((numel,), ctx.rank + 1.0, dtype=BF16))
                times.append((entered, now(ctx)))
                require_all(y, triangle(world), world=world, start=start, call=call, rank=ctx.rank)
            # Block 0 took part in every call, block 4 in those of 12 blocks.
            epochs = memoryview(op.target.read(op._window.at("epochs"), 4 * 12)).cast("I")
            assert (epochs[0], epochs[3], epochs[4]) == ((start + 16) % 2**32, (start + 8) % 2**32, (start + 4) % 2**32)
        return times

    ranks = run(world, body, seed=world, node=unfair(world))
    for call in zip(*ranks, strict=True):
        assert max(entered for entered, _ in call) < min(left for _, left in call)


@pytest.mark.parametrize("start", [2**31 - 4, 2**31 + 4, 2**32 - 4])
def test_stages_share_the_call_counter_over_its_wrap(start: int) -> None:
    """A stage that was not used for two thousand million calls is not taken for one that is ahead."""

    def body(ctx: RankContext) -> None:
        delays = Delays(ctx)
        with AllReduceOp.create(ctx, 1 << 18, dtypes=(BF16,)) as op:
            ctx.barrier()
            op._start_epoch(start)
            ctx.barrier()
            stages = [op.plan(numel, BF16).config.stage for numel in (64, 130_000)]
            assert stages == [Stage.ONE, Stage.TWO]
            for call in range(12):
                delays.only(call)
                y = op(torch.full((130_000 if call in (3, 4, 9) else 64,), ctx.rank + 1.0, dtype=BF16))
                require_all(y, 10, start=start, call=call, rank=ctx.rank)

    run(4, body, node=unfair(1))
