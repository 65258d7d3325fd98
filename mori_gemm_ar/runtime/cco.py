# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Every call into `mori.cco` that this library makes, as a table, and symmetric memory made of them.

A test compares the table with the source of amd-mori, so nothing here touches mori other than through it.

Lifetimes, in order: the communicator, memory on it, a window over that memory, the device communicator. On the way
back: the window, then its memory, then the communicator, which takes the device communicator with it. Destroying the
device communicator by itself makes the communicator's own teardown abort the process, because the copy-engine queues
belong to the communicator.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import copy_queue
from mori_gemm_ar.runtime.cco_queues import Read, put_records, read_queues
from mori_gemm_ar.runtime.resource import Resource, Rollback
from mori_gemm_ar.runtime.symmetric import require_queues
from mori_gemm_ar.runtime.target import CopyQueues

DISTRIBUTION = "amd-mori"
MINIMUM_VERSION = (1, 2, 4)
# The reserved range of a rank is a multiple of this: device code takes its stride in units of 4 GiB.
RESERVATION_GRANULE = 1 << 32
# What the communicator itself takes from a rank's range for the device communicator's state.
_OWN_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Call:
    """A function of a class of `mori.cco`, and the parameters that we give it, all of them by name.

    Without an owner it is a class of the module, and the call makes an object.
    """

    owner: str
    name: str
    parameters: tuple[str, ...] = ()

    def __call__(self, target: Any, *values: Any) -> Any:
        """Call it on an object or class."""
        return getattr(target, self.name)(**dict(zip(self.parameters, values, strict=True)))


@dataclass(frozen=True, slots=True)
class Field:
    """An attribute of a class of `mori.cco`."""

    owner: str
    name: str

    def __call__(self, target: Any) -> Any:
        """Read it."""
        return getattr(target, self.name)

    def set(self, target: Any, value: Any) -> None:
        """Write it."""
        setattr(target, self.name, value)


GET_UNIQUE_ID = Call("Communicator", "get_unique_id")
ID_TO_BYTES = Call("UniqueId", "__bytes__")
ID_FROM_BYTES = Call("UniqueId", "from_bytes", ("b",))
INIT = Call("Communicator", "init", ("nranks", "rank", "unique_id", "per_rank_vmm"))
ALLOC_MEM = Call("Communicator", "alloc_mem", ("size",))
REGISTER_WINDOW = Call("Communicator", "register_window", ("ptr", "size"))
REQUIREMENTS = Call("", "CCODevCommRequirements")
CREATE_DEV_COMM = Call("Communicator", "create_dev_comm", ("requirements",))
CLOSE_WINDOW = Call("RegisteredWindow", "close")
CLOSE_MEMORY = Call("AllocatedMemory", "close")
DESTROY = Call("Communicator", "destroy")
CALLS = (
    GET_UNIQUE_ID, ID_TO_BYTES, ID_FROM_BYTES, INIT, ALLOC_MEM, REGISTER_WINDOW, REQUIREMENTS, CREATE_DEV_COMM,
    CLOSE_WINDOW, CLOSE_MEMORY, DESTROY,
)  # fmt: skip

MEMORY_PTR = Field("AllocatedMemory", "ptr")
WINDOW_HANDLE = Field("RegisteredWindow", "handle")
DEV_COMM_PTR = Field("DevCommHandle", "ptr")
RANK = Field("DevCommHandle", "rank")
WORLD_SIZE = Field("DevCommHandle", "world_size")
LSA_RANK = Field("DevCommHandle", "lsa_rank")
LSA_SIZE = Field("DevCommHandle", "lsa_size")
FLAT_BASE = Field("DevCommHandle", "flat_base")
PER_RANK_SIZE = Field("DevCommHandle", "per_rank_size")
GDA_CONNECTION_TYPE = Field("CCODevCommRequirements", "gda_connection_type")
GDA_SIGNAL_COUNT = Field("CCODevCommRequirements", "gda_signal_count")
GDA_COUNTER_COUNT = Field("CCODevCommRequirements", "gda_counter_count")
SDMA_QUEUE_COUNT = Field("CCODevCommRequirements", "sdma_queue_count")
FIELDS = (
    MEMORY_PTR, WINDOW_HANDLE, DEV_COMM_PTR, RANK, WORLD_SIZE, LSA_RANK, LSA_SIZE, FLAT_BASE, PER_RANK_SIZE,
    GDA_CONNECTION_TYPE, GDA_SIGNAL_COUNT, GDA_COUNTER_COUNT, SDMA_QUEUE_COUNT,
)  # fmt: skip

