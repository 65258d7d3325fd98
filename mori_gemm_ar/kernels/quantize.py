# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Activations to e4m3fn with block scales, in the layouts that the GEMM reads.

A wave takes four rows of one K step of 128: 16 lanes for each row, eight elements for each lane. The largest magnitude
is taken on the bits as unsigned integers, so that NaN and infinity win: such a block dequantises to NaN, and no other
does. `quantize_reference` in the op's package is the same arithmetic in torch.

Annotations of @fx.struct and @flyc.kernel are read as types, so this file does not postpone their evaluation.
"""

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from mori_gemm_ar.kernels.device import assembly, library
from mori_gemm_ar.kernels.device.buffers import Buffer
from mori_gemm_ar.kernels.kernel import DeviceKernel
from mori_gemm_ar.layout import WAVE_LANES
from mori_gemm_ar.layout.gemm import QUANTIZE_ROWS, QuantizeConfig
from mori_gemm_ar.layout.gemm_terms import (
    E4M3_INVERSE_MAX,
    K_STEP,
    MX_BLOCK,
    MX_EXPONENT_SHIFT,
    MX_NAN,
    MX_ROUND_UP,
    MX_ROWS,
    SCALE_FLOOR,
    Recipe,
)

_WAVE_ROWS = 4
_THREADS = QUANTIZE_ROWS // _WAVE_ROWS * WAVE_LANES
_ELEMENTS = 8  # of one lane
_ABSOLUTE = 0x7FFFFFFF
_INFINITE = 0x7F800000
_NOWHERE = -1  # a byte offset past the end of every buffer


@fx.struct
class QuantizeArguments:
    """Kernel arguments in order."""

    x: fx.Int64  # bf16 [m, K]
    out: fx.Int64  # e4m3fn [m, K]
    scale: fx.Int64  # see Recipe
    m: fx.Uint32


class _Place:
    """The lane's block of eight elements: row, K step, and 16 lanes of one row, `part` of them."""

    def __init__(self, k):
        tid, block = fx.Uint32(fx.thread_idx.x), fx.Uint32(fx.block_idx.x)
        steps = k // K_STEP
        self.step, self.rows_at = block % steps, block // steps
        lane = tid % WAVE_LANES
        self.wave = library.uniform(tid // WAVE_LANES)
        self.quarter, self.part = lane // 16, lane % 16
        self.column = self.step * K_STEP + self.part * _ELEMENTS


def _largest(bits, lanes):
    """Maximum of unsigned words over aligned groups of 4 or 16 lanes."""
    if lanes == 4:
        for other in (assembly.swap_neighbours, assembly.swap_pairs):
            bits = fx.max(bits, fx.Uint32(other(bits)))
        return bits
    for by in (8, 4, 2, 1):
        bits = fx.max(bits, fx.Uint32(assembly.rotate_in_row(bits, by)))
    return bits


class _Block1x128:
    """fp32 scale of 128 elements: largest / 448, at least 2^-126 so that its inverse is finite."""

    lanes = 16

    def __init__(self, arguments, config, place):
        m = fx.Uint32(arguments.m)
        self.first, self.inside = place.rows_at * QUANTIZE_ROWS, place.wave * _WAVE_ROWS + place.quarter
        row = self.first + self.inside
        self.scale = Buffer(arguments.scale, m * (4 * (config.k // K_STEP)), align=4)
        writes = (place.part == 0) & (row < m)
        self.at = writes.select(fx.Int32((place.step * m + row) * 4), fx.Int32(_NOWHERE))

    def scale_and_inverse(self, largest):
        scale = largest.bitcast(fx.Float32) * fx.Float32(E4M3_INVERSE_MAX)
        # As unsigned words, so that NaN passes.
        scale = fx.max(scale.bitcast(fx.Uint32), fx.Float32(SCALE_FLOOR).bitcast(fx.Uint32)).bitcast(fx.Float32)
        return scale, fx.Float32(1.0) / scale

    def put(self, scale):
        self.scale.store(scale.ir_value(), self.at)


class _Block1x32:
    """Exponent of 32 elements: the smallest power of two that keeps them within 448."""

    lanes = 4

    def __init__(self, arguments, config, place):
        share = MX_ROWS // QUANTIZE_ROWS
        group, inside = place.rows_at // share, place.rows_at % share * _WAVE_ROWS + place.wave
        self.first, self.inside = group * MX_ROWS, place.quarter * 16 + inside
        groups = (fx.Uint32(arguments.m) + (MX_ROWS - 1)) // MX_ROWS
        self.scale = Buffer(arguments.scale, groups * (MX_ROWS * (config.k // MX_BLOCK)), align=1)
        block = place.step * (K_STEP // MX_BLOCK) + place.part // self.lanes
        at = (block * groups + group) * MX_ROWS + inside * 4 + place.quarter
        self.at = (place.part % self.lanes == 0).select(fx.Int32(at), fx.Int32(_NOWHERE))

    def scale_and_inverse(self, largest):
        exponent = (largest + MX_ROUND_UP) >> 23
        exponent = fx.max(exponent, fx.Uint32(MX_EXPONENT_SHIFT)) - MX_EXPONENT_SHIFT
        inverse = (254 - exponent) << 23
        finite = largest < _INFINITE
        exponent = finite.select(exponent, fx.Uint32(MX_NAN))
        return exponent, finite.select(inverse, fx.Uint32(_ABSOLUTE)).bitcast(fx.Float32)

    def put(self, exponent):
        self.scale.store(fx.Uint8(exponent).ir_value(), self.at)


_BLOCKS: dict[Recipe, Any] = {Recipe.BLOCKSCALE: _Block1x128, Recipe.MXFP8: _Block1x32}


def quantize_kernel(config: QuantizeConfig) -> DeviceKernel:
    """The kernel of a config for any m > 0. Grid: config.blocks(m) workgroups of four waves."""

    @flyc.kernel(name=config.kernel_name, known_block_size=[_THREADS, 1, 1])
    def kernel(arguments: QuantizeArguments):
        place = _Place(config.k)
        block = _BLOCKS[config.recipe](arguments, config, place)
        # Rows past the end read as zeros and are not stored.
        rows = fx.min(fx.Uint32(arguments.m) - block.first, fx.Uint32(MX_ROWS))
        start = fx.Int64(block.first) * config.k
        x = Buffer(arguments.x + start * 2, rows * (2 * config.k))
        out = Buffer(arguments.out + start, rows * config.k)
        at = block.inside * config.k + place.column
        values = x.load(fx.Int32, 4, at * 2).bitcast(fx.BFloat16).to(fx.Float32)
        magnitudes = [values[i].bitcast(fx.Uint32) & _ABSOLUTE for i in range(_ELEMENTS)]
        largest = magnitudes[0]
        for magnitude in magnitudes[1:]:
            largest = fx.max(largest, magnitude)
        scale, inverse = block.scale_and_inverse(_largest(largest, block.lanes))
        scaled = [values[i] * inverse for i in range(_ELEMENTS)]
        words = [assembly.fp8_pack(scaled[half : half + 4]) for half in (0, 4)]
        out.store(fx.Vector.from_elements(words), at)
        block.put(scale)

    return DeviceKernel(config.kernel_name, kernel, QuantizeArguments, _THREADS)
