# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The fused GEMM and the pulled tail without any one part of their order: the audit says which rule breaks."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from mori_gemm_ar.audit import (
    AuditReport,
    KernelContract,
    Policy,
    Publish,
    Spelling,
    audit_text,
    contract_named,
    contract_of,
    verdict,
)
from mori_gemm_ar.compile.store import default_store
from mori_gemm_ar.isa import Instruction, parse_isa
from mori_gemm_ar.layout import BLayout, GemmConfig, Recipe, Tile, Wire
from mori_gemm_ar.layout.fused import FusedConfig
from mori_gemm_ar.layout.pull import PullConfig, PullPhase
from mori_gemm_ar.layout.sdma import Transport
from tests.unit.audit_texts import audited, caught

GEMM = GemmConfig(Recipe.PTPC, 256, 128, Tile.M128_N256, BLayout.ROW)
PUT, STORE = FusedConfig(GEMM, 2, Transport.SDMA), FusedConfig(GEMM, 2, Transport.LSA, 1)
MEET_ENGINES, MEET_STORES = (PullConfig(3, PullPhase.MEET, push) for push in (Transport.SDMA, Transport.LSA))
SUM, SUM_GROUPS = (PullConfig(3, PullPhase.SUM, wire=wire) for wire in (Wire.EXACT, Wire.FP8))
PULL, PULL_GROUPS = (PullConfig(3, PullPhase.PULL, wire=wire) for wire in (Wire.EXACT, Wire.FP8))
TAIL = [MEET_ENGINES, MEET_STORES, SUM, SUM_GROUPS, PULL, PULL_GROUPS]
key = lambda config: config.key  # noqa: E731


@cache
def code(config: Any) -> tuple[str, tuple[Instruction, ...]]:
    isa = default_store().get(config).isa
    return isa, parse_isa(isa).kernel(config.kernel_name).instructions


def changed(config: Any, i: Instruction, text: str) -> AuditReport:
    """The report on the text with one instruction replaced."""
    lines = code(config)[0].splitlines()
    lines[i.line - 1] = f"\t{text}"
    return audit_text("\n".join(lines), config)


def swapped(config: Any, one: Instruction, other: Instruction) -> AuditReport:
    """The report on the text with two instructions exchanged."""
    lines = code(config)[0].splitlines()
    lines[one.line - 1], lines[other.line - 1] = lines[other.line - 1], lines[one.line - 1]
    return audit_text("\n".join(lines), config)


def named(config: Any, name: str, *flags: str) -> list[Instruction]:
    return [i for i in code(config)[1] if i.name == name and all(i.has(flag) for flag in flags)]


@pytest.mark.parametrize("config", [PUT, STORE, *TAIL], ids=key)
def test_the_kernels_hold_what_they_declare(config: Any) -> None:
    isa = code(config)[0]
    report = audit_text(isa, config)
    assert report.ok, report.lines()
    said = verdict(isa, config.kernel_name)
    assert said["verdict"] == "pass" and said["declared"] is True
    assert default_store().get(config).manifest["audit"]["declared"] is True
    assert contract_of(config) == contract_named(config.kernel_name)


def test_names_that_no_config_has_declare_nothing() -> None:
    for name in (
        "fused_sdma_w1_gemm_ptpc_128x256_n256_k128_row", "fused_rdma_w2_gemm_ptpc_128x256_n256_k128_row",
        "fused_sdma_w2_gemm_small_mxfp8_m16_n256_k128_row", "tail_meet_w2", "tail_sum_w9", "tail_pull_w1",
        "tail_sum_w2_fp8both", "tail_meet_w2_sdma_fp8",
    ):  # fmt: skip
        assert not contract_named(name).declared, name


# --- push by SDMA: stores, vmcnt(0), barrier, writeback, vmcnt(0), count, vmcnt(0), invalidate, put ---


def around_the_count() -> dict[str, Instruction]:
    """The parts of the hand-over, in order."""
    instructions = code(PUT)[1]
    (count,) = named(PUT, "global_atomic_inc")
    (release,), (acquire,) = named(PUT, "buffer_wbl2"), named(PUT, "buffer_inv")
    barrier = [i for i in named(PUT, "s_barrier") if i.index < release.index][-1]
    stores_out = next(i for i in reversed(instructions[: barrier.index]) if i.name == "s_waitcnt")
    last_store = [i for i in named(PUT, "buffer_store_dwordx4") if i.index < barrier.index][-1]
    assert last_store.index < stores_out.index < barrier.index < release.index < count.index < acquire.index
    released, answered = instructions[release.index + 1], instructions[count.index + 1]
    assert {i.text for i in (stores_out, released, answered)} == {"s_waitcnt vmcnt(0)"}
    return {
        "stores out": stores_out, "barrier": barrier, "release": release, "released": released, "count": count,
        "answered": answered, "acquire": acquire,
    }  # fmt: skip


