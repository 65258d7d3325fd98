# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""One rank of any emulated world with a window and copy-engine queues to all ranks."""

from __future__ import annotations

import struct
from typing import Any

from mori_gemm_ar.runtime import Launch, Pipeline, World, kernel_of, pack_arguments
from tests.kernel.sdma_kernels import build_put

SOURCE, TARGET, RESULT, COUNTER = 0, 1 << 16, 1 << 18, 3 << 17
WINDOW = 1 << 19
BUDGET = 1_000_000_000


class Copier:
    """`put` launches one kernel and waits for it."""

    def __init__(self, world: World, queues: int = 1) -> None:
        self.rank, self.size = world.rank, world.size
        self.target = world.target("emulated")
        self.comm = self.target.communicator(WINDOW)
        self.memory = self.comm.alloc_mem(WINDOW)
        self.window = self.comm.register_window(self.memory.ptr, WINDOW)
        self.device = self.comm.create_dev_comm(queues)
        self.target.fill(self.memory.ptr, WINDOW, 0)

    def place(self, rank: int, offset: int) -> int:
        """An offset of a rank's window, as this rank reaches it."""
        return self.memory.ptr + (rank - self.rank) * self.device.per_rank_size + offset

    def put(
        self, peer: int, source: int, target: int, nbytes: int, puts: int = 1, budget: int = BUDGET, **build: Any
    ) -> list[int]:
        """Puts of the same bytes to a peer; (how many were late, whether the drain was). Signals go to its counter."""
        queues = self.device.copy_queues
        assert queues is not None
        code = build_put(**build)
        result = self.place(self.rank, RESULT)
        values = (
            queues.table, peer * queues.per_peer, 1, puts, self.place(peer, target), self.place(self.rank, source), 0,
            nbytes, self.place(peer, COUNTER), budget, result,
        )  # fmt: skip
        arguments = pack_arguments(kernel_of(code).args, values)
        self.target.submit(Pipeline("put", (Launch(code, (1, 1, 1), (64, 1, 1), arguments, "put"),)))
        self.target.synchronize()
        return list(struct.unpack("<2i", self.target.read(result, 8)))

    def fill(self, offset: int, nbytes: int, value: int) -> None:
        """Set bytes of the own window."""
        self.target.fill(self.place(self.rank, offset), nbytes, value)

    def read(self, offset: int, nbytes: int) -> bytes:
        """Bytes of the own window."""
        return self.target.read(self.place(self.rank, offset), nbytes)

    def count(self) -> int:
        """The own counter."""
        return int.from_bytes(self.read(COUNTER, 8), "little")

    def close(self) -> None:
        """Give everything back, in the documented order."""
        for one in (self.device, self.window, self.memory):
            one.close()
        self.comm.destroy()
