# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""One rule, one place: a predicate refuses exactly what the constructor refuses, with the same text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from itertools import product

import pytest

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import (
    CONTROL,
    MAX_NUMEL,
    MI355X,
    AllReduceConfig,
    AllReduceProblem,
    DType,
    Gather,
    LaunchGeometry,
    Machine,
    MemoryClass,
    OwnerSlices,
    PackOwnership,
    Phase,
    Region,
    RegionKind,
    RegionSpec,
    Stage,
    WrappingCounter,
    allreduce_window,
    block_cap,
    call_tag,
    decode_tag,
    payload_layout,
    rules,
    select_config,
)

WORLDS = [-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, True, 2.0, "2", None]
NUMELS = [-1, 0, 1, 7, 8, 4096, MAX_NUMEL // 2, MAX_NUMEL // 2 + 1, MAX_NUMEL, MAX_NUMEL + 1, False, 8.0, None]
DTYPES = [*DType, "bf16", "fp8", None, 0]
STAGES = [*Stage, 1, "two", None, True]
THREADS = [-64, 0, 1, 32, 63, 64, 96, 192, 512, 1024, 1088, True, 512.0, None]
GATHERS = [*Gather, "interleaved", None, False]
COUNTS = [-1, 0, 1, 2, 7, 255, 256, 2**31 - 1, 2**32, True, 1.0, None]
NAMES = ["input", "", "a b", 3, None]

GRIDS: dict[str, tuple[Callable[..., object], Callable[..., str | None], list[list[object]]]] = {
    "problem": (AllReduceProblem, rules.reason_not_problem, [WORLDS, NUMELS, DTYPES]),
    "config": (AllReduceConfig, rules.reason_not_config, [WORLDS, DTYPES, STAGES, THREADS, GATHERS]),
    "geometry": (LaunchGeometry, rules.reason_not_geometry, [COUNTS, THREADS]),
    "packs": (PackOwnership, rules.reason_not_pack_ownership, [WORLDS, COUNTS]),
    "slices": (OwnerSlices, rules.reason_not_owner_slices, [WORLDS, COUNTS, [-1, 0, 1, 128, 1024, 1025, True, 0.5]]),
    "region": (Region, rules.reason_not_region, [NAMES, [*RegionKind, "control"], [0, 1, 256, -256, 0.0], COUNTS]),
    "counter": (WrappingCounter, rules.reason_not_tiles, [COUNTS]),
    "spec": (RegionSpec, rules.reason_not_spec, [NAMES, [len, 3, None]]),
    "window": (
        allreduce_window,
        lambda max_bytes, world: rules.reason_not_world(world) or rules.reason_not_max_bytes(max_bytes),
        [[-1, 0, 1, 65536, 2**40, True, 1.5], WORLDS],
    ),
    "tag": (
        call_tag,
        lambda *a: rules.reason_not_numel(a[0]) or rules.reason_not_dtype(a[1]) or rules.reason_not_stage(a[2], False),
        [NUMELS, DTYPES, STAGES],
    ),
}


@pytest.mark.parametrize("grid", GRIDS)
def test_predicate_and_constructor_agree(grid: str) -> None:
    construct, predicate, axes = GRIDS[grid]
    outcomes = set()
    for values in product(*axes):
        reason = predicate(*values)
        try:
            construct(*values)
            error = None
        except ConfigError as caught:
            error = str(caught)
        assert error == reason, f"{grid}{values}: constructor says {error!r}, predicate says {reason!r}"
        outcomes.add(reason is None)
        if reason is not None:
            assert " must be " in reason and "; " in reason, f"{grid}{values}: {reason!r} names no rule or no way out"
    assert outcomes == {True, False}, f"{grid}: the grid must hold accepted and refused values"


def test_all_of_one_to_eight_ranks_are_accepted_and_no_others() -> None:
    assert [world for world in range(-2, 20) if rules.reason_not_world(world) is None] == list(range(1, 9))


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (rules.reason_not_world(9), "world=9 must be one of 1..8; use a group of 1 to 8 ranks"),
        (rules.reason_not_world(True), "world=True must be an int, one of 1..8; use a group of 1 to 8 ranks"),
        (
            rules.reason_not_dtype("fp8"),
            "dtype='fp8' must be one of DType.BF16, DType.FP16, DType.FP32; "
            "convert the tensor, or use DType.from_label(label)",
        ),
        (
            rules.reason_not_problem(4, 2**30, DType.FP32),
            "nbytes=4294967296 must be at most 4294967040; split the tensor over several calls",
        ),
        (
            rules.reason_not_fitting(66000, 65536),
            "nbytes=66000 must be at most max_bytes=65536; create the op with max_bytes=66000 or split the tensor",
        ),
        (
            rules.reason_not_stage(Stage.ONE, True),
            "stage=Stage.ONE must be Stage.TWO for an in-place call on op.buffer(); give another out= tensor",
        ),
        (
            rules.reason_not_member("phase", 0, Phase, "name the barrier"),
            "phase=0 must be one of Phase.ENTRY, Phase.MIDDLE, Phase.LEAVE, Phase.SCATTER_PUT, Phase.SCATTER, "
            "Phase.GATHER_PUT, Phase.GATHER, Phase.PULL; name the barrier",
        ),
    ],
)
def test_texts(reason: str | None, text: str) -> None:
    assert reason == text


