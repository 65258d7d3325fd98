# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The self-test of copy engines with a lossy wire: every fault is found, and the leg is named."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.layout import Wire
from mori_gemm_ar.layout.sdma import Transport
from mori_gemm_ar.runtime import LocalWorld, RankContext
from tests.ranks.test_sdma_self_test import SWITCHES, TEXTS, TIMEOUT_S, settings
from tests.ranks.wire_data import LOSSY
from tests.ranks.worlds import BF16, errors, fresh, require_bits, run

each_wire = pytest.mark.parametrize("wire", LOSSY, ids=lambda wire: wire.value)


def create(ctx: RankContext, wire: Wire, queues: int = 1) -> AllReduceOp:
    return AllReduceOp.create(
        ctx, 1 << 14, transport="sdma", wire=wire, queues=queues, timeout_s=TIMEOUT_S, dtypes=(BF16,)
    )


@each_wire
@pytest.mark.parametrize("place", [(1, 0, 0), (0, 2, 1), (2, 1, 7)])
@pytest.mark.parametrize("switch", SWITCHES)
def test_a_fault_of_one_queue(switch: str, place: tuple[int, int, int], wire: Wire) -> None:
    """All ranks name sender, receiver and leg, and where data tells it, the queue."""
    rank, peer, queue = place
    wanted = TEXTS[switch].format(rank=rank, peer=peer, queue=f", queue {queue}" if queue else "")
    outcomes = LocalWorld(3, engines=settings(switch, (place,))).outcomes(lambda ctx: create(ctx, wire, queue + 1))
    for number, outcome in enumerate(outcomes):
        assert re.search(wanted, str(outcome.error)), (number, str(outcome.error))


def test_without_a_fault_it_passes() -> None:
    """Negative control, and later calls are right."""

    def body(ctx: RankContext) -> None:
        for wire in LOSSY:
            with create(ctx, wire, 8) as op:
                x = fresh((5, 48), BF16, ctx.rank)
                before = op(x)
                op.self_test()
                require_bits(op(x), before, wire=wire)

    run(3, body)


# Region, and the rank whose slot in it is spoilt on rank 1.
SPOILT = {
    "scatter leg by copy engine, rank 2 to rank 1": ("landing", 2),
    "reduce of rank 1": ("gathered", 1),
    "gather leg by copy engine, rank 0 to rank 1": ("gathered", 0),
}


@each_wire
@pytest.mark.parametrize("text", SPOILT)
def test_a_wrong_byte_names_its_leg(text: str, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    run_test, (region, slot) = AllReduceOp._run_test, SPOILT[text]

    def spoils(op: AllReduceOp, kind: Transport, call: Any) -> None:
        run_test(op, kind, call)
        if op.rank == 1:
            window = op._require_window()
            at = window.at(region) + window.map.region(region).nbytes // 3 * slot + 40
            old = op.target.read(at, 4)
            op.target.write(at, bytes([old[0] ^ 1, *old[1:]]))

    monkeypatch.setattr(AllReduceOp, "_run_test", spoils)
    for error in errors(3, lambda ctx: create(ctx, wire)):
        assert f"self-test, {text}" in str(error), str(error)


@each_wire
@pytest.mark.parametrize("region", ["landing", "gathered"])
def test_a_write_past_the_data(region: str, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    run_test = AllReduceOp._run_test

    def spills(op: AllReduceOp, kind: Transport, call: Any) -> None:
        run_test(op, kind, call)
        if op.rank == 1:
            op.target.write(dict(op._test()._guards())[region], b"\0\0\0\1")

    monkeypatch.setattr(AllReduceOp, "_run_test", spills)
    for error in errors(3, lambda ctx: create(ctx, wire)):
        assert f"wrote past its data in region {region!r} of the window" in str(error), str(error)
