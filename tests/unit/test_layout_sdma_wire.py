# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Slots, window, grid, keys and self-test data of the copy-engine all-reduce with a lossy wire."""

from __future__ import annotations

from itertools import combinations, pairwise, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mori_gemm_ar.ar.probe import Probe
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import CONTROL, MI355X, REGION_ALIGN, AllReduceProblem, DType, Wire, WireSplit, sdma
from mori_gemm_ar.layout.sdma import MAX_QUEUES, SdmaConfig, SdmaPhase, queue_pieces, sdma_config, sdma_window
from mori_gemm_ar.layout.wire import scatter_bytes
from mori_gemm_ar.layout.wire_terms import ROW_UNIT

LOSSY = [wire for wire in Wire if wire.lossy]
worlds = st.integers(2, 8)
wires = st.sampled_from(LOSSY)
capacities = st.one_of(st.integers(1, 5000), st.integers(1, 2**30))


@given(worlds, wires, capacities, st.data())
def test_slots_fit_every_slice_of_every_call(world: int, wire: Wire, capacity: int, data: st.DataObject) -> None:
    most, columns = capacity // 2, None
    if wire.per_row:
        columns = ROW_UNIT * data.draw(st.integers(1, max(1, most // ROW_UNIT)))
        numel = columns * data.draw(st.integers(0, most // columns))
    else:
        numel = data.draw(st.one_of(st.integers(max(0, most - 40), most), st.integers(0, most)))
    split = WireSplit(world, numel, wire, columns)
    window, full = sdma_window(capacity, world, wire), split.slice_layout.nbytes
    landing, gathered = (window.region(name).nbytes // world for name in ("landing", "gathered"))
    assert landing % REGION_ALIGN == gathered % REGION_ALIGN == 0
    assert full <= gathered
    assert (full if wire.both else 2 * split.part) <= landing
    if wire.both:
        assert scatter_bytes(full, world) <= window.region("partials").nbytes


@given(worlds, wires, capacities, capacities)
def test_regions_are_disjoint_and_control_stays(world: int, wire: Wire, some: int, more: int) -> None:
    small, large = (sdma_window(size, world, wire) for size in sorted((some, more)))
    for left, right in combinations(large.regions, 2):
        assert left.end <= right.offset or right.end <= left.offset
    assert large.offset("input") == CONTROL.nbytes == small.offset("input")
    assert all(small.offset(name) <= large.offset(name) for name in large.names)


@pytest.mark.parametrize("wire", LOSSY)
@pytest.mark.parametrize("queues", range(1, MAX_QUEUES + 1))
def test_a_self_test_uses_every_queue_on_both_legs(queues: int, wire: Wire) -> None:
    """What a queue carries is not all zeros, as landing zones are before; equal slices of no two neighbours."""
    for world in (2, 3, 8):
        problem = sdma.probe_problem(world, queues, DType.BF16, wire)
        assert problem.nbytes <= sdma.probe_bytes(world, queues, wire)
        probe = Probe(problem, torch.bfloat16, wire)
        for leg in (
            [probe.scattered(rank, rank - 1) for rank in range(1, world)],
            list(map(probe.summed, range(world))),
        ):
            for found in leg:
                pieces = queue_pieces(range(len(found)), queues)
                assert all(any(found[piece.start : piece.stop]) for piece in pieces)
            assert all(left != right for left, right in pairwise(leg))


def test_keys_are_unique_symbols() -> None:
    configs = [
        SdmaConfig(world, dtype, phase, threads, wire)
        for world, dtype, phase, threads, wire in product(
            range(2, 9), (DType.BF16, DType.FP16), SdmaPhase, (64, 256, 512), Wire
        )
    ]
    assert len({config.key for config in configs}) == len(configs)
    assert all(config.key.isidentifier() for config in configs)
    assert sdma_config(8, DType.BF16, SdmaPhase.SCATTER, Wire.FP8_BOTH).key == "sdma_scatter_w8_bf16_fp8both"
    assert sdma_config(8, DType.BF16, SdmaPhase.SCATTER, Wire.FP8_BOTH).threads == 512
    assert sdma_config(8, DType.BF16, SdmaPhase.SCATTER, Wire.FP8).threads == 64


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((2, DType.FP32, SdmaPhase.REDUCE, 512, Wire.FP8), "dtype=fp32 must be a 16-bit type"),
        ((1, DType.BF16, SdmaPhase.REDUCE, 512, Wire.FP8), "must be 'exact' in a world of 1"),
        ((2, DType.BF16, SdmaPhase.REDUCE, 512, "fp8"), r"use Wire\.parse"),
    ],
)
def test_a_config_checks_itself(values: tuple[object, ...], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        SdmaConfig(*values)  # type: ignore[arg-type]


@pytest.mark.parametrize(("world", "columns"), [(8, 2**28 + 16), (5, 2**29), (3, 2**30)])
def test_rows_too_long_for_32_bit_offsets_are_refused(world: int, columns: int) -> None:
    """One row: the other ranks' empty slices would lie past 4 GiB, and wrap round onto it."""
    with pytest.raises(ConfigError, match=f"columns={columns} must be shorter"):
        WireSplit(world, columns, Wire.FP8_ROW, columns)
    WireSplit(2, 2**29, Wire.FP8_ROW, 2**29)
    WireSplit(8, 2**28, Wire.FP8_ROW, 2**28)


@given(worlds, wires, st.integers(0, 2**24))
def test_grids_fit_the_machine(world: int, wire: Wire, units: int) -> None:
    columns = 48 if wire.per_row else None
    problem = AllReduceProblem(world, units * (columns or 1), DType.BF16)
    for phase in SdmaPhase:
        config = sdma_config(world, DType.BF16, phase, wire)
        geometry = sdma.sdma_geometry(problem, config, MI355X, columns)
        pushes = phase is SdmaPhase.SCATTER and not wire.both
        assert geometry.threads == (64 if pushes else 512)
        assert 1 <= geometry.blocks <= (1 if pushes else MI355X.compute_units)
