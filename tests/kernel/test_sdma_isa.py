# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The submit code as it is compiled: what the audit says of it, and that it is what contracts count with."""

from __future__ import annotations

import pytest

from mori_gemm_ar.audit import KernelContract, Policy, Poll, Posts, Publish, Spelling, audit_kernel
from mori_gemm_ar.audit.contracts import DRAIN_POLL, DRAIN_SCOPED, PUT_SCOPED, PUT_STORES, SIGNAL_STORES
from mori_gemm_ar.isa import parse_isa
from tests.kernel.sdma_kernels import build_put, build_send

FLAG, LOOK = Spelling("global_store_dwordx2", Policy.SYSTEM), Spelling("global_load_dwordx2", Policy.SYSTEM)
WRITEBACK = Spelling("buffer_wbl2", Policy.SC1)
DATA = Spelling("global_store_dword")


def added(*rows: tuple[tuple[Spelling, int], ...]) -> tuple[tuple[Spelling, int], ...]:
    counts: dict[Spelling, int] = {}
    for spelling, count in (pair for row in rows for pair in row):
        counts[spelling] = counts.get(spelling, 0) + count
    return tuple(counts.items())


CONTRACTS = {
    "drain": KernelContract(
        "send_release_drain",
        waves=2,
        releases=1,
        publishes=(Publish(FLAG, Policy.SC1),),
        polls=(Poll(DRAIN_POLL, Policy.SYSTEM),),
        posts=Posts(1),
        scoped=added(PUT_SCOPED, DRAIN_SCOPED, ((FLAG, 1), (WRITEBACK, 1))),
        stores=added(PUT_STORES, ((DATA, 1), (FLAG, 1))),
    ),
    "signal": KernelContract(
        "send_release_signal",
        waves=2,
        releases=1,
        publishes=(Publish(FLAG, Policy.SC1),),
        polls=(Poll(LOOK, Policy.SYSTEM),),
        posts=Posts(1),
        scoped=added(PUT_SCOPED, ((LOOK, 1), (FLAG, 1), (WRITEBACK, 1))),
        stores=added(PUT_STORES, SIGNAL_STORES, ((DATA, 1), (FLAG, 1))),
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
