# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Flat symmetric memory that processes share: one memfd for each communicator, mapped whole by every rank.

Rank 0 makes it, and the others open it through /proc/<pid>/fd/<n>. It has no name in any file system, so nothing can
be left behind: the kernel frees it with the last process that holds it, however that ends. Its pages are taken at
once, so a machine without enough memory shows in `create` and not as a signal in the middle of a call.

Layout: the board of `pulse`, then the ranks' memory.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np

from mori_gemm_ar.emulator import MemoryRegion, RegionTable
from mori_gemm_ar.emulator.memory import FunctionalMemory
from mori_gemm_ar.errors import CollectiveSetupError, ConfigError, EmulatorError
from mori_gemm_ar.runtime.memory_limits import reason_not_available
from mori_gemm_ar.runtime.peers import ProcessId
from mori_gemm_ar.runtime.pulse import CLOSED, HEART, Board
from mori_gemm_ar.runtime.symmetric import FlatRange, Parts, UniqueId

if TYPE_CHECKING:
    from mori_gemm_ar.emulator.group import Group
    from mori_gemm_ar.emulator.memory_ops import Access

_PAGE = mmap.PAGESIZE
_WIDEST_ATOMIC = 8  # bytes
_LOCK_TIMEOUT_S = 300.0  # of a lock that is held for microseconds
_LOCK_PAUSE_S = 50e-6
_ADVICE = "lower max_bytes, start fewer ranks, or free memory"


@dataclass(frozen=True, slots=True)
class _Handle:
    """How peers find a segment, and know that it is the right one."""

    pid: int
    started: int
    host: str
    descriptor: int
    inode: int
    nbytes: int

    def token(self) -> UniqueId:
        return UniqueId(json.dumps(asdict(self)).encode())


class Segment:
    """Anonymous shared memory of a fixed size, mapped whole."""

    def __init__(self, descriptor: int, nbytes: int) -> None:
        """Takes the descriptor over."""
        self.descriptor, self.nbytes = descriptor, nbytes
        # At exit the system does this, and other threads may still use the memory.
        self._finalizer = finalize(self, os.close, descriptor)
        self._finalizer.atexit = False
        try:
            self.mapping = mmap.mmap(descriptor, nbytes, flags=mmap.MAP_SHARED)
        except BaseException:
            self._finalizer()
            raise
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.mapping))

    @classmethod
    def create(cls, nbytes: int) -> Segment:
        """Take the memory now. Raises `ConfigError` where there is not that much."""
        reason = reason_not_available("window", nbytes, _ADVICE)
        if reason is not None:
            raise ConfigError(reason)
        descriptor = os.memfd_create("mori_gemm_ar", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
        except OSError as error:
            os.close(descriptor)
            limit = " (RLIMIT_FSIZE; see ulimit -f)" if error.errno == errno.EFBIG else ""
            raise ConfigError(
                f"window={nbytes} bytes must be available, but the system says: {error.strerror or error}{limit}; "
                f"{_ADVICE}"
            ) from error
        return cls(descriptor, nbytes)

    @classmethod
    def open(cls, handle: _Handle) -> Segment:
        """The segment of another process."""
        path = f"/proc/{handle.pid}/fd/{handle.descriptor}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise CollectiveSetupError(
                f"{path} must be readable, but the system says: {error.strerror or error}; it is the memory that rank "
                f"0 shares; run all ranks of an emulated group in one container and as one user"
            ) from error
        try:
            status = os.fstat(descriptor)
            if (status.st_ino, status.st_size) != (handle.inode, handle.nbytes):
                raise CollectiveSetupError(f"{path} must be the memory that rank 0 shares; rank 0 has ended or closed")
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, handle.nbytes)

    def handle(self) -> _Handle:
        """What another process needs to open it."""
        me = ProcessId.mine()
        inode = os.fstat(self.descriptor).st_ino
        return _Handle(me.pid, me.started, me.host, self.descriptor, inode, self.nbytes)

    def close(self) -> None:
        """Let go; memory that somebody still has a view of stays mapped for as long as the view."""
        self._finalizer()
        mapping, self.mapping = self.mapping, CLOSED
        with suppress(BufferError):  # from now on only the views hold it
            mapping.close()

    @contextmanager
    def locked(self, offset: int, nbytes: int) -> Iterator[None]:
        """Exclude other processes from these bytes. The system unlocks them when the holder dies."""
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.lockf(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, nbytes, offset)
                break
            except (BlockingIOError, PermissionError):  # EAGAIN or EACCES
                if time.monotonic() > deadline:
                    raise EmulatorError(
                        f"shared memory must be free within {_LOCK_TIMEOUT_S:g} s; a rank is stopped"
                    ) from None
            time.sleep(_LOCK_PAUSE_S)
        try:
            yield
        finally:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN, nbytes, offset)


