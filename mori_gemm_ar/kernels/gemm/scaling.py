# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The three recipes: what is loaded for each K step, how a fragment pair is multiplied, what the end still scales.

In an accumulator of fragments (i, t), element r of lane 16 * group + row is C[16 i + 4 group + r, tiles * row + t] of
the wave's rows and columns.
"""

from __future__ import annotations

import flydsl.expr as fx

from mori_gemm_ar.kernels.device import assembly, library
from mori_gemm_ar.kernels.device.buffers import Buffer
from mori_gemm_ar.kernels.gemm.place import WAVE_M
from mori_gemm_ar.layout.gemm_terms import K_STEP, MX_BLOCK, MX_ROWS, SCALE_BLOCK, Recipe

_E4M3 = 0  # format code of both MFMA operands
_LAG = 2  # MFMAs that are issued before a product is used: by then it is there


def mfma(a, b, c, byte_a=0, scale_a=None, byte_b=0, scale_b=None):
    """c + a b of two 16 x 128 fragments, scaled by byte `byte_a` of each lane's scale_a and likewise for b."""
    zero = fx.Int32(0)
    scales = (byte_a, zero if scale_a is None else scale_a, byte_b, zero if scale_b is None else scale_b)
    kind = fx.Vector.make_type(4, fx.Float32)
    return fx.Vector(fx.rocdl.mfma_scale_f32_16x16x128_f8f6f4(kind, [a, b, c, _E4M3, _E4M3, *scales]))


class PerToken:
    """PTPC: nothing during the sum; at the end one factor for each row and column."""

    loads = 0  # vector loads of one step

    def __init__(self, arguments, config, place, wave, tiles):
        rows, columns = place.rows * 4, place.columns * 4
        self.a = Buffer(arguments.a_scale + fx.Int64(place.row) * 4, rows, align=4)
        self.b = Buffer(arguments.b_scale + fx.Int64(place.column) * 4, columns, align=4)
        self.row = (wave.m * WAVE_M + 4 * wave.group) * 4
        self.column = (wave.n * (16 * tiles) + tiles * wave.row) * 4
        self.tiles = tiles

    def load(self, step):
        """Start to load the scales of a K step; carried values."""
        return []

    def begin(self, loaded):
        """Factors of the step that starts."""
        return loaded

    def multiply(self, accumulators, at, a, b, factors, i):
        """Add the product of a pair of fragments, of which `i` is the row fragment, to accumulator `at`."""
        accumulators[at] = mfma(a, b, accumulators[at])

    def settle(self, accumulators):
        """End what multiply() has begun."""

    def finish(self, accumulators):
        """Scaled sums."""
        columns = [self.b.load(fx.Float32, 4, self.column + 16 * j) for j in range(self.tiles // 4)]
        columns = [column[j] for column in columns for j in range(4)]
        for i in range(WAVE_M // 16):
            factors = self.a.load(fx.Float32, 4, self.row + 64 * i)
            for t, column in enumerate(columns):
                at = i * self.tiles + t
                accumulators[at] = accumulators[at] * (factors * column)
        return accumulators


class BlockScale(PerToken):
    """BLOCKSCALE: each K block on its own, then one fused multiply-add with the product of its two scales.

    The wave's 64 columns lie in one block of B, so that scale is one scalar. Rows past the end of A are scaled by
    whatever lies behind: nobody stores them.
    """

    loads = WAVE_M // 16

    def __init__(self, arguments, config, place, wave, tiles):
        blocks = config.k // K_STEP
        m = arguments.m
        self.last, self.pitch = blocks - 1, m * 4
        self.a = Buffer(arguments.a_scale + fx.Int64(place.row) * 4, (m * blocks - place.row) * 4, align=4)
        self.row = (wave.m * WAVE_M + 4 * wave.group) * 4
        column = fx.min((place.column + wave.n * (16 * tiles)) // SCALE_BLOCK, fx.Uint32((config.n - 1) // SCALE_BLOCK))
        self.b = arguments.b_scale + fx.Int64(column) * (4 * blocks)
        self.pending = []

    def load(self, step):
        step = fx.min(fx.Uint32(step), fx.Uint32(self.last))
        rows = [self.a.load(fx.Float32, 4, self.row + 64 * i, step * self.pitch) for i in range(WAVE_M // 16)]
        return [*rows, library.load_scalar_f32(self.b + fx.Int64(step * 4))]

    def begin(self, loaded):
        *rows, block = loaded
        return [factors * block for factors in rows]

    def multiply(self, accumulators, at, a, b, factors, i):
        # Held here, or the compiler splits packed operations behind an MFMA in two.
        product = assembly.stay(mfma(a, b, fx.Vector.filled(4, 0.0, fx.Float32)))
        assembly.keep_order()
        self.pending.append((at, product, factors[i]))
        if len(self.pending) > _LAG:
            self._add(accumulators)

    def settle(self, accumulators):
        while self.pending:
            self._add(accumulators)
        accumulators[:] = [assembly.stay(total) for total in accumulators]

    def _add(self, accumulators):
        at, product, factors = self.pending.pop(0)
        accumulators[at] = fx.math.fma(product, factors, accumulators[at])
        assembly.keep_order()

    def finish(self, accumulators):
        return accumulators


class Mx(PerToken):
    """MXFP8: the scaled MFMA takes exponents. One register holds those of the wave's four row fragments.

    Lane 16 s + row carries block s of the K step. All columns of a lane lie in one block of B: one byte for all of
    them. Rows and columns past the end get exponents of others, or zeros: nobody stores them.
    """

    loads = 2

    def __init__(self, arguments, config, place, wave, tiles):
        blocks = config.k // MX_BLOCK
        groups = (arguments.m + (MX_ROWS - 1)) // MX_ROWS
        self.last, self.pitch = config.k // K_STEP - 1, groups * (4 * MX_ROWS)
        group = place.row // MX_ROWS
        self.a = Buffer(arguments.a_scale + fx.Int64(group) * MX_ROWS, (groups * blocks - group) * MX_ROWS, align=4)
        self.row = wave.group * groups * MX_ROWS + wave.m * MX_ROWS + wave.row * 4
        first = place.column // MX_BLOCK
        panels = -(-config.n // MX_BLOCK)
        self.b = Buffer(arguments.b_scale + fx.Int64(first) * blocks, (panels - first) * blocks, align=1)
        self.column = (wave.n * (16 * tiles) + wave.row * tiles) // MX_BLOCK * blocks + wave.group

    def load(self, step):
        step = fx.min(fx.Uint32(step), fx.Uint32(self.last))
        rows = self.a.load(fx.Int32, 1, self.row, step * self.pitch)
        columns = self.b.load(fx.Uint8, 1, self.column, step * (K_STEP // MX_BLOCK))
        return [rows, fx.Int32(columns)]

    def multiply(self, accumulators, at, a, b, factors, i):
        rows, columns = factors
        accumulators[at] = mfma(a, b, accumulators[at], i, rows, 0, columns)

    def finish(self, accumulators):
        return accumulators


SCALINGS = {Recipe.PTPC: PerToken, Recipe.BLOCKSCALE: BlockScale, Recipe.MXFP8: Mx}
