# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Symmetric memory of the emulated target, under the names that `mori.cco` uses.

All ranks share one flat range: rank r's memory starts at `flat_base + r * per_rank_size`. Memory that peers may still
read stays valid until the last rank of the communicator is gone. Where the range comes from is the backing's matter:
one mapping of this process (here), or one that processes share (`shared_memory`).
"""

from __future__ import annotations

import ctypes
import mmap
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakKeyDictionary

from mori_gemm_ar.emulator import Engines, MemoryRegion, QueueSet, RegionTable
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.runtime.resource import Resource
from mori_gemm_ar.runtime.target import CopyQueues

_GRANULE = 4096
MAX_QUEUES = 8  # to one peer: what amd-mori 1.2.4 gives at most


Parts = tuple[tuple[int, int, str], ...]  # offset, bytes and name of each region of a window


@dataclass(frozen=True, slots=True)
class UniqueId:
    """Token that lets the ranks of one communicator find each other; made on rank 0, then exchanged."""

    token: bytes


class FlatRange(Protocol):
    """The flat memory of all ranks as one rank holds it."""

    @property
    def nranks(self) -> int:
        """Number of ranks."""

    @property
    def per_rank(self) -> int:
        """Bytes of each rank, and the distance between two ranks' memory."""

    @property
    def base(self) -> int:
        """Address of rank 0's memory in this process."""

    def view(self, address: int, nbytes: int) -> memoryview:
        """Writable bytes; keeps the mapping alive."""

    def announce(self, ptr: int, size: int, parts: Parts) -> None:
        """Make the window at `ptr` of this rank, and those at the same place of its peers, known to kernels."""

    def leave(self) -> None:
        """This rank is done: forget what it announced, and let go of the memory."""


class Backing(Protocol):
    """Where the ranks of one world get flat memory from."""

    def name(self, nranks: int, per_rank: int) -> UniqueId:
        """On rank 0: a token for memory that the others can join."""

    def join(self, nranks: int, rank: int, unique_id: UniqueId, per_rank: int) -> FlatRange:
        """On every rank: the memory behind a token."""

    def discard(self) -> None:
        """Give back what was named and not joined."""


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


class _LocalMemory:
    """One rank's hold on memory that threads of this process share."""

    def __init__(self, shared: _Shared, token: bytes, regions: RegionTable, rank: int) -> None:
        self._shared, self._token, self._regions, self._rank = shared, token, regions, rank
        flat = shared.memory
        self.nranks, self.per_rank, self.base, self.view = flat.nranks, flat.per_rank, flat.base, flat.view

    def announce(self, ptr: int, size: int, parts: Parts) -> None:
        """The peers, threads of the same node, announce their own."""
        region = MemoryRegion(f"window of rank {self._rank}", ptr, size, self._rank, parts, symmetric=True)
        self._regions.add(region)
        self._shared.regions.append(region)

    def leave(self) -> None:
        """The last rank takes all windows with it."""
        with _LOCK:
            self._shared.live.discard(self._rank)
            if not self._shared.live:
                _SHARED[self._regions].pop(self._token, None)
                for region in self._shared.regions:
                    self._regions.remove(region)
                self._shared.regions.clear()


