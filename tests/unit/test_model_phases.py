# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Properties of the formulas: times are never negative, grow with what is moved, and tiles and chunks add up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout.terms import Stage
from mori_gemm_ar.model import Case, Layer, Mode, Plan, Quant, Tail, Tile, Wire, costs, load, predict, timeline
from mori_gemm_ar.model.costs import Leg
from mori_gemm_ar.model.tiles import RESIDENT, TILES, Order, TileGrid, progress, waves
from tests.unit.model_samples import PUBLISHED, layers, planned

VALUES = [load().at(case) for case in Case]
V = VALUES[0]


@settings(max_examples=60)
@given(case=planned())
def test_times_are_finite_and_never_negative(case: tuple[Layer, Plan]) -> None:
    layer, plan = case
    for values in VALUES:
        prediction = predict(values, layer, plan)
        assert all(0 <= phase.us < 1e6 for phase in prediction.phases)
        assert all(phase.link_bytes >= 0 for phase in prediction.phases)
        assert prediction.total_us >= prediction.overhead_us >= 0
        assert prediction.total_us == pytest.approx(sum(p.us for p in prediction.phases) + prediction.overhead_us)


@given(layers, st.integers(0, 40_000), st.integers(0, 40_000))
def test_each_phase_grows_with_its_bytes(layer: Layer, rows: int, more: int) -> None:
    for leg in Leg:
        assert costs.leg_bytes(layer, rows, leg) <= costs.leg_bytes(layer, rows + more, leg)
    for phase in (costs.reduce_us, costs.quantize_us, costs.dequantize_us):
        assert 0 <= phase(V, layer, rows) <= phase(V, layer, rows + more)
    for move in (costs.push_us, costs.pull_us):
        assert 0 <= move(V, layer.world, rows) <= move(V, layer.world, rows + more)


@given(layers, st.integers(0, 20_000))
def test_split_layers_and_all_reduces_grow_with_rows(layer: Layer, more: int) -> None:
    small, large = layer.m, min(layer.m + more, 50_000)
    small = min(small, large)
    for allreduce in (costs.sdma_allreduce_us, costs.aiter_allreduce_us, costs.rccl_allreduce_us):
        assert allreduce(V, small, layer.n, layer.world) <= allreduce(V, large, layer.n, layer.world)
    for stage in Stage:
        times = [costs.lsa_allreduce_us(V, m, layer.n, layer.world, stage) for m in (small, large)]
        assert times[0] <= times[1]
    if layer.world > 1:
        plan = Plan(Mode.SPLIT_SDMA, TILES[layer.quant][0])
        low, high = (predict(V, replace(layer, m=m), plan).total_us for m in (small, large))
        assert low <= high


@given(st.integers(0, 20_000), st.integers(0, 300), st.floats(0, 1))
def test_waves_grow_with_tiles(tiles: int, more: int, share: float) -> None:
    assert 0 <= waves(tiles, share) <= waves(tiles + more, share)
    assert waves(RESIDENT * 3, share) == 3


@given(st.integers(1, 5_000), st.floats(0, 1), st.data())
def test_progress_goes_from_the_first_wave_to_the_end(tiles: int, share: float, data: st.DataObject) -> None:
    done = data.draw(st.integers(1, tiles))
    assert 0 < progress(done, tiles, share) <= progress(min(done + 1, tiles), tiles, share) <= 1
    assert progress(tiles, tiles, share) == 1
    assert progress(1, tiles, share) >= min(1.0, 1 / waves(tiles, share)) - 1e-9


@settings(max_examples=50)
@given(layers, st.sampled_from((1, 2, 5, 8, 16)), st.sampled_from(Order), st.data())
def test_every_tile_and_every_row_belongs_to_one_chunk(
    layer: Layer, chunks: int, order: Order, data: st.DataObject
) -> None:
    grid = TileGrid.of(layer, data.draw(st.sampled_from(TILES[layer.quant])))
    rank = data.draw(st.integers(0, layer.world - 1))
    runs = list(grid.runs(rank, order))
    assert len(set(runs)) == len(runs)
    assert len(runs) * grid.columns == grid.tiles
    finished = grid.finished(rank, chunks, order)
    rows = [grid.chunk_rows(dest, chunks) for dest in range(layer.world)]
    assert sum(map(sum, rows)) == layer.m
    assert finished.keys() == {(dest, c) for dest in range(layer.world) for c in range(len(rows[dest]))}
    assert max(finished.values(), default=0) == grid.tiles
    assert len(set(finished.values())) == len(finished)
    # N7: sizes may differ by one band, so an awkward number of bands never collapses to one chunk.
    bands = grid.bands(0)
    assert len(rows[0]) >= min(chunks, bands) - 1


def test_thirteen_bands_make_eight_chunks() -> None:
    grid = TileGrid(13312, 5120, 4, Tile(256, 256))
    assert grid.bands(0) == 13
    assert len(grid.chunk_rows(0, 8)) == 8


