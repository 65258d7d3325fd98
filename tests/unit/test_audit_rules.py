# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Each rule of waits, publication, accesses and resources on an example that holds and one that does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mori_gemm_ar.audit import RULES, KernelContract, Policy, Poll, Publish, Spelling
from mori_gemm_ar.errors import IsaError
from tests.unit.audit_texts import audited, caught, findings

SYSTEM = Policy.SYSTEM
FLAG, LOOK = Spelling("global_store_dwordx2", SYSTEM), Spelling("global_load_dwordx2", SYSTEM)
BARRIER = KernelContract("k", waves=8, releases=1, publishes=(Publish(FLAG, SYSTEM),), polls=(Poll(LOOK, SYSTEM),))

# A cross-GPU barrier of one block: wave 0 releases, tells, waits and acquires.
GOOD = """
    global_store_dwordx4 v1, v[4:7], s[0:1]
    v_readfirstlane_b32 s2, v0
    s_cmp_gt_u32 s2, 63
    s_waitcnt vmcnt(0)
    s_barrier
    s_cbranch_scc1 .LBB0_4
    buffer_wbl2 sc0 sc1
    s_waitcnt vmcnt(0)
    global_store_dwordx2 v[8:9], v[10:11], off sc0 sc1
    s_memrealtime s[4:5]
    s_waitcnt lgkmcnt(0)
    .LBB0_2:
    global_load_dwordx2 v[12:13], v[8:9], off sc0 sc1
    s_memrealtime s[6:7]
    s_waitcnt lgkmcnt(0)
    s_sub_u32 s6, s6, s4
    s_waitcnt vmcnt(0)
    v_sub_u32_e32 v2, v13, v11
    v_and_b32_e32 v2, s6, v2
    v_cmp_gt_i32_e32 vcc, 0, v2
    s_cbranch_vccnz .LBB0_2
    buffer_inv sc0 sc1
    .LBB0_4:
    s_barrier
    global_load_dword v3, v1, s[0:1]
    s_endpgm
"""


def test_the_example_holds_every_rule() -> None:
    report = audited(GOOD, BARRIER)
    assert report.ok, report.lines()
    assert [rule.name for rule in report.rules] == [rule.__name__ for rule in RULES]
    assert all(rule.__doc__ for rule in RULES)


def broken(old: str, new: str, count: int = 1) -> str:
    """The example with one thing changed."""
    assert GOOD.count(old) >= count
    return GOOD.replace(old, new, count)


