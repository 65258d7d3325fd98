# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The self-test of the copy engines, negative half: no fault passes, every rank hears where and why, nothing stays."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest
import torch

from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.emulator import EVERYWHERE, EngineFaults, EngineSettings
from mori_gemm_ar.errors import CollectiveError, ConfigError, MoriGemmArError
from mori_gemm_ar.layout.sdma import Transport
from mori_gemm_ar.runtime import LocalWorld, RankContext
from tests.ranks.processes import Launcher
from tests.ranks.worlds import BF16, errors, fresh, now, reference, require_all, require_bits, run

TIMEOUT_S = 2
SWITCHES = ("absent", "no_data", "dead", "stalled", "late", "torn", "lost")
# What every rank says when the queue from rank {rank} to rank {peer} has the fault.
OWN = (
    r"rank {rank} waited 2 s for its own copy engine to rank {peer} at the %s .*: the engine is dead, stuck or too slow"
)
PUT = r"self-test, scatter leg by copy engine, rank {rank} to rank {peer}{queue}: \d+ of \d+ bytes are wrong; %s"
TEXTS = {
    "absent": r"must have copy engines on all ranks, but .*rank {rank}: queue \d of rank {rank} to peer \d is absent",
    "no_data": PUT % "the copy engines do nothing although their queues drain",
    "dead": OWN % "scatter",
    "stalled": OWN % "gather",  # after its first packet
    "late": OWN % "scatter",
    "torn": PUT % "part of a put did not land",
    "lost": OWN % "scatter",
}


def settings(switch: str, where: Any) -> EngineSettings:
    """`late` begins after the budget."""
    return EngineSettings(faults=EngineFaults(**{switch: where}, late_ticks=3 * TIMEOUT_S * 100_000_000))


def failing_create(size: int, engines: EngineSettings, queues: int) -> list[MoriGemmArError]:
    """The error of each rank. Memory, engines and threads are all given back, and load and store works."""
    threads = threading.active_count()

    def body(ctx: RankContext) -> MoriGemmArError:
        start = now(ctx)
        with pytest.raises(MoriGemmArError) as caught:
            AllReduceOp.create(ctx, 1 << 16, transport="sdma", queues=queues, timeout_s=TIMEOUT_S, dtypes=(BF16,))
        assert now(ctx) - start < 3 * TIMEOUT_S
        ctx.barrier()
        assert len(ctx.node.regions) == 0
        assert ctx.node.engines.report() == []
        assert not ctx.node.engines._engines
        ctx.barrier()
        return caught.value

    def after(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 1 << 16, transport="lsa", dtypes=(BF16,)) as op:
            require_all(op(torch.full((100,), ctx.rank + 1.0, dtype=BF16)), size * (size + 1) // 2, rank=ctx.rank)

    found = LocalWorld(size, engines=engines).run(body)
    assert threading.active_count() == threads
    LocalWorld(size, engines=engines).run(after)
    return found


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("switch", SWITCHES)
def test_a_fault_of_all_engines(switch: str, size: int) -> None:
    for rank, error in enumerate(failing_create(size, settings(switch, EVERYWHERE), 1)):
        text = str(error)
        # Each rank tells of its own engines, or of what did not come from a peer.
        who = rf"{rank}" if switch not in ("no_data", "torn") else r"\d"
        whom = r"\d" if switch not in ("no_data", "torn") else rf"{rank}"
        assert re.search(TEXTS[switch].format(rank=who, peer=whom, queue=""), text), text
        assert isinstance(error, ConfigError if switch == "absent" else CollectiveError)


ONE = {
    "only queue": (1, (1, 0, 0)),
    "second queue": (2, (0, 1, 1)),
    "last of eight queues": (8, (1, 0, 7)),
}


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("switch", SWITCHES)
def test_a_fault_of_one_queue(switch: str, name: str, size: int) -> None:
    """All ranks name the same sender, receiver and leg, and where data tells it, the queue."""
    queues, (rank, peer, queue) = ONE[name]
    place = f", queue {queue}" if queues > 1 else ""
    wanted = TEXTS[switch].format(rank=rank, peer=peer, queue=place)
    for number, error in enumerate(failing_create(size, settings(switch, ((rank, peer, queue),)), queues)):
        assert re.search(wanted, str(error)), (number, str(error))


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_fault_to_the_last_rank(switch: str) -> None:
    """Its slice is the one with the tail."""
    for error in failing_create(3, settings(switch, ((0, 2, None),)), 1):
        assert re.search(TEXTS[switch].format(rank=0, peer=2, queue=""), str(error)), str(error)


def test_without_a_fault_the_same_procedure_succeeds() -> None:
    """Negative control: what expects an error does not find one by itself."""
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        failing_create(2, EngineSettings(), 1)


def test_an_engine_that_is_late_within_the_budget_is_fine() -> None:
    engines = EngineSettings(faults=EngineFaults(late=EVERYWHERE, late_ticks=TIMEOUT_S * 50_000_000))

    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 1 << 10, transport="sdma", timeout_s=TIMEOUT_S, dtypes=(BF16,)) as op:
            require_all(op(torch.full((100,), ctx.rank + 1.0, dtype=BF16)), 3)

    LocalWorld(2, engines=engines).run(body)


