# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The fused op's window and tags: control words stay, regions only alias themselves, and what lands has room."""

from __future__ import annotations

from dataclasses import fields
from itertools import combinations, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import (
    CONTROL,
    MAX_NUMEL,
    REGION_ALIGN,
    DType,
    OwnerSlices,
    RegionSpec,
    Stage,
    Tile,
    Wire,
    call_tag,
    payload_layout,
)
from mori_gemm_ar.layout.fused import LayerTag
from mori_gemm_ar.layout.fused_rules import MAX_CHUNKS
from mori_gemm_ar.layout.fused_window import FUSED_CONTROL, FusedWindow
from mori_gemm_ar.layout.terms import MAX_BYTES, MAX_WORLD, ceil_div

quick = settings(max_examples=30, deadline=None, database=None)
WIRES = [Wire.EXACT, Wire.FP8, Wire.FP8_BOTH]
NAMES = ("tile_arrivals", "meet_epoch", "meet_flags", "pull_epochs", "pull")


@st.composite
def windows(draw: st.DrawFn) -> FusedWindow:
    """Any size up to 4 GiB of output, small ones as often as large ones."""
    n = 32 * draw(st.integers(1, 512))
    m_max = draw(st.one_of(st.integers(1, 3000), st.integers(1, MAX_BYTES // (2 * n))))
    rows = draw(st.sampled_from([0, min(m_max, 2048), m_max]))
    return FusedWindow(
        draw(st.integers(1, 8)), n, m_max, draw(st.sampled_from(WIRES)), draw(st.integers(1, 2)), draw(st.booleans()),
        rows,
    )  # fmt: skip


def overlap(left: range, right: range) -> int:
    return max(0, min(left.stop, right.stop) - max(left.start, right.start))


# --- control ---


@quick
@given(windows())
def test_control_words_are_where_they_are_for_all_sizes(window: FusedWindow) -> None:
    """L19: a call of another M, or an op of another size, finds counters and flags at the same offsets."""
    regions = {region.name: region for region in window.map().regions}
    assert {name: regions[name].offset for name in NAMES} == {name: getattr(FUSED_CONTROL, name) for name in NAMES}
    assert regions["epochs"].offset == CONTROL.epochs and regions["error"].offset == CONTROL.error
    assert regions["input"].offset == FUSED_CONTROL.nbytes


def test_control_words_sized_by_a_call_move() -> None:
    """Negative control of L19: counters for as many chunks as a call has push what follows."""

    def flags(m: int) -> int:
        chunks = OwnerSlices(8, m, 128).chunk_table(8).chunks
        counters = RegionSpec("counters", lambda _: 4 * 8 * chunks * 64)
        return payload_layout((counters, RegionSpec("flags", lambda _: 64)), capacity=m).regions[1].offset

    assert flags(4096) != flags(8192)


def test_every_chunk_of_every_rank_has_a_counter_of_its_own() -> None:
    """L20: there are as many as the rules allow chunks, so none is shared and none runs out."""
    offsets = [FUSED_CONTROL.arrivals(dest, chunk) for dest, chunk in product(range(MAX_WORLD), range(MAX_CHUNKS))]
    assert all(right - left == 4 for left, right in pairwise(offsets))
    assert offsets[0] == FUSED_CONTROL.tile_arrivals and offsets[-1] + 4 <= FUSED_CONTROL.meet_epoch
    for dest, chunk in ((-1, 0), (MAX_WORLD, 0), (0, -1), (0, MAX_CHUNKS)):
        with pytest.raises(ConfigError, match="must be one of"):
            FUSED_CONTROL.arrivals(dest, chunk)


def test_the_control_layout_is_pinned() -> None:
    values = [getattr(FUSED_CONTROL, field.name) for field in fields(FUSED_CONTROL)]
    assert values == [35072, 37120, 37376, 37632, 38656, 55040, 57088, 61184, 65280, 65536]


# --- payload ---


@quick
@given(windows(), st.data())
def test_a_region_only_ever_aliases_itself(window: FusedWindow, data: st.DataObject) -> None:
    """L21: whatever two calls are under way, a late peer's or this rank's."""
    payload = payload_layout(window.specs(), capacity=window.m_max, start=FUSED_CONTROL.nbytes)
    one, other = (payload.intervals(data.draw(st.integers(0, window.m_max))) for _ in range(2))
    for left, right in product(one, other):
        assert left == right or overlap(one[left], other[right]) == 0
    whole = window.map()
    assert all(overlap(used, range(FUSED_CONTROL.nbytes)) == 0 for used in one.values())
    assert all(used.stop <= whole.nbytes for used in one.values())


def test_a_layout_by_m_aliases_other_regions() -> None:
    """Negative control of L21: the same regions, each call laying them out for its own M."""
    window = FusedWindow(8, 1024, 4096)

    def aliases(one: int, other: int, capacity: int | None) -> bool:
        calls = [payload_layout(window.specs(), capacity or m).intervals(m) for m in (one, other)]
        return any(left != right and overlap(calls[0][left], calls[1][right]) for left, right in product(*calls))

    pairs = list(combinations((1, 128, 1024, 2048, 3000, 4096), 2))
    assert sum(aliases(*pair, None) for pair in pairs) > len(pairs) // 2
    assert not any(aliases(*pair, 4096) for pair in pairs)


@quick
@given(windows(), st.data())
def test_bytes_never_fall_as_rows_grow(window: FusedWindow, data: st.DataObject) -> None:
    some, more = sorted(data.draw(st.integers(0, window.m_max)) for _ in range(2))
    for spec in window.specs():
        assert 0 <= spec.nbytes(some) <= spec.nbytes(more) <= spec.nbytes(window.m_max)
    if some:
        smaller = FusedWindow(window.world, window.n, some, window.wire, window.outputs, window.landing, 0)
        assert smaller.map().nbytes <= window.map().nbytes


@quick
@given(windows())
def test_regions_are_disjoint_aligned_and_named_by_what_is_asked(window: FusedWindow) -> None:
    regions = window.map().regions
    for left, right in combinations(regions, 2):
        assert overlap(range(left.offset, left.end), range(right.offset, right.end)) == 0
    assert all(region.offset % REGION_ALIGN == 0 for region in regions)
    names = {region.name for region in regions}
    assert ("landing" in names) == window.landing and ("output1" in names) == (window.outputs == 2)
    assert ("quantized" in names) == ("gathered" in names) == window.wire.lossy == ("reduced" not in names)
    assert ("partials" in names) == (window.wire is Wire.FP8_BOTH)


@quick
@given(windows(), st.data())
def test_what_any_tile_sends_has_room(window: FusedWindow, data: st.DataObject) -> None:
    """Slices of whole bands of the tallest tile, and the even ones of the split modes."""
    m = data.draw(st.one_of(st.integers(1, window.m_max), st.just(window.m_max)))
    bytes_of = {spec.name: spec.nbytes(m) for spec in window.specs()}
    longest = max(ceil_div(m, window.world), *(OwnerSlices(window.world, m, tile.m).slice_rows for tile in Tile))
    row = 2 * window.n
    if window.landing and not window.wire.both:
        assert bytes_of["landing"] >= window.world * longest * row
    if not window.wire.lossy:
        assert bytes_of["reduced"] >= longest * row
    assert bytes_of["input"] >= m * row <= bytes_of["output0"]


# --- tags ---

tags = st.builds(LayerTag, st.integers(0, 2**24 - 1), st.integers(0, 1), st.booleans(), st.booleans())


@quick
@given(tags)
def test_a_tag_comes_back(tag: LayerTag) -> None:
    assert 0 <= tag.word < 2**32
    assert LayerTag.of(tag.word) == tag


@quick
@given(tags, tags)
def test_calls_that_differ_have_tags_that_differ(one: LayerTag, other: LayerTag) -> None:
    assert (one.word == other.word) == (one == other)


def test_rows_are_known_modulo_a_power_of_two() -> None:
    assert LayerTag.of(LayerTag(2**24 + 5, 1, True, False).word) == LayerTag(5, 1, True, False)


@quick
@given(st.integers(0, MAX_NUMEL), st.sampled_from(DType), st.sampled_from(Stage), st.sampled_from(WIRES))
def test_no_all_reduce_has_the_tag_of_a_layer(numel: int, dtype: DType, stage: Stage, wire: Wire) -> None:
    try:
        word = call_tag(numel, dtype, stage, wire)
    except ConfigError:
        return
    assert LayerTag.of(word) is None


def test_no_all_reduce_by_rows_has_the_tag_of_a_layer() -> None:
    for dtype, columns in product((DType.BF16, DType.FP16), (32, 7168, 2**14 - 32)):
        assert LayerTag.of(call_tag(columns * (2**14 - 1), dtype, Stage.TWO, Wire.FP8_ROW, columns)) is None
