# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""One process per rank, over any `torch.distributed` group: rendezvous through the group's store, shared memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary, ref

from mori_gemm_ar.emulator import Node, RegionTable
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.runtime import torch_store
from mori_gemm_ar.runtime.emulated import EmulatedTarget
from mori_gemm_ar.runtime.peers import ProcessId
from mori_gemm_ar.runtime.pulse import HEART, ProcessClock, latest_progress
from mori_gemm_ar.runtime.rendezvous import StoreRendezvous
from mori_gemm_ar.runtime.select import open_target
from mori_gemm_ar.runtime.shared_memory import ProcessBacking, SharedMemory
from mori_gemm_ar.runtime.target import Target, World

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Store

RENDEZVOUS_TIMEOUT_S = 300.0  # ranks may be compiling, several to a core

# All worlds of a group, or of a store, make their exchanges in one sequence, as its ranks make their calls.
_RENDEZVOUS: WeakKeyDictionary[ProcessGroup | Store, StoreRendezvous] = WeakKeyDictionary()


class _ProcessHost:
    """One target's GPU on this process's rank: an emulated node of its own, whose peers are other processes."""

    def __init__(self, world: ProcessWorld) -> None:
        self._world = world
        self.rank, self.size = world.rank, world.size
        regions = RegionTable()
        self.backing = ProcessBacking(regions, world.processes)
        memory = SharedMemory(regions, self.backing)
        self.node = Node(1, memory=memory, clock=ProcessClock(self.backing.boards))
        node = ref(self.node)  # the node's memory leads to the backing
        self.backing.when_empty = lambda: _release(node())

    def exchange(self, step: str, value: object) -> list[object]:
        """One value from every rank. While peers' emulators show progress, patience does not run out."""
        return self._world.exchange(step, value, lambda: latest_progress(self.backing.boards))

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Run this rank's GPU until `condition()` holds."""
        self._world.require_own_process()
        HEART.beat(now=True)
        try:
            while not condition():
                self.node.step()
            self.node.engines.settle()  # peers may wait for what they bring
        except Exception as error:
            self.give_up(f"{type(error).__name__}: {error}")
            raise

    def give_up(self, reason: str) -> None:
        """Tell ranks that wait for this one in a kernel that it will not come."""
        for board in self.backing.boards:
            board.give_up(reason)

    def absent(self) -> dict[int, str]:
        """Ranks that died or gave up, and which of these."""
        return {rank: fate for board in self.backing.boards for rank, fate in board.lost().items()}


def _release(node: Node | None) -> None:
    if node is not None:
        node.release()


class ProcessWorld:
    """This process's rank in a group of processes; made by `from_group`.

    Serves wherever a `RankContext` of a `LocalWorld` does. It holds no resource: an op made on it gives back all that
    it took. All ranks of a group make the same calls on its worlds and create the same ops, in the same order.
    """

    def __init__(self, rendezvous: StoreRendezvous, timeout_s: float, keep: object = None) -> None:
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s < float("inf"):
            raise ConfigError(f"timeout_s={timeout_s!r} must be a number of seconds above 0")
        self.rank, self.size, self.timeout_s = rendezvous.rank, rendezvous.size, float(timeout_s)
        self._rendezvous, self._keep, self._pid = rendezvous, keep, os.getpid()
        answers = rendezvous.exchange("join the group", ProcessId.mine(), self.timeout_s)
        self.processes = rendezvous.processes = tuple(cast("list[ProcessId]", answers))

    @classmethod
    def from_group(cls, group: ProcessGroup | None = None, *, timeout_s: float = RENDEZVOUS_TIMEOUT_S) -> ProcessWorld:
        """Collective over the ranks of `group` (None: the default group), in the group's own rank order.

        timeout_s bounds each meeting of the ranks. Raises `ConfigError` on a rank outside the group, and
        `RendezvousError` on all ranks when one does not come.
        """
        chosen = torch_store.group_of(group)
        rendezvous = _RENDEZVOUS.get(chosen)
        if rendezvous is None:
            rendezvous = StoreRendezvous(torch_store.GroupStore(chosen), *torch_store.rank_and_size(chosen))
            _RENDEZVOUS[chosen] = rendezvous
        return cls(rendezvous, timeout_s)

    @classmethod
    def from_store(cls, store: Store, rank: int, size: int, *, timeout_s: float = RENDEZVOUS_TIMEOUT_S) -> ProcessWorld:
        """The same over a bare key-value store: one object in each process, for the same ranks each time."""
        rendezvous = _RENDEZVOUS.get(store)
        if rendezvous is None:
            alive = ref(store)  # what the table holds must not keep its key
            rendezvous = _RENDEZVOUS[store] = StoreRendezvous(lambda: cast("Store", alive()), rank, size)
        return cls(rendezvous, timeout_s, keep=store)

    def target(self, device: str = "auto") -> Target:
        """A device of this rank; ranks that choose differently find out when an op compares them."""
        return open_target(self, device, lambda: EmulatedTarget(_ProcessHost(self)))

    def exchange(self, step: str, value: object, progress: Callable[[], int] = lambda: 0) -> list[object]:
        """One value from every rank; raises `RendezvousError` naming ranks that die or do not come.

        `progress` tells when peers last made progress; patience counts from then.
        """
        self.require_own_process()
        HEART.beat(now=True)
        return self._rendezvous.exchange(step, value, self.timeout_s, progress)

    def barrier(self) -> None:
        """All ranks have come here."""
        self.exchange("barrier", None)

    def require_own_process(self) -> None:
        """Raise `ConfigError` in a forked child."""
        if os.getpid() != self._pid:
            raise ConfigError(
                f"process={os.getpid()} must be {self._pid}, where this world was made; a forked child makes its own"
            )


def connect(world_or_group: Any = None) -> World:
    """A world from what a caller may hold: a world itself, a `torch.distributed` group, or None for the default group.

    Collective when a group is given. Raises `ConfigError` for anything else.
    """
    if world_or_group is None or torch_store.is_group(world_or_group):
        return ProcessWorld.from_group(world_or_group)
    if all(hasattr(world_or_group, name) for name in ("rank", "size", "exchange", "target")):
        return cast(World, world_or_group)
    raise ConfigError(
        f"world={world_or_group!r} must be a torch.distributed group, None for the default group, a ProcessWorld, or "
        f"the context that LocalWorld.run hands to a rank"
    )
