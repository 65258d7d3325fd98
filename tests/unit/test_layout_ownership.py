# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Every pack and every row has one owner; blocks and chunks cover them once."""

from __future__ import annotations

from itertools import chain

from hypothesis import example, given, settings
from hypothesis import strategies as st

from mori_gemm_ar.layout import (
    AllReduceProblem,
    DType,
    OwnerSlices,
    PackOwnership,
    block_packs,
    pack_home,
)

quick = settings(max_examples=150, deadline=None, database=None)
worlds = st.integers(1, 8)
tiles = st.sampled_from([1, 16, 128, 256])


@quick
@given(worlds, st.integers(0, 3000))
@example(8, 0)
@example(8, 9)  # parts of two packs: the last slices are empty
def test_slices_cover_every_pack_once(world: int, packs: int) -> None:
    ownership = PackOwnership(world, packs)
    slices = [ownership.slice(rank) for rank in range(world)]
    assert list(chain(*slices)) == list(range(packs))
    assert all(len(own) <= ownership.part for own in slices)
    assert all(ownership.owner(pack) == rank for rank, own in enumerate(slices) for pack in own)


@quick
@given(worlds, st.integers(0, 100_000), st.sampled_from(DType))
def test_packs_and_tail_cover_every_element_once(world: int, numel: int, dtype: DType) -> None:
    problem = AllReduceProblem(world, numel, dtype)
    assert problem.nbytes == numel * dtype.nbytes
    assert problem.packs * 16 + problem.tail * dtype.nbytes == problem.nbytes
    assert 0 <= problem.tail * dtype.nbytes < 16
    assert PackOwnership.of(problem).packs == problem.packs


@quick
@given(st.integers(0, 3000), st.integers(1, 12), st.sampled_from([64, 128, 512]))
def test_blocks_and_threads_cover_a_slice_once_by_one_shared_map(count: int, blocks: int, threads: int) -> None:
    handled = {}
    for block in range(blocks):
        for trip in block_packs(count, block, blocks, threads):
            for lane, pack in enumerate(trip):
                assert pack not in handled
                handled[pack] = (block, lane)
    assert sorted(handled) == list(range(count))
    assert all(pack_home(pack, blocks, threads) == home for pack, home in handled.items())


@quick
@given(worlds, st.integers(0, 3000), tiles)
@example(8, 7, 256)  # fewer rows than ranks
def test_slices_and_bands_cover_every_row_once(world: int, rows: int, tile_m: int) -> None:
    owners = OwnerSlices(world, rows, tile_m)
    assert owners.slice_rows % tile_m == 0
    slices = [owners.slice(rank) for rank in range(world)]
    assert list(chain(*slices)) == list(range(rows))
    for rank, own in enumerate(slices):
        bands = owners.bands(rank)
        assert list(chain(*bands)) == list(own)
        assert all(band.start % tile_m == 0 and 0 < len(band) <= tile_m for band in bands)
        assert all(len(band) == tile_m for band in bands[:-1])
        assert all(owners.owner(row) == rank for row in own)


@quick
@given(worlds, st.integers(0, 40_000), tiles, st.integers(1, 20))
def test_chunks_are_even_runs_of_bands(world: int, rows: int, tile_m: int, wanted: int) -> None:
    owners = OwnerSlices(world, rows, tile_m)
    table = owners.chunk_table(wanted)
    for rank in range(world):
        bands = len(owners.bands(rank))
        chunks = owners.chunks(rank, wanted)
        assert list(chain(*chunks)) == list(range(bands))
        sizes = [len(chunk) for chunk in chunks]
        # A short slice ends inside a chunk of the common table.
        even = sizes if bands == owners.slice_bands else sizes[:-1]
        assert 0 not in sizes and (not even or max(even) - min(even) <= 1)
        assert [table.chunk_of(band) for chunk in chunks for band in chunk] == [
            number for number, chunk in enumerate(chunks) for _ in chunk
        ]
    full = owners.slice_bands
    assert len(owners.chunks(0, wanted)) == table.chunks == min(wanted, full)
    assert len(owners.chunks(0)) >= min(8, full) - 1


def test_an_awkward_band_count_still_overlaps() -> None:
    """13 bands have no divisor up to 8 but 1: chunks of equal size would send the whole slice at once."""
    owners = OwnerSlices(world=4, rows=13312, tile_m=256)
    assert len(owners.bands(0)) == 13
    assert [len(chunk) for chunk in owners.chunks(0)] == [1, 1, 1, 2, 2, 2, 2, 2]
    assert OwnerSlices(8, 0, 128).chunks(3) == ()
