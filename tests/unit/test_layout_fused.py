# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The fused GEMM's order, chunks and counters: each tile once, each chunk elected once, whatever came before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, product
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import MI355X, BLayout, GemmConfig, Machine, OwnerSlices, Recipe, Tile, WrappingCounter
from mori_gemm_ar.layout.fused import RECIPROCAL_BITS, FusedConfig, FusedGrid, reciprocal
from mori_gemm_ar.layout.fused_rules import MAX_CHUNKS, reason_not_fused_bands, reason_not_fused_rows
from mori_gemm_ar.layout.ownership import ChunkTable
from mori_gemm_ar.layout.sdma import Transport
from mori_gemm_ar.layout.terms import ceil_div

quick = settings(max_examples=20, deadline=None, database=None)
worlds = st.integers(2, 8)
# Small machines, so that few tiles are several rounds of workgroups.
machines = st.sampled_from([MI355X, replace(MI355X, compute_units=16), replace(MI355X, compute_units=12, xcds=5)])


def config(world: int, columns: int, push: Transport = Transport.SDMA, stripe: int | None = None) -> FusedConfig:
    """One with that many columns of tiles, the last one narrower."""
    gemm = GemmConfig(Recipe.PTPC, 256 * columns - 128, 128, Tile.M128_N256, BLayout.ROW)
    return FusedConfig(gemm, world, push, stripe)


@st.composite
def grids(draw: st.DrawFn, push: Transport | None = None) -> FusedGrid:
    """Any M up to five bands for each rank, whole bands and single rows as often as others."""
    world, columns = draw(worlds), draw(st.integers(1, 4))
    push = push or draw(st.sampled_from(Transport))
    stripe = draw(st.integers(1, columns)) if push is Transport.LSA else None
    m = draw(st.one_of(st.integers(1, 5 * 128 * world), st.integers(1, 5 * world).map(lambda bands: 128 * bands)))
    return FusedGrid(config(world, columns, push, stripe), m, draw(st.one_of(st.integers(1, 6), st.just(MAX_CHUNKS))))


def tiles_of(grid: FusedGrid, rank: int) -> list[tuple[int, int, int]]:
    """Tiles of a rank in order."""
    return [grid.tile(number, rank) for number in range(grid.blocks)]


# --- order ---


@quick
@given(grids(), machines, st.data())
def test_every_tile_has_one_workgroup(grid: FusedGrid, machine: Machine, data: st.DataObject) -> None:
    numbers = [grid.number_of_block(block, machine) for block in range(grid.blocks)]
    assert sorted(numbers) == list(range(grid.blocks))
    world, columns = grid.config.world, grid.config.columns
    tiles = tiles_of(grid, data.draw(st.integers(0, world - 1)))
    assert sorted(tiles) == list(product(range(world), range(grid.slices.slice_bands), range(columns)))
    with_rows = {(dest, band) for dest, band, _ in tiles if dest * grid.slices.slice_rows + 128 * band < grid.m}
    assert with_rows == {(dest, band) for dest in range(world) for band in range(len(grid.slices.bands(dest)))}


@quick
@given(grids(), machines)
def test_a_round_of_workgroups_takes_a_run_of_the_order_and_an_xcd_a_run_of_it(
    grid: FusedGrid, machine: Machine
) -> None:
    units = machine.compute_units
    for start in range(0, grid.blocks, units):
        round_ = range(start, min(start + units, grid.blocks))
        assert {grid.number_of_block(block, machine) for block in round_} == set(round_)
        for xcd in range(machine.xcds):
            taken = [grid.number_of_block(block, machine) for block in round_ if (block - start) % machine.xcds == xcd]
            assert not taken or taken == list(range(taken[0], taken[0] + len(taken)))


@quick
@given(grids(Transport.SDMA), st.data())
def test_chunks_come_one_after_the_other_and_the_own_rank_last(grid: FusedGrid, data: st.DataObject) -> None:
    world, rank = grid.config.world, data.draw(st.integers(0, grid.config.world - 1))
    order = [(grid.table.chunk_of(band), (dest - rank - 1) % world) for dest, band, _ in tiles_of(grid, rank)]
    assert order == sorted(order)
    assert order[-1][1] == world - 1


@quick
@given(grids(Transport.LSA), st.data())
def test_a_stripe_is_followed_by_another_destination(grid: FusedGrid, data: st.DataObject) -> None:
    world, rank = grid.config.world, data.draw(st.integers(0, grid.config.world - 1))
    stripe = grid.config.stripe
    assert stripe is not None
    tiles = tiles_of(grid, rank)
    assert [band for _, band, _ in tiles] == sorted(band for _, band, _ in tiles)
    changes = [n for n in range(1, len(tiles)) if tiles[n][0] != tiles[n - 1][0]]
    runs = [end - start for start, end in zip([0, *changes], [*changes, len(tiles)], strict=True)]
    assert max(runs) <= stripe
    assert all(tiles[n][0] == (tiles[n - 1][0] + 1) % world for n in changes)


