# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Which calls launch every kernel of an op at least once."""

from __future__ import annotations

from mori_gemm_ar.layout import MI355X, AllReduceProblem, DType, SmallRows, Stage, Tile, select_stage
from mori_gemm_ar.layout.gemm_terms import SMALL_RECIPES
from mori_gemm_ar.plan import LayerSpec


def warm_rows(spec: LayerSpec) -> tuple[int, ...]:
    """Ms, in order: the least of every kernel for few rows, of tiles, of two stages, and of every fused tile."""
    few = [rows.least for rows in SmallRows] if spec.recipe in SMALL_RECIPES else []
    tiles = 1 + (max(rows.value for rows in SmallRows) if spec.recipe in SMALL_RECIPES else 0)
    fused = {spec.world * tile.m for tile in Tile}
    found = {1, *few, tiles, *_two_stage_rows(spec), *fused, spec.m_max}
    largest = min(max(fused), spec.m_max)  # m_max itself only where it is small
    return tuple(sorted(m for m in found if m <= largest))


def _two_stage_rows(spec: LayerSpec) -> set[int]:
    """The least M whose load/store all-reduce takes two stages, if any does."""
    low, high = 1, spec.m_max
    if _stage(spec, high) is not Stage.TWO:
        return set()
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _stage(spec, middle) is Stage.TWO else (middle + 1, high)
    return {low}


def _stage(spec: LayerSpec, m: int) -> Stage:
    return select_stage(AllReduceProblem(spec.world, m * spec.n, DType.BF16), MI355X)
