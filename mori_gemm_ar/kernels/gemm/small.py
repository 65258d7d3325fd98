# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The GEMM for up to 64 rows: 16 columns for each workgroup, so that many of them read B, each byte once.

Wave w multiplies K steps w, w + 8, ...; its operands go from memory to registers. The waves' sums meet in LDS and are
added in the order of the waves, in one workgroup: the result of a row does not depend on how many rows there are.

Annotations of @fx.struct and @flyc.kernel are read as types, so this file does not postpone their evaluation.
"""

import flydsl.compiler as flyc
import flydsl.expr as fx

from mori_gemm_ar.kernels.device import library
from mori_gemm_ar.kernels.device.assembly import Barrier
from mori_gemm_ar.kernels.device.buffers import Buffer
from mori_gemm_ar.kernels.gemm.kernel import GemmArguments
from mori_gemm_ar.kernels.gemm.operands import WAVES
from mori_gemm_ar.kernels.gemm.scaling import mfma
from mori_gemm_ar.kernels.kernel import DeviceKernel
from mori_gemm_ar.layout import WAVE_LANES
from mori_gemm_ar.layout.gemm import SmallGemmConfig
from mori_gemm_ar.layout.gemm_terms import K_STEP, MX_BLOCK, MX_ROWS, N_UNIT, SCALE_BLOCK, SHUFFLE_K, BLayout, Recipe

_HALVES = (0, SHUFFLE_K)  # a lane's two runs of 16 k


class _Lane:
    """Coordinates: wave, lane, and row and group in an MFMA operand; the workgroup's first column."""

    def __init__(self):
        tid = fx.Uint32(fx.thread_idx.x)
        self.tid, self.lane = tid, tid % WAVE_LANES
        self.wave = library.uniform(tid // WAVE_LANES)
        self.row, self.group = self.lane % 16, self.lane // 16
        self.column = fx.Uint32(fx.block_idx.x) * N_UNIT


class _Fragments:
    """A step's operands straight from memory: one fragment of B, one of A for each 16 rows."""

    def __init__(self, arguments, config, lane):
        k = config.k
        self.tiles = config.rows.value // 16
        self.a = Buffer(arguments.a, fx.Uint32(arguments.m) * k)
        self.a_rows = [(lane.row + 16 * i) * k + lane.group * 16 for i in range(self.tiles)]
        self.b = Buffer(arguments.b + fx.Int64(lane.column) * k, N_UNIT * k)
        if config.b_layout is BLayout.PRESHUFFLED:
            self.b_lane, self.b_half, self.b_step = lane.lane * 16, 16 * SHUFFLE_K, 16 * K_STEP
        else:
            self.b_lane, self.b_half, self.b_step = lane.row * k + lane.group * 16, SHUFFLE_K, K_STEP

    def load(self, step):
        """[B, A for rows 0-15, A for rows 16-31, ...]."""
        b = [self.b.load(fx.Int32, 4, self.b_lane + half * self.b_half, step * self.b_step) for half in range(2)]
        rows = [[self.a.load(fx.Int32, 4, row + half, step * K_STEP) for half in _HALVES] for row in self.a_rows]
        return [low.shuffle(high, list(range(8))) for low, high in (b, *rows)]


class _BlockScale:
    """Each K block on its own, scaled by its two scales and added, as in the tile kernel."""

    def __init__(self, arguments, config, lane):
        blocks = config.k // SCALE_BLOCK
        m = fx.Uint32(arguments.m)
        self.pitch = m * 4
        self.a = Buffer(arguments.a_scale, m * (4 * blocks), align=4)
        self.rows = [(lane.row + 16 * i) * 4 for i in range(config.rows.value // 16)]
        self.b = arguments.b_scale + fx.Int64(lane.column // SCALE_BLOCK) * (4 * blocks)

    def load(self, step):
        rows = [self.a.load(fx.Float32, 1, row, step * self.pitch) for row in self.rows]
        return [*rows, library.load_scalar_f32(self.b + fx.Int64(step * 4))]

    def multiply(self, total, b, a, scales, i):
        block = mfma(b, a, fx.Vector.filled(4, 0.0, fx.Float32))
        factor = fx.Vector.filled(4, scales[i] * scales[-1], fx.Float32)
        return fx.math.fma(block, factor, total)


class _Mx:
    """Exponents for the scaled MFMA; one register holds those of all rows."""

    def __init__(self, arguments, config, lane):
        blocks = config.k // MX_BLOCK
        per_step = K_STEP // MX_BLOCK
        self.per_step = per_step
        self.a = Buffer(arguments.a_scale, MX_ROWS * blocks, align=4)
        self.row = lane.group * MX_ROWS + lane.row * 4
        self.b = Buffer(arguments.b_scale + fx.Int64(lane.column // MX_BLOCK) * blocks, blocks, align=1)
        self.column = lane.group

    def load(self, step):
        rows = self.a.load(fx.Int32, 1, self.row, step * (self.per_step * MX_ROWS))
        return [rows, fx.Int32(self.b.load(fx.Uint8, 1, self.column, step * self.per_step))]

    def multiply(self, total, b, a, scales, i):
        rows, columns = scales
        return mfma(b, a, total, 0, columns, i, rows)


_SCALINGS = {Recipe.BLOCKSCALE: _BlockScale, Recipe.MXFP8: _Mx}


class _WaveSums:
    """fp32 [wave][row][16 columns] in LDS."""

    def __init__(self, rows):
        self.rows = rows
        words = WAVES * rows * N_UNIT
        self.base = fx.SharedAllocator().allocate(fx.Array[fx.Float32, words, 16]).peek().ptr

    def put(self, lane, totals):
        """This wave's accumulators: lane 16 * group + row has columns 4 * group + 0..3 of that row."""
        first = (lane.wave * self.rows + lane.row) * N_UNIT + lane.group * 4
        for i, total in enumerate(totals):
            fx.generic_store(self.base + fx.Int32(first + i * (16 * N_UNIT)), total)

    def get(self, row, column):
        """Eight neighbours, summed in the order of the waves."""
        total = None
        for wave in range(WAVES):
            at = self.base + fx.Int32((row + wave * self.rows) * N_UNIT + column)
            parts = [fx.generic_load(at + 4 * half, dtype=fx.Float32, count=4) for half in range(2)]
            total = parts if total is None else [t + p for t, p in zip(total, parts, strict=True)]
        return total


class _SmallGemm:
    """One workgroup's work."""

    def __init__(self, config, arguments):
        self.config, self.arguments = config, arguments
        self.lane = _Lane()
        self.fragments = _Fragments(arguments, config, self.lane)
        self.scaling = _SCALINGS[config.recipe](arguments, config, self.lane)
        self.sums = _WaveSums(config.rows.value)

    @flyc.jit
    def run(self):
        load, load_scales, multiply = self.fragments.load, self.scaling.load, self.scaling.multiply
        totals = [fx.Vector.filled(4, 0.0, fx.Float32) for _ in range(self.fragments.tiles)]
        steps = fx.Int32(library.pin_uniform_u32(self.config.k // K_STEP))
        for step in range(fx.Int32(self.lane.wave), steps, fx.Int32(WAVES)):
            scales = load_scales(step)
            b, *rows = load(step)
            totals = [multiply(total, b, a, scales, i) for i, (total, a) in enumerate(zip(totals, rows, strict=True))]
        self.sums.put(self.lane, totals)
        Barrier.handover("sums", None)
        self.store()

    @flyc.jit
    def store(self):
        """Two lanes for each row, eight columns and 16 bytes each."""
        get = self.sums.get
        pitch, column = 2 * self.config.n, self.lane.tid % 2 * 8
        row = self.lane.tid // 2
        size = fx.Uint32(self.arguments.m) * pitch - self.lane.column * 2
        put = Buffer(self.arguments.c + fx.Int64(self.lane.column) * 2, size).store
        if self.lane.tid < 2 * self.config.rows.value:
            low, high = get(row, column)
            packed = low.shuffle(high, list(range(8))).to(fx.BFloat16).bitcast(fx.Int32)
            put(packed, row * pitch + column * 2)


def small_gemm_kernel(config: SmallGemmConfig) -> DeviceKernel:
    """The kernel of a config for 0 < m <= config.rows. Grid: N / 16 workgroups of eight waves."""

    @flyc.kernel(name=config.kernel_name, known_block_size=[WAVES * WAVE_LANES, 1, 1])
    def kernel(arguments: GemmArguments):
        _SmallGemm(config, arguments).run()

    return DeviceKernel(config.kernel_name, kernel, GemmArguments, WAVES * WAVE_LANES)
