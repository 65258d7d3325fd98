# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The GEMM kernel, assembled.

Annotations of @fx.struct and @flyc.kernel are read as types, so this file does not postpone their evaluation.
"""

import flydsl.compiler as flyc
import flydsl.expr as fx

from mori_gemm_ar.kernels.device.buffers import Buffer
from mori_gemm_ar.kernels.gemm.operands import B_OPERANDS, WAVES, ARows, Lds
from mori_gemm_ar.kernels.gemm.pipeline import Pipeline
from mori_gemm_ar.kernels.gemm.place import TilePlace, WavePlace
from mori_gemm_ar.kernels.gemm.scaling import SCALINGS
from mori_gemm_ar.kernels.gemm.store import TileStore
from mori_gemm_ar.kernels.kernel import DeviceKernel
from mori_gemm_ar.layout import WAVE_LANES
from mori_gemm_ar.layout.gemm import GemmConfig

WAVES_PER_SIMD = 2  # one workgroup of eight waves fills a compute unit's LDS, so 256 registers are free


@fx.struct
class GemmArguments:
    """Kernel arguments in order. Layouts are those of the config's recipe and b_layout."""

    a: fx.Int64  # e4m3fn [m, K]
    b: fx.Int64  # e4m3fn [N, K]
    c: fx.Int64  # bf16 [m, N]
    a_scale: fx.Int64
    b_scale: fx.Int64
    m: fx.Uint32


def multiply(config, arguments, place, wave, make_store):
    """Compute the tile at a place and store it with what make_store(place, wave, tiles) gives."""
    tile, k = config.tile, config.k
    tiles = tile.wave_n // 16
    a_rows = Buffer(arguments.a + fx.Int64(place.row) * k, place.rows * k)
    b_rows = Buffer(arguments.b + fx.Int64(place.column) * k, place.columns * k)
    lds = Lds(config)
    a = ARows(a_rows, wave, k, tile.m, lds, 0)
    b = B_OPERANDS[config.b_layout](b_rows, wave, k, tile.n, lds, 2 * a.nbytes, tiles)
    scaling = SCALINGS[config.recipe](arguments, config, place, wave, tiles)
    total = Pipeline(config, a, b, scaling).run()
    store = make_store(place, wave, tiles)
    store.store(scaling.finish(total))


def exact_store(config, address):
    """A maker of stores of bf16 to rows of N elements from an address on."""
    n = config.n

    def make(place, wave, tiles):
        return TileStore(address, 2 * n, place.rows, place.columns, wave, tiles, ragged=n % config.tile.n != 0)

    return make


def gemm_kernel(config: GemmConfig) -> DeviceKernel:
    """The kernel of a config for any m > 0. Grid: ceil(m / tile_m) * ceil(N / tile_n) workgroups of eight waves."""
    tile, n = config.tile, config.n

    @flyc.kernel(name=config.kernel_name, known_block_size=[WAVES * WAVE_LANES, 1, 1])
    def kernel(arguments: GemmArguments):
        place, wave = TilePlace(tile, n, arguments.m), WavePlace(tile)
        address = arguments.c + fx.Int64(place.row) * (2 * n) + fx.Int64(place.column) * 2
        multiply(config, arguments, place, wave, exact_store(config, address))

    return DeviceKernel(config.kernel_name, kernel, GemmArguments, WAVES * WAVE_LANES, WAVES_PER_SIMD)
