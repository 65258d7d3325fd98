# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Every kernel that ships, by its configuration. Who audits, proves or counts kernels asks here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mori_gemm_ar.layout import AllReduceConfig, DType, Gather, Stage, Wire
from mori_gemm_ar.layout.bands import BandsConfig
from mori_gemm_ar.layout.fused import DEFAULT_STRIPE, FusedConfig
from mori_gemm_ar.layout.gemm import GemmConfig, QuantizeConfig, gemm_candidates
from mori_gemm_ar.layout.gemm_rules import reason_not_tile
from mori_gemm_ar.layout.gemm_terms import SMALL_RECIPES, BLayout, Recipe, Tile
from mori_gemm_ar.layout.pull import PullConfig, PullPhase, pull_config
from mori_gemm_ar.layout.sdma import SdmaConfig, SdmaPhase, Transport, sdma_config
from mori_gemm_ar.layout.stream import StreamConfig, StreamPhase
from mori_gemm_ar.layout.terms import MAX_WORLD

# GEMM kernels are compiled for N and K. These stand for all: the shape that published figures are for.
GEMM_N, GEMM_K = 7168, 2048

# World, recipe, N, K and order of B of layers that stand for all: the output projections of DeepSeek-V4 Pro on 8 ranks
# and of V4.1 Flash on 4, the first one quantised by row, and what the tests multiply.
LAYERS = (
    (8, Recipe.BLOCKSCALE, 7168, 2048, BLayout.PRESHUFFLED),
    (4, Recipe.MXFP8, 5120, 2048, BLayout.PRESHUFFLED),
    (8, Recipe.PTPC, 7168, 2048, BLayout.PRESHUFFLED),
    (2, Recipe.BLOCKSCALE, 1024, 512, BLayout.ROW),
)


def all_reduces() -> Iterator[AllReduceConfig]:
    """All worlds, types and stages; the order of the gather is a choice of two stages only."""
    for world in range(1, MAX_WORLD + 1):
        for dtype in DType:
            for stage in Stage:
                for gather in Gather if stage is Stage.TWO else (Gather.INTERLEAVED,):
                    yield AllReduceConfig(world, dtype, stage, gather=gather)


def sdma_all_reduces() -> Iterator[SdmaConfig]:
    """All worlds, types and phases; a world of one has no copy engines."""
    for world in range(2, MAX_WORLD + 1):
        for dtype in DType:
            for phase in SdmaPhase:
                yield sdma_config(world, dtype, phase)


def _lossy() -> Iterator[tuple[int, DType, Wire]]:
    """All worlds that send, and all types and formats of a lossy wire."""
    for world in range(2, MAX_WORLD + 1):
        for dtype in (DType.BF16, DType.FP16):
            for wire in Wire:
                if wire.lossy:
                    yield world, dtype, wire


def wire_all_reduces() -> Iterator[AllReduceConfig]:
    """Load and store with a lossy wire."""
    for world, dtype, wire in _lossy():
        yield AllReduceConfig(world, dtype, Stage.TWO, wire=wire)


def sdma_wire_all_reduces() -> Iterator[SdmaConfig]:
    """Copy engines with a lossy wire, all phases."""
    for world, dtype, wire in _lossy():
        for phase in SdmaPhase:
            yield sdma_config(world, dtype, phase, wire)


def gemms() -> Iterator[Any]:
    """All GEMM kernels and quantisers that an op may choose at one shape."""
    for recipe in Recipe:
        for b_layout in BLayout:
            yield from gemm_candidates(recipe, GEMM_N, GEMM_K, b_layout)
    for recipe in SMALL_RECIPES:
        yield QuantizeConfig(recipe, GEMM_K)


def fused_gemms() -> Iterator[FusedConfig]:
    """The GEMMs that send: pushed by SDMA all tiles, exact and quantised, and one of each layer of what nothing chooses
    by itself: the push by LSA, and the one that signals for the streamed tail."""
    for world, recipe, n, k, b_layout in LAYERS:
        gemms = [GemmConfig(recipe, n, k, tile, b_layout) for tile in Tile if reason_not_tile(tile, recipe) is None]
        for wire in (Wire.EXACT, Wire.FP8_BOTH):
            yield from (FusedConfig(gemm, world, Transport.SDMA, wire=wire) for gemm in gemms)
        yield FusedConfig(gemms[0], world, Transport.LSA, DEFAULT_STRIPE)
        yield FusedConfig(gemms[0], world, Transport.SDMA, signals=True)


def pulled_tails() -> Iterator[PullConfig]:
    """What follows a GEMM whose sums are pulled: all worlds, either push, exact and fp8."""
    for world in range(2, MAX_WORLD + 1):
        yield from (pull_config(world, PullPhase.MEET, push, Wire.EXACT) for push in Transport)
        for wire in (Wire.EXACT, Wire.FP8):
            for phase in (PullPhase.SUM, PullPhase.PULL):
                yield pull_config(world, phase, Transport.LSA, wire)


def other_tails() -> Iterator[StreamConfig | BandsConfig]:
    """The streamed tail, and the reduce of quantised bands: all worlds."""
    for world in range(2, MAX_WORLD + 1):
        yield from (StreamConfig(world, phase) for phase in StreamPhase)
        yield BandsConfig(world)


FAMILIES: tuple[Callable[[], Iterator[Any]], ...] = (
    all_reduces,
    wire_all_reduces,
    sdma_all_reduces,
    sdma_wire_all_reduces,
    gemms,
    fused_gemms,
    pulled_tails,
    other_tails,
)


def shipped_configs() -> list[Any]:
    """Configurations of all kernels that ship, each with `key` and `kernel_name`."""
    return [config for family in FAMILIES for config in family()]
