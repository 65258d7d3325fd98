# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Every family of shipped kernels on shared random inputs: the hardware's bits against the emulator's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.errors import CompileError, ConfigError, MissingDependencyError, MoriGemmArError
from mori_gemm_ar.gemm import GemmOp, preshuffle_b
from mori_gemm_ar.hwcheck.hardware import Rank
from mori_gemm_ar.hwcheck.report import Verdict
from mori_gemm_ar.hwcheck.section import Log, first_of
from mori_gemm_ar.layout.gemm import a_scale_shape, b_scale_shape
from mori_gemm_ar.layout.gemm_terms import SMALL_RECIPES, BLayout, Recipe
from mori_gemm_ar.layout.sdma import Transport
from mori_gemm_ar.layout.terms import Stage
from mori_gemm_ar.layout.wire_terms import Wire
from mori_gemm_ar.runtime import LocalWorld, World
from mori_gemm_ar.runtime.alone import AloneWorld

_FP8 = torch.float8_e4m3fn
_N, _K = 256, 256  # of the GEMMs; K has a step before the loop, none inside, and the last pair
_ROWS = (5, 300)  # few rows, for the kernels of their own; and more than one tile


def families(rank: Rank, log: Log) -> None:
    """GEMMs and quantisers on each GPU, all-reduces on all of them together. Collective."""
    for name, test in (*_gemms(), *_all_reduces(rank)):
        spent = rank.world.exchange("time", rank.budget.left < 0)
        if any(spent):
            log.out_of_time(f"kernel {name}")
            return
        wrong: str | None = None
        unanswered: str | None = None
        for turn in range(rank.settings.effort.families):
            try:
                wrong = wrong or test(rank, rank.settings.seed * 1000 + turn)
            except (ConfigError, MissingDependencyError, CompileError) as error:
                unanswered = f"{type(error).__name__}: {error}"
            except MoriGemmArError as error:
                wrong = wrong or f"{type(error).__name__}: {error}"
        wrong = first_of(rank, f"kernel {name}", wrong)
        unanswered = first_of(rank, f"kernel {name}, no answer", unanswered)
        if wrong is None and unanswered is not None:
            log.add(f"kernel {name}", Verdict.FAILED, unanswered)
        else:
            log.judge(f"kernel {name}", wrong, "bit for bit")


Test = Callable[[Rank, int], str | None]


# --- one GPU ---


def _gemms() -> Iterator[tuple[str, Test]]:
    for recipe in Recipe:
        for order in BLayout:
            for rows in _ROWS:
                yield f"gemm {recipe.value} {order.value} m={rows}", _GemmTest(recipe, order, rows)
        if recipe in SMALL_RECIPES:
            yield f"quantize {recipe.value}", _QuantizeTest(recipe)


