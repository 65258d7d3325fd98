# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Windows: disjoint, aligned, ordered; control apart from capacity; a payload region only ever aliases itself."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import (
    CONTROL,
    MAX_BYTES,
    PACK_BYTES,
    REGION_ALIGN,
    AllReduceControl,
    PackOwnership,
    Region,
    RegionKind,
    RegionSpec,
    WindowMap,
    allreduce_window,
    payload_layout,
)

quick = settings(max_examples=150, deadline=None, database=None)
CONTROL_NAMES = ("epochs", "entry", "exit", "claim", "error", "copy_epoch", "copy_arrivals", "copy_flags")
max_bytes = st.integers(1, MAX_BYTES)
worlds = st.integers(1, 8)


def overlap(left: range, right: range) -> int:
    return max(0, min(left.stop, right.stop) - max(left.start, right.start))


def assert_well_formed(regions: tuple[Region, ...]) -> None:
    for left, right in combinations(regions, 2):
        assert overlap(range(left.offset, left.end), range(right.offset, right.end)) == 0
    assert all(region.offset % REGION_ALIGN == 0 and region.nbytes > 0 for region in regions)
    assert [region.offset for region in regions] == sorted(region.offset for region in regions)


# --- the all-reduce window ---


@quick
@given(max_bytes, worlds)
def test_allreduce_window_is_disjoint_aligned_and_ordered(capacity: int, world: int) -> None:
    window = allreduce_window(capacity, world)
    assert_well_formed(window.regions)
    assert window.names == (*CONTROL_NAMES, "input", "reduced")
    kinds = [region.kind for region in window.regions]
    assert kinds == [RegionKind.CONTROL] * len(CONTROL_NAMES) + [RegionKind.PAYLOAD] * 2
    assert window.nbytes >= window.regions[-1].end and window.nbytes % REGION_ALIGN == 0
    # The capacity that the check believes is there, also for a gather that reads `world` whole parts of packs.
    gathered = world * PackOwnership(world, capacity // PACK_BYTES).part * PACK_BYTES
    assert min(window.region(name).nbytes for name in ("input", "reduced")) >= max(capacity, gathered)
    assert gathered < 2**32


@quick
@given(max_bytes, worlds)
def test_control_offsets_do_not_depend_on_capacity_or_world(capacity: int, world: int) -> None:
    window = allreduce_window(capacity, world)
    assert {name: window.offset(name) for name in CONTROL_NAMES} == {
        name: getattr(CONTROL, name) for name in CONTROL_NAMES
    }
    assert window.offset("input") == CONTROL.nbytes


def test_control_layout_is_pinned() -> None:
    assert CONTROL == AllReduceControl(0, 1024, 17408, 33792, 34048, 34304, 34560, 34816, 35072)


@quick
@given(max_bytes, st.data())
def test_locate_names_the_region_of_every_byte(capacity: int, data: st.DataObject) -> None:
    window = allreduce_window(capacity, 8)
    region = data.draw(st.sampled_from(window.regions))
    assert window.locate(data.draw(st.integers(region.offset, region.end - 1))) is region
    assert window.locate(region.end) is not region
    assert window.locate(-1) is None and window.locate(window.nbytes) is None
    assert window.locate(CONTROL.claim + 4) is None  # padding belongs to nobody


def test_intervals_cut_the_named_regions_only() -> None:
    window = allreduce_window(65536, 4)
    touched = window.intervals({"input": 1000, "reduced": 0})
    assert touched["input"] == range(window.offset("input"), window.offset("input") + 1000)
    assert len(touched["reduced"]) == 0
    assert touched["claim"] == range(CONTROL.claim, CONTROL.claim + 4)
    with pytest.raises(ConfigError, match=r"input\.used=65793 must be one of 0\.\.65792"):
        window.intervals({"input": 65793})
    with pytest.raises(ConfigError, match="name='inptu' must be one of epochs"):
        window.intervals({"inptu": 1})
    with pytest.raises(ConfigError, match="name='outptu' must be one of epochs"):
        window.offset("outptu")


C, P = RegionKind.CONTROL, RegionKind.PAYLOAD


@pytest.mark.parametrize(
    ("regions", "reason"),
    [
        ((), "must be a non-empty tuple"),
        ([Region("a", C, 0, 8)], "must be a non-empty tuple"),
        (("a",), "must be an identifier"),
        ((Region("a", C, 0, 8), Region("a", P, 256, 8)), "name='a' must be unique"),
        ((Region("a", C, 0, 257), Region("b", P, 256, 8)), r"b\.offset=256 must be at least 257"),
        ((Region("a", C, 256, 8), Region("b", P, 0, 8)), r"b\.offset=0 must be at least 264"),
        ((Region("a", P, 0, 8), Region("b", C, 256, 8)), r"b\.kind=RegionKind\.CONTROL must be RegionKind\.PAYLOAD"),
    ],
)
def test_a_window_refuses_regions_that_do_not_fit_together(regions: object, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        WindowMap(regions)  # type: ignore[arg-type]


# --- capacity layout against running sums (lesson: payload regions of two M values overlap) ---


def slice_bytes(row_bytes: int, world: int, tile_m: int):
    def nbytes(m: int) -> int:
        return (-(-m // world) + tile_m - 1) // tile_m * tile_m * row_bytes

    return nbytes


def whole_bytes(row_bytes: int):
    return lambda m: m * row_bytes


def fixed_bytes(nbytes: int):
    return lambda m: nbytes


bytes_of_m = st.one_of(
    st.builds(whole_bytes, st.integers(1, 1 << 15)),
    st.builds(slice_bytes, st.integers(1, 1 << 15), worlds, st.sampled_from([1, 32, 128, 256])),
    st.builds(fixed_bytes, st.integers(1, 1 << 16)),
)


@quick
@given(st.lists(bytes_of_m, min_size=1, max_size=6), st.integers(1, 1 << 17), st.integers(0, 1 << 20), st.data())
def test_a_payload_region_only_ever_aliases_itself(functions, capacity: int, start: int, data: st.DataObject) -> None:
    layout = payload_layout(tuple(RegionSpec(f"r{i}", f) for i, f in enumerate(functions)), capacity, start)
    assert_well_formed(layout.regions)
    assert layout.regions[0].offset >= start
    some_m = st.integers(0, capacity)
    m1, m2 = data.draw(some_m), data.draw(some_m)
    at_m1, at_m2 = layout.intervals(m1), layout.intervals(m2)
    for left, right in combinations(at_m1, 2):
        assert overlap(at_m1[left], at_m2[right]) == 0
        assert overlap(at_m1[right], at_m2[left]) == 0
    for name, interval in at_m1.items():
        assert interval.start == at_m2[name].start
        assert WindowMap(layout.regions).locate(interval.start).name == name


# [M, 1024] bf16 over 2 ranks: input, output, and one slice of scatter landing.
SPECS = (
    RegionSpec("input", whole_bytes(2048)),
    RegionSpec("output", whole_bytes(2048)),
    RegionSpec("landing", slice_bytes(2048, 2, 1)),
)


def running_sum_intervals(m: int) -> dict[str, range]:
    """The layout that must fail: each offset is the sum of the sizes before it at this M."""
    intervals, cursor = {}, 0
    for spec in SPECS:
        intervals[spec.name] = range(cursor, cursor + spec.nbytes(m))
        cursor += -(-spec.nbytes(m) // REGION_ALIGN) * REGION_ALIGN
    return intervals


def capacity_intervals(m: int) -> dict[str, range]:
    return payload_layout(SPECS, 4096).intervals(m)


def overlaps(intervals, m1: int, m2: int) -> dict[tuple[str, str], int]:
    """Bytes that region r at M1 shares with another region s at M2."""
    return {
        (r, s): overlap(left, right)
        for r, left in intervals(m1).items()
        for s, right in intervals(m2).items()
        if r != s and overlap(left, right)
    }


def test_running_sums_overlap_by_the_published_bytes() -> None:
    assert overlaps(running_sum_intervals, 512, 1024) == {("output", "input"): 1048576, ("landing", "output"): 524288}
    assert overlaps(capacity_intervals, 512, 1024) == {}


def test_the_aliasing_property_tells_the_two_layouts_apart() -> None:
    pairs = st.tuples(st.integers(1, 4096), st.integers(1, 4096))
    m1, m2 = find(pairs, lambda pair: overlaps(running_sum_intervals, *pair), settings=quick)
    assert m1 != m2
    with pytest.raises(NoSuchExample):
        find(pairs, lambda pair: overlaps(capacity_intervals, *pair), settings=quick)


def test_a_region_that_outgrows_its_capacity_is_refused() -> None:
    layout = payload_layout((RegionSpec("odd", lambda m: 4096 - m),), capacity=1024)
    with pytest.raises(ConfigError, match=r"odd\.used=3584 must be one of 0\.\.3072; lay the window out"):
        layout.used(512)
    with pytest.raises(ConfigError, match=r"m=1025 must be one of 0\.\.1024"):
        layout.used(1025)
