# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""All shipped kernels are clean, and the all-reduce without any one part of its order is not."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from mori_gemm_ar.audit import AuditReport, audit_kernel, audit_text, contract_named, contract_of, verdict
from mori_gemm_ar.commands.shipped import (
    FAMILIES,
    LAYERS,
    all_reduces,
    fused_gemms,
    other_tails,
    pulled_tails,
    sdma_all_reduces,
    sdma_wire_all_reduces,
    shipped_configs,
    wire_all_reduces,
)
from mori_gemm_ar.compile.store import default_store
from mori_gemm_ar.errors import IsaError
from mori_gemm_ar.isa import Instruction, parse_isa
from mori_gemm_ar.layout import AllReduceConfig, DType, Gather, GemmConfig, SmallGemmConfig, Stage, Wire
from mori_gemm_ar.layout.fused import FusedConfig
from mori_gemm_ar.plan import LayerSpec

ALL = shipped_configs()
# The largest kernel of each stage, and a small one of another type.
MUTATED = [
    AllReduceConfig(8, DType.BF16, Stage.TWO),
    AllReduceConfig(8, DType.BF16, Stage.ONE),
    AllReduceConfig(3, DType.FP32, Stage.TWO, gather=Gather.SEQUENTIAL),
]


def isa_of(config: Any) -> str:
    """The shipped text, from the store."""
    return default_store().get(config).isa


def test_the_registry_lists_every_family_once() -> None:
    keys = [config.key for config in ALL]
    assert len(set(keys)) == len(keys)
    assert len(list(all_reduces())) == 8 * 3 * 3
    assert len(list(sdma_all_reduces())) == 7 * 3 * 3
    assert {type(config).__name__ for config in ALL} == {
        "AllReduceConfig", "SdmaConfig", "GemmConfig", "SmallGemmConfig", "QuantizeConfig", "FusedConfig", "PullConfig",
        "StreamConfig", "BandsConfig",
    }  # fmt: skip
    assert len(list(wire_all_reduces())) == 7 * 2 * 3
    assert len(list(sdma_wire_all_reduces())) == 7 * 2 * 3 * 3
    assert len(list(fused_gemms())) == 2 * (2 + 3 + 3 + 2) + 4 + 4
    assert len(list(pulled_tails())) == 7 * 6
    assert len(list(other_tails())) == 7 * 3
    assert len(FAMILIES) == 8


@pytest.mark.parametrize("wire", [Wire.EXACT, Wire.FP8, Wire.FP8_BOTH])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_all_that_a_layer_may_launch_is_audited(layer: Any, wire: Wire) -> None:
    """But for the plain GEMM, which is compiled for one shape only."""
    world, recipe, n, k, b_layout = layer
    spec = LayerSpec(world, n, k, 16384, recipe, b_layout, wire)
    more = [config for config in spec.kernels() if not isinstance(config, (GemmConfig, SmallGemmConfig))]
    assert set(more) <= set(ALL)
    if wire is not Wire.FP8_BOTH:
        assert any(isinstance(config, FusedConfig) for config in more)


@pytest.mark.parametrize("config", ALL, ids=lambda config: config.key)
def test_contracts_by_type_and_by_name_agree(config: Any) -> None:
    assert contract_of(config) == contract_named(config.kernel_name)
    assert contract_of(config).declared


def test_other_kernels_declare_nothing() -> None:
    assert not contract_named("vector_add").declared
    with pytest.raises(IsaError, match="write a contract"):
        contract_of("vector_add")


@pytest.mark.parametrize("config", ALL, ids=lambda config: config.key)
def test_shipped_kernels_are_clean(config: Any) -> None:
    report = audit_text(isa_of(config), config)
    assert report.ok, "\n".join(report.lines())
    assert verdict(isa_of(config), config.kernel_name)["verdict"] == "pass"


def test_threads_are_declared_too() -> None:
    config = AllReduceConfig(2, DType.BF16, Stage.TWO, threads=256)
    assert audit_text(isa_of(config), config).ok


def test_an_audit_is_cheap_enough_for_every_mutant() -> None:
    kernel = parse_isa(isa_of(MUTATED[0])).kernel(MUTATED[0].kernel_name)
    contract = contract_of(MUTATED[0])
    audit_kernel(kernel, contract)
    start = time.process_time()
    for _ in range(5):
        audit_kernel(kernel, contract)
    assert (time.process_time() - start) / 5 < 0.05


# ---- mutations ----------------------------------------------------------------------------------------------------


