# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Symmetric memory of the emulated target, under the names that `mori.cco` uses.

All ranks share one flat address range: rank r's memory starts at `flat_base + r * per_rank_size`. Memory that peers
may still read stays valid until the last rank of the communicator is gone.
"""

from __future__ import annotations

import ctypes
import mmap
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from mori_gemm_ar.emulator import MemoryRegion, RegionTable
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.runtime.resource import Resource

_GRANULE = 4096


@dataclass(frozen=True, slots=True)
class UniqueId:
    """Token that lets the ranks of one communicator find each other; made on rank 0, then exchanged."""

    token: bytes


class FlatMemory:
    """One contiguous mapping for all ranks; pages take memory only once touched."""

    def __init__(self, nranks: int, per_rank: int) -> None:
        self.nranks, self.per_rank = nranks, per_rank
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self.mapping = mmap.mmap(-1, nranks * per_rank, flags=flags)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.mapping))

    def view(self, address: int, nbytes: int) -> memoryview:
        """Writable bytes; keeps the mapping alive."""
        offset = address - self.base
        return memoryview(self.mapping)[offset : offset + nbytes]


@dataclass(slots=True)
class _Shared:
    memory: FlatMemory
    live: set[int] = field(default_factory=set)
    regions: list[MemoryRegion] = field(default_factory=list)


# By node: what ranks leave open at their end goes away with the node that could still reach it.
_SHARED: WeakKeyDictionary[RegionTable, dict[bytes, _Shared]] = WeakKeyDictionary()
_LOCK = threading.Lock()


class AllocatedMemory(Resource):
    """A part of this rank's flat memory."""

    def __init__(self, comm: Communicator, size: int) -> None:
        super().__init__()
        self._comm, self.size = comm, size
        self.ptr = comm._allocate(size)

    def _release(self) -> None:
        self._comm._resources.discard(self)


class RegisteredWindow(Resource):
    """A window at the same offset of every rank's flat memory."""

    def __init__(self, comm: Communicator, ptr: int, size: int) -> None:
        super().__init__()
        self._comm, self.local_ptr, self.size = comm, ptr, size
        self.handle = ptr

    def _release(self) -> None:
        self._comm._resources.discard(self)


class DevCommHandle(Resource):
    """Facts that kernels need: base and stride of the flat memory, rank and world size."""

    def __init__(self, comm: Communicator) -> None:
        super().__init__()
        self._comm = comm
        self.rank, self.world_size = comm.rank, comm.nranks
        self.lsa_rank, self.lsa_size = comm.rank, comm.nranks
        self.flat_base, self.per_rank_size = comm.memory.base, comm.memory.per_rank

    def _release(self) -> None:
        self._comm._resources.discard(self)


class Communicator:
    """Emulated counterpart of `mori.cco.Communicator`, for one rank."""

    def __init__(
        self, nranks: int, rank: int, shared: _Shared, token: bytes, regions: RegionTable, meet: Callable[[], None]
    ):
        self.nranks, self.rank = nranks, rank
        self.memory = shared.memory
        self._shared, self._token, self._regions, self._meet = shared, token, regions, meet
        self._resources: set[Resource] = set()
        self._next = self.memory.base + rank * self.memory.per_rank
        self._destroyed = False

    @staticmethod
    def get_unique_id() -> UniqueId:
        """A new token, for rank 0."""
        return UniqueId(secrets.token_bytes(16))

    @classmethod
    def init(
        cls,
        nranks: int,
        rank: int,
        unique_id: UniqueId,
        per_rank_vmm: int,
        *,
        regions: RegionTable,
        meet: Callable[[], None],
    ) -> Communicator:
        """Collective: join the communicator of `unique_id`. `per_rank_vmm` bytes are reserved, not committed."""
        if per_rank_vmm % _GRANULE:
            raise ConfigError(f"per_rank_vmm={per_rank_vmm} must be a multiple of {_GRANULE}")
        with _LOCK:
            known = _SHARED.setdefault(regions, {})
            shared = known.get(unique_id.token)
            if shared is None:
                shared = known[unique_id.token] = _Shared(FlatMemory(nranks, per_rank_vmm))
            if shared.memory.nranks != nranks or shared.memory.per_rank != per_rank_vmm:
                raise ConfigError(f"per_rank_vmm={per_rank_vmm} and nranks={nranks} must be equal on all ranks")
            shared.live.add(rank)
        return cls(nranks, rank, shared, unique_id.token, regions, meet)

    def _allocate(self, size: int) -> int:
        start, end = self._next, self._next + -(-size // _GRANULE) * _GRANULE
        limit = self.memory.base + (self.rank + 1) * self.memory.per_rank
        if size < 1 or end > limit:
            raise ConfigError(f"size={size} must be 1..{limit - start} bytes, what per_rank_vmm leaves")
        self._next = end
        return start

    def _require(self) -> None:
        if self._destroyed:
            raise ConfigError("the communicator must not be destroyed; create a new one")

    def alloc_mem(self, size: int) -> AllocatedMemory:
        """Collective: memory at the same offset on every rank."""
        self._require()
        memory = AllocatedMemory(self, size)
        self._resources.add(memory)
        return memory

    def register_window(self, ptr: int, size: int, parts: tuple[tuple[int, int, str], ...] = ()) -> RegisteredWindow:
        """Collective: make allocated memory known to all ranks' kernels. `parts` names its regions for reports."""
        self._require()
        window = RegisteredWindow(self, ptr, size)
        region = MemoryRegion(f"window of rank {self.rank}", ptr, size, self.rank, parts)
        self._regions.add(region)
        self._shared.regions.append(region)
        self._resources.add(window)
        return window

    def create_dev_comm(self) -> DevCommHandle:
        """Collective: the device communicator; must be closed before the communicator is destroyed."""
        self._require()
        handle = DevCommHandle(self)
        self._resources.add(handle)
        return handle

    def barrier(self) -> None:
        """Collective: all ranks have come here."""
        self._require()
        self._meet()

    def destroy(self) -> None:
        """Leave. Memory goes away when the last rank has left. A second call does nothing."""
        if self._destroyed:
            return
        self._destroyed = True
        for resource in list(self._resources):
            resource.close()
        with _LOCK:
            self._shared.live.discard(self.rank)
            if not self._shared.live:
                _SHARED[self._regions].pop(self._token, None)
                for region in self._shared.regions:
                    self._regions.remove(region)
                self._shared.regions.clear()
