# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Instructions that move values between lanes, against a loop over lanes."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import pytest

from tests.kernel.instruction_check import partial_exec
from tests.kernel.instructions import EXEC, LANES, State, execute

WAVES = 4
COVERED = {
    "v_readfirstlane_b32", "v_readlane_b32", "v_writelane_b32", "v_swap_b32", "v_permlane16_swap_b32",
    "v_permlane32_swap_b32", "ds_bpermute_b32", "ds_permute_b32", "ds_swizzle_b32",
}  # fmt: skip


def states(text: str) -> list[tuple[State, bool]]:
    """Random states: all lanes of adjacent waves, then partial EXEC in waves that are apart."""
    rng = np.random.default_rng(zlib.crc32(text.encode()))
    full, part = State.random(rng, WAVES), State.random(rng, WAVES)
    part.set_pair(EXEC, partial_exec(rng, WAVES))
    return [(full, False), (part, True)]


def verify(text: str, model: Callable[[State, State, int, list[bool]], None]) -> None:
    """`model(before, after, wave, active)` edits `after`, which starts as a copy of `before`."""
    for before, sparse in states(text):
        want = before.copy()
        for wave in range(WAVES):
            model(before, want, wave, before.lanes(EXEC)[wave].tolist())
        assert want.differences(execute(text, before, sparse=sparse))[:1] == []


# ---- one lane and the scalar file ----------------------------------------------------------------------------
def test_first_active_lane():
    def model(before, after, wave, active):
        lane = active.index(True) if any(active) else 0  # without an active lane the hardware reads lane 0
        after.s[20, wave] = before.v[1, wave, lane]

    verify("v_readfirstlane_b32 s20, v1", model)


@pytest.mark.parametrize("lane", ["63", "5", "s3", "m0"])
def test_read_lane(lane):
    def model(before, after, wave, active):
        number = {"s3": before.s[3, wave], "m0": before.s[124, wave]}.get(lane)
        number = int(lane) if number is None else int(number) % LANES
        after.s[20, wave] = before.v[1, wave, number]

    verify(f"v_readlane_b32 s20, v1, {lane}", model)


@pytest.mark.parametrize(("value", "lane"), [("s5", "63"), ("s5", "m0"), ("-1", "7"), ("-1", "s3")])
def test_write_lane_ignores_exec(value, lane):
    def model(before, after, wave, active):
        number = {"s3": before.s[3, wave], "m0": before.s[124, wave]}.get(lane)
        number = int(lane) if number is None else int(number) % LANES
        after.v[12, wave, number] = before.s[5, wave] if value == "s5" else 0xFFFFFFFF

    verify(f"v_writelane_b32 v12, {value}, {lane}", model)


# ---- whole registers -----------------------------------------------------------------------------------------
def test_swap():
    def model(before, after, wave, active):
        for lane in np.nonzero(active)[0]:
            after.v[12, wave, lane], after.v[1, wave, lane] = before.v[1, wave, lane], before.v[12, wave, lane]

    verify("v_swap_b32 v12, v1", model)


@pytest.mark.parametrize("width", [16, 32])
@pytest.mark.parametrize("suffix", ["_e32 v12, v1", "_e64 v12, v1 bound_ctrl:1"])
def test_swap_of_rows(width, suffix):
    """Odd rows of the first register change places with even rows of the second.

    The manual's pseudocode ignores EXEC. Here an inactive lane keeps its registers, as for any vector instruction.
    """

    def model(before, after, wave, active):
        for lane in range(LANES):
            if lane // width % 2 and active[lane]:
                after.v[12, wave, lane] = before.v[1, wave, lane - width]
            if lane // width % 2 == 0 and active[lane]:
                after.v[1, wave, lane] = before.v[12, wave, lane + width]

    verify(f"v_permlane{width}_swap_b32{suffix}", model)


