# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Tiles of an output, the order in which they are walked, and when a chunk of them is finished.

Arithmetic of shapes only. It stands here until the fused kernels need it too and may then move to `layout`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from types import MappingProxyType

from mori_gemm_ar.layout.machine import MI355X
from mori_gemm_ar.layout.ownership import OwnerSlices
from mori_gemm_ar.layout.terms import ceil_div
from mori_gemm_ar.model.terms import Layer, Quant, Tile

# What each recipe can compute, its native tile first: the one its wave time is measured with.
TILES = {
    Quant.PTPC: (Tile(256, 256), Tile(128, 256)),
    Quant.BLOCKSCALE: (Tile(128, 256),),
    Quant.MXFP8: (Tile(256, 256), Tile(256, 128)),
}
RESIDENT = MI355X.compute_units  # one GEMM workgroup on each compute unit


class Order(Enum):
    """In which order workgroups walk the output."""

    ROTATED = "rotated"  # band by band over all destinations: every link has work after the first wave
    LINEAR = "linear"  # one destination's slice after the other: the control, links wait for their turn


@dataclass(frozen=True, slots=True)
class TileGrid:
    """The tiles of an [m, n] output whose rows belong to `world` owners; slices begin at multiples of tile.m."""

    m: int
    n: int
    world: int
    tile: Tile

    @classmethod
    def of(cls, layer: Layer, tile: Tile) -> TileGrid:
        return cls(layer.m, layer.n, layer.world, tile)

    @property
    def columns(self) -> int:
        return ceil_div(self.n, self.tile.n)

    @property
    def tiles(self) -> int:
        return ceil_div(self.m, self.tile.m) * self.columns

    @property
    def slices(self) -> OwnerSlices:
        return OwnerSlices(self.world, self.m, self.tile.m)

    @property
    def rectangular(self) -> bool:
        """All owners have equally many rows, so all ranks do the same."""
        return self.m % self.world == 0 and self.m // self.world == self.slices.slice_rows

    @property
    def filled(self) -> float:
        """Rows asked for over rows computed."""
        rows = ceil_div(self.m, self.tile.m) * self.tile.m
        return self.m / rows if rows else 1.0

    def bands(self, rank: int) -> int:
        """Bands of tile.m rows in an owner's slice; 0 for an empty one."""
        return ceil_div(len(self.slices.slice(rank)), self.tile.m)

    def runs(self, rank: int, order: Order = Order.ROTATED) -> Iterator[tuple[int, int]]:
        """(destination, band) of each row of tiles, as `rank` walks them: itself first, then the ranks after it."""
        counts = [self.bands(dest) for dest in range(self.world)]
        turns = [(rank + step) % self.world for step in range(self.world)]
        if order is Order.LINEAR:
            yield from ((dest, band) for dest in turns for band in range(counts[dest]))
        else:
            yield from ((dest, band) for band in range(max(counts)) for dest in turns if band < counts[dest])

    def finished(self, rank: int, chunks: int, order: Order = Order.ROTATED) -> Mapping[tuple[int, int], int]:
        """(destination, chunk) -> how many tiles `rank` has computed when that chunk is complete."""
        return _finished(self, rank, chunks, order)

    def chunk_rows(self, rank: int, chunks: int) -> tuple[int, ...]:
        """Rows of each chunk of an owner's slice; the last band may be short."""
        slices = self.slices
        bands = slices.bands(rank)
        return tuple(sum(len(bands[band]) for band in chunk) for chunk in slices.chunks(rank, chunks))

    def imbalance(self, stripe: int | None) -> float:
        """Tiles of the busiest link over the mean, averaged over windows of resident tiles; 1 is even.

        `stripe` columns are walked before the destination changes; None walks a whole row of tiles.
        """
        return _imbalance(self, stripe or self.columns)

    def striped(self, stripe: int) -> Iterator[int]:
        """Destination of each tile when it changes every `stripe` columns, counted from the walking rank."""
        counts = [self.bands(dest) for dest in range(self.world)]
        groups = [min(stripe, self.columns - first) for first in range(0, self.columns, stripe)]
        for band in range(max(counts)):
            for width in groups:
                for dest in range(self.world):
                    if band < counts[dest]:
                        yield from [dest] * width


# Both are asked for each case of the constants, and depend on none of them.
@lru_cache(maxsize=256)
def _finished(grid: TileGrid, rank: int, chunks: int, order: Order) -> Mapping[tuple[int, int], int]:
    chunk_of = {
        (dest, band): chunk
        for dest in range(grid.world)
        for chunk, bands in enumerate(grid.slices.chunks(dest, chunks))
        for band in bands
    }
    done: dict[tuple[int, int], int] = {}
    for position, (dest, band) in enumerate(grid.runs(rank, order)):
        done[dest, chunk_of[dest, band]] = (position + 1) * grid.columns
    return MappingProxyType(done)


@lru_cache(maxsize=256)
def _imbalance(grid: TileGrid, stripe: int) -> float:
    walk = list(grid.striped(stripe))
    weighted = 0
    for start in range(0, len(walk), RESIDENT):
        window = walk[start : start + RESIDENT]
        weighted += max((window.count(dest) for dest in range(1, grid.world)), default=0) * grid.world
    return max(weighted / len(walk), 1.0) if walk else 1.0


def waves(tiles: int, partial_share: float) -> float:
    """GEMM time in units of one full wave of resident tiles; a partial wave costs a share, then grows evenly."""
    full, rest = divmod(tiles, RESIDENT)
    return full + (partial_share + (1.0 - partial_share) * rest / RESIDENT if rest else 0.0)


def progress(done: int, tiles: int, partial_share: float) -> float:
    """Share of the GEMM's time after which `done` of its tiles are finished.

    The first wave runs in lockstep and ends at once; later tiles have drifted apart and end evenly.
    """
    if tiles <= RESIDENT or done >= tiles:
        return 1.0
    first = 1.0 / waves(tiles, partial_share)
    return first + (1.0 - first) * max(0, done - RESIDENT) / (tiles - RESIDENT)
