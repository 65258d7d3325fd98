# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The copy engines of a node: one for each queue, stepped with the waves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mori_gemm_ar.emulator.engine import CopyEngine, QueueAddresses
from mori_gemm_ar.emulator.engine_queues import QueueSet
from mori_gemm_ar.emulator.engine_settings import EngineSettings
from mori_gemm_ar.emulator.weak import WeakMemory
from mori_gemm_ar.errors import ConfigError

if TYPE_CHECKING:
    from mori_gemm_ar.emulator.node import Node


class Engines:
    """Engines in seeded order. `settings` holds for queues that are opened later."""

    def __init__(self, node: Node, settings: EngineSettings) -> None:
        self.node = node
        self._engines: list[CopyEngine] = []
        self.configure(settings)

    def configure(self, settings: EngineSettings, seed: int = 0) -> None:
        """Other settings; `seed` counts where they have none. Raises `ConfigError` once there are queues."""
        if self._engines:
            raise ConfigError("engines must be set before the first queue is opened; make a new node")
        self.settings, memory = settings, self.node.memory
        if settings.seed is None and isinstance(memory, WeakMemory):
            self.random = memory.random.spawn(1)[0]  # leaves the choices of the memory as they are
        else:
            self.random = np.random.default_rng(seed if settings.seed is None else settings.seed)

    def fault(self, gpu: int, world: int, per_peer: int) -> str | None:
        """Why a GPU has no queues, or None."""
        for index in range(world * per_peer):
            peer, number = divmod(index, per_peer)
            if self.settings.faults.hits("absent", gpu, peer, number):
                return f"queue {number} of rank {gpu} to peer {peer} is absent: EngineFaults.absent names it"
        return None

    def open(self, gpu: int, world: int, per_peer: int) -> QueueSet:
        """Queues of one GPU to all ranks."""
        if world < 1 or per_peer < 1:
            raise ConfigError(f"world={world} and per_peer={per_peer} must be at least 1")
        if (why := self.fault(gpu, world, per_peer)) is not None:
            raise ConfigError(why)
        return QueueSet(self, gpu, world, per_peer)

    def start(self, gpu: int, peer: int, number: int, addresses: QueueAddresses) -> CopyEngine:
        """The engine of one queue."""
        engine = CopyEngine(self.node, self.settings, self.random, (gpu, peer, number), addresses)
        self._engines.append(engine)
        return engine

    def stop(self, engine: CopyEngine) -> None:
        """Forget an engine."""
        if engine in self._engines:
            self._engines.remove(engine)

    def step(self, last_moment: bool = False) -> bool:
        """One round. Returns whether any engine moved. `last_moment`: nothing else can move, so all that may does."""
        moved = False
        for engine in self._engines:
            moved |= engine.step(last_moment)
        return moved

    def settle(self) -> None:
        """Let engines go on until nothing of them moves: for a node that nobody steps when its kernels have ended."""
        while self.undrained and self.step(last_moment=True):
            pass

    @property
    def undrained(self) -> bool:
        """Whether any queue holds work that has not landed."""
        return any(engine.undrained for engine in self._engines)

    def report(self) -> list[str]:
        """One line for each queue that holds work."""
        return [engine.describe() for engine in self._engines if engine.undrained]

    def release(self) -> None:
        """Forget all engines: they and the node refer to each other."""
        self._engines.clear()
