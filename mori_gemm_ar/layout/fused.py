# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The GEMM that sends its tiles while it computes: compile key, order of the tiles, chunks and their counters.

Rows of C belong to owners, `OwnerSlices`. The grid covers full slices of all ranks; a workgroup whose tile lies past M
ends at once, so that the order is the same arithmetic for every M.
"""

from __future__ import annotations

from dataclasses import dataclass

from mori_gemm_ar.layout.fused_rules import (
    reason_not_fused_bands,
    reason_not_fused_config,
    reason_not_fused_grid,
)
from mori_gemm_ar.layout.gemm import GemmConfig
from mori_gemm_ar.layout.machine import Machine
from mori_gemm_ar.layout.ownership import ChunkTable, OwnerSlices
from mori_gemm_ar.layout.rules import reason_not_index, reason_not_rank, require
from mori_gemm_ar.layout.sdma import Transport
from mori_gemm_ar.layout.terms import ceil_div
from mori_gemm_ar.layout.wire_terms import GROUP, Wire

RECIPROCAL_BITS = 20  # a quotient is (x * ceil(2^20 / d)) >> 20, right while x * d < 2^20
DEFAULT_STRIPE = 2  # ROCm/mori pull request 662: flat up to 2 columns of tiles for each destination, dearer above


@dataclass(frozen=True, slots=True)
class FusedConfig:
    """Compile key: the GEMM, and how tiles leave. Rank, M, chunks, queues and addresses are arguments.

    push: SDMA stores C locally, and the workgroup that finishes a chunk puts it to its owner; LSA stores C into the
    owner's window. stripe: LSA only, columns of tiles before the destination changes. signals: SDMA only, the engine
    tells the owner of each chunk when it has landed, as the streamed tail needs. wire: EXACT, or FP8_BOTH with SDMA:
    tiles are quantised as they are stored, band by band.
    """

    gemm: GemmConfig
    world: int
    push: Transport
    stripe: int | None = None
    signals: bool = False
    wire: Wire = Wire.EXACT

    def __post_init__(self) -> None:
        require(reason_not_fused_config(self))

    @property
    def key(self) -> str:
        """Stable, unique for each config, and a legal symbol."""
        stripe = f"_s{self.stripe}" if self.stripe is not None else ""
        signals = "_signals" if self.signals else ""
        wire = f"_{self.wire.label}" if self.wire.lossy else ""
        return f"fused_{self.push.value}_w{self.world}{stripe}{signals}{wire}_{self.gemm.key}"

    @property
    def kernel_name(self) -> str:
        return self.key

    @property
    def band_bytes(self) -> int:
        """Bytes of a band on the wire."""
        elements = self.gemm.tile.m * self.gemm.n
        return elements // GROUP * (GROUP + 1) if self.wire.both else 2 * elements

    @property
    def columns(self) -> int:
        """Columns of tiles."""
        return ceil_div(self.gemm.n, self.gemm.tile.n)


def reciprocal(divisor: int) -> int:
    """What a kernel multiplies with to divide by `divisor`; see RECIPROCAL_BITS."""
    return ceil_div(1 << RECIPROCAL_BITS, divisor)


_TAG_CODE = 15  # top four bits that no tag of an all-reduce has
_TAG_ROWS = 24  # bits of M


@dataclass(frozen=True, slots=True)
class LayerTag:
    """What a tag tells of a call of the fused op; m is known modulo 2^24."""

    m: int
    slot: int
    pulled: bool
    lossy: bool

    @property
    def word(self) -> int:
        """The word that is equal on all ranks of one call: m | pulled << 24 | lossy << 25 | slot << 26 | 15 << 28."""
        flags = self.pulled | self.lossy << 1 | self.slot << 2
        return self.m % 2**_TAG_ROWS | flags << _TAG_ROWS | _TAG_CODE << 28

    @classmethod
    def of(cls, word: int) -> LayerTag | None:
        """What `word` was made of; None for the tag of an all-reduce."""
        if word >> 28 != _TAG_CODE:
            return None
        flags = word >> _TAG_ROWS & 7
        return cls(word % 2**_TAG_ROWS, flags >> 2, bool(flags & 1), bool(flags >> 1 & 1))


@dataclass(frozen=True, slots=True)
class FusedGrid:
    """Tiles of one call in the order in which workgroups take them, and its chunks; equal on all ranks.

    Push by SDMA: chunk by chunk, so that every destination has something early, and within a chunk destination by
    destination, which completes the first ones soonest. LSA: band by band, and the destination changes every `stripe`
    columns, which keeps all links busy. Destinations start behind the own rank, which comes last.
    """

    config: FusedConfig
    m: int
    chunks: int

    def __post_init__(self) -> None:
        require(reason_not_fused_grid(self.m, self.chunks))
        require(reason_not_fused_bands(self.slices.slice_bands, self.config.world))

    @property
    def slices(self) -> OwnerSlices:
        return OwnerSlices(self.config.world, self.m, self.config.gemm.tile.m)

    @property
    def table(self) -> ChunkTable:
        return self.slices.chunk_table(self.chunks)

    @property
    def blocks(self) -> int:
        """Workgroups; those of tiles past M end at once."""
        return self.config.world * self.slices.slice_bands * self.config.columns

    def number_of_block(self, block: int, machine: Machine) -> int:
        """Place of a workgroup's tile in the order.

        Of each run of as many workgroups as there are compute units, an XCD takes consecutive tiles, so that its L2
        sees few rows of A; over runs the order is that of time.
        """
        require(reason_not_index("block", block, self.blocks))
        start, place = block // machine.compute_units * machine.compute_units, block % machine.compute_units
        here = min(machine.compute_units, self.blocks - start)
        xcd, share = place % machine.xcds, here // machine.xcds
        return start + xcd * share + min(xcd, here % machine.xcds) + place // machine.xcds

    def tile(self, number: int, rank: int) -> tuple[int, int, int]:
        """(destination, band, column of tiles) of a place in the order, on a rank; a band may lie past M."""
        require(reason_not_index("number", number, self.blocks) or reason_not_rank(rank, self.config.world))
        world, columns, stripe = self.config.world, self.config.columns, self.config.stripe
        if stripe is None:
            turn, column = divmod(number, columns)
            run = self.table.run(self.table.chunk_of(turn // world))
            turn -= run.start * world
            distance, band = turn // len(run), run.start + turn % len(run)
        else:
            band, place = divmod(number, world * columns)
            group, place = divmod(place, world * stripe)
            distance, place = divmod(place, min(stripe, columns - group * stripe))
            column = group * stripe + place
        return (rank + 1 + distance) % world, band, column

    def arrivals(self, dest: int, chunk: int) -> int:
        """Tiles of a chunk of a destination: arrivals that complete it; 0 where the slice ends before it."""
        run = self.table.run(chunk)
        bands = ceil_div(len(self.slices.slice(dest)), self.config.gemm.tile.m)
        return max(0, min(run.stop, bands) - run.start) * self.config.columns

    def rows(self, dest: int, chunk: int) -> range:
        """Rows of C in a chunk of a destination."""
        run, own = self.table.run(chunk), self.slices.slice(dest)
        tile_m = self.config.gemm.tile.m
        return range(min(own.start + run.start * tile_m, own.stop), min(own.start + run.stop * tile_m, own.stop))

    def arguments(self) -> tuple[int, ...]:
        """What a kernel needs to find its tile: rows and bands of a slice, short chunks, their bands, reciprocals."""
        table = self.table
        shape = (self.slices.slice_rows, table.bands, table.short_chunks, table.few)
        return (*shape, reciprocal(table.few), reciprocal(table.few + 1))
