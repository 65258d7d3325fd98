# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Races on global memory: each kernel in a right and in a racy form, in functional and in weak mode."""

from __future__ import annotations

import pytest
import torch

from mori_gemm_ar.emulator import MemoryRegion, Node
from mori_gemm_ar.emulator.group import Group
from mori_gemm_ar.emulator.races import RaceDetector
from mori_gemm_ar.errors import ConfigError, EmulatorError
from tests.proof.races import (
    AGENT,
    CONSUMER,
    LOAD,
    PRODUCER,
    STORE,
    SYSTEM,
    THREADS,
    code,
    line_of,
    lines_of,
    make_node,
    message,
    modes,
    race,
    submit,
    without,
    words,
)

# ---- message passing -----------------------------------------------------------------------------------------
HAND_OVERS = [((0, 0), AGENT), ((0, 1), SYSTEM), ((0, 0), SYSTEM)]


@modes
@pytest.mark.parametrize(("gpus", "scope"), HAND_OVERS)
def test_a_message_that_is_passed_right(seed: int | None, gpus: tuple[int, int], scope: str) -> None:
    node, result = message(seed, PRODUCER.format(scope=scope), CONSUMER.format(scope=scope), gpus)
    node.run()
    assert result[:THREADS].tolist() == list(range(100, 100 + THREADS))


PARTS = [
    # side, line left out, its number, what the message says
    ("producer", "s_waitcnt vmcnt(0)", 0, "no s_waitcnt vmcnt in wave 1 between the write and the flag of wave 0"),
    ("producer", "s_barrier", 0, "no workgroup barrier between the s_waitcnt of wave 1 and the flag of wave 0"),
    ("producer", "buffer_wbl2", 0, "no writeback (buffer_wbl2) of {scope} between the write and the flag"),
    ("producer", "s_waitcnt vmcnt(0)", 1, "no s_waitcnt vmcnt (or barrier) between the writeback and the flag"),
    ("consumer", "s_waitcnt vmcnt(0)", 0, "no s_waitcnt vmcnt in wave 0 between the poll of the flag and what follows"),
    ("consumer", "buffer_inv", 0, "no invalidate (buffer_inv) of {scope} between the poll and the read"),
    ("consumer", "s_barrier", 0, "no workgroup barrier between wave 0, which read the flag, and wave 1"),
]
SCOPES = {AGENT: "agent scope (sc1)", SYSTEM: "system scope (sc0 sc1)"}


@modes
@pytest.mark.parametrize(("side", "line", "number", "missing"), PARTS)
@pytest.mark.parametrize(("gpus", "scope"), HAND_OVERS[:2])
def test_each_part_of_a_message_is_needed(
    seed: int | None, gpus: tuple[int, int], scope: str, side: str, line: str, number: int, missing: str
) -> None:
    sides = {"producer": PRODUCER.format(scope=scope), "consumer": CONSUMER.format(scope=scope)}
    sides[side] = without(sides[side], line, number)
    node, _ = message(seed, sides["producer"], sides["consumer"], gpus)
    text = race(node, "race on data + 0x")
    # Without the barrier the other wave of a consumer may come before the flag does.
    assert missing.format(scope=SCOPES[scope]) in text or (side, line) == ("consumer", "s_barrier"), text
    store = line_of(code(sides["producer"]), "global_store_dword v1")
    load = line_of(code(sides["consumer"]), "global_load_dword v2")
    assert set(lines_of(text)) == {store, load}
    assert f"GPU {gpus[0]}, workgroup (0, 0, 0), wave" in text
    assert "kernel producer" in text and "kernel consumer" in text


