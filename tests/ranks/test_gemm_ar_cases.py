# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Failure cases that others met, on the fused op: reuse, changing sizes, threads, replay, wrapping counters."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mori_gemm_ar.emulator import Node
from mori_gemm_ar.errors import ClosedError, ConcurrentUseError
from mori_gemm_ar.op import GemmAllReduceOp
from mori_gemm_ar.runtime import RankContext
from tests.ranks.layers import (
    FUSED_SDMA,
    STREAMED,
    N,
    Tensors,
    Way,
    constant,
    create,
    each_main_way,
    each_push,
    layer,
)
from tests.ranks.test_gemm_ar_outputs import Recorded
from tests.ranks.worlds import Delays, now, require_all, require_bits, run, unfair


def triangle(world: int) -> int:
    """1 + 2 + ... + world: the sum of rank + 1."""
    return world * (world + 1) // 2


def spoil(tensors: Tensors) -> None:
    """Every operand becomes NaN."""
    for tensor in tensors:
        tensor.view(torch.uint8).fill_(0xFF)


# --- inputs overwritten straight after the call ---


def overwrite(world: int, way: Way, calls: int) -> None:
    """Operands that are spoilt when each call returns, one rank late each time; results are looked at in time."""

    def body(ctx: RankContext) -> None:
        delays = Delays(ctx)
        m = world * 128 + 5
        with create(ctx, way, m) as op:
            kept: list[torch.Tensor] = []
            for i in range(calls):
                operands = constant(ctx, m, ctx.rank + 1.0 + i % 16)
                delays.only(i)
                y = op(*operands)
                spoil(operands)
                if kept:  # the next call leaves it alone
                    require_all(kept[-1], triangle(world) + world * ((i - 1) % 16), call=i - 1, rank=ctx.rank)
                kept.append(y)

    run(world, body, seed=world, node=unfair(world))


@each_push
def test_inputs_overwritten_at_once(way: Way) -> None:
    """A fast rank's next kernel must not rewrite what a slow one, or an engine, is still reading."""
    overwrite(2, way, 5)


@pytest.mark.slow
@each_main_way
@pytest.mark.parametrize("world", [2, 4, 8])
def test_inputs_overwritten_at_once_in_full(world: int, way: Way) -> None:
    overwrite(world, way, 40)


# --- sizes that change in every call, one instance ---


def any_m(world: int, way: Way, calls: int, node: Callable[[int], Node] = Node, **more: Any) -> None:
    """Random M from 0 to m_max, new operands each time, spoilt after the call; replays of recorded calls between."""
    m_max = world * 128 * 2 - 30

    def body(ctx: RankContext) -> None:
        delays, shared = Delays(ctx), random.Random(world)
        with create(ctx, way, m_max, **more) as op:
            op.freeze()
            recordings = [Recorded(op, ms) for ms in ((m_max,), (3, world * 128))]
            for number in range(calls):
                m = shared.choice((shared.randint(0, m_max), shared.randint(0, m_max), shared.randint(0, 64), 0, m_max))
                data = layer(world, m, number)
                operands = data.of(ctx.rank)
                delays.maybe()
                y = op(*operands)
                spoil(operands)
                require_bits(y, data.expected(), way=way, call=number, m=m, rank=ctx.rank)
                if number % 5 == 4:
                    recorded = recordings[shared.randrange(2)]
                    recorded.require(recorded.replay(number), way=way, call=number, rank=ctx.rank)
            op.check()

    run(world, body, seed=calls, node=node)


@each_main_way
def test_any_m_in_any_order(way: Way) -> None:
    any_m(2, way, 7)


def test_thirty_calls_of_any_m() -> None:
    any_m(2, FUSED_SDMA, 30)


@pytest.mark.slow
@each_main_way
@pytest.mark.parametrize("world", [2, 4])
def test_three_hundred_calls_of_any_m(world: int, way: Way) -> None:
    any_m(world, way, 300)


@pytest.mark.slow
@each_main_way
@pytest.mark.parametrize("world", [2, 3])
def test_any_m_where_workgroups_drift_apart(world: int, way: Way) -> None:
    any_m(world, way, 60, unfair(world))


# --- one op used from two threads ---


def test_one_op_belongs_to_one_thread() -> None:
    """The second thread is refused, inside a call of the first or between two; the first's results stay right."""

    def body(ctx: RankContext) -> set[str]:
        with create(ctx, FUSED_SDMA, 300) as op:

            def intruder() -> set[str]:
                refused = set()
                for _ in range(60):
                    with pytest.raises(ConcurrentUseError) as caught:
                        op(*constant(ctx, 300, 10.0))
                    refused.add(str(caught.value))
                    ctx.sleep(5e-6)
                return refused

            second = ctx.spawn(intruder)
            for number in range(3):
                require_all(op(*constant(ctx, 300, ctx.rank + 1.0)), 3, call=number, rank=ctx.rank)
                ctx.sleep(2e-5)
            return second.join()

    assert set().union(*run(2, body)) == {
        "op must not be called while another thread is in it; give each thread its own op",
        "op belongs to another thread; call bind() on all ranks, or create one op per thread",
    }


