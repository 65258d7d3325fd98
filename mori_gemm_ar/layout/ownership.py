# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Who reduces what: packs of a flat payload, and rows of an [M, N] output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mori_gemm_ar.layout.problem import AllReduceProblem
from mori_gemm_ar.layout.rules import (
    reason_not_blocks,
    reason_not_chunk_table,
    reason_not_chunks,
    reason_not_index,
    reason_not_owner_slices,
    reason_not_pack_ownership,
    reason_not_rank,
    reason_not_threads,
    require,
)
from mori_gemm_ar.layout.terms import ceil_div, round_up

DEFAULT_CHUNKS = 8  # best measured overlap; more puts cost about 6 us each


def pack_home(index: int, blocks: int, threads: int) -> tuple[int, int]:
    """(block, thread) that handles a pack, in every phase; `index` counts from the start of its slice."""
    require(reason_not_blocks(blocks) or reason_not_threads(threads))
    return index // threads % blocks, index % threads


def block_packs(count: int, block: int, blocks: int, threads: int) -> Iterator[range]:
    """The packs of `pack_home` for one block, of a slice of `count`: one range for each trip of the loop."""
    require(reason_not_blocks(blocks) or reason_not_threads(threads) or reason_not_index("block", block, blocks))
    for start in range(block * threads, count, blocks * threads):
        yield range(start, min(start + threads, count))


@dataclass(frozen=True, slots=True)
class PackOwnership:
    """Rank r owns packs [r * part, (r + 1) * part), cut at the end; the last slices may be short or empty."""

    world: int
    packs: int

    def __post_init__(self) -> None:
        require(reason_not_pack_ownership(self.world, self.packs))

    @classmethod
    def of(cls, problem: AllReduceProblem) -> PackOwnership:
        return cls(problem.world, problem.packs)

    @property
    def part(self) -> int:
        """Packs of a full slice."""
        return ceil_div(self.packs, self.world)

    def slice(self, rank: int) -> range:
        require(reason_not_rank(rank, self.world))
        return range(min(rank * self.part, self.packs), min((rank + 1) * self.part, self.packs))

    def owner(self, pack: int) -> int:
        require(reason_not_index("pack", pack, self.packs))
        return pack // self.part


@dataclass(frozen=True, slots=True)
class ChunkTable:
    """Bands 0 .. bands - 1 in runs whose lengths differ by at most one, the shorter ones first.

    Lengths need not divide the bands, so 13 bands make 8 chunks: each chunk has an arrival target of its own. The first
    chunk is what every link waits for at the start, so it is a short one.
    """

    bands: int
    chunks: int

    def __post_init__(self) -> None:
        require(reason_not_chunk_table(self.bands, self.chunks))

    @property
    def few(self) -> int:
        """Bands of a short chunk."""
        return self.bands // self.chunks if self.chunks else 0

    @property
    def short_chunks(self) -> int:
        """How many chunks are short."""
        return self.chunks - self.bands % self.chunks if self.chunks else 0

    @property
    def cut(self) -> int:
        """First band of the first longer chunk."""
        return self.short_chunks * self.few

    def run(self, chunk: int) -> range:
        """Bands of a chunk."""
        require(reason_not_index("chunk", chunk, self.chunks))
        longer = max(0, chunk - self.short_chunks)
        start = chunk * self.few + longer
        return range(start, start + self.few + (chunk >= self.short_chunks))

    def chunk_of(self, band: int) -> int:
        """The chunk that holds a band."""
        require(reason_not_index("band", band, self.bands))
        if band < self.cut:
            return band // self.few
        return self.short_chunks + (band - self.cut) // (self.few + 1)


@dataclass(frozen=True, slots=True)
class OwnerSlices:
    """Rows of an [M, N] output: one slice for each rank, cut into bands of `tile_m` rows, sent in chunks of bands.

    A full slice is round_up(ceil(rows / world), tile_m) rows. The last slices may be short or empty, and the last
    band of all may have fewer than `tile_m` rows.
    """

    world: int
    rows: int
    tile_m: int

    def __post_init__(self) -> None:
        require(reason_not_owner_slices(self.world, self.rows, self.tile_m))

    @property
    def slice_rows(self) -> int:
        """Rows of a full slice."""
        return round_up(ceil_div(self.rows, self.world), self.tile_m)

    def slice(self, rank: int) -> range:
        require(reason_not_rank(rank, self.world))
        return range(min(rank * self.slice_rows, self.rows), min((rank + 1) * self.slice_rows, self.rows))

    def owner(self, row: int) -> int:
        require(reason_not_index("row", row, self.rows))
        return row // self.slice_rows

    def bands(self, rank: int) -> tuple[range, ...]:
        """Rows of each band of a slice."""
        own = self.slice(rank)
        return tuple(
            range(start, min(start + self.tile_m, own.stop)) for start in range(own.start, own.stop, self.tile_m)
        )

    @property
    def slice_bands(self) -> int:
        """Bands of a full slice."""
        return self.slice_rows // self.tile_m

    def chunk_table(self, chunks: int = DEFAULT_CHUNKS) -> ChunkTable:
        """Chunks of a full slice: min(chunks, bands) of them."""
        require(reason_not_chunks(chunks))
        return ChunkTable(self.slice_bands, min(chunks, self.slice_bands))

    def chunks(self, rank: int, chunks: int = DEFAULT_CHUNKS) -> tuple[range, ...]:
        """Band numbers of each chunk of a slice. All slices are cut at the same bands; a short one has fewer chunks."""
        table, bands = self.chunk_table(chunks), ceil_div(len(self.slice(rank)), self.tile_m)
        runs = (table.run(chunk) for chunk in range(table.chunks))
        return tuple(range(run.start, min(run.stop, bands)) for run in runs if run.start < bands)
