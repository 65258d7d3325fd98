# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Symmetric memory: the names that `mori.cco` uses, one flat range for all ranks, and lifetimes."""

from __future__ import annotations

import ctypes
import gc
import itertools
import weakref

import pytest

from mori_gemm_ar.emulator import RegionTable
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.runtime import Communicator, symmetric
from mori_gemm_ar.runtime.symmetric import LocalBacking

PER_RANK = 1 << 16


def joined(size: int, regions: RegionTable, per_rank: int = PER_RANK) -> list[Communicator]:
    unique = Communicator.get_unique_id()
    return [
        Communicator.init(size, rank, unique, per_rank, backing=LocalBacking(regions), meet=lambda: None)
        for rank in range(size)
    ]


def live(regions: RegionTable) -> int:
    """Communicators whose memory is still kept for a node."""
    return len(symmetric._SHARED.get(regions, {}))


# --- names and layout ---


def test_the_names_of_mori_cco() -> None:
    """What a program for the real library calls exists here and works without further arguments."""
    regions = RegionTable()
    (comm,) = joined(1, regions)
    memory = comm.alloc_mem(1000)
    window = comm.register_window(memory.ptr, memory.size)
    device = comm.create_dev_comm()
    comm.barrier()
    assert (comm.rank, comm.nranks, window.local_ptr, window.size) == (0, 1, memory.ptr, 1000)
    assert (device.rank, device.world_size, device.lsa_rank, device.lsa_size) == (0, 1, 0, 1)
    for resource in (device, window, memory):
        resource.close()
        resource.close()
    comm.destroy()
    assert len(regions) == 0


def test_peers_lie_at_a_constant_stride() -> None:
    comms = joined(4, RegionTable())
    for _ in range(3):
        addresses = [comm.alloc_mem(5000).ptr for comm in comms]
        device = [comm.create_dev_comm() for comm in comms]
        assert len({(d.flat_base, d.per_rank_size) for d in device}) == 1
        base, stride = device[0].flat_base, device[0].per_rank_size
        offset = addresses[0] - base
        assert stride == PER_RANK and addresses == [base + rank * stride + offset for rank in range(4)]
        assert offset % 4096 == 0
    for comm in comms:
        comm.destroy()


def test_allocations_do_not_overlap_and_end() -> None:
    (comm,) = joined(1, RegionTable())
    starts = [comm.alloc_mem(size).ptr for size in (1, 4096, 4097, 100)]
    assert [b - a for a, b in itertools.pairwise(starts)] == [4096, 4096, 8192]
    left = PER_RANK - 5 * 4096
    for size in (left + 1, 0, -1):
        with pytest.raises(ConfigError, match=rf"size={size} must be 1..{left} bytes, what per_rank_vmm leaves"):
            comm.alloc_mem(size)
    comm.alloc_mem(left)
    comm.destroy()


def test_windows_are_known_memory_of_their_rank() -> None:
    regions = RegionTable()
    comms = joined(3, regions)
    for comm in comms:
        memory = comm.alloc_mem(512)
        comm.register_window(memory.ptr, 512, ((0, 256, "entry"), (256, 256, "input")))
    assert len(regions) == 3
    for comm in comms:
        start = comm.memory.base + comm.rank * PER_RANK
        region = regions.find(start, 512)
        assert region is not None and region.home == comm.rank
        assert region.describe(start + 300) == f"window of rank {comm.rank}: input + 0x2c"
        assert regions.find(start, 513) is None and regions.find(start - 1) is None
    for comm in comms:
        comm.destroy()


def test_barrier_meets_the_other_ranks() -> None:
    meetings: list[int] = []
    unique = Communicator.get_unique_id()
    comm = Communicator.init(1, 0, unique, 4096, backing=LocalBacking(RegionTable()), meet=lambda: meetings.append(1))
    comm.barrier()
    comm.barrier()
    assert meetings == [1, 1]
    comm.destroy()


# --- lifetimes ---


def test_memory_stays_until_the_last_rank_has_left() -> None:
    """Also the memory of a rank that left first: its peers may still be reading it."""
    regions = RegionTable()
    comms = joined(3, regions)
    windows = []
    for comm in comms:
        memory = comm.alloc_mem(256)
        windows.append(comm.register_window(memory.ptr, 256).local_ptr)
        ctypes.memset(memory.ptr, comm.rank + 1, 256)
    for leaving in (1, 0):
        comms[leaving].destroy()
        comms[leaving].destroy()
        for rank, window in enumerate(windows):
            assert regions.find(window, 256) is not None
            assert ctypes.string_at(window, 256) == bytes([rank + 1]) * 256
    assert live(regions) == 1
    comms[2].destroy()
    assert len(regions) == 0 and live(regions) == 0


def test_a_view_keeps_its_memory_after_everyone_has_left() -> None:
    regions = RegionTable()
    (comm,) = joined(1, regions)
    view = comm.memory.view(comm.alloc_mem(64).ptr, 64)
    view[:4] = b"kept"
    comm.destroy()
    del comm
    gc.collect()
    assert bytes(view[:5]) == b"kept\0" and len(view) == 64
    view[63] = 7


def test_a_destroyed_communicator_refuses_use() -> None:
    (comm,) = joined(1, RegionTable())
    memory, handle = comm.alloc_mem(64), comm.create_dev_comm()
    comm.destroy()
    assert memory.closed and handle.closed
    uses = (lambda: comm.alloc_mem(1), lambda: comm.register_window(0, 1), comm.create_dev_comm, comm.barrier)
    for use in uses:
        with pytest.raises(ConfigError, match="the communicator must not be destroyed; create a new one"):
            use()


def test_what_is_left_open_goes_away_with_its_node() -> None:
    regions = RegionTable()
    comms = joined(2, regions)
    memory = weakref.ref(next(iter(symmetric._SHARED[regions].values())).memory)
    del comms
    gc.collect()
    assert live(regions) == 1 and memory() is not None  # kernels of the node could still reach it
    del regions
    gc.collect()
    assert memory() is None


# --- ranks that disagree ---


def test_sizes_must_be_equal() -> None:
    regions, unique = RegionTable(), Communicator.get_unique_id()
    first = Communicator.init(2, 0, unique, PER_RANK, backing=LocalBacking(regions), meet=lambda: None)
    for nranks, per_rank in ((2, 2 * PER_RANK), (3, PER_RANK)):
        with pytest.raises(ConfigError, match=rf"per_rank_vmm={per_rank} and nranks={nranks} must be equal on all"):
            Communicator.init(nranks, 1, unique, per_rank, backing=LocalBacking(regions), meet=lambda: None)
    first.destroy()
    assert live(regions) == 0


def test_granularity() -> None:
    with pytest.raises(ConfigError, match="per_rank_vmm=5000 must be a multiple of 4096"):
        joined(1, RegionTable(), 5000)


def test_communicators_do_not_share_memory() -> None:
    regions = RegionTable()
    first, second = joined(2, regions), joined(2, regions)
    assert first[0].memory.base == first[1].memory.base != second[0].memory.base
    assert live(regions) == 2
    for comm in (*first, *second):
        comm.destroy()
    assert live(regions) == 0