@given(grids(Transport.SDMA))
@quick
def test_destinations_rotate_by_rank(grid: FusedGrid) -> None:
    """All ranks send to different owners at any time."""
    world = grid.config.world
    for number in range(0, grid.blocks, max(1, grid.blocks // 16)):
        assert {grid.tile(number, rank)[0] for rank in range(world)} == set(range(world))


# --- chunks and their counters ---

Counters = dict[tuple[int, int], int]


def elections(grid: FusedGrid, rank: int, counters: Counters, seed: int) -> Iterator[tuple[int, int]]:
    """Chunks in the order of their elections; a workgroup with no tile or with an own one does not count."""
    tiles = tiles_of(grid, rank)
    Random(seed).shuffle(tiles)
    for dest, band, _ in tiles:
        if dest == rank or band >= len(grid.slices.bands(dest)):
            continue
        chunk = grid.table.chunk_of(band)
        counter = WrappingCounter(grid.arrivals(dest, chunk), counters[dest, chunk])
        elected = counter.elects(counter.arrive())
        counters[dest, chunk] = counter.value
        if elected:
            yield dest, chunk


def chunks_with_rows(grid: FusedGrid, rank: int) -> list[tuple[int, int]]:
    pairs = product(range(grid.config.world), range(grid.table.chunks))
    return [(dest, chunk) for dest, chunk in pairs if dest != rank and len(grid.rows(dest, chunk))]


@quick
@given(st.data(), worlds, st.integers(0, 2**32))
def test_each_chunk_is_elected_once_at_every_m_in_any_order_of_m(data: st.DataObject, world: int, seed: int) -> None:
    """The counters are shared by all calls and nothing resets them."""
    rank, shape = data.draw(st.integers(0, world - 1)), config(world, data.draw(st.integers(1, 3)))
    counters: Counters = Counter()
    for m in data.draw(st.lists(st.integers(1, 4 * 128 * world), min_size=2, max_size=5)):
        grid = FusedGrid(shape, m, data.draw(st.integers(1, 5)))
        assert sorted(elections(grid, rank, counters, seed)) == chunks_with_rows(grid, rank)
        assert not any(counters.values())


def test_a_counter_with_one_modulus_elects_wrongly_after_another_m() -> None:
    """Negative control of L20: the same arrivals counted for ever and elected by remainder."""
    totals: Counters = Counter()
    found = []
    for m in (3 * 2 * 128, 2 * 2 * 128, 3 * 2 * 128):
        grid = FusedGrid(config(2, 1), m, 1)
        target = grid.arrivals(1, 0)
        elected = []
        for _ in range(target):
            totals[1, 0] += 1
            elected.append(totals[1, 0] % target == 0)
        found.append([n for n, last in enumerate(elected, start=1) if last])
    assert found == [[3], [1], [1]]  # the third call's tiles go out when one of three is there


@quick
@given(grids(), st.data())
def test_chunks_of_a_destination_are_its_rows_and_no_others(grid: FusedGrid, data: st.DataObject) -> None:
    dest = data.draw(st.integers(0, grid.config.world - 1))
    runs = [grid.rows(dest, chunk) for chunk in range(grid.table.chunks)]
    assert list(chain(*runs)) == list(grid.slices.slice(dest))
    bands = [ceil_div(len(run), 128) for run in runs]
    assert [grid.arrivals(dest, chunk) for chunk in range(grid.table.chunks)] == [
        count * grid.config.columns for count in bands
    ]


def in_kernel(grid: FusedGrid, dest: int, band: int) -> tuple[int, int, int, int]:
    """(chunk, first row, rows, last arrival) as `_Chunk` and `OrderedPlace.chunk_of_dest` compute them, in u32."""
    slice_rows, _, short, few, by_few, by_more = grid.arguments()
    cut, u32 = short * few, 2**32

    def times(value: int, by: int) -> int:
        return value % u32 * by % u32 >> RECIPROCAL_BITS

    early, late = times(band, by_few), times(band - cut, by_more)
    number, start, size = (early, early * few, few) if band < cut else (short + late, cut + late * (few + 1), few + 1)
    row = dest * slice_rows + start * 128
    rows = min(min(dest * slice_rows + slice_rows, grid.m) - row, size * 128)
    return number, row, rows, (rows + 127) // 128 * grid.config.columns - 1


@quick
@given(grids(Transport.SDMA))
def test_the_kernel_finds_the_same_chunk(grid: FusedGrid) -> None:
    """The kernel's formulas; what the kernel does is seen in tests/kernel."""
    for dest in range(grid.config.world):
        for band in range(len(grid.slices.bands(dest))):
            chunk, rows = grid.table.chunk_of(band), grid.rows(dest, grid.table.chunk_of(band))
            assert in_kernel(grid, dest, band) == (chunk, rows.start, len(rows), grid.arrivals(dest, chunk) - 1)


bands_and_chunks = st.integers(0, 723).flatmap(lambda n: st.tuples(st.just(n), st.integers(min(n, 1), min(n, 64))))


@settings(quick, max_examples=100)
@given(bands_and_chunks)
@example((13, 8))
@example((723, 64))
def test_runs_of_bands_differ_by_one_at_most(sizes: tuple[int, int]) -> None:
    bands, chunks = sizes
    table = ChunkTable(bands, chunks)
    runs = [table.run(chunk) for chunk in range(chunks)]
    assert list(chain(*runs)) == list(range(bands))
    lengths = [len(run) for run in runs]
    assert lengths == sorted(lengths) and all(length in (table.few, table.few + 1) for length in lengths)
    assert lengths.count(table.few) == table.short_chunks
    for chunk, run in enumerate(runs):
        assert {table.chunk_of(band) for band in (run.start, run.stop - 1)} == {chunk}


def test_there_are_never_fewer_than_eight_chunks_but_for_one() -> None:
    for bands in range(1, 724):
        assert OwnerSlices(8, 8 * 128 * bands, 128).chunk_table(8).chunks >= min(8, bands) - 1


def test_a_divisor_collapses_where_the_table_does_not() -> None:
    """Negative control of N7: chunks that divide the bands."""
    by_divisor = {bands: max(c for c in range(1, 9) if bands % c == 0) for bands in range(1, 40)}
    assert by_divisor[13] == 1 < OwnerSlices(4, 13 * 4 * 128, 128).chunk_table(8).chunks == 8


# --- progress ---


class Dispatch:
    """Workgroups start in order while others end, `residents` at a time; a seed chooses who goes on.

    Who completes a chunk takes a ticket of its queue and waits for its turn, as the submit code does.
    """

    def __init__(self, grid: FusedGrid, rank: int, residents: int, seed: int, queues: int) -> None:
        self.grid, self.rank, self.queues = grid, rank, queues
        self.waiting_for: dict[int, tuple[tuple[int, int], int]] = {}  # block -> queue, ticket
        self.tickets, self.turns = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
        self.counters: Counters = Counter()
        self.put: list[tuple[int, int]] = []
        self.random, self.residents = Random(seed), residents
        self.wanted = chunks_with_rows(grid, rank)

    def run(self, ready: Callable[[Dispatch, int], bool]) -> bool:
        """Whether all workgroups end; ready(self, block): whether a resident one may go on."""
        pending, resident = iter(range(self.grid.blocks)), list[int]()
        while True:
            while len(resident) < self.residents and (block := next(pending, None)) is not None:
                resident.append(block)
            able = [block for block in resident if ready(self, block)]
            if not able:
                return not resident
            block = self.random.choice(able)
            if self.advance(block):
                resident.remove(block)

    def advance(self, block: int) -> bool:
        """One step; whether the workgroup has ended."""
        if block in self.waiting_for:
            queue, _ = self.waiting_for[block]
            self.turns[queue] += 1
            return True
        dest, band, _ = self.grid.tile(self.grid.number_of_block(block, MI355X), self.rank)
        if dest == self.rank or band >= len(self.grid.slices.bands(dest)):
            return True
        chunk = self.grid.table.chunk_of(band)
        counter = WrappingCounter(self.grid.arrivals(dest, chunk), self.counters[dest, chunk])
        elected = counter.elects(counter.arrive())
        self.counters[dest, chunk] = counter.value
        if elected:
            queue = (dest, chunk % self.queues)
            self.waiting_for[block] = queue, self.tickets[queue]
            self.tickets[queue] += 1
            self.put.append((dest, chunk))
        return not elected


def its_turn(dispatch: Dispatch, block: int) -> bool:
    if block not in dispatch.waiting_for:
        return True
    queue, ticket = dispatch.waiting_for[block]
    return dispatch.turns[queue] == ticket


def all_chunks_put(dispatch: Dispatch, block: int) -> bool:
    """A rule that needs workgroups which have not started."""
    return block not in dispatch.waiting_for or len(dispatch.put) == len(dispatch.wanted)


@quick
@given(grids(Transport.SDMA), st.integers(1, 9), st.integers(0, 2**32), st.integers(1, 2))
def test_workgroups_end_however_few_are_resident(grid: FusedGrid, residents: int, seed: int, queues: int) -> None:
    dispatch = Dispatch(grid, 0, residents, seed, queues)
    assert dispatch.run(its_turn)
    assert sorted(dispatch.put) == dispatch.wanted
    if residents == 1 and grid.blocks <= MI355X.xcds:
        assert dispatch.put == sorted(dispatch.put, key=lambda put: (put[1], put[0]))


def test_a_wait_for_workgroups_that_have_not_started_is_noticed() -> None:
    grid = FusedGrid(config(4, 2), 4 * 128 * 4, 4)
    assert not Dispatch(grid, 0, 4, 0, 1).run(all_chunks_put)
    assert Dispatch(grid, 0, grid.blocks, 0, 1).run(all_chunks_put)


# --- division by multiplication ---


def most_bands(world: int) -> int:
    """The longest slice that the rule allows."""
    return next(bands for bands in range(1, 2000) if reason_not_fused_bands(bands + 1, world) is not None)


def wrong_quotients(world: int, bands: int) -> int:
    """How many of the divisions of a slice of so many bands the kernel would get wrong."""
    values = np.arange(world * bands, dtype=np.int64)
    wrong = 0
    for divisor in range(1, bands + 2):
        wrong += int(((values * reciprocal(divisor) >> RECIPROCAL_BITS) != values // divisor).sum())
    return wrong


@pytest.mark.parametrize("world", range(2, 9))
def test_reciprocals_are_exact_where_the_rule_holds_and_not_far_beyond(world: int) -> None:
    bands = most_bands(world)
    assert wrong_quotients(world, bands) == 0
    # Half as many bands again, and a quotient is wrong: the rule gives away little.
    assert wrong_quotients(world, bands * 3 // 2) > 0


def test_products_stay_within_32_bits() -> None:
    """What the kernel uses: bands by the size of their chunk, and turns of one chunk by its size."""
    for world, bands, chunks in product((2, 8), (1, 2, 63, 64, 65, 127, 128, 129, 361), (1, 8, MAX_CHUNKS)):
        if reason_not_fused_bands(bands, world) is not None:
            continue
        table = ChunkTable(bands, min(chunks, bands))
        cut, few = table.cut, table.few
        used = [(cut - 1, few), (bands - 1 - cut, few + 1), (world * few - 1, few)]
        used += [(world * (few + 1) - 1, few + 1)] if table.short_chunks < table.chunks else []
        assert all(value * reciprocal(divisor) < 2**32 for value, divisor in used if value >= 0)


# --- compile keys and rules ---


def test_keys_are_unique_symbols() -> None:
    configs = [
        config(world, columns, push, stripe)
        for world, columns, push in product((2, 3, 8), (1, 2, 3), Transport)
        for stripe in ([None] if push is Transport.SDMA else range(1, columns + 1))
    ]
    assert len({c.key for c in configs}) == len(configs)
    assert all(c.key.isidentifier() for c in configs)
    assert config(8, 28).key == "fused_sdma_w8_gemm_ptpc_128x256_n7040_k128_row"
    assert config(2, 3, Transport.LSA, 2).key == "fused_lsa_w2_s2_gemm_ptpc_128x256_n640_k128_row"


@pytest.mark.parametrize(
    ("world", "push", "stripe", "message"),
    [
        (1, Transport.SDMA, None, "world=1 must be one of 2..8; one rank alone runs the GEMM"),
        (9, Transport.SDMA, None, "world=9 must be one of"),
        (True, Transport.SDMA, None, "world=True must be an int"),
        (2, "sdma", None, "push='sdma' must be one of"),
        (2, Transport.SDMA, 1, "stripe=1 must be None with push="),
        (2, Transport.LSA, None, "stripe=None must be an int"),
        (2, Transport.LSA, 0, "stripe=0 must be one of 1..2; there are 2 columns of tiles"),
        (2, Transport.LSA, 3, "stripe=3 must be one of 1..2"),
    ],
)
def test_a_config_checks_itself(world: object, push: object, stripe: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(world, 2, push, stripe)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)


def test_a_grid_checks_itself() -> None:
    for m, chunks, message in (
        (0, 1, "m=0 must be above 0"), (-1, 1, "m=-1 must be"), (1, 0, "chunks=0 must be one of 1..64"),
        (1, 65, "chunks=65 must be"), (2 * 128 * 724, 1, "bands=724 of a slice must be fewer on 2 ranks"),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            FusedGrid(config(2, 1), m, chunks)
        assert str(caught.value).startswith(message)
    assert FusedGrid(config(2, 1), 2 * 128 * 723, 64).blocks == 2 * 723


@given(worlds, st.integers(0, 5000), st.sampled_from(Tile))
@quick
def test_fused_from_one_band_for_each_rank(world: int, m: int, tile: Tile) -> None:
    assert (reason_not_fused_rows(m, world, tile.m) is None) == (m >= world * tile.m)