class SharedFlatMemory:
    """One rank's hold on the flat memory of its communicator."""

    def __init__(self, segment: Segment, rank: int, per_rank: int, backing: ProcessBacking) -> None:
        self.segment, self.rank, self.per_rank = segment, rank, per_rank
        self.nranks = len(backing.processes)
        self.base = segment.base + _header(self.nranks)
        self.board = Board(segment.mapping, rank, backing.processes)
        self._backing = backing
        self._announced: list[MemoryRegion] = []
        self._mutex = threading.Lock()
        HEART.attach(self.board)

    def holds(self, low: int, high: int) -> bool:
        """Whether a byte from `low` to `high` is in it."""
        return low < self.segment.base + self.segment.nbytes and high >= self.base

    def view(self, address: int, nbytes: int) -> memoryview:
        """Writable bytes; keeps the mapping alive."""
        offset = address - self.segment.base
        return memoryview(self.segment.mapping)[offset : offset + nbytes]

    def announce(self, ptr: int, size: int, parts: Parts) -> None:
        """Peers are in other processes, so this one announces their windows too."""
        offset = ptr - self.base - self.rank * self.per_rank
        for peer in range(self.nranks):
            address = self.base + peer * self.per_rank + offset
            region = MemoryRegion(f"window of rank {peer}", address, size, peer, parts, symmetric=True)
            self._backing.regions.add(region)
            self._announced.append(region)

    @contextmanager
    def locked(self, low: int, high: int) -> Iterator[None]:
        """Exclude other processes, and threads of this one, from the bytes `low` to `high`."""
        # A process never waits for its own lock on a file, hence the mutex.
        with self._mutex, self.segment.locked(low - self.segment.base, high - low + 1):
            yield

    def leave(self) -> None:
        """Peers keep the memory for as long as they need it."""
        while self._announced:
            self._backing.regions.remove(self._announced.pop())
        HEART.detach(self.board)
        self.board.close()
        self._backing.left(self)
        self.segment.close()


def _header(nranks: int) -> int:
    return -(-Board.nbytes(nranks) // _PAGE) * _PAGE


class ProcessBacking:
    """Memory for the ranks of one world, each of which is a process."""

    def __init__(self, regions: RegionTable, processes: Sequence[ProcessId]) -> None:
        self.regions, self.processes = regions, processes
        self.memories: list[SharedFlatMemory] = []
        self.boards: list[Board] = []
        self.when_empty: Callable[[], None] = lambda: None
        self._named: Segment | None = None

    def name(self, nranks: int, per_rank: int) -> UniqueId:
        """Make the memory. Raises `ConfigError` where there is not enough."""
        self._named = Segment.create(_header(nranks) + nranks * per_rank)
        return self._named.handle().token()

    def join(self, nranks: int, rank: int, unique_id: UniqueId, per_rank: int) -> FlatRange:
        """Open the memory that rank 0 made."""
        if platform.machine() not in ("x86_64", "AMD64"):
            raise ConfigError(
                f"machine={platform.machine()!r} must be x86-64, whose stores arrive in order, as emulated ranks in "
                f"processes need; use LocalWorld"
            )
        handle = _Handle(**json.loads(unique_id.token))
        if handle.host != ProcessId.mine().host:
            raise ConfigError(
                "ranks of an emulated group must share one machine and one container, as memory is shared"
            )
        segment = self._named or Segment.open(handle)
        try:
            memory = SharedFlatMemory(segment, rank, per_rank, self)
        except BaseException:
            if segment is not self._named:  # which peers may be opening just now; `discard` closes it
                segment.close()
            raise
        self._named = None
        self.memories.append(memory)
        self.boards.append(memory.board)
        return memory

    def discard(self) -> None:
        """Give back what was made and not joined."""
        if self._named is not None:
            self._named.close()
            self._named = None

    def left(self, memory: SharedFlatMemory) -> None:
        """This rank has left one of its memories."""
        self.memories.remove(memory)
        self.boards.remove(memory.board)
        if not self.memories:
            self.when_empty()


class SharedMemory(FunctionalMemory):
    """Global memory of a node whose peers are other processes."""

    def __init__(self, regions: RegionTable, backing: ProcessBacking) -> None:
        super().__init__(regions)
        self._backing = backing

    def exclusive(self, addresses: np.ndarray) -> AbstractContextManager[object]:
        """Locks what other processes can reach; NumPy's read-modify-write is not atomic."""
        low, high = int(addresses.min()), int(addresses.max()) + _WIDEST_ATOMIC - 1
        for memory in self._backing.memories:
            if memory.holds(low, high):
                return memory.locked(max(low, memory.segment.base), high)
        return nullcontext()

    def load(self, g: Group, site: int, k: Any, address: Any, access: Access, rows: Any, policy: int) -> None:
        """A load that is not a poll shows that this rank makes progress."""
        super().load(g, site, k, address, access, rows, policy)
        if not policy:
            HEART.beat()

    def store(self, g: Group, site: int, k: Any, address: Any, access: Access, rows: Any, policy: int) -> None:
        """So does every store."""
        super().store(g, site, k, address, access, rows, policy)
        HEART.beat()

    def lds_copy(self, *arguments: Any) -> None:
        """And every copy into LDS: a GEMM may run for minutes between two rounds of its node."""
        super().lds_copy(*arguments)
        HEART.beat()
