# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""A world of ranks in one process: seeded orders, virtual time, exchanges that end, further threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from mori_gemm_ar.emulator import TICKS_PER_SECOND
from mori_gemm_ar.errors import CollectiveSetupError, CollectiveTimeout, ConfigError, RendezvousError
from mori_gemm_ar.runtime import LocalWorld, RankContext, agree, require_equal


@pytest.fixture(autouse=True)
def no_thread_stays():
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def turns(size: int, seed: int, count: int = 20) -> list[int]:
    """In which order ranks get the baton."""
    order: list[int] = []

    def body(ctx: RankContext) -> None:
        for _ in range(count):
            order.append(ctx.rank)
            ctx.wait("a turn", lambda: True)

    LocalWorld(size, seed).run(body)
    return order


def outcome(size: int, body: Callable[[RankContext], Any], seed: int = 0) -> list[BaseException | None]:
    return [o.error for o in LocalWorld(size, seed).outcomes(body)]


# --- order ---


def test_a_seed_fixes_the_order() -> None:
    assert turns(4, seed=3) == turns(4, seed=3)


def test_other_seeds_give_other_orders() -> None:
    """Orders that are really different, not one order under many seeds; every rank comes first in some."""
    orders = [turns(4, seed) for seed in range(20)]
    assert len({tuple(order) for order in orders}) == 20
    assert {order[0] for order in orders} == {0, 1, 2, 3}
    assert all(sorted(order) == sorted(list(range(4)) * 20) for order in orders)


def test_one_rank_may_run_far_ahead() -> None:
    """Overtaking happens: within some seed a rank takes five turns before another takes its first."""

    def lead(order: list[int]) -> int:
        return max(order[: order.index(rank)].count(other) for rank in range(4) for other in range(4) if other != rank)

    assert max(lead(turns(4, seed)) for seed in range(20)) >= 5


def test_results_stand_in_rank_order() -> None:
    for seed in range(5):
        assert LocalWorld(5, seed).run(lambda ctx: (ctx.rank, ctx.size)) == [(rank, 5) for rank in range(5)]


def test_only_one_thread_runs_at_a_time() -> None:
    inside: list[int] = []

    def body(ctx: RankContext) -> None:
        for _ in range(30):
            inside.append(ctx.rank)
            time.sleep(0)  # an invitation to other threads, which have to decline
            assert inside == [ctx.rank]
            inside.clear()
            ctx.wait("a turn", lambda: True)

    LocalWorld(3).run(body)


def test_each_run_has_a_node_of_its_own() -> None:
    world = LocalWorld(2)
    first, second = (world.run(lambda ctx: ctx.node) for _ in range(2))
    assert first[0] is first[1] and second[0] is second[1] and first[0] is not second[0]
    assert first[0].gpus == 2


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "2", None])
def test_size_of_a_world(size: object) -> None:
    with pytest.raises(ConfigError, match=r"size=.* must be a positive integer; an op supports up to 8 ranks"):
        LocalWorld(size)  # type: ignore[arg-type]


# --- errors ---


def test_outcomes_tell_results_and_errors_of_all_ranks() -> None:
    def body(ctx: RankContext) -> int:
        if ctx.rank == 1:
            raise KeyError("one")
        return 10 * ctx.rank

    outcomes = LocalWorld(3).outcomes(body)
    assert [o.value for o in outcomes] == [0, None, 20]
    assert [type(o.error) for o in outcomes] == [type(None), KeyError, type(None)]


@pytest.mark.parametrize("secondary", [RendezvousError, CollectiveSetupError, CollectiveTimeout])
def test_run_raises_the_cause_and_not_its_consequences(secondary: type[Exception]) -> None:
    def body(ctx: RankContext) -> None:
        raise KeyError("cause") if ctx.rank == 2 else secondary("consequence")

    for seed in range(3):
        with pytest.raises(KeyError, match="cause"):
            LocalWorld(4, seed).run(body)
    with pytest.raises(secondary):
        LocalWorld(2).run(body)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_of_a_rank_ends_the_run(kind: type[BaseException]) -> None:
    def body(ctx: RankContext) -> None:
        if ctx.rank:
            raise kind
        ctx.barrier()

    first, second = outcome(2, body)
    assert isinstance(first, RendezvousError) and isinstance(second, kind)
    with pytest.raises(kind):
        LocalWorld(2).run(body)


