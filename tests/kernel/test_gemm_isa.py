# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Static figures of the GEMM kernels: registers, spills, and what a K step costs. A number here is a promise."""

from __future__ import annotations

import itertools

import pytest

from mori_gemm_ar.compile.store import default_store
from mori_gemm_ar.isa import parse_isa
from mori_gemm_ar.kernels.gemm.operands import WAVES
from mori_gemm_ar.layout import BLayout, GemmConfig, QuantizeConfig, Recipe, SmallGemmConfig, SmallRows, Tile
from tests.kernel.gemm_isa import static_of

N, K = 7168, 2048
CONFIGS = [
    GemmConfig(recipe, N, K, tile, b_layout)
    for recipe, tile, b_layout in itertools.product(Recipe, Tile, BLayout)
    if not (recipe is Recipe.BLOCKSCALE and tile is Tile.M256_N256)
]
NARROW_VGPRS, WIDE_VGPRS = 192, 256
# (recipe, 64 x 64 per wave): instructions and VALU of one K step and wave at most.
STEP_LIMITS = {
    (Recipe.PTPC, True): (76, 0),
    (Recipe.PTPC, False): (122, 0),
    (Recipe.BLOCKSCALE, True): (140, 48),
    (Recipe.MXFP8, True): (80, 0),
    (Recipe.MXFP8, False): (122, 0),
}
ids = lambda config: config.key  # noqa: E731


@pytest.mark.parametrize("config", CONFIGS, ids=ids)
def test_tile_kernel(config: GemmConfig) -> None:
    narrow = config.tile is not Tile.M256_N256
    static = static_of(config)
    assert static.resources["vgpr_spills"] == static.resources["sgpr_spills"] == static.resources["scratch_bytes"] == 0
    assert static.resources["vgpr"] <= (NARROW_VGPRS if narrow else WIDE_VGPRS)
    instructions, valu = STEP_LIMITS[config.recipe, narrow]
    assert static.step.get("VALU", 0) <= valu
    assert static.instructions <= instructions
    mfma = config.tile.m * config.tile.n // 256 // WAVES
    assert static.step["MFMA"] == mfma
    assert static.step["barrier"] == 1
    # One copy per lane and 16 bytes of A and B.
    assert static.step["copy"] == (config.tile.m + config.tile.n) * 128 // (16 * 64 * WAVES)
    # 16 bytes per lane: the whole tile, once.
    assert static.total["store"] == config.tile.m * config.tile.n * 2 // (16 * 64 * WAVES)


@pytest.mark.parametrize("config", CONFIGS, ids=ids)
def test_memory_is_accessed_in_full_width(config: GemmConfig) -> None:
    code = default_store().get(config)
    names = [i.name for i in parse_isa(code.isa).kernel(code.kernel).instructions]
    assert {n for n in names if n.startswith("ds_")} == {"ds_read_b128"}
    assert {n for n in names if n.startswith("buffer_store")} == {"buffer_store_dwordx4"}
    assert not [n for n in names if n.startswith(("flat_", "scratch_"))]


@pytest.mark.parametrize("rows", list(SmallRows))
@pytest.mark.parametrize("recipe", [Recipe.BLOCKSCALE, Recipe.MXFP8])
def test_small_kernel(recipe: Recipe, rows: SmallRows) -> None:
    code = default_store().get(SmallGemmConfig(recipe, N, K, rows, BLayout.PRESHUFFLED))
    resources = code.manifest["resources"]
    assert resources["vgpr_spills"] == resources["scratch_bytes"] == 0
    assert resources["vgpr"] <= 128  # two workgroups of eight waves on a compute unit
    reads_of_b = [i for i in parse_isa(code.isa).kernel(code.kernel).instructions if i.name == "buffer_load_dwordx4"]
    assert len(reads_of_b) == 2 + 2 * rows.value // 16  # B once, and A for each 16 rows


@pytest.mark.parametrize("recipe", [Recipe.BLOCKSCALE, Recipe.MXFP8])
def test_quantiser(recipe: Recipe) -> None:
    resources = default_store().get(QuantizeConfig(recipe, K)).manifest["resources"]
    assert resources["vgpr_spills"] == resources["scratch_bytes"] == 0
    assert resources["vgpr"] <= 64
