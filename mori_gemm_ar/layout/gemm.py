# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The fp8 GEMM: problem, compile keys, choice of the kernel, order of the tiles, shapes of the scales."""

from __future__ import annotations

from dataclasses import dataclass

from mori_gemm_ar.layout.gemm_rules import (
    reason_not_gemm_config,
    reason_not_gemm_problem,
    reason_not_quantize_config,
    reason_not_small_config,
)
from mori_gemm_ar.layout.gemm_terms import (
    K_STEP,
    MX_BLOCK,
    MX_ROWS,
    N_UNIT,
    SCALE_BLOCK,
    SMALL_RECIPES,
    BLayout,
    Recipe,
    SmallRows,
    Tile,
)
from mori_gemm_ar.layout.machine import Machine
from mori_gemm_ar.layout.rules import reason_not_index, require
from mori_gemm_ar.layout.terms import ceil_div

QUANTIZE_ROWS = 16  # rows of one workgroup of the quantisers


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """C[m, n] bf16 = A[m, k] e4m3fn x B[n, k] e4m3fn, scaled by a recipe."""

    m: int
    n: int
    k: int
    recipe: Recipe

    def __post_init__(self) -> None:
        require(reason_not_gemm_problem(self.m, self.n, self.k, self.recipe))


@dataclass(frozen=True, slots=True)
class GemmConfig:
    """How to multiply with tiles: the compile key. M and addresses are arguments, so one kernel serves every M."""

    recipe: Recipe
    n: int
    k: int
    tile: Tile
    b_layout: BLayout

    def __post_init__(self) -> None:
        require(reason_not_gemm_config(self.recipe, self.n, self.k, self.tile, self.b_layout))

    @property
    def key(self) -> str:
        """Stable, unique for each config, and a legal symbol."""
        return f"gemm_{self.recipe.value}_{self.tile.label}_n{self.n}_k{self.k}_{self.b_layout.value}"

    @property
    def kernel_name(self) -> str:
        return self.key

    def blocks(self, m: int) -> int:
        """Workgroups for m rows."""
        return ceil_div(m, self.tile.m) * ceil_div(self.n, self.tile.n)


@dataclass(frozen=True, slots=True)
class SmallGemmConfig:
    """How to multiply few rows: 16 columns for each workgroup, K split over its waves. Serves every M up to `rows`.

    A row's bits do not depend on M or on `rows`: the split and the order of the sum are the same.
    """

    recipe: Recipe
    n: int
    k: int
    rows: SmallRows
    b_layout: BLayout

    def __post_init__(self) -> None:
        require(reason_not_small_config(self.recipe, self.n, self.k, self.rows, self.b_layout))

    @property
    def key(self) -> str:
        """Stable, unique for each config, and a legal symbol."""
        return f"gemm_small_{self.recipe.value}_m{self.rows.value}_n{self.n}_k{self.k}_{self.b_layout.value}"

    @property
    def kernel_name(self) -> str:
        return self.key

    def blocks(self, m: int) -> int:
        """Workgroups, whatever m is."""
        return self.n // N_UNIT


AnyGemmConfig = GemmConfig | SmallGemmConfig


@dataclass(frozen=True, slots=True)
class QuantizeConfig:
    """How to quantise activations for a recipe: the compile key. M is an argument."""

    recipe: Recipe
    k: int

    def __post_init__(self) -> None:
        require(reason_not_quantize_config(self.recipe, self.k))

    @property
    def key(self) -> str:
        """Stable, unique for each config, and a legal symbol."""
        return f"quantize_{self.recipe.value}_k{self.k}"

    @property
    def kernel_name(self) -> str:
        return self.key

    def blocks(self, m: int) -> int:
        """Workgroups for m rows; MXFP8 fills the scales of whole groups of 64 rows."""
        rows = ceil_div(m, MX_ROWS) * MX_ROWS if self.recipe is Recipe.MXFP8 else m
        return ceil_div(rows, QUANTIZE_ROWS) * (self.k // K_STEP)


# --- choice ---


def gemm_candidates(recipe: Recipe, n: int, k: int, b_layout: BLayout) -> tuple[AnyGemmConfig, ...]:
    """All that select_gemm may return for some M: what an op loads, so that no M compiles anything later."""
    small = [SmallGemmConfig(recipe, n, k, rows, b_layout) for rows in SmallRows] if recipe in SMALL_RECIPES else []
    tiles = [tile for tile in Tile if reason_not_gemm_config(recipe, n, k, tile, b_layout) is None]
    return (*small, *(GemmConfig(recipe, n, k, tile, b_layout) for tile in tiles))


def select_gemm(problem: GemmProblem, b_layout: BLayout, machine: Machine) -> AnyGemmConfig:
    """The kernel for a problem; a pure function.

    Few rows: the kernel that splits K. Else a narrow tile while its grid fits one wave of compute units, where it
    gains 9 to 17 %; beyond that the wide tile, which gains more (ROCm/mori pull request 662, 110 shapes).
    """
    m, n, k, recipe = problem.m, problem.n, problem.k, problem.recipe
    if recipe in SMALL_RECIPES:
        for rows in SmallRows:
            if m <= rows.value:
                return SmallGemmConfig(recipe, n, k, rows, b_layout)
    # Of the two narrow tiles, which are equally fast, the one that covers C with fewer.
    narrow = [GemmConfig(recipe, n, k, tile, b_layout) for tile in (Tile.M128_N256, Tile.M256_N128)]
    chosen = min(narrow, key=lambda config: config.blocks(m))
    if chosen.blocks(m) > machine.compute_units and recipe is not Recipe.BLOCKSCALE:
        return GemmConfig(recipe, n, k, Tile.M256_N256, b_layout)
    return chosen


# --- order of the tiles ---


def tile_of_block(block: int, m: int, n: int, tile: Tile, machine: Machine) -> tuple[int, int]:
    """(row, column) of the tile that a workgroup computes, counted in tiles; what the kernel calculates.

    Workgroup b runs on XCD b % xcds. Each XCD gets a run of consecutive tiles, so that its L2 holds few rows of A.
    """
    columns = ceil_div(n, tile.n)
    total = ceil_div(m, tile.m) * columns
    require(reason_not_index("block", block, total))
    xcd = block % machine.xcds
    number = xcd * (total // machine.xcds) + min(xcd, total % machine.xcds) + block // machine.xcds
    return divmod(number, columns)


# --- scales ---


def a_scale_shape(recipe: Recipe, m: int, k: int) -> tuple[int, ...]:
    """Shape of the A scales as the kernels read them; see Recipe."""
    return {
        Recipe.PTPC: (m,),
        Recipe.BLOCKSCALE: (k // SCALE_BLOCK, m),
        Recipe.MXFP8: (k // MX_BLOCK, ceil_div(m, MX_ROWS), 16, MX_ROWS // 16),
    }[recipe]


def b_scale_shape(recipe: Recipe, n: int, k: int) -> tuple[int, ...]:
    """Shape of the B scales; see Recipe."""
    return {
        Recipe.PTPC: (n,),
        Recipe.BLOCKSCALE: (ceil_div(n, SCALE_BLOCK), k // SCALE_BLOCK),
        Recipe.MXFP8: (ceil_div(n, MX_BLOCK), k // MX_BLOCK),
    }[recipe]
