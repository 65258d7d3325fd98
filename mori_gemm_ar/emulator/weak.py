# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Weak memory: the worst that the gfx942/gfx950 memory model allows, within reason, in a seeded order.

Source: LLVM "User Guide for AMDGPU Backend", Memory Model GFX942. Plain stores stay in the wave until the covering
`vmcnt`, then dirty in a cache until that cache is written back at the scope of the reader. A load may be served old
content until its cache is invalidated at the scope of the writer. docs/proof.md says where this is weaker than that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mori_gemm_ar.emulator.adversary import DEFAULT_ADVERSARY, Adversary, CacheDomain, Scheduling
from mori_gemm_ar.emulator.engine_memory import WeakEngineMemory
from mori_gemm_ar.emulator.held import HeldOperation, HeldOperations, Kind
from mori_gemm_ar.emulator.memory import FunctionalMemory, from_rows, to_rows
from mori_gemm_ar.emulator.memory_ops import SC0, SC1, Access
from mori_gemm_ar.emulator.regions import RegionTable
from mori_gemm_ar.emulator.shadow import HOME, LINE, NOBODY, PEER, Part, Shadow, ShadowTable

if TYPE_CHECKING:
    from mori_gemm_ar.emulator.group import Group
    from mori_gemm_ar.emulator.node import Dispatch
    from mori_gemm_ar.emulator.pool import Pool

SYSTEM = SC0 | SC1
_NO_ACCESS = Access(4, 1)
_POISON = 0xFF  # NaN in every format that is copied