# part -> (what replaces it, rules that say so)
WITHOUT = {
    "stores out": ("s_nop 0", {"publish_order", "doorbell_order"}),
    "barrier": ("s_nop 0", {"publish_order", "doorbell_order"}),
    "release": ("s_nop 0", {"publish_order", "doorbell_order", "one_release", "cache_policy"}),
    "released": ("s_nop 0", {"publish_order", "writeback_wait"}),
    "count": ("s_nop 0", {"publish_order", "cache_policy"}),
    "answered": ("s_nop 0", {"acquire_after_count", "register_waits"}),
    "acquire": ("s_nop 0", {"acquire_after_count", "cache_policy"}),
}


@pytest.mark.parametrize("part", WITHOUT)
def test_every_part_of_the_hand_over_is_needed(part: str) -> None:
    """L7 to L11: one release, carried by the count, behind a barrier that all stores of the block have passed."""
    text, rules = WITHOUT[part]
    assert rules <= set(changed(PUT, around_the_count()[part], text).failed)


def test_the_count_reaches_the_other_xcds_and_no_peer() -> None:
    parts = around_the_count()
    assert "publish_order" in changed(PUT, parts["release"], "buffer_wbl2 sc0").failed
    assert "cache_policy" in changed(PUT, parts["release"], "buffer_wbl2 sc0 sc1").failed  # dearer, and not needed
    assert "peer_atomics" in changed(PUT, parts["count"], f"{parts['count'].text} sc1").failed
    assert {"publish_order", "store_widths", "one_release"} & set(
        changed(PUT, parts["barrier"], "s_barrier\n\tbuffer_wbl2 sc1\n\ts_waitcnt vmcnt(0)").failed
    )


def test_the_count_comes_between_release_and_acquire() -> None:
    parts = around_the_count()
    assert "publish_order" in swapped(PUT, parts["release"], parts["count"]).failed
    assert "acquire_after_count" in swapped(PUT, parts["acquire"], parts["count"]).failed
    assert "acquire_after_count" in swapped(PUT, parts["acquire"], parts["answered"]).failed


def test_one_wave_counts() -> None:
    """The branch that sends waves 1 to 7 past the hand-over, and the one that leaves lane 0."""
    parts = around_the_count()
    branches = [i for i in code(PUT)[1][parts["barrier"].index : parts["release"].index] if "cbranch" in i.name]
    found = [changed(PUT, branch, "s_nop 0") for branch in branches]
    assert any("doorbell_order" in report.failed or "one_release" in report.failed for report in found)


def test_one_put() -> None:
    doorbells = named(PUT, "global_store_dwordx2", "sc0", "sc1")
    assert len(doorbells) == 1
    assert {"doorbell_order", "cache_policy", "store_widths"} <= set(changed(PUT, doorbells[0], "s_nop 0").failed)


@pytest.mark.parametrize("config", [PUT, STORE], ids=key)
def test_c_leaves_in_packs_and_as_often_as_declared(config: FusedConfig) -> None:
    stores = named(config, "buffer_store_dwordx4")
    assert len(stores) == 128 * 256 * 2 // (512 * 16)
    report = changed(config, stores[0], stores[0].text.replace("dwordx4", "dwordx2"))
    assert "store_widths" in report.failed
    assert "store_widths" in changed(config, stores[0], "s_nop 0").failed
    assert "cache_policy" in changed(config, stores[0], f"{stores[0].text} nt").failed


@pytest.mark.parametrize("config", [PUT, STORE], ids=key)
def test_barriers_of_the_main_loop_stay_balanced(config: FusedConfig) -> None:
    """L4 and L5 hold for the fused kernels too: a barrier for half of the waves is found."""
    (release,) = named(config, "buffer_wbl2")
    assert "barrier_balance" in changed(config, release, f"s_barrier\n\t{release.text}").failed


# --- stores that the next kernel tells of ---

ENDS = [STORE, SUM, SUM_GROUPS]


@pytest.mark.parametrize("config", ENDS, ids=key)
def test_what_is_stored_for_peers_is_released_when_the_kernel_ends(config: Any) -> None:
    """L7 and L16: in every block that wrote, and nothing else of the kernel says so."""
    (release,) = named(config, "buffer_wbl2")
    assert {"released_end", "one_release"} <= set(changed(config, release, "s_nop 0").failed)
    assert "released_end" in changed(config, release, "buffer_wbl2 sc1").failed
    waited = code(config)[1][release.index + 1]
    assert waited.name == "s_waitcnt"
    assert {"released_end", "writeback_wait"} <= set(changed(config, waited, "s_nop 0").failed)
    barrier = [i for i in named(config, "s_barrier") if i.index < release.index][-1]
    assert "released_end" in changed(config, barrier, "s_nop 0").failed
    before = [i for i in code(config)[1][: barrier.index] if i.name == "s_waitcnt" and "vmcnt(0)" in i.text][-1]
    assert "released_end" in changed(config, before, "s_nop 0").failed
    # Moved behind the release, a store is not part of it.
    store = [i for i in code(config)[1] if i.name.startswith(("buffer_store", "global_store"))][-1]
    assert "released_end" in changed(config, waited, f"s_waitcnt vmcnt(0)\n\t{store.text}").failed