class LocalBacking:
    """Memory for ranks that are threads of this process and share one node."""

    def __init__(self, regions: RegionTable) -> None:
        self._regions = regions

    def name(self, nranks: int, per_rank: int) -> UniqueId:
        """Any new token will do: whoever joins first makes the memory."""
        return Communicator.get_unique_id()

    def join(self, nranks: int, rank: int, unique_id: UniqueId, per_rank: int) -> FlatRange:
        """Look the memory up, or make it. Raises `ConfigError` when ranks ask for different sizes."""
        with _LOCK:
            known = _SHARED.setdefault(self._regions, {})
            shared = known.get(unique_id.token)
            if shared is None:
                shared = known[unique_id.token] = _Shared(FlatMemory(nranks, per_rank))
            if shared.memory.nranks != nranks or shared.memory.per_rank != per_rank:
                raise ConfigError(f"per_rank_vmm={per_rank} and nranks={nranks} must be equal on all ranks")
            shared.live.add(rank)
        return _LocalMemory(shared, unique_id.token, self._regions, rank)

    def discard(self) -> None:
        """A token alone holds nothing."""


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
    """Facts that kernels need: base and stride of the flat memory, rank and world size, and copy-engine queues.

    Queues go away with it, and with what they had not done.
    """

    def __init__(self, comm: Communicator, engines: Engines | None, queues: int) -> None:
        super().__init__()
        self._comm = comm
        self.rank, self.world_size = comm.rank, comm.nranks
        self.lsa_rank, self.lsa_size = comm.rank, comm.nranks
        self.flat_base, self.per_rank_size = comm.memory.base, comm.memory.per_rank
        self.copy_queues: CopyQueues | None = None
        self.copy_engine_fault: str | None = None
        self._queues: QueueSet | None = None
        if not queues:
            return
        if engines is None:
            self.copy_engine_fault = "this communicator was made without copy engines"
        else:
            self.copy_engine_fault = engines.fault(comm.rank, comm.nranks, queues)
        if engines is not None and self.copy_engine_fault is None:
            self._queues = engines.open(comm.rank, comm.nranks, queues)
            self.copy_queues = CopyQueues(self._queues.table, queues, comm.nranks)

    def put_records(self, window: object, own: int) -> bytes:
        """Refuses: amd-mori's device code has no structures here."""
        raise ConfigError("cco_device='mori' must run on device='rocm'; emulated queues are not amd-mori's")

    def _release(self) -> None:
        if self._queues is not None:
            self._queues.close()
        self._comm._resources.discard(self)


def require_queues(queues: int) -> None:
    """Raise `ConfigError` unless it is a number of queues to each peer."""
    if not isinstance(queues, int) or isinstance(queues, bool) or not 0 <= queues <= MAX_QUEUES:
        raise ConfigError(f"queues={queues!r} must be 0..{MAX_QUEUES}: copy-engine queues to each peer")


def _nobody() -> None:
    """Meet nobody."""


class Communicator:
    """Emulated counterpart of `mori.cco.Communicator`, for one rank. `engines`: of the node that runs its kernels."""

    def __init__(self, rank: int, memory: FlatRange, meet: Callable[[], None], engines: Engines | None = None) -> None:
        self.nranks, self.rank, self.memory = memory.nranks, rank, memory
        self._meet, self._engines = meet, engines
        self._resources: set[Resource] = set()
        self._next = memory.base + rank * memory.per_rank
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
        backing: Backing,
        meet: Callable[[], None],
        engines: Engines | None = None,
    ) -> Communicator:
        """Collective: join the communicator of `unique_id`, with `per_rank_vmm` bytes for each rank."""
        if per_rank_vmm % _GRANULE:
            raise ConfigError(f"per_rank_vmm={per_rank_vmm} must be a multiple of {_GRANULE}")
        return cls(rank, backing.join(nranks, rank, unique_id, per_rank_vmm), meet, engines)

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

    def register_window(self, ptr: int, size: int, parts: Parts = ()) -> RegisteredWindow:
        """Collective: make allocated memory known to all ranks' kernels. `parts` names its regions for reports."""
        self._require()
        window = RegisteredWindow(self, ptr, size)
        self.memory.announce(ptr, size, parts)
        self._resources.add(window)
        return window

    def create_dev_comm(self, queues: int = 0) -> DevCommHandle:
        """Collective: the device communicator; must be closed before the communicator is destroyed.

        `queues` copy-engine queues to each rank, this one among them.
        """
        self._require()
        require_queues(queues)
        handle = DevCommHandle(self, self._engines, queues)
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
        self.memory.leave()
        self._meet, self._engines = _nobody, None  # they lead back to whoever holds this communicator