@pytest.mark.parametrize("switch", ["no_data", "dead", "torn"])
def test_the_smallest_op_finds_a_fault_of_its_last_queue(switch: str) -> None:
    """One that holds a single element has queues that its calls may not even use."""
    engines = settings(switch, ((0, 1, 7),))

    def body(ctx: RankContext) -> None:
        AllReduceOp.create(ctx, 2, transport="sdma", queues=8, timeout_s=TIMEOUT_S, dtypes=(BF16,))

    for outcome in LocalWorld(2, engines=engines).outcomes(body):
        text = str(outcome.error)
        assert re.search(TEXTS[switch].format(rank=0, peer=1, queue=", queue 7"), text), text


# --- later, on an op in use ---


@pytest.mark.parametrize("transport", ["lsa", "sdma"])
def test_a_self_test_of_an_op_in_use(transport: str) -> None:
    """It passes and leaves later results right."""

    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 1 << 14, transport=transport, queues=2, dtypes=(BF16,)) as op:
            for call in range(4):
                inputs = [fresh(3000 - call, BF16, call, rank) for rank in range(3)]
                y = op(inputs[ctx.rank])
                op.self_test()
                require_bits(y, reference(inputs), call=call, rank=ctx.rank)
                require_bits(op(inputs[ctx.rank]), reference(inputs), after="self-test", call=call, rank=ctx.rank)

    run(3, body)


def test_engines_that_fail_later_are_found_by_a_self_test() -> None:
    def body(ctx: RankContext) -> str:
        op = AllReduceOp.create(ctx, 1 << 12, transport="sdma", timeout_s=TIMEOUT_S, dtypes=(BF16,))
        require_all(op(torch.full((100,), ctx.rank + 1.0, dtype=BF16)), 6)
        ctx.barrier()
        if ctx.rank == 0:
            for engine in ctx.node.engines._engines:
                if (engine.gpu, engine.peer) == (2, 1):
                    engine._faults = frozenset({"no_data"})
        ctx.barrier()
        with pytest.raises(MoriGemmArError) as caught:
            op.self_test()
        op.close()
        return str(caught.value)

    for text in run(3, body):
        assert re.search(TEXTS["no_data"].format(rank=2, peer=1, queue=""), text), text


# A window for load and store has no landing slots.
@pytest.mark.parametrize(("transport", "region"), [("lsa", "reduced"), ("sdma", "reduced"), ("sdma", "landing")])
def test_a_write_past_the_data(transport: str, region: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One word behind what a call may write, on one rank: all ranks hear of it."""
    run_test = AllReduceOp._run_test

    def spills(op: AllReduceOp, kind: Transport, call: Any) -> None:
        run_test(op, kind, call)
        if op.rank == 1:
            behind = {name: start for name, start in op._test()._guards()}[region]
            op.target.write(behind, b"\0\0\0\1")

    monkeypatch.setattr(AllReduceOp, "_run_test", spills)

    def body(ctx: RankContext) -> None:
        AllReduceOp.create(ctx, 1 << 14, transport=transport, dtypes=(BF16,))

    for rank, error in enumerate(errors(3, body)):
        text = str(error)
        assert f"wrote past its data in region {region!r} of the window" in text, text
        assert ("rank 1 failed at step" in text) == (rank != 1), text


# --- processes ---


@pytest.mark.parametrize("switch", ["no_data", "dead"])
def test_faults_between_processes(switch: str, launcher: Launcher) -> None:
    texts = launcher.run("engine_fault", 2, {"switch": switch, "place": [1, 0, 0], "timeout_s": TIMEOUT_S})
    for text in texts:
        assert re.search(TEXTS[switch].format(rank=1, peer=0, queue=""), text), text


def test_processes_with_copy_engines(launcher: Launcher) -> None:
    assert launcher.run("reduce_by_engine", 3) == [["sdma"]] * 3
