# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Layers for the tests of the fused op: operands whose products are exact, so that every bit of a result is specified.

Integers and powers of two make a rank's product one number whatever the order of its sum; rounding to bf16 and the
order of the ranks remain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pytest
import torch

from mori_gemm_ar.gemm import preshuffle_b
from mori_gemm_ar.layout import Recipe, Tile, Wire
from mori_gemm_ar.layout.sdma import Transport
from mori_gemm_ar.op import GemmAllReduceOp, Mode, Tail, Tuning
from mori_gemm_ar.runtime import RankContext
from tests.kernel.gemm_data import FP8, Operands, make
from tests.ranks.wire_data import wire_reference
from tests.ranks.worlds import BF16, reference

N, K = 512, 128  # two columns of tiles and one step of K: the cheapest that has neighbours
TILE = Tile.M128_N256
_SPREAD = 14  # octaves between small, middle and large rows: their sum keeps bits that depend on the order
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Way:
    """A mode and who gathers; `more`: what else the tuning says."""

    mode: Mode
    gather: Transport | None = None
    more: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        more = [f"{name}={getattr(value, 'value', value)}" for name, value in self.more]
        parts = [self.mode.value, *([self.gather.value] if self.gather else []), *more]
        return "-".join(parts)

    def tuning(self, **more: Any) -> Tuning:
        """With one tile, or each op would compile several."""
        return Tuning(gather=self.gather, tile=TILE, **{**dict(self.more), **more})


LSA, SDMA = Transport.LSA, Transport.SDMA
SPLIT_LSA = Way(Mode.SPLIT_LSA)
FUSED_SDMA, FUSED_LSA = Way(Mode.FUSED_SDMA, SDMA), Way(Mode.FUSED_LSA, LSA)
FUSED_SDMA_PULLED = Way(Mode.FUSED_SDMA, LSA)
STREAMED = Way(Mode.FUSED_SDMA, SDMA, (("tail", Tail.STREAMED),))
WAYS = (
    SPLIT_LSA,
    Way(Mode.SPLIT_SDMA, SDMA),
    Way(Mode.SPLIT_SDMA, LSA),
    Way(Mode.FUSED_SDMA, SDMA, (("chunks", 2),)),
    Way(Mode.FUSED_SDMA, LSA, (("chunks", 1), ("queues", 2))),
    STREAMED,
    FUSED_LSA,
    Way(Mode.FUSED_LSA, SDMA, (("stripe", 1),)),
)
each_way = pytest.mark.parametrize("way", WAYS, ids=str)
# Where a test is about tiles that leave while others are computed.
each_push = pytest.mark.parametrize("way", [FUSED_SDMA, FUSED_LSA], ids=str)
# One of each kind: tiles by copy engines or stores, sums pushed, pulled or streamed, and none of it.
MAIN_WAYS = (SPLIT_LSA, FUSED_SDMA, FUSED_SDMA_PULLED, STREAMED, FUSED_LSA)
each_main_way = pytest.mark.parametrize("way", MAIN_WAYS, ids=str)


def create(ctx: RankContext, way: Way, m_max: int, recipe: Recipe = Recipe.BLOCKSCALE, **more: Any) -> GemmAllReduceOp:
    """An op; `tuning` in `more` extends that of the way."""
    arguments = {"n": N, "k": K, "b_layout": "row", "timeout_s": 30, **more}
    arguments["tuning"] = way.tuning(**more.get("tuning", {}))
    return GemmAllReduceOp.create(ctx, m_max=m_max, quant=recipe, mode=way.mode, device="emulated", **arguments)


# --- data ---


@dataclass(frozen=True)
class Layer:
    """Operands of all ranks, and what every rank must get."""

    ranks: tuple[Operands, ...]
    products: tuple[torch.Tensor, ...] = field(repr=False)

    def of(self, rank: int, *, preshuffled: bool = False) -> Tensors:
        """A rank's own copies of its operands."""
        mine = self.ranks[rank]
        b = preshuffle_b(mine.b) if preshuffled else mine.b.clone()
        return mine.a.clone(), b, mine.a_scale.clone(), mine.b_scale.clone()

    def expected(self, wire: Wire = Wire.EXACT) -> torch.Tensor:
        """Products rounded to bf16, added in fp32 in rank order, rounded once; through the wire if it loses."""
        return wire_reference(self.products, wire) if wire.lossy else reference(self.products)


@lru_cache(maxsize=64)
def layer(world: int, m: int, *seed: int, recipe: Recipe = Recipe.BLOCKSCALE, n: int = N, k: int = K) -> Layer:
    """Other data for another seed."""
    ranks = [_operands(recipe, m, n, k, rank, *seed) for rank in range(world)]
    operands = tuple(make(recipe, *parts) for parts in ranks)
    return Layer(operands, tuple(each.reference.to(torch.float32).to(BF16) for each in operands))


def _operands(recipe: Recipe, m: int, n: int, k: int, rank: int, *seed: int) -> Tensors:
    """Logical scales. Some rows cancel those of two ranks before, so that the order of the sum shows."""
    g = torch.Generator().manual_seed(hash((m, n, k, rank, *seed)) % 2**31)
    like = torch.Generator().manual_seed(hash((n, k, rank % 2, *seed)) % 2**31)
    a = torch.randint(-8, 9, (m, k), generator=g).float()
    b = torch.randint(-8, 9, (n, k), generator=like).float()
    row = _SPREAD * torch.randint(-1, 2, (m, 1), generator=g)
    blocks, edge = {Recipe.PTPC: (1, 1), Recipe.BLOCKSCALE: (k // 128, 128), Recipe.MXFP8: (k // 32, 32)}[recipe]
    a_exponents = row + torch.randint(0, 3, (m, blocks), generator=g)
    b_exponents = torch.randint(-1, 2, (-(-n // edge), blocks), generator=like)
    if rank >= 2:
        other_a, _, other_scale, _ = _operands(recipe, m, n, k, rank - 2, *seed)
        again = torch.rand(m, 1, generator=g) < 0.4
        a = torch.where(again, -other_a.float(), a)
        a_exponents = torch.where(again, _exponents(recipe, other_scale).reshape(m, blocks), a_exponents)
    return a.to(FP8), b.to(FP8), _scales(recipe, a_exponents), _scales(recipe, b_exponents)


def _scales(recipe: Recipe, exponents: torch.Tensor) -> torch.Tensor:
    if recipe is Recipe.MXFP8:
        return (exponents + 127).to(torch.uint8)
    scales = torch.exp2(exponents.float())
    return scales[:, 0] if recipe is Recipe.PTPC else scales


def _exponents(recipe: Recipe, scales: torch.Tensor) -> torch.Tensor:
    return scales.long() - 127 if recipe is Recipe.MXFP8 else torch.log2(scales).long()


def constant(ctx: RankContext, m: int, value: float, n: int = N, k: int = K) -> Tensors:
    """Blockscale operands of a rank whose product is `value` everywhere: one column of A and B is not zero."""
    a, b = torch.zeros(m, k), torch.zeros(n, k)
    a[:, ctx.rank % k] = b[:, ctx.rank % k] = 1.0
    return a.to(FP8), b.to(FP8), torch.full((k // 128, m), value), torch.ones(-(-n // 128), k // 128)


def relative_l2(actual: torch.Tensor, products: Sequence[torch.Tensor]) -> float:
    """Distance from the float64 sum of products, over the length of that sum."""
    exact = torch.stack([x.double() for x in products]).sum(dim=0)
    return float((actual.double() - exact).norm() / exact.norm())
