# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The submit code of kernels/device/sdma.ll on an emulated GPU: what is copied, in which packets, and how waits end."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import torch

from mori_gemm_ar.emulator import Node
from mori_gemm_ar.emulator.engine_queues import QueueSet
from mori_gemm_ar.layout.copy_queue import UNIT_BYTES
from tests.kernel.harness import run_kernel
from tests.kernel.sdma_kernels import build_put

BUDGET = 1_000_000_000


@dataclass
class Bench:
    """One GPU with queues to two peers and memory to copy between."""

    node: Node = field(default_factory=lambda: Node(1))
    per_peer: int = 2
    words: int = 1 << 14

    def __post_init__(self) -> None:
        self.queues = QueueSet(self.node.engines, 0, 2, self.per_peer)
        self.src = torch.arange(1, self.words + 1, dtype=torch.int32)
        self.dst = torch.zeros(self.words, dtype=torch.int32)
        self.signal = torch.zeros(16, dtype=torch.int64)
        self.result = torch.full((2 * 64 * 64,), -1, dtype=torch.int32)

    def run(self, nbytes, *, lanes=1, puts=1, blocks=1, first=0, step=None, budget=BUDGET, waves=1, **build):
        tensors = {"src": self.src, "dst": self.dst, "signal": self.signal, "result": self.result}
        values = (
            self.queues.table, first, lanes, puts, self.dst, self.src, nbytes if step is None else step, nbytes,
            self.signal, budget, self.result,
        )  # fmt: skip
        code = build_put(waves, **build)
        run_kernel(code, (blocks, 1, 1), (64 * waves, 1, 1), values, tensors, self.node)
        return self.result[: 2 * lanes * blocks * waves].view(-1, 2).tolist()

    def word(self, queue: int, name: str) -> int:
        return ctypes.c_uint64.from_address(getattr(self.queues.engines[queue].addresses, name)).value


def test_a_put_copies_and_the_drain_sees_it() -> None:
    bench = Bench()
    assert bench.run(4096) == [[0, 0]]
    assert torch.equal(bench.dst[:1024], bench.src[:1024])
    assert not bench.dst[1024:].any()
    assert bench.word(0, "rptr") == bench.word(0, "wptr") == bench.word(0, "doorbell") == UNIT_BYTES
