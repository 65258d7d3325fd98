# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Known memory of the emulated node. Addresses are those of this process, so tensors need no copies."""

from __future__ import annotations

import bisect
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryRegion:
    """`nbytes` bytes at `address`. `home` is the GPU whose memory it is, or None for the host.

    `parts` names sub-ranges as (offset, nbytes, name), for reports. `symmetric`: other GPUs reach it; `constant`: no
    kernel writes it; `uncached`: no cache holds it, so engines and kernels see each other's stores once they are done.
    """

    name: str
    address: int
    nbytes: int
    home: int | None = None
    parts: tuple[tuple[int, int, str], ...] = ()
    symmetric: bool = False
    constant: bool = False
    uncached: bool = False

    @property
    def end(self) -> int:
        """One past the last byte."""
        return self.address + self.nbytes

    def describe(self, address: int) -> str:
        """`window of rank 0: entry + 0x40`."""
        offset = address - self.address
        for start, nbytes, name in self.parts:
            if start <= offset < start + nbytes:
                return f"{self.name}: {name} + {offset - start:#x}"
        return f"{self.name} + {offset:#x}"


def _union(run: list[tuple[int, MemoryRegion]]) -> MemoryRegion:
    """One region for (age, region) pairs that overlap, named and homed like the oldest."""
    oldest = min(run, key=lambda item: item[0])[1]
    start, end = min(r.address for _, r in run), max(r.end for _, r in run)
    shift = oldest.address - start
    parts = tuple((offset + shift, nbytes, name) for offset, nbytes, name in oldest.parts)
    flags = (oldest.symmetric, oldest.constant, oldest.uncached)
    return MemoryRegion(oldest.name, start, end - start, oldest.home, parts, *flags)


class RegionTable:
    """Sorted, disjoint regions. What was added more than once, or overlaps, counts as one, under the oldest name."""

    def __init__(self) -> None:
        self._added: list[MemoryRegion] = []
        self._starts: list[int] = []
        self._regions: list[MemoryRegion] = []
        self.version = 0
        self.uncached = 0  # how many of what was added

    def add(self, region: MemoryRegion) -> None:
        """Make a region known until it is removed as often as it was added."""
        if region.nbytes <= 0:
            return
        alone = not self._shared(region)
        self._added.append(region)
        self.uncached += region.uncached
        if alone:
            at = bisect.bisect_left(self._starts, region.address)
            self._starts.insert(at, region.address)
            self._regions.insert(at, region)
        else:
            self._merge()
        self.version += 1

    def remove(self, region: MemoryRegion) -> None:
        """Forget one addition of a region; what others added stays known."""
        if region not in self._added:
            return
        self._added.remove(region)
        self.uncached -= region.uncached
        if self._shared(region):
            self._merge()
        else:
            at = bisect.bisect_left(self._starts, region.address)
            del self._starts[at], self._regions[at]
        self.version += 1

    def _shared(self, region: MemoryRegion) -> bool:
        return any(r.address < region.end and region.address < r.end for r in self._added)

    def _merge(self) -> None:
        """Build the disjoint regions anew: each run of overlapping ones becomes one."""
        self._regions = []
        run: list[tuple[int, MemoryRegion]] = []
        for age, region in sorted(enumerate(self._added), key=lambda item: item[1].address):
            if run and region.address >= max(r.end for _, r in run):
                self._regions.append(_union(run))
                run = []
            run.append((age, region))
        if run:
            self._regions.append(_union(run))
        self._starts = [region.address for region in self._regions]

    def find(self, address: int, nbytes: int = 1) -> MemoryRegion | None:
        """The region that holds the whole range, or None."""
        at = bisect.bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        region = self._regions[at]
        return region if address + nbytes <= region.end else None

    def nearest(self, address: int) -> MemoryRegion | None:
        """The region closest to an address, for reports."""
        return min(
            self._regions,
            key=lambda r: 0 if r.address <= address < r.end else min(abs(address - r.address), abs(address - r.end)),
            default=None,
        )

    def __len__(self) -> int:
        return len(self._regions)

    @property
    def known(self) -> tuple[MemoryRegion, ...]:
        """All regions by address."""
        return tuple(self._regions)
