# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The watchdog of the emulated node, its barriers, and its virtual time. Kernels are hand-written."""

from __future__ import annotations

import time

import pytest
import torch

from mori_gemm_ar.emulator import TICKS_PER_SECOND, MemoryRegion, Node
from mori_gemm_ar.errors import DeadlockError, EmulatorError
from tests.kernel.isa_builder import TinyCode, known, submit, tiny

LANES = torch.arange(64, dtype=torch.int32)

# Store each work item's number to `out`; the base of many kernels below.
WRITE_ITEMS = """
    s_load_dwordx2 s[2:3], s[0:1], 0x0
    v_lshlrev_b32_e32 v1, 2, v0
    s_waitcnt lgkmcnt(0)
    global_store_dword v1, v0, s[2:3]
    s_endpgm
"""


def words(count: int, value: int = -1) -> torch.Tensor:
    return torch.full((count,), value, dtype=torch.int32)


def run(node: Node, code: TinyCode, *values: object, threads: int = 64, blocks: int = 1) -> None:
    submit(node, code, values, threads=threads, blocks=blocks)
    node.run()


def test_a_hand_written_kernel_runs() -> None:
    node, out = Node(1), words(256)
    run(node, tiny(WRITE_ITEMS), known(node, "out", out), threads=256)
    assert torch.equal(out, torch.arange(256, dtype=torch.int32))
    assert node.idle() and len(node.regions) == 1


# --- watchdog ---

# Wait until the word at `flag` is 5, then store it to `out`.
WAIT = """
    s_load_dwordx4 s[4:7], s[0:1], 0x0
    v_mov_b32_e32 v1, 0
    s_waitcnt lgkmcnt(0)
.LBB0_1:
    global_load_dword v2, v1, s[4:5] sc0 sc1
    s_waitcnt vmcnt(0)
    v_cmp_ne_u32_e32 vcc, 5, v2
    s_cbranch_vccnz .LBB0_1
    global_store_dword v1, v2, s[6:7]
    s_endpgm
"""
SET = """
    s_load_dwordx2 s[4:5], s[0:1], 0x0
    v_mov_b32_e32 v1, 0
    v_mov_b32_e32 v2, 5
    s_waitcnt lgkmcnt(0)
    global_store_dword v1, v2, s[4:5] sc0 sc1
    s_endpgm
"""


def test_a_wait_without_end_is_a_deadlock() -> None:
    """Named are kernel, wave, line and the region of the address; the node refuses to go on; no wall time passes."""
    node, flags, out = Node(2), words(32, 0), words(1)
    parts = ((0, 64, "counters"), (64, 64, "entry"))
    node.regions.add(MemoryRegion("window of rank 1", flags.data_ptr(), 128, 1, parts))
    known(node, "out", out)
    submit(node, tiny(WAIT, (8, 8)), (flags[18:], out), gpu=1)
    start = time.monotonic()
    with pytest.raises(DeadlockError) as caught:
        node.run()
    assert time.monotonic() - start < 1
    message = str(caught.value)
    assert "no wave can progress:\nkernel tiny:\n  GPU 1, workgroup (0, 0, 0), wave 0 at line " in message
    assert "global_load_dword v2, v1, s[4:5] sc0 sc1: polls window of rank 1: entry + 0x8" in message
    with pytest.raises(EmulatorError, match="the emulated node stopped earlier: no wave can progress"):
        node.run()


def test_the_same_wait_ends_when_another_gpu_sets_the_flag() -> None:
    """Negative control of the watchdog, with the flag set before, at and after the start of the wait."""
    for delay in (0, 1, 7):
        node, flag, out = Node(2), words(1, 0), words(1)
        known(node, "flag", flag, 1)
        known(node, "out", out, 1)
        submit(node, tiny(WAIT, (8, 8)), (flag, out), gpu=1)
        for _ in range(delay):
            node.step()
        submit(node, tiny(SET), (flag,), gpu=0)
        node.run()
        assert out.item() == 5


def test_waves_at_a_barrier_are_part_of_the_report() -> None:
    """Wave 0 polls for ever, wave 1 waits for it at the barrier."""
    body = """
        s_load_dwordx4 s[4:7], s[0:1], 0x0
        v_mov_b32_e32 v1, 0
        v_readfirstlane_b32 s8, v0
        s_waitcnt lgkmcnt(0)
        s_cmp_lt_u32 s8, 64
        s_cbranch_scc0 .LBB0_2
    .LBB0_1:
        global_load_dword v2, v1, s[4:5] sc0 sc1
        s_waitcnt vmcnt(0)
        v_cmp_ne_u32_e32 vcc, 5, v2
        s_cbranch_vccnz .LBB0_1
    .LBB0_2:
        s_barrier
        s_endpgm
    """
    node, flag = Node(1), words(1, 0)
    known(node, "flag", flag)
    submit(node, tiny(body, (8, 8)), (flag, flag), threads=128)
    with pytest.raises(DeadlockError) as caught:
        node.run()
    lines = str(caught.value).splitlines()
    assert any("wave 0 at line" in line and "polls flag + 0x0" in line for line in lines)
    assert any("wave 1 at line" in line and "waits at the barrier before it" in line for line in lines)


