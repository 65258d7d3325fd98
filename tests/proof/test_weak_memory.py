# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Weak memory: message passing works with all of its parts and fails without any one of them."""

from __future__ import annotations

import time

import pytest
import torch

from mori_gemm_ar.emulator import MemoryRegion, Node
from mori_gemm_ar.emulator.adversary import Adversary, CacheDomain
from mori_gemm_ar.emulator.weak import WeakMemory
from mori_gemm_ar.errors import DeadlockError
from tests.kernel.isa_builder import submit
from tests.proof.litmus import AGENT, CONSUMER, PRODUCER, SYSTEM, kernel, pass_message, without

SEEDS = range(12)
SAME_GPU, OTHER_GPU = (0, 0), (1, 0)


def outcomes(producer: str, consumer: str, gpus: tuple[int, int], adversary: Adversary | None = None) -> set[bool]:
    return {
        pass_message(kernel(producer), kernel(consumer), seed=seed, gpus=gpus, adversary=adversary) for seed in SEEDS
    }


@pytest.mark.parametrize("domain", CacheDomain)
@pytest.mark.parametrize(("scope", "gpus"), [(AGENT, SAME_GPU), (SYSTEM, SAME_GPU), (SYSTEM, OTHER_GPU)])
def test_message_passing_with_all_its_parts(scope: str, gpus: tuple[int, int], domain: CacheDomain) -> None:
    adversary = Adversary(domain=domain)
    assert outcomes(PRODUCER.format(scope=scope), CONSUMER.format(scope=scope), gpus, adversary) == {True}


@pytest.mark.parametrize("gpus", [SAME_GPU, OTHER_GPU])
@pytest.mark.parametrize(("side", "line"), [("producer", "buffer_wbl2"), ("consumer", "buffer_inv")])
def test_each_part_is_needed(side: str, line: str, gpus: tuple[int, int]) -> None:
    scope = AGENT if gpus == SAME_GPU else SYSTEM
    producer, consumer = PRODUCER.format(scope=scope), CONSUMER.format(scope=scope)
    if side == "producer":
        producer = without(producer, line)
    else:
        consumer = without(consumer, line)
    assert False in outcomes(producer, consumer, gpus)


def test_a_writeback_covers_the_stores_of_its_own_wave() -> None:
    """LLVM's release has no wait before the writeback, so none may be needed there."""
    producer = without(PRODUCER.format(scope=SYSTEM), "s_waitcnt vmcnt(0)")
    assert producer.count("s_waitcnt vmcnt(0)") == 1
    assert outcomes(producer, CONSUMER.format(scope=SYSTEM), OTHER_GPU) == {True}


def test_the_wait_after_the_writeback_is_needed() -> None:
    """L10: the flag must not overtake the writeback."""
    lines = PRODUCER.format(scope=SYSTEM).strip().splitlines()
    after = lines.index("buffer_wbl2 sc0 sc1") + 1
    assert lines[after] == "s_waitcnt vmcnt(0)"
    producer = "\n".join(lines[:after] + lines[after + 1 :])
    assert False in outcomes(producer, CONSUMER.format(scope=SYSTEM), OTHER_GPU)


def test_agent_scope_does_not_reach_another_gpu() -> None:
    """A flag at agent scope stays with the producer's GPU for as long as its kernel runs, here until it is answered."""
    answered = """
    .LBB0_2:
    global_load_dword v5, v3, s[8:9] sc0 sc1
    s_waitcnt vmcnt(0)
    v_cmp_eq_u32_e32 vcc, 0, v5
    s_cbranch_vccnz .LBB0_2
    s_endpgm
    """
    head = "s_load_dwordx2 s[8:9], s[0:1], 0x10\n"
    producer = head + PRODUCER.replace("s_endpgm", answered)
    consumer = CONSUMER.format(scope=SYSTEM).replace("v2, s[8:9]", "v2, s[8:9] sc0 sc1")
    assert outcomes(producer.format(scope=SYSTEM), consumer, OTHER_GPU) == {True}
    with pytest.raises(DeadlockError, match=r"polls flag \+ 0x0"):
        outcomes(producer.format(scope=AGENT), consumer, OTHER_GPU)


def test_agent_scope_invalidate_does_not_drop_what_a_peer_wrote() -> None:
    consumer = CONSUMER.format(scope=SYSTEM).replace("buffer_inv sc0 sc1", "buffer_inv sc1")
    assert False in outcomes(PRODUCER.format(scope=SYSTEM), consumer, OTHER_GPU)