# Names of the module `mori.cco` itself.
EXPORTS = ("Communicator", "UniqueId", "CCODevCommRequirements", "GDA_CONNECTION_NONE")

# What of the C++ header our kernels rely on. Structures: their first members, type and name, in order. A kernel that
# reads a device structure adds it here, and the test compares it.
HEADER = "include/mori/cco/cco.hpp"
STRUCTURES: dict[str, tuple[tuple[str, str], ...]] = {
    "ccoDevComm": (
        ("int", "rank"),
        ("int", "worldSize"),
        ("int", "lsaSize"),
        ("int", "lsaRank"),
        ("int", "myNodeStart"),
        ("ccoGdaConnectionType", "gdaConnType"),
        ("void*", "flatBase"),
        ("size_t", "perRankSize"),
        ("ccoWindowTableNode*", "windowTable"),
        ("ccoWindowDevice*", "resourceWindow"),
        ("ccoWindowDevice", "resourceWindow_inlined"),
        ("ccoIbgdaContext", "ibgda"),
        ("ccoLsaBarrierHandle", "lsaBarrier"),
        ("ccoGdaBarrierHandle", "railGdaBarrier"),
        ("ccoLsaBarrierHandle", "hybridLsaBarrier"),
        ("ccoGdaBarrierHandle", "hybridRailGdaBarrier"),
        ("ccoSdmaContext", "sdma"),
    ),
    "ccoWindowDevice": (
        ("char*", "winBase"),
        ("uint32_t", "stride4G"),
        ("int", "lsaRank"),
        ("ccoIbgdaWin", "ibgdaWin"),
    ),
    "ccoIbgdaWin": (("uint32_t*", "peerRkeys"), ("uint32_t", "lkey")),
    "ccoIbgdaContext": (
        ("core::RdmaEndpointDevice*", "endpoints"),
        ("int", "numQpPerPe"),
        ("int", "signalCount"),
        ("uint64_t*", "signalBuf"),
        ("uint64_t*", "signalShadows"),
        ("int", "counterCount"),
        ("uint64_t*", "counterBuf"),
    ),
    "ccoLsaBarrierHandle": (("uint32_t", "bufOffset"), ("int", "nBarriers")),
    "ccoGdaBarrierHandle": (("uint32_t", "signal0"), ("int", "nBarriers")),
    "ccoSdmaContext": (
        ("uint32_t", "sdmaNumQueue"),
        ("ccoSdmaQueueDeviceHandle**", "deviceHandles"),
        ("uint64_t*", "signalBuf"),
        ("uint64_t**", "peerSignalPtrs"),
    ),
    "ccoSdmaQueueDeviceHandle": (
        ("uint32_t*", "queueBuf"),
        ("HSAuint64*", "rptr"),
        ("HSAuint64*", "wptr"),
        ("HSAuint64*", "doorbell"),
        ("uint64_t*", "cachedWptr"),
        ("uint64_t*", "committedWptr"),
        ("uint64_t", "cachedHwReadIndex"),
    ),
}
CONSTANTS: dict[str, int] = {
    "CCO_API_VERSION": 1,
    "CCO_GDA_CONNECTION_NONE": 0,
    "CCO_SDMA_OP_COPY": copy_queue.Opcode.COPY,
    "CCO_SDMA_OP_ATOMIC": copy_queue.Opcode.ATOMIC,
    "CCO_SDMA_SUBOP_COPY_LINEAR": copy_queue.COPY_LINEAR,
    "CCO_SDMA_ATOMIC_ADD64": copy_queue.ATOMIC_ADD64,
    "CCO_SDMA_QUEUE_SIZE": copy_queue.RING_BYTES,
    "CCO_SDMA_UNIT": copy_queue.UNIT_BYTES,
}
# Packets: bits of the fields, in order over all dwords.
PACKETS: dict[str, tuple[tuple[str, int], ...]] = {
    "CCO_SDMA_PKT_COPY_LINEAR": (
        ("op", 8), ("sub_op", 8), ("reserved_0", 12), ("npd", 1), ("reserved_1", 3),
        ("count", copy_queue.MAX_COUNT_BITS), ("reserved_0", 2),
        ("reserved_0", 18), ("dst_scope", 2), ("dst_temporal_hint", 3), ("reserved_1", 3), ("src_scope", 2),
        ("src_temporal_hint", 3), ("reserved_2", 1),
        ("src_addr_31_0", 32), ("src_addr_63_32", 32), ("dst_addr_31_0", 32), ("dst_addr_63_32", 32),
    ),
    "CCO_SDMA_PKT_ATOMIC": (
        ("op", 8), ("sub_op", 8), ("l", 1), ("reserved_0", 1), ("tmz", 1), ("reserved_1", 1), ("scope", 2),
        ("temporal_hint", 3), ("operation", 7),
        ("addr_31_0", 32), ("addr_63_32", 32), ("src_data_31_0", 32), ("src_data_63_32", 32),
        ("cmp_data_31_0", 32), ("cmp_data_63_32", 32), ("loop_interval", 13), ("reserved_0", 19),
    ),
}  # fmt: skip
# Peer address = own base + peer * stride: stated beside stride4G.
STATEMENTS = (
    "winBase = flatBase + slotOffset",
    "peer_va = winBase + ((uint64_t)peerLsaRank * stride4G << 32) + offset",
    "perRankSize >> 32 (perRankSize is 4GB-aligned)",
)


