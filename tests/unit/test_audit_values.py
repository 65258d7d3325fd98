# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What the audit computes for each lane is what the emulator computes, and what is only known to be uniform."""

from __future__ import annotations

import pytest
import torch

from mori_gemm_ar.audit.flow import Flow
from mori_gemm_ar.audit.operations import decode
from mori_gemm_ar.audit.registers import bit_of
from mori_gemm_ar.audit.semantics import step_of
from mori_gemm_ar.audit.uniform import Decision, Uniformity, Way, entry_values
from mori_gemm_ar.audit.values import UNIFORM, Evaluator, Value
from mori_gemm_ar.emulator import Node
from mori_gemm_ar.isa import Reg, parse_isa
from tests.kernel.isa_builder import isa_text, known, submit, tiny
from tests.unit.audit_texts import kernel_of

THREADS = 192
OUT = "s_load_dwordx2 s[20:21], s[0:1], 0x0\n s_waitcnt lgkmcnt(0)\n"

# Each leaves its result in v1; v0 is the thread number.
PROGRAMS = [
    "v_lshlrev_b32_e32 v1, 4, v0",
    "v_lshrrev_b32_e32 v1, 3, v0",
    "v_sub_u32_e32 v2, 70, v0\n v_ashrrev_i32_e32 v1, 2, v2",
    "v_subrev_u32_e32 v1, 5, v0",
    "v_mul_lo_u32 v1, v0, 0x1234567",
    "v_mov_b32_e32 v2, 0x7fffffff\n v_mul_hi_u32 v1, v0, v2",
    "v_mul_u32_u24_e32 v1, 0x140, v0",
    "v_mad_u32_u24 v1, v0, 10, 7",
    "v_xor_b32_e32 v2, 0x55, v0\n v_and_or_b32 v1, v2, 60, v0",
    "v_lshl_or_b32 v1, v0, 8, v0",
    "v_lshl_add_u32 v1, v0, 3, v0",
    "v_add_lshl_u32 v1, v0, 9, 2",
    "v_or3_b32 v1, v0, 64, v0\n v_add3_u32 v1, v1, v0, 5",
    "v_bfe_u32 v1, v0, 3, 3",
    "v_not_b32_e32 v2, v0\n v_min_i32_e32 v3, v2, v0\n v_max_u32_e32 v1, v3, v0",
    *(
        f"v_lshrrev_b32_e32 v2, 2, v0\n v_xor_b32_e32 v3, 0x33, v0\n v_bitop3_b32 v1, v0, v2, v3 bitop3:{table:#x}"
        for table in (0x36, 0x6C, 0xEC, 0x1E, 0xF6, 0xDE)
    ),
    "v_cmp_gt_u32_e32 vcc, 70, v0\n v_cndmask_b32_e32 v1, 3, v0, vcc",
    "v_sub_u32_e32 v2, 40, v0\n v_cmp_lt_i32_e64 s[4:5], v2, 0\n v_cndmask_b32_e64 v1, v0, 1, s[4:5]",
    "v_mbcnt_lo_u32_b32 v1, -1, 0\n v_mbcnt_hi_u32_b32 v1, -1, v1",
    "v_readfirstlane_b32 s4, v0\n s_lshr_b32 s4, s4, 6\n v_mov_b32_e32 v1, s4",
    "v_readfirstlane_b32 s4, v0\n s_bfe_u32 s5, s4, 0x20006\n s_mul_i32 s5, s5, 0x300\n s_add_i32 s5, s5, -7\n"
    " v_mov_b32_e32 v1, s5",
    "v_readfirstlane_b32 s4, v0\n s_cmp_lt_u32 s4, 100\n s_cselect_b32 s5, 11, 22\n v_mov_b32_e32 v1, s5",
    "v_readfirstlane_b32 s4, v0\n s_bitcmp1_b32 s4, 6\n s_cselect_b32 s5, s4, -1\n v_mov_b32_e32 v1, s5",
    "v_readfirstlane_b32 s4, v0\n s_bitset1_b32 s4, 13\n s_xor_b32 s4, s4, 0x2040\n v_mov_b32_e32 v1, s4",
    "v_readfirstlane_b32 s4, v0\n s_add_u32 s5, s4, 0xffffffc0\n s_addc_u32 s6, 0, 0\n v_mov_b32_e32 v1, s5",
    "v_cmp_gt_u32_e32 vcc, 70, v0\n s_and_saveexec_b64 s[4:5], vcc\n v_mov_b32_e32 v1, 5\n s_or_b64 exec, exec, s[4:5]",
]


def followed(body: str, waves: int) -> tuple[Value, Evaluator]:
    """The audit's value of v1 at the end of straight code."""
    kernel = parse_isa(isa_text(f"v_mov_b32_e32 v1, 0\n{body}\ns_endpgm")).kernel("tiny")
    values = entry_values(kernel)
    for i in kernel.instructions:
        step = step_of(i, decode(i))
        if step is not None:
            step(values)
    return values.known.get(bit_of(Reg("v", 1))), Evaluator(waves)


