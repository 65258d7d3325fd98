# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""An emulated node: GPUs with in-order streams, one clock, and the watchdog."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from mori_gemm_ar.emulator.allocator import keep_freed_pages
from mori_gemm_ar.emulator.engine_settings import EngineSettings
from mori_gemm_ar.emulator.engines import Engines
from mori_gemm_ar.emulator.memory import FunctionalMemory
from mori_gemm_ar.emulator.observer import Observer
from mori_gemm_ar.emulator.pool import Pool
from mori_gemm_ar.emulator.regions import MemoryRegion, RegionTable
from mori_gemm_ar.emulator.start import StartRegisters
from mori_gemm_ar.emulator.translate import Program, translate
from mori_gemm_ar.errors import DeadlockError, EmulatorError
from mori_gemm_ar.isa import Kernel

TICKS_PER_SECOND = 100_000_000  # s_memrealtime counts at 100 MHz
DEFAULT_RESIDENCY = 32
_ROUND_TICKS = 10
# Past every budget a kernel may be given, so that only unbounded waits reach it.
_PATIENCE_TICKS = 48 * 3600 * TICKS_PER_SECOND


class Clock(Protocol):
    """What `s_memrealtime` reads, and what happens when no wave can progress."""

    @property
    def ticks(self) -> int:
        """Now, in ticks of 10 ns."""

    def advance(self) -> None:
        """A round in which something moved has passed."""

    def idle(self, horizon: int | None) -> int:
        """A round in which nothing moved has passed; returns the ticks that were let pass, up to `horizon`."""


class VirtualClock:
    """Time that moves a little with every round and jumps, ever further, while nobody can progress."""

    def __init__(self) -> None:
        self.ticks = 1_000_000
        self._idle_rounds = 0

    def advance(self) -> None:
        """Move by one round."""
        self._idle_rounds = 0
        self.ticks += _ROUND_TICKS

    def idle(self, horizon: int | None) -> int:
        """Jump, so that budgets run out at no cost."""
        self._idle_rounds += 1
        jump = _ROUND_TICKS << min(self._idle_rounds, 40)
        if horizon is not None:
            jump = max(0, min(jump, horizon - self.ticks))
        self.ticks += jump
        return jump


