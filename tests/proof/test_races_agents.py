# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Races between kernels, streams, hosts, leaders, elected workgroups and engines, each in a right and a racy form."""

from __future__ import annotations

import pytest
import torch

from mori_gemm_ar.emulator import MemoryRegion, Node
from mori_gemm_ar.emulator.races import RaceDetector
from mori_gemm_ar.errors import RaceError
from mori_gemm_ar.runtime import LocalWorld, RankContext
from tests.proof.races import (
    AGENT,
    CONSUMER,
    LOAD,
    PRODUCER,
    STORE,
    SYSTEM,
    THREADS,
    code,
    make_node,
    message,
    modes,
    race,
    submit,
    without,
    words,
)


# ---- kernels, streams, hosts ---------------------------------------------------------------------------------
@modes
def test_a_kernel_boundary_orders_and_another_stream_does_not(seed: int | None) -> None:
    for stream in (0, 1):
        node = make_node(1, seed)
        data = words(node, "data")
        submit(node, code(STORE, name="writer"), [data] * 3)
        submit(node, code(LOAD, name="reader"), [data] * 3, stream=stream)
        if stream == 0:
            node.run()
        else:
            race(node, "no flag, and no host synchronisation between these streams of one GPU")


@modes
def test_the_host_orders_streams_and_gpus_when_it_waits_for_them(seed: int | None) -> None:
    for gpu, stream in ((0, 1), (1, 0)):
        node = make_node(2, seed)
        data = words(node, "data")
        submit(node, code(STORE, name="writer"), [data] * 3)
        node.run()
        submit(node, code(LOAD, name="reader"), [data] * 3, gpu=gpu, stream=stream)
        node.run()
    node = make_node(2, seed)
    data = words(node, "data")
    submit(node, code(STORE, name="writer"), [data] * 3)
    submit(node, code(LOAD, name="reader"), [data] * 3, gpu=1)
    race(node, "no flag, and no host synchronisation between these streams of GPUs")


@pytest.mark.parametrize("meet", [True, False])
def test_ranks_that_meet_on_the_host_know_of_each_others_kernels(meet: bool) -> None:
    def rank_body(context: RankContext) -> None:
        node = context.node
        if context.rank == 0:
            submit(node, code(STORE, name="writer"), [data] * 3)
            context.wait("own kernel", lambda: node.idle(0))
            done.append(0)
        if meet:
            context.barrier()
        if context.rank == 1:
            context.wait("the other rank, unknown to the detector", lambda: bool(done))
            submit(node, code(LOAD, name="reader"), [data] * 3, gpu=1)
            context.wait("own kernel", lambda: node.idle(1) or node.failure is not None)

    done: list[int] = []
    data = torch.zeros(THREADS, dtype=torch.int32)

    def node(gpus: int) -> Node:
        made = make_node(gpus, 0)

        made.regions.add(MemoryRegion("data", data.data_ptr(), 4 * THREADS, 0, symmetric=True))
        return made

    world = LocalWorld(2, node=node)
    if meet:
        world.run(rank_body)
    else:
        with pytest.raises(RaceError, match="no host synchronisation"):
            world.run(rank_body)


@modes
@pytest.mark.parametrize("released", [True, False])
def test_a_release_in_another_kernel_does_not_release_what_this_one_stored(seed: int | None, released: bool) -> None:
    """L7: the only writeback stands in a separate kernel of one workgroup."""
    node = make_node(2, seed)
    data, flag, result = (words(node, name, home=1) for name in ("data", "flag", "result"))
    own = f"s_waitcnt vmcnt(0)\nbuffer_wbl2 {SYSTEM}\ns_waitcnt vmcnt(0)" if released else ""
    submit(node, code(f"{STORE}\n{own}", name="push"), [data, flag, result])
    publish = f"buffer_wbl2 {SYSTEM}\ns_waitcnt vmcnt(0)\nglobal_store_dword v3, v4, s[6:7] {SYSTEM}"
    submit(node, code(publish, name="barrier"), [data, flag, result], threads=64)
    submit(node, code(CONSUMER.format(scope=SYSTEM), name="consumer"), [data, flag, result], gpu=1)
    if released:
        node.run()
        assert result[:THREADS].eq(1).all()
    else:
        race(node, "race on data", "no writeback", "in the workgroup that wrote", "kernel push", "kernel consumer")


