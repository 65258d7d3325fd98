# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""register_waits: the wait counters of gfx950 on straight code, joins and loops."""

from __future__ import annotations

import pytest

from tests.unit.audit_texts import audited, caught, findings

LOAD_A = "global_load_dword v1, v0, s[0:1]"
LOAD_B = "global_load_dword v2, v0, s[0:1] offset:4"
USE_A, USE_B = "v_mov_b32_e32 v5, v1", "v_mov_b32_e32 v6, v2"

GOOD = {
    "waited": [LOAD_A, "s_waitcnt vmcnt(0)", USE_A],
    "the older of two": [LOAD_A, LOAD_B, "s_waitcnt vmcnt(1)", USE_A, "s_waitcnt vmcnt(0)", USE_B],
    "a store is younger too": [LOAD_A, "global_store_dword v0, v3, s[0:1]", "s_waitcnt vmcnt(1)", USE_A],
    "a copy to LDS is younger too": [LOAD_A, "buffer_load_dword v0, s[4:7], 0 offen lds", "s_waitcnt vmcnt(1)", USE_A],
    "overwritten by a younger load": [LOAD_A, LOAD_A, "s_waitcnt vmcnt(0)", USE_A],
    "LDS in order": ["ds_read_b32 v1, v0", "ds_read_b32 v2, v0", "s_waitcnt lgkmcnt(1)", USE_A],
    # A scalar load makes the count larger, never smaller.
    "LDS beside a scalar load": ["ds_read_b32 v1, v0", "ds_read_b32 v2, v0", "s_load_dword s4, s[0:1], 0x0",
                                 "s_waitcnt lgkmcnt(1)", USE_A],
    "scalar load": ["s_load_dword s4, s[0:1], 0x0", "s_waitcnt lgkmcnt(0)", "s_mov_b32 s5, s4"],
    "flat": ["flat_load_dword v1, v[2:3]", "s_waitcnt vmcnt(0) lgkmcnt(0)", USE_A],
    "atomic": ["global_atomic_add v1, v0, v3, s[0:1] sc0", "s_waitcnt vmcnt(0)", USE_A],
    "counts start at none": [USE_A, "s_waitcnt vmcnt(5)"],
}  # fmt: skip

BAD = {
    "no wait": ([LOAD_A, USE_A], USE_A),
    "the younger of two": ([LOAD_A, LOAD_B, "s_waitcnt vmcnt(1)", USE_B], USE_B),
    "the wrong counter": ([LOAD_A, "s_waitcnt lgkmcnt(0)", USE_A], USE_A),
    "a load as an address": ([LOAD_A, "global_store_dword v1, v3, s[0:1]"], "global_store_dword"),
    "stored before it came": ([LOAD_A, "global_store_dword v0, v1, s[0:1]"], "global_store_dword"),
    "overwritten while it comes": ([LOAD_A, "v_mov_b32_e32 v1, 0"], "v_mov_b32_e32 v1, 0"),
    "overwritten through another counter": ([LOAD_A, "ds_read_b32 v1, v0"], "ds_read_b32"),
    "scalar loads come in any order": (
        ["s_load_dword s4, s[0:1], 0x0", "s_load_dword s5, s[0:1], 0x4", "s_waitcnt lgkmcnt(1)", "s_mov_b32 s6, s4"],
        "s_mov_b32 s6",
    ),
    "the clock": (["s_memrealtime s[4:5]", "s_mov_b32 s6, s4"], "s_mov_b32 s6"),
    "flat needs both counters": (["flat_load_dword v1, v[2:3]", "s_waitcnt vmcnt(0)", USE_A], USE_A),
    "flat does not age others": ([LOAD_A, "flat_load_dword v7, v[2:3]", "s_waitcnt vmcnt(1)", USE_A], USE_A),
    "a matrix operand": (
        ["ds_read_b64 v[4:5], v0", "v_mfma_f32_16x16x32_fp8_fp8 v[8:11], v[4:5], v[6:7], 0"], "v_mfma"
    ),
    "half of a pair": (["global_load_dwordx2 v[2:3], v0, s[0:1]", "v_mov_b32_e32 v6, v3"], "v_mov_b32_e32 v6, v3"),
    "a lane mask": (["s_load_dwordx2 s[4:5], s[0:1], 0x0", "s_and_b64 vcc, exec, s[4:5]"], "s_and_b64"),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_covered(name: str) -> None:
    assert findings(audited("\n".join(GOOD[name])), "register_waits") == []


@pytest.mark.parametrize("name", BAD)
def test_not_covered(name: str) -> None:
    lines, culprit = BAD[name]
    body = "\n".join(lines)
    caught(audited(body), "register_waits", body, culprit)


def test_one_way_without_a_wait_is_enough() -> None:
    body = f"""
        {LOAD_A}
        s_cmp_eq_u32 s4, 0
        s_cbranch_scc1 .LBB0_2
        s_waitcnt vmcnt(0)
        .LBB0_2:
        {USE_A}
    """
    caught(audited(body), "register_waits", body, USE_A)


def test_the_shorter_way_counts() -> None:
    """On one way two operations are younger, on the other only one."""
    body = f"""
        {LOAD_A}
        {LOAD_B}
        s_cmp_eq_u32 s4, 0
        s_cbranch_scc1 .LBB0_2
        global_store_dword v0, v3, s[0:1]
        .LBB0_2:
        s_waitcnt vmcnt({{count}})
        {USE_A}
    """
    assert findings(audited(body.format(count=1)), "register_waits") == []
    caught(audited(body.format(count=2)), "register_waits", body, USE_A)


def test_values_that_come_round_a_loop() -> None:
    body = """
        s_mov_b32 s4, 0
        .LBB0_1:
        v_add_u32_e32 v5, v1, v5
        global_load_dword v1, v0, s[0:1]
        {wait}
        s_add_i32 s4, s4, 1
        s_cmp_lt_u32 s4, 8
        s_cbranch_scc1 .LBB0_1
    """
    assert findings(audited(body.format(wait="s_waitcnt vmcnt(0)")), "register_waits") == []
    caught(audited(body.format(wait="s_nop 0")), "register_waits", body, "v_add_u32_e32 v5")


def test_a_prefetch_may_stay_open_round_a_loop() -> None:
    """Two buffers in turn: each iteration waits for all but the load that it just issued."""
    body = """
        global_load_dword v1, v0, s[0:1]
        .LBB0_1:
        global_load_dword v2, v0, s[0:1]
        s_waitcnt vmcnt({first})
        v_add_u32_e32 v5, v1, v5
        global_load_dword v1, v0, s[0:1]
        s_waitcnt vmcnt({second})
        v_add_u32_e32 v6, v2, v6
        s_cmp_lt_u32 s4, 8
        s_cbranch_scc1 .LBB0_1
    """
    assert findings(audited(body.format(first=1, second=1)), "register_waits") == []
    caught(audited(body.format(first=2, second=1)), "register_waits", body, "v_add_u32_e32 v5")
    caught(audited(body.format(first=1, second=2)), "register_waits", body, "v_add_u32_e32 v6")


def test_more_operations_than_a_wait_can_count() -> None:
    stores = ["global_store_dword v0, v3, s[0:1]"] * 70
    assert findings(audited("\n".join([LOAD_A, *stores, "s_waitcnt vmcnt(62)", USE_A])), "register_waits") == []
    body = "\n".join([LOAD_A, *stores, USE_A])
    caught(audited(body), "register_waits", body, USE_A)
