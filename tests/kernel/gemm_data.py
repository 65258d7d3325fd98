# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Operands for the GEMM with a float64 reference, and the bound that belongs to the number formats."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from mori_gemm_ar.gemm import GemmOp, pack_a_exponents, preshuffle_b
from mori_gemm_ar.layout import Recipe

FP8 = torch.float8_e4m3fn
MAX_RELL2 = 2.1e-3  # of a whole matrix: rounding to bf16 alone gives 1.66e-3


@cache
def op_for(recipe: Recipe, n: int, k: int, b_layout: str = "preshuffled") -> GemmOp:
    """One op for all tests of a shape: each compiles its kernels once."""
    return GemmOp.create(n=n, k=k, quant=recipe, b_layout=b_layout, device="emulated")


@dataclass
class Operands:
    """Quantised operands, and what one element of A or B is worth."""

    a: torch.Tensor  # e4m3fn [M, K]
    b: torch.Tensor  # e4m3fn [N, K], row by row
    a_scale: torch.Tensor
    b_scale: torch.Tensor
    a_factor: torch.Tensor  # float64 [M, K]
    b_factor: torch.Tensor  # float64 [N, K]

    @property
    def reference(self) -> torch.Tensor:
        """Scaled product in float64."""
        return (self.a.double() * self.a_factor) @ (self.b.double() * self.b_factor).t()

    @property
    def magnitude(self) -> torch.Tensor:
        """Sum over k of |a b|, scaled."""
        return (self.a.double() * self.a_factor).abs() @ (self.b.double() * self.b_factor).abs().t()

    def run(self, op: GemmOp, out: torch.Tensor | None = None) -> torch.Tensor:
        """The op's result."""
        b = preshuffle_b(self.b) if op.b_layout.value == "preshuffled" else self.b
        return op(self.a, b, self.a_scale, self.b_scale, out)


def make(recipe: Recipe, a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor) -> Operands:
    """Operands from logical scales: PTPC [M] and [N]; BLOCKSCALE [M, K/128], [N/128, K/128]; MXFP8 exponents
    [M, K/32], [N/32, K/32]."""
    (m, k), n = a.shape, b.shape[0]
    if recipe is Recipe.PTPC:
        factors = a_scale.double()[:, None].expand(m, k), b_scale.double()[:, None].expand(n, k)
        return Operands(a, b, a_scale, b_scale, *factors)
    block = 128 if recipe is Recipe.BLOCKSCALE else 32
    a_value, b_value = (s.double() if block == 128 else torch.exp2(s.double() - 127) for s in (a_scale, b_scale))
    a_factor = a_value.repeat_interleave(block, 1)
    b_factor = b_value.repeat_interleave(block, 1).repeat_interleave(block, 0)[:n]
    stored = a_scale.t().contiguous() if block == 128 else pack_a_exponents(a_scale)
    return Operands(a, b, stored, b_scale, a_factor, b_factor)


def random_operands(recipe: Recipe, m: int, n: int, k: int, seed: int) -> Operands:
    """Normal data over most of the range of e4m3fn, scales of about four octaves."""
    g = torch.Generator().manual_seed(seed)
    a, b = ((torch.randn(rows, k, generator=g) * 64).to(FP8) for rows in (m, n))

    def scales(*shape: int) -> torch.Tensor:
        if recipe is Recipe.MXFP8:
            return torch.randint(118, 130, shape, generator=g, dtype=torch.uint8)
        return torch.exp2(torch.rand(shape, generator=g) * 4 - 6)

    shapes = {
        Recipe.PTPC: ((m,), (n,)),
        Recipe.BLOCKSCALE: ((m, k // 128), (-(-n // 128), k // 128)),
        Recipe.MXFP8: ((m, k // 32), (-(-n // 32), k // 32)),
    }[recipe]
    return make(recipe, a, b, *(scales(*shape) for shape in shapes))


def ulp_bf16(x: torch.Tensor) -> torch.Tensor:
    """Distance of neighbouring bf16 numbers around float64 values."""
    exponent = torch.floor(torch.log2(x.abs().clamp_min(2.0**-126))).clamp_min(-126)
    return torch.exp2(exponent - 7)


def check(out: torch.Tensor, operands: Operands, k: int) -> float:
    """Assert the bound for every element and the whole matrix; returns the largest relL2 of any 16 x 16 tile."""
    reference, got = operands.reference, out.double()
    bound = ulp_bf16(reference) / 2 + k * 2.0**-24 * operands.magnitude
    error = (got - reference).abs()
    wrong = torch.nonzero(~(error <= bound))
    assert not len(wrong), f"{len(wrong)} elements, first {wrong[0].tolist()}: {out[tuple(wrong[0])]} for " + str(
        float(reference[tuple(wrong[0])])
    )
    if reference.numel() == 0:
        return 0.0
    rell2 = float((got - reference).norm() / reference.norm())
    # A handful of roundings may all fall on one side.
    assert rell2 <= MAX_RELL2 or reference.numel() < 1000, rell2
    return max(
        float((got[r : r + 16, c : c + 16] - reference[r : r + 16, c : c + 16]).norm() / norm)
        for r in range(0, reference.shape[0], 16)
        for c in range(0, reference.shape[1], 16)
        if (norm := float(reference[r : r + 16, c : c + 16].norm())) > 0
    )
