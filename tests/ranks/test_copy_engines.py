# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Copy engines between ranks of a `LocalWorld`: what one rank's kernel puts, its peers find."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from mori_gemm_ar.emulator import EngineSettings
from mori_gemm_ar.runtime import Launch, LocalWorld, Pipeline, RankContext, kernel_of, pack_arguments
from tests.kernel.sdma_kernels import build_put

NBYTES = 8192
SOURCE, TARGET, RESULT = 0, 1 << 16, 1 << 18
WINDOW = 1 << 19
BUDGET = 1_000_000_000


class Rank:
    """One rank with a window, and queues to all ranks."""

    def __init__(self, context: RankContext, queues: int = 1) -> None:
        self.context, self.target = context, context.target("emulated")
        self.comm = self.target.communicator(WINDOW)
        self.memory = self.comm.alloc_mem(WINDOW)
        self.window = self.comm.register_window(self.memory.ptr, WINDOW)
        self.device = self.comm.create_dev_comm(queues)
        self.target.fill(self.memory.ptr, WINDOW, 0)

    def place(self, rank: int, offset: int) -> int:
        return self.memory.ptr + (rank - self.context.rank) * self.device.per_rank_size + offset

    def put(self, peer: int, source: int, target: int, nbytes: int, **build: Any) -> list[int]:
        """One put to a peer; returns (late put, late drain)."""
        queues = self.device.copy_queues
        assert queues is not None
        code = build_put(**build)
        result = self.place(self.context.rank, RESULT)
        values = (
            queues.table, peer * queues.per_peer, 1, 1, self.place(peer, target),
            self.place(self.context.rank, source), 0, nbytes, 0, BUDGET, result,
        )  # fmt: skip
        arguments = pack_arguments(kernel_of(code).args, values)
        self.target.submit(Pipeline("put", (Launch(code, (1, 1, 1), (64, 1, 1), arguments, "put"),)))
        self.target.synchronize()
        return list(struct.unpack("<2i", self.target.read(result, 8)))

    def close(self) -> None:
        for one in (self.device, self.window, self.memory):
            one.close()
        self.comm.destroy()


def with_ranks(size: int, body: Callable[[Rank], Any], queues: int = 1, **world: Any) -> list[Any]:
    def run(context: RankContext) -> Any:
        rank = Rank(context, queues)
        context.barrier()
        result = body(rank)
        context.barrier()
        rank.close()
        assert len(context.node.regions) == 0 or context.size > 1
        return result

    return LocalWorld(size, **world).run(run)


@pytest.mark.parametrize("ordered", [False, True])
def test_every_rank_puts_to_every_rank(ordered: bool) -> None:
    def body(rank: Rank) -> list[bytes]:
        me, size = rank.context.rank, rank.context.size
        rank.target.write(rank.place(me, SOURCE), bytes([me + 1]) * NBYTES)
        for peer in range(size):
            assert rank.put(peer, SOURCE, TARGET + me * NBYTES, NBYTES) == [0, 0]
        rank.context.barrier()
        return [rank.target.read(rank.place(me, TARGET + peer * NBYTES), NBYTES) for peer in range(size)]

    for got in with_ranks(3, body, engines=EngineSettings(ordered=ordered)):
        assert got == [bytes([peer + 1]) * NBYTES for peer in range(3)]
