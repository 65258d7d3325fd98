# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What the tests of several ranks share: data, the same-order reference, guarded memory, delays, and comparisons."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from mori_gemm_ar.emulator import TICKS_PER_SECOND, Node, RegionTable
from mori_gemm_ar.emulator.memory import FunctionalMemory
from mori_gemm_ar.emulator.pool import Pool
from mori_gemm_ar.layout import Stage
from mori_gemm_ar.runtime import LocalWorld, RankContext

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
DTYPES = (BF16, FP16, FP32)
MAX_BYTES = 40_012  # ragged: 2500 packs and three fp32 or six 16-bit elements
both_stages = pytest.mark.parametrize("stage", [Stage.ONE, Stage.TWO], ids=lambda stage: stage.name)
_INTEGERS = {2: torch.int16, 4: torch.int32}
_GUARD_BYTES = 64
_GUARD = 0x5A


def fresh(shape: Sequence[int] | int, dtype: torch.dtype, *seed: int) -> torch.Tensor:
    """Random data, other data for another seed. Large values that cancel make the order of the sum show in its bits."""
    generator = torch.Generator().manual_seed(hash(seed) % 2**31)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    small = torch.ldexp(torch.randn(shape, generator=generator), torch.randint(-9, 4, shape, generator=generator))
    large = 4096.0 * (2 * torch.randint(0, 2, shape, generator=generator) - 1)
    return torch.where(torch.rand(shape, generator=generator) < 0.3, large, small).to(dtype)


def reference(inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """The specified result: fp32 sum in rank order, rounded once to the dtype of the inputs."""
    total = inputs[0].float().clone()
    for x in inputs[1:]:
        total += x.float()
    return total.to(inputs[0].dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bit patterns: unlike values, these tell -0 from 0 and one NaN from another."""
    return tensor.contiguous().view(_INTEGERS[tensor.element_size()])


def require_bits(actual: torch.Tensor, expected: torch.Tensor, **parameters: object) -> None:
    """Fail with every parameter and the first wrong coordinate unless all bits are equal."""
    where = ", ".join(f"{name}={value}" for name, value in parameters.items())
    assert actual.shape == expected.shape and actual.dtype == expected.dtype, (
        f"{where}: got {tuple(actual.shape)} {actual.dtype}, expected {tuple(expected.shape)} {expected.dtype}"
    )
    wrong = bits(actual) != bits(expected)
    if bool(wrong.any()):
        at = tuple(wrong.nonzero()[0].tolist())
        raise AssertionError(
            f"{where}: {int(wrong.sum())} of {wrong.numel()} elements differ, first at {at}: "
            f"got {actual[at].item()}, expected {expected[at].item()}"
        )


def require_all(actual: torch.Tensor, value: float, **parameters: object) -> None:
    """Fail unless every element is exactly `value`."""
    require_bits(actual, torch.full_like(actual, value), **parameters)


class Guarded:
    """A tensor with filled memory on both sides, `shift` elements after a 64-byte boundary."""

    def __init__(self, shape: Sequence[int] | int, dtype: torch.dtype, shift: int = 0) -> None:
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        size = dtype.itemsize
        self.start = _GUARD_BYTES + shift * size
        self.nbytes = torch.Size(shape).numel() * size
        raw = torch.full((self.start + self.nbytes + 2 * _GUARD_BYTES,), _GUARD, dtype=torch.uint8)
        skip = -raw.data_ptr() % _GUARD_BYTES
        self.memory = raw[skip : skip + self.start + self.nbytes + _GUARD_BYTES]
        self.tensor = self.memory[self.start : self.start + self.nbytes].view(dtype).view(shape)

    def require_intact(self, **parameters: object) -> None:
        """Fail when a byte outside the tensor has changed."""
        before, after = self.memory[: self.start], self.memory[self.start + self.nbytes :]
        for name, side in (("before", before), ("after", after)):
            changed = (side != _GUARD).nonzero()
            assert not len(changed), f"{parameters}: byte {int(changed[0])} {name} the tensor was overwritten"


class Delays:
    """Seeded virtual delays of 0 to 20 ms, alike in every run; each rank has its own."""

    def __init__(self, context: RankContext, seed: int = 0) -> None:
        self._context, self._random = context, random.Random(1000 * seed + context.rank)

    def maybe(self) -> None:
        """Be late, perhaps."""
        self._context.sleep(self._random.uniform(0, 0.02))

    def only(self, rank: int) -> None:
        """Let one rank be late, the others not."""
        if self._context.rank == rank % self._context.size:
            self.maybe()


def now(context: RankContext) -> float:
    """Virtual seconds."""
    return context.node.clock.ticks / TICKS_PER_SECOND


class _Drifting(FunctionalMemory):
    """Lets a GPU sleep while others run ahead: in lockstep a missing barrier would not show."""

    def __init__(self, gpus: int, seed: int) -> None:
        super().__init__(RegionTable())
        self._random, self._asleep = np.random.default_rng(seed), np.zeros(gpus, np.int64)

    def choose(self, pool: Pool, order: np.ndarray) -> None:
        """Hide the waves of sleeping GPUs for some scheduling points, unless there are no others."""
        if self._random.random() < 0.1:
            self._asleep[self._random.integers(len(self._asleep))] = self._random.integers(3, 30)
        hidden = (self._asleep > 0)[pool.wave_gpu]
        self._asleep = np.maximum(self._asleep - 1, 0)
        ready = order != np.iinfo(np.int32).max
        if (ready & ~hidden).any():
            order[hidden] = np.iinfo(np.int32).max


def unfair(seed: int) -> Callable[[int], Node]:
    """Nodes whose GPUs and blocks drift far apart."""
    return lambda gpus: Node(gpus, residency=3, window=32, memory=_Drifting(gpus, seed))


def run(size: int, fn: Callable[[RankContext], Any], seed: int = 0, node: Callable[[int], Node] = Node) -> list[Any]:
    """Results of `fn` in rank order."""
    return LocalWorld(size, seed, node=node).run(fn)


def errors(size: int, fn: Callable[[RankContext], Any], seed: int = 0) -> list[BaseException | None]:
    """How `fn` failed on each rank."""
    return [outcome.error for outcome in LocalWorld(size, seed).outcomes(fn)]
