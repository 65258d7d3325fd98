# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Queues read back from the device: found where they are, named when they are missing, refused in an unknown layout."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator

import pytest

from mori_gemm_ar.emulator import Node, QueueSet
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout.copy_queue import HANDLE_OFFSETS, RECORD_BYTES
from mori_gemm_ar.runtime import CopyQueues
from mori_gemm_ar.runtime.cco import STRUCTURES
from mori_gemm_ar.runtime.cco_queues import layout_of, put_records, read_queues

WORLD, RANK, PER_PEER = 4, 1, 2
FACTS = {
    "rank": RANK, "worldSize": WORLD, "lsaSize": WORLD, "lsaRank": RANK, "flatBase": 0x7F0000000000,
    "perRankSize": 1 << 32,
}  # fmt: skip
SIZE = 200  # of ccoDevComm in amd-mori 1.2.4, by hand from its header
COUNT_AT, TABLE_AT = 168, 176


class Device:
    """Memory as a device communicator with emulated queues behind it."""

    def __init__(self, queues: QueueSet) -> None:
        self.queues = queues
        self.memory = bytearray(SIZE)
        struct.pack_into("<6i2Q", self.memory, 0, RANK, WORLD, WORLD, RANK, 0, 0, *list(FACTS.values())[4:])
        self.set(COUNT_AT, PER_PEER, "I")
        self.set(TABLE_AT, queues.table)
        self.ptr = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def set(self, offset: int, value: int, form: str = "Q") -> None:
        struct.pack_into(f"<{form}", self.memory, offset, value)

    def handle(self, index: int) -> ctypes.c_uint64:
        """The table's entry."""
        return ctypes.c_uint64.from_address(self.queues.table + 8 * index)

    def word(self, index: int, name: str) -> ctypes.c_uint64:
        """A word of a handle."""
        return ctypes.c_uint64.from_address(self.handle(index).value + HANDLE_OFFSETS[name])

    def find(self, queues: int = PER_PEER) -> CopyQueues | str:
        return read_queues(ctypes.string_at, self.ptr, FACTS, queues, STRUCTURES)


@pytest.fixture
def device() -> Iterator[Device]:
    queues = Node(WORLD).engines.open(RANK, WORLD, PER_PEER)
    yield Device(queues)
    queues.close()


def test_offsets_are_those_of_the_header() -> None:
    places, size, align = layout_of("ccoDevComm", STRUCTURES)
    assert (places["flatBase"][0], places["resourceWindow_inlined"][0], places["ibgda"][0]) == (24, 56, 88)
    assert (places["sdma"][0], size, align) == (COUNT_AT, SIZE, 8)
    assert layout_of("ccoSdmaContext", STRUCTURES)[0]["deviceHandles"][0] == TABLE_AT - COUNT_AT
    handle = layout_of("ccoSdmaQueueDeviceHandle", STRUCTURES)[0]
    assert {name: place for name, (place, _) in handle.items()} == HANDLE_OFFSETS


def test_queues_are_found(device: Device) -> None:
    assert device.find() == CopyQueues(device.queues.table, PER_PEER, WORLD)
    assert device.find(1) == CopyQueues(device.queues.table, PER_PEER, WORLD)  # what there is, not what was wanted