def test_a_run_inside_a_run_of_the_same_world_is_refused() -> None:
    world = LocalWorld(2)

    def body(ctx: RankContext) -> int:
        with pytest.raises(ConfigError, match="run must not be nested inside a run of the same LocalWorld"):
            world.run(lambda inner: None)
        ctx.barrier()
        return sum(LocalWorld(3).run(lambda inner: inner.rank))  # another world is another matter

    assert world.run(body) == [3, 3]
    assert world.run(lambda ctx: ctx.rank) == [0, 1]


# --- exchanges ---


@pytest.mark.parametrize("seed", range(5))
def test_exchange_gives_everyone_all_values_in_rank_order(seed: int) -> None:
    def body(ctx: RankContext) -> list[list[object]]:
        return [ctx.exchange(f"step {n % 2}", (n, ctx.rank)) for n in range(20)]

    for rank in LocalWorld(4, seed).run(body):
        assert rank == [[(n, r) for r in range(4)] for n in range(20)]


def test_nobody_leaves_a_barrier_before_all_have_come() -> None:
    for seed in range(10):
        events: list[str] = []

        def body(ctx: RankContext, events: list[str] = events) -> None:
            for n in range(3):
                events.append(f"in {n}")
                ctx.barrier()
                events.append(f"out {n}")

        LocalWorld(4, seed).run(body)
        for n in range(3):
            last_in = max(i for i, event in enumerate(events) if event == f"in {n}")
            assert last_in < events.index(f"out {n}")


def test_exchange_with_a_rank_that_has_ended() -> None:
    """Named is the rank that is gone, not one that is merely late or left because of it."""

    def body(ctx: RankContext) -> None:
        if ctx.rank == 1:
            return
        ctx.sleep(0.01 * ctx.rank)
        ctx.exchange("votes", ctx.rank)

    for seed in range(8):
        errors = outcome(4, body, seed)
        assert errors[1] is None
        for rank in (0, 2, 3):
            assert isinstance(errors[rank], RendezvousError)
            assert str(errors[rank]) == f"rank 1 ended before step 'votes'; rank {rank} cannot go on"


def test_ranks_at_different_steps_cannot_go_on() -> None:
    def body(ctx: RankContext) -> None:
        ctx.exchange("a" if ctx.rank else "b", None)

    for error in outcome(3, body):
        assert isinstance(error, RendezvousError)
        assert str(error).startswith("no rank can go on: ")
        assert "rank 0 waits for all ranks at step 'b'; rank 1 waits for all ranks at step 'a'" in str(error)


def test_ranks_stay_in_step_after_an_exchange_that_was_not_held() -> None:
    """Old values of the failed exchange must not be taken for new ones."""

    def body(ctx: RankContext) -> list[object]:
        with pytest.raises(RendezvousError):
            ctx.exchange("a" if ctx.rank else "b", "old")
        return [ctx.exchange(step, (step, ctx.rank)) for step in ("a", "b", "a")]

    for seed in range(4):
        for rank in LocalWorld(2, seed).run(body):
            assert rank == [[(step, 0), (step, 1)] for step in ("a", "b", "a")]


