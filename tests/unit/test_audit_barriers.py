# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""barrier_balance: every wave of eight, half-waves a barrier apart, loops, and LDS words that all waves agree on."""

from __future__ import annotations

import pytest

from mori_gemm_ar.audit import KernelContract, Policy, Publish, Spelling
from tests.unit.audit_texts import audited, findings, line_of

FLAG = Spelling("global_store_dword", Policy.SC1)
PUBLISHES = KernelContract("k", waves=8, publishes=(Publish(FLAG, Policy.PLAIN),))
HALF = """
    v_lshrrev_b32_e32 v5, 8, v0
    v_cmp_eq_u32_e64 s[2:3], 0, v5
    s_and_b64 vcc, exec, s[2:3]
"""  # vcc: all lanes in waves 0 to 3, none in waves 4 to 7


def balance(body: str, contract: KernelContract | None = None, waves: int = 8) -> list[tuple[int, str]]:
    return findings(audited(body, contract, waves=waves), "barrier_balance")


STAGGERED = (
    HALF
    + """
    s_cbranch_vccnz .LBB0_1
    s_barrier
    .LBB0_1:
    s_mov_b32 s4, 0
    .LBB0_2:
    s_barrier
    s_nop 0
    s_barrier
    s_add_i32 s4, s4, 1
    s_cmp_lt_u32 s4, s5
    s_cbranch_scc1 .LBB0_2
    {closing}
    s_waitcnt vmcnt(0)
    s_barrier
    v_cmp_eq_u32_e32 vcc, 0, v0
    s_and_saveexec_b64 s[2:3], vcc
    s_cbranch_execz .LBB0_4
    global_store_dword v1, v2, s[0:1] sc1
    .LBB0_4:
    s_endpgm
"""
)
CLOSED = STAGGERED.format(closing=HALF + "    s_cbranch_vccz .LBB0_3\n    s_barrier\n    .LBB0_3:")


def test_a_stagger_that_is_closed_again() -> None:
    """Waves 4 to 7 run a barrier ahead through the loop, and waves 0 to 3 make up for it before the publication."""
    assert balance(CLOSED, PUBLISHES) == []


def test_a_stagger_that_is_never_closed() -> None:
    open_ = STAGGERED.format(closing="s_nop 0")
    report = audited(open_, PUBLISHES)
    found = findings(report, "barrier_balance")
    assert (line_of(open_, "global_store_dword"), "global_store_dword v1, v2, s[0:1] sc1") in found
    assert any(text == "s_barrier" for _, text in found)  # and one half leaves while the other waits
    assert any("waves 0 and 4" in line for line in report.lines())


def test_balanced_but_not_at_one_place() -> None:
    """As many barriers for all, but the publishing wave has passed another one than the waves that still store."""
    body = (
        HALF
        + """
        s_cbranch_vccz .LBB0_2
        s_barrier
        global_store_dword v1, v2, s[0:1] sc1
        s_branch .LBB0_3
        .LBB0_2:
        s_barrier
        global_store_dwordx4 v1, v[4:7], s[0:1]
        .LBB0_3:
        s_endpgm
    """
    )
    assert balance(body, PUBLISHES) == [
        (line_of(body, "global_store_dword v1"), "global_store_dword v1, v2, s[0:1] sc1")
    ]
    assert balance(body) == []  # as long as nothing is published, such barriers only pace


def test_a_loop_that_gains_on_the_other_half() -> None:
    body = (
        """
        s_mov_b32 s4, 0
        .LBB0_1:
        s_barrier
    """
        + HALF
        + """
        s_cbranch_vccz .LBB0_2
        s_barrier
        .LBB0_2:
        s_add_i32 s4, s4, 1
        s_cmp_lt_u32 s4, s5
        s_cbranch_scc1 .LBB0_1
    """
    )
    report = audited(body)
    assert "the loop around it must hold as many barriers for each wave: wave 0 2, wave 4 1" in "\n".join(
        report.lines()
    )