@modes
@pytest.mark.parametrize(("gpus", "scope", "weaker"), [((0, 0), AGENT, ""), ((0, 1), SYSTEM, AGENT)])
@pytest.mark.parametrize("side", ["flag", "poll"])
def test_a_flag_needs_its_scope_on_both_sides(
    seed: int | None, gpus: tuple[int, int], scope: str, weaker: str, side: str
) -> None:
    producer, consumer = PRODUCER.format(scope=scope), CONSUMER.format(scope=scope)
    if side == "flag":
        producer = producer.replace(f"s[6:7] {scope}", f"s[6:7] {weaker}")
    else:
        consumer = consumer.replace(f"s[6:7] {scope}", f"s[6:7] {weaker}")
    node, _ = message(seed, producer, consumer, gpus)
    race(node, "race on flag + 0x0", f"a flag needs {SCOPES[scope]} on both sides")


@modes
@pytest.mark.parametrize(("which", "missing"), [("buffer_wbl2", "agent scope only"), ("buffer_inv", "no invalidate")])
def test_agent_scope_does_not_reach_another_gpu(seed: int | None, which: str, missing: str) -> None:
    producer, consumer = (
        side.format(scope=SYSTEM).replace(f"{which} {SYSTEM}", f"{which} {AGENT}") for side in (PRODUCER, CONSUMER)
    )
    node, _ = message(seed, producer, consumer, (0, 1))
    race(node, "race on data", missing)


@modes
def test_a_flag_before_the_writeback_publishes_nothing(seed: int | None) -> None:
    producer = without(PRODUCER, "buffer_wbl2").format(scope=SYSTEM)
    producer = producer.replace(".LBB0_9:", f"buffer_wbl2 {SYSTEM}\ns_waitcnt vmcnt(0)\n.LBB0_9:")
    node, _ = message(seed, producer, CONSUMER.format(scope=SYSTEM), (0, 1))
    race(node, "race on data", "no writeback")


def test_a_writeback_covers_what_its_own_wave_has_issued() -> None:
    """LLVM's release has no wait in front of its writeback. Another wave's stores still need theirs."""
    producer = without(PRODUCER, "s_waitcnt vmcnt(0)").format(scope=AGENT)
    for threads in (64, THREADS):
        node = make_node(1, None)
        data, flag, result = (words(node, name) for name in ("data", "flag", "result"))
        submit(node, code(CONSUMER.format(scope=AGENT)), [data, flag, result])
        submit(node, code(producer, name="producer"), [data, flag, result], stream=1, threads=threads)
        if threads == 64:
            node.run()
        else:
            race(node, "race on data + 0x100", "no s_waitcnt vmcnt in wave 1")


@modes
@pytest.mark.parametrize("seen", [True, False])
def test_who_overwrites_what_was_read_needs_order_and_no_cache_operations(seed: int | None, seen: bool) -> None:
    """The first kernel reads and says so; the second one writes after it has heard."""
    reader = f"{LOAD}\ns_barrier\nglobal_store_dword v3, v4, s[6:7] sc0 sc1"
    writer = f"""
    .LBB0_1:
        global_load_dword v5, v3, s[6:7] sc0 sc1
        s_waitcnt vmcnt(0)
        v_cmp_eq_u32_e32 vcc, 0, v5
        s_cbranch_vccnz .LBB0_1
        {STORE}
    """
    reader = reader if seen else without(reader, "s_waitcnt")
    node, _ = message(seed, reader, writer, (0, 1))
    if seen:
        node.run()
    else:
        race(node, "race on data", "no s_waitcnt vmcnt in wave", "between the read and the flag")


# ---- writes, readers, granules -------------------------------------------------------------------------------
@modes
def test_two_workgroups_that_write_one_place(seed: int | None) -> None:
    node = make_node(1, seed)
    data = words(node, "data")
    submit(node, code(STORE), [data] * 3, blocks=2)
    text = race(node, "race on data + 0x", "no flag, counter or kernel boundary between these workgroups of one kernel")
    assert "workgroup (0, 0, 0)" in text and "workgroup (1, 0, 0)" in text
    node = make_node(1, seed)
    data = words(node, "data")
    submit(node, code(f"s_lshl_b32 s13, s2, 9\nv_add_u32_e32 v1, s13, v1\n{STORE}"), [data] * 3, blocks=2)
    node.run()
    assert data.sum() == 2 * THREADS


