# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""How much is asked of a machine, and how long that may take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.hwcheck.alterations import Alteration
from mori_gemm_ar.layout.rules import reason_not_int, require
from mori_gemm_ar.layout.terms import MAX_WORLD

MOST_MINUTES = 24 * 60.0


class SectionName(Enum):
    """The parts of a run, in order. `share` of the time is the most that one may take."""

    SEMANTICS = "semantics"
    LITMUS = "litmus"
    MICROBENCHMARKS = "microbenchmarks"
    PRODUCT = "product"

    @property
    def share(self) -> float:
        return {"semantics": 0.4, "litmus": 0.2, "microbenchmarks": 0.25, "product": 0.15}[self.value]


@dataclass(frozen=True, slots=True)
class Effort:
    """Sizes. The time of the section cuts what does not fit."""

    rounds: int  # of each group of instructions, with new inputs
    waves: int  # of each, and round
    families: int  # calls of each family of kernels
    iterations: int  # of a litmus test, in one launch
    launches: int  # of a litmus test, at most
    samples: int  # of each time
    put_bytes: tuple[int, ...]
    sum_bytes: tuple[int, ...]  # of one slice
    releases: tuple[tuple[int, int], ...]  # workgroups, and waves of each
    all_reduce_rows: tuple[int, ...]
    gemms: tuple[tuple[int, int], ...]  # tiles and K with block scale, which tell whole waves from partial ones
    few_gemms: tuple[tuple[int, int], ...]  # of the other recipes
    wait_s: float  # budget of one wait of a kernel


GPU = Effort(
    rounds=64, waves=32, families=8, iterations=20000, launches=20, samples=30,
    put_bytes=tuple(1 << n for n in range(12, 28)), sum_bytes=tuple(1 << n for n in range(18, 26)),
    releases=tuple((blocks, waves) for blocks in (1, 16, 256, 896, 1792, 3584) for waves in (1, 2, 4, 8)),
    all_reduce_rows=(8, 16, 32, 64, 128, 256, 512, 1024, 4096),
    gemms=tuple((tiles, k) for tiles in (1, 32, 128, 256, 512, 1792) for k in (1024, 2048, 4096)),
    few_gemms=tuple((tiles, k) for tiles in (1, 256, 1792) for k in (1024, 4096)), wait_s=2.0,
)  # fmt: skip
STAND_IN = Effort(
    rounds=1, waves=6, families=1, iterations=12, launches=5, samples=2,
    put_bytes=(1 << 12, 1 << 16, 1 << 20, 1 << 22), sum_bytes=(1 << 14, 1 << 18, 1 << 20),
    releases=((1, 1), (64, 8), (3584, 1), (1024, 8)), all_reduce_rows=(8, 64, 256, 512),
    gemms=((1, 256), (1, 2048), (128, 512), (256, 256)), few_gemms=((1, 256), (1, 2048)), wait_s=60.0,
)  # fmt: skip
# For tests of hwcheck itself: every path, hardly any data.
TINY = Effort(
    rounds=1, waves=3, families=1, iterations=6, launches=4, samples=2, put_bytes=(1 << 12, 1 << 20),
    sum_bytes=(1 << 14, 1 << 18), releases=((1, 1), (64, 8)), all_reduce_rows=(8, 256),
    gemms=((1, 256), (1, 1024)), few_gemms=(), wait_s=60.0,
)  # fmt: skip
EFFORTS = {"gpu": GPU, "stand-in": STAND_IN, "tiny": TINY}


@dataclass(frozen=True, slots=True)
class Settings:
    """One run. `minutes` bounds it; `alterations` are deliberate faults of the stand-in."""

    world: int
    minutes: float
    effort: Effort
    seed: int = 0
    alterations: tuple[Alteration, ...] = ()
    sections: tuple[SectionName, ...] = tuple(SectionName)

    def __post_init__(self) -> None:
        require(reason_not_int("world", self.world, 1, MAX_WORLD, "hwcheck runs on one GPU for each rank"))
        if not 0 < self.minutes <= MOST_MINUTES:
            raise ConfigError(f"minutes={self.minutes} must be above 0 and at most {MOST_MINUTES:g}; a run takes a few")


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds that a section may take, from when it was made."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    started: float = field(default=-1.0)

    @classmethod
    def start(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> Budget:
        """A budget that runs from now on."""
        return cls(seconds, clock, clock())

    @property
    def left(self) -> float:
        """Seconds that remain; below 0 when it is spent."""
        return self.seconds - (self.clock() - self.started)