def two_threads(calls: int, seed: int) -> None:
    def body(ctx: RankContext) -> None:
        a = create(ctx, FUSED_SDMA, 300)
        with a, create(ctx, FUSED_SDMA, 300) as b:

            def stream(op: GemmAllReduceOp, value: float) -> Callable[[], None]:
                def work() -> None:
                    op.bind()
                    for number in range(calls):
                        require_all(op(*constant(ctx, 300, value * (ctx.rank + 1))), 3 * value, call=number)

                return work

            threads = [ctx.spawn(stream(a, 1.0)), ctx.spawn(stream(b, 10.0))]
            for thread in threads:
                thread.join()

    run(2, body, seed=seed)


def test_two_ops_in_two_threads() -> None:
    """Ranks submit in different orders; neither op's kernels may keep the other's from running."""
    two_threads(4, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_two_ops_in_two_threads_in_full(seed: int) -> None:
    two_threads(60, seed)


# --- recorded and replayed ---


def replays(count: int, way: Way, rounds: int, node: Callable[[int], Node] = Node) -> None:
    """Replays of `count` calls, an eager call after every third, one rank late each time."""

    def body(ctx: RankContext) -> None:
        delays = Delays(ctx)
        with create(ctx, way, 257) as op:
            inputs = [constant(ctx, 257, 1.0) for _ in range(count)]
            with op.target.record() as recording:
                outputs = [op(*operands) for operands in inputs]
            for replay in range(rounds):
                for j, operands in enumerate(inputs):
                    operands[2].fill_(ctx.rank + 1 + (replay + j) % 16)
                delays.only(replay)
                recording.replay()
                for j, y in list(enumerate(outputs))[-2:]:  # the first of three has been overwritten by the third
                    require_all(y, 3 + 2 * ((replay + j) % 16), replay=replay, call=j, rank=ctx.rank)
                if replay % 3 == 2:
                    require_all(op(*constant(ctx, 4, ctx.rank + 2.0)), 5, replay=replay, rank=ctx.rank)
            op.check()

    run(2, body, seed=count, node=node)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_replays_use_new_data_and_new_epochs(count: int) -> None:
    """An odd and an even number of calls; outputs rotate at another pace than replays."""
    replays(count, STREAMED if count == 2 else FUSED_SDMA, 5)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3])
@each_main_way
def test_replays_use_new_data_and_new_epochs_in_full(count: int, way: Way) -> None:
    replays(count, way, 60, unfair(count))


def test_many_recorded_sizes_without_references() -> None:
    """Eight sizes recorded one after the other, memory reused between them, replayed in any order with new data."""

    def body(ctx: RankContext) -> None:
        shared = random.Random(3)
        with create(ctx, FUSED_SDMA, 256) as op:
            recordings = []
            for m in (256, 128, 64, 32, 16, 8, 2, 1):
                recordings.append(Recorded(op, (m,)))
                op._plans.clear()
                op._ready.clear()
                torch.empty(256, N).fill_(7.0)  # takes what was freed
            for step in range(12):
                recorded = shared.choice(recordings)
                recorded.require(recorded.replay(step), step=step, rank=ctx.rank)

    run(2, body)


def test_use_after_close() -> None:
    """A call is refused by name; memory that a recording knows is not touched."""

    def body(ctx: RankContext) -> None:
        op = create(ctx, FUSED_SDMA, 256)
        operands = constant(ctx, 256, 1.0)
        with op.target.record():
            op(*operands)
        op.close()
        with pytest.raises(ClosedError):
            op(*operands)

    run(2, body)


# --- call counter wraps round ---


def counter_wraps(way: Way, start: int, node: Callable[[int], Node] = Node) -> None:
    """Calls over the wrap, some fused and some not, so that counters advance unequally; nobody passes the late rank."""

    def body(ctx: RankContext) -> list[tuple[float, float]]:
        times, delays = [], Delays(ctx, seed=1)
        with create(ctx, way, 300, tuning={"chunks": 2}) as op:
            ctx.barrier()
            op._start_epoch(start)
            ctx.barrier()
            for number in range(6):
                m = (300, 256, 7, 300)[number % 4]
                delays.only(number)
                entered = now(ctx)
                y = op(*constant(ctx, m, ctx.rank + 1.0))
                times.append((entered, now(ctx)))
                require_all(y, 3, way=way, start=start, call=number, m=m, rank=ctx.rank)
        return times

    ranks = run(2, body, node=node)
    for calls in zip(*ranks, strict=True):
        assert max(entered for entered, _ in calls) < min(left for _, left in calls)


@each_main_way
def test_call_counter_wraps(way: Way) -> None:
    counter_wraps(way, 2**32 - 3)


@pytest.mark.slow
@pytest.mark.parametrize("start", [2**31 - 3, 2**32 - 3])
@each_main_way
def test_call_counter_wraps_where_workgroups_drift_apart(way: Way, start: int) -> None:
    counter_wraps(way, start, unfair(3))
