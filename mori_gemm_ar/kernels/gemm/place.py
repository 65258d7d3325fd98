# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Where a workgroup and its lanes stand in C."""

from __future__ import annotations

import flydsl.expr as fx

from mori_gemm_ar.kernels.device import library
from mori_gemm_ar.layout import MI355X, WAVE_LANES

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


class WavePlace:
    """Lane and wave. `wave`, `m`, `n` are wave-uniform; row and group are the lane's coordinates in an MFMA operand."""

    def __init__(self, tile):
        tid = fx.Uint32(fx.thread_idx.x)
        self.lane = tid % WAVE_LANES
        self.wave = library.uniform(tid // WAVE_LANES)
        self.m, self.n = self.wave // tile.waves_n, self.wave % tile.waves_n
        self.row, self.group = self.lane % 16, self.lane // 16
