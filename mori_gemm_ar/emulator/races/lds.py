# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Races on LDS: two waves of a workgroup, no barrier between, at least one write.

An LDS instruction lasts until its `lgkmcnt` wait, a copy from global memory to LDS until its `vmcnt` wait: only what
has ended before a barrier is ordered by it. Waves that store the value that another wave has just stored do not race
with it: the word is the same in any order. Whoever reads it needs a barrier after all of them.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import numpy as np

from mori_gemm_ar.emulator.races.report import race

if TYPE_CHECKING:
    from mori_gemm_ar.emulator.pool import Pool
    from mori_gemm_ar.emulator.races.clocks import WaveClocks

_SITES = 1024  # instructions of a wave whose line is remembered


class Kind(enum.IntEnum):
    """What wrote a granule."""

    STORE = 0
    COPY = 1  # asynchronous, from global memory
    ATOMIC = 2
    PART = 3  # a store of less than a granule


class LdsLedger:
    """Last writer of each granule, and the last read of it by each wave.

    A writer's entry is position << 6 | wave << 2 | kind, with 0 for nobody; a reader's is position << 1, and 1 more for
    a wave that did not read but wrote the value that another one wrote after it.
    """

    def __init__(self, pool: Pool, clocks: WaveClocks) -> None:
        self._pool, self._clocks = pool, clocks
        granules, rows = len(pool.lds) // 4, len(clocks.issued)
        self._writer = np.zeros(granules, np.uint32)
        self._readers = np.zeros(granules * clocks.waves, np.uint32)
        self._last_store, self._last_copy, self._last_read = (np.zeros(rows, np.int64) for _ in range(3))
        self._sites = np.zeros((rows, _SITES), np.int32)
        self._copy_sites = np.zeros((rows, _SITES), np.int32)

    # ---- accesses --------------------------------------------------------------------------------------------
    def issue(self, rows: np.ndarray, site: int) -> None:
        """These waves run an LDS instruction."""
        self._clocks.lds_issued[rows] += 1
        self._sites[rows, self._clocks.lds_issued[rows] % _SITES] = site

    def read(self, rows: np.ndarray, row: np.ndarray, index: np.ndarray, nbytes: int, site: int) -> None:
        """LDS read; `rows` are the waves, `row` and `index` the wave and byte position of each lane."""
        clocks = self._clocks
        granule = self._granules(index, nbytes)
        if self._unsettled(self._last_store, self._last_copy):
            self._check_writer(row, granule, site, is_write=False)
        wave = row % clocks.waves
        self._readers[granule * clocks.waves + wave[:, None]] = clocks.lds_issued[row][:, None] << 1
        self._last_read[rows] = clocks.lds_issued[rows]

    def write(
        self, rows: np.ndarray, row: np.ndarray, index: np.ndarray, nbytes: int, site: int, kind: Kind, items=None
    ) -> None:
        """LDS store, atomic or copy. `items`: what a store is about to write, one dword per granule."""
        clocks = self._clocks
        if kind is Kind.COPY:
            self._copy_sites[rows, clocks.issued[rows] % _SITES] = site
        granule = self._granules(index, nbytes)
        kind = Kind.PART if kind is Kind.STORE and nbytes < 4 else kind
        if self._unsettled(self._last_store, self._last_copy):
            self._check_writer(row, granule, site, is_write=True, kind=kind, items=items)
        if self._unsettled(self._last_read):
            self._check_readers(row, granule, site, items)
        count = clocks.issued if kind is Kind.COPY else clocks.lds_issued
        entry = (count[row] << 6 | (row % clocks.waves) << 2 | kind).astype(np.uint32)
        self._writer[granule] = entry[:, None]
        (self._last_copy if kind is Kind.COPY else self._last_store)[rows] = count[rows]
        if len(rows) > 1 and kind is not Kind.ATOMIC:
            self._check_together(row, granule, entry, site, kind, items)

    # ---- parts -----------------------------------------------------------------------------------------------
    @staticmethod
    def _granules(index: np.ndarray, nbytes: int) -> np.ndarray:
        return (index >> 2)[:, None] + np.arange(max(1, nbytes // 4))

    def _unsettled(self, lds: np.ndarray, copies: np.ndarray | None = None) -> bool:
        """Whether any such operation is not yet ordered by a barrier; most of the time none is."""
        clocks = self._clocks
        if (lds > clocks.lds_published).any():
            return True
        return copies is not None and bool((copies > clocks.published).any())

    def _check_writer(
        self, row: np.ndarray, granule: np.ndarray, site: int, *, is_write: bool, kind=Kind.STORE, items=None
    ) -> None:
        """Against the last writer of each granule."""
        clocks = self._clocks
        entry = self._writer[granule].astype(np.int64)
        position, wave, old = entry >> 6, (entry >> 2) & 15, entry & 3
        first = row[:, None] // clocks.waves * clocks.waves + wave
        copied = old == Kind.COPY
        done = np.where(copied, clocks.published[first], clocks.lds_published[first])
        same = first == row[:, None]
        # A wave's own LDS instructions run in order, but not with its own copies.
        fine = (entry == 0) | (position <= done)
        fine |= same & (~copied | (kind is Kind.COPY) | (position <= clocks.completed[first]))
        if kind is Kind.ATOMIC:
            fine |= old == Kind.ATOMIC
        if kind is Kind.PART:
            fine |= old == Kind.PART
        if fine.all():
            return
        if kind is Kind.STORE and is_write and items is not None:
            alike = ~fine & (old == Kind.STORE) & (self._pool.lds.view(np.uint32)[granule] == items)
            # The other one counts among the readers: nobody may write another value before it has ended.
            self._readers[(granule * clocks.waves + wave)[alike]] = position[alike] << 1 | 1
            self._last_read[first[alike]] = np.maximum(self._last_read[first[alike]], position[alike])
            fine |= alike
        for lane, part in np.argwhere(~fine)[:1].tolist():
            self._raise(
                int(first[lane, part]), int(position[lane, part]), bool(copied[lane, part]), True,
                int(row[lane]), site, is_write, int(granule[lane, part]),
            )  # fmt: skip

    def _check_readers(self, row: np.ndarray, granule: np.ndarray, site: int, items) -> None:
        """Against the last read of each wave."""
        clocks = self._clocks
        members = row[:, None, None] // clocks.waves * clocks.waves + np.arange(clocks.waves)
        entry = self._readers.reshape(-1, clocks.waves)[granule].astype(np.int64)
        position = entry >> 1
        late = (position > clocks.lds_published[members]) & (members != row[:, None, None])
        if items is not None:
            alike = self._pool.lds.view(np.uint32)[granule] == items
            late &= ~(alike[..., None] & (entry & 1).astype(bool))
        for lane, part, wave in np.argwhere(late)[:1].tolist():
            first = int(members[lane, 0, wave])
            wrote = bool(entry[lane, part, wave] & 1)
            self._raise(
                first, int(position[lane, part, wave]), False, wrote, int(row[lane]), site, True,
                int(granule[lane, part]),
            )  # fmt: skip

    def _check_together(self, row, granule, entry: np.ndarray, site: int, kind: Kind, items) -> None:
        """Waves that write one granule in one instruction: the last one's entry stands there."""
        last = self._writer[granule]
        other = last != entry[:, None]
        if kind is Kind.PART or not other.any():
            return
        clocks = self._clocks
        wave = (last.astype(np.int64) >> 2) & 15
        if kind is Kind.STORE and items is not None:
            final = self._final_items(granule, items)
            self._readers[(granule * clocks.waves + (row % clocks.waves)[:, None])[other]] = np.broadcast_to(
                clocks.lds_issued[row][:, None] << 1 | 1, other.shape
            )[other]
            self._last_read[row] = clocks.lds_issued[row]
            other &= final != items
        for lane, part in np.argwhere(other)[:1].tolist():
            first = int(row[lane]) // clocks.waves * clocks.waves + int(wave[lane, part])
            copied = kind is Kind.COPY
            position = int((clocks.issued if copied else clocks.lds_issued)[first])
            self._raise(first, position, copied, True, int(row[lane]), site, True, int(granule[lane, part]))

    @staticmethod
    def _final_items(granule: np.ndarray, items: np.ndarray) -> np.ndarray:
        """What the last writer of each granule writes, for every lane that writes it."""
        _, inverse = np.unique(granule.reshape(-1), return_inverse=True)
        final = np.zeros(int(inverse.max()) + 1, items.dtype)
        final[inverse.reshape(-1)] = items.reshape(-1)
        return final[inverse.reshape(-1)].reshape(granule.shape)

    def _raise(
        self,
        first: int,
        position: int,
        copied: bool,
        was_write: bool,
        second: int,
        site: int,
        is_write: bool,
        granule: int,
    ) -> None:
        clocks, waves = self._clocks, self._clocks.waves
        agent = clocks.agent_of(second)
        sites = self._copy_sites if copied else self._sites
        line = int(sites[first, position % _SITES])
        offset = 4 * granule - int(self._pool.wave_lds[second])
        counter = "vmcnt" if copied else "lgkmcnt"
        joined = (clocks.joined if copied else clocks.lds_joined)[first]
        if first == second:
            missing = f"no s_waitcnt {counter} between the copy and the access by the same wave"
        elif position <= joined:
            missing = f"the barrier between them does not order it: wave {first % waves} had not waited ({counter})"
        else:
            missing = f"no workgroup barrier between wave {first % waves} and wave {second % waves}"
        what = "copy" if copied else "write" if was_write else "read"
        raise race(
            f"LDS + {offset:#x}",
            missing,
            f"{what} by {agent.describe(first % waves, line)}",
            f"then {'write' if is_write else 'read'} by {agent.describe(second % waves, site)}",
        )
