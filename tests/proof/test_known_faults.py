# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Faults that others shipped, rebuilt in our kernels, and the check that catches each.

Elsewhere: L4, L7, L8, L11, L16 in test_races_agents.py, L6 in test_copies_in_flight.py, L10 in test_weak_memory.py.
"""

from __future__ import annotations

import re

import pytest
import torch

from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.audit import audit_text
from mori_gemm_ar.emulator import Node
from mori_gemm_ar.emulator.races import RaceDetector
from mori_gemm_ar.emulator.weak import WeakMemory
from mori_gemm_ar.errors import CollectiveError, RaceError
from mori_gemm_ar.layout.allreduce import CONTROL
from mori_gemm_ar.proof import Operator, ProvedKernel, WrongResult, mutants_of, mutated, pipeline_named
from mori_gemm_ar.proof.all_reduce import KERNEL
from mori_gemm_ar.proof.runner import observe
from mori_gemm_ar.runtime import LocalWorld, RankContext
from tests.kernel.isa_builder import known, submit
from tests.proof.litmus import kernel

EVERYONE = frozenset(range(8))
NOTICED = (WrongResult, CollectiveError, RaceError)


def changed(isa: str, pattern: str, replacement: str) -> str:
    """The text with one place replaced; it has to be there exactly once."""
    text, count = re.subn(pattern, replacement, isa)
    assert count == 1, f"{pattern!r} stands {count} times"
    return text


def kernel_of_pipeline(name: str) -> ProvedKernel:
    (kernel,) = pipeline_named(name).kernels()
    return kernel


def failed_rules(pipeline: str, isa: str) -> tuple[str, ...]:
    return audit_text(isa, kernel_of_pipeline(pipeline).config).failed


def test_l1_a_deleted_poll() -> None:
    """The compiler removed the loop: the audit sees it without running, and a late rank shows it."""
    pipeline = pipeline_named("lsa-1stage-w2")
    (mutant,) = (m for m in mutants_of(kernel_of_pipeline(pipeline.name)) if m.operator is Operator.SKIP_POLL)
    assert "wait_loops" in failed_rules(pipeline.name, mutant.isa)
    # In some orders every rank is in time.
    seeds = [seed for seed in range(6) if observe(pipeline, seed, mutated(KERNEL, mutant.isa, EVERYONE))]
    assert seeds


def test_l1_a_plain_load_in_the_poll() -> None:
    code = kernel_of_pipeline("lsa-1stage-w2").code
    plain = changed(code.isa, r"(global_load_dwordx2 .*off) sc0 sc1", r"\1")
    assert "wait_loops" in failed_rules("lsa-1stage-w2", plain)


BLOCKS = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
s_lshl_b32 s9, s2, 8
s_lshl_b32 s10, s2, 2
v_lshlrev_b32_e32 v1, 2, v0
v_add_u32_e32 v1, s9, v1
v_add_u32_e32 v2, 100, v0
v_mov_b32_e32 v3, s10
v_mov_b32_e32 v4, 1
s_waitcnt lgkmcnt(0)
global_store_dword v1, v2, s[4:5]
s_waitcnt vmcnt(0)
buffer_wbl2 sc0 sc1
s_waitcnt vmcnt(0)
global_store_dword v3, v4, s[6:7] sc0 sc1
s_endpgm
"""
READER = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
s_load_dwordx2 s[8:9], s[0:1], 0x10
v_lshlrev_b32_e32 v1, 2, v0
v_add_u32_e32 v5, {block} * 256, v1
v_mov_b32_e32 v3, 0
s_waitcnt lgkmcnt(0)
.LBB0_1:
global_load_dword v4, v3, s[6:7] sc0 sc1
s_waitcnt vmcnt(0)
v_cmp_eq_u32_e32 vcc, 0, v4
s_cbranch_vccnz .LBB0_1
buffer_inv sc0 sc1
global_load_dword v2, v5, s[4:5]
s_waitcnt vmcnt(0)
global_store_dword v1, v2, s[8:9]
s_endpgm
"""


def read_block(block: int, seed: int) -> None:
    """A peer waits for block 0's flag and reads what block `block` wrote."""
    node = Node(2, memory=WeakMemory(seed), races=RaceDetector())
    data, flags, result = (known(node, n, torch.zeros(128, dtype=torch.int32)) for n in ("data", "flags", "result"))
    reader = READER.replace("{block} * 256", str(block * 256) if block == 0 else hex(block * 256))
    submit(node, kernel(reader), [data, flags, result], gpu=0)
    submit(node, kernel(BLOCKS), [data, flags, result], gpu=1, blocks=2)
    node.run()
    assert result[:64].tolist() == list(range(100, 164))