@pytest.mark.parametrize("value", [None, "0", "off", "1"])
def test_no_queues_are_explained(device: Device, monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("MORI_ENABLE_SDMA", raising=False)
    if value is not None:
        monkeypatch.setenv("MORI_ENABLE_SDMA", value)
    device.set(COUNT_AT, 0, "I")
    said = device.find()
    assert isinstance(said, str)
    assert ("must be 1" in said) == (value != "1")
    assert {None: "is not set", "0": "is '0'", "off": "is 'off'", "1": "is '1'"}[value] in said


def test_too_few_queues_are_explained(device: Device) -> None:
    assert device.find(3) == "amd-mori made 2 copy-engine queues for each peer, but 3 are wanted"
    device.handle(2 * PER_PEER + 1).value = 0
    assert "no copy-engine queue 1 to peer 2" in str(device.find())


def test_no_queue_to_oneself_is_needed(device: Device) -> None:
    for number in range(PER_PEER):
        device.handle(RANK * PER_PEER + number).value = 0
    assert isinstance(device.find(), CopyQueues)


def window_structure(
    base: int = FACTS["flatBase"] + 4096, units: int = 1, rank: int = RANK
) -> ctypes.Array[ctypes.c_char]:
    """ccoWindowDevice of a window 4096 bytes into each rank's memory."""
    return ctypes.create_string_buffer(struct.pack("<QIi16x", base, units, rank), 32)


OWN = FACTS["flatBase"] + RANK * FACTS["perRankSize"] + 4096


def test_records_say_what_mori_s_put_takes(device: Device) -> None:
    queues, window = device.find(), window_structure()
    assert isinstance(queues, CopyQueues)
    at = ctypes.addressof(window)
    data = put_records(ctypes.string_at, device.ptr, at, OWN, FACTS, queues, STRUCTURES)
    assert len(data) == WORLD * PER_PEER * RECORD_BYTES
    for index in range(WORLD * PER_PEER):
        peer, number = divmod(index, PER_PEER)
        words = struct.unpack_from("<8Q", data, index * RECORD_BYTES)
        there = OWN + (peer - RANK) * FACTS["perRankSize"]
        assert words == ((0,) * 8 if peer == RANK else (
            device.ptr, at, peer, number, OWN, there, device.handle(index).value, 0,
        ))  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "field"), [({"base": 4096}, "winBase"), ({"units": 2}, "stride4G"), ({"rank": 2}, "lsaRank")]
)
def test_a_window_in_an_unknown_layout_is_refused(device: Device, changes: dict[str, int], field: str) -> None:
    queues, window = device.find(), window_structure(**changes)
    assert isinstance(queues, CopyQueues)
    with pytest.raises(ConfigError, match=rf"ccoWindowDevice\.{field}=0x[0-9a-f]+ must be 0x"):
        put_records(ctypes.string_at, device.ptr, ctypes.addressof(window), OWN, FACTS, queues, STRUCTURES)


UNKNOWN: dict[str, tuple[Callable[[Device], object], str]] = {
    "world": (lambda d: d.set(4, WORLD + 1, "i"), r"ccoDevComm.worldSize=5 must be 4"),
    "flat base": (lambda d: d.set(24, 7), r"ccoDevComm.flatBase=7 must be"),
    "count": (lambda d: d.set(COUNT_AT, 9, "I"), r"ccoSdmaContext.sdmaNumQueue=9 must be at most 8"),
    "table": (lambda d: d.set(TABLE_AT, 0), r"ccoSdmaContext.deviceHandles=0x0 must be"),
    "ring": (lambda d: setattr(d.word(3, "queueBuf"), "value", 0x1008), r"queue 1 to peer 1: queueBuf=0x1008 must be"),
    "null": (lambda d: setattr(d.word(3, "doorbell"), "value", 0), r"queue 1 to peer 1: doorbell=0x0 must be"),
    "twice": (
        lambda d: setattr(d.word(0, "wptr"), "value", d.word(0, "rptr").value), r"queue 0 to peer 0: pointers=\["
    ),
    "busy": (
        lambda d: setattr(ctypes.c_uint64.from_address(d.word(0, "cachedWptr").value), "value", 64),
        r"queue 0 to peer 0: \*cachedWptr=0x40 must be 0x0",
    ),
    "seen": (lambda d: setattr(d.word(0, "cachedHwReadIndex"), "value", 32), r"cachedHwReadIndex=0x20 must be at most"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_layout_is_refused(device: Device, name: str) -> None:
    change, message = UNKNOWN[name]
    change(device)
    with pytest.raises(ConfigError, match=message):
        device.find()
