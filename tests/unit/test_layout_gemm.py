# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""GEMM problems, configs, the choice of the kernel, and the order of the tiles."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import (
    MI355X,
    BLayout,
    GemmConfig,
    GemmProblem,
    QuantizeConfig,
    Recipe,
    SmallGemmConfig,
    SmallRows,
    Tile,
    a_scale_shape,
    b_scale_shape,
    gemm_candidates,
    select_gemm,
    tile_of_block,
)
from mori_gemm_ar.layout.gemm_rules import reason_not_gemm_config, reason_not_gemm_problem

ROW = BLayout.ROW
WRONG = (0, -16, 15, 17, 2**40, True, 1.5, None, "16")


@given(st.sampled_from([*WRONG, 16, 48, 7168]), st.sampled_from([*WRONG, 64, 128, 192, 2048]), st.sampled_from(Recipe))
def test_predicate_and_constructor_agree(n: object, k: object, recipe: Recipe) -> None:
    for tile in (*Tile, "256x256", None):
        reason = reason_not_gemm_config(recipe, n, k, tile, ROW)
        if reason is None:
            GemmConfig(recipe, n, k, tile, ROW)  # type: ignore[arg-type]
        else:
            with pytest.raises(ConfigError, match="must be"):
                GemmConfig(recipe, n, k, tile, ROW)  # type: ignore[arg-type]
    assert (reason_not_gemm_problem(5, n, k, recipe) is None) == (
        reason_not_gemm_config(recipe, n, k, Tile.M128_N256, ROW) is None
    )


@pytest.mark.parametrize(
    ("m", "n", "k", "text"),
    [
        (-1, 16, 128, "m=-1 must be"),
        (True, 16, 128, "m=True must be an int"),
        (2**20, 2**12, 128, "bytes of output"),
        (2**30, 16, 2**22, "bytes of output|bytes of scales"),
    ],
)
def test_problems_that_are_refused(m: int, n: int, k: int, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        GemmProblem(m, n, k, Recipe.PTPC)


def test_recipes_without_a_kernel_are_refused() -> None:
    with pytest.raises(ConfigError, match="64 x 64"):
        GemmConfig(Recipe.BLOCKSCALE, 16, 128, Tile.M256_N256, ROW)
    with pytest.raises(ConfigError, match="use a tile"):
        SmallGemmConfig(Recipe.PTPC, 16, 128, SmallRows.M16, ROW)
    with pytest.raises(ConfigError, match="quantiser"):
        QuantizeConfig(Recipe.PTPC, 128)


def test_keys_are_unique_symbols() -> None:
    configs = [
        c
        for r, n, k, b in itertools.product(Recipe, (16, 256), (128, 256), BLayout)
        for c in gemm_candidates(r, n, k, b)
    ]
    keys = [config.key for config in configs] + [QuantizeConfig(r, 128).key for r in (Recipe.BLOCKSCALE, Recipe.MXFP8)]
    assert len(set(keys)) == len(keys)
    assert all(key.replace("_", "").isalnum() and key.isascii() for key in keys)


@given(st.integers(1, 20_000), st.integers(1, 600), st.sampled_from(Recipe), st.sampled_from(BLayout))
def test_what_is_selected_was_loaded(m: int, panels: int, recipe: Recipe, b_layout: BLayout) -> None:
    config = select_gemm(GemmProblem(m, 16 * panels, 256, recipe), b_layout, MI355X)
    assert config in gemm_candidates(recipe, 16 * panels, 256, b_layout)
    assert config == select_gemm(GemmProblem(m, 16 * panels, 256, recipe), b_layout, MI355X)


def test_the_step_from_narrow_to_wide_is_one_wave_of_compute_units() -> None:
    # 5120 columns: 20 tiles of 256. 1536 rows are 12 narrow bands, 240 tiles; 1792 rows are 280.
    def tile(m: int, recipe: Recipe = Recipe.MXFP8) -> Tile:
        config = select_gemm(GemmProblem(m, 5120, 2048, recipe), ROW, MI355X)
        assert isinstance(config, GemmConfig)
        return config.tile

    assert tile(1536) is Tile.M128_N256
    assert tile(1792) is Tile.M256_N256
    assert tile(1792, Recipe.BLOCKSCALE) is Tile.M128_N256


@pytest.mark.parametrize(("m", "rows"), [(1, 16), (16, 16), (17, 32), (33, 64), (64, 64)])
def test_few_rows_split_k(m: int, rows: int) -> None:
    config = select_gemm(GemmProblem(m, 7168, 2048, Recipe.BLOCKSCALE), ROW, MI355X)
    assert isinstance(config, SmallGemmConfig)
    assert config.rows.value == rows
    assert config.blocks(m) == 448
    assert isinstance(select_gemm(GemmProblem(65, 7168, 2048, Recipe.BLOCKSCALE), ROW, MI355X), GemmConfig)


@given(st.integers(1, 3000), st.integers(1, 200), st.sampled_from(Tile))
def test_every_tile_is_computed_once(m: int, panels: int, tile: Tile) -> None:
    n = 16 * panels
    config = GemmConfig(Recipe.PTPC, n, 128, tile, ROW)
    tiles = Counter(tile_of_block(b, m, n, tile, MI355X) for b in range(config.blocks(m)))
    assert set(tiles.values()) == {1}
    assert max(r for r, _ in tiles) * tile.m < m
    assert max(c for _, c in tiles) * tile.n < n
    with pytest.raises(ConfigError):
        tile_of_block(config.blocks(m), m, n, tile, MI355X)


def test_an_xcd_gets_neighbouring_tiles() -> None:
    m, n = 16384, 7168
    total = 128 * 28
    mine = [tile_of_block(b, m, n, Tile.M128_N256, MI355X) for b in range(0, total, MI355X.xcds)]
    assert len({row for row, _ in mine}) == 128 / 8


def test_scale_shapes() -> None:
    assert [a_scale_shape(recipe, 65, 256) for recipe in Recipe] == [(65,), (2, 65), (8, 2, 16, 4)]
    assert [b_scale_shape(recipe, 272, 256) for recipe in Recipe] == [(272,), (3, 2), (9, 8)]
    assert QuantizeConfig(Recipe.BLOCKSCALE, 256).blocks(17) == 4
    assert QuantizeConfig(Recipe.MXFP8, 256).blocks(17) == 8
