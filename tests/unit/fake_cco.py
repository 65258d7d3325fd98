# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""A stand-in for `mori.cco` with the rules that the real one has, and flat memory that both targets can share."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Callable
from typing import Any

from mori_gemm_ar.emulator import Engines, MemoryRegion, QueueSet, RegionTable
from mori_gemm_ar.runtime.cco import RESERVATION_GRANULE
from mori_gemm_ar.runtime.symmetric import UniqueId

TOKEN = bytes(range(128))


# --- memory ---


class Flat:
    """Flat memory of all ranks at the distance that mori.cco uses; pages cost nothing until touched."""

    def __init__(self, nranks: int) -> None:
        self.nranks, self.per_rank = nranks, RESERVATION_GRANULE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self.mapping = mmap.mmap(-1, nranks * self.per_rank, flags=flags)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.mapping))

    def start(self, rank: int) -> int:
        return self.base + rank * self.per_rank

    def view(self, address: int, nbytes: int) -> memoryview:
        return memoryview(self.mapping)[address - self.base : address - self.base + nbytes]


class FixedBacking:
    """Lets the emulated target use a given flat memory, so that both targets see the same addresses."""

    def __init__(self, flat: Flat, regions: RegionTable, rank: int) -> None:
        self._regions, self._rank = regions, rank
        self.nranks, self.per_rank, self.base, self.view = flat.nranks, flat.per_rank, flat.base, flat.view
        self._announced: list[MemoryRegion] = []

    def name(self, nranks: int, per_rank: int) -> UniqueId:
        return UniqueId(TOKEN)

    def join(self, nranks: int, rank: int, unique_id: UniqueId, per_rank: int) -> FixedBacking:
        return self

    def announce(self, ptr: int, size: int, parts: Any) -> None:
        region = MemoryRegion(f"window of rank {self._rank}", ptr, size, self._rank, parts, symmetric=True)
        self._regions.add(region)
        self._announced.append(region)

    def leave(self) -> None:
        while self._announced:
            self._regions.remove(self._announced.pop())

    def discard(self) -> None:
        pass


# --- mori.cco ---


class UniqueIdObject:
    def __init__(self, token: bytes) -> None:
        self.token = token

    def __bytes__(self) -> bytes:
        return self.token

    @staticmethod
    def from_bytes(b: bytes) -> UniqueIdObject:
        assert len(b) == 128
        return UniqueIdObject(b)


class DeviceMemory:
    """What of a communicator kernels may reach."""

    def __init__(self, regions: RegionTable, rank: int) -> None:
        self._regions, self._rank = regions, rank
        self._known: list[MemoryRegion] = []
        self._held: list[Any] = []

    def know(self, region: MemoryRegion) -> None:
        self._regions.add(region)
        self._known.append(region)

    def structure(self, name: str, data: bytes) -> int:
        """Address of a structure in device memory."""
        held = ctypes.create_string_buffer(data, len(data))
        self._held.append(held)
        address = ctypes.addressof(held)
        self.know(MemoryRegion(f"{name} structure of rank {self._rank}", address, len(data), self._rank))
        return address

    def forget(self) -> None:
        while self._known:
            self._regions.remove(self._known.pop())


class FakeCco:
    """The module `mori.cco` for one rank, with the rules that the real one has: order of teardown, ids as objects."""

    GDA_CONNECTION_NONE = 0

    def __init__(
        self,
        flat: Flat,
        regions: RegionTable,
        log: list[str],
        faults: dict[str, Exception],
        guarded: Callable[[], bool],
        engines: Engines | None = None,
    ) -> None:
        fake = self
        self.live: list[str] = []

        def step(name: str) -> None:
            assert guarded() or name == "id", "the calling thread must have the device"
            log.append(name)
            if name in faults:
                raise faults[name]

        class CCODevCommRequirements:
            gda_connection_type, gda_signal_count, gda_counter_count, sdma_queue_count = 2, 16, 16, 0

        class Resource:
            def __init__(self, kind: str) -> None:
                self.kind, self.closed = kind, False
                fake.live.append(kind)

            def close(self) -> None:
                if self.closed:
                    return
                self.closed = True
                if self.kind == "device communicator":
                    raise SystemError("aborted: copy-engine queues belong to the communicator")
                if self.kind == "memory":
                    assert "window" not in fake.live, "memory must be freed after its window"
                step(f"close {self.kind}")
                fake.live.remove(self.kind)

        class Communicator:
            def __init__(self, nranks: int, rank: int) -> None:
                self.nranks, self.rank = nranks, rank
                self.device = DeviceMemory(regions, rank)
                fake.live.append("communicator")

            @staticmethod
            def get_unique_id() -> UniqueIdObject:
                step("id")
                return UniqueIdObject(TOKEN)

            @classmethod
            def init(cls, nranks: int, rank: int, unique_id: Any, per_rank_vmm: int) -> Communicator:
                assert isinstance(unique_id, UniqueIdObject), "an id object, not bytes"
                assert per_rank_vmm % RESERVATION_GRANULE == 0
                step("init")
                return cls(nranks, rank)

            def alloc_mem(self, size: int) -> Resource:
                step("alloc_mem")
                memory = Resource("memory")
                memory.ptr = flat.start(self.rank)
                return memory

            def register_window(self, ptr: int, size: int) -> Resource:
                step("register_window")
                self.device.know(MemoryRegion(f"window of rank {self.rank}", ptr, size, self.rank, symmetric=True))
                window = Resource("window")
                # ccoWindowDevice, as the header of amd-mori lays it out.
                base, units = ptr - self.rank * flat.per_rank, flat.per_rank >> 32
                window.handle = self.device.structure("window", struct.pack("<QIi16x", base, units, self.rank))
                return window

            def create_dev_comm(self, requirements: CCODevCommRequirements | None = None) -> Resource:
                step("create_dev_comm")
                assert requirements.gda_connection_type == fake.GDA_CONNECTION_NONE
                assert requirements.sdma_queue_count >= 1, "0 means mori's default"
                comm = Resource("device communicator")
                comm.rank = comm.lsa_rank = self.rank
                comm.world_size = comm.lsa_size = self.nranks
                comm.flat_base, comm.per_rank_size = flat.base, flat.per_rank
                data = fake.device_structures(comm, requirements.sdma_queue_count)
                comm.ptr = self.device.structure("device communicator", data)
                return comm

            def destroy(self) -> None:
                step("destroy")
                self.device.forget()
                if fake.queues is not None:
                    fake.queues.close()
                    fake.queues = None
                assert set(fake.live) <= {"communicator", "device communicator"}, fake.live
                fake.live.clear()

        self._engines = engines
        self.queues: QueueSet | None = None
        self.UniqueId, self.Communicator = UniqueIdObject, Communicator
        self.CCODevCommRequirements = CCODevCommRequirements

    def device_structures(self, comm: Any, queues: int) -> bytes:
        """A device communicator, as the header of amd-mori lays it out; queues only with MORI_ENABLE_SDMA."""
        count, table = 0, 0
        if os.environ.get("MORI_ENABLE_SDMA") == "1" and self._engines is not None:
            self.queues = self.queues or self._engines.open(comm.rank, comm.world_size, queues)
            count, table = self.queues.per_peer, self.queues.table
        facts = (comm.rank, comm.world_size, comm.lsa_size, comm.lsa_rank, 0, 0, comm.flat_base, comm.per_rank_size)
        return struct.pack("<6i2Q128xI4xQ2Q", *facts, count, table, 0, 0)
