# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The link simulation: closed forms where there are any, every chunk once, and what a streamed tail can win."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mori_gemm_ar.model import Case, Layer, Mode, Plan, Quant, Tail, Tile, Wire, load, predict
from mori_gemm_ar.model.costs import Leg, leg_bytes
from mori_gemm_ar.model.stream import StreamedTail, drain_end, drain_spans
from mori_gemm_ar.model.tiles import Order, TileGrid, progress
from tests.unit.model_samples import PUBLISHED

V = load().at(Case.EXPECTED)
TILE = Tile(128, 256)


def test_one_chunk_drains_like_a_scatter_that_starts_with_its_last_tile() -> None:
    grid = TileGrid.of(PUBLISHED, Tile(128, 256))
    nbytes = leg_bytes(PUBLISHED, 2048, Leg.SCATTER)
    end = drain_end(V, PUBLISHED, grid, 1, 400.0, Order.ROTATED)
    assert end == pytest.approx(400.0 + V.sdma_phase_us + nbytes / (V.sdma_rate_gbs * 1e3))


def test_a_busy_link_hides_the_gemm_but_for_its_first_chunk() -> None:
    """t_first + chunks * put + bytes / rate + flags, as long as the link has work to the end."""
    grid = TileGrid.of(PUBLISHED, TILE)
    nbytes = leg_bytes(PUBLISHED, 2048, Leg.SCATTER)
    for chunks in (2, 4, 8, 16):
        tiles = grid.finished(0, chunks)[7, 0]
        first = 430.0 * progress(tiles, grid.tiles, V.wave_partial_share)
        put = (chunks - 1) * V.sdma_put_us
        want = first + put + nbytes / (V.sdma_rate_gbs * 1e3) + V.sdma_phase_us
        assert drain_end(V, PUBLISHED, grid, chunks, 430.0, Order.ROTATED) == pytest.approx(want)


def test_linear_order_is_no_overlap() -> None:
    grid = TileGrid.of(PUBLISHED, TILE)
    rotated, linear = (drain_end(V, PUBLISHED, grid, 8, 430.0, order) for order in (Order.ROTATED, Order.LINEAR))
    one = drain_end(V, PUBLISHED, grid, 1, 430.0, Order.ROTATED)
    assert rotated < one * 0.75
    assert linear > one * 0.95


@settings(max_examples=30)
@given(st.integers(2, 8), st.integers(1, 20_000), st.sampled_from((1, 3, 8)), st.sampled_from(Wire), st.booleans())
def test_every_chunk_is_scattered_reduced_and_gathered_once(
    world: int, m: int, chunks: int, wire: Wire, beside: bool
) -> None:
    layer = Layer(m, 1024, 512, world, Quant.BLOCKSCALE, wire)
    grid = TileGrid.of(layer, TILE)
    tail = StreamedTail(V, layer, grid, chunks, 50.0, beside)
    end = tail.run()
    ranks = range(1 if grid.rectangular else world)
    count = {rank: len(grid.chunk_rows(rank, chunks)) for rank in range(world)}
    seen = Counter((span.track, span.name) for span in tail.spans)
    assert set(seen.values()) == {1}
    for source in ranks:
        for dest in range(world):
            if source != dest:
                track = f"link {source}>{dest}"
                scattered = sum(1 for name in seen if name[0] == track and name[1].startswith("scatter"))
                gathered = sum(1 for name in seen if name[0] == track and name[1].startswith("gather"))
                assert (scattered, gathered) == (count[dest], count[source])
    for rank in ranks:
        assert sum(1 for name in seen if name[0] == f"reduce {rank}") == count[rank]
    assert end >= max(span.end for span in tail.spans)
    _no_overlap_on_a_track(tail)


def _no_overlap_on_a_track(tail: StreamedTail) -> None:
    by_track: dict[str, list[tuple[float, float]]] = {}
    for span in tail.spans:
        by_track.setdefault(span.track, []).append((span.start, span.end))
    for track, bars in by_track.items():
        bars.sort()
        assert all(left[1] <= right[0] + 1e-9 for left, right in pairwise(bars)), track


