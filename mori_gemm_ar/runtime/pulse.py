# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Signs of life between processes, and the clock of their kernels, which stands while somebody makes progress.

Each shared memory has a board with one slot per rank: when that rank last knew of progress, and whether it has left.
A rank makes progress while its emulator moves; waiting is none. A waiting rank passes on what its peers last did, as
a time and not as a count: so news reaches ranks that wait for a waiting rank, and grows old in a circle of waits.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from enum import IntEnum
from mmap import mmap
from weakref import finalize, ref

from mori_gemm_ar.emulator import TICKS_PER_SECOND
from mori_gemm_ar.runtime.peers import ProcessId

_SECOND = 1_000_000_000  # nanoseconds
_NS_PER_TICK = _SECOND // TICKS_PER_SECOND
_SLOT_BYTES = 512
_STAMP = struct.Struct("Q")  # native: one 8-byte access
_STATE = struct.Struct("II")
_TEXT_AT = 16
_PUBLISH_NS = 1_000_000  # how old a sign of life may be; each costs a microsecond
_STALL_NS = _SECOND // 5  # without progress for this long, time begins to count, and peers' processes are looked at
_PAUSE_S, _LONGEST_PAUSE_S = 50e-6, 1e-3
_LONGEST_SLEEP_S = 20e-3  # between two looks at the memory itself while no peer has shown progress
_FOREVER = 25 * 3600 * TICKS_PER_SECOND  # above every budget
_LONGEST_WAIT_NS = 24 * 3600 * _SECOND  # of one wait, whatever peers do meanwhile


CLOSED = mmap(-1, 1)  # stands where a mapping was let go
CLOSED.close()


class Presence(IntEnum):
    """What a rank says of itself."""

    HERE = 0
    LEFT = 1  # closed, or its interpreter has ended: it wrote all that it will ever write
    GAVE_UP = 2  # an error keeps it from making the calls that others wait for


class Board:
    """The slots of one shared memory, as one rank holds them."""

    def __init__(self, mapping: mmap, rank: int, processes: Sequence[ProcessId]) -> None:
        self._mapping, self._rank, self._processes = mapping, rank, processes
        self._peers = tuple(r for r in range(len(processes)) if r != rank)
        self._pid = os.getpid()
        # At exit too: a rank that ends without `close` has left, and has not died.
        self._finalizer = finalize(self, _mark, mapping, _SLOT_BYTES * rank, self._pid, Presence.LEFT, "")

    @staticmethod
    def nbytes(nranks: int) -> int:
        """Memory for the slots."""
        return _SLOT_BYTES * nranks

    def show(self, stamp: int) -> None:
        """Write this rank's last progress, in CLOCK_MONOTONIC nanoseconds."""
        if self._pid != os.getpid():  # a forked child is not the rank that its parent is
            return
        with suppress(ValueError):  # another thread has just closed it
            _STAMP.pack_into(self._mapping, _SLOT_BYTES * self._rank, stamp)

    def latest(self) -> int:
        """The last progress that any peer knows of."""
        mapping = self._mapping
        return max((_STAMP.unpack_from(mapping, _SLOT_BYTES * peer)[0] for peer in self._peers), default=0)

    def give_up(self, reason: str) -> None:
        """Tell the peers that this rank will not come."""
        _mark(self._mapping, _SLOT_BYTES * self._rank, self._pid, Presence.GAVE_UP, reason)

    def lost(self) -> dict[int, str]:
        """Peers that died or gave up, and how."""
        found = {}
        for peer in self._peers:
            process = self._processes[peer]
            alive = process.alive()  # first: what a process says of itself is said before it ends
            presence, text = self._read(peer)
            if presence is Presence.GAVE_UP:
                found[peer] = f"gave up ({text})"
            elif presence is Presence.HERE and not alive:
                found[peer] = f"has died (process {process.pid})"
        return found

    def _read(self, peer: int) -> tuple[Presence, str]:
        at = _SLOT_BYTES * peer
        state, length = _STATE.unpack_from(self._mapping, at + _STAMP.size)
        text = self._mapping[at + _TEXT_AT : at + _TEXT_AT + length].decode(errors="replace")
        return Presence(state), text

    def close(self) -> None:
        """This rank has left; the memory is not held any longer."""
        self._finalizer()
        self._mapping = CLOSED


