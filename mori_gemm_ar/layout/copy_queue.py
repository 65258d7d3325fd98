# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Queues of copy engines: the handle that kernels read, the ring, and packets as dwords.

Source: the public structures of amd-mori 1.2.4's cco.hpp and the packet formats beside it. kernels/device/sdma.ll
states the same numbers in LLVM IR; a test compares the two.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

RING_BYTES = 256 * 1024  # positions in a queue only grow; a position modulo this is a place in the ring
UNIT_BYTES = 32  # every reservation is whole units, so no packet is split at the end of the ring
MAX_COUNT_BITS = 30  # of a copy's count field
MAX_PUT_BYTES = 128 << 20  # one packet of ours; far below what the field holds
_MASK = 0xFFFFFFFF

# The seven 64-bit words of a queue's handle, in order.
HANDLE_WORDS = ("queueBuf", "rptr", "wptr", "doorbell", "cachedWptr", "committedWptr", "cachedHwReadIndex")
HANDLE_OFFSETS = {name: 8 * number for number, name in enumerate(HANDLE_WORDS)}
HANDLE_BYTES = 8 * len(HANDLE_WORDS)

# A put by amd-mori's own device code: the function in its bitcode, and what it takes for one queue, in 64-bit words
# that the host writes: ccoDevComm, ccoWindowDevice, the peer, the number of the queue, addresses of the own window and
# of the peer's, and the queue's handle.
PUT_SYMBOL = "cco_sdma_put__thread_ns"
RECORD_WORDS = ("comm", "window", "peer", "queue", "own_window", "peer_window", "handle", "unused")
RECORD_OFFSETS = {name: 8 * number for number, name in enumerate(RECORD_WORDS)}
RECORD_BYTES = 8 * len(RECORD_WORDS)


class Opcode(enum.IntEnum):
    """Lowest byte of a packet's first dword."""

    NOP = 0
    COPY = 1  # seven dwords: header, count - 1, parameters, source, target
    FENCE = 5  # four dwords: header, target, value; writes after everything before it has landed
    ATOMIC = 10  # eight dwords: header, target, value, compare value, loop; waits like a fence


COPY_LINEAR = 0  # second byte of a copy
ATOMIC_ADD64 = 47  # bits 25..31 of an atomic
DWORDS = {Opcode.NOP: 1, Opcode.COPY: 7, Opcode.FENCE: 4, Opcode.ATOMIC: 8}


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy `nbytes` from `source` to `target`."""

    target: int
    source: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Add:
    """Add `value` to the 64-bit word at `target`."""

    target: int
    value: int = 1


@dataclass(frozen=True, slots=True)
class Fence:
    """Write the 32-bit `value` to `target` when everything before has landed."""

    target: int
    value: int


Packet = Copy | Add | Fence


def _halves(value: int) -> tuple[int, int]:
    return value & _MASK, value >> 32 & _MASK


def encode(packet: Packet) -> tuple[int, ...]:
    """The dwords of a packet, without padding. Raises ValueError for a copy that no packet can express."""
    if isinstance(packet, Copy):
        if not 1 <= packet.nbytes <= 1 << MAX_COUNT_BITS:
            raise ValueError(f"nbytes={packet.nbytes} must be 1..{1 << MAX_COUNT_BITS}; split the copy")
        header = Opcode.COPY | COPY_LINEAR << 8
        return (header, packet.nbytes - 1, 0, *_halves(packet.source), *_halves(packet.target))
    if isinstance(packet, Add):
        header = Opcode.ATOMIC | ATOMIC_ADD64 << 25
        return (header, *_halves(packet.target), *_halves(packet.value), 0, 0, 0)
    return (Opcode.FENCE, *_halves(packet.target), packet.value & _MASK)


def unit(packet: Packet) -> tuple[int, ...]:
    """The same, padded with NOPs to one unit of the ring."""
    dwords = encode(packet)
    return dwords + (0,) * (UNIT_BYTES // 4 - len(dwords))


def units_of(nbytes: int, signals: int = 0) -> int:
    """Units that a put of `nbytes` takes, with that many signals behind it; a put of nothing copies nothing."""
    return -(-nbytes // MAX_PUT_BYTES) + signals


def decode(dwords: tuple[int, ...]) -> Packet | None:
    """The packet that starts with these dwords, None for a NOP. Raises ValueError for what no kernel of ours posts."""
    header = dwords[0]
    code = header & 0xFF
    if header == Opcode.NOP:
        return None
    if code not in (Opcode.COPY, Opcode.FENCE, Opcode.ATOMIC):
        raise ValueError(f"opcode={code} must be one of {', '.join(f'{o.name} ({o})' for o in Opcode)}")
    if len(dwords) < DWORDS[Opcode(code)]:
        raise ValueError(f"{Opcode(code).name} must have {DWORDS[Opcode(code)]} dwords, but {len(dwords)} are posted")
    if code == Opcode.COPY:
        if header >> 8 or dwords[2] or dwords[1] >> MAX_COUNT_BITS:
            raise ValueError(f"COPY must be linear without parameters, but its dwords are {_text(dwords[:3])}")
        return Copy(dwords[5] | dwords[6] << 32, dwords[3] | dwords[4] << 32, dwords[1] + 1)
    if code == Opcode.FENCE:
        if header >> 8:
            raise ValueError(f"FENCE must have no flags, but its header is {header:#010x}")
        return Fence(dwords[1] | dwords[2] << 32, dwords[3])
    if header != Opcode.ATOMIC | ATOMIC_ADD64 << 25 or any(dwords[5:8]):
        raise ValueError(f"ATOMIC must be a 64-bit addition, but its dwords are {_text(dwords[:8])}")
    return Add(dwords[1] | dwords[2] << 32, dwords[3] | dwords[4] << 32)


def _text(dwords: tuple[int, ...]) -> str:
    return " ".join(f"{d:08x}" for d in dwords)
