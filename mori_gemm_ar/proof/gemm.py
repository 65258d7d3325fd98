# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Pipelines of the fp8 GEMM: every kernel that `select_gemm` may return, and the activation quantisers.

A scenario is three back-to-back calls with new data and another M, one of them over nine workgroups; operands are
overwritten as soon as a call returns. The data are small integers and powers of two, so that each product is exact and
a result has one right bit pattern, whatever the order of its sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mori_gemm_ar.compile.store import CodeObject
from mori_gemm_ar.emulator.adversary import Adversary
from mori_gemm_ar.gemm import GemmOp, pack_a_exponents, preshuffle_b, quantize_1x128, quantize_mxfp8
from mori_gemm_ar.gemm.arguments import FP8
from mori_gemm_ar.layout.gemm import AnyGemmConfig, GemmConfig, QuantizeConfig, SmallGemmConfig, gemm_candidates
from mori_gemm_ar.layout.gemm_terms import MX_BLOCK, N_UNIT, SCALE_BLOCK, SMALL_RECIPES, BLayout, Recipe, Tile
from mori_gemm_ar.proof.pipelines import Codes, ProvedKernel, WrongResult, watched_node
from mori_gemm_ar.runtime.alone import AloneWorld

GEMM, QUANTIZE = "gemm", "quantize"
APART = Adversary(split=0.8, delay=0.4)  # within a workgroup, where the default parts workgroups
# Seven steps: one before the loop, two rounds of a pair, and the last pair.
TILE_K = 896
SMALL_K = 1280  # ten steps: two of the eight waves have a second one
QUANTIZE_K = 256
_LARGEST = 15  # all integers up to 16 are e4m3


class _OneKernel(GemmOp):
    """An op that takes one kernel for every M, so that a wide tile is run without the grid that it is made for."""

    config: AnyGemmConfig

    def plan(self, m: int) -> AnyGemmConfig:
        return self.config


def _op(
    config: AnyGemmConfig | QuantizeConfig, code: CodeObject, seed: int, adversary: Adversary | None, *, races: bool
) -> _OneKernel:
    target = AloneWorld(watched_node(1, seed, adversary, races=races)).target("emulated")
    n, layout = (N_UNIT, BLayout.ROW) if isinstance(config, QuantizeConfig) else (config.n, config.b_layout)
    op = _OneKernel(target, config.recipe, n, config.k, layout)
    op._codes[config] = code
    if not isinstance(config, QuantizeConfig):
        op.config = config
    return op


