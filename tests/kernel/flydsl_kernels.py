# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Small FlyDSL kernels for whole-kernel tests and the emulator benchmark. No cache: each build_* compiles.

Annotations of @fx.struct and @flyc.kernel are read as types, so this file does not postpone their evaluation.
"""

import flydsl.compiler as flyc
import flydsl.expr as fx

from mori_gemm_ar.compile.build import build_kernel
from mori_gemm_ar.compile.store import CodeObject
from mori_gemm_ar.kernels.device.memory import ElementArray, PackArray
from mori_gemm_ar.kernels.kernel import DeviceKernel

WAVE = 64


def _build(function, name: str, arguments: type, threads: int) -> CodeObject:
    kernel = flyc.kernel(function, name=name, known_block_size=[threads, 1, 1])
    return build_kernel(DeviceKernel(name, kernel, arguments, threads), key=name)


# --- vector add ---

VECTOR_ADD_THREADS = 256


@fx.struct
class VectorAddArguments:
    a: fx.Int64
    b: fx.Int64
    c: fx.Int64
    n: fx.Uint32


def build_vector_add_branch() -> CodeObject:
    """c = a + b in fp32, one element per thread; a branch guards the ragged edge. Grid ceil(n / 256)."""

    def kernel(arguments: VectorAddArguments):
        a, b, c = (ElementArray(fx.Float32, address, 4) for address in (arguments.a, arguments.b, arguments.c))
        load_a, load_b, store = a.load, b.load, c.store
        index = fx.Uint32(fx.block_idx.x) * VECTOR_ADD_THREADS + fx.Uint32(fx.thread_idx.x)
        if index < arguments.n:
            store(index, load_a(index) + load_b(index))

    return _build(kernel, "vector_add_branch", VectorAddArguments, VECTOR_ADD_THREADS)


def build_vector_add_bounds() -> CodeObject:
    """c = a + b in fp32, one element per thread; buffer descriptors guard the ragged edge. Grid ceil(n / 256)."""

    def kernel(arguments: VectorAddArguments):
        nbytes = fx.Int64(arguments.n * 4)

        def resource(address):
            kind = fx.PointerType.get(fx.Float32.ir_type, fx.AddressSpace.Global, 4)
            pointer = fx.rocdl.make_buffer_ptr(fx.inttoptr(kind, address), num_records_bytes=nbytes)
            return fx.rocdl.get_buffer_rsrc(pointer)

        def load(address, offset):
            return fx.Float32(fx.rocdl.raw_ptr_buffer_load(fx.Float32.ir_type, resource(address), offset, 0))

        offset = (fx.Uint32(fx.block_idx.x) * VECTOR_ADD_THREADS + fx.Uint32(fx.thread_idx.x)) * 4
        total = load(arguments.a, offset) + load(arguments.b, offset)
        zero = fx.Int32(0).ir_value()
        fx.rocdl.raw_ptr_buffer_store(total.ir_value(), resource(arguments.c), offset.ir_value(), zero)

    return _build(kernel, "vector_add_bounds", VectorAddArguments, VECTOR_ADD_THREADS)


# --- RMS norm ---

RMS_NORM_THREADS = 256


@fx.struct
class RmsNormArguments:
    x: fx.Int64  # bf16 [rows, columns]
    weight: fx.Int64  # bf16 [columns]
    y: fx.Int64  # bf16 [rows, columns]
    columns: fx.Uint32  # a multiple of 8
    inverse_columns: fx.Float32
    epsilon: fx.Float32


def build_rms_norm() -> CodeObject:
    """y = x / sqrt(mean(x^2) + epsilon) * weight, one row for each block. Grid rows.

    fp32 throughout, one rounding at the end: lane sums, a butterfly over the wave, the waves' sums through LDS.
    """
    waves = RMS_NORM_THREADS // WAVE

    def kernel(arguments: RmsNormArguments):
        tid = fx.Int32(fx.thread_idx.x)
        row = fx.Int64(fx.Uint32(fx.block_idx.x) * arguments.columns) * 2
        x, y = PackArray(arguments.x + row), PackArray(arguments.y + row)
        load, load_weight, store = x.load, PackArray(arguments.weight).load, y.store
        packs = fx.Int32(arguments.columns // 8)

        square = fx.Vector.filled(8, 0.0, fx.Float32)
        for pack in range(tid, packs, RMS_NORM_THREADS):
            value = load(pack).bitcast(fx.BFloat16).to(fx.Float32)
            square = square + value * value
        total = square.reduce(fx.ReductionOp.ADD)
        for step in fx.range_constexpr(6):
            total = total + fx.gpu.shuffle_xor(total, 1 << step, WAVE)

        sums = fx.SharedAllocator().allocate(fx.Array[fx.Float32, waves, 16]).peek().ptr
        put = sums.__setitem__
        if tid % WAVE == 0:
            put(tid // WAVE, total)
        fx.gpu.barrier()
        total = sums[0]
        for wave in fx.range_constexpr(1, waves):
            total = total + sums[wave]
        scale = fx.math.rsqrt(total * arguments.inverse_columns + arguments.epsilon)

        for pack in range(tid, packs, RMS_NORM_THREADS):
            value = load(pack).bitcast(fx.BFloat16).to(fx.Float32)
            weight = load_weight(pack).bitcast(fx.BFloat16).to(fx.Float32)
            store(pack, (value * scale * weight).to(fx.BFloat16).bitcast(fx.Int32))

    return _build(kernel, "rms_norm", RmsNormArguments, RMS_NORM_THREADS)


# --- bf16 GEMM ---

GEMM_TILE = 128  # rows and columns of C for a block of four waves, 2 x 2
GEMM_TILE_K = 64
GEMM_THREADS = 256


@fx.struct
class GemmArguments:
    a: fx.Int64  # bf16 [M, K]
    b: fx.Int64  # bf16 [N, K]
    c: fx.Int64  # bf16 [M, N]
    n: fx.Uint32
    k: fx.Uint32


class _TileLoader:
    """Moves [128, 64] tiles of a row-major bf16 matrix into LDS: global to registers, then registers to LDS.

    An LDS row has 8 elements of padding, so that the 16 rows that a wave reads start in different banks.
    """

    ROW = GEMM_TILE_K + 8
    PER_THREAD = GEMM_TILE * GEMM_TILE_K // 8 // GEMM_THREADS
    ELEMENTS = GEMM_TILE * ROW

    def __init__(self, matrix, first_row, k, tid, lds):
        self.tile = PackArray(matrix + fx.Int64(first_row) * fx.Int64(k) * 2)
        packs_of_row = GEMM_TILE_K // 8
        row, column = tid // packs_of_row, tid % packs_of_row
        rows_apart = GEMM_THREADS // packs_of_row
        self.sources = [(row + rows_apart * i) * (k // 8) + column for i in range(self.PER_THREAD)]
        self.targets = [(row + rows_apart * i) * self.ROW + column * 8 for i in range(self.PER_THREAD)]
        self.lds = lds

    def load(self, k_pack):
        return [self.tile.load(source + k_pack) for source in self.sources]

    def store(self, packs):
        for target, pack in zip(self.targets, packs, strict=True):
            fx.generic_store(self.lds + fx.Int32(target), pack.bitcast(fx.BFloat16))

    def operand(self, row, k):
        """Eight consecutive k of one row: what a lane feeds into the 16x16x32 MFMA."""
        return fx.generic_load(self.lds + fx.Int32(row * self.ROW + k), dtype=fx.BFloat16, count=8)


def build_gemm_bf16() -> CodeObject:
    """C = A B^T in bf16 with fp32 accumulation. Grid (N / 128, M / 128); M, N multiples of 128, K of 64 and > 0.

    Each wave holds 64 x 64 of C as 4 x 4 MFMA tiles. The next K tile is on its way to registers while this one is
    multiplied. B goes in as the first operand, so a lane ends with four neighbours of one row of C.
    """
    tiles = GEMM_TILE // 2 // 16

    def kernel(arguments: GemmArguments):
        tid = fx.Uint32(fx.thread_idx.x)
        lane, wave = tid % WAVE, tid // WAVE
        first_m = fx.Uint32(fx.block_idx.y) * GEMM_TILE
        first_n = fx.Uint32(fx.block_idx.x) * GEMM_TILE
        shared = fx.SharedAllocator()
        lds = [shared.allocate(fx.Array[fx.BFloat16, _TileLoader.ELEMENTS, 16]).peek().ptr for _ in range(2)]
        a = _TileLoader(arguments.a, first_m, arguments.k, tid, lds[0])
        b = _TileLoader(arguments.b, first_n, arguments.k, tid, lds[1])
        load_a, load_b, store_a, store_b, operand_a, operand_b = a.load, b.load, a.store, b.store, a.operand, b.operand
        wave_m, wave_n = wave // 2 * (GEMM_TILE // 2), wave % 2 * (GEMM_TILE // 2)
        row, first_k = lane % 16, lane // 16 * 8
        kind = fx.Vector.make_type(4, fx.Float32)
        barrier, mfma = fx.gpu.barrier, fx.rocdl.mfma_f32_16x16x32_bf16

        def multiply(total):
            for k in range(0, GEMM_TILE_K, 32):
                rows = [operand_a(wave_m + 16 * i + row, first_k + k) for i in range(tiles)]
                columns = [operand_b(wave_n + 16 * j + row, first_k + k) for j in range(tiles)]
                total = [
                    fx.Vector(mfma(kind, [columns[j], rows[i], total[i * tiles + j]]))
                    for i in range(tiles)
                    for j in range(tiles)
                ]
            return total

        store_a(load_a(0))
        store_b(load_b(0))
        barrier()
        total = [fx.Vector.filled(4, 0.0, fx.Float32) for _ in range(tiles * tiles)]
        k_packs = fx.Int32(arguments.k // 8)
        for next_pack in range(GEMM_TILE_K // 8, k_packs, GEMM_TILE_K // 8):
            next_a, next_b = load_a(fx.Uint32(next_pack)), load_b(fx.Uint32(next_pack))
            total = multiply(total)
            barrier()  # all waves have read this tile
            store_a(next_a)
            store_b(next_b)
            barrier()  # the next tile is there
        total = multiply(total)

        c = arguments.c + fx.Int64(first_m) * fx.Int64(arguments.n) * 2
        for i in fx.range_constexpr(tiles):
            for j in fx.range_constexpr(tiles):
                m, n = wave_m + 16 * i + row, first_n + wave_n + 16 * j + lane // 16 * 4
                at = fx.inttoptr(fx.PointerType.get(fx.Int8.ir_type, fx.AddressSpace.Global, 8), c)
                four = total[i * tiles + j].to(fx.BFloat16)
                fx.generic_store(at + fx.Int64((m * arguments.n + n) * 2), four)

    return _build(kernel, "gemm_bf16", GemmArguments, GEMM_THREADS)