def test_agree_and_require_equal() -> None:
    def body(ctx: RankContext) -> tuple[int, str, str]:
        result = agree(ctx, "double", lambda: 2 * ctx.rank)
        with pytest.raises(CollectiveSetupError) as failed:
            agree(ctx, "divide", lambda: 1 // (ctx.rank - 1))
        require_equal(ctx, "same", "value", 3)
        with pytest.raises(ConfigError) as differs:
            require_equal(ctx, "other", "value", ctx.rank)
        return result, str(failed.value), str(differs.value)

    for rank, (doubled, failed, differs) in enumerate(LocalWorld(3).run(body)):
        assert doubled == 2 * rank
        assert failed.startswith("rank 1 failed at step 'divide': ZeroDivisionError: integer division")
        assert differs == "value must be equal on all ranks; got rank 0: 0, rank 1: 1, rank 2: 2"


def test_an_error_of_our_own_arrives_as_itself() -> None:
    def fail() -> None:
        raise ConfigError("x=1 must be 2")

    def body(ctx: RankContext) -> type[BaseException]:
        with pytest.raises(Exception) as caught:  # noqa: PT011, the kind is the result
            agree(ctx, "step", fail if ctx.rank else lambda: None)
        return type(caught.value)

    assert LocalWorld(2).run(body) == [CollectiveSetupError, ConfigError]


# --- virtual time ---


def test_sleep_takes_no_wall_time() -> None:
    start = time.monotonic()

    def body(ctx: RankContext) -> list[float]:
        marks = []
        for seconds in (0.5, 0, -1, 3600, 49 * 3600, 30 * 86400):
            before = ctx.node.clock.ticks
            ctx.sleep(seconds)
            marks.append((ctx.node.clock.ticks - before) / TICKS_PER_SECOND)
        return marks

    for marks in LocalWorld(3).run(body):
        for slept, asked in zip(marks, (0.5, 0, 0, 3600, 49 * 3600, 30 * 86400), strict=True):
            assert asked <= slept
        assert marks[0] < 1
    assert time.monotonic() - start < 5


def test_sleepers_wake_in_order_of_time() -> None:
    for seed in range(5):
        order: list[int] = []

        def body(ctx: RankContext, order: list[int] = order) -> None:
            ctx.sleep(0.001 * (4 - ctx.rank))
            order.append(ctx.rank)

        LocalWorld(4, seed).run(body)
        assert order == [3, 2, 1, 0]


def test_others_go_on_while_one_sleeps() -> None:
    events: list[int] = []

    def body(ctx: RankContext) -> None:
        if ctx.rank == 0:
            ctx.sleep(10)
            events.append(-1)
            return
        for n in range(50):
            ctx.wait("a turn", lambda: True)
            events.append(n)

    LocalWorld(2).run(body)
    assert events == [*range(50), -1]


# --- further threads ---


def test_threads_of_a_rank() -> None:
    """They take turns with everyone, may spawn and exchange, and give a result or an error to who joins them."""

    def body(ctx: RankContext) -> tuple[int, int]:
        def inner() -> int:
            ctx.sleep(0.001)
            return ctx.spawn(lambda: ctx.rank * 100, "innermost").join()

        def failing() -> None:
            raise LookupError("in a thread")

        first, second = ctx.spawn(inner), ctx.spawn(failing, "failing one")
        with pytest.raises(LookupError, match="in a thread"):
            second.join()
        with pytest.raises(LookupError, match="in a thread"):
            second.join()
        values = ctx.spawn(lambda: ctx.exchange("from threads", ctx.rank)).join()
        return first.join(), len(values)

    for seed in range(5):
        assert LocalWorld(3, seed).run(body) == [(0, 3), (100, 3), (200, 3)]


def test_a_thread_that_nobody_joins_runs_to_its_end() -> None:
    ends: list[int] = []

    def body(ctx: RankContext) -> None:
        def late() -> None:
            ctx.sleep(1)
            ends.append(ctx.rank)

        ctx.spawn(late)

    LocalWorld(2).run(body)
    assert sorted(ends) == [0, 1]


def test_threads_interleave_differently_under_other_seeds() -> None:
    def course(seed: int) -> str:
        events: list[str] = []

        def body(ctx: RankContext) -> None:
            def work(name: str) -> None:
                for _ in range(6):
                    events.append(name)
                    ctx.wait("a turn", lambda: True)

            threads = [ctx.spawn(lambda name=name: work(name)) for name in "ab"]
            for thread in threads:
                thread.join()

        LocalWorld(1, seed).run(body)
        return "".join(events)

    courses = {course(seed) for seed in range(12)}
    assert len(courses) > 6 and all(sorted(c) == sorted("ab" * 6) for c in courses)
    assert course(5) == course(5)


def test_a_thread_from_elsewhere_is_refused() -> None:
    def body(ctx: RankContext) -> list[str]:
        texts: list[str] = []

        def outside() -> None:
            for use in (ctx.barrier, lambda: ctx.sleep(1), lambda: ctx.wait("x", lambda: True)):
                try:
                    use()
                except ConfigError as error:
                    texts.append(str(error))

        thread = threading.Thread(target=outside)
        thread.start()
        thread.join()
        return texts

    (texts,) = LocalWorld(1).run(body)
    assert texts == ["thread must belong to the LocalWorld; start it with `context.spawn`"] * 3


def test_joining_a_thread_that_waits_for_ever() -> None:
    """Both are told, instead of a hang."""

    def body(ctx: RankContext) -> None:
        thread = ctx.spawn(lambda: ctx.wait("a miracle", lambda: False), "hopeful")
        with pytest.raises(
            RendezvousError, match="no rank can go on: rank 0 waits for hopeful; hopeful waits for a mir"
        ):
            thread.join()

    LocalWorld(1).run(body)
