# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The clock of kernels whose peers are processes: it stands while somebody makes progress, and leaps for the dead."""

from __future__ import annotations

import mmap
import os
import time
from typing import Any

import pytest

from mori_gemm_ar.runtime import pulse
from mori_gemm_ar.runtime.peers import ProcessId
from mori_gemm_ar.runtime.pulse import Board, Heart, Presence, ProcessClock

SECOND = 100_000_000  # ticks
HOUR = 3600 * SECOND


class FakeTime:
    """CLOCK_MONOTONIC that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 5_000_000_000_000
        self.longest = 0.0

    def monotonic_ns(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.longest = max(self.longest, seconds)
        self.now += int(seconds * 1e9)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """Time that the test moves."""
    made = FakeTime()
    monkeypatch.setattr(pulse, "time", made)
    return made


@pytest.fixture
def memory() -> mmap.mmap:
    """Where boards lie."""
    return mmap.mmap(-1, 8192)


class Rank:
    """A rank with a heart and a clock of its own, as a process has them."""

    def __init__(self, heart: Heart | None = None) -> None:
        self.heart = heart or Heart()
        self.boards: list[Board] = []
        self.clock = ProcessClock(self.boards, self.heart)

    def join(self, memory: Any, number: int, size: int, processes: list[ProcessId] | None = None) -> Board:
        board = Board(memory, number, processes or [ProcessId.mine()] * size)
        self.boards.append(board)
        self.heart.attach(board)
        return board

    def wait(self, fake: FakeTime, seconds: float) -> int:
        """Rounds in which nothing moves; returns the ticks that kernels saw pass."""
        before, until = self.clock.ticks, fake.now + int(seconds * 1e9)
        while fake.now < until:
            self.clock.idle(None)
        return self.clock.ticks - before


def test_alone_the_clock_runs(fake: FakeTime) -> None:
    """Real time, less the fifth of a second that does not count; sleeps grow to a millisecond and no further."""
    rank = Rank()
    assert rank.wait(fake, 10) == pytest.approx(9.8 * SECOND, abs=0.1 * SECOND)
    assert fake.longest == pytest.approx(1e-3)


def test_ticks_are_those_of_clock_monotonic() -> None:
    ticks = ProcessClock([]).ticks
    assert abs(ticks - time.monotonic_ns() // 10) < SECOND


def test_own_progress_stops_it(fake: FakeTime) -> None:
    """What passed in a wait stays passed, so that no wave sees time run backwards from where it began to wait."""
    rank = Rank()
    rank.wait(fake, 3)
    seen = rank.clock.ticks
    rank.clock.advance()
    fake.now += 60_000_000_000  # one long round
    rank.clock.advance()
    assert rank.clock.ticks == seen
    assert rank.wait(fake, 1) == pytest.approx(0.8 * SECOND, abs=0.1 * SECOND)


def test_progress_of_a_peer_lets_the_wait_begin_anew(fake: FakeTime, memory: mmap.mmap) -> None:
    waiting, working = Rank(), Rank()
    waiting.join(memory, 0, 2)
    working.join(memory, 1, 2)
    waiting.clock.advance()
    start = waiting.clock.ticks
    for _ in range(100):  # minutes of work, with a sign of life now and then
        waiting.wait(fake, 4)
        assert waiting.clock.ticks - start < 4 * SECOND
        working.heart.beat()
        waiting.clock.idle(None)
        assert waiting.clock.ticks == start
    assert waiting.wait(fake, 10) == pytest.approx(9.8 * SECOND, abs=0.1 * SECOND)


def test_peers_that_wait_too_do_not_hold_it(fake: FakeTime, memory: mmap.mmap) -> None:
    """Ranks 0 and 2 wait for rank 1: neither's waiting counts as progress for the other."""
    first, second = Rank(), Rank()
    first.join(memory, 0, 3)
    second.join(memory, 2, 3)
    total = 0
    for _ in range(100):
        total += first.wait(fake, 0.05)
        second.wait(fake, 0.05)
    assert total > 4 * SECOND


def test_short_pauses_do_not_add_up(fake: FakeTime, memory: mmap.mmap) -> None:
    """Ranks that wait for each other in turn: a wait that lasts through all of it keeps its budget."""
    one, other = Rank(), Rank()
    one.join(memory, 0, 2)
    other.join(memory, 1, 2)
    start = one.clock.ticks
    for _ in range(1000):
        one.wait(fake, 0.1)
        one.clock.advance()
        other.clock.advance()
    assert one.clock.ticks == start


def test_news_reaches_a_rank_that_waits_for_a_waiting_rank(fake: FakeTime) -> None:
    """0 waits for 1 in one group, 1 waits for 2 in another, and 2 works: 0 is not in a group with 2."""
    left, right = mmap.mmap(-1, 4096), mmap.mmap(-1, 4096)
    zero, two = Rank(), Rank()
    heart = Heart()  # rank 1 is one process with an op in each group; it waits in the right one
    one_left, one_right = Rank(heart), Rank(heart)
    zero.join(left, 0, 2)
    one_left.join(left, 1, 2)
    one_right.join(right, 0, 2)
    two.join(right, 1, 2)
    total = 0
    for _ in range(100):
        two.heart.beat(now=True)
        one_right.wait(fake, 0.05)
        total += zero.wait(fake, 0.05)
    assert total == 0
    for _ in range(100):  # rank 2 has stopped
        one_right.wait(fake, 0.05)
        total += zero.wait(fake, 0.05)
    assert total > 4 * SECOND


