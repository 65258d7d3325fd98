# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What ranks do with copy engines in the tests with processes; see `process_jobs`."""

from __future__ import annotations

from typing import Any

import pytest

from mori_gemm_ar.emulator import EngineFaults, EngineSettings, Node
from mori_gemm_ar.errors import MoriGemmArError
from mori_gemm_ar.runtime import ProcessWorld, process_world
from tests.ranks.copying import SOURCE, TARGET, Copier
from tests.ranks.nursery import Rank
from tests.ranks.process_jobs import create, full, held
from tests.ranks.worlds import BF16, fresh, reference, require_all, require_bits

NBYTES = 8192


def copy_to_all(rank: Rank) -> tuple[list[int], int]:
    """Every rank puts to every rank, `puts` times with a signal to it; (what came from each rank, signals)."""
    rank.init()
    world = ProcessWorld.from_group()
    copier = Copier(world)
    copier.fill(SOURCE, NBYTES, rank.rank + 1)
    world.barrier()
    for peer in range(rank.size):
        late = copier.put(peer, SOURCE, TARGET + rank.rank * NBYTES, NBYTES, rank.arguments["puts"], signal=True)
        assert late == [0, 0]
    world.barrier()
    came = []
    for peer in range(rank.size):
        data = copier.read(TARGET + peer * NBYTES, NBYTES)
        assert data == data[:1] * NBYTES
        came.append(data[0])
    signals = copier.count()
    world.barrier()
    copier.close()
    assert held()["windows"] == 0
    return came, signals


def leave_undrained(rank: Rank) -> int:
    """Nobody drains; a kernel has ended, and its engines bring the data all the same. Returns the signals."""
    rank.init()
    world = ProcessWorld.from_group()
    copier = Copier(world)
    copier.fill(SOURCE, NBYTES, 5)
    world.barrier()
    copier.put(1 - rank.rank, SOURCE, TARGET, NBYTES, signal=True, drain=False)
    world.barrier()
    assert copier.read(TARGET, NBYTES) == b"\5" * NBYTES
    signals = copier.count()
    world.barrier()
    copier.close()
    return signals


def engine_fault(rank: Rank) -> str:
    """An op whose engines have a fault: the error's text. Then one by load and store is right."""
    rank.init()
    world = ProcessWorld.from_group()
    faults = EngineFaults(**{rank.arguments["switch"]: (tuple(rank.arguments["place"]),)})
    make = process_world.Node

    def node(*args: Any, **options: Any) -> Node:
        made = make(*args, **options)
        made.engines.configure(EngineSettings(faults=faults))
        return made

    process_world.Node = node  # type: ignore[assignment, misc]
    before = held()["windows"]
    with pytest.raises(MoriGemmArError) as caught:
        create(world, transport="sdma", timeout_s=rank.arguments["timeout_s"])
    world.barrier()
    assert held()["windows"] == before
    with create(world, transport="lsa") as op:
        require_all(op(full(rank.rank + 1)), 3)
    return str(caught.value)


def reduce_by_engine(rank: Rank) -> list[str]:
    """Three sizes, bit by bit; the op's transports."""
    rank.init()
    with create(transport="sdma", queues=2) as op:
        for numel in (7, 5000, 20_001):
            inputs = [fresh(numel, BF16, numel, peer) for peer in range(rank.size)]
            require_bits(op(inputs[rank.rank]), reference(inputs), numel=numel, rank=rank.rank)
        op.self_test()
        return [transport.value for transport in op.transports]
