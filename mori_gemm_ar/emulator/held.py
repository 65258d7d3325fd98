# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Memory operations that waves have issued and that have not taken effect: the lifetime that `vmcnt` counts."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mori_gemm_ar.emulator.memory_ops import Access

if TYPE_CHECKING:
    from mori_gemm_ar.emulator.group import Group
    from mori_gemm_ar.emulator.pool import Pool


class Kind(enum.Enum):
    """What is held."""

    STORE = enum.auto()
    WRITE_BACK = enum.auto()
    LDS_COPY = enum.auto()  # `address` is the byte position in the pool's LDS


@dataclass(frozen=True, slots=True)
class HeldOperation:
    """One instruction's effect, per active lane (a writeback: per wave)."""

    kind: Kind
    pool: Pool
    sequence: np.ndarray  # position among the memory operations of its wave
    wave: np.ndarray
    address: np.ndarray
    access: Access
    items: np.ndarray | None
    policy: int

    def part(self, lanes: np.ndarray) -> HeldOperation:
        """The same operation for some of its lanes."""
        items = None if self.items is None else self.items[lanes]
        return replace(
            self, sequence=self.sequence[lanes], wave=self.wave[lanes], address=self.address[lanes], items=items
        )


class HeldOperations:
    """Operations in issue order; `effect` makes one happen."""

    def __init__(self, effect: Callable[[HeldOperation], None]) -> None:
        self._effect = effect
        self._held: list[HeldOperation] = []
        self._issued: dict[int, np.ndarray] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def track(self, pool: Pool) -> None:
        """Begin to count the memory operations of a pool's waves."""
        if id(pool) not in self._issued:
            self._issued[id(pool)] = np.zeros(len(pool.pc), np.int64)

    def count(self, g: Group) -> None:
        """Each wave of the group has issued one more memory operation."""
        self._issued[id(g.pool)][g.sel] += 1

    def sequence(self, pool: Pool, wave: np.ndarray) -> np.ndarray:
        """Position of the operation that these waves issued last."""
        return self._issued[id(pool)][wave]

    def hold(self, operation: HeldOperation) -> None:
        """Keep an operation until something lands it."""
        self._held.append(operation)

    def land_all(self) -> None:
        """Everything takes effect."""
        held, self._held = self._held, []
        for operation in held:
            self._effect(operation)

    def land(self, chosen: Callable[[HeldOperation], np.ndarray | None]) -> None:
        """Those lanes take effect for which `chosen` gives True."""
        kept, landing = [], []
        for operation in self._held:
            lanes = chosen(operation)
            if lanes is None or not lanes.any():
                kept.append(operation)
            elif lanes.all():
                landing.append(operation)
            else:
                landing.append(operation.part(lanes))
                kept.append(operation.part(~lanes))
        self._held = kept
        for operation in landing:
            self._effect(operation)

    def land_stores_of(self, pool: Pool, wave: np.ndarray) -> None:
        """The stores that these waves have issued take effect: a writeback covers those of its own wave."""
        waves = np.zeros(len(pool.pc), bool)
        waves[wave] = True
        self.land(lambda h: waves[h.wave] if h.pool is pool and h.kind is Kind.STORE else None)

    def land_all_of(self, pool: Pool, waves: slice) -> None:
        """Everything that these waves have issued takes effect."""
        if not self._held:
            return
        chosen = np.zeros(len(pool.pc), bool)
        chosen[waves] = True
        self.land(lambda h: chosen[h.wave] if h.pool is pool else None)

    def wait(self, g: Group, vmcnt: int) -> None:
        """`s_waitcnt vmcnt`: all but the last `vmcnt` operations of each wave of the group take effect."""
        if not self._held:
            return
        waves = np.zeros(len(g.pool.pc), bool)
        waves[g.sel] = True
        issued = self._issued[id(g.pool)]
        self.land(lambda h: waves[h.wave] & (h.sequence <= issued[h.wave] - vmcnt) if h.pool is g.pool else None)

    def forward(self, pool: Pool, wave: np.ndarray, flat: np.ndarray, nbytes: int) -> None:
        """A wave sees its own earlier stores: those to the place that it reads take effect."""
        if not self._held:
            return
        low, high = int(flat.min()), int(flat.max()) + nbytes
        reads = np.zeros(len(pool.pc), bool)
        reads[wave] = True

        def overlapping(h: HeldOperation) -> np.ndarray | None:
            if h.pool is not pool or h.kind is not Kind.STORE or int(h.address.min()) >= high:
                return None
            return None if int(h.address.max()) + h.access.nbytes <= low else reads[h.wave]

        self.land(overlapping)
