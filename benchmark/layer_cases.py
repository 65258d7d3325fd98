# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What a layer benchmark measures: the case, its operands, and what they must give in fp64."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from benchmark.report import git_commit, versions
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import BLayout, Recipe, Tile, Wire
from mori_gemm_ar.layout.fused import DEFAULT_STRIPE
from mori_gemm_ar.layout.sdma import Transport
from mori_gemm_ar.model.terms import Tail

if TYPE_CHECKING:
    import torch

    from mori_gemm_ar.plan import Tuning

_EDGES = {Recipe.PTPC: (None, 1), Recipe.BLOCKSCALE: (128, 128), Recipe.MXFP8: (32, 32)}  # K, rows of B, of a scale
_LARGEST = 448.0  # of e4m3
_BIAS = 127  # of an e8m0 exponent


class ModeChoice(str, Enum):
    """Values of --mode."""

    ALL = "all"  # each of the five below
    AUTO = "auto"  # what the library chooses
    GEMM_ONLY = "gemm-only"
    SPLIT_LSA = "split-lsa"
    SPLIT_SDMA = "split-sdma"
    FUSED_SDMA = "fused-sdma"
    FUSED_LSA = "fused-lsa"


ALL_MODES = tuple(mode for mode in ModeChoice if mode not in (ModeChoice.ALL, ModeChoice.AUTO))


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured; None leaves a choice to the library.

    n, k: B's shape on each rank. gather: who moves the sums. verify_rows: rows of each call whose values are compared
    with fp64, evenly spaced; bits are compared on all rows. tail: of fused-sdma. Every call has new operands.
    """

    m: int
    n: int
    k: int
    quant: Recipe
    wire: Wire = Wire.EXACT
    gather: Transport | None = None
    chunks: int | None = None
    stripe: int = DEFAULT_STRIPE
    tile: Tile | None = None
    queues: int = 1
    b_layout: BLayout = BLayout.PRESHUFFLED
    calls: int = 3
    warmup: int = 1
    seed: int = 0
    verify_rows: int = 4096
    timeout_s: float | None = None
    tail: Tail = Tail.PHASED

    def __post_init__(self) -> None:
        for name, least in (("m", 0), ("calls", 1), ("warmup", 0), ("seed", 0), ("verify_rows", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least {least}")

    @property
    def m_max(self) -> int:
        """Rows that the op's window is laid out for."""
        return max(self.m, 1)

    def tuning(self, mode: ModeChoice) -> Tuning:
        """What an op is told; only fused-sdma has a choice of tails."""
        from mori_gemm_ar.plan import Tuning

        tail = self.tail if mode is ModeChoice.FUSED_SDMA else Tail.PHASED
        return Tuning(self.gather, self.chunks, self.stripe, self.tile, self.queues, tail=tail)

    @property
    def requested(self) -> dict[str, Any]:
        """What the caller asked for, before the library resolves it."""
        return {
            "device": "auto",
            "wire": self.wire.value,
            "gather": "auto" if self.gather is None else self.gather.value,
            "chunks": "auto" if self.chunks is None else self.chunks,
            "stripe": self.stripe,
            "tile": "auto" if self.tile is None else f"{self.tile.m}x{self.tile.n}",
            "queues": self.queues,
            "tail": self.tail.value,
            "b_layout": self.b_layout.value,
            "timeout_s": self.timeout_s,
        }

    def origin(self, world_size: int) -> dict[str, Any]:
        """Fields of a row that say what was run, and of which code."""
        return {
            "world_size": world_size,
            "m": self.m,
            "n": self.n,
            "k": self.k,
            "quant": self.quant.value,
            "calls": self.calls,
            "warmup": self.warmup,
            "seed": self.seed,
            "versions": versions(),
            "git_commit": git_commit(),
        }

    def sampled(self, rows: range, world_size: int) -> torch.Tensor:
        """Offsets of the rows of a part of the result that are compared with fp64: whole runs of 16, evenly spaced."""
        import torch

        from benchmark.gemm_check import EDGE

        runs = -(-len(rows) // EDGE)
        wanted = min(runs, max(1, self.verify_rows // (EDGE * world_size)))
        starts = torch.arange(wanted) * runs // wanted * EDGE
        found = (starts[:, None] + torch.arange(EDGE)).flatten()
        return found[found < len(rows)]


# ---- operands ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Operands:
    """One rank's A [M, K] and B [N, K] as e4m3 with a scale for each block, and as a kernel takes them."""

    quant: Recipe
    a: torch.Tensor
    b: torch.Tensor
    a_scale: torch.Tensor  # [M, K blocks], of what a block is multiplied with
    b_scale: torch.Tensor  # [blocks of N, K blocks]

    def stored(self, layout: BLayout) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """New tensors a, b, a_scale, b_scale for the op."""
        import torch

        from mori_gemm_ar.gemm import pack_a_exponents, preshuffle_b

        b = preshuffle_b(self.b) if layout is BLayout.PRESHUFFLED else self.b.clone()
        if self.quant is Recipe.MXFP8:
            exponents = [(torch.log2(scale) + _BIAS).to(torch.uint8) for scale in (self.a_scale, self.b_scale)]
            return self.a.clone(), b, pack_a_exponents(exponents[0]), exponents[1]
        if self.quant is Recipe.BLOCKSCALE:
            return (
                self.a.clone(),
                b,
                self.a_scale.t().clone(memory_format=torch.contiguous_format),
                self.b_scale.clone(),
            )
        return self.a.clone(), b, self.a_scale[:, 0].clone(), self.b_scale[:, 0].clone()

    def product(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """fp64 of some rows: the product, and the sum of the addends' magnitudes."""
        (n, k), edge = self.b.shape, _EDGES[self.quant][1]
        width = k // self.a_scale.shape[1]
        a = self.a[rows].double() * self.a_scale[rows].double().repeat_interleave(width, 1)
        b = self.b.double() * self.b_scale.double().repeat_interleave(width, 1).repeat_interleave(edge, 0)[:n]
        return a @ b.t(), a.abs() @ b.abs().t()


@lru_cache(maxsize=8)  # ranks that share a process share them
def operands(case: Case, call: int, rank: int) -> Operands:
    """Gaussian data, quantised as a layer does it; no two ranks or calls are alike."""
    import torch

    key = hashlib.sha256(f"{case.seed} {call} {rank}".encode()).digest()
    g = torch.Generator().manual_seed(int.from_bytes(key[:7], "little"))
    width, edge = _EDGES[case.quant]
    (a, a_scale), (b, b_scale) = (
        _quantized(torch.randn(rows, case.k, generator=g), case.quant, high, width or case.k)
        for rows, high in ((case.m, 1), (case.n, edge))
    )
    return Operands(case.quant, a, b, a_scale, b_scale)


def _quantized(x: torch.Tensor, quant: Recipe, high: int, wide: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, K] to e4m3, and the scale of each block of `high` rows by `wide` columns."""
    import torch

    rows, k = x.shape
    padded = torch.nn.functional.pad(x, (0, 0, 0, -rows % high))
    blocks = padded.view(-1, high, k // wide, wide)
    scale = blocks.abs().amax(dim=(1, 3)) / _LARGEST
    if quant is Recipe.MXFP8:
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    data = (blocks / scale[:, None, :, None]).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn)
    return data.view(-1, k)[:rows].contiguous(), scale


def overwrite(tensors: tuple[torch.Tensor, ...]) -> None:
    """Make every operand NaN: a rank that reads one after the call had returned shows it."""
    import torch

    for tensor in tensors:
        tensor.view(torch.uint8).fill_(0xFF)


def even_slices(m: int, world_size: int) -> tuple[range, ...]:
    """Rows that each rank checks where the op does not say who owns which."""
    cuts = [m * rank // world_size for rank in range(world_size + 1)]
    return tuple(range(start, end) for start, end in pairwise(cuts))


def chosen_modes(mode: ModeChoice) -> Iterator[ModeChoice]:
    """The modes that a value of --mode stands for."""
    yield from ALL_MODES if mode is ModeChoice.ALL else (mode,)
