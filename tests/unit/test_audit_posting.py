# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Work for copy engines under audit: an example that holds, and one that does not for each part."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mori_gemm_ar.audit import KernelContract, Policy, Poll, Posts, Publish, Spelling
from tests.unit.audit_texts import audited, findings

FLAG, LOOK = Spelling("global_store_dwordx2", Policy.SYSTEM), Spelling("global_load_dwordx2", Policy.SYSTEM)
SENDER = KernelContract(
    "k",
    waves=8,
    releases=1,
    publishes=(Publish(FLAG, Policy.SC1),),
    polls=(Poll(LOOK, Policy.SYSTEM),),
    posts=Posts(1),
)

# Wave 0 releases what the block wrote, posts in its turn, drains and raises a flag.
GOOD = """
    global_store_dwordx4 v1, v[4:7], s[0:1]
    v_readfirstlane_b32 s2, v0
    s_cmp_gt_u32 s2, 63
    s_waitcnt vmcnt(0)
    s_barrier
    s_cbranch_scc1 .LBB0_9
    buffer_wbl2 sc1
    s_waitcnt vmcnt(0)
    global_atomic_add_x2 v[20:21], v[8:9], v[10:11], off sc0
    s_memrealtime s[4:5]
    s_waitcnt vmcnt(0) lgkmcnt(0)
    .LBB0_2:
    global_load_dwordx2 v[12:13], v[14:15], off sc1
    global_load_dwordx2 v[16:17], v[18:19], off sc0 sc1
    s_memrealtime s[6:7]
    s_waitcnt lgkmcnt(0)
    s_sub_u32 s6, s6, s4
    s_waitcnt vmcnt(0)
    v_sub_u32_e32 v2, v12, v20
    v_or_b32_e32 v2, v2, v16
    v_and_b32_e32 v2, s6, v2
    v_cmp_gt_i32_e32 vcc, 0, v2
    s_cbranch_vccnz .LBB0_2
    v_cmp_eq_u32_e32 vcc, v12, v20
    s_and_saveexec_b64 s[8:9], vcc
    s_cbranch_execz .LBB0_4
    global_store_dwordx4 v[22:23], v[24:27], off
    global_store_dwordx4 v[22:23], v[28:31], off offset:16
    s_waitcnt vmcnt(0)
    global_store_dwordx2 v[32:33], v[34:35], off sc1
    global_store_dwordx2 v[36:37], v[34:35], off sc0 sc1
    s_waitcnt vmcnt(0)
    global_store_dwordx2 v[14:15], v[34:35], off sc1
    .LBB0_4:
    s_or_b64 exec, exec, s[8:9]
    v_cmp_ne_u32_e32 vcc, v12, v20
    s_cbranch_vccnz .LBB0_2
    .LBB0_6:
    global_load_dwordx2 v[16:17], v[18:19], off sc0 sc1
    s_memrealtime s[6:7]
    s_waitcnt lgkmcnt(0)
    s_sub_u32 s6, s6, s4
    s_waitcnt vmcnt(0)
    v_sub_u32_e32 v2, v16, v34
    v_and_b32_e32 v2, s6, v2
    v_cmp_gt_i32_e32 vcc, 0, v2
    s_cbranch_vccnz .LBB0_6
    global_store_dwordx2 v[38:39], v[40:41], off sc0 sc1
    .LBB0_9:
    s_endpgm
"""


def test_the_example_holds_every_rule() -> None:
    report = audited(GOOD, SENDER, vgpr=48)
    assert report.ok, report.lines()


RING = "v[28:31], off offset:16\n    s_waitcnt vmcnt(0)"
DOORBELL = "    global_store_dwordx2 v[36:37], v[34:35], off sc0 sc1\n"
# (what is changed, to what, the rule that says so, the instruction that it names)
BREAKS = {
    "the packet is not waited for": (RING, "v[28:31], off offset:16", "doorbell_order",
                                     "global_store_dwordx2 v[32:33]"),
    "one store may be open": (RING, "v[28:31], off offset:16\n    s_waitcnt vmcnt(1)", "doorbell_order",
                              "global_store_dwordx2 v[32:33]"),
    "the turn is passed on too early": (DOORBELL + "    s_waitcnt vmcnt(0)\n", DOORBELL, "doorbell_order",
                                        "global_store_dwordx2 v[14:15]"),
    "the doorbell is missing": (DOORBELL, "", "doorbell_order", "doorbell"),
    "the write pointer is missing": ("    global_store_dwordx2 v[32:33], v[34:35], off sc1\n", "", "doorbell_order",
                                     "doorbell"),
    "the doorbell stays on this GPU": (DOORBELL, DOORBELL.replace("sc0 sc1", "sc1"), "doorbell_order", "doorbell"),
    "the source is not released": ("    buffer_wbl2 sc1\n", "", "doorbell_order", "global_store_dwordx2 v[36:37]"),
    "the release is not waited for": ("buffer_wbl2 sc1\n    s_waitcnt vmcnt(0)", "buffer_wbl2 sc1", "writeback_wait",
                                      "global_atomic_add_x2"),
    "stores of other waves are open": ("    s_waitcnt vmcnt(0)\n    s_barrier", "    s_barrier", "doorbell_order",
                                       "global_store_dwordx2 v[36:37]"),
    "data is stored after the release": ("    global_atomic_add_x2", "    global_store_dword v1, v4, s[0:1]\n"
                                         "    s_waitcnt vmcnt(0)\n    global_atomic_add_x2", "doorbell_order",
                                         "global_store_dwordx2 v[36:37]"),
    "the turn is awaited without a bound": ("v_and_b32_e32 v2, s6, v2\n    v_cmp_gt_i32_e32 vcc, 0, v2\n"
                                            "    s_cbranch_vccnz .LBB0_2", "v_cmp_gt_i32_e32 vcc, 0, v2\n"
                                            "    s_cbranch_vccnz .LBB0_2", "bounded_waits", "global_load_dwordx2"),
    "the drain is gone": ("s_cbranch_vccnz .LBB0_6", "s_nop 0", "wait_loops", "global_load_dwordx2"),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_example(name: str) -> None:
    old, new, rule, instruction = BREAKS[name]
    assert GOOD.count(old) >= 1
    report = audited(GOOD.replace(old, new, 1), SENDER, vgpr=48)
    assert rule in report.failed, report.lines()
    assert any(text.startswith(instruction) for _, text in findings(report, rule)), report.lines()


def test_a_kernel_may_post_what_others_released() -> None:
    """Then it has no release of its own."""
    body = GOOD.replace("    buffer_wbl2 sc1\n", "", 1)
    contract = replace(SENDER, releases=0, publishes=(), posts=Posts(1, None))
    report = audited(body, contract, vgpr=48)
    assert report.ok, report.lines()
    assert "doorbell_order" in audited(body, replace(contract, posts=Posts(1)), vgpr=48).failed


def test_posts_count_even_without_a_contract() -> None:
    old, new, rule, _ = BREAKS["the packet is not waited for"]
    assert rule in audited(GOOD.replace(old, new, 1), vgpr=48).failed
    assert audited(GOOD, vgpr=48).ok