# (what is changed, to what, the rule that says so, the instruction that it names)
BREAKS = {
    "the poll is plain": ("v[8:9], off sc0 sc1\n    s_memrealtime s[6:7]", "v[8:9], off\n    s_memrealtime s[6:7]",
                          "wait_loops", "global_load_dwordx2"),
    "no clock": ("v_and_b32_e32 v2, s6, v2", "v_and_b32_e32 v2, s9, v2", "bounded_waits", "global_load_dwordx2"),
    "no way out": ("s_cbranch_vccnz .LBB0_2\n", "s_branch .LBB0_2\n", "bounded_waits", "global_load_dwordx2"),
    "no acquire": ("buffer_inv sc0 sc1", "s_nop 0", "acquire_after_wait", "s_barrier"),
    "acquire for this GPU only": ("buffer_inv sc0 sc1", "buffer_inv sc1", "acquire_after_wait", "s_barrier"),
    "no release": ("buffer_wbl2 sc0 sc1", "s_nop 0", "publish_order", "global_store_dwordx2"),
    "release for this GPU only": ("buffer_wbl2 sc0 sc1", "buffer_wbl2 sc1", "publish_order", "global_store_dwordx2"),
    "the release is not waited for": ("buffer_wbl2 sc0 sc1\n    s_waitcnt vmcnt(0)", "buffer_wbl2 sc0 sc1",
                                      "publish_order", "global_store_dwordx2"),
    "stores are not waited for": ("s_waitcnt vmcnt(0)\n    s_barrier", "s_barrier", "publish_order",
                                  "global_store_dwordx2"),
    "one store may be open": ("s_waitcnt vmcnt(0)\n    s_barrier", "global_load_dword v3, v1, s[0:1]\n"
                              "    s_waitcnt vmcnt(2)\n    s_barrier", "publish_order", "global_store_dwordx2"),
    "no barrier": ("s_waitcnt vmcnt(0)\n    s_barrier", "s_waitcnt vmcnt(0)", "publish_order", "global_store_dwordx2"),
    "a store after the release": ("    global_store_dwordx2", "    global_store_dword v1, v4, s[0:1]\n"
                                  "    s_waitcnt vmcnt(0)\n    global_store_dwordx2", "publish_order",
                                  "global_store_dwordx2"),
    "a second release": ("buffer_wbl2 sc0 sc1\n", "buffer_wbl2 sc0 sc1\n    buffer_wbl2 sc0 sc1\n", "one_release",
                         "buffer_wbl2"),
    "every wave releases": ("s_cbranch_scc1 .LBB0_4", "s_nop 0", "one_release", "buffer_wbl2"),
    "a release without a scope": ("buffer_inv sc0 sc1", "buffer_inv sc0", "cache_policy", "buffer_inv"),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_example(name: str) -> None:
    old, new, rule, instruction = BREAKS[name]
    body = broken(old, new)
    report = audited(body, BARRIER)
    assert rule in report.failed, report.lines()
    placed = [text for line, text in findings(report, rule) if line]
    assert placed[0].startswith(instruction)


def test_the_wait_is_deleted_with_its_loop() -> None:
    """What a compiler did to a poll that it took for free of effects: the flag goes out and nobody waits."""
    start, end = GOOD.index("    .LBB0_2:"), GOOD.index("    buffer_inv")
    report = audited(GOOD[:start] + GOOD[end:], BARRIER)
    assert findings(report, "wait_loops") == [(0, "global_load_dwordx2 sc0 sc1")]


def test_a_wait_after_one_look_is_no_wait() -> None:
    report = audited(broken("s_cbranch_vccnz .LBB0_2", "s_nop 0"), BARRIER)
    assert "wait_loops" in report.failed


def test_a_wait_that_nobody_declared() -> None:
    report = audited(GOOD, replace(BARRIER, polls=()))
    caught(report, "wait_loops", GOOD, "global_load_dwordx2")


def test_a_publication_that_is_gone() -> None:
    body = broken("global_store_dwordx2 v[8:9], v[10:11], off sc0 sc1", "s_nop 0")
    assert findings(audited(body, BARRIER), "publish_order") == [(0, "global_store_dwordx2 sc0 sc1")]


def test_loops_over_data_are_no_waits() -> None:
    """The index decides, whatever register the data passes through."""
    body = """
        s_mov_b64 s[2:3], 0
        .LBB0_1:
        global_load_dword v2, v1, s[0:1]
        s_waitcnt vmcnt(0)
        global_store_dword v1, v2, s[0:1]
        v_add_u32_e32 v1, 64, v1
        v_mov_b32_e32 v2, v1
        v_cmp_le_i32_e32 vcc, s4, v2
        s_or_b64 s[2:3], vcc, s[2:3]
        s_andn2_b64 exec, exec, s[2:3]
        s_cbranch_execnz .LBB0_1
    """
    report = audited(body, KernelContract("k", polls=()))
    assert not {"wait_loops", "bounded_waits"} & set(report.failed), report.lines()
    # The same loop, if what was loaded decides.
    waits = body.replace("v_mov_b32_e32 v2, v1\n", "s_nop 0\n")
    caught(audited(waits), "wait_loops", waits, "global_load_dword")


def test_a_lock_without_a_bound() -> None:
    body = """
        .LBB0_1:
        global_atomic_cmpswap v2, v1, v[4:5], s[0:1] sc0
        s_waitcnt vmcnt(0)
        v_cmp_ne_u32_e32 vcc, 0, v2
        s_cbranch_vccnz .LBB0_1
    """
    caught(audited(body), "bounded_waits", body, "global_atomic_cmpswap")


def test_a_condition_chosen_by_a_branch_counts() -> None:
    body = """
        .LBB0_1:
        s_mov_b32 s4, 0
        global_load_dword v2, v1, s[0:1] sc1
        s_waitcnt vmcnt(0)
        v_readfirstlane_b32 s5, v2
        s_cmp_eq_u32 s5, 0
        s_cbranch_scc1 .LBB0_2
        s_mov_b32 s4, 1
        .LBB0_2:
        s_cmp_eq_u32 s4, 0
        s_cbranch_scc1 .LBB0_1
    """
    caught(audited(body), "bounded_waits", body, "global_load_dword")


COUNTER = Spelling("global_atomic_inc", Policy.SC0)
ELECTION = """
    global_store_dwordx4 v1, v[4:7], s[0:1]
    s_waitcnt vmcnt(0)
    s_barrier
    v_cmp_eq_u32_e32 vcc, 0, v0
    s_and_saveexec_b64 s[2:3], vcc
    s_cbranch_execz .LBB0_2
    buffer_wbl2 sc1
    s_waitcnt vmcnt(0)
    global_atomic_inc v2, v1, v3, s[0:1] sc0
    s_waitcnt vmcnt(0)
    buffer_inv sc1
    .LBB0_2:
    s_or_b64 exec, exec, s[2:3]
"""


def test_an_electing_counter_is_the_only_release() -> None:
    contract = KernelContract("k", waves=8, releases=1, publishes=(Publish(COUNTER, Policy.SC1),))
    assert audited(ELECTION, contract).ok
    relaxed = ELECTION.replace("buffer_wbl2 sc1\n    s_waitcnt vmcnt(0)\n", "")
    assert {"publish_order", "one_release"} <= set(audited(relaxed, contract).failed)
    # A fence for each wave in front of it changes nothing but the time.
    fenced = ELECTION.replace(
        "s_waitcnt vmcnt(0)\n    s_barrier", "buffer_wbl2 sc1\n    s_waitcnt vmcnt(0)\n    s_barrier"
    )
    assert audited(fenced, contract).failed == ("one_release",)


def test_writeback_wait_needs_no_contract() -> None:
    body = ELECTION.replace("buffer_wbl2 sc1\n    s_waitcnt vmcnt(0)\n", "buffer_wbl2 sc1\n    s_waitcnt vmcnt(1)\n")
    caught(audited(body), "writeback_wait", body, "global_atomic_inc")
    assert findings(audited(ELECTION), "writeback_wait") == []


# ---- accesses -----------------------------------------------------------------------------------------------------

RECORD = Spelling("global_store_dwordx4", SYSTEM)


def test_an_error_record_arrives_in_order() -> None:
    body = """
        global_store_dwordx4 v0, v[4:7], s[0:1] offset:16 sc0 sc1
        {wait}
        global_store_dwordx4 v0, v[8:11], s[0:1] sc0 sc1
    """
    contract = KernelContract("k", scoped=((RECORD, 2),))
    assert audited(body.format(wait="s_waitcnt vmcnt(0)"), contract).ok
    late = body.format(wait="s_nop 0")
    caught(audited(late, contract), "store_order", late, "global_store_dwordx4", number=2)


def test_the_cache_policies_are_those_declared() -> None:
    body = "global_store_dwordx4 v0, v[4:7], s[0:1] sc0 sc1"
    assert audited(body, KernelContract("k", scoped=((RECORD, 1),))).ok
    wrong = body.replace("sc0 sc1", "nt")
    report = audited(wrong, KernelContract("k", scoped=((RECORD, 1),)))
    assert findings(report, "cache_policy") == [(0, str(RECORD)), (6, wrong)]
    assert "declares" in audited(body, KernelContract("k", scoped=())).lines()[0]


def test_stores_are_as_wide_as_declared() -> None:
    wide = Spelling("buffer_store_dwordx4")
    contract = KernelContract("k", stores=((wide, 2),))
    body = "\n".join(["buffer_store_dwordx4 v[4:7], v0, s[4:7], 0 offen"] * 2)
    assert audited(body, contract).ok
    assert findings(audited(body.replace("x4 v[4:7]", "x2 v[4:5]", 1), contract), "store_widths") == [
        (0, str(wide)),
        (6, "buffer_store_dwordx2 v[4:5], v0, s[4:7], 0 offen"),
    ]


def test_no_atomic_reaches_a_peer() -> None:
    body = "global_atomic_add v0, v1, s[0:1]{scope}"
    assert audited(body.format(scope="")).ok
    for scope in (" sc1", " sc0 sc1"):
        text = body.format(scope=scope) if scope == " sc1" else f"global_atomic_add v2, v0, v1, s[0:1]{scope}"
        caught(audited(text), "peer_atomics", text, "global_atomic_add")


# ---- resources ----------------------------------------------------------------------------------------------------


def test_no_spills() -> None:
    assert audited("s_nop 0").ok
    assert findings(audited("s_nop 0", vgpr_spills=3), "no_spills") == [(0, "vgpr_spill_count")]
    assert findings(audited("s_nop 0", sgpr_spills=1), "no_spills") == [(0, "sgpr_spill_count")]
    assert findings(audited("s_nop 0", scratch=16), "no_spills") == [(0, "scratch")]
    body = "scratch_store_dword off, v4, off offset:12"
    caught(audited(body), "no_spills", body, "scratch_store_dword")


def test_register_ceilings() -> None:
    contract = KernelContract("k", waves=8, max_vgpr=64, max_sgpr=40, lds_bytes=4)
    assert audited("s_nop 0", contract, vgpr=64, sgpr=40, lds=4).ok
    for changed, what in (
        ({"vgpr": 65}, "vgpr_count"),
        ({"sgpr": 41}, "sgpr_count"),
        ({"lds": 8}, "lds"),
        ({"waves": 4}, "workgroup"),
    ):
        values = {"vgpr": 64, "sgpr": 40, "lds": 4, **changed}
        assert findings(audited("s_nop 0", contract, **values), "register_ceiling") == [(0, what)]


WATERFALL = """
    s_mov_b64 s[2:3], exec
    .LBB0_1:
    v_readfirstlane_b32 s4, v2
    v_readfirstlane_b32 s5, v3
    v_cmp_eq_u64_e32 vcc, s[4:5], v[2:3]
    s_and_saveexec_b64 s[8:9], vcc
    {access}
    s_xor_b64 exec, exec, s[8:9]
    s_cbranch_execnz .LBB0_1
    s_mov_b64 exec, s[2:3]
"""


def test_no_waterfall_around_wide_accesses() -> None:
    body = WATERFALL.format(access="global_load_dwordx4 v[4:7], v1, s[4:5]")
    caught(audited(body), "no_waterfall", body, "global_load_dwordx4")
    assert findings(audited(WATERFALL.format(access="global_load_dword v4, v1, s[4:5]")), "no_waterfall") == []
    # The wave's own number in the address of a plain loop is no waterfall.
    plain = """
        .LBB0_1:
        v_readfirstlane_b32 s4, v2
        global_load_dwordx4 v[4:7], v1, s[4:5]
        s_add_i32 s6, s6, 1
        s_cmp_lt_u32 s6, 8
        s_cbranch_scc1 .LBB0_1
    """
    assert findings(audited(plain), "no_waterfall") == []


def test_a_contract_checks_itself() -> None:
    with pytest.raises(IsaError, match="waves=0 must be at least 1"):
        KernelContract("k", waves=0)
