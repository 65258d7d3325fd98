# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Exchanges of small values over a key-value store: bounded, and decided alike for all ranks.

Not by collectives: after one that timed out, every later one of that group fails. An exchange is held on the keys
`<prefix>/<attempt>/<number>/...`. Who sees all values proposes "complete" under the key `verdict`, who loses patience
proposes "failed"; the store takes the first proposal, and all obey it. After a failure all ranks go on to the next
attempt, whose keys are new, so nothing that a late rank still writes can be taken for an answer.
"""

from __future__ import annotations

import base64
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mori_gemm_ar.errors import RendezvousError
from mori_gemm_ar.runtime.peers import ProcessId

if TYPE_CHECKING:
    from torch.distributed import Store

_COMPLETE, _FAILED = b"complete", b"failed:"
_PAUSE_S, _LONGEST_PAUSE_S = 0.3e-3, 10e-3
_LOOK_S = 0.5  # between two looks at the processes of missing ranks
_LONGEST_WAIT_S = 24 * 3600.0  # whatever peers do meanwhile
_NANO = 1e-9


def _pack(value: object) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def _unpack(data: bytes) -> tuple[str, object]:
    return pickle.loads(base64.b64decode(data))  # type: ignore[no-any-return]


class StoreRendezvous:
    """The exchanges of one process in one group, in the order in which all its ranks make them.

    `store` gives the group's store. `processes` may name the ranks' processes: dead ones are not waited for.
    """

    def __init__(self, store: Callable[[], Store], rank: int, size: int, prefix: str = "mori_gemm_ar") -> None:
        self._store, self.rank, self.size, self._prefix = store, rank, size, prefix
        self.processes: Sequence[ProcessId] = ()
        self._attempt = self._number = 0
        self._lock = threading.Lock()

    def exchange(
        self, step: str, value: object, timeout_s: float, progress: Callable[[], int] = lambda: 0
    ) -> list[object]:
        """One value from every rank, in rank order.

        Raises `RendezvousError`, with one text on all ranks, when a rank has died, does not come within `timeout_s`
        seconds, or is at another step. `progress` tells when peers last made progress, in CLOCK_MONOTONIC
        nanoseconds; patience counts from then.
        """
        with self._lock:
            place = f"{self._prefix}/{self._attempt}/{self._number}"
            try:
                store = self._store()
                store.set(f"{place}/{self.rank}", _pack((step, value)))
                verdict, waited = self._verdict(store, place, step, timeout_s, progress)
                if verdict != _COMPLETE:
                    self._next_attempt(store)
                    text = verdict.removeprefix(_FAILED).decode()
                    raise RendezvousError(text if waited else f"rank {self.rank} came too late to {step!r}: {text}")
                answers = [_unpack(store.get(f"{place}/{rank}")) for rank in range(self.size)]
                self._forget_previous(store)
                return self._values(store, answers)
            except RendezvousError:
                raise
            except RuntimeError as error:
                raise RendezvousError(
                    f"rank {self.rank} cannot reach the store of its group at step {step!r} ({error}); "
                    f"{self._who_served(step)}"
                ) from error

    def _values(self, store: Store, answers: list[tuple[str, object]]) -> list[object]:
        steps = [step for step, _ in answers]
        if len(set(steps)) > 1:
            self._next_attempt(store)
            listing = ", ".join(f"rank {rank} at {step!r}" for rank, step in enumerate(steps))
            raise RendezvousError(f"ranks must make the same calls in the same order, but are at: {listing}")
        self._number += 1
        return [value for _, value in answers]

    def _verdict(
        self, store: Store, place: str, step: str, timeout_s: float, progress: Callable[[], int]
    ) -> tuple[bytes, bool]:
        """What all ranks shall think of this exchange, and whether it was still open when this rank came."""
        keys = [f"{place}/{rank}" for rank in range(self.size)]
        verdict = f"{place}/verdict"
        if store.check([verdict]):
            return store.get(verdict), False
        began = looked = time.monotonic()
        pause = _PAUSE_S
        while True:
            if store.check(keys):
                return store.compare_set(verdict, "", _COMPLETE.decode()), True
            if store.check([verdict]):
                return store.get(verdict), True
            now = time.monotonic()
            reason = None
            if now - looked > _LOOK_S:
                looked = now
                reason = self._death(self._missing(store, keys), step)
            patience_since = min(max(began, progress() * _NANO), began + _LONGEST_WAIT_S)
            if reason is None and now - patience_since > timeout_s:
                reason = self._absence(self._missing(store, keys), step, timeout_s)
            if reason is not None:
                return store.compare_set(verdict, "", _FAILED.decode() + reason), True
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _who_served(self, step: str) -> str:
        """Which rank took the store with it, if it was one; a process that is being killed takes a moment to end."""
        others = [rank for rank in range(len(self.processes)) if rank != self.rank]
        deadline = time.monotonic() + _LOOK_S
        while others:
            reason = self._death(others, step)
            if reason is not None:
                return reason
            if time.monotonic() > deadline:
                break
            time.sleep(_LONGEST_PAUSE_S)
        return "the process that holds the store has probably ended"

    def _missing(self, store: Store, keys: list[str]) -> list[int]:
        return [rank for rank, key in enumerate(keys) if not store.check([key])]

    def _death(self, missing: list[int], step: str) -> str | None:
        for rank in missing:
            if self.processes and not self.processes[rank].alive():
                return f"rank {rank} (process {self.processes[rank].pid}) ended before step {step!r}"
        return None

    @staticmethod
    def _absence(missing: list[int], step: str, timeout_s: float) -> str | None:
        if not missing:  # the last one came just now
            return None
        ranks = ("rank " if len(missing) == 1 else "ranks ") + ", ".join(map(str, missing))
        return (
            f"{ranks} did not come to step {step!r} within {timeout_s:g} s; all ranks of a group must make the same "
            f"calls; see why that one does not, or allow more time, and create again on all ranks"
        )

    # ---- keys --------------------------------------------------------------------------------------------------
    def _next_attempt(self, store: Store) -> None:
        """New keys. A rank that missed attempts leaps to the newest one."""
        newest = f"{self._prefix}/attempt"
        current = int(store.get(newest)) if store.check([newest]) else 0
        self._attempt, self._number = max(self._attempt + 1, current), 0
        if self._attempt > current:
            store.set(newest, str(self._attempt))

    def _forget_previous(self, store: Store) -> None:
        """Everyone has come to this exchange, so everyone has read the one before it."""
        if self._number == 0:
            return
        previous = f"{self._prefix}/{self._attempt}/{self._number - 1}"
        store.delete_key(f"{previous}/{self.rank}")
        if self.rank == 0:
            store.delete_key(f"{previous}/verdict")
