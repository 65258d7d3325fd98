# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Memory of a GPU's queues: rings and pointers that no cache holds, handles, and the table of their addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mori_gemm_ar.emulator.engine import CopyEngine, QueueAddresses
from mori_gemm_ar.emulator.regions import MemoryRegion
from mori_gemm_ar.layout.copy_queue import HANDLE_BYTES, HANDLE_OFFSETS, RING_BYTES

if TYPE_CHECKING:
    from mori_gemm_ar.emulator.engines import Engines

_ALIGN = 4096
_WORD = 64  # bytes from one pointer to the next: they share no line


def _aligned(nbytes: int) -> tuple[np.ndarray, int]:
    """Zeroed memory that takes pages only once touched, and its first aligned address."""
    memory = np.zeros(nbytes + _ALIGN, np.uint8)
    return memory, -(-memory.ctypes.data // _ALIGN) * _ALIGN


class QueueSet:
    """All queues of one GPU: `per_peer` to each of `world` ranks, itself among them.

    `table` is the address of one pointer per queue, to its handle; queue q to a peer has index peer * per_peer + q.
    """

    def __init__(self, engines: Engines, gpu: int, world: int, per_peer: int) -> None:
        self.gpu, self.world, self.per_peer = gpu, world, per_peer
        self._engines = engines
        count = world * per_peer
        # The order of a handle's words: ring, rptr, wptr, doorbell lie in uncached memory, the counters beside it.
        self._uncached, ring = _aligned(count * (RING_BYTES + _ALIGN))
        self._cached, self.table = _aligned(count * (8 + 4 * _WORD) + _WORD)
        handles = -(-(self.table + 8 * count) // _WORD) * _WORD
        self._regions: list[MemoryRegion] = []
        self.engines: list[CopyEngine] = []
        pointers = []
        for index in range(count):
            peer, number = divmod(index, per_peer)
            name = f"queue {number} of GPU {gpu} to peer {peer}"
            words, handle = ring + RING_BYTES, handles + index * 4 * _WORD
            addresses = QueueAddresses(ring, words, words + _WORD, words + 2 * _WORD)
            parts = (
                (0, RING_BYTES, "ring"),
                (RING_BYTES, _WORD, "read pointer"),
                (RING_BYTES + _WORD, _WORD, "write pointer"),
                (RING_BYTES + 2 * _WORD, _WORD, "doorbell"),
            )
            self._regions.append(MemoryRegion(name, ring, RING_BYTES + 3 * _WORD, gpu, parts, uncached=True))
            self._write(handle, addresses)
            pointers.append(handle)
            self.engines.append(engines.start(gpu, peer, number, addresses))
            ring += RING_BYTES + _ALIGN
        self._put(self.table, pointers)
        self._regions.append(
            MemoryRegion(f"handles of GPU {gpu}'s queues", self.table, handles + count * 4 * _WORD - self.table, gpu)
        )
        for region in self._regions:
            engines.node.regions.add(region)

    def _write(self, handle: int, at: QueueAddresses) -> None:
        counters = handle + _WORD
        words = dict.fromkeys(HANDLE_OFFSETS, 0) | {
            "queueBuf": at.ring, "rptr": at.rptr, "wptr": at.wptr, "doorbell": at.doorbell,
            "cachedWptr": counters, "committedWptr": counters + _WORD,
        }  # fmt: skip
        assert HANDLE_BYTES <= _WORD
        self._put(handle, list(words.values()))

    def _put(self, address: int, words: list[int]) -> None:
        offset = address - self._cached.ctypes.data
        self._cached[offset : offset + 8 * len(words)] = np.asarray(words, np.uint64).view(np.uint8)

    def close(self) -> None:
        """The queues are gone, with whatever they had not done. A second call does nothing."""
        for engine in self.engines:
            self._engines.stop(engine)
        for region in self._regions:
            self._engines.node.regions.remove(region)
        self.engines, self._regions = [], []