class Text:
    """A shipped text whose lines can be changed one at a time."""

    def __init__(self, config: AllReduceConfig) -> None:
        self.config, self.isa = config, isa_of(config)
        self.lines = self.isa.splitlines()
        self.code = parse_isa(self.isa).kernel(config.kernel_name).instructions

    def with_line(self, i: Instruction, changed: str) -> AuditReport:
        """The report on the text with one instruction replaced."""
        lines = list(self.lines)
        lines[i.line - 1] = f"\t{changed}"
        return audit_text("\n".join(lines), self.config)

    def named(self, name: str) -> list[Instruction]:
        """All instructions of a name."""
        return [i for i in self.code if i.name == name]

    def scoped(self) -> Iterator[Instruction]:
        """All accesses of system scope."""
        return (i for i in self.code if i.has("sc0") and i.has("sc1"))


@pytest.fixture(scope="module", params=MUTATED, ids=lambda config: config.key)
def text(request: pytest.FixtureRequest) -> Text:
    return Text(request.param)


def is_last_of_record(text: Text, i: Instruction) -> bool:
    """The wait after the status word: nothing of this wave comes after it that the host could see."""
    before = text.code[i.index - 1]
    return before.name == "global_store_dwordx4" and before.has("sc1") and not before.has("offset")


def test_every_wait_is_needed(text: Text) -> None:
    by_rule: dict[str, int] = {}
    for i in text.named("s_waitcnt"):
        report = text.with_line(i, "s_nop 0")
        if is_last_of_record(text, i):
            assert report.ok
            continue
        assert not report.ok, f"{i} can go and no rule says so"
        for rule in report.failed:
            by_rule[rule] = by_rule.get(rule, 0) + 1
    # Most waits are for register results; the others belong to the order of stores, LDS and fences.
    assert by_rule["register_waits"] > 0.7 * len(text.named("s_waitcnt"))
    assert {"register_waits", "publish_order", "writeback_wait", "store_order"} <= by_rule.keys()


def test_every_wait_is_tight(text: Text) -> None:
    for i in text.named("s_waitcnt"):
        if is_last_of_record(text, i):
            continue
        for counter, count in re.findall(r"(vmcnt|lgkmcnt)\((\d+)\)", i.text):
            loose = i.text.replace(f"{counter}({count})", f"{counter}({int(count) + 1})")
            assert not text.with_line(i, loose).ok, f"{i} can be {loose!r} and no rule says so"


def test_fences_are_needed(text: Text) -> None:
    (writeback,), (invalidate,) = text.named("buffer_wbl2"), text.named("buffer_inv")
    assert {"publish_order", "one_release"} <= set(text.with_line(writeback, "s_nop 0").failed)
    assert "publish_order" in text.with_line(writeback, "buffer_wbl2 sc1").failed
    assert "acquire_after_wait" in text.with_line(invalidate, "s_nop 0").failed
    assert "acquire_after_wait" in text.with_line(invalidate, "buffer_inv sc1").failed
    wait = text.code[writeback.index + 1]
    assert {"publish_order", "writeback_wait"} <= set(text.with_line(wait, "s_nop 0").failed)


def test_scopes_are_needed(text: Text) -> None:
    for i in text.scoped():
        for weaker in ("", "sc1"):
            report = text.with_line(i, re.sub(r"sc0 sc1", weaker, i.text))
            assert not report.ok, i
            if "_load_" in i.name:
                assert "wait_loops" in report.failed


def test_barriers_are_needed(text: Text) -> None:
    first, second = text.named("s_barrier")
    assert "publish_order" in text.with_line(first, "s_nop 0").failed
    assert "barrier_balance" in text.with_line(second, "s_nop 0").failed
    # One more for the releasing wave alone.
    (writeback,) = text.named("buffer_wbl2")
    assert "barrier_balance" in text.with_line(writeback, f"s_barrier\n\t{writeback.text}").failed


def test_the_wait_is_bounded(text: Text) -> None:
    (branch,) = text.named("s_cbranch_vccnz")
    assert "bounded_waits" in text.with_line(branch, f"s_branch {branch.target}").failed
    assert "wait_loops" in text.with_line(branch, "s_nop 0").failed
    clock = text.named("s_memrealtime")[-1]  # the one inside the loop
    report = text.with_line(clock, f"s_mov_b64 {clock.operands[0]}, 0")
    assert "bounded_waits" in report.failed
    assert any(f"line {poll.line}: {poll.text}" in line for poll in text.scoped() for line in report.lines())


def test_no_read_modify_write_of_a_peer(text: Text) -> None:
    (claim,) = text.named("global_atomic_cmpswap")
    report = text.with_line(claim, f"{claim.text} sc1")
    assert {"peer_atomics", "cache_policy"} <= set(report.failed)
    assert any(
        line.startswith(f"peer_atomics: {text.config.kernel_name}: line {claim.line}: ") for line in report.lines()
    )


def test_one_wave_releases(text: Text) -> None:
    """The branch that sends waves 1 to 7 past the release."""
    (writeback,) = text.named("buffer_wbl2")
    branch = next(i for i in reversed(text.code[: writeback.index]) if i.name.startswith("s_cbranch"))
    assert "one_release" in text.with_line(branch, "s_nop 0").failed
