# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Slices, slots, window, queues and choice of transport of the copy-engine all-reduce."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise, product
from typing import Any

import pytest
from hypothesis import find, given
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from mori_gemm_ar.ar.transport import transport_named, wants_engines
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import (
    CONTROL,
    MAX_BYTES,
    MI355X,
    PACK_BYTES,
    REGION_ALIGN,
    AllReduceProblem,
    DType,
    allreduce_window,
)
from mori_gemm_ar.layout.copy_queue import MAX_PUT_BYTES, units_of
from mori_gemm_ar.layout.sdma import (
    MAX_QUEUES,
    ByteSlices,
    SdmaConfig,
    SdmaPhase,
    Transport,
    landing_bytes,
    probe_bytes,
    probe_problem,
    reason_not_queues,
    sdma_config,
    sdma_geometry,
    sdma_window,
    select_transport,
)

worlds = st.integers(1, 8)
dtypes = st.sampled_from(DType)
queue_counts = st.integers(1, MAX_QUEUES)
max_bytes = st.integers(1, MAX_BYTES)
# Small calls as often as large ones: there slices are empty.
numels = st.one_of(st.integers(0, 300), st.integers(0, MAX_BYTES // 4))
problems = st.builds(AllReduceProblem, worlds, numels, dtypes)


# --- slices ---


@given(problems)
def test_slices_are_disjoint_and_cover_everything(problem: AllReduceProblem) -> None:
    slices = ByteSlices.of(problem)
    runs = [slices.slice(rank) for rank in range(problem.world)]
    assert runs[0].start == 0 and runs[-1].stop == problem.nbytes
    assert all(left.stop == right.start for left, right in pairwise(runs))
    assert all(run.start <= run.stop for run in runs)


@given(problems)
def test_slices_are_whole_packs_and_the_last_rank_takes_the_tail(problem: AllReduceProblem) -> None:
    slices = ByteSlices.of(problem)
    tail = problem.nbytes % PACK_BYTES
    assert slices.part % PACK_BYTES == 0
    for rank in range(problem.world):
        run = slices.slice(rank)
        assert run.start % PACK_BYTES == 0
        assert len(run) % PACK_BYTES == (tail if rank == problem.world - 1 else 0)
        assert len(run) <= slices.part + (tail if rank == problem.world - 1 else 0)


def in_kernel(part: int, total: int, world: int, rank: int) -> range:
    """`_Call.slice_start` and `slice_bytes` of kernels/sdma.py, in the same integer operations."""
    packed = total & -PACK_BYTES
    start = min(part * rank, packed)
    end = min(part * (rank + 1), packed)
    return range(start, start + ((total if rank == world - 1 else end) - start))


def pieces_in_kernel(nbytes: int, queues: int) -> list[tuple[int, int]]:
    """(start, bytes) of each queue's put: `Exchange.put` of kernels/device/exchange.py."""
    piece = ((nbytes + PACK_BYTES - 1) // PACK_BYTES + queues - 1) // queues * PACK_BYTES
    starts = [min(piece * queue, nbytes) for queue in range(queues)]
    return [(start, min(piece, nbytes - start)) for start in starts]


@given(problems, queue_counts)
def test_kernels_compute_the_same_slices_and_pieces(problem: AllReduceProblem, queues: int) -> None:
    """The kernels' formulas; what the kernels do is seen in tests/ranks."""
    slices = ByteSlices.of(problem)
    for rank in range(problem.world):
        run = slices.slice(rank)
        assert in_kernel(slices.part, slices.total, problem.world, rank) == run
        pieces = [(piece.start - run.start, len(piece)) for piece in slices.pieces(rank, queues)]
        assert pieces == pieces_in_kernel(len(run), queues)


@given(problems, queue_counts)
def test_pieces_cover_a_slice_in_order(problem: AllReduceProblem, queues: int) -> None:
    slices = ByteSlices.of(problem)
    for rank in range(problem.world):
        run, pieces = slices.slice(rank), slices.pieces(rank, queues)
        assert len(pieces) == queues
        assert [byte for piece in pieces for byte in (piece.start, piece.stop)] == sorted(
            byte for piece in pieces for byte in (piece.start, piece.stop)
        )
        assert pieces[0].start == run.start and pieces[-1].stop == run.stop
        assert all(left.stop == right.start for left, right in pairwise(pieces))
        # An empty piece lies at the end of a slice; only there may one start between two packs.
        assert all(piece.start % PACK_BYTES == 0 for piece in pieces if len(piece))
        assert all(len(piece) % PACK_BYTES == 0 for piece in pieces[:-1] if piece.stop < run.stop)


def test_slices_of_known_calls() -> None:
    slices = ByteSlices.of(AllReduceProblem(3, 19, DType.BF16))  # two packs and three elements
    assert [slices.slice(rank) for rank in range(3)] == [range(16), range(16, 32), range(32, 38)]
    slices = ByteSlices.of(AllReduceProblem(4, 3, DType.FP32))
    assert [len(slices.slice(rank)) for rank in range(4)] == [0, 0, 0, 12]
    slices = ByteSlices.of(AllReduceProblem(2, 5 * 8 * 2, DType.BF16))
    assert [len(piece) for piece in slices.pieces(0, 3)] == [32, 32, 16]
    with pytest.raises(ConfigError, match=r"rank=2 must be one of 0\.\.1"):
        slices.slice(2)


def test_a_long_piece_takes_several_packets() -> None:
    """No put passes 128 MiB: the largest call of one rank's slice over one queue, and over eight."""
    slices = ByteSlices.of(AllReduceProblem(2, MAX_BYTES // 4, DType.FP32))
    (whole,) = slices.pieces(0, 1)
    assert len(whole) > MAX_PUT_BYTES and units_of(len(whole)) == -(-len(whole) // MAX_PUT_BYTES) > 1
    assert units_of(MAX_PUT_BYTES) == 1 and units_of(MAX_PUT_BYTES + 1) == 2 and units_of(0) == 0
    split = slices.pieces(0, 8)
    assert sum(map(len, split)) == len(whole)
    assert max(map(len, split)) < len(whole) / 8 + PACK_BYTES


# --- window ---


@given(worlds, max_bytes, dtypes, st.data())
def test_a_landing_slot_fits_every_slice_of_every_call(
    world: int, capacity: int, dtype: DType, data: st.DataObject
) -> None:
    most = capacity // dtype.nbytes
    # Near the limit, where it is tight, and anywhere.
    numel = data.draw(st.one_of(st.integers(max(0, most - 40), most), st.integers(0, most)))
    slices = ByteSlices.of(AllReduceProblem(world, numel, dtype))
    longest = max(len(slices.slice(rank)) for rank in range(world))
    slot = sdma_window(capacity, world).region("landing").nbytes // world
    assert slot == landing_bytes(capacity, world)
    assert longest <= slot
    assert slot % REGION_ALIGN == 0


def test_a_slot_without_room_for_the_tail_is_noticed() -> None:
    """Negative control: an even share of the bytes is too little for some call."""
    calls = st.tuples(st.integers(2, 8), st.integers(1, 1000))

    def overflows(call: tuple[int, int], extra: int) -> bool:
        world, numel = call
        problem = AllReduceProblem(world, numel, DType.BF16)
        slices = ByteSlices.of(problem)
        return max(len(slices.slice(rank)) for rank in range(world)) > -(-problem.nbytes // world) + extra

    assert find(calls, lambda call: overflows(call, 0))
    with pytest.raises(NoSuchExample):
        find(calls, lambda call: overflows(call, 2 * PACK_BYTES))


@given(worlds, max_bytes)
def test_window_regions_are_disjoint_and_control_stays(world: int, capacity: int) -> None:
    window, plain = sdma_window(capacity, world), allreduce_window(capacity, world)
    for left, right in combinations(window.regions, 2):
        assert left.end <= right.offset or right.end <= left.offset
    assert window.names == (*plain.names, "landing")
    # Calls by load and store find everything where it is in an op without copy engines.
    assert window.regions[:-1] == plain.regions
    assert window.region("landing").nbytes == world * landing_bytes(capacity, world)
    assert window.offset("input") == CONTROL.nbytes


@given(worlds, max_bytes, max_bytes)
def test_a_larger_window_moves_no_control_region(world: int, some: int, more: int) -> None:
    small, large = sdma_window(min(some, more), world), sdma_window(max(some, more), world)
    names = [region.name for region in small.regions if region.end <= CONTROL.nbytes]
    assert len(names) == 8
    assert all(small.region(name) == large.region(name) for name in names)
    assert all(small.offset(name) <= large.offset(name) for name in small.names)


@pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.label)
@pytest.mark.parametrize("queues", range(1, MAX_QUEUES + 1))
def test_a_self_test_uses_every_queue_of_every_rank(queues: int, dtype: DType) -> None:
    for world in range(1, 9):
        problem = probe_problem(world, queues, dtype)
        slices = ByteSlices.of(problem)
        pieces = [slices.pieces(rank, queues) for rank in range(world)]
        assert all(len(piece) > PACK_BYTES for run in pieces for piece in run)
        assert problem.nbytes % PACK_BYTES
        assert problem.nbytes <= probe_bytes(world, queues) < 6000


# --- compile keys and grids ---


def test_keys_are_unique_symbols() -> None:
    configs = [SdmaConfig(*key) for key in product(range(1, 9), DType, SdmaPhase, (64, 256, 512))]
    assert len({config.key for config in configs}) == len(configs)
    assert all(config.key.isidentifier() for config in configs)
    assert sdma_config(8, DType.BF16, SdmaPhase.SCATTER).key == "sdma_scatter_w8_bf16"
    assert sdma_config(2, DType.FP32, SdmaPhase.REDUCE).key == "sdma_reduce_w2_fp32"
    assert SdmaConfig(2, DType.FP16, SdmaPhase.SCATTER, 512).key == "sdma_scatter_w2_fp16_t512"


def test_a_config_checks_itself() -> None:
    for values in ((0, DType.BF16, SdmaPhase.SCATTER), (2, "bf16", SdmaPhase.SCATTER), (2, DType.BF16, "scatter")):
        with pytest.raises(ConfigError, match="must be"):
            SdmaConfig(*values)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="whole waves"):
        SdmaConfig(2, DType.BF16, SdmaPhase.REDUCE, 100)


@given(problems)
def test_grids_are_equal_on_all_ranks_and_fit_the_machine(problem: AllReduceProblem) -> None:
    for phase in SdmaPhase:
        config = sdma_config(problem.world, problem.dtype, phase)
        geometry = sdma_geometry(problem, config, MI355X)
        assert geometry.threads == (64 if phase is SdmaPhase.SCATTER else 512)
        assert 1 <= geometry.blocks <= (1 if phase is SdmaPhase.SCATTER else MI355X.compute_units)


# --- queues and transports ---


@pytest.mark.parametrize("queues", range(1, MAX_QUEUES + 1))
def test_queues(queues: int) -> None:
    assert reason_not_queues(queues) is None


@pytest.mark.parametrize("queues", [0, -1, 9, True, False, 1.0, "1", None])
def test_no_queues(queues: Any) -> None:
    reason = reason_not_queues(queues)
    assert reason is not None and reason.startswith("queues=") and "1..8" in reason


MACHINE = replace(MI355X, copy_bytes=4096)


@given(st.builds(AllReduceProblem, worlds, st.integers(0, 5000), dtypes), st.booleans())
def test_the_choice_is_pure(problem: AllReduceProblem, engines: bool) -> None:
    chosen = select_transport(problem, MACHINE, engines)
    assert select_transport(replace(problem), replace(MACHINE), engines) is chosen
    large = problem.nbytes >= 4096
    assert (chosen is Transport.SDMA) == (engines and problem.world > 1 and large)
    # By bytes, not by elements.
    if problem.dtype is DType.FP32:
        halves = AllReduceProblem(problem.world, 2 * problem.numel, DType.BF16)
        assert select_transport(halves, MACHINE, engines) is chosen


@given(worlds, dtypes, numels, numels)
def test_more_bytes_never_go_back_to_load_and_store(world: int, dtype: DType, some: int, more: int) -> None:
    some, more = sorted((some, more))
    chosen = [select_transport(AllReduceProblem(world, numel, dtype), MI355X, True) for numel in (some, more)]
    assert chosen != [Transport.SDMA, Transport.LSA]


@given(worlds, max_bytes)
def test_engines_are_wanted_where_a_call_would_choose_them(world: int, capacity: int) -> None:
    largest = AllReduceProblem(world, capacity // 2, DType.BF16)
    wants = wants_engines(None, world, capacity)
    assert wants or select_transport(largest, MI355X, True) is Transport.LSA
    assert wants == (world > 1 and capacity >= MI355X.copy_bytes)
    assert wants_engines(Transport.SDMA, world, capacity) == (world > 1)
    assert not wants_engines(Transport.LSA, world, capacity)


def test_names_of_transports() -> None:
    assert transport_named("auto") is None
    assert transport_named("lsa") is transport_named(Transport.LSA) is Transport.LSA
    assert transport_named("sdma") is transport_named(Transport.SDMA) is Transport.SDMA


@pytest.mark.parametrize(
    "name", ["sdmaa", "SDMA", "Sdma", "AUTO", "", " sdma", "sdma ", "ldma", "0", "1", "true", None, True, 1, b"sdma"]
)
def test_other_names_are_refused_with_a_list(name: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        transport_named(name)
    assert str(caught.value) == f"transport={name!r} must be one of 'auto', 'lsa', 'sdma'"
