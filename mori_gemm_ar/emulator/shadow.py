# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What caches and peers see of one memory region in weak mode, line by line.

The region's own bytes are what its home GPU finds in memory. Peers find `peer`, which follows only when a writer
releases at system scope. Each view keeps, per line, the content before the last write, its time and its writer: a
reader that has not invalidated since may still be served the old content.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mori_gemm_ar.emulator.regions import MemoryRegion, RegionTable

if TYPE_CHECKING:
    from mori_gemm_ar.emulator.pool import Pool

LINE = 128
_ITEM = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
HOME, PEER = 0, 1
NOBODY = -1


@dataclass(slots=True)
class View:
    """One side's history: content before the last write, its time, the cache that wrote, and whether it was remote."""

    previous: np.ndarray
    time: np.ndarray
    writer: np.ndarray
    remote: np.ndarray
    last: int = 0

    @classmethod
    def of(cls, lines: int) -> View:
        """An empty history."""
        return cls(
            np.zeros((lines, LINE), np.uint8),
            np.zeros(lines, np.int64),
            np.full(lines, NOBODY, np.int32),
            np.zeros(lines, bool),
        )


@dataclass(slots=True)
class DirtyLines:
    """Bytes that one cache holds and has not written back."""

    slot: np.ndarray
    data: np.ndarray = field(default_factory=lambda: np.zeros((64, LINE), np.uint8))
    mask: np.ndarray = field(default_factory=lambda: np.zeros((64, LINE), np.uint8))
    lines: np.ndarray = field(default_factory=lambda: np.zeros(64, np.int64))
    count: int = 0

    def slots_for(self, lines: np.ndarray) -> np.ndarray:
        """Slot of each line; new lines get one."""
        slots = self.slot[lines]
        if (slots < 0).any():
            fresh = np.unique(lines[slots < 0])
            needed = self.count + len(fresh)
            if needed > len(self.data):
                size = max(needed, 2 * len(self.data))
                for name in ("data", "mask"):
                    grown = np.zeros((size, LINE), np.uint8)
                    grown[: self.count] = getattr(self, name)[: self.count]
                    setattr(self, name, grown)
                self.lines = np.resize(self.lines, size)
            self.slot[fresh] = np.arange(self.count, needed)
            self.lines[self.count : needed] = fresh
            self.count = needed
            slots = self.slot[lines]
        return slots

    def write(self, offset: np.ndarray, raw: np.ndarray) -> None:
        """Put one row of bytes at each offset of the region; of equal offsets the last row stays."""
        nbytes = raw.shape[1]
        if nbytes in _ITEM and not (offset & (nbytes - 1)).any():  # whole items inside a line
            item = _ITEM[nbytes]
            slots = self.slots_for(offset // LINE).astype(np.int64)
            place = (slots * LINE + offset % LINE) // nbytes
            self.data.reshape(-1).view(item)[place] = raw.view(item)[:, 0]
            self.mask.reshape(-1).view(item)[place] = np.ones(nbytes, np.uint8).view(item)[0]
            return
        where = (offset[:, None] + np.arange(nbytes)).reshape(-1)
        slots = self.slots_for(where // LINE)
        self.data[slots, where % LINE] = raw.reshape(-1)
        self.mask[slots, where % LINE] = 1


class Shadow:
    """Weak-mode state of one region."""

    def __init__(self, region: MemoryRegion) -> None:
        self.region = region
        self.lines = -(-region.nbytes // LINE)
        memory = (ctypes.c_char * region.nbytes).from_address(region.address)
        self.raw: np.ndarray = np.frombuffer(memory, np.uint8)  # type: ignore[call-overload]
        self.views = [View.of(self.lines), View.of(self.lines)]
        # Only symmetric memory has readers elsewhere.
        self.peer: np.ndarray | None = None
        self.owner = np.full(self.lines, NOBODY, np.int32)  # cache whose agent-scope writes peers have not seen
        self.dirty: dict[int, DirtyLines] = {}
        if region.symmetric:
            self.peer = np.zeros(self.lines * LINE, np.uint8)
            self.peer[: region.nbytes] = self.raw

    def content(self, view: int) -> np.ndarray:
        """Current bytes of a view."""
        return self.raw if view == HOME or self.peer is None else self.peer

    # ---- writing ---------------------------------------------------------------------------------------------
    def begin_write(self, view: int, lines: np.ndarray, now: int, writer: int, remote: bool) -> None:
        """Keep the old content of (unique) lines that are about to change in a view."""
        history = self.views[view]
        content = self.content(view)
        inner = lines[(lines + 1) * LINE <= len(content)]
        whole = content[: len(content) // LINE * LINE].reshape(-1, LINE)
        history.previous[inner] = whole[inner]
        if len(inner) != len(lines):
            start = (self.lines - 1) * LINE
            history.previous[self.lines - 1, : len(content) - start] = content[start:]
        history.time[lines], history.writer[lines], history.remote[lines] = now, writer, remote
        history.last = now

    def write_lines(self, view: int, lines: np.ndarray, data: np.ndarray, mask: np.ndarray) -> None:
        """Write masked bytes of whole lines."""
        content = self.content(view)
        inner = (lines + 1) * LINE <= len(content)
        whole = content[: len(content) // LINE * LINE].reshape(-1, LINE)
        chosen = lines[inner]
        whole[chosen] = np.where(mask[inner] != 0, data[inner], whole[chosen])
        for edge in np.nonzero(~inner)[0].tolist():  # the last line of a region may be short
            start = int(lines[edge]) * LINE
            size = len(content) - start
            content[start:] = np.where(mask[edge, :size] != 0, data[edge, :size], content[start:])

    def publish(self, lines: np.ndarray, now: int, writer: int) -> None:
        """Let peers see what the home GPU's memory holds."""
        self.owner[lines] = NOBODY
        if self.peer is None or not len(lines):
            return
        self.begin_write(PEER, lines, now, writer, False)
        index = (lines[:, None] * LINE + np.arange(LINE)).reshape(-1)
        index = index[index < self.region.nbytes]
        self.peer[index] = self.raw[index]

    # ---- dirty bytes -----------------------------------------------------------------------------------------
    def dirty_of(self, cache: int) -> DirtyLines:
        """The dirty lines of a cache in this region."""
        if cache not in self.dirty:
            self.dirty[cache] = DirtyLines(np.full(self.lines, -1, np.int32))
        return self.dirty[cache]

    def take_dirty(self, cache: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Remove and return (lines, data, mask) of a cache, or None."""
        found = self.dirty.pop(cache, None)
        if found is None or not found.count:
            return None
        return found.lines[: found.count], found.data[: found.count], found.mask[: found.count]


@dataclass(slots=True)
class Part:
    """Lanes of one access that lie in one region and see it from one side."""

    shadow: Shadow
    lanes: np.ndarray
    view: int


class ShadowTable:
    """Shadows of the regions that kernels have touched; a shadow goes with its region."""

    def __init__(self, regions: RegionTable) -> None:
        self.regions = regions
        self._shadows: dict[int, Shadow] = {}
        self._version = -1

    def all(self) -> list[Shadow]:
        """Every live shadow."""
        self._prune()
        return list(self._shadows.values())

    def of(self, region: MemoryRegion) -> Shadow | None:
        """The shadow of a region; memory that is constant or in no cache has none."""
        if region.constant or region.uncached:
            return None
        found = self._shadows.get(region.address)
        if found is None:
            found = self._shadows[region.address] = Shadow(region)
        return found

    def _prune(self) -> None:
        if self._version == self.regions.version:
            return
        self._version = self.regions.version
        for address in list(self._shadows):
            region = self.regions.find(address)
            if region is None or region != self._shadows[address].region:
                del self._shadows[address]

    def parts(self, pool: Pool, wave: np.ndarray, flat: np.ndarray, nbytes: int) -> Iterator[Part]:
        """Split lanes (checked addresses) by region and by the side from which their GPU sees it."""
        self._prune()
        low, high = int(flat.min()), int(flat.max())
        region = self.regions.find(low, high - low + nbytes)
        if region is not None:
            yield from self._sides(pool, wave, region, np.arange(len(flat)))
            return
        rest = np.ones(len(flat), bool)
        while rest.any():
            first = int(flat[rest][0])
            found = self.regions.find(first)
            assert found is not None, "checked addresses lie in regions"
            inside = rest & (flat >= np.uint64(found.address)) & (flat < np.uint64(found.end))
            yield from self._sides(pool, wave, found, np.nonzero(inside)[0])
            rest &= ~inside

    def _sides(self, pool: Pool, wave: np.ndarray, region: MemoryRegion, lanes: np.ndarray) -> Iterator[Part]:
        shadow = self.of(region)
        if shadow is None:
            return
        at_home = pool.wave_gpu[wave[lanes]] == region.home if region.home is not None else np.ones(len(lanes), bool)
        if at_home.all():
            yield Part(shadow, lanes, HOME)
        elif not at_home.any():
            yield Part(shadow, lanes, PEER)
        else:
            yield Part(shadow, lanes[at_home], HOME)
            yield Part(shadow, lanes[~at_home], PEER)
