# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""lds_copies and lds_handover: an 8-wave, double-buffered copy-and-read kernel, and small texts."""

from __future__ import annotations

import pytest

from mori_gemm_ar.audit import AuditReport
from tests.unit.audit_texts import audited, caught, findings, line_of

BUFFER = 16384  # bytes of one of two buffers: two copies of 1024 bytes by each of eight waves


def _copies(buffer: int) -> str:
    """Two copies of this wave into a buffer; s8 holds 1024 times the wave's number."""
    lines = []
    for part in (0, BUFFER // 2):
        lines += [f"s_add_u32 m0, s8, {buffer * BUFFER + part:#x}", "buffer_load_dwordx4 v1, s[4:7], 0 offen lds"]
    return "\n".join(lines)


def _reads(buffer: int) -> str:
    """Reads of what the next wave copied: v2 points 1024 bytes further, round the buffer."""
    base = buffer * BUFFER
    return f"ds_read_b128 v[4:7], v2 offset:{base}\nds_read_b128 v[8:11], v2 offset:{base + BUFFER // 2}"


def pipelined(steady: int, drain: int = 0, stagger: str = "", close: str = "") -> str:
    """Steps of K: wait for the buffer, barrier, read it, barrier, refill it, in turns of two buffers.

    `steady` and `drain` are the vmcnt operands; two copies may stay in flight: those into the other buffer.
    """
    turn = "\n".join(
        f"s_waitcnt vmcnt({steady})\ns_barrier\n{_reads(b)}\ns_waitcnt lgkmcnt(0)\ns_barrier\n{_copies(b)}"
        for b in (0, 1)
    )
    end = "\n".join(
        f"s_waitcnt vmcnt({count})\ns_barrier\n{_reads(b)}\ns_waitcnt lgkmcnt(0)"
        for b, count in ((0, steady), (1, drain))
    )
    return f"""
        v_readfirstlane_b32 s8, v0
        s_lshl_b32 s8, s8, 4
        v_add_u32_e32 v2, 64, v0
        v_and_b32_e32 v2, 0x1ff, v2
        v_lshlrev_b32_e32 v2, 4, v2
        {_copies(0)}
        {_copies(1)}
        {stagger}
        s_mov_b32 s9, 0
        .LBB0_1:
        {turn}
        s_add_i32 s9, s9, 1
        s_cmp_lt_u32 s9, s10
        s_cbranch_scc1 .LBB0_1
        {close}
        {end}
    """


def copies(report: AuditReport) -> list[tuple[int, str]]:
    return findings(report, "lds_copies")


def test_the_derived_bound_is_clean() -> None:
    report = audited(pipelined(2), lds=2 * BUFFER)
    assert report.ok, report.lines()


@pytest.mark.parametrize("count", [3, 4, 6])
def test_one_copy_too_many_in_flight(count: int) -> None:
    body = pipelined(count)
    report = audited(body, lds=2 * BUFFER)
    lines = {line for line, text in copies(report) if text == f"s_waitcnt vmcnt({count})"}
    assert line_of(body, "s_waitcnt vmcnt") in lines
    assert any("must be at most vmcnt(2)" in line for line in report.lines())


def test_the_last_step_has_fewer_copies_behind_it() -> None:
    """The wait of the steady state does not cover the last buffer: nothing younger is in flight any more."""
    body = pipelined(2, drain=2)
    report = audited(body, lds=2 * BUFFER)
    last = line_of(body, "s_waitcnt vmcnt(2)", 4)
    assert {line for line, _ in copies(report)} == {last}
    assert any("vmcnt(2) must be at most vmcnt(1)" in line for line in report.lines())
    assert any("vmcnt(2) must be at most vmcnt(0)" in line for line in report.lines())


def test_refilled_in_the_interval_in_which_it_is_read() -> None:
    body = pipelined(2).replace("s_waitcnt lgkmcnt(0)\ns_barrier", "s_waitcnt lgkmcnt(0)", 1)
    assert any("refills a buffer" in line for line in audited(body, lds=2 * BUFFER).lines())


HALF = "v_lshrrev_b32_e32 v3, 8, v0\nv_cmp_eq_u32_e64 s[2:3], 0, v3\ns_and_b64 vcc, exec, s[2:3]\n"


def test_half_waves_a_barrier_apart_are_compared_as_they_run() -> None:
    """With the second half a barrier ahead, a barrier pairs 'read' of one half with 'refill' of the other."""
    stagger = HALF + "s_cbranch_vccnz .LBB0_0\ns_barrier\n.LBB0_0:"
    close = HALF + "s_cbranch_vccz .LBB0_2\ns_barrier\n.LBB0_2:"
    report = audited(pipelined(2, stagger=stagger, close=close), lds=2 * BUFFER)
    assert findings(report, "barrier_balance") == []
    assert copies(report) != []


def test_own_copies_need_a_wait_too() -> None:
    body = """
        v_readfirstlane_b32 s8, v0
        s_lshl_b32 m0, s8, 4
        buffer_load_dwordx4 v1, s[4:7], 0 offen lds
        v_lshlrev_b32_e32 v2, 4, v0
        {wait}
        ds_read_b128 v[4:7], v2
    """
    assert copies(audited(body.format(wait="s_waitcnt vmcnt(0)"))) == []
    late = body.format(wait="s_nop 0")
    caught(audited(late), "lds_copies", late, "buffer_load_dwordx4")


def test_an_address_that_nobody_can_derive_is_a_finding() -> None:
    body = """
        v_readfirstlane_b32 s8, v0
        s_lshl_b32 m0, s8, 4
        buffer_load_dwordx4 v1, s[4:7], 0 offen lds
        {load}
        ds_read_b128 v[4:7], v2
        s_waitcnt vmcnt(0)
    """
    unknown = body.format(load="global_load_dword v2, v1, s[0:1]\ns_waitcnt vmcnt(0)\ns_barrier")
    assert copies(audited(unknown)) == []  # nothing is in flight any more
    unknown = body.format(load="ds_read_b32 v2, v9\ns_waitcnt lgkmcnt(0)").replace("v9", "v0", 1)
    assert (line_of(unknown, "ds_read_b128"), "ds_read_b128 v[4:7], v2") in copies(audited(unknown))


def test_handover_by_order() -> None:
    body = """
        ds_write_b32 v1, v2
        ds_write_b32 v1, v2 offset:4
        {wait}
        s_barrier
        ds_read_b32 v3, v1
    """
    assert findings(audited(body.format(wait="s_waitcnt lgkmcnt(0)")), "lds_handover") == []
    for wait in ("s_nop 0", "s_waitcnt lgkmcnt(1)", "s_waitcnt vmcnt(0)"):
        text = body.format(wait=wait)
        caught(audited(text), "lds_handover", text, "s_barrier")


def test_handover_by_address() -> None:
    """Where copies make addresses known, a barrier that hands nothing on may be entered with writes under way."""
    body = """
        v_readfirstlane_b32 s8, v0
        s_lshl_b32 m0, s8, 4
        buffer_load_dwordx4 v1, s[4:7], 0 offen lds
        s_waitcnt vmcnt(0)
        v_lshlrev_b32_e32 v2, 2, v0
        v_xor_b32_e32 v3, 0x100, v2
        ds_write_b32 v2, v4 offset:16384
        {wait}
        s_barrier
        ds_read_b32 v5, {address} offset:16384
    """
    assert findings(audited(body.format(wait="s_waitcnt lgkmcnt(0)", address="v3")), "lds_handover") == []
    assert findings(audited(body.format(wait="s_nop 0", address="v2")), "lds_handover") == []  # each wave its own
    late = body.format(wait="s_nop 0", address="v3")
    caught(audited(late), "lds_handover", late, "ds_write_b32")