def require_bits(where: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    """Raise `WrongResult` unless all bits are right."""
    if got.shape != expected.shape:
        raise WrongResult(f"{where}: shape {tuple(got.shape)} must be {tuple(expected.shape)}")
    wrong = torch.nonzero(got.flatten().view(torch.uint8) != expected.flatten().view(torch.uint8)).flatten()
    if len(wrong):
        raise WrongResult(f"{where}: {len(wrong)} bytes differ, the first is {int(wrong[0])}")


@dataclass(frozen=True, slots=True)
class Operands:
    """One call's operands as integers and exponents; `product` is exact."""

    a: torch.Tensor
    b: torch.Tensor
    a_power: torch.Tensor  # of two, [M, blocks of K]
    b_power: torch.Tensor

    @classmethod
    def random(cls, config: AnyGemmConfig, m: int, seed: int, call: int) -> Operands:
        generator = torch.Generator().manual_seed(seed * 1009 + call)
        blocks = 1 if config.recipe is Recipe.PTPC else config.k // _block(config.recipe)
        columns = config.n if config.recipe is Recipe.PTPC else -(-config.n // _block(config.recipe))

        def integers(rows: int) -> torch.Tensor:
            return torch.randint(-_LARGEST, _LARGEST + 1, (rows, config.k), generator=generator).float()

        def powers(rows: int) -> torch.Tensor:
            return torch.randint(-1, 2, (rows, blocks), generator=generator)

        return cls(integers(m), integers(config.n), powers(m), powers(columns))

    def product(self, recipe: Recipe) -> torch.Tensor:
        """Below 2^24 units, hence exact in fp32; rounded once."""
        n, width = len(self.b), self.a.shape[1] // self.a_power.shape[1]
        b_power = self.b_power if recipe is Recipe.PTPC else self.b_power.repeat_interleave(width, 0)[:n]
        a, b = (
            x * torch.exp2(power.float()).repeat_interleave(width, 1)
            for x, power in ((self.a, self.a_power), (self.b, b_power))
        )
        return (a @ b.t()).bfloat16()

    def arguments(self, config: AnyGemmConfig) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """a, b, a_scale, b_scale as the op takes them."""
        b = self.b.to(FP8)
        if config.b_layout is BLayout.PRESHUFFLED:
            b = preshuffle_b(b)
        if config.recipe is Recipe.MXFP8:
            exponents = [(power + 127).to(torch.uint8) for power in (self.a_power, self.b_power)]
            return self.a.to(FP8), b, pack_a_exponents(exponents[0]), exponents[1]
        scales = [torch.exp2(power.float()) for power in (self.a_power, self.b_power)]
        if config.recipe is Recipe.PTPC:
            return self.a.to(FP8), b, scales[0].flatten(), scales[1].flatten()
        return self.a.to(FP8), b, scales[0].t().contiguous(), scales[1]


def _block(recipe: Recipe) -> int:
    return MX_BLOCK if recipe is Recipe.MXFP8 else SCALE_BLOCK


@dataclass(frozen=True, slots=True)
class GemmPipeline:
    """The GEMM kernel of one configuration, on one GPU. `races`: run it under the race detector."""

    config: AnyGemmConfig
    world: int = 1
    races: bool = True

    @property
    def name(self) -> str:
        """Recipe, tile or rows, and order of B."""
        config = self.config
        size = config.tile.label if isinstance(config, GemmConfig) else f"m{config.rows.value}"
        return f"gemm-{config.recipe.value}-{size}-{config.b_layout.value}"

    def kernels(self) -> tuple[ProvedKernel, ...]:
        """The one kernel."""
        return (ProvedKernel.shipped(GEMM, self.config),)

    def sizes(self) -> tuple[int, ...]:
        """M of the calls: a ragged tile, nine workgroups, a full tile; for few rows all are nine workgroups."""
        if isinstance(self.config, SmallGemmConfig):
            rows = self.config.rows.value
            return rows - 5, rows, 1
        tile = self.config.tile.m
        return 40, 2 * tile + 24, tile

    def exercise(self, seed: int, codes: Codes, adversary: Adversary | None = APART) -> None:
        """Run the calls; see `Pipeline`."""
        (kernel,) = self.kernels()
        op = _op(self.config, codes(0, GEMM, kernel.code), seed, adversary, races=self.races)
        for call, m in enumerate(self.sizes()):
            operands = Operands.random(self.config, m, seed, call)
            arguments = operands.arguments(self.config)
            c = op(*arguments, torch.full((m, self.config.n), float("nan"), dtype=torch.bfloat16))
            for argument in arguments:
                argument.flatten().view(torch.uint8).fill_(255)
            require_bits(f"call {call}, m={m}", c, operands.product(self.config.recipe))


@dataclass(frozen=True, slots=True)
class QuantizePipeline:
    """An activation quantiser, on one GPU."""

    config: QuantizeConfig
    world: int = 1

    @property
    def name(self) -> str:
        """The recipe."""
        return f"quantize-{self.config.recipe.value}"

    def kernels(self) -> tuple[ProvedKernel, ...]:
        """The one kernel."""
        return (ProvedKernel.shipped(QUANTIZE, self.config),)

    def exercise(self, seed: int, codes: Codes, adversary: Adversary | None = APART) -> None:
        """Run the calls; see `Pipeline`."""
        (kernel,) = self.kernels()
        op = _op(self.config, codes(0, QUANTIZE, kernel.code), seed, adversary, races=True)
        reference = quantize_mxfp8 if self.config.recipe is Recipe.MXFP8 else quantize_1x128
        for call, m in enumerate((7, 75, 1)):  # 2, 10 or more and 2 workgroups
            generator = torch.Generator().manual_seed(seed * 1009 + call)
            x = torch.randn(m, self.config.k, generator=generator).bfloat16()
            expected = reference(x)
            got = op.quantize(x)
            x.fill_(float("nan"))
            for what, one, other in zip(("values", "scales"), got, expected, strict=True):
                require_bits(f"call {call}, m={m}, {what}", one, other)


def _pipelines() -> list[GemmPipeline]:
    configs: list[AnyGemmConfig] = []
    for recipe in Recipe:
        for layout in BLayout:
            few = gemm_candidates(recipe, 9 * N_UNIT, SMALL_K, layout)
            configs += [config for config in few if isinstance(config, SmallGemmConfig)]
            for tile in Tile:  # three columns of tiles, the last one ragged
                found = gemm_candidates(recipe, 2 * tile.n + N_UNIT, TILE_K, layout)
                configs += [config for config in found if isinstance(config, GemmConfig) and config.tile is tile]
    return [GemmPipeline(config) for config in configs]


GEMMS = tuple(_pipelines())
QUANTIZERS = tuple(QuantizePipeline(QuantizeConfig(recipe, QUANTIZE_K)) for recipe in Recipe if recipe in SMALL_RECIPES)
