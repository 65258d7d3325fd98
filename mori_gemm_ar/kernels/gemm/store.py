# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Accumulators to bf16 in memory: 16 bytes per lane, adjacent lanes on one row."""

from __future__ import annotations

import flydsl.expr as fx

from mori_gemm_ar.kernels.device import assembly
from mori_gemm_ar.kernels.device.buffers import Buffer
from mori_gemm_ar.kernels.gemm.place import WAVE_M

_NOWHERE = 0x40000000  # a byte offset past the end of every tile, and so are those of the rows after it


class TileStore:
    """Writes a wave's part of a tile of bf16 [rows, columns] that starts at `address`, `pitch` bytes from row to row.

    Rows from `rows` on and columns from `columns` (a multiple of 16) on are left alone.
    """

    def __init__(self, address, pitch, rows, columns, wave, tiles, ragged):
        self.buffer = Buffer(address, rows * pitch)
        self.pitch, self.tiles, self.wave = pitch, tiles, wave
        self.paired = tiles == 4
        # Four neighbours are 8 bytes: lanes 2 i and 2 i + 1 swap halves, and the odd one takes the next row.
        self.odd = wave.row % 2 == 1
        row = wave.m * WAVE_M + 4 * wave.group
        lane_column = tiles * (wave.row - wave.row % 2) if self.paired else tiles * wave.row
        column = wave.n * (16 * tiles) + lane_column
        if self.paired:
            row = row + wave.row % 2
        self.offset = row * pitch + column * 2
        if ragged:
            self.offset = (column < columns).select(fx.Int32(self.offset), fx.Int32(_NOWHERE))

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

    def _put(self, words, row):
        self.buffer.store(fx.Vector.from_elements(words), self.offset + row * self.pitch)
