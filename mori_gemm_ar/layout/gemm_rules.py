# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The rules of the fp8 GEMM, in the manner of `rules`: predicates that return the reason, or None."""

from __future__ import annotations

from typing import Any

from mori_gemm_ar.layout.gemm_terms import (
    K_STEP,
    MAX_K,
    MAX_OUTPUT_BYTES,
    MX_BLOCK,
    N_UNIT,
    SMALL_RECIPES,
    BLayout,
    Recipe,
    SmallRows,
    Tile,
)
from mori_gemm_ar.layout.rules import reason_not_int, reason_not_member
from mori_gemm_ar.layout.terms import MAX_ROWS

_MAX_N = MAX_OUTPUT_BYTES // 2


def reason_not_gemm_m(m: object) -> str | None:
    """Rows of one call; none is fine."""
    return reason_not_int("m", m, 0, MAX_ROWS, "split the rows over several calls")


def reason_not_gemm_n(n: Any) -> str | None:
    """Columns of C."""
    reason = reason_not_int("n", n, N_UNIT, _MAX_N, f"N must be a multiple of {N_UNIT}")
    if reason is None and n % N_UNIT:
        reason = f"n={n} must be a multiple of {N_UNIT}; pad the weight with zero rows"
    return reason


def reason_not_gemm_k(k: Any) -> str | None:
    """Length of the sum: whole steps, one of them is enough."""
    reason = reason_not_int("k", k, K_STEP, MAX_K, f"K must be a multiple of {K_STEP}")
    if reason is None and k % K_STEP:
        reason = f"k={k} must be a multiple of {K_STEP}; pad both operands with zeros along K"
    return reason


def reason_not_recipe(recipe: object) -> str | None:
    """A recipe."""
    names = ", ".join(repr(member.value) for member in Recipe)
    return reason_not_member("recipe", recipe, Recipe, f"Recipe(name) takes {names}")


def reason_not_b_layout(b_layout: object) -> str | None:
    """An order of B's bytes."""
    names = ", ".join(repr(member.value) for member in BLayout)
    return reason_not_member("b_layout", b_layout, BLayout, f"BLayout(name) takes {names}")


def reason_not_gemm_problem(m: Any, n: Any, k: Any, recipe: object) -> str | None:
    """The fields of GemmProblem."""
    reason = reason_not_gemm_m(m) or reason_not_gemm_n(n) or reason_not_gemm_k(k) or reason_not_recipe(recipe)
    if reason is None and m * n * 2 >= MAX_OUTPUT_BYTES:
        reason = f"m*n*2={m * n * 2} must be below {MAX_OUTPUT_BYTES} bytes of output; split the rows"
    if reason is None and m * k // MX_BLOCK >= MAX_OUTPUT_BYTES:
        reason = f"m*k/{MX_BLOCK}={m * k // MX_BLOCK} must be below {MAX_OUTPUT_BYTES} bytes of scales; split the rows"
    return reason


def reason_not_tile(tile: object, recipe: object) -> str | None:
    """A tile that the recipe's registers leave room for."""
    reason = reason_not_member("tile", tile, Tile, "let select_gemm(problem, b_layout, machine) choose")
    if reason is None and recipe is Recipe.BLOCKSCALE and tile is Tile.M256_N256:
        # Partial sums and scales beside 128 accumulators do not fit 256 registers.
        reason = f"tile={tile} must be one of 64 x 64 per wave for {recipe}; use Tile.M128_N256"
    return reason


def reason_not_gemm_config(recipe: object, n: object, k: object, tile: object, b_layout: object) -> str | None:
    """The fields of GemmConfig."""
    return (
        reason_not_recipe(recipe)
        or reason_not_gemm_n(n)
        or reason_not_gemm_k(k)
        or reason_not_tile(tile, recipe)
        or reason_not_b_layout(b_layout)
    )


def reason_not_small_config(recipe: object, n: object, k: object, rows: object, b_layout: object) -> str | None:
    """The fields of SmallGemmConfig."""
    reason = (
        reason_not_recipe(recipe)
        or reason_not_gemm_n(n)
        or reason_not_gemm_k(k)
        or reason_not_member("rows", rows, SmallRows, "let select_gemm(problem, b_layout, machine) choose")
        or reason_not_b_layout(b_layout)
    )
    if reason is None and recipe not in SMALL_RECIPES:
        reason = f"recipe={recipe} must be one of {SMALL_RECIPES}; use a tile for {recipe}"
    return reason


def reason_not_quantize_config(recipe: object, k: object) -> str | None:
    """The fields of QuantizeConfig."""
    reason = reason_not_recipe(recipe) or reason_not_gemm_k(k)
    if reason is None and recipe is Recipe.PTPC:
        reason = f"recipe={recipe} must be {Recipe.BLOCKSCALE} or {Recipe.MXFP8}; only those have a quantiser"
    return reason