# ---- leaders, counters, engines ------------------------------------------------------------------------------
@modes
@pytest.mark.parametrize("balanced", [True, False])
def test_a_leader_releases_after_a_balanced_barrier_only(seed: int | None, balanced: bool) -> None:
    """L4, L8: wave 1 has met one barrier more, so the last one pairs the leader with an earlier point of wave 1."""
    stagger = "s_cmp_eq_u32 s12, 0\ns_cbranch_scc1 .LBB0_5\ns_barrier\n.LBB0_5:\ns_barrier\n"
    compensation = "s_cmp_lg_u32 s12, 0\ns_cbranch_scc1 .LBB0_6\ns_barrier\n.LBB0_6:\n" if balanced else ""
    producer = PRODUCER.format(scope=SYSTEM).replace("s_barrier", f"{compensation}s_barrier")
    node, result = message(seed, stagger + producer, CONSUMER.format(scope=SYSTEM), (0, 1))
    if balanced:
        node.run()
        assert result[:THREADS].tolist() == list(range(100, 100 + THREADS))
    else:
        race(node, "race on data", "wave 1")


ELECTION = f"""
    s_lshl_b32 s13, s2, 9
    v_add_u32_e32 v7, s13, v1
    global_store_dword v7, v4, s[4:5]
    s_waitcnt vmcnt(0)
    s_barrier
    s_cmp_lg_u32 s12, 0
    s_cbranch_scc1 .LBB0_3
    v_mov_b32_e32 v8, 3
    s_mov_b64 s[14:15], exec
    s_mov_b64 exec, 1
    buffer_wbl2 {AGENT}
    s_waitcnt vmcnt(0)
    global_atomic_inc v5, v3, v8, s[6:7] sc0
    s_waitcnt vmcnt(0)
    buffer_inv {AGENT}
    s_mov_b64 exec, s[14:15]
    v_readfirstlane_b32 s16, v5
    s_cmp_lg_u32 s16, 3
    s_cbranch_scc1 .LBB0_3
    v_xor_b32_e32 v6, 0x100, v1
    global_load_dword v9, v6, s[4:5]
    global_load_dword v10, v6, s[4:5] offset:512
    global_load_dword v11, v6, s[4:5] offset:1024
    global_load_dword v12, v6, s[4:5] offset:1536
    s_waitcnt vmcnt(0)
    v_add_u32_e32 v9, v9, v10
    v_add_u32_e32 v11, v11, v12
    v_add_u32_e32 v9, v9, v11
    global_store_dword v1, v9, s[8:9]
.LBB0_3:
"""


@modes
def test_the_electing_counter_carries_the_release_and_the_acquire(seed: int | None) -> None:
    """L11: the last of four arrivals reads what all have written."""

    def elect(body: str) -> tuple[Node, torch.Tensor]:
        node = make_node(1, seed)
        data, counter, result = words(node, "data"), words(node, "counter"), words(node, "result")
        submit(node, code(body), [data, counter, result], blocks=4)
        return node, result

    node, result = elect(ELECTION)
    node.run()
    assert result[:64].eq(4).all()
    relaxed = without(without(ELECTION, "buffer_wbl2"), "buffer_inv")
    race(elect(relaxed)[0], "race on data", "no writeback (buffer_wbl2) of agent scope")
    race(elect(without(ELECTION, "buffer_inv"))[0], "race on data", "no invalidate (buffer_inv) of agent scope")
    race(elect(without(ELECTION, "s_barrier"))[0], "race on data", "wave 1")


def put(seed: int | None, producer: str, consumer: str) -> None:
    """A kernel rings a doorbell, a copy engine reads and writes and signals, a kernel of another GPU waits for it."""
    node = make_node(2, seed)
    races = node.races
    assert isinstance(races, RaceDetector)
    data, bell = words(node, "data"), words(node, "doorbell")
    landing, flag, result = (words(node, name, home=1) for name in ("landing", "flag", "result"))
    submit(node, code(consumer, name="consumer"), [landing, flag, result], gpu=1)
    submit(node, code(producer, name="producer"), [data, bell, result])
    node.run(until=lambda: int(bell[0]) == 1)
    engine = races.engine("copy engine 0", 0)
    engine.hear(bell.data_ptr())
    engine.read(data.data_ptr(), 4 * THREADS)
    engine.write(landing.data_ptr(), 4 * THREADS)
    engine.signal(flag.data_ptr())
    flag[0] = 1
    node.run()


@modes
def test_an_engine_reads_memory_and_not_caches(seed: int | None) -> None:
    """L16: the doorbell rings when all stores are complete, which is not enough for the source of a put."""
    producer, consumer = PRODUCER.format(scope=AGENT), CONSUMER.format(scope=SYSTEM)
    put(seed, producer, consumer)
    with pytest.raises(RaceError, match=r"race on data.*no writeback \(buffer_wbl2\) of agent scope") as caught:
        put(seed, without(producer, "buffer_wbl2"), consumer)
    assert "read by copy engine 0, GPU 0" in str(caught.value)
    with pytest.raises(RaceError, match=r"race on landing.*no invalidate"):
        put(seed, producer, without(consumer, "buffer_inv"))
