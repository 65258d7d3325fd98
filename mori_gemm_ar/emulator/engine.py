# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""One copy engine with its queue. It sees what its doorbell says, and memory; no cache.

Packets start in the order of the ring. Copies land in pieces, in any order of two copies between which no fence or
atomic stands. The read pointer passes a packet when it and all before it have landed.
"""

from __future__ import annotations

import ctypes
import itertools
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mori_gemm_ar.emulator.engine_settings import EngineSettings
from mori_gemm_ar.emulator.weak import WeakMemory
from mori_gemm_ar.errors import EmulatorError, RaceError
from mori_gemm_ar.layout.copy_queue import (
    DWORDS,
    MAX_PUT_BYTES,
    RING_BYTES,
    Add,
    Copy,
    Fence,
    Opcode,
    Packet,
    decode,
    encode,
)

if TYPE_CHECKING:
    from mori_gemm_ar.emulator.node import Node
    from mori_gemm_ar.emulator.races.engine import EngineAgent

_IN_FLIGHT = 4  # packets that one engine works on at a time
_PIECES = 4  # a copy moves in up to so many pieces
_SMALL = 4096  # bytes that move at once


@dataclass(frozen=True, slots=True)
class QueueAddresses:
    """Where a queue's ring and its three words lie."""

    ring: int
    rptr: int
    wptr: int
    doorbell: int


@dataclass(slots=True)
class _Started:
    """A packet under way: the pieces that are left, and where in the queue it ends."""

    packet: Packet | None
    position: int
    end: int
    pieces: list[tuple[int, int]]  # offset and bytes
    waits: bool  # for the last moment
    done: bool = False


