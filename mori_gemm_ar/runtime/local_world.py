# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""All ranks in one process: one thread per rank passes a baton in seeded order, and one emulated node runs all GPUs.

Exactly one thread runs at a time. When every thread waits, the node runs; when the node waits too, virtual time jumps.
"""

from __future__ import annotations

import enum
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mori_gemm_ar.emulator import TICKS_PER_SECOND, EngineSettings, Node
from mori_gemm_ar.errors import CollectiveSetupError, CollectiveTimeout, ConfigError, CopyEngineTimeout, RendezvousError
from mori_gemm_ar.layout.terms import MAX_WORLD
from mori_gemm_ar.runtime.emulated import EmulatedTarget
from mori_gemm_ar.runtime.symmetric import LocalBacking

# How a rank fails because another one did.
_PEER_ERRORS = (RendezvousError, CollectiveSetupError, CollectiveTimeout)
# Share of scheduling points at which the node runs although a thread could: this is how fast ranks overtake slow ones.
_NODE_FIRST = 0.25


class _State(enum.Enum):
    READY = enum.auto()
    WAITING = enum.auto()
    ENDED = enum.auto()


@dataclass(eq=False, slots=True)
class _Task:
    """A thread under the baton."""

    rank: int
    name: str
    state: _State = _State.READY
    what: str = ""
    condition: Callable[[], bool] | None = None
    wake_ticks: int | None = None
    baton: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    outcome: BaseException | None = None
    result: Any = None
    thread: threading.Thread | None = None


class _Scheduler:
    """Hands the baton from task to task. Only the holder of the baton calls it."""

    def __init__(self, node: Node, seed: int) -> None:
        self.node = node
        self.random = random.Random(seed)
        self.tasks: list[_Task] = []
        self.all_ended = threading.Event()
        self._by_thread: dict[int, _Task] = {}

    def start(self, rank: int, name: str, body: Callable[[], Any]) -> _Task:
        """Create a task; it runs when it first gets the baton."""
        task = _Task(rank, name)

        def run() -> None:
            self._by_thread[threading.get_ident()] = task
            task.baton.wait()
            task.baton.clear()
            try:
                task.result = body()
            except BaseException as error:  # the outcome of a rank is reported by `run`, whatever it is
                task.outcome = error
            task.state = _State.ENDED
            self._by_thread.pop(threading.get_ident(), None)
            self.hand_over()

        task.thread = threading.Thread(target=run, name=name, daemon=True)
        self.tasks.append(task)
        task.thread.start()
        return task

    def current(self) -> _Task:
        """The task of the calling thread."""
        task = self._by_thread.get(threading.get_ident())
        if task is None:
            raise ConfigError("thread must belong to the LocalWorld; start it with `context.spawn`")
        return task

    def wait(self, what: str, condition: Callable[[], bool], wake_ticks: int | None = None) -> None:
        """Give the baton away until `condition()` holds. Re-raises what stopped the node meanwhile."""
        task = self.current()
        task.state, task.what, task.condition, task.wake_ticks = _State.WAITING, what, condition, wake_ticks
        chosen = self._choose()
        if chosen is not task:
            if chosen is not None:
                chosen.baton.set()
            task.baton.wait()
            task.baton.clear()
        task.state, task.condition, task.wake_ticks = _State.READY, None, None
        error, task.error = task.error, None
        if error is not None:
            raise error

    def hand_over(self) -> None:
        """Pass the baton on from a task that ended."""
        chosen = self._choose()
        if chosen is not None:
            chosen.baton.set()
        else:
            self.all_ended.set()

    def _choose(self) -> _Task | None:
        """The next task to run; drives the node while there is none."""
        while True:
            live = [t for t in self.tasks if t.state is not _State.ENDED]
            if not live:
                return None
            ready = [
                t for t in live if t.state is _State.READY or t.error is not None or (t.condition and t.condition())
            ]
            if ready and (self.node.idle() or self.node.failure or self.random.random() >= _NODE_FIRST):
                return self.random.choice(ready)
            wakes = [t.wake_ticks for t in live if t.wake_ticks is not None]
            if not ready and self.node.idle() and not wakes:
                self._stuck(live)
                continue
            self._step(live, self.node.clock.ticks if ready else min(wakes, default=None))

    def _step(self, live: list[_Task], horizon: int | None) -> None:
        try:
            self.node.step(horizon)
        except Exception as error:  # raised in the ranks that wait, and the baton is not lost with it
            for task in live:
                if task.state is _State.WAITING:
                    task.error = error

    def _stuck(self, live: list[_Task]) -> None:
        waits = "; ".join(f"{t.name} waits for {t.what}" for t in live)
        for task in live:
            task.error = RendezvousError(f"no rank can go on: {waits}")


class RankThread:
    """A further thread of a rank, under the same baton."""

    def __init__(self, scheduler: _Scheduler, task: _Task) -> None:
        self._scheduler, self._task = scheduler, task

    def join(self) -> Any:
        """Wait for the thread and return its result, or raise its error."""
        task = self._task
        self._scheduler.wait(task.name, lambda: task.state is _State.ENDED)
        if task.outcome is not None:
            raise task.outcome
        return task.result


@dataclass(slots=True)
class _Meeting:
    """One exchange in progress."""

    values: dict[int, object] = field(default_factory=dict)
    readers: int = 0


class RankContext:
    """One rank of a `LocalWorld`: what `fn` of `LocalWorld.run` receives, and a group for `create`."""

    def __init__(self, world: LocalWorld, scheduler: _Scheduler, node: Node, rank: int) -> None:
        self._world, self._scheduler = world, scheduler
        self.node, self.rank, self.size = node, rank, world.size
        self.backing = LocalBacking(node.regions)
        self.meetings: dict[tuple[str, int], _Meeting] = {}
        self._counts: dict[str, int] = {}

    def target(self, device: str = "auto") -> EmulatedTarget:
        """A device of this rank."""
        if device not in ("auto", "emulated"):
            raise ConfigError(
                f"device={device!r} must be 'auto' or 'emulated' in a LocalWorld; use torchrun for 'rocm'"
            )
        return EmulatedTarget(self)

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Let other ranks and the node run until `condition()` holds."""
        self._scheduler.wait(what, condition)

    def give_up(self, reason: str) -> None:
        """Nobody has to be told: time is virtual, so that waiting in vain costs nothing."""

    def absent(self) -> dict[int, str]:
        """Nothing is known; a wait in vain ends by its budget."""
        return {}

    def sleep(self, seconds: float) -> None:
        """Be slow: let virtual time pass while others go on."""
        until = self.node.clock.ticks + int(seconds * TICKS_PER_SECOND)
        self._scheduler.wait(f"{seconds} s to pass", lambda: self.node.clock.ticks >= until, until)

    def spawn(self, fn: Callable[[], Any], name: str = "") -> RankThread:
        """Start a further thread of this rank."""
        task = self._scheduler.start(self.rank, name or f"rank {self.rank}, thread {fn.__name__}", fn)
        return RankThread(self._scheduler, task)

    def exchange(self, step: str, value: object) -> list[object]:
        """One value from every rank; raises `RendezvousError` when a rank ended without coming.

        After an error of the wait the exchange counts as not held, so that ranks which go on stay in step.
        """
        count = self._counts[step] = self._counts.get(step, 0) + 1
        meeting = self._world.meeting(step, count)
        meeting.values[self.rank] = value
        if len(meeting.values) == self.size:
            self.node.hosts_met()

        def gone() -> list[int]:
            return self._world.ended(set(range(self.size)) - set(meeting.values))

        try:
            self._scheduler.wait(
                f"all ranks at step {step!r}", lambda: len(meeting.values) == self.size or bool(gone())
            )
        except Exception:
            self._counts[step] -= 1
            del meeting.values[self.rank]
            raise
        if missing := gone():
            raise RendezvousError(f"rank {missing[0]} ended before step {step!r}; rank {self.rank} cannot go on")
        meeting.readers += 1
        values = [meeting.values[r] for r in range(self.size)]
        if meeting.readers == self.size:
            self._world.forget(step, count)
        return values

    def barrier(self) -> None:
        """All ranks have come here."""
        self.exchange("barrier", None)


