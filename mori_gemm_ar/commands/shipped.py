# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Every kernel that ships, by its configuration. Who audits, proves or counts kernels asks here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mori_gemm_ar.layout import AllReduceConfig, DType, Gather, Stage, Wire
from mori_gemm_ar.layout.gemm import QuantizeConfig, gemm_candidates
from mori_gemm_ar.layout.gemm_terms import SMALL_RECIPES, BLayout, Recipe
from mori_gemm_ar.layout.sdma import SdmaConfig, SdmaPhase, sdma_config
from mori_gemm_ar.layout.terms import MAX_WORLD

# GEMM kernels are compiled for N and K. These stand for all: the shape that published figures are for.
GEMM_N, GEMM_K = 7168, 2048


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


FAMILIES: tuple[Callable[[], Iterator[Any]], ...] = (
    all_reduces,
    wire_all_reduces,
    sdma_all_reduces,
    sdma_wire_all_reduces,
    gemms,
)


def shipped_configs() -> list[Any]:
    """Configurations of all kernels that ship, each with `key` and `kernel_name`."""
    return [config for family in FAMILIES for config in family()]
