# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Compile keys, stage choice, signal words and slots of the load/store all-reduce."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import (
    CONTROL,
    MAX_BLOCKS,
    MAX_BYTES,
    MAX_NUMEL,
    MAX_WORLD,
    MI355X,
    AllReduceConfig,
    AllReduceProblem,
    CallTag,
    DType,
    ErrorWord,
    Gather,
    Phase,
    Stage,
    Wire,
    allreduce_window,
    call_tag,
    decode_tag,
    error_words,
    rules,
    select_config,
    select_stage,
    signal_word,
    split_signal_word,
)

quick = settings(max_examples=150, deadline=None, database=None)
numels = st.integers(0, MAX_NUMEL)
numels_of_any_dtype = st.integers(0, MAX_BYTES // 4)
dtypes = st.sampled_from(DType)
stages = st.sampled_from(Stage)


def test_key_is_stable_and_unique() -> None:
    assert AllReduceConfig(8, DType.BF16, Stage.TWO).key == "lsa_allreduce_w8_bf16_2stage"
    assert AllReduceConfig(3, DType.FP32, Stage.ONE, 256).key == "lsa_allreduce_w3_fp32_1stage_t256"
    sequential = AllReduceConfig(4, DType.FP16, Stage.TWO, gather=Gather.SEQUENTIAL)
    assert sequential.kernel_name == "lsa_allreduce_w4_fp16_2stage_sequential"
    configs = [
        AllReduceConfig(*values)
        for values in product(range(1, 9), DType, Stage, (64, 512, 1024), Gather)
        if rules.reason_not_config(*values) is None
    ]
    assert len({config.key for config in configs}) == len(configs) == 8 * 3 * 3 * 3
    assert all(config.kernel_name.isidentifier() for config in configs)


def test_dtypes() -> None:
    assert [(d.label, d.nbytes, d.code) for d in DType] == [("bf16", 2, 0), ("fp16", 2, 1), ("fp32", 4, 2)]
    assert all(DType.from_label(dtype.label) is dtype for dtype in DType)


# --- stage choice ---


@quick
@given(numels_of_any_dtype, dtypes, st.integers(1, 2))
def test_one_stage_at_one_and_two_ranks(numel: int, dtype: DType, world: int) -> None:
    assert select_stage(AllReduceProblem(world, numel, dtype), MI355X) is Stage.ONE


@quick
@given(st.integers(3, 8), dtypes, numels_of_any_dtype, numels_of_any_dtype)
def test_more_bytes_never_go_back_to_one_stage(world: int, dtype: DType, some: int, more: int) -> None:
    some, more = sorted((some, more))
    chosen = [select_stage(AllReduceProblem(world, numel, dtype), MI355X) for numel in (some, more)]
    assert chosen != [Stage.TWO, Stage.ONE]


@quick
@given(st.integers(1, 7), st.integers(0, 2**30))
def test_more_ranks_never_go_back_to_one_stage(world: int, numel: int) -> None:
    chosen = [select_stage(AllReduceProblem(w, numel, DType.BF16), MI355X) for w in (world, world + 1)]
    assert chosen != [Stage.TWO, Stage.ONE]


@pytest.mark.parametrize(
    ("world", "m", "stage"),
    [
        (8, 0, Stage.ONE),
        (8, 1, Stage.ONE),
        (8, 64, Stage.TWO),
        (8, 512, Stage.TWO),  # measured: 68 us in two stages, 150 us in one
        (4, 1, Stage.ONE),
        (4, 64, Stage.TWO),
        (3, 64, Stage.TWO),
        (2, 16384, Stage.ONE),
    ],
)
def test_stage_of_known_shapes(world: int, m: int, stage: Stage) -> None:
    problem = AllReduceProblem(world, m * 7168, DType.BF16)
    assert select_stage(problem, MI355X) is stage
    assert select_config(problem, MI355X) == AllReduceConfig(world, DType.BF16, stage)


def test_stage_goes_by_bytes_not_by_elements() -> None:
    for numel in range(0, 2**18, 1024):
        wide = AllReduceProblem(8, numel, DType.FP32)
        narrow = AllReduceProblem(8, 2 * numel, DType.FP16)
        assert select_stage(wide, MI355X) is select_stage(narrow, MI355X)


@quick
@given(st.integers(1, 8), numels_of_any_dtype, dtypes)
def test_what_is_selected_is_always_allowed(world: int, numel: int, dtype: DType) -> None:
    problem = AllReduceProblem(world, numel, dtype)
    for in_place in (False, True):
        stage = select_stage(problem, MI355X, in_place)
        assert rules.reason_not_stage(stage, in_place) is None
        assert select_config(problem, MI355X, in_place_in_window=in_place).stage is stage
    assert select_config(problem, MI355X, Stage.TWO).stage is Stage.TWO


# --- signal words ---


@quick
@given(numels, dtypes, stages)
def test_tag_round_trip(numel: int, dtype: DType, stage: Stage) -> None:
    tag = call_tag(numel, dtype, stage)
    assert 0 <= tag < 2**31  # fits a signed 32-bit kernel argument
    decoded = decode_tag(tag)
    assert (decoded.numel, decoded.dtype, decoded.stage) == (numel % 2**28, dtype, stage)


@quick
@given(numels, st.sampled_from([DType.BF16, DType.FP16]), st.sampled_from([Wire.FP8, Wire.FP8_BOTH]))
def test_tag_round_trip_of_a_lossy_wire(numel: int, dtype: DType, wire: Wire) -> None:
    tag = call_tag(numel, dtype, Stage.TWO, wire)
    assert 0 <= tag < 2**32
    assert decode_tag(tag) == CallTag(numel % 2**28, dtype, Stage.TWO, wire)


@quick
@given(st.integers(0, 2**14 - 1), st.integers(1, 1023), st.sampled_from([DType.BF16, DType.FP16]))
def test_tag_round_trip_of_rows(rows: int, units: int, dtype: DType) -> None:
    columns = 16 * units
    tag = call_tag(rows * columns, dtype, Stage.TWO, Wire.FP8_ROW, columns)
    assert decode_tag(tag) == CallTag(rows * columns, dtype, Stage.TWO, Wire.FP8_ROW, columns)


def test_tags_tell_wires_types_and_stages_apart() -> None:
    tags = [call_tag(48, dtype, stage) for dtype in DType for stage in Stage]
    for dtype in (DType.BF16, DType.FP16):
        tags += [call_tag(48, dtype, Stage.TWO, wire) for wire in (Wire.FP8, Wire.FP8_BOTH)]
        tags += [call_tag(48, dtype, Stage.TWO, Wire.FP8_ROW, columns) for columns in (16, 48)]
    assert len(set(tags)) == len(tags) == 14


def test_a_lossy_config_says_so_in_its_key() -> None:
    keys = {AllReduceConfig(4, DType.BF16, Stage.TWO, wire=wire).key for wire in Wire}
    base = "lsa_allreduce_w4_bf16_2stage"
    assert keys == {base, f"{base}_fp8", f"{base}_fp8both", f"{base}_fp8row"}
    problem = AllReduceProblem(4, 0, DType.BF16)
    assert select_config(problem, MI355X, wire=Wire.FP8) == AllReduceConfig(4, DType.BF16, Stage.TWO, wire=Wire.FP8)
    alone = AllReduceProblem(1, 1 << 20, DType.FP32)
    assert select_config(alone, MI355X, wire=Wire.FP8).wire is Wire.EXACT


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((4, DType.FP32, Stage.TWO), "dtype=fp32 must be a 16-bit type for wire='fp8'"),
        ((4, DType.BF16, Stage.ONE), "must be Stage.TWO or None for wire='fp8'"),
        ((1, DType.BF16, Stage.TWO), "must be 'exact' in a world of 1"),
        ((4, DType.BF16, Stage.TWO, 512, Gather.SEQUENTIAL), "must be Gather.INTERLEAVED for wire='fp8'"),
    ],
)
def test_a_lossy_config_that_has_no_kernel_is_refused(arguments: tuple, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        AllReduceConfig(*arguments, wire=Wire.FP8)


def test_tag_bits() -> None:
    assert call_tag(5, DType.FP32, Stage.TWO) == 5 | 2 << 28 | 1 << 30
    assert call_tag(2**28 + 5, DType.BF16, Stage.ONE) == 5


@quick
@given(st.integers(0, 2**32 - 1), st.integers(0, 2**31 - 1))
def test_signal_word_round_trip(epoch: int, tag: int) -> None:
    word = signal_word(epoch, tag)
    assert 0 <= word < 2**64 and split_signal_word(word) == (epoch, tag)


def test_every_slot_and_epoch_has_its_own_bytes_in_the_right_region() -> None:
    window = allreduce_window(1, 8)
    rows = {Phase.ENTRY: "entry", Phase.MIDDLE: "exit"}
    slots = {
        CONTROL.slot(phase, block, peer): rows[phase]
        for phase, block, peer in product(rows, range(MAX_BLOCKS), range(MAX_WORLD))
    }
    assert len(slots) == len(rows) * MAX_BLOCKS * MAX_WORLD and all(offset % 8 == 0 for offset in slots)
    for offset, name in list(slots.items())[::97]:
        assert window.locate(offset).name == window.locate(offset + 7).name == name
    # Both closing phases use one row, so that no slot falls behind while only the other stage runs.
    assert CONTROL.slot(Phase.MIDDLE, 3, 2) == CONTROL.slot(Phase.LEAVE, 3, 2)
    epochs = [CONTROL.epoch(block) for block in range(MAX_BLOCKS)]
    assert epochs == list(range(CONTROL.epochs, CONTROL.epochs + 4 * MAX_BLOCKS, 4))
    # The slots of one block share a line, and no other region does.
    assert CONTROL.slot(Phase.ENTRY, 1, 0) - CONTROL.slot(Phase.ENTRY, 0, 0) == 64


def test_error_words() -> None:
    words = error_words(range(16))
    assert words[ErrorWord.STATUS] == 0 and words[ErrorWord.PEER] == 3 and words[ErrorWord.SEEN_TAG] == 8
