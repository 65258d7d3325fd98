# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The machine that is checked: this process's GPU, or the stand-in where there is none."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.hwcheck.alterations import Fault
from mori_gemm_ar.hwcheck.settings import Budget, SectionName, Settings
from mori_gemm_ar.hwcheck.standin import StandInNode, StandInRank
from mori_gemm_ar.hwcheck.timer import EventTimer, ModelTimer, Timer
from mori_gemm_ar.model import Case, load
from mori_gemm_ar.model.values import Values
from mori_gemm_ar.runtime import LocalWorld, ProcessWorld, RankContext, Target, World, connect
from mori_gemm_ar.runtime.alone import AloneWorld
from mori_gemm_ar.runtime.select import DeviceKind, choose_device

STAND_IN, GPU, EMULATED = "stand-in", "gpu", "emulated processes"


@dataclass(frozen=True, slots=True)
class Rank:
    """What a section gets: this rank's place, its device, and how much it may do."""

    world: World
    target: Target
    timer: Timer | None  # None: there is no clock that tells anything
    settings: Settings
    budget: Budget
    weak: bool  # whether accesses may take effect late and out of order
    together: bool  # all ranks share this process, so that one of them may work for all

    @property
    def rank(self) -> int:
        """Position among the ranks."""
        return self.world.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.world.size

    @property
    def wait_ticks(self) -> int:
        """Budget of one wait of a kernel, in ticks of its clock."""
        return int(self.settings.effort.wait_s * self.target.ticks_per_second)


Work = Callable[[Rank], Any]


class Hardware(Protocol):
    """Ranks with devices."""

    kind: str
    clock: str
    predicted: bool
    leads: bool  # whether this process writes the report

    def run(self, section: SectionName, work: Work, budget: Budget) -> Any:
        """Run `work` on every rank; what rank 0's gave. Collective where ranks are processes."""


def standin_values(settings: Settings) -> Values:
    """The stand-in's constants: the shipped ones, but for those that are altered."""
    altered = {a.name: a.number for a in settings.alterations if a.fault is Fault.CONSTANT}
    return replace(load().at(Case.EXPECTED), **altered)


class StandIn:
    """All ranks in this process, on emulated GPUs whose times are the model's."""

    kind, clock, predicted, leads = STAND_IN, ModelTimer.label, True, True

    def __init__(self, settings: Settings) -> None:
        self._settings, self._values = settings, standin_values(settings)

    def run(self, section: SectionName, work: Work, budget: Budget) -> Any:
        """A node of its own for each section."""
        settings = self._settings
        node = partial(StandInNode, section=section, alterations=settings.alterations, seed=settings.seed)
        local = LocalWorld(settings.world, seed=settings.seed, node=node)
        return local.run(partial(self._rank, section, work, budget))[0]

    def _rank(self, section: SectionName, work: Work, budget: Budget, context: RankContext) -> Any:
        world = StandInRank(context)
        target = world.target()
        timer = ModelTimer(target, world.notes, world.rank, world.size, self._values, self._settings.seed)
        return work(Rank(world, target, timer, self._settings, budget, section is SectionName.LITMUS, True))


class Processes:
    """One process for each rank: GPUs, or emulated ones, whose memory is then always current."""

    def __init__(self, settings: Settings, world: World) -> None:
        if settings.alterations:
            raise ConfigError("alter must be left out where ranks are processes; it is for the stand-in of one process")
        self._settings, self._world = settings, world
        gpu = choose_device() is DeviceKind.ROCM
        self.kind, self.leads = (GPU if gpu else EMULATED), world.rank == 0
        self.predicted = not gpu
        self.clock = EventTimer.label if gpu else "none"

    def run(self, section: SectionName, work: Work, budget: Budget) -> Any:
        """On this process's rank."""
        target = self._world.target("auto")
        return work(Rank(self._world, target, self._timer(target), self._settings, budget, not self.predicted, False))

    def _timer(self, target: Target) -> Timer | None:
        if self.predicted:
            return None
        import torch

        return EventTimer(target, torch.cuda)


def open_world(ranks: int = 0) -> World | None:
    """The ranks that torchrun started, a process each; else one rank for a GPU of this machine; None for a stand-in.

    ranks: how many were asked for, 0 for any. Raises ConfigError where that is another number. Under torchrun the
    default group is made here and belongs to the process.
    """
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return _torchrun(ranks)
    if choose_device() is DeviceKind.EMULATED:
        return None
    if ranks > 1:
        raise ConfigError(f"world={ranks} must be 1 in one process with a GPU; use torchrun --nproc-per-node={ranks}")
    return AloneWorld()


def _torchrun(ranks: int) -> World:
    import torch
    import torch.distributed as dist

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    group = connect(None)
    if ranks not in (0, group.size):
        raise ConfigError(f"world={ranks} must be {group.size}, as torchrun started; leave it out")
    return group


def close_world(world: World | None) -> None:
    """Leave the default group that `open_world` made."""
    if isinstance(world, ProcessWorld):
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()
