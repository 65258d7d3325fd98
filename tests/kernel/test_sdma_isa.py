# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The submit code as it is compiled: what the audit says of it, and that it is what contracts count with."""

from __future__ import annotations

import pytest

from mori_gemm_ar.audit import KernelContract, Policy, Poll, Posts, Publish, Spelling, audit_kernel
from mori_gemm_ar.audit.contract import DRAIN_POLL, DRAIN_SCOPED, PUT_SCOPED, PUT_STORES, SIGNAL_STORES, counted
from mori_gemm_ar.compile.build import build
from mori_gemm_ar.isa import basic_blocks, parse_isa
from mori_gemm_ar.layout import DType
from mori_gemm_ar.layout.sdma import SdmaConfig, SdmaPhase, sdma_config
from tests.kernel.sdma_kernels import build_put, build_send

FLAG, LOOK = Spelling("global_store_dwordx2", Policy.SYSTEM), Spelling("global_load_dwordx2", Policy.SYSTEM)
WRITEBACK = Spelling("buffer_wbl2", Policy.SC1)
DATA = Spelling("global_store_dword")


CONTRACTS = {
    "drain": KernelContract(
        "send_release_drain",
        waves=2,
        releases=1,
        publishes=(Publish(FLAG, Policy.SC1),),
        polls=(Poll(DRAIN_POLL, Policy.SYSTEM),),
        posts=Posts(1),
        scoped=counted(*PUT_SCOPED, *DRAIN_SCOPED, (FLAG, 1), (WRITEBACK, 1)),
        stores=counted(*PUT_STORES, (DATA, 1), (FLAG, 1)),
    ),
    "signal": KernelContract(
        "send_release_signal",
        waves=2,
        releases=1,
        publishes=(Publish(FLAG, Policy.SC1),),
        polls=(Poll(LOOK, Policy.SYSTEM),),
        posts=Posts(1),
        scoped=counted(*PUT_SCOPED, (LOOK, 1), (FLAG, 1), (WRITEBACK, 1)),
        stores=counted(*PUT_STORES, *SIGNAL_STORES, (DATA, 1), (FLAG, 1)),
    ),
}


def audited(wait: str, isa: str | None = None):
    code = build_send(wait=wait)
    return audit_kernel(parse_isa(isa or code.isa).kernel(code.kernel), CONTRACTS[wait])


@pytest.mark.parametrize("wait", CONTRACTS)
def test_a_sender_passes_the_audit(wait: str) -> None:
    report = audited(wait)
    assert report.ok, report.lines()
    code = build_send(wait=wait)
    assert code.manifest["audit"]["verdict"] == "pass"
    assert (code.manifest["resources"]["vgpr_spills"], code.manifest["resources"]["scratch_bytes"]) == (0, 0)


@pytest.mark.parametrize("signal", [False, True])
def test_puts_in_a_loop_of_some_lanes_pass_it_too(signal: bool) -> None:
    """What a put waits for must not count as what its kernel's loop waits for."""
    report = build_put(signal=signal).manifest["audit"]
    assert (report["verdict"], report["findings"]) == ("pass", [])


@pytest.mark.parametrize("wait", CONTRACTS)
@pytest.mark.parametrize("number", [0, 1])
def test_both_waits_around_the_doorbell_are_looked_for(wait: str, number: int) -> None:
    parts = build_send(wait=wait).isa.split("\ts_waitcnt vmcnt(0)\n\t;;#ASMEND\n")
    assert len(parts) == 3
    joints = ["\ts_waitcnt vmcnt(0)\n\t;;#ASMEND\n", "\ts_waitcnt vmcnt(0)\n\t;;#ASMEND\n"]
    joints[number] = "\t;;#ASMEND\n"
    assert "doorbell_order" in audited(wait, parts[0] + joints[0] + parts[1] + joints[1] + parts[2]).failed


@pytest.mark.parametrize("wait", CONTRACTS)
def test_the_release_is_looked_for(wait: str) -> None:
    isa = build_send(wait=wait).isa
    report = audited(wait, isa.replace("\tbuffer_wbl2 sc1\n", "", 1))
    assert {"doorbell_order", "publish_order"} <= set(report.failed)


# --- the all-reduce ---

ALL_REDUCES = [sdma_config(world, dtype, phase) for world in (2, 3, 8) for dtype in DType for phase in SdmaPhase]
# Of bf16 at eight ranks. A put, a drain and two records of a failure are most of the first two.
BOUNDS = {
    SdmaPhase.SCATTER: {"vgpr": 54, "sgpr": 41, "instructions": 387},
    SdmaPhase.REDUCE: {"vgpr": 64, "sgpr": 56, "instructions": 669},
    SdmaPhase.GATHER: {"vgpr": 8, "sgpr": 22, "instructions": 49},
}


@pytest.mark.parametrize("config", ALL_REDUCES, ids=lambda config: config.key)
def test_nothing_spills(config: SdmaConfig) -> None:
    manifest = build(config).manifest
    resources = manifest["resources"]
    assert resources["vgpr_spills"] == resources["sgpr_spills"] == resources["scratch_bytes"] == 0
    assert resources["vgpr"] <= 64
    assert resources["agpr"] == resources["lds_bytes"] == 0
    assert (manifest["audit"]["verdict"], manifest["audit"]["declared"]) == ("pass", True)


@pytest.mark.parametrize("phase", SdmaPhase)
def test_resources_stay_within_their_bounds(phase: SdmaPhase) -> None:
    resources = build(sdma_config(8, DType.BF16, phase)).manifest["resources"]
    assert {name: resources[name] for name in BOUNDS[phase] if resources[name] > BOUNDS[phase][name]} == {}


@pytest.mark.parametrize("world", [2, 8])
def test_a_pack_is_summed_with_one_load_for_each_rank(world: int) -> None:
    """In one loop: packs come by 16 bytes, and leave by one store."""
    config = sdma_config(world, DType.BF16, SdmaPhase.REDUCE)
    kernel = parse_isa(build(config).isa).kernel(config.kernel_name)
    loops = [
        kernel.instructions[block.start : block.end]
        for block in basic_blocks(kernel)
        if block.number in block.successors
    ]
    names = [[i.name for i in loop] for loop in loops]
    (summing,) = [loop for loop in names if "global_load_dwordx4" in loop]
    assert summing.count("global_load_dwordx4") == world
    assert summing.count("global_store_dwordx4") == 1
