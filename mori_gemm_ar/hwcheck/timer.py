# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Who tells how long something took: HIP events on a GPU, the model's clock on the stand-in."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any, Protocol

import numpy as np

from mori_gemm_ar.hwcheck.clock import price
from mori_gemm_ar.hwcheck.standin import Notes
from mori_gemm_ar.model.values import Values
from mori_gemm_ar.runtime import Target

_EMPTY_INTERVALS = 20
_JITTER = 1e-4  # relative spread of the stand-in's times, so that a fit has something to average


class Timer(Protocol):
    """Times work of one rank's device. Not collective: who times several ranks lets them meet before."""

    label: str
    predicted: bool

    def time_us(self, action: Callable[[], object], graph: bool = False) -> float:
        """Microseconds that the device takes for what `action` queues; `graph`: it replays a recorded graph."""


class EventTimer:
    """Pairs of HIP events, less what an empty pair shows. `cuda` is torch.cuda, which ROCm builds keep the name of."""

    label, predicted = "HIP events", False

    def __init__(self, target: Target, cuda: Any) -> None:
        self._target, self._cuda = target, cuda
        self._empty = 0.0
        self._empty = median(self._interval(lambda: None) for _ in range(_EMPTY_INTERVALS))

    def _interval(self, action: Callable[[], object]) -> float:
        start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        self._target.synchronize()
        start.record()
        action()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1000.0

    def time_us(self, action: Callable[[], object], graph: bool = False) -> float:
        """Time between two events around the action."""
        return max(self._interval(action) - self._empty, 0.0)


class ModelTimer:
    """Prices what a rank of the stand-in was seen doing, with a little jitter."""

    label, predicted = "time model: predicted, not measured", True

    def __init__(self, target: Target, notes: Notes, rank: int, world: int, values: Values, seed: int) -> None:
        self._target, self._notes, self._rank, self._world = target, notes, rank, world
        self._values = values
        self._random = np.random.default_rng([seed, rank])

    def time_us(self, action: Callable[[], object], graph: bool = False) -> float:
        """The model's time of the launches that the action made."""
        self._target.synchronize()
        self._notes.begin(self._rank)
        action()
        self._target.synchronize()
        us = price(self._values, self._notes.of(self._rank), graph, self._world)
        return us * (1.0 + _JITTER * float(self._random.standard_normal()))
