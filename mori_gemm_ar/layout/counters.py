# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Models of the device's counters: epochs that wrap, and arrival counters that reset themselves."""

from __future__ import annotations

from dataclasses import dataclass, field

from mori_gemm_ar.layout.rules import reason_not_int, reason_not_tiles, reason_not_u32, require
from mori_gemm_ar.layout.terms import U32


def next_epoch(epoch: int) -> int:
    """The u32 after this one; 0 follows 2^32 - 1."""
    require(reason_not_u32("epoch", epoch))
    return (epoch + 1) % U32


def epoch_reached(seen: int, expected: int) -> bool:
    """int32(seen - expected) >= 0: right across both wraps while the two are less than 2^31 calls apart."""
    require(reason_not_u32("seen", seen) or reason_not_u32("expected", expected))
    return (seen - expected) % U32 < U32 // 2


@dataclass(slots=True)
class WrappingCounter:
    """`atomicrmw uinc_wrap` with limit = tiles - 1: the last of `tiles` arrivals resets the counter as it arrives.

    Nothing else resets it and no modulus is taken, so the next call may bring any other number of tiles. The caller
    owes that all arrivals of one call come before the first of the next.
    """

    tiles: int
    value: int = field(default=0)

    def __post_init__(self) -> None:
        require(reason_not_tiles(self.tiles) or reason_not_u32("value", self.value))

    @property
    def limit(self) -> int:
        return self.tiles - 1

    def arrive(self) -> int:
        """One arrival; returns the value before it, as the instruction does."""
        old = self.value
        self.value = 0 if old >= self.limit else old + 1
        return old

    def elects(self, old: int) -> bool:
        """Whether the arrival that got `old` was the last one."""
        require(reason_not_int("old", old, 0, U32 - 1, "pass what arrive() returned"))
        return old == self.limit