@modes
@pytest.mark.parametrize("heard", [0, 1])
def test_every_reader_counts(seed: int | None, heard: int) -> None:
    """Workgroups 0 and 1 read; workgroup 2 waits for one of them and then writes."""
    body = f"""
        s_cmp_eq_u32 s2, 2
        s_cbranch_scc1 .LBB0_1
        {LOAD}
        s_barrier
        s_cmp_lg_u32 s2, {heard}
        s_cbranch_scc1 .LBB0_2
        global_store_dword v3, v4, s[6:7] sc1
        s_branch .LBB0_2
    .LBB0_1:
        global_load_dword v5, v3, s[6:7] sc1
        s_waitcnt vmcnt(0)
        v_cmp_eq_u32_e32 vcc, 0, v5
        s_cbranch_vccnz .LBB0_1
        {STORE}
    .LBB0_2:
    """
    node = make_node(1, seed)
    data, flag = words(node, "data"), words(node, "flag")
    submit(node, code(STORE, name="before"), [data] * 3)
    submit(node, code(body), [data, flag, data], blocks=3)
    race(node, "race on data", f"workgroup ({1 - heard}, 0, 0)", "workgroup (2, 0, 0)")


@pytest.mark.parametrize("shift", [0, 2])
def test_neighbouring_bytes_are_no_conflict(shift: int) -> None:
    """Two waves store halves of one dword; then both store the same half."""
    for overlap in (False, True):
        node = make_node(1, None)
        data = words(node, "data")
        body = f"v_lshrrev_b32_e32 v7, {6 if not overlap else 7}, v0\nv_lshlrev_b32_e32 v7, 1, v7"
        body += f"\nglobal_store_short v7, v4, s[4:5] offset:{shift}"
        submit(node, code(body), [data] * 3)
        if overlap:
            race(node, "race on data", "no workgroup barrier between wave")
        else:
            node.run()


def test_packs_of_a_region_that_starts_at_any_element() -> None:
    """Granules count from the start of a region, so neighbours that share an aligned dword do not meet."""
    node = make_node(1, None)
    bf16 = torch.zeros(8 * 2 * THREADS + 8, dtype=torch.int16)[1:]

    node.regions.add(MemoryRegion("x", bf16.data_ptr(), 2 * bf16.numel(), 0))
    body = "s_lshl_b32 s13, s2, 11\nv_lshlrev_b32_e32 v1, 4, v0\nv_add_u32_e32 v1, s13, v1"
    submit(node, code(f"{body}\nglobal_store_dwordx4 v1, v[4:7], s[4:5]"), [bf16] * 3, blocks=2)
    node.run()


# ---- the detector itself -------------------------------------------------------------------------------------
def test_a_node_without_a_detector_runs_plain_groups() -> None:
    assert Node(1).races.group is Group
    assert make_node(1, None).races.group is not Group


def test_one_detector_serves_one_node() -> None:
    races = RaceDetector()
    Node(1, races=races)
    with pytest.raises(ConfigError, match="make a new RaceDetector"):
        Node(1, races=races)


def test_a_node_that_raced_refuses_to_go_on() -> None:
    node = make_node(1, None)
    data = words(node, "data")
    submit(node, code(STORE), [data] * 3, blocks=2)
    race(node)
    with pytest.raises(EmulatorError, match="stopped earlier: race on data"):
        node.step()


def test_more_workgroups_than_fit_at_once() -> None:
    """Slots are taken again by workgroups that know nothing of those before them."""
    node = Node(1, residency=2, races=RaceDetector())
    data = words(node, "data", 8 * THREADS)
    body = f"s_lshl_b32 s13, s2, 9\nv_add_u32_e32 v1, s13, v1\n{STORE}"
    submit(node, code(body), [data] * 3, blocks=8)
    node.run()
    node = Node(1, residency=1, races=RaceDetector())
    data = words(node, "data", 8 * THREADS)
    submit(node, code(STORE), [data] * 3, blocks=2)
    race(node, "workgroup (0, 0, 0)", "workgroup (1, 0, 0)")