def reservation(nbytes: int) -> int:
    """Bytes of address space to reserve for each rank so that `nbytes` fit."""
    return -(-(nbytes + _OWN_BYTES) // RESERVATION_GRANULE) * RESERVATION_GRANULE


def unique_id_bytes(cco: Any) -> bytes:
    """A token that lets ranks find each other; made on rank 0, then given to all."""
    token: bytes = ID_TO_BYTES(GET_UNIQUE_ID(cco.Communicator))
    return token


Guard = Callable[[], AbstractContextManager[Any]]


class CcoHandle(Resource):
    """Something of mori's that is closed by a call of the table, on the device that `guard` makes current."""

    def __init__(self, handle: Any, close: Callable[[Any], Any], guard: Guard) -> None:
        super().__init__()
        self._handle, self._close, self._guard = handle, close, guard

    def _release(self) -> None:
        with self._guard():
            self._close(self._handle)


class CcoMemory(CcoHandle):
    """Symmetric memory of this rank. mori gives its pages back at `close`."""

    def __init__(self, handle: Any, guard: Guard) -> None:
        super().__init__(handle, CLOSE_MEMORY, guard)
        self.ptr: int = MEMORY_PTR(handle)


class CcoWindow(CcoHandle):
    """Memory that all ranks reach; `handle` is what device code calls a window."""

    def __init__(self, handle: Any, guard: Guard) -> None:
        super().__init__(handle, CLOSE_WINDOW, guard)
        self.handle: int = WINDOW_HANDLE(handle)


class CcoDeviceComm(Resource):
    """Facts that kernels need. `close` only ends its use; the communicator destroys it, see the module."""

    def __init__(self, handle: Any) -> None:
        super().__init__()
        self.world_size: int = WORLD_SIZE(handle)
        self.lsa_rank: int = LSA_RANK(handle)
        self.lsa_size: int = LSA_SIZE(handle)
        self.flat_base: int = FLAT_BASE(handle)
        self.per_rank_size: int = PER_RANK_SIZE(handle)
        self.copy_queues: CopyQueues | None = None
        self.copy_engine_fault: str | None = None
        self._read: Read | None = None
        self._address: int = DEV_COMM_PTR(handle)
        self._facts = {
            "rank": RANK(handle),
            "worldSize": self.world_size,
            "lsaSize": self.lsa_size,
            "lsaRank": self.lsa_rank,
            "flatBase": self.flat_base,
            "perRankSize": self.per_rank_size,
        }

    def find_queues(self, read: Read, queues: int) -> None:
        """Read back what mori made. Raises `ConfigError` for a layout that is not the known one."""
        self._read = read
        found = read_queues(read, self._address, self._facts, queues, STRUCTURES)
        if isinstance(found, str):
            self.copy_engine_fault = found
        else:
            self.copy_queues = found

    def put_records(self, window: Any, own: int) -> bytes:
        """What mori's device code takes for each queue; `own` is the address of this rank's window."""
        if self.copy_queues is None or self._read is None or not isinstance(window, CcoWindow):
            raise ConfigError("put_records() must follow find_queues(); ask for queues, and for a window of mori's")
        return put_records(self._read, self._address, window.handle, own, self._facts, self.copy_queues, STRUCTURES)

    def _release(self) -> None:
        pass


class CcoCommunicator:
    """Symmetric memory over `mori.cco` for one rank: the interface of `symmetric.Communicator`.

    `module` is `mori.cco`. `guard` makes the rank's device current, which mori wants of every calling thread. `read`
    copies device memory to the host. Whatever `also` registers is released before the communicator is.
    """

    def __init__(
        self,
        module: Any,
        nranks: int,
        rank: int,
        token: bytes,
        nbytes: int,
        guard: Guard = nullcontext,
        read: Read | None = None,
    ) -> None:
        self.nranks, self.rank = nranks, rank
        self._module, self._guard, self._read = module, guard, read
        self._rollback = Rollback()
        with guard():
            unique_id = ID_FROM_BYTES(module.UniqueId, token)
            self._comm = INIT(module.Communicator, nranks, rank, unique_id, reservation(nbytes))
        self._rollback.add(lambda: DESTROY(self._comm))
        self._memory: CcoMemory | None = None

    def also(self, release: Callable[[], object]) -> None:
        """Register something that has to be given back with the communicator."""
        self._rollback.add(release)

    def alloc_mem(self, size: int) -> CcoMemory:
        """Collective: memory at the same offset on every rank."""
        with self._guard():
            self._memory = CcoMemory(ALLOC_MEM(self._comm, size), self._guard)
        return self._memory

    def register_window(self, ptr: int, size: int, parts: tuple[tuple[int, int, str], ...] = ()) -> CcoWindow:
        """Collective: map this memory into every rank's address range. `parts` is for other targets."""
        with self._guard():
            return CcoWindow(REGISTER_WINDOW(self._comm, ptr, size), self._guard)

    def create_dev_comm(self, queues: int = 0) -> CcoDeviceComm:
        """Collective: the device communicator, without network, and `queues` copy-engine queues for each peer.

        Raises ConfigError when the ranks do not share one flat address range, or queues were asked for and lie on the
        device in a way that this library does not know.
        """
        require_queues(queues)
        requirements = REQUIREMENTS(self._module)
        GDA_CONNECTION_TYPE.set(requirements, self._module.GDA_CONNECTION_NONE)
        GDA_SIGNAL_COUNT.set(requirements, 0)
        GDA_COUNTER_COUNT.set(requirements, 0)
        SDMA_QUEUE_COUNT.set(requirements, max(1, queues))  # 0 would mean mori's default, which is more
        with self._guard():
            comm = CcoDeviceComm(CREATE_DEV_COMM(self._comm, requirements))
        self._require_flat(comm)
        if queues and self._read is not None:
            comm.find_queues(self._read_device, queues)
        return comm

    def _read_device(self, address: int, nbytes: int) -> bytes:
        assert self._read is not None
        with self._guard():
            return self._read(address, nbytes)

    def _require_flat(self, comm: CcoDeviceComm) -> None:
        if (comm.world_size, comm.lsa_size, comm.lsa_rank) != (self.nranks, self.nranks, self.rank):
            raise ConfigError(
                f"ranks must share one node: mori.cco reaches {comm.lsa_size} of {comm.world_size} ranks by load and "
                f"store and calls this one {comm.lsa_rank} instead of {self.rank}; "
                "start all ranks on one node, numbered alike"
            )
        start = comm.flat_base + self.rank * comm.per_rank_size
        if self._memory is not None and not start <= self._memory.ptr < start + comm.per_rank_size:
            raise ConfigError(
                f"window={self._memory.ptr:#x} must lie in this rank's part of the flat range, which starts at "
                f"{start:#x}; this amd-mori lays out its memory in another way"
            )

    def destroy(self) -> None:
        """Leave. A second call does nothing."""
        with self._guard():
            self._rollback.run()