@dataclass(frozen=True, slots=True)
class _GemmTest:
    """Small integers and scales of powers of two: the sum is exact in every order."""

    recipe: Recipe
    order: BLayout
    rows: int

    def __call__(self, rank: Rank, seed: int) -> str | None:
        """What differs, or None."""
        if rank.together and rank.rank:
            return None
        operands = self._operands(torch.Generator().manual_seed(seed))
        return _first_difference(*(self._product(world, operands) for world in (rank.world, AloneWorld())))

    def _operands(self, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        def integers(rows: int) -> torch.Tensor:
            return torch.randint(-4, 5, (rows, _K), generator=generator).float().to(_FP8)

        def scales(shape: tuple[int, ...]) -> torch.Tensor:
            exponents = torch.randint(-2, 3, shape, generator=generator)
            if self.recipe is Recipe.MXFP8:
                return (exponents + 127).to(torch.uint8)
            return torch.exp2(exponents.float())

        b = integers(_N)
        b = preshuffle_b(b) if self.order is BLayout.PRESHUFFLED else b
        shapes = a_scale_shape(self.recipe, self.rows, _K), b_scale_shape(self.recipe, _N, _K)
        return integers(self.rows), b, *(scales(shape) for shape in shapes)

    def _product(self, world: World, operands: tuple[torch.Tensor, ...]) -> torch.Tensor:
        device = "emulated" if isinstance(world, AloneWorld) else "auto"
        op = GemmOp.create(world, n=_N, k=_K, quant=self.recipe, b_layout=self.order, device=device)
        product = op(*(one.to(op.target.torch_device) for one in operands))
        op.target.synchronize()
        return product.cpu()


@dataclass(frozen=True, slots=True)
class _QuantizeTest:
    """bf16 rows of any magnitude, a NaN among them."""

    recipe: Recipe

    def __call__(self, rank: Rank, seed: int) -> str | None:
        """What differs, or None."""
        if rank.together and rank.rank:
            return None
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(37, _K, generator=generator) * torch.exp2(torch.randint(-20, 21, (37, 1), generator=generator))
        x[3, 5] = float("nan")
        pairs = []
        for world, device in ((rank.world, "auto"), (AloneWorld(), "emulated")):
            op = GemmOp.create(world, n=_N, k=_K, quant=self.recipe, b_layout=BLayout.ROW, device=device)
            data, scale = op.quantize(x.bfloat16().to(op.target.torch_device))
            op.target.synchronize()
            pairs.append((data.cpu(), scale.cpu()))
        (data, scale), (right_data, right_scale) = pairs
        return _first_difference(data, right_data) or _first_difference(scale, right_scale)


def _first_difference(have: torch.Tensor, want: torch.Tensor) -> str | None:
    """The first element whose bytes differ."""
    width = have.element_size()
    a, b = (one.contiguous().view(torch.uint8).reshape(-1, width) for one in (have, want))
    wrong = (a != b).any(dim=1)
    if not bool(wrong.any()):
        return None
    at = int(wrong.nonzero()[0])
    place = [int(n) for n in torch.unravel_index(torch.tensor(at), have.shape)] if have.ndim else []
    values = [one.reshape(-1)[at].float().item() for one in (have, want)]
    return (
        f"element {place} is {values[0]:g} on the hardware and {values[1]:g} in the emulator, {int(wrong.sum())} differ"
    )


# --- all GPUs ---


def _all_reduces(rank: Rank) -> Iterator[tuple[str, Test]]:
    if rank.size < 2:
        return
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for stage in Stage:
            label = f"all-reduce lsa {stage.name.lower()} {str(dtype).removeprefix('torch.')}"
            yield label, _AllReduceTest(Transport.LSA, dtype, stage, Wire.EXACT)
    yield "all-reduce sdma bfloat16", _AllReduceTest(Transport.SDMA, torch.bfloat16, None, Wire.EXACT)
    for wire in Wire:
        if wire.lossy:
            for transport in Transport:
                label = f"all-reduce {transport.value} {wire.value}"
                yield label, _AllReduceTest(transport, torch.bfloat16, None, wire)


@dataclass(frozen=True, slots=True)
class _AllReduceTest:
    """Every rank's sum against that of as many emulated GPUs, which get the same inputs."""

    transport: Transport
    dtype: torch.dtype
    stage: Stage | None
    wire: Wire

    def __call__(self, rank: Rank, seed: int) -> str | None:
        """Collective: what differs, or None."""
        shape = (37, 272)
        inputs = [
            torch.randn(shape, generator=torch.Generator().manual_seed(seed * 8 + n)).to(self.dtype)
            for n in range(rank.size)
        ]
        own = self._sum(rank.world, "auto", inputs[rank.rank])
        digests = rank.world.exchange("sums", _digest(own))
        if rank.rank:
            return None
        right = LocalWorld(rank.size, seed=seed).run(lambda c: self._sum(c, "emulated", inputs[c.rank]))
        for number, digest in enumerate(digests):
            if digest != _digest(right[number]) and number:
                return f"rank {number}'s sum differs from the emulator's"
        return _first_difference(own, right[0])

    def _sum(self, world: World, device: str, x: torch.Tensor) -> torch.Tensor:
        with AllReduceOp.create(
            world, max_bytes=1 << 16, device=device, stage=self.stage, dtypes=(self.dtype,), transport=self.transport,
            wire=self.wire,
        ) as op:  # fmt: skip
            total = op(x.to(op.target.torch_device))
            op.check()
            return total.cpu()


def _digest(x: torch.Tensor) -> str:
    return hashlib.sha256(x.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
