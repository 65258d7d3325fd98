# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""When a product in bf16 is right: every element within what its format and fp32 sums explain, and their norm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MAX_REL_L2 = 2.1e-3  # of a product; rounding to bf16 alone gives 1.66e-3
FEW = 1000  # elements below which roundings may all fall on one side, so that no norm is expected
SUM_UNIT = 2.0**-24  # of an addition in fp32
EDGE = 16  # rows and columns of the tiles whose norms are compared: one matrix instruction
_BF16_BITS = 8


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far values are off. `squares`: (of the error, of the reference), to be added over parts of one result."""

    squares: tuple[float, float]
    worst_tile: float  # relative L2 of the worst 16 x 16 tile; infinity or NaN where a value is
    of_bound: float  # largest error as a share of its bound
    wrong: int  # elements past their bound
    first: tuple[int, int] | None  # the first of them

    @property
    def rel_l2(self) -> float:
        """Relative L2 of the error."""
        return relative(self.squares)


def relative(squares: tuple[float, float]) -> float:
    """Relative L2 of (square of the error, square of the reference); 0 for no error, whatever the reference."""
    error, reference = squares
    if error == 0.0:
        return 0.0
    return math.sqrt(error / reference) if reference else math.inf


def half_ulp(values: torch.Tensor) -> torch.Tensor:
    """Half a unit in the last place of bf16, fp64."""
    import torch

    _, exponent = torch.frexp(values.double().abs().clamp_min(2.0**-126))
    return torch.ldexp(torch.ones_like(exponent, dtype=torch.float64), exponent - _BF16_BITS - 1)


def deviation(out: torch.Tensor, reference: torch.Tensor, bound: torch.Tensor) -> Deviation:
    """Compare [rows, columns] with its fp64 reference; NaN passes no bound."""
    import torch

    error = (out.double() - reference).abs()
    wrong = torch.nonzero(~(error <= bound))
    shares = error / bound
    squares = (float(error.square().sum()), float(reference.square().sum()))
    return Deviation(
        squares=squares,
        worst_tile=_worst_tile(error, reference),
        of_bound=float(shares.max()) if shares.numel() else 0.0,
        wrong=len(wrong),
        first=(int(wrong[0][0]), int(wrong[0][1])) if len(wrong) else None,
    )


def _worst_tile(error: torch.Tensor, reference: torch.Tensor) -> float:
    import torch

    if not error.numel():
        return 0.0
    pad = (0, -error.shape[1] % EDGE, 0, -error.shape[0] % EDGE)
    sums = []
    for values in (error, reference):
        tiles = torch.nn.functional.pad(values, pad).square().unflatten(1, (-1, EDGE)).unflatten(0, (-1, EDGE))
        sums.append(tiles.sum(dim=(1, 3)))
    ratio = torch.where(sums[0] == 0, 0.0, sums[0] / sums[1])
    return math.sqrt(float(ratio.max()))


def product_bound(reference: torch.Tensor, absolute: torch.Tensor, k: int) -> torch.Tensor:
    """Of each element of a rounded product: half an ulp, and what fp32 sums of k products lose."""
    return half_ulp(reference) + k * SUM_UNIT * absolute