def test_limits_are_inclusive() -> None:
    assert rules.reason_not_fitting(65536, 65536) is None
    assert rules.reason_not_stage(Stage.TWO, True) is None
    assert rules.reason_not_stage(Stage.ONE, False) is None
    assert [b for b in (0, 1, 256, 257) if rules.reason_not_blocks(b) is None] == [1, 256]
    assert [t for t in THREADS if rules.reason_not_threads(t) is None] == [64, 192, 512, 1024]
    offsets = (-256, 0, 64, 128, 255, 256, 512)
    accepted = [o for o in offsets if rules.reason_not_region("a", RegionKind.CONTROL, o, 8) is None]
    assert accepted == [0, 256, 512]


@pytest.mark.parametrize(
    "call",
    [
        lambda: DType.from_label("BF16"),
        lambda: block_cap("local", MI355X),
        lambda: decode_tag(15 << 28),
        lambda: decode_tag(-1),
        lambda: CONTROL.slot(0, 0, 0),
        lambda: CONTROL.slot(Phase.ENTRY, 256, 0),
        lambda: CONTROL.slot(Phase.ENTRY, 0, 8),
        lambda: CONTROL.epoch(-1),
        lambda: payload_layout((), 1),
        lambda: payload_layout(("input",), 1),
        lambda: payload_layout((RegionSpec("a", lambda m: m),), 0),
        lambda: payload_layout((RegionSpec("a", lambda m: m / 2),), 8),
        lambda: payload_layout((RegionSpec("a", lambda m: m), RegionSpec("a", lambda m: m)), 8),
        lambda: PackOwnership(4, 8).slice(4),
        lambda: PackOwnership(4, 0).owner(0),
        lambda: OwnerSlices(4, 8, 1).owner(8),
        lambda: OwnerSlices(4, 8, 1).chunks(0, 0),
        lambda: select_config(AllReduceProblem(4, 8, DType.BF16), MI355X, Stage.ONE, in_place_in_window=True),
        lambda: select_config(AllReduceProblem(4, 8, DType.BF16), MI355X, 2),
    ],
)
def test_other_boundaries_raise_a_config_error_that_is_a_value_error(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"must be .*; ") as caught:
        call()
    assert type(caught.value) is ConfigError


@pytest.mark.parametrize("field", [field.name for field in fields(Machine)])
def test_every_machine_field_is_checked(field: str) -> None:
    values = {f.name: getattr(MI355X, f.name) for f in fields(Machine)}
    for bad in (0, -1, None, ""):
        with pytest.raises(ConfigError, match=f"^{field}="):
            Machine(**{**values, field: bad})


def test_configs_are_frozen_hashable_and_slotted() -> None:
    config = AllReduceConfig(4, DType.BF16, Stage.TWO)
    with pytest.raises(FrozenInstanceError):
        config.world = 5  # type: ignore[misc]
    assert not hasattr(config, "__dict__")
    assert {config: 1}[AllReduceConfig(4, DType.BF16, Stage.TWO)] == 1
    assert block_cap(MemoryClass.LOCAL, MI355X) == MI355X.compute_units