class CopyEngine:
    """The engine behind one queue of a GPU; `place` is (gpu, peer, queue number)."""

    def __init__(
        self,
        node: Node,
        settings: EngineSettings,
        random: np.random.Generator,
        place: tuple[int, int, int],
        addresses: QueueAddresses,
    ) -> None:
        self._node, self._settings, self._random, self.addresses = node, settings, random, addresses
        self.gpu, self.peer, self.number = place
        self.name = f"copy engine of GPU {self.gpu} to peer {self.peer}, queue {self.number}"
        self._agent: EngineAgent | None = node.races.engine(self.name, self.gpu)
        faults = settings.faults
        on = {name for name in ("no_data", "dead", "stalled", "late", "torn", "lost") if faults.hits(name, *place)}
        self._faults = frozenset(on)
        self._doorbell = 0  # last value seen
        self._seen_at = 0  # when
        self._next = 0  # position of the next packet to start
        self._rptr = 0
        self._packets = 0
        self._started: deque[_Started] = deque()
        # For the race detector: copies since the last fence, and how far the queue was drained when the doorbell rang.
        self._unfenced: list[_Started] = []
        self._drained = 0

    # ---- what others see -------------------------------------------------------------------------------------
    @property
    def undrained(self) -> bool:
        """Whether something posted has not landed."""
        return self._word(self.addresses.rptr) != self._word(self.addresses.doorbell)

    def describe(self) -> str:
        """Where it stands, for reports."""
        why = f" ({', '.join(sorted(self._faults))})" if self._faults else ""
        read, posted = self._word(self.addresses.rptr), self._word(self.addresses.doorbell)
        under_way = len(self._started)
        return f"{self.name}{why}: read pointer {read:#x}, doorbell {posted:#x}, {under_way} packets under way"

    def step(self, last_moment: bool = False) -> bool:
        """Look at the doorbell, start packets, move pieces, retire. Returns whether anything moved."""
        moved = self._look()
        if "dead" in self._faults:
            return moved
        if "late" in self._faults and self._next == self._rptr:
            due = self._seen_at + self._settings.faults.late_ticks
            if self._next != self._doorbell and self._node.clock.ticks < due:
                return moved
        moved |= self._start()
        for one in list(self._started):
            if self._may_move(one, last_moment):
                self._move(one)
                moved = True
        return self._retire() | moved

    # ---- parts of a step -------------------------------------------------------------------------------------
    def _word(self, address: int) -> int:
        return ctypes.c_uint64.from_address(address).value

    def _look(self) -> bool:
        value = self._word(self.addresses.doorbell)
        if value == self._doorbell:
            return False
        if value < self._doorbell:
            self._fail(value, f"the doorbell must not go back from {self._doorbell:#x}; a later put overtook it")
        if value % 4:
            self._fail(value, "the doorbell must be a multiple of 4 bytes")
        if value - self._rptr > RING_BYTES:
            self._fail(value, f"the doorbell must be within {RING_BYTES} bytes of the read pointer {self._rptr:#x}")
        self._doorbell, self._seen_at, self._drained = value, self._node.clock.ticks, self._rptr
        if self._agent is not None:
            self._agent.hear(self.addresses.doorbell)
        return True

    def _start(self) -> bool:
        """Start packets in order, up to a fence or atomic that has to wait."""
        started = False
        while self._next < self._doorbell and len(self._started) < _IN_FLIGHT:
            packet, size = self._fetch()
            spent = self._packets >= self._settings.faults.stalled_after
            if "stalled" in self._faults and packet is not None and spent:
                break
            one = _Started(packet, self._next, self._next + size, [], self._delays())
            if isinstance(packet, Copy):
                self._check(packet.source, packet.nbytes, one, "source")
                self._check(packet.target, packet.nbytes, one, "target")
                one.pieces = self._cut(packet.nbytes)
                if self._agent is not None and not self._settings.ordered:
                    self._check_order(packet, one)
            elif packet is not None:
                self._check(packet.target, 8 if isinstance(packet, Add) else 4, one, "target")
                self._unfenced.clear()
            else:
                one.done = True
            self._packets += packet is not None
            self._next += size
            self._started.append(one)
            started = True
        return started

    def _delays(self) -> bool:
        memory = self._node.memory
        return isinstance(memory, WeakMemory) and bool(self._random.random() < memory.adversary.engine)

    def _fetch(self) -> tuple[Packet | None, int]:
        """The packet at the next position, and its bytes."""
        inside = self._next % RING_BYTES
        count = min(8, (self._doorbell - self._next) // 4, (RING_BYTES - inside) // 4)
        address = self.addresses.ring + inside
        dwords = tuple((ctypes.c_uint32 * count).from_address(address))
        try:
            packet = decode(dwords)
        except ValueError as error:
            self._fail(self._next, str(error))
        size = 4 * (DWORDS[Opcode.NOP] if packet is None else len(encode(packet)))
        if self._agent is not None:
            self._agent.read(address, size)
        if isinstance(packet, Copy) and packet.nbytes > MAX_PUT_BYTES:
            self._fail(self._next, f"{packet} must copy at most {MAX_PUT_BYTES} bytes; split the put")
        return packet, size

    def _check(self, address: int, nbytes: int, one: _Started, what: str) -> None:
        regions = self._node.regions
        if regions.find(address, nbytes) is None:
            near = regions.nearest(address)
            hint = f"; nearest is {near.name} [{near.address:#x}, {near.end:#x})" if near else ""
            self._fail(one.position, f"{what} of {one.packet} must lie in a known region{hint}")
        if not isinstance(one.packet, Copy) and address % (8 if isinstance(one.packet, Add) else 4):
            self._fail(one.position, f"{what} of {one.packet} must be aligned")

    def _check_order(self, packet: Copy, one: _Started) -> None:
        """Raise `RaceError` for a copy that touches what an earlier one writes, or writes what it reads, unfenced.

        Whoever posted it may have drained only what was behind the read pointer when its doorbell rang.
        """
        self._unfenced = [other for other in self._unfenced if other.end > self._drained]
        for other in self._unfenced:
            first = other.packet
            assert isinstance(first, Copy)
            pairs = ((first.target, packet.target), (first.target, packet.source), (first.source, packet.target))
            if any(a < b + packet.nbytes and b < a + first.nbytes for a, b in pairs):
                raise RaceError(
                    f"{self.name}: {packet} at position {one.position:#x} and {first} at position {other.position:#x} "
                    f"must not touch the same bytes without a drain, fence or atomic between them; they may land in "
                    f"any order"
                )
        self._unfenced.append(one)

    def _fail(self, position: int, why: str) -> None:
        raise EmulatorError(f"{self.name}, position {position:#x} (ring + {position % RING_BYTES:#x}): {why}")

    def _cut(self, nbytes: int) -> list[tuple[int, int]]:
        """Pieces in a seeded order."""
        if nbytes <= _SMALL:
            return [(0, nbytes)]
        places = sorted({0, nbytes, *(self._random.integers(1, nbytes // 16, _PIECES - 1) * 16).tolist()})
        pieces = [(low, high - low) for low, high in itertools.pairwise(places)]
        return [pieces[n] for n in self._random.permutation(len(pieces))]

    def _may_move(self, one: _Started, last_moment: bool) -> bool:
        first = one is self._first_open()
        if one.done or (not first and (self._settings.ordered or not self._passes(one))):
            return False
        if last_moment:
            return True
        return not one.waits and bool(self._random.random() < self._settings.busy)

    def _first_open(self) -> _Started | None:
        return next((one for one in self._started if not one.done), None)

    def _passes(self, one: _Started) -> bool:
        """A copy may overtake copies; nothing overtakes a fence or atomic, and they overtake nothing."""
        if not isinstance(one.packet, Copy):
            return False
        for other in self._started:
            if other is one:
                return True
            if not other.done and not isinstance(other.packet, Copy):
                return False
        return True

    def _move(self, one: _Started) -> None:
        packet, memory = one.packet, self._node.memory
        if isinstance(packet, Copy):
            offset, nbytes = one.pieces.pop()
            one.done = not one.pieces
            if "torn" in self._faults:
                nbytes = max(0, min(nbytes, packet.nbytes // 2 - offset))
            if "no_data" not in self._faults and nbytes:
                self._copy(packet, offset, nbytes)
            return
        one.done = True
        assert packet is not None
        if self._faults & {"no_data", "lost"}:
            return
        if isinstance(packet, Fence):
            memory.engine_write(self.gpu, packet.target, np.asarray([packet.value], np.uint32).view(np.uint8))
            if self._agent is not None:
                self._agent.signal(packet.target)
        else:
            memory.engine_add(self.gpu, packet.target, packet.value)
            if self._agent is not None:
                self._agent.add(packet.target)

    def _copy(self, packet: Copy, offset: int, nbytes: int) -> None:
        memory, source, target = self._node.memory, packet.source + offset, packet.target + offset
        if self._agent is not None:
            self._agent.read(source, nbytes)
            self._agent.write(target, nbytes)
        memory.engine_write(self.gpu, target, memory.engine_read(self.gpu, source, nbytes))

    def _retire(self) -> bool:
        """Move the read pointer past what has landed."""
        before = self._rptr
        while self._started and self._started[0].done:
            self._rptr = self._started.popleft().end
        if self._rptr == before or "lost" in self._faults:
            return self._rptr != before
        ctypes.c_uint64.from_address(self.addresses.rptr).value = self._rptr
        if self._agent is not None:
            self._agent.signal(self.addresses.rptr)
        return True
