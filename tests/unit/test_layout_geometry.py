# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Grids: a cap for each memory class, the signal arrays as a bound of their own, and never an empty grid."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import (
    MAX_BLOCKS,
    MAX_BYTES,
    MAX_WORLD,
    MI355X,
    WAVE_LANES,
    AllReduceConfig,
    AllReduceProblem,
    DType,
    LaunchGeometry,
    MemoryClass,
    PackOwnership,
    Stage,
    block_cap,
    capped_geometry,
    lsa_geometry,
)

quick = settings(max_examples=150, deadline=None, database=None)


def test_the_machine_agrees_with_the_hard_bounds() -> None:
    assert MI355X.max_world == MAX_WORLD == MI355X.links + 1
    assert MI355X.wave_lanes == WAVE_LANES
    assert (MI355X.isa, MI355X.compute_units, MI355X.xcds, MI355X.lds_bytes) == ("gfx950", 256, 8, 163840)


def test_each_memory_class_has_its_own_cap() -> None:
    assert block_cap(MemoryClass.REMOTE_LOAD, MI355X) == 24
    assert block_cap(MemoryClass.LOCAL, MI355X) == 256
    fewer = replace(MI355X, remote_load_blocks=48)
    assert block_cap(MemoryClass.REMOTE_LOAD, fewer) == 48
    assert block_cap(MemoryClass.LOCAL, fewer) == 256


@quick
@given(st.integers(0, 2**30), st.sampled_from([64, 256, 512, 1024]), st.sampled_from(MemoryClass))
def test_a_grid_covers_its_items_up_to_the_cap(items: int, threads: int, memory: MemoryClass) -> None:
    geometry = capped_geometry(items, threads, memory, MI355X)
    cap = block_cap(memory, MI355X)
    assert 1 <= geometry.blocks <= cap and geometry.threads == threads
    assert geometry.blocks == cap or geometry.blocks * threads >= items
    assert geometry.blocks == 1 or (geometry.blocks - 1) * threads < items


@quick
@given(st.integers(1, 8), st.integers(0, MAX_BYTES // 4), st.sampled_from(DType), st.sampled_from(Stage))
def test_all_reduce_grids_stay_inside_the_signal_arrays(world: int, numel: int, dtype: DType, stage: Stage) -> None:
    problem = AllReduceProblem(world, numel, dtype)
    greedy = replace(MI355X, remote_load_blocks=10_000, compute_units=10_000)
    for machine in (MI355X, greedy):
        geometry = lsa_geometry(problem, AllReduceConfig(world, dtype, stage), machine)
        assert 1 <= geometry.blocks <= MAX_BLOCKS
        if world > 1:
            assert geometry.blocks <= machine.remote_load_blocks


@pytest.mark.parametrize(
    ("world", "numel", "stage", "blocks"),
    [
        (4, 0, Stage.ONE, 1),
        (4, 0, Stage.TWO, 1),
        (4, 7, Stage.TWO, 1),  # a tail alone is block 0's
        (2, 512 * 8 * 3, Stage.ONE, 3),
        (2, 512 * 8 * 3 + 8, Stage.ONE, 4),
        (3, 512 * 8 * 3, Stage.TWO, 1),  # one slice for each rank
        (8, 512 * 7168, Stage.TWO, 24),
        (1, 512 * 7168, Stage.ONE, 256),  # no links to queue on
    ],
)
def test_blocks_of_known_shapes(world: int, numel: int, stage: Stage, blocks: int) -> None:
    problem = AllReduceProblem(world, numel, DType.BF16)
    geometry = lsa_geometry(problem, AllReduceConfig(world, DType.BF16, stage), MI355X)
    assert geometry == LaunchGeometry(blocks, 512)


def test_two_stage_blocks_follow_the_slice() -> None:
    problem = AllReduceProblem(8, 8 * 8 * 512 * 5, DType.BF16)
    assert PackOwnership.of(problem).part == 512 * 5
    assert lsa_geometry(problem, AllReduceConfig(8, DType.BF16, Stage.TWO), MI355X).blocks == 5


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (AllReduceConfig(4, DType.BF16, Stage.ONE), r"config\.world=4 must be 8; "),
        (AllReduceConfig(8, DType.FP16, Stage.ONE), r"config\.dtype=DType\.FP16 must be DType\.BF16; "),
    ],
)
def test_a_config_of_another_problem_is_refused(config: AllReduceConfig, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        lsa_geometry(AllReduceProblem(8, 8, DType.BF16), config, MI355X)
