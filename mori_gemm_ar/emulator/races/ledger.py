# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Who wrote and who read each granule of global memory last, for all regions in one arena.

An entry of the arena is 0, or an *epoch*: one memory instruction of one wave. Readers have one array per GPU; several
unordered readers of one GPU share an entry that names a set of epochs.
"""

from __future__ import annotations

import bisect
import mmap
from dataclasses import dataclass, field

import numpy as np

from mori_gemm_ar.emulator.regions import MemoryRegion, RegionTable
from mori_gemm_ar.errors import EmulatorError

GRANULE = 4
SET = 0x80000000  # the entry is a set of readers
_CAPACITY = 1 << 29  # granules; pages take memory only once touched
_PAGE = 1024  # granules: regions start at pages, which are given back by the kernel
_ITEM = {2: np.uint64, 4: np.complex128}


def _arena(lanes: int) -> tuple[mmap.mmap, np.ndarray]:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    memory = mmap.mmap(-1, lanes * _CAPACITY * 4, flags=flags)
    return memory, np.frombuffer(memory, np.uint32)


@dataclass(slots=True, eq=False)
class Tract:
    """A region's place in the arena. `lanes`: GPUs that have read it."""

    region: MemoryRegion
    start: int
    granules: int
    written: bool = False
    lanes: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Located:
    """Active lanes of one access: their address, wave (position in the group), first granule, and region."""

    address: np.ndarray
    wave: np.ndarray
    index: np.ndarray
    granules: int
    tract: np.ndarray | int  # per lane, when there is more than one
    mask: np.ndarray | None  # bytes of the granule that each lane touches, when not all

    def tract_of(self, lane: int) -> int:
        """Region of a lane."""
        return self.tract if isinstance(self.tract, int) else int(self.tract[lane])

    def select(self, chosen: np.ndarray) -> Located:
        """Some of the lanes."""
        tract = self.tract if isinstance(self.tract, int) else self.tract[chosen]
        mask = None if self.mask is None else self.mask[chosen]
        return Located(self.address[chosen], self.wave[chosen], self.index[chosen], self.granules, tract, mask)

    def repeated(self, times: int) -> Located:
        """All lanes several times over."""
        return self if times == 1 else self.select(np.tile(np.arange(len(self.index)), times))


class Epochs:
    """One row per memory instruction and wave."""

    _COLUMNS = (("actor", np.int64), ("position", np.int64), ("site", np.int32), ("scope", np.int8))
    _MORE = (("mask", np.uint8), ("signal", np.int32), ("data", np.bool_))

    def __init__(self) -> None:
        self.count = 1  # 0 means nobody
        self.actor = self.position = self.site = self.scope = np.zeros(0, np.int64)
        self.mask = self.signal = self.data = np.zeros(0, np.int64)
        self._grow(1 << 14)

    def _grow(self, size: int) -> None:
        for name, kind in self._COLUMNS + self._MORE:
            fresh = np.zeros(size, kind)
            old = getattr(self, name)
            fresh[: len(old)] = old
            setattr(self, name, fresh)

    def add(self, actor: np.ndarray, position: np.ndarray, site: int, scope: int, data: bool) -> np.ndarray:
        """New rows, one per wave; returns their numbers."""
        first, end = self.count, self.count + len(actor)
        if end > len(self.actor):
            self._grow(2 * end)
        if end >= SET:
            raise EmulatorError("the race detector has no numbers left; split the run")
        self.actor[first:end], self.position[first:end] = actor, position
        self.site[first:end], self.scope[first:end], self.data[first:end] = site, scope, data
        self.mask[first:end], self.signal[first:end] = 0xF, 0
        self.count = end
        return np.arange(first, end, dtype=np.uint32)


