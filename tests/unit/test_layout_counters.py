# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Epochs that wrap and counters that reset themselves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import WrappingCounter, epoch_reached, next_epoch

quick = settings(max_examples=300, deadline=None, database=None)
around_wraps = st.one_of(
    st.integers(0, 2**32 - 1), st.integers(2**31 - 8, 2**31 + 8), st.integers(2**32 - 8, 2**32 - 1), st.integers(0, 8)
)


@quick
@given(around_wraps, st.integers(-(2**31), 2**31 - 1))
def test_compare_is_right_for_every_distance_below_half_the_range(expected: int, distance: int) -> None:
    assert epoch_reached((expected + distance) % 2**32, expected) == (distance >= 0)


@pytest.mark.parametrize("start", [0, 2**31 - 4, 2**32 - 4])
def test_a_wait_holds_before_the_signal_and_passes_after_it(start: int) -> None:
    mine = peer = start
    for _ in range(16):
        mine = next_epoch(mine)
        assert not epoch_reached(peer, mine)
        peer = next_epoch(peer)
        assert epoch_reached(peer, mine)
        assert epoch_reached(next_epoch(peer), mine)  # a peer one call ahead has passed this one too


@pytest.mark.parametrize("naive", [lambda seen, expected: seen >= expected, lambda seen, expected: seen == expected])
def test_comparisons_that_do_not_wrap_fail_here(naive) -> None:
    pairs = [(2**32 - 1, 0), (0, 2**32 - 1), (2**31, 2**31 - 1)]
    assert [naive(*pair) for pair in pairs] != [epoch_reached(*pair) for pair in pairs]


def test_next_epoch_wraps() -> None:
    assert [next_epoch(e) for e in (0, 2**31 - 1, 2**32 - 1)] == [1, 2**31, 0]
    for bad in (-1, 2**32, 1.0, True):
        with pytest.raises(ConfigError, match="must be"):
            next_epoch(bad)


@quick
@given(st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_one_counter_elects_once_a_call_for_any_tiles_in_any_order(calls: list[int]) -> None:
    value = 0
    for tiles in calls:
        counter = WrappingCounter(tiles, value)
        got = [counter.arrive() for _ in range(tiles)]
        assert got == list(range(tiles))
        assert [counter.elects(old) for old in got] == [False] * (tiles - 1) + [True]
        value = counter.value
        assert value == 0


def test_election_by_remainder_needs_one_modulus() -> None:
    """The scheme that wrapping counters replace elects wrongly as soon as the number of tiles changes."""
    total, elected = 0, []
    for tiles in (3, 4):
        elected.append([(total + i + 1) % tiles == 0 for i in range(tiles)])
        total += tiles
    assert elected == [[False, False, True], [True, False, False, False]]


def test_a_value_beyond_the_limit_wraps_to_zero_and_elects_nobody() -> None:
    counter = WrappingCounter(3, value=7)
    assert not counter.elects(counter.arrive())
    assert counter.value == 0
