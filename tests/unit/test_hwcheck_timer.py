# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Timers of hwcheck: pairs of events less the empty pair, and lines through times."""

from __future__ import annotations

import pytest

from mori_gemm_ar.hwcheck.readings import Reading, line, lines
from mori_gemm_ar.hwcheck.timer import EventTimer


class FakeCuda:
    """torch.cuda as far as events go: time passes when work is queued, and a little between two records."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        outer = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                self.at: float | None = None

            def record(self) -> None:
                outer.now_ms += 0.002
                self.at = outer.now_ms

            def synchronize(self) -> None:
                assert self.at is not None

            def elapsed_time(self, end: Event) -> float:
                assert self.at is not None and end.at is not None
                return end.at - self.at

        self.Event = Event


class FakeTarget:
    def synchronize(self) -> None:
        pass


def test_an_empty_pair_of_events_is_taken_off() -> None:
    cuda = FakeCuda()
    timer = EventTimer(FakeTarget(), cuda)  # type: ignore[arg-type]

    def work() -> None:
        cuda.now_ms += 0.050

    assert timer.time_us(work) == pytest.approx(50.0)
    assert timer.time_us(lambda: None) == pytest.approx(0.0, abs=1e-9)
    assert not timer.predicted


def test_lines() -> None:
    base, slope = line([1, 10, 100], [3.0 + 0.5 * x for x in (1, 10, 100)])
    assert (base, slope) == (pytest.approx(3.0), pytest.approx(0.5))
    found = lines([1, 2], [[1.0, 10.0], [2.0, 20.0]])
    assert [slope for _, slope in found] == [pytest.approx(1.0), pytest.approx(10.0)]


def test_a_reading_has_its_spread() -> None:
    one = Reading.of("sdma_put_us", [6.2, 5.9, 6.0], "three puts")
    assert (one.value, one.low, one.high, one.samples) == (6.0, 5.9, 6.2, 3)