@pytest.mark.parametrize("body", PROGRAMS, ids=range(len(PROGRAMS)))
def test_values_of_all_lanes(body: str) -> None:
    value, evaluator = followed(body, THREADS // 64)
    assert value is not None and value is not UNIFORM
    computed = [lane for lanes in evaluator.of(value) for lane in (lanes if len(lanes) == 64 else list(lanes) * 64)]
    out = torch.full((THREADS,), -1, dtype=torch.int32)
    node = Node(1)
    known(node, "out", out)
    store = "v_lshlrev_b32_e32 v30, 2, v0\n global_store_dword v30, v1, s[20:21]\n s_endpgm"
    submit(node, tiny(f"{OUT}v_mov_b32_e32 v1, 0\n{body}\n{store}"), [out], threads=THREADS)
    node.run()
    assert computed == [int(v) & 0xFFFFFFFF for v in out]


@pytest.mark.parametrize(
    ("body", "uniform"),
    [
        ("s_add_i32 s4, s2, 1\n v_mov_b32_e32 v1, s4", True),  # a workgroup number
        ("s_load_dword s4, s[0:1], 0x0\n v_mov_b32_e32 v1, s4", True),  # an argument
        ("v_cvt_f32_u32_e32 v1, s2", True),  # not modelled, but of one value
        ("v_cvt_f32_u32_e32 v1, v0", False),
        ("v_add_u32_e32 v1, s2, v0", False),
        ("global_load_dword v1, v2, s[0:1]", False),
        ("s_memrealtime s[4:5]\n v_mov_b32_e32 v1, s4", False),
        ("v_cmp_gt_u32_e32 vcc, s2, v0\n s_and_saveexec_b64 s[4:5], vcc\n v_mov_b32_e32 v1, s2", False),
    ],
)
def test_what_is_known_to_be_uniform(body: str, uniform: bool) -> None:
    value, _ = followed(body, 2)
    assert (value is UNIFORM) is uniform
    assert uniform or value is None


def decisions(body: str, waves: int = 8) -> list[Decision]:
    kernel = kernel_of(body, waves=waves)
    flow = Flow(kernel)
    found = Uniformity(flow, [decode(i) for i in kernel.instructions], waves).decisions
    return [found[block] for block in sorted(found)]


def test_ways_of_branches() -> None:
    branch = "\n s_cbranch_{test} .LBB0_1\n s_nop 0\n .LBB0_1:\n s_nop 0"
    assert decisions("s_cmp_eq_u32 s2, 0" + branch.format(test="scc1"))[0].way is Way.SAME
    assert decisions("v_readfirstlane_b32 s4, v0\n s_cmp_gt_u32 s4, 63" + branch.format(test="scc1")) == [
        Decision(Way.KNOWN, (False, *[True] * 7))
    ]
    assert decisions("v_cmp_eq_u32_e32 vcc, 0, v0\n s_and_saveexec_b64 s[4:5], vcc" + branch.format(test="execz")) == [
        Decision(Way.KNOWN, (False, *[True] * 7))
    ]
    assert decisions("v_cmp_gt_u32_e32 vcc, s2, v0" + branch.format(test="vccnz"))[0].way is Way.OPEN
    assert decisions("s_mov_b32 s4, 3\n s_cmp_lt_u32 s4, 5" + branch.format(test="scc1")) == [
        Decision(Way.KNOWN, (True,) * 8)
    ]


def test_values_that_differ_where_waves_meet_are_not_uniform() -> None:
    """Wave 0 sets s4 to 1 and the others leave it: the second branch may part them, as the first did."""
    body = """
        s_mov_b32 s4, 0
        v_readfirstlane_b32 s5, v0
        s_cmp_gt_u32 s5, 63
        s_cbranch_scc1 .LBB0_1
        s_mov_b32 s4, 1
        .LBB0_1:
        s_cmp_eq_u32 s4, 0
        s_cbranch_scc1 .LBB0_2
        s_nop 0
        .LBB0_2:
        s_nop 0
    """
    first, second = decisions(body)
    assert first.splits and second.way is Way.OPEN
    # The same by an argument: all waves set it or none.
    assert [d.way for d in decisions(body.replace("v_readfirstlane_b32 s5, v0", "s_mov_b32 s5, s2"))] == [Way.SAME] * 2


def test_a_loop_inside_a_loop_forgets_what_came_round_before() -> None:
    """s4 is 0 in the first round and 1 in the second, in all waves, through a loop over lanes."""
    body = """
        s_mov_b32 s4, 0
        .LBB0_1:
        s_mov_b64 s[6:7], 0
        v_mov_b32_e32 v1, v0
        .LBB0_2:
        v_add_u32_e32 v1, s8, v1
        v_cmp_le_u32_e32 vcc, s9, v1
        s_or_b64 s[6:7], vcc, s[6:7]
        s_andn2_b64 exec, exec, s[6:7]
        s_cbranch_execnz .LBB0_2
        s_or_b64 exec, exec, s[6:7]
        s_mov_b64 exec, -1
        s_cmp_lg_u32 s4, 0
        s_mov_b32 s4, 1
        s_cbranch_scc0 .LBB0_1
    """
    assert [d.way for d in decisions(body)] == [Way.OPEN, Way.SAME]