class WeakMemory(WeakEngineMemory, FunctionalMemory):
    """Global memory of the node in weak mode. `seed` fixes every choice."""

    weak = True

    def __init__(
        self, seed: int = 0, adversary: Adversary = DEFAULT_ADVERSARY, regions: RegionTable | None = None
    ) -> None:
        super().__init__(regions or RegionTable())
        self.random = np.random.default_rng(seed)
        self.adversary = adversary
        self.now = 1
        self.shadows = ShadowTable(self.regions)
        self._completion_seen = True
        self.held = HeldOperations(self._apply)
        self._scheduling = Scheduling(self.random, adversary)
        self.choose, self.preempts = self._scheduling.choose, self._scheduling.preempts  # type: ignore[method-assign]
        # Per cache: GPU, and the times of its last agent- and system-scope invalidations.
        self._gpu: list[int] = []
        self._agent: list[int] = []
        self._system: list[int] = []
        self._caches: dict[tuple[int, int], int] = {}
        self._host_seen: dict[int, int] = {}

    # ---- events of the node ----------------------------------------------------------------------------------
    def submitted(self, gpu: int, idle: bool) -> None:
        """The host hands work to a GPU; an idle GPU's memory is the host's, and what it wrote is visible to all."""
        if idle:
            self._host_seen[gpu] = self._tick()
            for shadow in self.shadows.all():
                if shadow.region.home == gpu and shadow.peer is not None:
                    shadow.peer[: shadow.region.nbytes] = shadow.raw

    def begin_workgroup(self, pool: Pool, waves: slice, dispatch: Dispatch, number: int) -> None:
        """Give a workgroup its cache, acquired at agent scope by the start of the kernel."""
        gpu = dispatch.gpu
        if self.adversary.domain is CacheDomain.XCD:
            cache = self._caches.setdefault((gpu, number % 8), len(self._gpu))
        else:
            cache = len(self._gpu)
        if cache == len(self._gpu):
            self._gpu.append(gpu)
            self._agent.append(0)
            self._system.append(0)
        self._agent[cache] = max(self._agent[cache], dispatch.begun)
        self._system[cache] = max(self._system[cache], self._host_seen.get(gpu, 0))
        pool.wave_cache[waves] = cache
        self.held.track(pool)

    def leave_places(self, pool: Pool, waves: slice) -> None:
        """What the ended workgroup has not waited for lands in its own cache, before the places belong to another."""
        self.held.land_all_of(pool, waves)

    def begin_dispatch(self, dispatch: Dispatch) -> None:
        """A kernel starts: it acquires what earlier kernels of its GPU wrote."""
        dispatch.begun = self._tick()

    def end_dispatch(self, dispatch: Dispatch) -> None:
        """A kernel ends: its stores take effect, and its GPU's memory is current for that GPU. Peers may wait on."""
        self.held.land_all()
        gpu = dispatch.gpu
        for shadow in self.shadows.all():
            for cache in [c for c in shadow.dirty if self._gpu[c] == gpu and shadow.region.home == gpu]:
                self._clean(shadow, cache, SC1)

    def completes(self) -> bool:
        """Completion takes its time: until then nothing that the kernel left unreleased is visible."""
        self._completion_seen = self.random.random() >= self.adversary.late
        return self._completion_seen

    def gpu_idle(self, gpu: int) -> None:
        """The host has waited for a GPU: everything that it wrote is visible to everyone."""
        now = self._tick()
        for shadow in self.shadows.all():
            for cache in [c for c in shadow.dirty if self._gpu[c] == gpu]:
                self._clean(shadow, cache, SYSTEM)
            if shadow.region.home == gpu:
                shadow.publish(np.nonzero(shadow.owner != NOBODY)[0], now, NOBODY)

    def idle_round(self) -> bool:
        """Nobody moved: what is still held takes effect now. Returns whether there was anything."""
        held = bool(self.held) or not self._completion_seen
        self.held.land_all()
        return held

    def host_view(self, address: int, nbytes: int) -> bytes:
        """The host sees what was released at system scope."""
        region = self.regions.find(address, nbytes)
        shadow = self.shadows.of(region) if region else None
        if shadow is None or shadow.peer is None:
            return super().host_view(address, nbytes)
        offset = address - shadow.region.address
        return shadow.peer[offset : offset + nbytes].tobytes()

    # ---- accesses --------------------------------------------------------------------------------------------
    def load(self, g: Group, site: int, k, address: np.ndarray, access: Access, rows, policy: int) -> None:
        """Load; may be served old content."""
        self.held.count(g)
        flat = self._locate(g, site, k, address, access.nbytes)
        if not len(flat):
            return
        if policy:
            g.note_poll(k, address)
        wave = self._waves(g, k)
        self.held.forward(g.pool, wave, flat, access.nbytes)
        items = self.read(g, flat, access)
        if access.nbytes == 12:
            items = items.reshape(-1, 3)
        for part in self.shadows.parts(g.pool, wave, flat, access.nbytes):
            self._adjust(g, part, wave, flat, access, items, policy)
        self.deliver(k, rows, to_rows(items.reshape(-1), access))

    def store(self, g: Group, site: int, k, address: np.ndarray, access: Access, rows, policy: int) -> None:
        """Store; takes effect at the covering wait at the latest."""
        self.held.count(g)
        flat = self._locate(g, site, k, address, access.nbytes)
        if not len(flat):
            return
        wave = self._waves(g, k)
        items = np.ascontiguousarray(from_rows(self.collect(g, k, rows), access))
        self._issue(Kind.STORE, g, wave, flat, access, items, policy)

    def atomic(self, g: Group, site: int, k, address, operation: str, wide: bool, data, rows, policy: int) -> None:
        """Read-modify-write at the memory of its home, which is current."""
        self.held.count(g)
        flat = self._locate(g, site, k, address, 8 if wide else 4)
        if not len(flat):
            return
        wave = self._waves(g, k)
        self.held.forward(g.pool, wave, flat, 8 if wide else 4)
        now = self._tick()
        for part in self.shadows.parts(g.pool, wave, flat, 4):
            shadow = part.shadow
            lines = np.unique((flat[part.lanes] - np.uint64(shadow.region.address)).astype(np.int64) // LINE)
            cache = int(g.pool.wave_cache[wave[part.lanes]][0])
            shadow.begin_write(HOME, lines, now, cache, False)
            shadow.owner[lines] = cache
        super().atomic(g, site, k, address, operation, wide, data, rows, policy)

    def scalar_load(self, g: Group, site: int, address: np.ndarray, count: int) -> np.ndarray:
        """Scalar load, with the staleness of a plain load."""
        values = super().scalar_load(g, site, address, count)
        wave = np.asarray(g.waves)
        flat = np.ascontiguousarray(np.broadcast_to(address, (g.n,))) & ~np.uint64(3)
        for part in self.shadows.parts(g.pool, wave, flat, 4 * count):
            access = Access(4, 1)
            for word in range(count):
                items = values[:, word].copy()
                self._adjust(g, part, wave, flat + np.uint64(4 * word), access, items, 0)
                values[:, word] = items
        return values

    def write_back(self, g: Group, site: int, policy: int) -> None:
        """`buffer_wbl2`: takes effect at the covering wait at the latest."""
        self.held.count(g)
        wave = np.asarray(g.waves)
        self._issue(Kind.WRITE_BACK, g, wave, np.zeros(len(wave), np.uint64), _NO_ACCESS, None, policy)

    def invalidate(self, g: Group, site: int, policy: int) -> None:
        """`buffer_inv`: later loads of the cache see what was visible at its scope."""
        self.held.count(g)
        now = self._tick()
        for cache in np.unique(g.pool.wave_cache[g.sel]).tolist():
            if policy & SC1:
                self._agent[cache] = now
            if policy & SYSTEM == SYSTEM:
                self._system[cache] = now

    def wait(self, g: Group, vmcnt: int) -> None:
        """`s_waitcnt vmcnt`: all but the last `vmcnt` memory operations of each wave have taken effect."""
        self.held.wait(g, vmcnt)

    def lds_copy(
        self, g: Group, site: int, k, address: np.ndarray, inside, place: np.ndarray, access: Access, policy: int
    ) -> None:
        """Copy to LDS: its target is poison until the covering wait."""
        self.held.count(g)
        items = self.copy_items(g, site, k, address, inside, access)
        poison = np.full((len(place), access.nbytes), _POISON, np.uint8)
        g.pool.lds[place[:, None] + np.arange(access.nbytes)] = poison
        self._issue(Kind.LDS_COPY, g, self._waves(g, k), place, access, items, policy)

    # ---- effects ---------------------------------------------------------------------------------------------
    def _issue(self, kind: Kind, g: Group, wave, address, access: Access, items, policy: int) -> None:
        sequence = self.held.sequence(g.pool, wave)
        operation = HeldOperation(kind, g.pool, sequence, wave, address, access, items, policy)
        if self.random.random() < self.adversary.early:
            if kind is Kind.WRITE_BACK:
                self.held.land_stores_of(g.pool, wave)
            self._apply(operation)
        else:
            self.held.hold(operation)

    def _apply(self, h: HeldOperation) -> None:
        if h.kind is Kind.WRITE_BACK:
            for cache in np.unique(h.pool.wave_cache[h.wave]).tolist():
                if h.policy & SC1:
                    self._write_back_cache(cache, h.policy)
            return
        assert h.items is not None
        if h.kind is Kind.LDS_COPY:
            self.land_copy(h.pool, h.address, h.items, h.access)
            return
        if self.landed is not None and h.policy & SC1:
            self.landed(h.pool, h.wave, h.address)
        rest = len(h.address)
        for part in self.shadows.parts(h.pool, h.wave, h.address, h.access.nbytes):
            self._write_part(h.pool, part, h.wave, h.address, h.access, h.items, h.policy)
            rest -= len(part.lanes)
        if rest:
            self.write_uncached(h)

    def _tick(self) -> int:
        self.now += 1
        return self.now

    @staticmethod
    def _waves(g: Group, k) -> np.ndarray:
        waves = np.asarray(g.waves)
        return np.repeat(waves, 64) if k is True else waves[np.nonzero(k)[0]]

    # ---- reading ---------------------------------------------------------------------------------------------
    def _adjust(self, g: Group, part: Part, wave, flat, access: Access, items: np.ndarray, policy: int) -> None:
        """Replace what memory holds by what the lane's cache may serve."""
        shadow, lanes, view = part.shadow, part.lanes, part.view
        offset = (flat[lanes] - np.uint64(shadow.region.address)).astype(np.int64)
        cache = g.pool.wave_cache[wave[lanes]]
        raw = items.view(np.uint8).reshape(len(flat), access.nbytes)
        if view == PEER and shadow.peer is not None:
            raw[lanes] = shadow.peer[offset[:, None] + np.arange(access.nbytes)]
        history = shadow.views[view]
        if policy & SYSTEM != SYSTEM and history.last > self._oldest(cache):
            self._serve_old(shadow, view, lanes, offset, cache, raw, access, bool(policy & SC1))
        if shadow.dirty:
            self._serve_dirty(shadow, lanes, offset, cache, raw, access)

    def _oldest(self, cache: np.ndarray) -> int:
        return min(min(self._agent[c], self._system[c]) for c in np.unique(cache).tolist())

    def _serve_old(self, shadow: Shadow, view: int, lanes, offset, cache, raw, access: Access, agent: bool) -> None:
        history = shadow.views[view]
        line = offset // LINE
        far = np.full(len(line), True) if view == PEER else history.remote[line]
        since = np.where(far, np.asarray(self._system)[cache], np.asarray(self._agent)[cache])
        allowed = (history.time[line] > since) & (history.writer[line] != cache)
        if agent:
            allowed &= far  # an agent-scope load sees this GPU's writes, whatever its cache holds
        if not allowed.any():
            return
        allowed &= self.random.random(len(allowed)) < self.adversary.stale
        index = np.nonzero(allowed)[0]
        place = np.minimum(offset[index, None] + np.arange(access.nbytes), shadow.lines * LINE - 1)
        raw[lanes[index]] = history.previous.reshape(-1)[place]

    def _serve_dirty(self, shadow: Shadow, lanes, offset, cache, raw, access: Access) -> None:
        span = np.arange(access.nbytes)
        for number in np.unique(cache).tolist():
            dirty = shadow.dirty.get(number)
            if dirty is None or not dirty.count:
                continue
            index = np.nonzero(cache == number)[0]
            place = offset[index, None] + span
            slot = dirty.slot[np.minimum(place // LINE, shadow.lines - 1)]
            hit = (slot >= 0) & (dirty.mask[np.maximum(slot, 0), place % LINE] != 0)
            if hit.any():
                rows = raw[lanes[index]]
                rows[hit] = dirty.data[np.maximum(slot, 0), place % LINE][hit]
                raw[lanes[index]] = rows

    # ---- writing ---------------------------------------------------------------------------------------------
    def _write_part(self, pool: Pool, part: Part, wave, flat, access: Access, items, policy: int) -> None:
        shadow, lanes, view = part.shadow, part.lanes, part.view
        addresses, values = flat[lanes], items[lanes]
        offset = (addresses - np.uint64(shadow.region.address)).astype(np.int64)
        cache = pool.wave_cache[wave[lanes]]
        system, agent = policy & SYSTEM == SYSTEM, bool(policy & SC1) and view == HOME
        raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), access.nbytes)
        if not system and not agent:
            self._make_dirty(shadow, offset, cache, raw)
            return
        now = self._tick()
        lines = np.unique(np.concatenate([offset // LINE, (offset + access.nbytes - 1) // LINE]))
        shadow.begin_write(HOME, lines, now, int(cache[0]), view == PEER)
        place = (offset[:, None] + np.arange(access.nbytes)).reshape(-1)
        shadow.raw[place] = raw.reshape(-1)
        self._forget_dirty(shadow, place, np.repeat(cache, access.nbytes))
        if system and shadow.peer is not None:
            shadow.begin_write(PEER, lines, now, int(cache[0]), False)
            shadow.peer[place] = raw.reshape(-1)
        elif agent:
            shadow.owner[lines] = cache[0]

    @staticmethod
    def _make_dirty(shadow: Shadow, offset: np.ndarray, cache: np.ndarray, raw: np.ndarray) -> None:
        numbers = np.unique(cache).tolist()
        for number in numbers:
            index = slice(None) if len(numbers) == 1 else cache == number
            shadow.dirty_of(number).write(offset[index], raw[index])

    @staticmethod
    def _forget_dirty(shadow: Shadow, place: np.ndarray, cache: np.ndarray) -> None:
        """Bytes written through are no longer dirty in the writer's cache."""
        for number in np.unique(cache).tolist():
            dirty = shadow.dirty.get(number)
            if dirty is not None:
                mine = place[cache == number]
                slots = dirty.slot[mine // LINE]
                dirty.mask[slots[slots >= 0], (mine % LINE)[slots >= 0]] = 0

    def _write_back_cache(self, cache: int, policy: int) -> None:
        now = self._tick()
        gpu = self._gpu[cache]
        for shadow in self.shadows.all():
            if cache in shadow.dirty and (shadow.region.home == gpu or policy & SYSTEM == SYSTEM):
                self._clean(shadow, cache, policy)
            if policy & SYSTEM == SYSTEM and shadow.peer is not None:
                shadow.publish(np.nonzero(shadow.owner == cache)[0], now, cache)

    def _clean(self, shadow: Shadow, cache: int, policy: int) -> None:
        """Write a cache's dirty bytes of one region to memory, for the readers of the given scope."""
        taken = shadow.take_dirty(cache)
        if taken is None:
            return
        lines, data, mask = taken
        now, remote = self._tick(), shadow.region.home != self._gpu[cache]
        shadow.begin_write(HOME, lines, now, cache, remote)
        shadow.write_lines(HOME, lines, data, mask)
        if policy & SYSTEM == SYSTEM:
            if shadow.peer is not None:
                shadow.begin_write(PEER, lines, now, cache, False)
                shadow.write_lines(PEER, lines, data, mask)
        else:
            shadow.owner[lines] = cache