@pytest.mark.parametrize(
    "loop",
    ["s_sleep 1\ns_branch .LBB0_1", "s_memrealtime s[4:5]\ns_branch .LBB0_1", "s_nop 0\ns_branch .LBB0_1"],
    ids=["sleep", "clock", "nothing"],
)
def test_loops_that_wait_for_nothing(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a loop that polls nothing is ended, with the place where it stands."""
    monkeypatch.setattr("mori_gemm_ar.emulator.pool._MAX_OVERRUNS", 4)
    node = Node(1)
    submit(node, tiny(f".LBB0_1:\n{loop}\ns_endpgm"), (0,))
    with pytest.raises(DeadlockError, match=r"(?s)tiny.*line \d+: "):
        node.run()


def test_more_blocks_than_fit_must_not_wait_for_each_other() -> None:
    """Block 0 waits for what block 3 sets: it ends with room for four blocks and is a deadlock with room for two."""
    body = """
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        v_mov_b32_e32 v1, 0
        s_waitcnt lgkmcnt(0)
        s_cmp_eq_u32 s2, 3
        s_cbranch_scc1 .LBB0_2
    .LBB0_1:
        global_load_dword v2, v1, s[4:5] sc0 sc1
        s_waitcnt vmcnt(0)
        v_cmp_ne_u32_e32 vcc, 5, v2
        s_cbranch_vccnz .LBB0_1
        s_endpgm
    .LBB0_2:
        v_mov_b32_e32 v2, 5
        global_store_dword v1, v2, s[4:5] sc0 sc1
        s_endpgm
    """
    for residency, ends in ((4, True), (2, False)):
        node, flag = Node(1, residency=residency), words(1, 0)
        submit(node, tiny(body), (known(node, "flag", flag),), blocks=4)
        if ends:
            node.run()
            continue
        with pytest.raises(DeadlockError, match=r"workgroup \(1, 0, 0\), wave 0 at line .*polls flag"):
            node.run()


def test_more_blocks_than_fit_run_in_turn() -> None:
    body = """
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        s_lshl_b32 s6, s2, 6
        v_add_u32_e32 v0, s6, v0
        v_lshlrev_b32_e32 v1, 2, v0
        s_waitcnt lgkmcnt(0)
        global_store_dword v1, v0, s[4:5]
        s_endpgm
    """
    node, out = Node(1, residency=3, window=2), words(100 * 64)
    run(node, tiny(body), known(node, "out", out), blocks=100)
    assert torch.equal(out, torch.arange(6400, dtype=torch.int32))


def test_a_bounded_wait_takes_virtual_time_only() -> None:
    """One hour by `s_memrealtime`."""
    body = """
        s_load_dwordx4 s[4:7], s[0:1], 0x0
        s_memrealtime s[8:9]
        s_waitcnt lgkmcnt(0)
        s_add_u32 s6, s6, s8
        s_addc_u32 s7, s7, s9
    .LBB0_1:
        s_memrealtime s[8:9]
        s_waitcnt lgkmcnt(0)
        s_sub_u32 s10, s8, s6
        s_subb_u32 s11, s9, s7
        s_cmp_lt_i32 s11, 0
        s_cbranch_scc1 .LBB0_1
        v_mov_b32_e32 v1, 0
        v_mov_b32_e32 v2, 1
        global_store_dword v1, v2, s[4:5]
        s_endpgm
    """
    node, out = Node(1), words(1)
    before, start = node.clock.ticks, time.monotonic()
    run(node, tiny(body, (8, 8)), known(node, "out", out), 3600 * TICKS_PER_SECOND)
    assert out.item() == 1 and time.monotonic() - start < 1
    assert 3600 <= (node.clock.ticks - before) / TICKS_PER_SECOND < 3 * 3600


# --- barriers ---


def test_ended_waves_count_as_arrived() -> None:
    """Waves 2 and 3 end at once; 0 and 1 exchange a word through LDS over a barrier."""
    body = """
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        v_readfirstlane_b32 s8, v0
        s_cmp_lt_u32 s8, 128
        s_cbranch_scc0 .LBB0_2
        v_lshlrev_b32_e32 v1, 2, v0
        ds_write_b32 v1, v0
        s_waitcnt lgkmcnt(0)
        s_barrier
        v_xor_b32_e32 v2, 0x100, v1
        ds_read_b32 v3, v2
        s_waitcnt lgkmcnt(0)
        global_store_dword v1, v3, s[4:5]
    .LBB0_2:
        s_endpgm
    """
    node, out = Node(1), words(256)
    run(node, tiny(body, lds=512), known(node, "out", out), threads=256)
    assert torch.equal(out[:128], torch.cat([LANES + 64, LANES]))
    assert torch.equal(out[128:], words(128))