def test_a_circle_of_waits_comes_to_an_end(fake: FakeTime) -> None:
    """0 waits for 1, 1 for 2, 2 for 0, each pair in a group of its own: what is passed on grows old."""
    memories = [mmap.mmap(-1, 4096) for _ in range(3)]
    hearts = [Heart() for _ in range(3)]
    waiting = [Rank(heart) for heart in hearts]
    elsewhere = [Rank(hearts[(number + 1) % 3]) for number in range(3)]
    for number in range(3):
        waiting[number].join(memories[number], 0, 2)
        elsewhere[number].join(memories[number], 1, 2)
    totals = [0, 0, 0]
    for _ in range(100):
        for number in range(3):
            totals[number] += waiting[number].wait(fake, 0.05)
    assert min(totals) > 4 * SECOND


def dead_process() -> ProcessId:
    """A process that has ended and was reaped."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return ProcessId(pid, 1, ProcessId.mine().host)


def test_time_leaps_for_a_dead_peer(fake: FakeTime, memory: mmap.mmap) -> None:
    """Past every budget, within a second; without a wait nobody asks."""
    rank = Rank()
    dead = dead_process()
    board = rank.join(memory, 0, 3, [ProcessId.mine(), dead, ProcessId.mine()])
    assert rank.wait(fake, 1) > 24 * HOUR
    assert board.lost() == {1: f"has died (process {dead.pid})"}
    rank.clock.advance()


def test_a_peer_that_closed_is_not_dead(fake: FakeTime, memory: mmap.mmap) -> None:
    """It has written all that it will write; whoever waits for somebody else goes on waiting."""
    rank = Rank()
    me = ProcessId.mine()
    board = rank.join(memory, 0, 2, [me, dead_process()])
    Rank().join(memory, 1, 2, [me, me]).close()
    assert rank.wait(fake, 1) < SECOND
    assert board.lost() == {}


def test_a_peer_that_gave_up_says_why(fake: FakeTime, memory: mmap.mmap) -> None:
    rank, other = Rank(), Rank()
    board = rank.join(memory, 0, 2)
    theirs = other.join(memory, 1, 2)
    theirs.give_up("ValueError: " + 1000 * "ü")
    theirs.close()  # the first word stands
    assert rank.wait(fake, 1) > 24 * HOUR
    assert list(board.lost()) == [1]
    assert board.lost()[1].startswith("gave up (ValueError: üüü")


def test_after_the_leap_the_next_wait_is_an_ordinary_one(fake: FakeTime, memory: mmap.mmap) -> None:
    """A failed create is followed by a good one in the same world."""
    rank, other = Rank(), Rank()
    rank.join(memory, 0, 2)
    other.join(memory, 1, 2).give_up("boom")
    rank.wait(fake, 1)
    rank.clock.advance()
    rank.boards.clear()
    rank.join(mmap.mmap(-1, 4096), 0, 2)
    assert rank.wait(fake, 1) < SECOND


def test_busy_peers_cannot_hold_it_for_ever(fake: FakeTime, memory: mmap.mmap) -> None:
    rank, busy = Rank(), Rank()
    rank.join(memory, 0, 2)
    busy.join(memory, 1, 2)
    for _ in range(25):
        fake.now += 3600 * 1_000_000_000
        busy.heart.beat(now=True)
        rank.clock.idle(None)
    assert rank.clock.ticks > fake.now // 10 + HOUR


def test_horizon_bounds_the_step(fake: FakeTime) -> None:
    rank = Rank()
    rank.wait(fake, 1)
    horizon = rank.clock.ticks + 1000
    fake.now += 10_000_000_000
    assert rank.clock.idle(horizon) == 1000
    assert rank.clock.ticks == horizon
    assert rank.clock.idle(horizon - 500) == 0


def test_signs_of_life_are_cheap(memory: mmap.mmap) -> None:
    """They are shown at most once a millisecond unless asked for."""
    heart = Heart()
    shown = []
    board = Board(memory, 0, [ProcessId.mine()] * 2)
    board.show = shown.append  # type: ignore[method-assign]
    heart.attach(board)
    start = time.monotonic()
    for _ in range(20000):
        heart.beat()
    assert len(shown) <= 2 + (time.monotonic() - start) * 1000


def test_a_forked_child_shows_nothing(memory: mmap.mmap) -> None:
    board = Board(memory, 0, [ProcessId.mine()] * 2)
    peer = Board(memory, 1, [ProcessId.mine()] * 2)
    board.show(7)
    pid = os.fork()
    if pid == 0:
        board.show(8)
        board.give_up("child")
        board.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert (peer.latest(), peer.lost()) == (7, {})


def test_presence_values_are_the_protocol() -> None:
    """Fresh memory is zero, and zero is a rank that is there."""
    assert Presence(0) is Presence.HERE
