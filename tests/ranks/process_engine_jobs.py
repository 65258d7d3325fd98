# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What ranks do with copy engines in the tests with processes; see `process_jobs`."""

from __future__ import annotations

from mori_gemm_ar.runtime import ProcessWorld
from tests.ranks.copying import SOURCE, TARGET, Copier
from tests.ranks.nursery import Rank
from tests.ranks.process_jobs import held

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