ENDING = """
    global_store_dwordx4 v1, v[4:7], s[0:1]
    v_readfirstlane_b32 s2, v0
    s_cmp_gt_u32 s2, 63
    s_waitcnt vmcnt(0)
    s_barrier
    s_cbranch_scc1 .LBB0_4
    buffer_wbl2 sc0 sc1
    s_waitcnt vmcnt(0)
    .LBB0_4:
    s_endpgm
"""
ENDS_RELEASED = KernelContract("k", waves=8, releases=1, ends=Policy.SYSTEM)


def test_a_store_of_a_wave_that_leaves_early_is_noticed() -> None:
    assert audited(ENDING, ENDS_RELEASED).ok
    late = ENDING.replace("s_cbranch_scc1 .LBB0_4\n", "s_cbranch_scc1 .LBB0_3\n").replace(
        "    .LBB0_4:\n", "    s_endpgm\n    .LBB0_3:\n    global_store_dword v1, v4, s[0:1]\n    s_waitcnt vmcnt(0)\n"
    )
    caught(audited(late, ENDS_RELEASED), "released_end", late, "s_endpgm", 2)
    # A wave that skips its wait leaves the release without its stores.
    skip = "    s_cbranch_scc1 .LBB0_2\n    s_waitcnt vmcnt(0)\n    .LBB0_2:\n    s_barrier\n"
    lazy = ENDING.replace("    s_waitcnt vmcnt(0)\n    s_barrier\n", skip)
    assert "released_end" in audited(lazy, ENDS_RELEASED).failed


def test_a_count_that_nobody_acquires_after_is_noticed() -> None:
    body = """
        v_mov_b32_e32 v2, 3
        s_waitcnt vmcnt(0)
        s_barrier
        buffer_wbl2 sc1
        s_waitcnt vmcnt(0)
        global_atomic_inc v3, v1, v2, s[0:1] sc0
        s_waitcnt vmcnt(0)
        buffer_inv sc1
        global_load_dword v4, v1, s[2:3]
        s_endpgm
    """
    count = Spelling("global_atomic_inc", Policy.SC0)
    contract = KernelContract("k", waves=1, publishes=(Publish(count, Policy.SC1, acquire=Policy.SC1),))
    assert audited(body, contract, waves=1).ok
    load = "global_load_dword"
    for old, new in (
        ("buffer_inv sc1", "s_nop 0"),
        ("buffer_inv sc1", "buffer_inv sc0"),
        ("s_waitcnt vmcnt(0)\n        buffer_inv", "buffer_inv"),
        ("s_waitcnt vmcnt(0)\n        buffer_inv sc1", "buffer_inv sc1\n        s_waitcnt vmcnt(0)"),
    ):
        broken = body.replace(old, new)
        assert broken != body
        caught(audited(broken, contract, waves=1), "acquire_after_count", broken, load)


# --- the tail ---


@pytest.mark.parametrize("config", [MEET_ENGINES, MEET_STORES, PULL, PULL_GROUPS], ids=key)
def test_scopes_are_needed(config: PullConfig) -> None:
    scoped = [i for i in code(config)[1] if i.has("sc1")]
    assert len(scoped) >= 7
    for i in scoped:
        assert not changed(config, i, re.sub(r" (sc0 )?sc1\b", "", i.text)).ok, i


@pytest.mark.parametrize("config", [SUM, SUM_GROUPS, PULL, PULL_GROUPS], ids=key)
def test_what_peers_wrote_is_acquired(config: PullConfig) -> None:
    (acquire,) = named(config, "buffer_inv")
    assert "cache_policy" in changed(config, acquire, "s_nop 0").failed
    assert "cache_policy" in changed(config, acquire, "buffer_inv sc1").failed
    if config.phase is PullPhase.PULL:
        assert "acquire_after_wait" in changed(config, acquire, "s_nop 0").failed


@pytest.mark.parametrize("config", [MEET_ENGINES, MEET_STORES, PULL, PULL_GROUPS], ids=key)
def test_peers_are_waited_for_with_a_bound(config: PullConfig) -> None:
    polls = named(config, "global_load_dwordx2", "sc0", "sc1")
    plain: Callable[[Instruction], str] = lambda i: re.sub(r" sc0 sc1\b", "", i.text)  # noqa: E731
    assert polls and all("wait_loops" in changed(config, poll, plain(poll)).failed for poll in polls[-1:])
    clocks = named(config, "s_memrealtime")
    reports = [changed(config, clock, f"s_mov_b64 {clock.operands[0]}, 0") for clock in clocks]
    assert any("bounded_waits" in report.failed for report in reports)


@pytest.mark.parametrize("config", [MEET_ENGINES, MEET_STORES, PULL, PULL_GROUPS], ids=key)
def test_the_flag_is_counted(config: PullConfig) -> None:
    flag = named(config, "global_store_dwordx2", "sc0", "sc1")[-1]
    assert {"publish_order", "cache_policy", "store_widths"} <= set(changed(config, flag, "s_nop 0").failed)