def _mark(mapping: mmap, at: int, pid: int, presence: Presence, text: str) -> None:
    """Set a rank's presence, unless it has given up before."""
    if mapping.closed or pid != os.getpid() or _STATE.unpack_from(mapping, at + _STAMP.size)[0]:
        return
    data = text.encode()[: _SLOT_BYTES - _TEXT_AT]
    mapping[at + _TEXT_AT : at + _TEXT_AT + len(data)] = data
    _STATE.pack_into(mapping, at + _STAMP.size, presence, len(data))


class Heart:
    """The last progress that this process knows of, shown on every board that it has a slot on."""

    def __init__(self) -> None:
        self._boards: tuple[ref[Board], ...] = ()  # replaced whole, as other threads may be showing
        self._lock = threading.Lock()
        self._stamp = self._due = 0

    def attach(self, board: Board) -> None:
        """Show progress on this board too, for as long as somebody holds it."""
        with self._lock:
            self._boards = (*(known for known in self._boards if known() is not None), ref(board))
        self.beat(now=True)

    def detach(self, board: Board) -> None:
        """Do so no longer."""
        with self._lock:
            self._boards = tuple(known for known in self._boards if known() is not board)

    def beat(self, *, now: bool = False) -> None:
        """This process makes progress. Shown at once if `now`, else when the last showing has grown old."""
        self._stamp = time.monotonic_ns()
        if now or self._stamp >= self._due:
            self._show()

    def pass_on(self, stamp: int) -> None:
        """Somebody for whom this process waits made progress at that time."""
        if stamp > self._stamp:
            self._stamp = stamp
            self._show()

    def _show(self) -> None:
        self._due = time.monotonic_ns() + _PUBLISH_NS
        for known in self._boards:
            board = known()
            if board is not None:
                board.show(self._stamp)


HEART = Heart()  # one per process


def latest_progress(boards: Iterable[Board]) -> int:
    """When a peer on any of the boards last knew of progress, in CLOCK_MONOTONIC nanoseconds; 0: never."""
    return max((board.latest() for board in boards), default=0)


class ProcessClock:
    """CLOCK_MONOTONIC in ticks of 10 ns, less the time in which this rank or a peer on `boards` made progress.

    So the budget of a wait begins anew with each sign of progress. When a peer has died or given up, time leaps past
    every budget: kernels end by themselves and say where they stood.
    """

    def __init__(self, boards: Iterable[Board], heart: Heart = HEART) -> None:
        self._boards, self._heart = boards, heart
        self._moved = time.monotonic_ns()
        # Kernels read the time only in rounds that move or after them, hence never a time before `_base`.
        self._base = self.ticks = self._moved // _NS_PER_TICK
        self._rounds = self._looked = 0
        self._hopeless = False

    def advance(self) -> None:
        """A round in which something moved."""
        self._base, self._rounds = self.ticks, 0
        self._moved = time.monotonic_ns()
        self._heart.beat(now=True)

    def idle(self, horizon: int | None) -> int:
        """A round in which nothing moved: sleep, longer each time, and let the time pass that counts."""
        self._pause()
        now, before = time.monotonic_ns(), self.ticks
        latest = max(self._moved, latest_progress(self._boards))
        self._heart.pass_on(latest)
        if self._hopeless or now - max(latest, self._looked) > _STALL_NS:
            self._looked = now
            self._hopeless = any(board.lost() for board in self._boards)
        # Short pauses are everyday: counted, they would add up while ranks wait for each other in turn.
        ticks = self._base + max(0, now - latest - _STALL_NS) // _NS_PER_TICK
        if self._hopeless or now - self._moved > _LONGEST_WAIT_NS:
            ticks = before + _FOREVER
        self.ticks = ticks if horizon is None else min(ticks, max(horizon, before))
        return max(0, self.ticks - before)

    def _pause(self) -> None:
        """Sleep until a peer shows progress, or for a time that doubles from round to round."""
        left = min(_PAUSE_S * 2 ** min(self._rounds, 20), _LONGEST_SLEEP_S)
        self._rounds += 1
        seen = latest_progress(self._boards)
        while left > 0 and latest_progress(self._boards) == seen:
            pause = min(left, _LONGEST_PAUSE_S)
            time.sleep(pause)
            left -= pause
