# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Microseconds of each phase. Pure functions of shapes and Values; docs/model.md derives each formula."""

from __future__ import annotations

import math
from enum import Enum

from mori_gemm_ar.layout.allreduce import AllReduceConfig, select_config
from mori_gemm_ar.layout.dtypes import DType
from mori_gemm_ar.layout.geometry import lsa_geometry
from mori_gemm_ar.layout.machine import MI355X
from mori_gemm_ar.layout.ownership import PackOwnership
from mori_gemm_ar.layout.problem import AllReduceProblem
from mori_gemm_ar.layout.terms import PACK_BYTES, Stage, ceil_div
from mori_gemm_ar.model.terms import MX_BLOCK, OUT_BYTES, Layer, Quant, Tile, Wire
from mori_gemm_ar.model.tiles import TILES, TileGrid, waves
from mori_gemm_ar.model.values import Values

KB = 1e3  # bytes that 1 GB/s moves in a microsecond
MB = 1e6  # bytes that 1 TB/s moves in a microsecond
MAX_PUT_BYTES = 128 << 20  # of one put; larger transfers are cut
REDUCE_BLOCKS = MI355X.compute_units  # workgroups of the local reduce, each of which releases what it wrote


class Leg(Enum):
    """The two transfers of an all-reduce."""

    SCATTER = "scatter"  # partial sums to the owner of their rows
    GATHER = "gather"  # reduced rows to everybody


# --- GEMM ---


def wave_us(v: Values, quant: Quant, tile: Tile, k: int, short_store: bool = False) -> float:
    """One full wave of tiles: a fixed part and one that grows with K."""
    fixed, per_k = {
        Quant.PTPC: (v.wave_fixed_us, v.wave_k_ptpc_us),
        Quant.BLOCKSCALE: (v.wave_fixed_us, v.wave_k_blockscale_us),
        Quant.MXFP8: (v.wave_fixed_mxfp8_us, v.wave_k_mxfp8_us),
    }[quant]
    share = 1.0
    if tile != TILES[quant][0]:
        share = {Tile(256, 128): v.tile_256x128_share, Tile(128, 256): v.tile_128x256_share}[tile]
    return share * (fixed + per_k * k / 1024) + (v.wave_short_store_us if short_store else 0.0)


def gemm_us(v: Values, layer: Layer, tile: Tile, short_store: bool = False) -> float:
    """The plain GEMM kernel: whole waves over the compute units, a partial one at most of a wave's price."""
    tiles = TileGrid.of(layer, tile).tiles
    if not tiles:
        return 0.0
    return v.gemm_base_us + waves(tiles, v.wave_partial_share) * wave_us(v, layer.quant, tile, layer.k, short_store)


def fused_gemm_us(v: Values, layer: Layer, tile: Tile, short_store: bool = False) -> float:
    """The GEMM that counts its tiles and submits puts: plain, plus an epilogue that shrinks with the peers."""
    fewer = 1.0 - (layer.world - 1) / MI355X.links
    epilogue = v.epilogue_us * (1.0 - v.epilogue_links_share * fewer)
    plain = gemm_us(v, layer, tile, short_store)
    return plain + epilogue + v.epilogue_tile_us * TileGrid.of(layer, tile).tiles + scatter_quantize_us(v, layer)


def scatter_quantize_us(v: Values, layer: Layer) -> float:
    """What narrowing the product for an fp8 scatter adds; at share 1 as much as a pass of its own."""
    if layer.wire is not Wire.FP8:
        return 0.0
    nbytes = layer.m * layer.n * (OUT_BYTES + mx_bytes_per_element())
    return v.fp8_scatter_share * nbytes / (v.convert_rate_tbs * MB)


def peer_store_gemm_us(v: Values, layer: Layer, tile: Tile, stripe: int | None) -> float:
    """The GEMM that stores into the owners' windows. Its stores do not hide: a release holds up the cache.

    Bytes of the busiest link at the copy engines' rate, and one system-scope release for each tile.
    """
    grid = TileGrid.of(layer, tile)
    nbytes = leg_bytes(layer, grid.slices.slice_rows, Leg.SCATTER) * grid.imbalance(stripe)
    moved = nbytes / (link_rate_gbs(v, layer.world) * KB)
    return gemm_us(v, layer, tile) + moved + v.peer_store_tile_us * grid.tiles


# --- links ---


def link_rate_gbs(v: Values, world: int) -> float:
    """Payload rate of one link, pushed by copy engines; with fewer peers than links it is a guess."""
    return v.sdma_rate_gbs * (v.few_links_ratio if world - 1 < MI355X.links else 1.0)


def mx_bytes_per_element() -> float:
    """e4m3 and one e8m0 scale for 32 columns."""
    return 1.0 + 1.0 / MX_BLOCK


def leg_bytes(layer: Layer, rows: int, leg: Leg) -> int:
    """Bytes of `rows` rows on one leg. The fp8 gather alone has one fp32 scale a row, fp8 on both legs is OCP MX."""
    if layer.wire is Wire.BF16 or (layer.wire is Wire.FP8_GATHER and leg is Leg.SCATTER):
        return rows * layer.n * OUT_BYTES
    if layer.wire is Wire.FP8_GATHER:
        return rows * (layer.n + 4)
    return rows * (layer.n + ceil_div(layer.n, MX_BLOCK))