def test_a_rank_walks_itself_first_and_every_destination_in_turn() -> None:
    grid = TileGrid(4096, 256, 4, Tile(256, 256))
    assert [dest for dest, band in grid.runs(2) if band == 0] == [2, 3, 0, 1]
    linear = [dest for dest, _ in grid.runs(2, Order.LINEAR)]
    assert linear == sorted(linear, key=lambda dest: (dest - 2) % 4)


def test_one_tile_more_than_a_wave_costs_most_of_a_wave() -> None:
    """256 against 272 tiles: 40 percent more time for 6 percent more work, as published."""
    small, large = (costs.gemm_us(V, Layer(4096, n, 1024, 8, Quant.PTPC), Tile(256, 256), True) for n in (4096, 4352))
    assert 1.35 < (large + V.graph_one_us) / (small + V.graph_one_us) < 1.45


def test_the_narrow_tile_wins_exactly_while_its_grid_fits_one_wave() -> None:
    """N8: no fitted threshold, the step is where the narrow grid exceeds the compute units."""
    for n in (1280, 5120, 8192):
        for m in range(256, 6657, 256):
            layer = Layer(m, n, 2048, 4, Quant.MXFP8)
            wide, narrow = (costs.gemm_us(V, layer, tile) for tile in TILES[Quant.MXFP8])
            grid = TileGrid.of(layer, TILES[Quant.MXFP8][1]).tiles
            if grid <= RESIDENT:
                assert narrow < wide, (m, n)
            elif grid <= 2 * RESIDENT:
                assert wide < narrow, (m, n)


def test_releases_are_linear() -> None:
    one = costs.releases_us(V, 1)
    assert costs.releases_us(V, 3584) == pytest.approx(3584 * one)
    assert costs.releases_us(V, 10, system=True) > costs.releases_us(V, 10)


def test_wire_bytes() -> None:
    bf16, gather, both = (replace(PUBLISHED, wire=wire) for wire in Wire)
    assert costs.leg_bytes(bf16, 10, Leg.GATHER) == 10 * 7168 * 2
    assert costs.leg_bytes(gather, 10, Leg.SCATTER) == 10 * 7168 * 2
    assert costs.leg_bytes(gather, 10, Leg.GATHER) == 10 * (7168 + 4)
    assert costs.leg_bytes(both, 10, Leg.SCATTER) == costs.leg_bytes(both, 10, Leg.GATHER) == 10 * 7168 * 33 // 32


def test_fewer_peers_never_make_a_fused_gemm_slower() -> None:
    layers_by_world = [replace(PUBLISHED, world=world) for world in range(2, 9)]
    times = [costs.fused_gemm_us(V, layer, Tile(128, 256)) for layer in layers_by_world]
    assert times == sorted(times)


def test_an_even_stripe_loads_all_links_alike() -> None:
    grid = TileGrid.of(PUBLISHED, Tile(256, 256))
    assert grid.imbalance(1) == grid.imbalance(2) == 1.0
    assert 1.2 < grid.imbalance(14) < grid.imbalance(None) < 2.0


def test_a_large_transfer_is_cut_into_puts() -> None:
    assert costs.more_puts(128 << 20) == 0
    assert costs.more_puts((128 << 20) + 1) == 1
    step = costs.push_us(V, 8, (128 << 20) + 1) - costs.push_us(V, 8, 128 << 20)
    assert step == pytest.approx(V.sdma_put_us, rel=1e-3)


@settings(max_examples=40)
@given(case=planned())
def test_a_timeline_ends_with_the_prediction(case: tuple[Layer, Plan]) -> None:
    layer, plan = case
    prediction = predict(V, layer, plan)
    spans = timeline(V, layer, plan)
    assert all(0 <= span.start <= span.end for span in spans)
    total = prediction.total_us - prediction.overhead_us
    # The last flags of a streamed tail have no bar of their own.
    slack = V.sdma_phase_us if plan.tail is not Tail.PHASED else 0.0
    last = max((span.end for span in spans), default=0.0)
    assert last <= total + 1e-6
    assert last >= total - slack - 1e-6


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("m", -1, "m=-1 must be one of 0.."),
        ("m", 1.5, "m=1.5 must be an int"),
        ("n", 0, "n=0 must be one of 16.."),
        ("n", 100, "n=100 must be a multiple of 16"),
        ("k", 0, "k=0 must be one of 128.."),
        ("k", 300, "k=300 must be a multiple of 128"),
        ("world", 0, "world=0 must be one of 1..8"),
        ("world", 9, "world=9 must be one of 1..8"),
        ("quant", "ptpc", "quant='ptpc' must be one of"),
        ("wire", None, "wire=None must be one of"),
        ("m", 2**22, "m*n*2="),
    ],
)
def test_a_layer_that_cannot_be_is_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        replace(PUBLISHED, **{field: value})
    assert str(error.value).startswith(message)