def test_functional_mode_sees_none_of_this() -> None:
    """Negative control: without caches the stripped kernels pass."""
    node = Node(2)
    tensors = [torch.zeros(64, dtype=torch.int32) for _ in range(3)]
    for tensor in tensors:
        node.regions.add(MemoryRegion("memory", tensor.data_ptr(), 256, 0))
    submit(node, kernel(without(CONSUMER.format(scope=SYSTEM), "buffer_inv")), tensors, gpu=0)
    submit(node, kernel(without(PRODUCER.format(scope=SYSTEM), "buffer_wbl2")), tensors, gpu=1)
    node.run()
    assert tensors[2].tolist() == list(range(100, 164))


def test_a_release_in_a_separate_kernel_cleans_nothing() -> None:
    """L7: the kernel that stored to a peer has to release; a one-block kernel after it cleans one die of eight."""
    store_only = without(without(PRODUCER.format(scope=SYSTEM), "buffer_wbl2"), "global_store_dword v3")
    release_only = without(PRODUCER.format(scope=SYSTEM), "global_store_dword v1, v2")
    results = set()
    for seed in SEEDS:
        node = Node(2, memory=WeakMemory(seed))
        tensors = [torch.zeros(64, dtype=torch.int32) for _ in range(3)]
        for name, tensor in zip(("data", "flag", "result"), tensors, strict=True):
            node.regions.add(MemoryRegion(name, tensor.data_ptr(), 256, 0, symmetric=True))
        submit(node, kernel(CONSUMER.format(scope=SYSTEM)), tensors, gpu=0)
        submit(node, kernel(store_only), tensors, gpu=1)
        submit(node, kernel(release_only), tensors, gpu=1)
        node.run()
        results.add(tensors[2].tolist() == list(range(100, 164)))
    assert False in results


def test_stores_of_one_wave_may_become_visible_in_any_order() -> None:
    """Two flags stored one after the other, without a wait between: a reader may see the second one first."""
    producer = """
    s_load_dwordx4 s[4:7], s[0:1], 0x0
    v_mov_b32_e32 v3, 0
    v_mov_b32_e32 v4, 1
    s_waitcnt lgkmcnt(0)
    global_store_dword v3, v4, s[4:5] sc0 sc1
    {wait}
    global_store_dword v3, v4, s[6:7] sc0 sc1
    s_endpgm
    """
    consumer = """
    s_load_dwordx4 s[4:7], s[0:1], 0x0
    s_load_dwordx2 s[8:9], s[0:1], 0x10
    v_mov_b32_e32 v3, 0
    s_waitcnt lgkmcnt(0)
    .LBB0_1:
    global_load_dword v4, v3, s[6:7] sc0 sc1
    s_waitcnt vmcnt(0)
    v_cmp_eq_u32_e32 vcc, 0, v4
    s_cbranch_vccnz .LBB0_1
    global_load_dword v2, v3, s[4:5] sc0 sc1
    s_waitcnt vmcnt(0)
    global_store_dword v3, v2, s[8:9]
    s_endpgm
    """
    seen: dict[str, set[int]] = {"": set(), "s_waitcnt vmcnt(0)": set()}
    for wait, values in seen.items():
        for seed in range(30):
            node = Node(2, memory=WeakMemory(seed))
            tensors = [torch.zeros(64, dtype=torch.int32) for _ in range(3)]
            for tensor in tensors:
                node.regions.add(MemoryRegion("memory", tensor.data_ptr(), 256, 0, symmetric=True))
            submit(node, kernel(consumer), tensors, gpu=0)
            submit(node, kernel(producer.format(wait=wait or "s_nop 0")), tensors, gpu=1)
            node.run()
            values.add(int(tensors[2][0]))
    assert seen == {"": {0, 1}, "s_waitcnt vmcnt(0)": {1}}


def test_a_deadlock_costs_no_wall_time() -> None:
    node = Node(1, memory=WeakMemory(0))
    tensors = [torch.zeros(64, dtype=torch.int32) for _ in range(3)]
    for tensor in tensors:
        node.regions.add(MemoryRegion("memory", tensor.data_ptr(), 256, 0, symmetric=True))
    submit(node, kernel(CONSUMER.format(scope=SYSTEM)), tensors)
    start = time.monotonic()
    with pytest.raises(DeadlockError, match=r"workgroup \(0, 0, 0\), wave 0 at line \d+.*polls memory"):
        node.run()
    assert time.monotonic() - start < 5