def test_all_waves_may_skip_a_barrier_together() -> None:
    body = """
        s_cmp_eq_u32 s4, 0
        s_cbranch_scc1 .LBB0_1
        s_barrier
        .LBB0_1:
        s_barrier
    """
    assert balance(body) == []
    # s4 an argument: the same for all. What a wave loads may differ.
    loaded = "global_load_dword v1, v0, s[0:1]\n    s_waitcnt vmcnt(0)\n    v_readfirstlane_b32 s4, v1\n" + body
    assert balance(loaded) != []


def test_a_branch_on_lanes_must_not_hold_a_barrier() -> None:
    body = """
        v_cmp_gt_u32_e32 vcc, s4, v0
        s_and_saveexec_b64 s[2:3], vcc
        s_cbranch_execz .LBB0_1
        s_barrier
        .LBB0_1:
        s_or_b64 exec, exec, s[2:3]
    """
    assert balance(body) == [(line_of(body, "s_barrier"), "s_barrier")]


def test_a_loop_over_lanes_without_a_barrier_is_fine() -> None:
    body = """
        s_mov_b64 s[2:3], 0
        v_mov_b32_e32 v1, v0
        .LBB0_1:
        v_add_u32_e32 v1, s4, v1
        v_cmp_le_u32_e32 vcc, s5, v1
        s_or_b64 s[2:3], vcc, s[2:3]
        s_andn2_b64 exec, exec, s[2:3]
        s_cbranch_execnz .LBB0_1
        s_or_b64 exec, exec, s[2:3]
        s_barrier
    """
    assert balance(body) == []
    assert balance(body.replace("v_cmp_le_u32_e32", "s_barrier\n        v_cmp_le_u32_e32")) != []


AGREED = """
    v_mov_b32_e32 v1, 0
    ds_write_b32 v1, v1
    .LBB0_1:
    s_waitcnt lgkmcnt(0)
    s_barrier
    v_readfirstlane_b32 s2, v0
    s_cmp_gt_u32 s2, 63
    s_cbranch_scc1 .LBB0_2
    global_load_dword v2, v0, s[0:1] sc1
    s_waitcnt vmcnt(0)
    ds_write_b32 v1, v2
    s_waitcnt lgkmcnt(0)
    .LBB0_2:
    s_barrier
    ds_read_b32 v3, v1
    s_waitcnt lgkmcnt(0)
    v_readfirstlane_b32 s3, v3
    s_cmp_lg_u32 s3, 0
    s_cbranch_scc1 .LBB0_1
"""


def test_what_all_waves_read_between_the_same_barriers_is_agreed() -> None:
    assert balance(AGREED) == []


@pytest.mark.parametrize("number", [1, 2])
def test_without_a_barrier_around_it_a_word_is_not_agreed(number: int) -> None:
    parts = AGREED.split("s_barrier")
    body = "s_barrier".join(parts[:number]) + "s_nop 0" + "s_barrier".join(parts[number:])
    assert balance(body) != []


def test_each_wave_number_is_followed() -> None:
    """Barriers that wave 5 alone skips, spelled in four ways."""
    for condition in (
        "v_lshrrev_b32_e32 v1, 6, v0\n v_readfirstlane_b32 s2, v1\n s_cmp_eq_u32 s2, 5",
        "v_readfirstlane_b32 s2, v0\n s_lshr_b32 s2, s2, 6\n s_cmp_eq_u32 s2, 5",
        "v_bfe_u32 v1, v0, 6, 3\n v_xor_b32_e32 v1, 5, v1\n v_readfirstlane_b32 s2, v1\n s_cmp_eq_u32 s2, 0",
        "v_and_b32_e32 v1, 0x1c0, v0\n v_readfirstlane_b32 s2, v1\n s_cmpk_eq_i32 s2, 0x140",
    ):
        body = f"{condition}\n s_cbranch_scc1 .LBB0_1\n s_barrier\n .LBB0_1:\n s_nop 0"
        report = audited(body)
        assert [text for _, text in findings(report, "barrier_balance")] == ["s_barrier"], condition
        assert "waves 0 and 5" in report.lines()[0]
        # Five waves have no wave 5: the same text is balanced there.
        assert balance(body, waves=5) == []
