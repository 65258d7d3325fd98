# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Where a workgroup and its lanes stand in C."""

from __future__ import annotations

import flydsl.expr as fx

from mori_gemm_ar.kernels.device import library
from mori_gemm_ar.layout import MI355X, WAVE_LANES
from mori_gemm_ar.layout.fused import RECIPROCAL_BITS

WAVE_M = 64  # rows of C that one wave computes: four MFMA tiles


class TilePlace:
    """The tile of this workgroup. Each XCD gets a run of consecutive tiles, so that its L2 sees few rows of A.

    Workgroup b goes to XCD b % 8. The tiles of XCD x start at x * (total / 8) + min(x, total % 8); N is the fast
    direction. `order.tile_of_block` in layout is the same in Python.
    """

    def __init__(self, tile, n, m):
        tiles_n = -(-n // tile.n)
        block = fx.Uint32(fx.block_idx.x)
        total = (fx.Uint32(m) + (tile.m - 1)) // tile.m * tiles_n
        xcd, run = block % MI355X.xcds, total // MI355X.xcds
        number = xcd * run + fx.min(xcd, total % MI355X.xcds) + block // MI355X.xcds
        self.row = number // tiles_n * tile.m
        self.column = number % tiles_n * tile.n
        self.rows = fx.min(fx.Uint32(m) - self.row, fx.Uint32(tile.m))  # the others are past the end of A and C
        self.columns = fx.min(n - self.column, fx.Uint32(tile.n))


class OrderedPlace:
    """The tile of this workgroup of a fused GEMM, its destination and chunk. `FusedGrid` is the same in Python."""

    def __init__(self, config, arguments):
        self.config, self.arguments = config, arguments
        tile, world = config.gemm.tile, config.world
        m, slice_rows = fx.Uint32(arguments.m), fx.Uint32(arguments.slice_rows)
        number = self._number()
        distance, band, column = self._chunk_major(number) if config.stripe is None else self._striped(number)
        turned = fx.Uint32(arguments.rank) + 1 + distance
        self.dest = (turned < world).select(turned, turned - world)
        self.band, self.slice_start = band, self.dest * slice_rows
        self.row, self.column = self.slice_start + band * tile.m, column * tile.n
        self.rows = fx.min(m - self.row, fx.Uint32(tile.m))  # the others are past the end of A and C
        self.columns = fx.min(config.gemm.n - self.column, fx.Uint32(tile.n))

    def _number(self):
        """Place in the order: XCDs take runs of each as many workgroups as there are compute units."""
        units, xcds = MI355X.compute_units, MI355X.xcds
        block = fx.Uint32(fx.block_idx.x)
        start, place = block // units * units, block % units
        total = fx.Uint32(self.arguments.bands) * (self.config.world * self.config.columns)
        here = fx.min(total - start, fx.Uint32(units))
        xcd = place % xcds
        return start + xcd * (here // xcds) + fx.min(xcd, here % xcds) + place // xcds

    def _chunk_major(self, number):
        """(distance of the destination, band, column of tiles): chunk by chunk, destination by destination."""
        world, columns = self.config.world, self.config.columns
        turn, column = number // columns, number % columns
        self.chunk = _Chunk(self.arguments, turn // world)
        turn = turn - self.chunk.start * world
        distance = self.chunk.quotient(turn)
        return distance, self.chunk.start + turn - distance * self.chunk.size, column

    def _striped(self, number):
        """The same with destinations that change every `stripe` columns of a band."""
        world, columns, stripe = self.config.world, self.config.columns, self.config.stripe
        band, place = number // (world * columns), number % (world * columns)
        group, place = place // (world * stripe), place % (world * stripe)
        distance, rest = place // stripe, place % stripe
        width = columns % stripe
        if width:  # the last group is narrower
            narrow = group == columns // stripe
            distance = narrow.select(place // width, distance)
            rest = narrow.select(place % width, rest)
        return distance, band, group * stripe + rest

    def chunk_of_dest(self):
        """The chunk as the destination has it: a short slice ends early."""
        tile_m, m = self.config.gemm.tile.m, fx.Uint32(self.arguments.m)
        chunk = self.chunk
        end = fx.min(self.slice_start + fx.Uint32(self.arguments.slice_rows), m)
        chunk.row = self.slice_start + chunk.start * tile_m
        chunk.rows = fx.min(end - chunk.row, chunk.size * tile_m)
        chunk.bands = (chunk.rows + (tile_m - 1)) // tile_m
        return chunk


class _Chunk:
    """The run of bands that holds a band; `ChunkTable` is the same in Python."""

    def __init__(self, arguments, band):
        short, few = fx.Uint32(arguments.short_chunks), fx.Uint32(arguments.few)
        self.by_few, self.by_more = fx.Uint32(arguments.by_few), fx.Uint32(arguments.by_more)
        cut = short * few
        self.is_short = band < cut
        early, late = self._times(band, self.by_few), self._times(band - cut, self.by_more)
        self.number = self.is_short.select(early, short + late)
        self.start = self.is_short.select(early * few, cut + late * (few + 1))
        self.size = self.is_short.select(few, few + 1)

    def quotient(self, value):
        """value // size."""
        return self._times(value, self.is_short.select(self.by_few, self.by_more))

    @staticmethod
    def _times(value, reciprocal):
        return (value * reciprocal) >> RECIPROCAL_BITS


class WavePlace:
    """Lane and wave. `wave`, `m`, `n` are wave-uniform; row and group are the lane's coordinates in an MFMA operand."""

    def __init__(self, tile):
        tid = fx.Uint32(fx.thread_idx.x)
        self.lane = tid % WAVE_LANES
        self.wave = library.uniform(tid // WAVE_LANES)
        self.m, self.n = self.wave // tile.waves_n, self.wave % tile.waves_n
        self.row, self.group = self.lane % 16, self.lane // 16
