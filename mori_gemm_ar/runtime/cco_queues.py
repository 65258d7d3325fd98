# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The copy-engine queues that `mori.cco` made, read back from the device: only a layout that we know is used.

mori makes queues when the communicator is made, and only with MORI_ENABLE_SDMA set; without queues its own puts do
nothing, silently. What it made stands in the device communicator.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout.copy_queue import HANDLE_BYTES, HANDLE_WORDS, RECORD_BYTES, RECORD_WORDS, UNIT_BYTES
from mori_gemm_ar.runtime.symmetric import MAX_QUEUES
from mori_gemm_ar.runtime.target import CopyQueues

ENABLE = "MORI_ENABLE_SDMA"
Members = tuple[tuple[str, str], ...]
Read = Callable[[int, int], bytes]

_SIZES = {"int": 4, "uint32_t": 4, "size_t": 8, "uint64_t": 8, "ccoGdaConnectionType": 4}
_FORMATS = {"int": "i", "uint32_t": "I", "size_t": "Q", "uint64_t": "Q"}


def layout_of(name: str, structures: Mapping[str, Members]) -> tuple[dict[str, tuple[int, str]], int, int]:
    """(offset, type) of each member, size and alignment of a structure, by the rules of the C++ ABI."""
    offset, widest, places = 0, 1, {}
    for kind, member in structures[name]:
        if kind.endswith("*"):
            size = align = 8
        elif kind in _SIZES:
            size = align = _SIZES[kind]
        else:
            _, size, align = layout_of(kind, structures)
        offset = -(-offset // align) * align
        places[member] = (offset, kind)
        offset, widest = offset + size, max(widest, align)
    return places, -(-offset // widest) * widest, widest


class _Structure:
    """A structure as it lies on the device."""

    def __init__(self, name: str, structures: Mapping[str, Members], data: bytes, start: int = 0) -> None:
        self.name, self._data, self._start = name, data, start
        self._places, _, _ = layout_of(name, structures)

    def __getitem__(self, member: str) -> int:
        offset, kind = self._places[member]
        form = "Q" if kind.endswith("*") else _FORMATS[kind]
        return int(struct.unpack_from(f"<{form}", self._data, self._start + offset)[0])

    def at(self, member: str) -> int:
        """Offset of a member in the data."""
        return self._start + self._places[member][0]


def _refuse(field: str, value: object, rule: str) -> ConfigError:
    return ConfigError(
        f"{field}={value} must be {rule}; this amd-mori lays out its queues in another way: use the load/store "
        f"transport, or the version that docs/rocm.md names"
    )


def read_queues(
    read: Read, address: int, facts: Mapping[str, int], queues: int, structures: Mapping[str, Members]
) -> CopyQueues | str:
    """The queues behind the device communicator at `address`, or why there are none.

    `facts` are members of ccoDevComm that the host knows too. Raises `ConfigError` when what is there is not laid out
    as `structures` say. The queues must be idle.
    """
    comm = _Structure("ccoDevComm", structures, read(address, layout_of("ccoDevComm", structures)[1]))
    for member, value in facts.items():
        if comm[member] != value:
            raise _refuse(f"ccoDevComm.{member}", comm[member], f"{value}, as the host says")
    context = _Structure("ccoSdmaContext", structures, comm._data, comm.at("sdma"))
    world, count = facts["lsaSize"], context["sdmaNumQueue"]
    if count == 0:
        return _no_queues()
    if count > MAX_QUEUES:
        raise _refuse("ccoSdmaContext.sdmaNumQueue", count, f"at most {MAX_QUEUES}")
    if count < queues:
        return f"amd-mori made {count} copy-engine queues for each peer, but {queues} are wanted"
    table = context["deviceHandles"]
    if table == 0 or table % 8:
        raise _refuse("ccoSdmaContext.deviceHandles", f"{table:#x}", "an address of pointers")
    handles = struct.unpack(f"<{world * count}Q", read(table, 8 * world * count))
    for index, handle in enumerate(handles):
        peer, number = divmod(index, count)
        if handle == 0:
            if peer != facts["lsaRank"]:  # nobody needs an engine to copy to itself
                return f"amd-mori made no copy-engine queue {number} to peer {peer}; it says why in its log"
            continue
        _check_handle(read, handle, f"queue {number} to peer {peer}")
    return CopyQueues(table, count, world)


def put_records(
    read: Read,
    comm: int,
    window: int,
    own: int,
    facts: Mapping[str, int],
    queues: CopyQueues,
    structures: Mapping[str, Members],
) -> bytes:
    """What mori's put takes for each queue, one record behind the other; those of the own rank are zero.

    comm, window: addresses of ccoDevComm and ccoWindowDevice. own: address of this rank's window. Raises `ConfigError`
    when the window is not laid out as `structures` say.
    """
    found = _Structure("ccoWindowDevice", structures, read(window, layout_of("ccoWindowDevice", structures)[1]))
    rank, stride = facts["lsaRank"], facts["perRankSize"]
    for member, value in (("winBase", own - rank * stride), ("stride4G", stride >> 32), ("lsaRank", rank)):
        if found[member] != value:
            raise _refuse(f"ccoWindowDevice.{member}", hex(found[member]), f"{value:#x}, as the host says")
    count, records = queues.per_peer, []
    handles = struct.unpack(f"<{queues.world * count}Q", read(queues.table, 8 * queues.world * count))
    for index, handle in enumerate(handles):
        peer, number = divmod(index, count)
        words = (comm, window, peer, number, own, own + (peer - rank) * stride, handle, 0)
        assert len(words) == len(RECORD_WORDS)
        records.append(bytes(RECORD_BYTES) if peer == rank else struct.pack(f"<{len(words)}Q", *words))
    return b"".join(records)


def _no_queues() -> str:
    value = os.environ.get(ENABLE)
    if value is None or value.strip().lower() in ("", "0", "false", "no", "off"):
        said = "is not set" if value is None else f"is {value!r}"
        return f"{ENABLE} {said} and must be 1 in the environment of every rank before the first communicator is made"
    return f"amd-mori made no copy-engine queues although {ENABLE} is {value!r}; it says why in its log"


def _check_handle(read: Read, address: int, where: str) -> None:
    """Raise `ConfigError` unless an idle queue's handle lies there."""
    if address % 8:
        raise _refuse(f"deviceHandles of {where}", f"{address:#x}", "the address of a handle")
    words = dict(zip(HANDLE_WORDS, struct.unpack(f"<{len(HANDLE_WORDS)}Q", read(address, HANDLE_BYTES)), strict=True))
    pointers = HANDLE_WORDS[:-1]
    for name in pointers:
        align = UNIT_BYTES if name == "queueBuf" else 8
        if words[name] == 0 or words[name] % align:
            raise _refuse(f"{where}: {name}", f"{words[name]:#x}", f"an address that is a multiple of {align}")
    if len({words[name] for name in pointers}) != len(pointers):
        raise _refuse(f"{where}: pointers", [f"{words[name]:#x}" for name in pointers], "different from each other")
    reserved, committed = (int.from_bytes(read(words[name], 8), "little") for name in ("cachedWptr", "committedWptr"))
    if reserved != committed or reserved % UNIT_BYTES:
        idle = "an idle queue, in which no put ran out of time"
        rule = f"{committed:#x}, as *committedWptr, and a multiple of {UNIT_BYTES}: {idle}"
        raise _refuse(f"{where}: *cachedWptr", f"{reserved:#x}", rule)
    if words["cachedHwReadIndex"] > committed:
        raise _refuse(f"{where}: cachedHwReadIndex", f"{words['cachedHwReadIndex']:#x}", f"at most {committed:#x}")