def more_puts(nbytes: float) -> int:
    """Puts after the first that a transfer of this size is cut into."""
    return max(math.ceil(nbytes / MAX_PUT_BYTES) - 1, 0)


def push_us(v: Values, world: int, nbytes: float) -> float:
    """One phase of the copy engines: a put of `nbytes` to every peer at once, drained and flagged."""
    if world == 1:
        return 0.0
    return v.sdma_phase_us + more_puts(nbytes) * v.sdma_put_us + nbytes / (link_rate_gbs(v, world) * KB)


def pull_us(v: Values, world: int, nbytes: float) -> float:
    """A gather by loads, widening on the way in: barrier, then `nbytes` from every peer at once."""
    if world == 1:
        return 0.0
    rate = v.lsa_rate_gbs * (v.few_links_ratio if world - 1 < MI355X.links else 1.0)
    return v.barrier_us + v.pull_base_us + nbytes / (rate * KB)


# --- local memory ---


def reduce_us(v: Values, layer: Layer, rows: int) -> float:
    """Read `world` slices, write one. A mixed-width reduce is taken at the rate of a conversion."""
    read = layer.world * leg_bytes(layer, rows, Leg.SCATTER)
    rate = v.convert_rate_tbs if layer.wire is Wire.FP8 else v.reduce_rate_tbs
    return v.reduce_base_us + (read + rows * layer.n * OUT_BYTES) / (rate * MB)


def quantize_us(v: Values, layer: Layer, rows: int) -> float:
    """Narrow the owner's rows for an fp8 gather; 0 on a bf16 wire."""
    if layer.wire is Wire.BF16:
        return 0.0
    nbytes = rows * layer.n * OUT_BYTES + leg_bytes(layer, rows, Leg.GATHER)
    return v.reduce_base_us + nbytes / (v.convert_rate_tbs * MB)


def dequantize_us(v: Values, layer: Layer, rows: int) -> float:
    """Widen the landed rows of the peers after an fp8 push; 0 on a bf16 wire."""
    if layer.wire is Wire.BF16:
        return 0.0
    nbytes = rows * layer.n * OUT_BYTES + leg_bytes(layer, rows, Leg.GATHER)
    return v.reduce_base_us + nbytes / (v.convert_rate_tbs * MB)


def releases_us(v: Values, releases: int, system: bool = False) -> float:
    """Cache writebacks add up over the device: linear in the wave-level releases that it executes."""
    return releases * (v.release_system_us if system else v.release_agent_us)


# --- standalone all-reduces of [m, n] bf16 ---


def lsa_trips(m: int, n: int, world: int, stage: Stage | None = None) -> tuple[AllReduceConfig, int, int]:
    """(config, trips of a thread's loop in one stage, bytes of one link and trip) of the load/store all-reduce."""
    problem = AllReduceProblem(world, m * n, DType.BF16)
    config = select_config(problem, MI355X, stage)
    geometry = lsa_geometry(problem, config, MI355X)
    items = problem.packs if config.stage is Stage.ONE else PackOwnership.of(problem).part
    lanes = geometry.blocks * geometry.threads
    return config, ceil_div(items, lanes), lanes * PACK_BYTES


def lsa_allreduce_us(v: Values, m: int, n: int, world: int, stage: Stage | None = None) -> float:
    """The load/store all-reduce as a graph replay. Its time goes in whole trips of the capped grid.

    Two stages: base + trips * 2 * bytes / rate + skew * (1 - 2^(1 - trips)); the waves drift apart within a few trips.
    """
    if world == 1:
        return v.graph_one_us
    config, trips, nbytes = lsa_trips(m, n, world, stage)
    rate = v.lsa_rate_gbs * (v.few_links_ratio if world - 1 < MI355X.links else 1.0)
    trip = nbytes / (rate * KB)
    if config.stage is Stage.ONE:
        return v.lsa_one_stage_us + trips * trip
    return v.lsa_base_us + trips * 2 * trip + v.lsa_skew_us * (1.0 - 0.5 ** max(trips - 1, 0))


def slice_bytes(m: int, n: int, world: int) -> float:
    """Bytes of one link and phase when [m, n] bf16 is cut evenly."""
    return m * n * OUT_BYTES / world


def sdma_allreduce_us(v: Values, m: int, n: int, world: int) -> float:
    """The copy-engine all-reduce as a graph replay: scatter, reduce, gather."""
    nbytes = slice_bytes(m, n, world)
    reduce = v.reduce_base_us + (world + 1) * nbytes / (v.reduce_rate_tbs * MB)
    return v.sdma_ar_us + 2 * push_us(v, world, nbytes) + reduce


def aiter_allreduce_us(v: Values, m: int, n: int, world: int) -> float:
    """aiter's custom all-reduce, a baseline: two phases at its own rate."""
    return v.aiter_ar_us + 2 * slice_bytes(m, n, world) / (v.aiter_ar_rate_gbs * KB)


def rccl_allreduce_us(v: Values, m: int, n: int, world: int) -> float:
    """RCCL's all-reduce, a baseline known from one reading."""
    return v.rccl_ar_us + 2 * slice_bytes(m, n, world) / (v.rccl_ar_rate_gbs * KB)
