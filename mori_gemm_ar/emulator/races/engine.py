# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Engines as agents: they read and write memory, not caches, and finish one thing before the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mori_gemm_ar.emulator.races.clocks import WaveClocks
from mori_gemm_ar.emulator.races.knowledge import IGNORANT, Agent, Scope
from mori_gemm_ar.emulator.races.order import Operation

if TYPE_CHECKING:
    from mori_gemm_ar.emulator.races.detector import RaceDetector


class EngineAgent:
    """A copy engine of a GPU, as the race detector sees it. Whoever models one calls these in the order of effects.

    It reads what was written back at agent scope, or at system scope where memory or writer belong to another GPU, and
    needs no invalidate. What it writes is in memory: who reads it needs the signal and an invalidate of their own.
    """

    def __init__(self, races: RaceDetector, name: str, gpu: int) -> None:
        self._races, self._clocks = races, WaveClocks(1, 1)
        stream = races.stream_of(self, gpu)
        self._agent = Agent(len(races.order.agents), gpu, name, 1, stream, 1, self._clocks, 0)
        races.order.add(self._agent)
        self._clocks.begin(self._agent, IGNORANT, gpu % max(1, races.lanes))

    def hear(self, address: int) -> None:
        """Read a doorbell or flag: what was ordered before it is known from here on."""
        self._races.accesses.load(*self._operation(address, 4, data=False), 4)
        self._complete()

    def read(self, address: int, nbytes: int) -> None:
        """Read data. Raises `RaceError` for what is not ordered before, or still in a cache."""
        if nbytes < 4:
            return
        self._races.accesses.load(*self._operation(address, nbytes, data=True), 4)
        self._complete()

    def write(self, address: int, nbytes: int) -> None:
        """Write data."""
        if nbytes < 4:
            return
        self._races.accesses.store(*self._operation(address, nbytes, data=True), 4)
        self._complete()

    def add(self, address: int) -> None:
        """Read-modify-write of a 64-bit word, after everything before it."""
        op, flat, wave = self._operation(address, 8, data=False)
        self._races.accesses.atomic(op, flat[:1], wave[:1], 8)
        self._complete()

    def signal(self, address: int) -> None:
        """Write a flag, after everything before it."""
        operation = self._operation(address, 4, data=False)
        self._races.accesses.store(*operation, 4)
        self._races.accesses.landed(self._clocks, operation[0].rows, operation[1])
        self._complete()

    def _operation(self, address: int, nbytes: int, *, data: bool) -> tuple[Operation, np.ndarray, np.ndarray]:
        self._clocks.issued += 1
        # Granules of four bytes; a rest takes no part, as with a wave's accesses.
        flat = np.arange(address, address + nbytes // 4 * 4, 4, dtype=np.uint64)
        op = Operation(self._clocks, np.zeros(1, np.int64), 0, self._clocks.issued.copy(), Scope.SYSTEM, data)
        return op, flat, np.zeros(len(flat), np.int64)

    def _complete(self) -> None:
        self._clocks.wait(slice(None), 0)
        self._clocks.join([0])