def test_l3_data_of_a_block_that_nobody_waited_for() -> None:
    """The second stage has to use the map of the first: a block's flag covers that block's data only."""
    for seed in range(4):
        read_block(0, seed)
    caught = 0
    for seed in range(8):
        try:
            read_block(1, seed)
        except (RaceError, AssertionError):
            caught += 1
    assert caught


def test_l9_a_second_release() -> None:
    """The counter or the leader's writeback is the release; one more in every wave only costs."""
    code = kernel_of_pipeline("lsa-2stage-w2").code
    twice = changed(code.isa, r"(\ts_barrier\n\ts_cbranch_scc1)", r"\tbuffer_wbl2 sc0 sc1\n\ts_waitcnt vmcnt(0)\n\1")
    assert "one_release" in failed_rules("lsa-2stage-w2", twice)


def test_case_1_no_exit_barrier() -> None:
    """A rank that leaves at once lets its caller overwrite what a peer still reads."""
    pipeline = pipeline_named("lsa-1stage-w2")
    without = changed(kernel_of_pipeline(pipeline.name).code.isa, r"s_cmp_lt_u32 (s\d+), 2\n", r"s_cmp_lt_u32 \1, 1\n")

    def six_seeds() -> None:
        for seed in range(6):
            pipeline.exercise(seed, mutated(KERNEL, without, EVERYONE))

    with pytest.raises(NOTICED):
        six_seeds()


class _Overlapping:
    """A window map whose payload starts among the flags, as if offsets depended on the size of a call."""

    def __init__(self, window: object) -> None:
        self._window = window

    def offset(self, name: str) -> int:
        return CONTROL.exit if name == "input" else self._window.offset(name)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self._window, name)


def test_case_2_flags_that_overlap_another_size() -> None:
    def rank(context: RankContext) -> None:
        with AllReduceOp.create(context, 65536, dtypes=(torch.bfloat16,), timeout_s=0.01) as op:
            plain = op._window.map
            for numel in (512, 30000, 512, 30000):
                op._window.map = plain if numel == 512 else _Overlapping(plain)
                x = torch.full((numel,), context.rank + 1.0, dtype=torch.bfloat16)
                y = op(x)
                if not bool((y == 3).all()):
                    raise WrongResult(f"{numel} elements: {y[:4].tolist()}")

    with pytest.raises(NOTICED):
        LocalWorld(2).run(rank)


@pytest.mark.parametrize("broken", [False, True])
def test_case_7_an_epoch_compared_without_its_wrap(broken: bool) -> None:
    """seen < expected as unsigned numbers instead of the sign of their difference fails where the counter wraps."""
    kernel = kernel_of_pipeline("lsa-1stage-w2")
    config = kernel.config
    unsigned = changed(
        kernel.code.isa,
        r"v_sub_u32_e32 (v\d+), (v\d+), (v\d+)\n(\t)v_and_b32_e32 (v\d+), (s\d+), \1\n",
        r"v_cmp_lt_u32_e32 vcc, \2, \3\n\4v_cndmask_b32_e64 \1, 0, -1, vcc\n\4v_and_b32_e32 \5, \6, \1\n",
    )

    def rank(context: RankContext) -> None:
        with AllReduceOp.create(context, 65536, dtypes=(torch.bfloat16,), timeout_s=0.05, stage=config.stage) as op:
            context.exchange("before", None)
            op._start_epoch(2**32 - 4)
            context.exchange("after", None)
            if broken:
                op._codes[config] = mutated(KERNEL, unsigned, EVERYONE)(context.rank, KERNEL, op._codes[config])
            for call in range(8):
                if context.rank == call % 2:
                    context.sleep(0.01)
                x = torch.full((600,), context.rank + 1.0, dtype=torch.bfloat16)
                if not bool((op(x) == 3).all()):
                    raise WrongResult(f"call {call}")

    if not broken:
        LocalWorld(2, 1).run(rank)
        return
    with pytest.raises(NOTICED):
        LocalWorld(2, 1).run(rank)