@settings(max_examples=20)
@given(st.integers(2, 8), st.integers(1, 64), st.sampled_from((1, 4, 8)))
def test_equal_slices_need_one_rank_only(world: int, bands: int, chunks: int) -> None:
    """What rank 0's links do stands for all ranks: the other ranks' drain ends at the same time."""
    layer = Layer(world * bands * 128, 1024, 512, world, Quant.BLOCKSCALE)
    grid = TileGrid.of(layer, TILE)
    assert grid.rectangular
    fast = drain_end(V, layer, grid, chunks, 80.0, Order.ROTATED)
    ragged = replace(layer, m=layer.m - 1)
    slow = drain_end(V, ragged, TileGrid.of(ragged, TILE), chunks, 80.0, Order.ROTATED)
    assert slow <= fast + 1e-9
    assert slow >= fast - 5.0
    assert len(drain_spans(V, layer, grid, chunks, 80.0, Order.ROTATED)) == (world - 1) * min(chunks, bands) + 1


@settings(max_examples=30)
@given(st.integers(2, 8), st.integers(1, 24), st.sampled_from((1, 3, 8)), st.sampled_from(Wire), st.booleans())
def test_rank_0_stands_for_all_where_slices_are_equal(
    world: int, bands: int, chunks: int, wire: Wire, beside: bool
) -> None:
    layer = Layer(world * bands * 128, 1024, 512, world, Quant.BLOCKSCALE, wire)
    one, all_ranks = (StreamedTail(V, layer, TileGrid.of(layer, TILE), chunks, 50.0, beside) for _ in range(2))
    all_ranks.alike = False
    assert one.alike
    assert one.run() == pytest.approx(all_ranks.run(), abs=1e-6)
    assert len(one.spans) * world == len(all_ranks.spans)


def test_what_the_streamed_tail_promises() -> None:
    """Bytes alone are the floor; hidden dispatch and free signals give the best case that was published."""
    floors = {Wire.BF16: 954.0, Wire.FP8_GATHER: 716.0, Wire.FP8: 492.0}
    best = load().at(Case.OPTIMISTIC)
    for wire, floor in floors.items():
        layer = replace(PUBLISHED, wire=wire)
        legs = sum(leg_bytes(layer, 2048, leg) for leg in Leg) / (V.sdma_rate_gbs * 1e3)
        assert legs == pytest.approx(floor, rel=0.02)
        for tail in (Tail.STREAMED, Tail.BESIDE):
            plan = Plan(Mode.FUSED_SDMA, TILE, 8, tail=tail)
            fast, expected = (predict(v, layer, plan).total_us for v in (best, V))
            slow = predict(load().at(Case.PESSIMISTIC), layer, plan).total_us
            assert legs < fast <= expected <= slow
    # 1127 us with one queue per peer and no signal cost, 1045 us with dispatch hidden, published estimates.
    plan = Plan(Mode.FUSED_SDMA, TILE, 8, tail=Tail.STREAMED)
    assert predict(replace(V, stream_signal_us=0.0), PUBLISHED, plan).total_us == pytest.approx(1127, rel=0.02)
    hidden = replace(V, stream_signal_us=0.0, put_hidden_share=1.0)
    assert predict(hidden, PUBLISHED, plan).total_us == pytest.approx(1045, rel=0.02)


def test_reducers_beside_the_gemm_pay_when_both_wires_are_narrow() -> None:
    both = replace(PUBLISHED, wire=Wire.FP8)
    streamed, beside = (Plan(Mode.FUSED_SDMA, TILE, 8, tail=tail) for tail in (Tail.STREAMED, Tail.BESIDE))
    assert predict(V, both, beside).total_us < predict(V, both, streamed).total_us - 50
    assert predict(V, PUBLISHED, beside).total_us > predict(V, PUBLISHED, streamed).total_us - 10
