# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The kernels of the copy-engine all-reduce without any one part of their order: the audit says which rule breaks."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest

from mori_gemm_ar.audit import AuditReport, Publish, Spelling, audit_kernel, audit_text, contract_named, contract_of
from mori_gemm_ar.audit.policies import Policy
from mori_gemm_ar.compile.store import default_store
from mori_gemm_ar.isa import Instruction, parse_isa
from mori_gemm_ar.layout import DType
from mori_gemm_ar.layout.sdma import SdmaConfig, SdmaPhase, sdma_config

SCATTER, REDUCE, GATHER = (sdma_config(3, DType.BF16, phase) for phase in SdmaPhase)
every_phase = pytest.mark.parametrize("config", [SCATTER, REDUCE, GATHER], ids=lambda config: config.key)
exchanging = pytest.mark.parametrize("config", [SCATTER, REDUCE], ids=lambda config: config.key)


@cache
def code(config: SdmaConfig) -> tuple[str, tuple[Instruction, ...]]:
    isa = default_store().get(config).isa
    return isa, parse_isa(isa).kernel(config.kernel_name).instructions


def changed(config: SdmaConfig, i: Instruction, text: str) -> AuditReport:
    """The report on the text with one instruction replaced."""
    lines = code(config)[0].splitlines()
    lines[i.line - 1] = f"\t{text}"
    return audit_text("\n".join(lines), config)


def named(config: SdmaConfig, name: str, *flags: str) -> list[Instruction]:
    return [i for i in code(config)[1] if i.name == name and all(i.has(flag) for flag in flags)]


def test_contracts_by_name() -> None:
    """Worlds that have copy engines, and threads that do not ship."""
    config = SdmaConfig(3, DType.BF16, SdmaPhase.REDUCE, 256)
    assert contract_named(config.kernel_name) == contract_of(config)
    assert contract_of(config).waves == 4
    assert audit_text(default_store().get(config).isa, config).ok
    for name in ("sdma_scatter_w1_bf16", "sdma_scatter_w9_bf16", "sdma_push_w2_bf16", "sdma_reduce_w2_fp8"):
        assert not contract_named(name).declared


# The compiler's wait at the head of a loop, for loads that it has waited for on all ways there.
REDUNDANT = r"v_mov_b64_e32 .*"
LAST_OF_RECORD = r"global_store_dwordx4 .*\] sc0 sc1"


@exchanging
def test_every_wait_is_needed(config: SdmaConfig) -> None:
    _, instructions = code(config)
    by_rule: dict[str, int] = {}
    spared = []
    for i in instructions:
        if i.name != "s_waitcnt":
            continue
        report = changed(config, i, "s_nop 0")
        if report.ok:
            spared.append(instructions[i.index - 1].text)
        for rule in report.failed:
            by_rule[rule] = by_rule.get(rule, 0) + 1
    assert {"register_waits", "doorbell_order", "store_order"} <= by_rule.keys()
    assert len(spared) <= 3, spared
    assert all(re.fullmatch(f"{REDUNDANT}|{LAST_OF_RECORD}", text) for text in spared), spared
    assert len([text for text in spared if re.fullmatch(REDUNDANT, text)]) == 1


def test_the_release_is_needed() -> None:
    """In the reduce kernel, before it counts, puts and raises flags."""
    (release,) = named(REDUCE, "buffer_wbl2")
    assert {"publish_order", "doorbell_order", "one_release"} <= set(changed(REDUCE, release, "s_nop 0").failed)
    assert {"publish_order", "doorbell_order"} <= set(changed(REDUCE, release, "buffer_wbl2 sc1").failed)
    _, last = named(REDUCE, "s_barrier")
    assert {"publish_order", "doorbell_order"} <= set(changed(REDUCE, last, "s_nop 0").failed)
    (count,) = named(REDUCE, "global_atomic_inc")
    assert "peer_atomics" in changed(REDUCE, count, f"{count.text} sc1").failed


@pytest.mark.parametrize("config", [REDUCE, GATHER], ids=lambda config: config.key)
def test_the_acquire_is_declared(config: SdmaConfig) -> None:
    (acquire,) = named(config, "buffer_inv", "sc0")
    assert "cache_policy" in changed(config, acquire, "s_nop 0").failed
    assert "cache_policy" in changed(config, acquire, "buffer_inv sc1").failed


@exchanging
def test_scopes_are_needed(config: SdmaConfig) -> None:
    scoped = [i for i in code(config)[1] if i.has("sc1")]
    assert len(scoped) > 15
    for i in scoped:
        assert not changed(config, i, re.sub(r" (sc0 )?sc1\b", "", i.text)).ok, i


@exchanging
def test_drain_and_flag_are_waited_for_with_a_bound(config: SdmaConfig) -> None:
    """Each wait loop without its branch back is missed, and one that never gives up is noticed."""
    branches = [i for i in code(config)[1] if i.name in ("s_cbranch_vccnz", "s_cbranch_execnz", "s_cbranch_vccz")]
    back = [i for i in branches if parse_isa(code(config)[0]).kernel(config.kernel_name).labels[i.target] <= i.index]
    missed = [i for i in back if "wait_loops" in changed(config, i, "s_nop 0").failed]
    assert len(missed) >= 2
    assert all("bounded_waits" in changed(config, i, f"s_branch {i.target}").failed for i in missed)


@exchanging
def test_the_flag_is_counted(config: SdmaConfig) -> None:
    flags = named(config, "global_store_dwordx2", "sc0", "sc1")
    assert len(flags) == 2  # the doorbell, then the flag
    assert {"publish_order", "cache_policy", "store_widths"} <= set(changed(config, flags[1], "s_nop 0").failed)


@every_phase
def test_what_leaves_the_engines_is_no_store_of_another_width(config: SdmaConfig) -> None:
    stores = [i for i in code(config)[1] if i.name == "global_store_dwordx4" and not i.has("sc1")]
    assert stores
    assert "store_widths" in changed(config, stores[-1], "s_nop 0").failed


def test_a_kernel_that_declares_no_release_must_not_store_before_it_publishes() -> None:
    """The scatter kernel's contract on the reduce kernel's order of events."""
    contract = contract_of(REDUCE)
    flag = Spelling("global_store_dwordx2", Policy.SYSTEM)
    free = replace(contract, publishes=(contract.publishes[0], Publish(flag, release=None)))
    kernel = parse_isa(code(REDUCE)[0]).kernel(REDUCE.kernel_name)
    assert audit_kernel(kernel, free).ok
    # With a store of its own right before the flag it is not.
    (_, told) = named(REDUCE, "global_store_dwordx2", "sc0", "sc1")
    lines = code(REDUCE)[0].splitlines()
    lines[told.line - 1] = f"\tglobal_store_dword v0, v0, s[10:11]\n{lines[told.line - 1]}"
    report = audit_kernel(parse_isa("\n".join(lines)).kernel(REDUCE.kernel_name), free)
    assert any("must be released first" in line for line in report.lines()), report.lines()
