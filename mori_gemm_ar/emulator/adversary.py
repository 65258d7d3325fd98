# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""How hard weak mode tries, and in which order it lets waves run."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mori_gemm_ar.emulator.pool import Pool

_FAR = np.iinfo(np.int32).max


class CacheDomain(enum.Enum):
    """Who shares a write-back cache."""

    WORKGROUP = "workgroup"  # weakest: no workgroup profits from another's release or acquire
    XCD = "xcd"  # as built: the workgroups of one die share it


@dataclass(frozen=True, slots=True)
class Adversary:
    """Probabilities. Every choice is legal, so a right program passes with any of them."""

    stale: float = 0.9  # a load is served old content where that is allowed
    early: float = 0.35  # a store or writeback takes effect at issue instead of at its wait
    split: float = 0.2  # waves that could run together are parted
    delay: float = 0.06  # at a scheduling point, some waves fall asleep for a while
    preempt: float = 0.3  # waves pause right after a publication
    late: float = 0.5  # per round, the end of a kernel goes unnoticed
    engine: float = 0.3  # a copy engine's packet waits until nothing else can move
    domain: CacheDomain = CacheDomain.WORKGROUP


DEFAULT_ADVERSARY = Adversary()


class Scheduling:
    """Seeded, unfair choice of the waves that run next."""

    def __init__(self, random: np.random.Generator, adversary: Adversary) -> None:
        self.random, self.adversary = random, adversary
        self._asleep: dict[int, np.ndarray] = {}

    def choose(self, pool: Pool, order: np.ndarray) -> np.ndarray | None:
        """Let some waves sleep while others run ahead; now and then run any segment, and only some of its waves."""
        asleep = self._asleep.setdefault(id(pool), np.zeros(len(order), np.int64))
        ready = order != _FAR
        if self.random.random() < self.adversary.delay:
            sleepers = ready & (self.random.random(len(order)) < self.random.choice((0.1, 0.5, 0.9)))
            asleep[sleepers] = self.random.integers(2, 60)
        asleep[asleep > 0] -= 1
        awake = ready & (asleep == 0)
        if awake.any():
            order[~awake] = _FAR
        else:
            asleep[:] = 0
        if self.random.random() >= self.adversary.split:
            return None
        segment = self.random.choice(np.unique(order[order != _FAR]))
        waves = np.nonzero(order == segment)[0]
        cut = int(self.random.integers(1, len(waves) + 1))
        return waves[:cut] if self.random.random() < 0.5 else waves[len(waves) - cut :]

    def preempts(self) -> bool:
        """Whether the running waves pause after a segment that published or waited."""
        return bool(self.random.random() < self.adversary.preempt)