@dataclass(frozen=True, slots=True)
class RankOutcome:
    """How `fn` ended on one rank."""

    value: Any = None
    error: BaseException | None = None


class LocalWorld:
    """`size` emulated GPUs in this process. `seed` fixes the order in which ranks run.

    `run(fn)` calls `fn(context)` once per rank and returns the results in rank order. Each run has a fresh node, whose
    copy engines behave as `engines` says.
    """

    def __init__(
        self, size: int, seed: int = 0, *, node: Callable[[int], Node] = Node, engines: EngineSettings | None = None
    ) -> None:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigError(f"size={size!r} must be a positive integer; an op supports up to {MAX_WORLD} ranks")
        self.size, self.seed = size, seed
        self._make_node, self._engines = node, engines
        self._scheduler: _Scheduler | None = None
        self._meetings: dict[tuple[str, int], _Meeting] = {}
        self.instructions = 0

    def meeting(self, step: str, count: int) -> _Meeting:
        """The exchange that ranks hold for the `count`-th time under one name."""
        return self._meetings.setdefault((step, count), _Meeting())

    def forget(self, step: str, count: int) -> None:
        """Drop a finished exchange."""
        self._meetings.pop((step, count), None)

    def ended(self, ranks: set[int]) -> list[int]:
        """Which of the ranks have ended."""
        assert self._scheduler is not None
        return [t.rank for t in self._scheduler.tasks[: self.size] if t.rank in ranks and t.state is _State.ENDED]

    def outcomes(self, fn: Callable[[RankContext], Any]) -> list[RankOutcome]:
        """Run `fn` on every rank and report each rank's result or error."""
        if self._scheduler is not None:
            raise ConfigError("run must not be nested inside a run of the same LocalWorld")
        node = self._make_node(self.size)
        node.engines.configure(self._engines or node.engines.settings, self.seed)
        scheduler = self._scheduler = _Scheduler(node, self.seed)
        self._meetings.clear()
        try:
            for rank in range(self.size):
                context = RankContext(self, scheduler, node, rank)
                scheduler.start(rank, f"rank {rank}", partial(fn, context))
            scheduler.hand_over()
            scheduler.all_ended.wait()
            self.instructions += node.instructions
            return [RankOutcome(t.result, t.outcome) for t in scheduler.tasks[: self.size]]
        finally:
            self._scheduler = None
            node.release()

    def run(self, fn: Callable[[RankContext], Any]) -> list[Any]:
        """Run `fn` on every rank; raises the error of the lowest rank that did not merely miss a peer."""
        outcomes = self.outcomes(fn)
        errors = [o.error for o in outcomes if o.error is not None]
        if errors:
            own = [e for e in errors if isinstance(e, CopyEngineTimeout) or not isinstance(e, _PEER_ERRORS)]
            raise (own or errors)[0]
        return [o.value for o in outcomes]
