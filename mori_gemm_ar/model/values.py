# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The numbers that the formulas take, each with its unit and the range outside of which a file is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def _us(meaning: str, high: float = 1000.0) -> Any:
    return field(metadata={"unit": "us", "low": 0.0, "high": high, "meaning": meaning})


def _rate(meaning: str, unit: str = "GB/s") -> Any:
    return field(metadata={"unit": unit, "low": 0.01, "high": 10_000.0, "meaning": meaning})


def _share(meaning: str) -> Any:
    return field(metadata={"unit": "share", "low": 0.0, "high": 1.0, "meaning": meaning})


def _ratio(meaning: str) -> Any:
    return field(metadata={"unit": "ratio", "low": 0.1, "high": 10.0, "meaning": meaning})


@dataclass(frozen=True, slots=True)
class Values:
    """All constants of one case. A rate in GB/s is 1000 bytes per microsecond, in TB/s a million."""

    # GEMM kernel
    gemm_base_us: float = _us("GEMM kernel without its waves: start, first fetch, end")
    wave_fixed_us: float = _us("one wave of tiles without its K loop, ptpc and blockscale, wide store")
    wave_k_ptpc_us: float = _us("one wave of 256x256 ptpc tiles, for each 1024 of K")
    wave_k_blockscale_us: float = _us("one wave of 128x256 blockscale tiles, for each 1024 of K")
    wave_fixed_mxfp8_us: float = _us("one wave of 256x256 mxfp8 tiles without its K loop")
    wave_k_mxfp8_us: float = _us("one wave of 256x256 mxfp8 tiles, for each 1024 of K")
    wave_partial_share: float = _share("of a wave's time that its first tile costs; the rest grows with its tiles")
    wave_short_store_us: float = _us("more for a wave that stores C two bytes at a time")
    tile_256x128_share: float = _share("wave of 256x128 tiles against one of 256x256")
    tile_128x256_share: float = _share("wave of 128x256 tiles against one of 256x256, ptpc and mxfp8")
    # Launches
    graph_one_us: float = _us("replay of a graph of one kernel, above the kernel's own time")
    graph_call_us: float = _us("one of many calls in a graph, above the kernel's own time")
    graph_layer_us: float = _us("replay of a graph of three or more kernels, above the sum of their times")
    # Fused GEMM
    epilogue_us: float = _us("counters, lock and put submission of a fused GEMM, whatever its size")
    epilogue_tile_us: float = _us("one tile's electing counter in a fused GEMM")
    epilogue_links_share: float = _share("of epilogue_us that shrinks with the number of peers")
    peer_store_tile_us: float = _us("system-scope release of one tile that was stored to a peer")
    rank_skew_share: float = _share("of a peer-storing GEMM's time that the last rank comes later")
    # Copy engines
    sdma_rate_gbs: float = _rate("payload of one link and direction, pushed by copy engines")
    sdma_phase_us: float = _us("one transfer phase without its bytes: one put to each peer, drain, flags")
    sdma_put_us: float = _us("each further put on the same queue")
    few_links_ratio: float = _ratio("link rate with fewer than seven peers against seven")
    put_hidden_share: float = _share("of a further put's cost that a second queue per peer hides")
    # Local kernels
    reduce_base_us: float = _us("a local streaming kernel without its bytes")
    reduce_rate_tbs: float = _rate("local reduce of world slices into one", "TB/s")
    convert_rate_tbs: float = _rate("quantise and dequantise, bytes read and written", "TB/s")
    # Compute units on the links
    barrier_us: float = _us("a cross-rank barrier kernel")
    pull_base_us: float = _us("pull of the peers' slices by loads, without its bytes and barrier")
    lsa_base_us: float = _us("two-stage load/store all-reduce without its trips")
    lsa_rate_gbs: float = _rate("payload of one link and direction, loaded by compute units")
    lsa_skew_us: float = _us("what waves drift apart in a long load/store all-reduce")
    lsa_one_stage_us: float = _us("one-stage load/store all-reduce without its trips")
    # Standalone all-reduces
    sdma_ar_us: float = _us("copy-engine all-reduce as a graph, above its three phases")
    aiter_ar_us: float = _us("aiter's all-reduce without its bytes")
    aiter_ar_rate_gbs: float = _rate("aiter's all-reduce, payload of one link and direction")
    rccl_ar_us: float = _us("RCCL all-reduce without its bytes")
    rccl_ar_rate_gbs: float = _rate("RCCL all-reduce, payload of one link and direction")
    # Cache writebacks
    release_agent_us: float = _us("one wave-level release at agent scope, serial over the device")
    release_system_us: float = _us("one wave-level release at system scope, serial over the device")
    # Streamed tail, not measured by anybody
    stream_signal_us: float = _us("telling a peer that one chunk has arrived, on the link")
    beside_us: float = _us("what reducers beside it add to a GEMM: releases, dropped cache lines")
    fp8_scatter_share: float = _share("of a conversion pass over the product that an fp8 scatter adds to the GEMM")
