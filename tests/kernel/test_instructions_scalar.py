# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Scalar instructions against Python integers, and what steers the program."""

from __future__ import annotations

import numpy as np
import pytest

from mori_gemm_ar.emulator import TICKS_PER_SECOND
from mori_gemm_ar.errors import IsaError
from tests.kernel.instruction_check import check
from tests.kernel.instructions import EXEC, VCC, State, execute
from tests.kernel.table_scalar import ROWS

WAVES = 6
HARMLESS = [
    "s_nop 0", "s_nop 7", "s_setprio 1", "s_setprio 0", "s_sleep 2", "s_barrier", "s_waitcnt vmcnt(0)",
         "s_waitcnt lgkmcnt(0)",
    "s_waitcnt vmcnt(3) lgkmcnt(1)", "s_waitcnt vmcnt(0) expcnt(0) lgkmcnt(0)", "s_waitcnt 0",
]  # fmt: skip
COVERED = {text.split()[0] for text in HARMLESS} | {"s_memtime", "s_memrealtime", "s_getreg_b32"}


def state(seed: int = 0) -> State:
    return State.random(np.random.default_rng(seed), WAVES)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_scalar(row):
    for form in row.forms:
        check(row, form)


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless(text):
    for sparse in (False, True):
        before = state()
        assert before.differences(execute(text, before, sparse=sparse)) == []


@pytest.mark.parametrize("name", ["s_memtime", "s_memrealtime"])
def test_clock_runs_at_100_mhz_and_never_backwards(name):
    """The virtual clock moves between rounds, which a sleep ends."""
    after = execute(f"{name} s[20:21]\ns_sleep 1\n{name} s[22:23]", state())
    first, second = after.pair(20), after.pair(22)
    assert (first <= second).all()
    assert (second - first < TICKS_PER_SECOND).all()


@pytest.mark.parametrize(("text", "mask"), [("", 0xFFFFFFFF), (", 0, 4", 15), (", 1, 2", 3)])
def test_die_of_a_workgroup(text, mask):
    """Workgroups are dealt to eight dies in turn; fields are offset and size."""
    for workgroup in (0, 5, 14):
        before = state()
        want = before.copy()
        want.s[20] = (workgroup % 8 >> (1 if ", 1" in text else 0)) & mask
        after = execute(f"s_getreg_b32 s20, hwreg(HW_REG_XCC_ID{text})", before, workgroup=workgroup)
        assert want.differences(after) == []


@pytest.mark.parametrize("text", ["s_getreg_b32 s20, hwreg(HW_REG_MODE, 0, 4)", "s_waitcnt foocnt(1)", "s_sethalt 1"])
def test_refused(text):
    with pytest.raises(IsaError):
        execute(text, state())


CONDITIONS = {
    "scc0": lambda s: ~s.scc, "scc1": lambda s: s.scc, "vccz": lambda s: s.pair(VCC) == 0,
         "vccnz": lambda s: s.pair(VCC) != 0,
    "execz": lambda s: s.pair(EXEC) == 0, "execnz": lambda s: s.pair(EXEC) != 0,
}  # fmt: skip


@pytest.mark.parametrize("condition", CONDITIONS)
def test_branch(condition):
    """Each wave goes its own way; both ways meet again."""
    text = "\n".join([f"s_cbranch_{condition} .LBB0_1", "s_mov_b32 s20, 1", "s_branch .LBB0_2", ".LBB0_1:",
                      "s_mov_b32 s20, 2", ".LBB0_2:", "s_mov_b32 s21, 3"])  # fmt: skip
    for sparse in (False, True):
        before = state(len(condition))
        before.set_pair(VCC, np.array([0, 1, 0, 1 << 63, 5, 0], np.uint64))
        before.set_pair(EXEC, np.array([1, 0, 0, 7, 0, 1 << 40], np.uint64))
        before.scc[:] = [True, True, False, False, True, False]
        want = before.copy()
        want.s[20], want.s[21] = np.where(CONDITIONS[condition](before), 2, 1), 3
        assert want.differences(execute(text, before, sparse=sparse)) == []


def test_loop():
    """Waves leave a loop after different numbers of turns."""
    before = state()
    before.s[3] = [1, 5, 2, 9, 1, 30]
    want = before.copy()
    want.s[3], want.s[20], want.scc[:] = 0, before.s[20] + 7 * before.s[3], False
    text = ".LBB0_1:\ns_add_u32 s20, s20, 7\ns_sub_u32 s3, s3, 1\ns_cmp_lg_u32 s3, 0\ns_cbranch_scc1 .LBB0_1"
    assert want.differences(execute(text, before)) == []
