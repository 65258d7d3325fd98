# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""A group of waves whose memory operations are checked for races."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, cast

import numpy as np

from mori_gemm_ar.emulator.group import Group, gather_bytes, scatter_bytes
from mori_gemm_ar.emulator.memory import from_rows, to_rows
from mori_gemm_ar.emulator.memory_ops import SC1, Access
from mori_gemm_ar.emulator.races.knowledge import Scope, scope_of
from mori_gemm_ar.emulator.races.lds import Kind
from mori_gemm_ar.emulator.races.order import Operation
from mori_gemm_ar.emulator.translate import Segment

if TYPE_CHECKING:
    from mori_gemm_ar.emulator.pool import Pool
    from mori_gemm_ar.emulator.races.detector import RaceDetector


@lru_cache(maxsize=256)
def _all_lanes(waves: int) -> np.ndarray:
    return np.repeat(np.arange(waves), 64)


class WatchedGroup(Group):
    """As `Group`; every access also goes to the race detector."""

    __slots__ = ("_counted", "_lds_counted", "_races", "_rows", "_watch")

    def __init__(self, pool: Pool, waves: np.ndarray) -> None:
        super().__init__(pool, waves)
        self._races = cast("RaceDetector", pool.node.races)
        self._watch = self._races.watch_of(pool)
        self._rows = np.asarray(waves)
        # An instruction may come in parts, as several calls; a site runs once in a segment.
        self._counted = self._lds_counted = -1

    def bind(self, segment: Segment) -> tuple:
        """Also the start of a segment."""
        self._counted = self._lds_counted = -1
        return super().bind(segment)

    # ---- counting --------------------------------------------------------------------------------------------
    def _issue(self, site: int) -> None:
        if site != self._counted:
            self._counted = site
            self._watch.clocks.issued[self.sel] += 1

    def _issue_lds(self, site: int) -> None:
        if site != self._lds_counted:
            self._lds_counted = site
            self._watch.lds.issue(self._rows, site)

    def _operation(self, site: int, scope: Scope) -> Operation:
        clocks = self._watch.clocks
        return Operation(clocks, self._rows, site, clocks.issued[self.sel], scope)

    def _lanes(self, k, address: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Addresses and waves (positions in the group) of the active lanes."""
        address = np.broadcast_to(address, (self.n, 64))
        if k is True:
            return address.reshape(-1), _all_lanes(self.n)
        return address[k], np.nonzero(k)[0]

    def wait_memory(self, vmcnt: int) -> None:
        """`s_waitcnt vmcnt`."""
        self._watch.clocks.wait(self.sel, vmcnt)
        super().wait_memory(vmcnt)

    def wait_lds(self, lgkmcnt: int) -> None:
        """`s_waitcnt lgkmcnt`."""
        self._watch.clocks.wait_lds(self.sel, lgkmcnt)

    # ---- global memory ---------------------------------------------------------------------------------------
    def load(self, site: int, k, address, access: Access, rows, policy: int) -> None:
        """Vector load; checked afterwards, because a held store may land so that it is read."""
        self._issue(site)
        flat, wave = self._lanes(k, address)
        super().load(site, k, address, access, rows, policy)
        if len(flat):
            self._races.accesses.load(self._operation(site, scope_of(policy)), flat, wave, access.nbytes)

    def store(self, site: int, k, address, access: Access, rows, policy: int) -> None:
        """Vector store."""
        self._issue(site)
        flat, wave = self._lanes(k, address)
        if len(flat):
            operation = self._operation(site, scope_of(policy))
            if self._races.uncached(int(flat[0])) and not operation.scope:
                operation.scope, operation.data = Scope.SYSTEM, True  # nothing to write back
            self._races.accesses.store(operation, flat, wave, access.nbytes)
        super().store(site, k, address, access, rows, policy)

    def atomic(self, site: int, k, address, operation: str, wide: bool, data, rows, policy: int) -> None:
        """Vector read-modify-write; without sc1 it is of agent scope."""
        self._issue(site)
        flat, wave = self._lanes(k, address)
        super().atomic(site, k, address, operation, wide, data, rows, policy)
        if len(flat):
            scope = Scope.SYSTEM if policy & SC1 else Scope.AGENT
            self._races.accesses.atomic(self._operation(site, scope), flat, wave, 8 if wide else 4)

    def scalar_load(self, site: int, address, count: int) -> np.ndarray:
        """Scalar load; counts as complete at once."""
        start = np.ascontiguousarray(np.broadcast_to(address, (self.n,))) & ~np.uint64(3)
        flat = (start[:, None] + np.arange(0, 4 * count, 4, dtype=np.uint64)).reshape(-1)
        clocks = self._watch.clocks
        op = Operation(clocks, self._rows, site, clocks.completed[self.sel], Scope.NONE)
        self._races.accesses.load(op, flat, np.repeat(np.arange(self.n), count), 4)
        return super().scalar_load(site, address, count)

    def write_back(self, site: int, policy: int) -> None:
        """`buffer_wbl2`."""
        self._issue(site)
        self._watch.clocks.write_back(self._rows, scope_of(policy))
        super().write_back(site, policy)

    def invalidate(self, site: int, policy: int) -> None:
        """`buffer_inv`."""
        self._issue(site)
        self._watch.clocks.invalidate(self._rows, scope_of(policy))
        super().invalidate(site, policy)

    # ---- scratch: counted only, since it is private ----------------------------------------------------------
    def scratch_load(self, site: int, k, offset, access: Access, rows) -> None:
        """Read of a lane's private memory."""
        self._issue(site)
        super().scratch_load(site, k, offset, access, rows)

    def scratch_store(self, site: int, k, offset, access: Access, rows) -> None:
        """Write of a lane's private memory."""
        self._issue(site)
        super().scratch_store(site, k, offset, access, rows)

    # ---- LDS -------------------------------------------------------------------------------------------------
    def _rows_of(self, k) -> np.ndarray:
        """Row of the pool of each active lane."""
        return self._rows[_all_lanes(self.n) if k is True else np.nonzero(k)[0]]

    def lds_load(self, site: int, k, address, access: Access, rows) -> None:
        """LDS read."""
        self._issue_lds(site)
        index = self._lds_index(site, k, address, access)
        if len(index):
            self._watch.lds.read(self._rows, self._rows_of(k), index, access.nbytes, site)
            self.pool.memory.deliver(k, rows, to_rows(gather_bytes(self.pool.lds, index, access.nbytes), access))

    def lds_store(self, site: int, k, address, access: Access, rows) -> None:
        """LDS write."""
        self._issue_lds(site)
        index = self._lds_index(site, k, address, access)
        if len(index):
            items = from_rows(self.pool.memory.collect(self, k, rows), access)
            words = np.ascontiguousarray(items).view(np.uint32).reshape(len(index), -1) if access.nbytes >= 4 else None
            self._watch.lds.write(self._rows, self._rows_of(k), index, access.nbytes, site, Kind.STORE, words)
            scatter_bytes(self.pool.lds, index, access, items)

    def lds_atomic(self, site: int, k, address, operation: str, data, rows) -> None:
        """LDS read-modify-write."""
        self._issue_lds(site)
        index = self._lds_index(site, k, address, Access(4, 1))
        if len(index):
            self._watch.lds.write(self._rows, self._rows_of(k), index, 4, site, Kind.ATOMIC)
        super().lds_atomic(site, k, address, operation, data, rows)

    def lds_copy(self, site: int, k, address, inside, target, access: Access, policy: int) -> None:
        """Copy to LDS: a load now, and a write that lasts until its wait."""
        self._issue(site)
        lanes = np.arange(64, dtype=np.uint32) * np.uint32(access.nbytes)
        index = self._lds_index(site, k, target.astype(np.uint32).reshape(-1, 1) + lanes, access)
        if len(index):
            active = k if inside is True else inside if k is True else inside & k
            flat, wave = self._lanes(active, address)
            if len(flat):
                self._races.accesses.load(self._operation(site, scope_of(policy)), flat, wave, access.nbytes)
            self._watch.lds.write(self._rows, self._rows_of(k), index, access.nbytes, site, Kind.COPY)
        super().lds_copy(site, k, address, inside, target, access, policy)
