# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What copy engines do to memory. They have no cache: they find what was written back, and write past all caches."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np

from mori_gemm_ar.emulator.regions import RegionTable
from mori_gemm_ar.emulator.shadow import HOME, LINE, NOBODY, PEER, Shadow, ShadowTable

if TYPE_CHECKING:
    from mori_gemm_ar.emulator.held import HeldOperation

_MASK = (1 << 64) - 1


def _bytes_at(address: int, nbytes: int) -> np.ndarray:
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    return np.frombuffer(memory, np.uint8)  # type: ignore[call-overload, no-any-return]


class EngineMemory:
    """Accesses of engines where memory is always current. Addresses have been checked."""

    def exclusive(self, addresses: np.ndarray) -> AbstractContextManager[object]:
        """Held around a read-modify-write."""
        raise NotImplementedError

    def engine_read(self, gpu: int, address: int, nbytes: int) -> np.ndarray:
        """Bytes as an engine of `gpu` finds them."""
        return _bytes_at(address, nbytes).copy()

    def engine_write(self, gpu: int, address: int, data: np.ndarray) -> None:
        """Bytes that an engine of `gpu` writes."""
        _bytes_at(address, len(data))[:] = data

    def engine_add(self, gpu: int, address: int, value: int) -> None:
        """64-bit addition, whosever memory it is."""
        with self.exclusive(np.asarray([address], np.uint64)):
            old = ctypes.c_uint64.from_address(address).value
            total = np.asarray([(old + value) & _MASK], np.uint64)
            self.engine_write(gpu, address, total.view(np.uint8))


class WeakEngineMemory(EngineMemory):
    """The same among caches: dirty lines are not seen, and who caches what is written may go on to see old content."""

    regions: RegionTable
    shadows: ShadowTable

    def _tick(self) -> int:
        raise NotImplementedError

    def _place(self, address: int, nbytes: int) -> tuple[Shadow | None, int]:
        region = self.regions.find(address, nbytes)
        shadow = self.shadows.of(region) if region is not None else None
        return shadow, address - region.address if region is not None else 0

    def engine_read(self, gpu: int, address: int, nbytes: int) -> np.ndarray:
        """What was written back: at agent scope where the memory is this GPU's, else at system scope."""
        shadow, offset = self._place(address, nbytes)
        if shadow is None:
            return super().engine_read(gpu, address, nbytes)
        view = HOME if shadow.region.home in (None, gpu) else PEER
        return shadow.content(view)[offset : offset + nbytes].copy()

    def engine_write(self, gpu: int, address: int, data: np.ndarray) -> None:
        """In memory at once; readers need an acquire of system scope."""
        shadow, offset = self._place(address, len(data))
        if shadow is None:
            super().engine_write(gpu, address, data)
            return
        now = self._tick()
        lines = np.arange(offset // LINE, (offset + len(data) - 1) // LINE + 1)
        for view in (HOME, PEER) if shadow.peer is not None else (HOME,):
            shadow.begin_write(view, lines, now, NOBODY, True)
            shadow.content(view)[offset : offset + len(data)] = data

    def write_uncached(self, h: HeldOperation) -> None:
        """Stores to memory that no cache holds take effect as they are."""
        if not self.regions.uncached or h.items is None:
            return
        raw = np.ascontiguousarray(h.items).view(np.uint8).reshape(len(h.address), -1)
        for lane, address in enumerate(h.address.tolist()):
            region = self.regions.find(address)
            if region is not None and region.uncached:
                _bytes_at(address, raw.shape[1])[:] = raw[lane]