class Ledger:
    """The arena and the table of regions in it."""

    def __init__(self, regions: RegionTable, lanes: int) -> None:
        self.regions, self.lanes = regions, lanes
        self.epochs = Epochs()
        self._memory, arena = _arena(lanes + 1)
        # A view of the arena starts at a multiple of a page, so that four granules can move as one item.
        self.writes, self.reads = arena[:_CAPACITY], arena[_CAPACITY:]
        self._end = _PAGE
        self._free: dict[int, list[int]] = {}
        self._tracts: dict[int, Tract] = {}
        self._version = -1
        self.tracts: list[Tract | None] = []  # in address order; None: nobody writes it
        self._starts: list[int] = []
        self._addresses = self._places = self._sizes = self._homes = np.zeros(0, np.int64)

    # ---- regions ---------------------------------------------------------------------------------------------
    def _refresh(self) -> None:
        """Forget regions that are gone or have changed, and give new ones their place."""
        if self._version == self.regions.version:
            return
        self._version = self.regions.version
        known = {region.address: region for region in self.regions.known}
        for address, tract in list(self._tracts.items()):
            if known.get(address) != tract.region:
                self._release(self._tracts.pop(address))
        self.tracts = [None if r.constant else self._tracts.get(r.address) or self._take(r) for r in known.values()]
        self._starts = list(known)
        self._addresses = np.asarray(self._starts, np.int64)
        self._places = np.asarray([-1 if t is None else t.start for t in self.tracts], np.int64)
        self._homes = np.asarray([-1 if r.home is None else r.home for r in known.values()], np.int64)
        self._sizes = np.asarray([region.nbytes for region in known.values()], np.int64)

    def _take(self, region: MemoryRegion) -> Tract:
        size = -(-(region.nbytes // GRANULE + 1) // _PAGE) * _PAGE
        free = self._free.get(size)
        if free:
            start = free.pop()
        else:
            start, self._end = self._end, self._end + size
            if self._end > _CAPACITY:
                raise EmulatorError(f"the race detector follows at most {_CAPACITY * GRANULE >> 30} GiB of memory")
        tract = self._tracts[region.address] = Tract(region, start, size)
        return tract

    def _release(self, tract: Tract) -> None:
        for lane in [0, *(1 + lane for lane in tract.lanes)]:
            start = (lane * _CAPACITY + tract.start) * 4
            self._memory.madvise(mmap.MADV_DONTNEED, start, tract.granules * 4)
        self._free.setdefault(tract.granules, []).append(tract.start)

    def region_at(self, granule: int) -> tuple[MemoryRegion | None, int]:
        """Region and address of a granule, for reports."""
        for tract in self._tracts.values():
            if tract.start <= granule < tract.start + tract.granules:
                return tract.region, tract.region.address + (granule - tract.start) * GRANULE
        return None, 0

    def locate(self, flat: np.ndarray, wave: np.ndarray, nbytes: int) -> Located | None:
        """Granules of the addresses; None when nothing there is followed.

        Granules count from the start of a region. An access that is not aligned to them takes part with those that
        it covers whole.
        """
        self._refresh()
        address = flat.view(np.int64)
        low, high = int(address.min()), int(address.max()) + nbytes
        at = bisect.bisect_right(self._starts, low) - 1
        if at >= 0 and high <= self._starts[at] + self._sizes[at]:
            if self.tracts[at] is None:
                return None
            return self._granules(address, address - self._starts[at], self._places[at], at, wave, nbytes)
        tract = np.searchsorted(self._addresses, address, "right") - 1
        offset, place = address - self._addresses[tract], self._places[tract]
        # What lies outside every region is a fault, which the memory reports.
        kept = (place >= 0) & (offset >= 0) & (offset + nbytes <= self._sizes[tract])
        if kept.all():
            return self._granules(address, offset, place, tract, wave, nbytes)
        if not kept.any():
            return None
        return self._granules(address[kept], offset[kept], place[kept], tract[kept], wave[kept], nbytes)

    @staticmethod
    def _granules(address, offset, place, tract: np.ndarray | int, wave: np.ndarray, nbytes: int) -> Located | None:
        index = (offset >> 2) + place
        if nbytes < GRANULE:
            mask = (((1 << nbytes) - 1) << (offset & 3)).astype(np.uint8)
            return Located(address, wave, index, 1, tract, mask)
        shifted = (offset & 3) != 0
        if not shifted.any():
            return Located(address, wave, index, nbytes // GRANULE, tract, None)
        if shifted.all():
            granules = nbytes // GRANULE - 1
            return Located(address, wave, index + 1, granules, tract, None) if granules else None
        return Located(address, wave, index, nbytes // GRANULE, tract, None).select(~shifted)

    def home_of(self, at: Located, lanes: np.ndarray) -> np.ndarray:
        """GPU whose memory lanes access; -1: the host's."""
        return self._homes[at.tract] if isinstance(at.tract, int) else self._homes[at.tract[lanes]]

    def tracts_of(self, at: Located) -> list[Tract]:
        """The regions that an access touches."""
        numbers = [at.tract] if isinstance(at.tract, int) else np.unique(at.tract).tolist()
        return [tract for n in numbers if (tract := self.tracts[n]) is not None]

    # ---- entries ---------------------------------------------------------------------------------------------
    @staticmethod
    def take(table: np.ndarray, index: np.ndarray, granules: int) -> np.ndarray:
        """Entries [lane, granule]."""
        if granules == 1:
            return table[index][:, None]
        if granules in _ITEM and not (index & (granules - 1)).any():
            shift = granules >> 1
            return table.view(_ITEM[granules])[index >> shift].view(np.uint32).reshape(-1, granules)
        return table[index[:, None] + np.arange(granules)]

    @staticmethod
    def put(table: np.ndarray, index: np.ndarray, granules: int, values: np.ndarray) -> None:
        """Set entries [lane, granule]."""
        if granules == 1:
            table[index] = values[:, 0]
        elif granules in _ITEM and not (index & (granules - 1)).any():
            items: np.ndarray = np.ascontiguousarray(values).view(_ITEM[granules])[:, 0]
            table.view(_ITEM[granules])[index >> (granules >> 1)] = items
        else:
            table[index[:, None] + np.arange(granules)] = values