# ---- through the LDS crossbar --------------------------------------------------------------------------------
@pytest.mark.parametrize("offset", ["", " offset:124"])
@pytest.mark.parametrize("registers", ["v12, v1, v5", "v1, v1, v5", "v5, v1, v5"])
def test_pull(registers, offset):
    def model(before, after, wave, active):
        destination = int(registers.split(",")[0][1:])
        for lane in np.nonzero(active)[0]:
            source = (int(before.v[1, wave, lane]) + int(offset[8:] or 0)) // 4 % LANES
            after.v[destination, wave, lane] = before.v[5, wave, source] if active[source] else 0

    verify(f"ds_bpermute_b32 {registers}{offset}", model)


@pytest.mark.parametrize("offset", ["", " offset:8"])
def test_push(offset):
    def model(before, after, wave, active):
        result = [0] * LANES
        for lane in np.nonzero(active)[0]:
            result[(int(before.v[1, wave, lane]) + int(offset[8:] or 0)) // 4 % LANES] = before.v[5, wave, lane]
        for lane in np.nonzero(active)[0]:
            after.v[12, wave, lane] = result[lane]

    verify(f"ds_permute_b32 v12, v1, v5{offset}", model)


def _within(size: int, source: Callable[[int], int]) -> Callable[[int], int]:
    return lambda lane: lane // size * size + source(lane % size)


SWIZZLES = {
    "swizzle(SWAP,1)": lambda lane: lane ^ 1,
    "swizzle(SWAP,16)": lambda lane: lane ^ 16,
    "swizzle(REVERSE,8)": _within(8, lambda lane: 7 - lane),
    "swizzle(REVERSE,32)": _within(32, lambda lane: 31 - lane),
    "swizzle(BROADCAST,4,2)": _within(4, lambda lane: 2),
    "swizzle(BROADCAST,32,31)": _within(32, lambda lane: 31),
    "swizzle(QUAD_PERM,3,1,2,0)": _within(4, lambda lane: (3, 1, 2, 0)[lane]),
    'swizzle(BITMASK_PERM,"01pi0")': _within(32, lambda lane: 8 | lane & 4 | (lane & 2 ^ 2)),
    "0x041f": _within(32, lambda lane: lane ^ 1),
    "0x8055": _within(4, lambda lane: 1),
    "0x1f": lambda lane: lane,
}


@pytest.mark.parametrize("pattern", SWIZZLES)
def test_swizzle(pattern):
    def model(before, after, wave, active):
        for lane in np.nonzero(active)[0]:
            source = SWIZZLES[pattern](int(lane))
            after.v[1, wave, lane] = before.v[1, wave, source] if active[source] else 0

    verify(f"ds_swizzle_b32 v1, v1 offset:{pattern}", model)


# ---- DPP: lane i reads the lane given here, None where it lies outside ---------------------------------------
def _in_row(step: int) -> Callable[[int], int | None]:
    return lambda lane: lane + step if 0 <= lane % 16 + step < 16 else None


DPP = {
    "quad_perm:[3,0,2,1]": _within(4, lambda lane: (3, 0, 2, 1)[lane]),
    "row_shl:1": _in_row(1),
    "row_shl:15": _in_row(15),
    **{f"row_shr:{n}": _in_row(-n) for n in (1, 2, 4, 8)},
    "row_ror:4": _within(16, lambda lane: (lane - 4) % 16),
    "row_mirror": _within(16, lambda lane: 15 - lane),
    "row_half_mirror": _within(8, lambda lane: 7 - lane),
    "row_newbcast:1": _within(16, lambda lane: 1),
    "row_bcast:15": lambda lane: lane // 16 * 16 - 1 if lane >= 16 else None,
    "row_bcast:31": lambda lane: 31 if lane >= 32 else None,
    "wave_shl:1": lambda lane: lane + 1 if lane < 63 else None,
    "wave_shr:1": lambda lane: lane - 1 if lane else None,
    "wave_rol:1": lambda lane: (lane + 1) % 64,
    "wave_ror:1": lambda lane: (lane - 1) % 64,
}
MASKS = [
    "row_mask:0xf bank_mask:0xf",
    "row_mask:0xa bank_mask:0xf",
    "row_mask:0xf bank_mask:0x9",
    "row_mask:0xc bank_mask:0x5",
]
OPERATIONS: dict[str, Callable[[int, int, int], int]] = {
    "v_mov_b32_dpp v12, v1": lambda moved, other, old: moved,
    "v_mov_b32_dpp v1, v1": lambda moved, other, old: moved,
    "v_add_u32_dpp v12, v1, v5": lambda moved, other, old: moved + other,
    "v_subrev_u32_dpp v5, v1, v5": lambda moved, other, old: other - moved,
    "v_max_u32_dpp v12, v1, v5": lambda moved, other, old: max(moved, other),
    "v_lshlrev_b32_dpp v12, v1, v5": lambda moved, other, old: other << moved % 32,
    "v_add_u16_dpp v12, v1, v5": lambda moved, other, old: (moved + other) & 0xFFFF,
    "v_bfrev_b32_dpp v12, v1": lambda moved, other, old: int(f"{moved:032b}"[::-1], 2),
}


@pytest.mark.parametrize("bound", ["", " bound_ctrl:1"])
@pytest.mark.parametrize("control", DPP)
def test_dpp(control, bound):
    """An outside or inactive source gives 0 with bound_ctrl; without it the lane keeps its destination.

    Row and bank masks protect destination lanes and do not hide source lanes.
    """
    for number, (text, formula) in enumerate(OPERATIONS.items()):
        masks = MASKS[(number + len(control)) % len(MASKS)]
        rows, banks = (int(part[-1], 16) for part in masks.split())
        destination = int(text.split()[1].strip("v,"))

        def model(before, after, wave, active, formula=formula, rows=rows, banks=banks, destination=destination):
            for lane in np.nonzero(active)[0].tolist():
                source = DPP[control](lane)
                usable = source is not None and active[source]
                if (usable or bound) and rows >> lane // 16 & 1 and banks >> lane % 16 // 4 & 1:
                    moved = int(before.v[1, wave, source]) if usable else 0
                    other, old = (int(before.v[r, wave, lane]) for r in (5, destination))
                    after.v[destination, wave, lane] = formula(moved, other, old) & 0xFFFFFFFF

        verify(f"{text} {control} {masks}{bound}", model)


def test_dpp_keeps_the_mask_of_what_follows():
    """Lanes that DPP leaves out take part in the next instruction again."""

    def model(before, after, wave, active):
        for lane in np.nonzero(active)[0].tolist():
            if lane % 16 and active[lane - 1]:
                after.v[12, wave, lane] = before.v[1, wave, lane - 1]
            after.v[14, wave, lane] = before.v[5, wave, lane]

    verify("v_mov_b32_dpp v12, v1 row_shr:1 row_mask:0xf bank_mask:0xf\nv_mov_b32_e32 v14, v5", model)


def test_dpp_on_floats():
    """Modifiers act on the moved value."""

    def model(before, after, wave, active):
        value = before.v.view(np.float32)
        for lane in np.nonzero(active)[0].tolist():
            source = lane // 4 * 4 + (lane + 1) % 4
            if active[source]:
                total = np.float32(-np.abs(value[1, wave, source]) + value[5, wave, lane])
                after.v[12, wave, lane] = total.view(np.uint32)

    text = "v_add_f32_dpp v12, -|v1|, v5 quad_perm:[1,2,3,0] row_mask:0xf bank_mask:0xf"
    for before, sparse in states(text):
        before.v[[1, 5]] &= np.uint32(0xBFFFFFFF)  # no infinities or NaNs
        want = before.copy()
        for wave in range(WAVES):
            model(before, want, wave, before.lanes(EXEC)[wave].tolist())
        assert want.differences(execute(text, before, sparse=sparse))[:1] == []
