# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Copy engines between ranks: what one rank's kernel puts, its peers find; and what faults look like from outside."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from mori_gemm_ar.emulator import EVERYWHERE, EngineFaults, EngineSettings, Node
from mori_gemm_ar.emulator.races.detector import RaceDetector
from mori_gemm_ar.emulator.weak import WeakMemory
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout.copy_queue import UNIT_BYTES
from mori_gemm_ar.runtime import CopyQueues, LocalWorld, RankContext
from tests.ranks.copying import SOURCE, TARGET, Copier
from tests.ranks.process_engine_jobs import NBYTES
from tests.ranks.processes import Launcher


def with_ranks(size: int, body: Callable[[RankContext, Copier], Any], queues: int = 1, **world: Any) -> list[Any]:
    """Results of `body`; whatever it does, nothing stays behind."""

    def run(context: RankContext) -> Any:
        copier = Copier(context, queues)
        context.barrier()
        result = body(context, copier)
        context.barrier()
        copier.close()
        context.barrier()
        assert context.node.regions.known == ()
        assert context.node.engines.report() == []
        return result

    return LocalWorld(size, **world).run(run)


def to_all(context: RankContext, copier: Copier) -> list[bytes]:
    copier.fill(SOURCE, NBYTES, context.rank + 1)
    for peer in range(context.size):
        assert copier.put(peer, SOURCE, TARGET + context.rank * NBYTES, NBYTES, signal=True) == [0, 0]
    context.barrier()
    assert copier.count() == context.size
    return [copier.read(TARGET + peer * NBYTES, NBYTES) for peer in range(context.size)]


NODES: dict[str, Callable[[int], Node]] = {
    "functional": Node,
    "races": lambda size: Node(size, races=RaceDetector()),
    "weak": lambda size: Node(size, memory=WeakMemory(3)),
}


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("ordered", [False, True])
def test_every_rank_puts_to_every_rank(node: str, ordered: bool) -> None:
    engines = EngineSettings(ordered=ordered)
    for got in with_ranks(3, to_all, node=NODES[node], engines=engines):
        assert got == [bytes([peer + 1]) * NBYTES for peer in range(3)]


def test_the_table_has_a_handle_for_every_queue() -> None:
    def body(context: RankContext, copier: Copier) -> CopyQueues:
        queues = copier.device.copy_queues
        assert queues is not None
        table = copier.target.read(queues.table, 8 * queues.world * queues.per_peer)
        handles = {table[at : at + 8] for at in range(0, len(table), 8)}
        assert len(handles) == 6
        assert b"\0" * 8 not in handles
        return queues

    for queues in with_ranks(2, body, 3):
        assert (queues.per_peer, queues.world) == (3, 2)


def test_none_are_made_unless_asked_for() -> None:
    def body(context: RankContext, copier: Copier) -> None:
        assert copier.device.copy_queues is None
        assert copier.device.copy_engine_fault is None

    with_ranks(2, body, 0)


@pytest.mark.parametrize("queues", [-1, 9, True, 1.0])
def test_numbers_of_queues_are_checked(queues: Any) -> None:
    with pytest.raises(ConfigError, match=r"queues=.* must be 0\.\.8"):
        with_ranks(1, lambda context, copier: None, queues)


def test_a_rank_without_an_engine_says_so() -> None:
    engines = EngineSettings(faults=EngineFaults(absent=((1, 0, None),)))

    def body(context: RankContext, copier: Copier) -> tuple[bool, str | None]:
        return copier.device.copy_queues is None, copier.device.copy_engine_fault

    fine, broken = with_ranks(2, body, engines=engines)
    assert fine == (False, None)
    assert broken == (True, "queue 0 of rank 1 to peer 0 is absent: EngineFaults.absent names it")


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a put to rank 1 looks like: its return values, bytes that came, signals."""

    late: list[int]
    came: int
    signals: int


FAULTS = {
    "no_data": Seen([0, 0], 0, 0),
    "dead": Seen([0, 1], 0, 0),
    "stalled": Seen([0, 1], NBYTES, 0),
    "late": Seen([0, 0], NBYTES, 1),
    "torn": Seen([0, 0], NBYTES // 2, 1),
    "lost": Seen([0, 1], NBYTES, 0),
}


@pytest.mark.parametrize("where", [EVERYWHERE, ((0, 1, 0),)], ids=["all", "one"])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_as_kernels_and_peers_see_them(fault: str, where: Any) -> None:
    engines = EngineSettings(faults=EngineFaults(**{fault: where}))

    def body(context: RankContext, copier: Copier) -> Seen | list[int]:
        late: list[int] = []
        if context.rank == 0:
            copier.fill(SOURCE, NBYTES, 7)
            late = copier.put(1, SOURCE, TARGET, NBYTES, signal=True, budget=50_000_000)
        context.barrier()
        return late if context.rank == 0 else Seen([], copier.read(TARGET, NBYTES).count(7), copier.count())

    late, seen = with_ranks(2, body, engines=engines)
    assert dataclasses.replace(seen, late=late) == FAULTS[fault]


def test_a_kernel_may_end_before_its_engines() -> None:
    """The stream is drained; what the queue still holds is dropped with it."""
    engines = EngineSettings(faults=EngineFaults(dead=EVERYWHERE))

    def body(context: RankContext, copier: Copier) -> None:
        copier.put(0, SOURCE, TARGET, NBYTES, drain=False)
        assert context.node.idle()
        assert context.node.engines.undrained
        assert f"doorbell {UNIT_BYTES:#x}" in context.node.report()

    with_ranks(1, body, engines=engines)


def test_seeds_repeat() -> None:
    def trace(seed: int) -> list[int]:
        def body(context: RankContext, copier: Copier) -> int:
            to_all(context, copier)
            return context.node.clock.ticks

        return with_ranks(2, body, seed=seed)

    assert trace(1) == trace(1)
    assert len({tuple(trace(seed)) for seed in range(4)}) > 1


# --- processes ---


def test_processes_put_to_each_other(launcher: Launcher) -> None:
    """All signals of all ranks reach a counter in memory that processes share."""
    puts = 20
    results = launcher.run("copy_to_all", 3, {"puts": puts})
    assert results == [([1, 2, 3], 3 * puts)] * 3


def test_engines_go_on_after_the_kernel_of_a_process(launcher: Launcher) -> None:
    assert launcher.run("leave_undrained", 2) == [1, 1]
