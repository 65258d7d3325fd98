# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Accumulators to memory, eight columns per lane, adjacent lanes on one row: bf16, or e4m3 with scales."""

from __future__ import annotations

import flydsl.expr as fx

from mori_gemm_ar.kernels.device import assembly
from mori_gemm_ar.kernels.device.buffers import Buffer
from mori_gemm_ar.kernels.device.wire import Alternates, MxScale, Quads, magnitude, quantise
from mori_gemm_ar.kernels.gemm.place import WAVE_M
from mori_gemm_ar.layout.wire_terms import GROUP, RUN

_NOWHERE = 0x40000000  # a byte offset past the end of every tile, and so are those of the rows after it


class _Lanes:
    """Which rows and columns of a wave's part of a tile each lane ends with: eight neighbours of one row."""

    def __init__(self, wave, tiles):
        self.tiles, self.wave = tiles, wave
        self.paired = tiles == 4
        # Four neighbours are 8 bytes: lanes 2 i and 2 i + 1 swap halves, and the odd one takes the next row.
        self.odd = wave.row % 2 == 1
        row = wave.m * WAVE_M + 4 * wave.group
        lane_column = tiles * (wave.row - wave.row % 2) if self.paired else tiles * wave.row
        self.column = wave.n * (16 * tiles) + lane_column
        self.row = row + wave.row % 2 if self.paired else row

    def store(self, accumulators):
        """Round to bf16 and store."""
        for i in range(WAVE_M // 16):
            rows = [self._packed(accumulators, i, r) for r in range(4)]
            if self.paired:
                for r in (0, 2):
                    self._put(self._swapped(rows[r], rows[r + 1]), 16 * i + r)
            else:
                for r in range(4):
                    self._put(rows[r], 16 * i + r)

    def _packed(self, accumulators, i, r):
        """Words of one row."""
        values = [accumulators[i * self.tiles + t][r] for t in range(self.tiles)]
        packed = fx.Vector.from_elements(values).to(fx.BFloat16).bitcast(fx.Int32)
        return [packed[word] for word in range(self.tiles // 2)]

    def _swapped(self, even_row, odd_row):
        """Even lanes get eight neighbours of the first row, odd lanes of the second."""
        odd = self.odd
        words = zip(even_row, odd_row, strict=True)
        mine, theirs = [], []
        for even, other in words:
            mine.append(odd.select(other, even))
            theirs.append(assembly.swap_neighbours(odd.select(even, other)))
        first = [odd.select(t, m) for m, t in zip(mine, theirs, strict=True)]
        second = [odd.select(m, t) for m, t in zip(mine, theirs, strict=True)]
        return first + second


class TileStore(_Lanes):
    """Writes a wave's part of a tile of bf16 [rows, columns] that starts at `address`, `pitch` bytes from row to row.

    Rows from `rows` on and columns from `columns` (a multiple of 16) on are left alone.
    """

    def __init__(self, address, pitch, rows, columns, wave, tiles, ragged):
        super().__init__(wave, tiles)
        self.buffer, self.pitch = Buffer(address, rows * pitch), pitch
        self.offset = self.row * pitch + self.column * 2
        if ragged:
            self.offset = (self.column < columns).select(fx.Int32(self.offset), fx.Int32(_NOWHERE))

    def _put(self, words, row):
        self.buffer.store(fx.Vector.from_elements(words), self.offset + row * self.pitch)


class WireStore(_Lanes):
    """Writes a wave's part of a tile as e4m3 with a scale for each 32 columns, rounded to bf16 first.

    A band is one wire slice from `address` on: `rows` rows of N codes, N a multiple of 32, then their scales. The tile
    begins at column `first` and has `columns`. Rows past M are written too: who reads a band knows how many count.
    """

    def __init__(self, address, n, rows, first, columns, wave, tiles, ragged):
        super().__init__(wave, tiles)
        self.n, self.elements = n, rows * n
        self.buffer = Buffer(address, self.elements // GROUP * (GROUP + 1), align=1)
        self.group = Alternates if self.paired else Quads
        self.place = self.row * n + (first + self.column)
        self.there = self.column < columns if ragged else None
        self.leads = self.column % GROUP == 0
        if ragged:
            self.leads = self.leads & self.there

    def _put(self, words, row):
        values = fx.Vector.from_elements(words).bitcast(fx.BFloat16).to(fx.Float32)
        values = [values[i] for i in range(RUN)]
        scale = MxScale(self.group.largest(magnitude(values)))
        at = self.place + row * self.n
        place = at if self.there is None else self.there.select(fx.Int32(at), fx.Int32(_NOWHERE))
        self.buffer.store(fx.Vector.from_elements(quantise(values, scale)), place)
        # The group's scale comes from one lane; the others' go past the end.
        there = self.leads.select(fx.Int32(self.elements + at // GROUP), fx.Int32(_NOWHERE))
        self.buffer.store(fx.Uint8(scale.code).ir_value(), there)