@dataclass(slots=True)
class KernelLaunch:
    """A kernel with grid, block and argument bytes, to run in order on one stream of one GPU."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: bytes
    name: str
    done: Callable[[], None] | None = None


@dataclass(slots=True)
class Dispatch:
    """A launch that is running."""

    launch: KernelLaunch
    gpu: int
    program: Program
    stream: _Stream
    memory: np.ndarray
    region: MemoryRegion
    start: StartRegisters
    started: int = 0
    finished: int = 0
    begun: int = 0

    @property
    def total(self) -> int:
        """Number of workgroups."""
        x, y, z = self.launch.grid
        return x * y * z

    def workgroup(self, number: int) -> tuple[int, int, int]:
        """Coordinates of a workgroup, x fastest."""
        x, y, _ = self.launch.grid
        return number % x, number // x % y, number // (x * y)

    def workgroup_done(self) -> None:
        """Count a finished workgroup."""
        self.finished += 1

    def initialise(self, pool: Pool, waves: slice, workgroup: tuple[int, int, int]) -> None:
        """Set the registers that a workgroup starts with."""
        self.start.set(pool, waves, workgroup)


@dataclass(slots=True)
class _Stream:
    queue: deque[KernelLaunch] = field(default_factory=deque)
    running: Dispatch | None = None


class Node:
    """`gpus` emulated GPUs that share one address space.

    residency: workgroups of one kernel that a GPU holds at a time. window: waves that one NumPy operation covers.
    clock: virtual unless given. races: a `RaceDetector`, to have every access checked. A GPU is any number that
    `submit` names. engines: how its copy engines behave. Not thread-safe: one caller drives it.
    """

    def __init__(
        self,
        gpus: int,
        *,
        residency: int = DEFAULT_RESIDENCY,
        window: int = 128,
        memory: FunctionalMemory | None = None,
        clock: Clock | None = None,
        races: Observer | None = None,
        engines: EngineSettings | None = None,
    ) -> None:
        keep_freed_pages()
        self.gpus, self.residency, self.window = gpus, residency, window
        self.regions = memory.regions if memory else RegionTable()
        self.memory = memory or FunctionalMemory(self.regions)
        self.clock = clock or VirtualClock()
        self.races = races or Observer()
        self.failure: Exception | None = None
        self.watchers: list[Callable[[], None]] = []
        self._streams: dict[tuple[int, int], _Stream] = {}
        self._pools: dict[tuple[str, int, int], Pool] = {}
        self._dispatches: dict[int, list[Dispatch]] = {}
        self._idle_ticks = 0
        self.races.attach(self)
        self.engines = Engines(self, engines or EngineSettings())

    # ---- work ------------------------------------------------------------------------------------------------
    def submit(self, gpu: int, launch: KernelLaunch, stream: int = 0) -> None:
        """Queue a launch behind what the stream already holds."""
        idle = self.idle(gpu)
        self.memory.submitted(gpu, idle)
        self.races.submitted(gpu, launch, idle)
        self._streams.setdefault((gpu, stream), _Stream()).queue.append(launch)

    def idle(self, gpu: int | None = None, stream: int | None = None) -> bool:
        """Whether the given streams have nothing queued or running. Engines may go on after the kernels."""
        return all(
            not s.queue and s.running is None
            for (g, n), s in self._streams.items()
            if (gpu is None or g == gpu) and (stream is None or n == stream)
        )

    def free_stream(self, gpu: int) -> int:
        """The lowest stream of a GPU with nothing queued or running."""
        return next(n for n in itertools.count() if self.idle(gpu, n))

    def translate(self, kernel: Kernel) -> Program:
        """A kernel as this node runs it."""
        return translate(kernel, self.memory.weak or self.races.waits)

    def hosts_met(self) -> None:
        """Host threads of all GPUs know that work has ended which any of them has waited for."""
        self.races.hosts_met()

    @property
    def instructions(self) -> int:
        """Wave-instructions executed so far."""
        return sum(pool.instructions for pool in self._pools.values())

    def step(self, horizon: int | None = None) -> None:
        """Run one round. When nothing moved, let time pass, at most to `horizon` (in ticks).

        Raises `DeadlockError` when no wave has moved for longer than any budget, or the first fault of a kernel;
        after any error the node refuses to run.
        """
        if self.failure is not None:
            raise EmulatorError(f"the emulated node stopped earlier: {self.failure}")
        try:
            self._step(horizon)
        except Exception as error:
            self.failure = error
            raise

    def _step(self, horizon: int | None) -> None:
        moved = self._start()
        with np.errstate(all="ignore"):
            for pool in self._pools.values():
                moved |= self._place(pool)
                if pool.busy:
                    moved |= pool.run_round()
        for watch in list(self.watchers):
            watch()
        moved |= self._complete()
        moved |= self.engines.step()
        if moved or self.memory.idle_round() or self.engines.step(last_moment=True):
            self._idle_ticks = 0
            self.clock.advance()
        else:
            self._wait(horizon)

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Step until `until()` holds, or until every stream is drained."""
        finished = until or self.idle
        while not finished():
            self.step()
        if until is None:
            self.hosts_met()

    def release(self) -> None:
        """Forget all kernels: the node and its pools refer to each other, and the pools are large."""
        self.races.release()
        self._pools.clear()
        self._dispatches.clear()
        self._streams.clear()
        self.engines.release()

    # ---- parts of a step -------------------------------------------------------------------------------------
    def _start(self) -> bool:
        started = False
        for (gpu, _), stream in self._streams.items():
            if stream.running is None and stream.queue:
                self._dispatch(gpu, stream, stream.queue.popleft())
                started = True
        return started

    def _dispatch(self, gpu: int, stream: _Stream, launch: KernelLaunch) -> None:
        program = self.translate(launch.kernel)
        arguments = np.zeros(-(-max(len(launch.arguments), 64) // 64) * 64 + 64, np.uint8)
        arguments[: len(launch.arguments)] = np.frombuffer(launch.arguments, np.uint8)
        region = MemoryRegion(
            f"arguments of {launch.name}", arguments.ctypes.data, arguments.nbytes, gpu, constant=True
        )
        self.regions.add(region)
        start = StartRegisters.of(launch, region.address)
        dispatch = Dispatch(launch, gpu, program, stream, arguments, region, start)
        stream.running = dispatch
        self.memory.begin_dispatch(dispatch)
        self.races.begin_dispatch(dispatch)
        x, y, z = launch.block
        waves = -(-(x * y * z) // 64)
        pool = self._pool(gpu, program, waves)
        self._dispatches.setdefault(id(pool), []).append(dispatch)

    def _pool(self, gpu: int, program: Program, waves: int) -> Pool:
        """A pool that no other stream of this GPU is using: kernels that wait for peers must not evict each other."""
        number = 0
        while True:
            key = (program.kernel.sha, waves, number)
            if key not in self._pools:
                self._pools[key] = Pool(self, program, waves, self.residency * self.gpus)
            pool = self._pools[key]
            if all(d.gpu != gpu for d in self._dispatches.get(id(pool), [])):
                return pool
            number += 1

    def _place(self, pool: Pool) -> bool:
        """Fill free slots, one workgroup per dispatch in turn, within the residency of each GPU."""
        dispatches = self._dispatches.get(id(pool), [])
        placed = False
        pending = [d for d in dispatches if d.started < d.total]
        while pending:
            for dispatch in list(pending):
                resident = sum(d.started - d.finished for d in dispatches if d.gpu == dispatch.gpu)
                if dispatch.started >= dispatch.total or resident >= self.residency or not pool.free_slots:
                    pending.remove(dispatch)
                    continue
                pool.place(dispatch, dispatch.started)
                dispatch.started += 1
                placed = True
        return placed

    def _complete(self) -> bool:
        completed = False
        for dispatches in self._dispatches.values():
            for dispatch in [d for d in dispatches if d.finished == d.total and self.memory.completes()]:
                dispatches.remove(dispatch)
                self.memory.end_dispatch(dispatch)
                self.races.end_dispatch(dispatch)
                dispatch.stream.running = None
                self.regions.remove(dispatch.region)
                completed = True
                if self.idle(dispatch.gpu):
                    self.memory.gpu_idle(dispatch.gpu)
                    self.races.gpu_idle(dispatch.gpu)
                if dispatch.launch.done is not None:
                    dispatch.launch.done()
        return completed

    def _wait(self, horizon: int | None) -> None:
        """Nobody moved: let time pass, so that budgets run out."""
        self._idle_ticks += self.clock.idle(horizon)
        if not self.idle() and (self._idle_ticks > _PATIENCE_TICKS or not self._waiting()):
            raise DeadlockError("no wave can progress:\n" + self.report())

    def _waiting(self) -> bool:
        return any(pool.busy for pool in self._pools.values())

    def report(self) -> str:
        """Where every live wave stands, and for what it waits."""
        lines = []
        for pool in self._pools.values():
            if pool.busy:
                lines.append(f"kernel {pool.program.kernel.name}:")
                waiting = pool.waiting_report()
                lines += [f"  {line}" for line in waiting[:64]]
                if len(waiting) > 64:
                    lines.append(f"  and {len(waiting) - 64} more waves")
        lines += self.engines.report()
        return "\n".join(lines)
