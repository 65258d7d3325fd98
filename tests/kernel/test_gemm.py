# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The fp8 GEMM in the emulator: every recipe, tile and layout against float64, exact integers, misplaced scales."""

from __future__ import annotations

import itertools

import pytest
import torch

from mori_gemm_ar.compile.store import default_store
from mori_gemm_ar.gemm import GemmOp, preshuffle_b
from mori_gemm_ar.layout import BLayout, GemmConfig, Recipe, SmallGemmConfig, SmallRows, Tile
from mori_gemm_ar.runtime.alone import AloneWorld
from tests.kernel.gemm_data import FP8, Operands, check, make, op_for, random_operands

M_SWEEP = (0, 1, 7, 127, 128, 129, 1000)
RECIPES = list(Recipe)
GUARD = 3  # rows behind C that nobody may write


def run_guarded(op, operands: Operands) -> torch.Tensor:
    """The result, with rows before and behind it that must stay as they are."""
    m, n = operands.a.shape[0], operands.b.shape[0]
    memory = torch.full((m + 2 * GUARD, n), -77.0, dtype=torch.bfloat16)
    # Rows are a multiple of 32 bytes, so the view is aligned.
    out = memory[GUARD : GUARD + m]
    operands.run(op, out)
    assert (memory[:GUARD] == -77).all()
    assert (memory[GUARD + m :] == -77).all()
    return out


@pytest.mark.parametrize("b_layout", ["preshuffled", "row"])
@pytest.mark.parametrize(("n", "k"), [(16, 128), (256, 512), (1040, 256)])
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.value)
def test_every_m_with_one_set_of_kernels(recipe: Recipe, n: int, k: int, b_layout: str) -> None:
    op = op_for(recipe, n, k, b_layout)
    loaded = dict(op._codes)
    worst = 0.0
    for seed, m in enumerate(M_SWEEP):
        operands = random_operands(recipe, m, n, k, seed)
        worst = max(worst, check(run_guarded(op, operands), operands, k))
    assert op._codes == loaded
    print(f"{recipe.value} N={n} K={k} {b_layout}: worst 16 x 16 tile relL2 {worst:.2e}")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.value)
def test_the_model_width(recipe: Recipe) -> None:
    operands = random_operands(recipe, 129, 7168, 2048, 5)
    check(run_guarded(op_for(recipe, 7168, 2048), operands), operands, 2048)


def only(config: GemmConfig) -> GemmOp:
    """An op that has one kernel and always runs it."""
    op = GemmOp(AloneWorld().target("emulated"), config.recipe, config.n, config.k, config.b_layout)
    op._codes = {config: default_store().get(config)}
    op.plan = lambda m: config  # type: ignore[method-assign]
    return op


CONFIGS = [
    (recipe, tile, b_layout)
    for recipe, tile, b_layout in itertools.product(Recipe, Tile, BLayout)
    if not (recipe is Recipe.BLOCKSCALE and tile is Tile.M256_N256)
]


@pytest.mark.parametrize("k", [128, 384, 512])
@pytest.mark.parametrize(("recipe", "tile", "b_layout"), CONFIGS, ids=lambda v: getattr(v, "name", ""))
def test_every_tile(recipe: Recipe, tile: Tile, b_layout: BLayout, k: int) -> None:
    n, m = tile.n + 48, tile.m + 65
    config = GemmConfig(recipe, n, k, tile, b_layout)
    operands = random_operands(recipe, m, n, k, 11)
    check(run_guarded(only(config), operands), operands, k)


def integers(recipe: Recipe, m: int, n: int, k: int) -> Operands:
    """Small integers and scales that are powers of two: every partial sum is exact."""
    g = torch.Generator().manual_seed(3)
    a, b = (torch.randint(-2, 3, (rows, k), generator=g).to(FP8) for rows in (m, n))
    # One element in 16, so that sums of up to 2048 products fit the eight bits of a bf16.
    a = torch.where(torch.rand(m, k, generator=g) < 1 / 16, a.float(), torch.zeros(())).to(FP8)
    if recipe is Recipe.PTPC:
        return make(recipe, a, b, torch.full((m,), 0.5), torch.full((n,), 4.0))
    if recipe is Recipe.BLOCKSCALE:
        return make(recipe, a, b, torch.full((m, k // 128), 0.5), torch.full((-(-n // 128), k // 128), 4.0))
    one = torch.full((m, k // 32), 126, dtype=torch.uint8), torch.full((-(-n // 32), k // 32), 129, dtype=torch.uint8)
    return make(recipe, a, b, *one)


@pytest.mark.parametrize("m", [5, 200])
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.value)
def test_small_integers_are_exact(recipe: Recipe, m: int) -> None:
    operands = integers(recipe, m, 272, 512)
    out = operands.run(op_for(recipe, 272, 512))
    assert torch.equal(out.double(), operands.reference.bfloat16().double())
    assert float(operands.reference.abs().max()) <= 256


def encoded_scales(recipe: Recipe, m: int, n: int, k: int) -> Operands:
    """One non-zero k per block and scales that tell their own row and block, so that any swap changes the result."""
    a, b = torch.zeros(m, k), torch.zeros(n, k)
    block = {Recipe.PTPC: k, Recipe.BLOCKSCALE: 128, Recipe.MXFP8: 32}[recipe]
    a[:, ::block], b[:, ::block] = 1.0, 1.0
    rows, columns, blocks = torch.arange(m), torch.arange(n), torch.arange(k // block)
    if recipe is Recipe.PTPC:
        return make(recipe, a.to(FP8), b.to(FP8), 1.0 + rows / 512, 1.0 + columns / 2048)
    edge = 128 if recipe is Recipe.BLOCKSCALE else 32
    groups = torch.arange(-(-n // edge))
    if recipe is Recipe.BLOCKSCALE:
        a_scale = 1 + (rows[:, None] * 7 + blocks * 31) % 97 / 128.0
        return make(recipe, a.to(FP8), b.to(FP8), a_scale, 1 + (groups[:, None] * 5 + blocks * 3) % 61 / 64.0)
    a_scale = (120 + (rows[:, None] * 3 + blocks * 5) % 13).to(torch.uint8)
    return make(recipe, a.to(FP8), b.to(FP8), a_scale, (120 + (groups[:, None] * 7 + blocks * 2) % 11).to(torch.uint8))


@pytest.mark.parametrize("m", [33, 330])
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.value)
def test_scales_that_name_themselves(recipe: Recipe, m: int) -> None:
    operands = encoded_scales(recipe, m, 528, 512)
    check(operands.run(op_for(recipe, 528, 512)), operands, 512)


@pytest.mark.parametrize("recipe", [Recipe.BLOCKSCALE, Recipe.MXFP8], ids=lambda r: r.value)
def test_the_bits_of_a_row_do_not_depend_on_how_few_rows_there_are(recipe: Recipe) -> None:
    op, full = op_for(recipe, 272, 512), random_operands(recipe, 64, 272, 512, 9)
    expected = full.run(op)
    for m in (1, 15, 16, 17, 31, 33, 63):
        part = random_operands(recipe, 64, 272, 512, 9)
        logical = part.a_scale if recipe is Recipe.MXFP8 else part.a_scale[:, :m].contiguous()
        got = op(part.a[:m], preshuffle_b(part.b), logical, part.b_scale)
        assert torch.equal(got.view(torch.int16), expected[:m].view(torch.int16)), m


def cancelling(m: int, n: int, k: int) -> Operands:
    """mxfp8 operands whose exact product is 0: what a sum leaves shows in which order and precision it was made."""
    g = torch.Generator().manual_seed(13)
    order = torch.randperm(64, generator=g)

    def wide(rows: int) -> torch.Tensor:
        exponents = torch.randint(-8, 8, (rows, k // 128, 1, 64), generator=g)
        return (torch.randn(exponents.shape, generator=g) * torch.exp2(exponents)).to(FP8).float()

    a, b = wide(m), wide(n)
    a, b = torch.cat([a, a[..., order]], 2), torch.cat([b, -b[..., order]], 2)
    one = [torch.full((rows, k // 32), 127, dtype=torch.uint8) for rows in (m, -(-n // 32))]
    return make(Recipe.MXFP8, a.view(m, k).to(FP8), b.view(n, k).to(FP8), *one)


@pytest.mark.parametrize("m", [9, 250])
def test_scales_of_rows_past_the_end_change_nothing(m: int) -> None:
    """Entries of the packed e8m0 scales that belong to no row may hold anything, NaN and the extremes included."""
    op, operands = op_for(Recipe.MXFP8, 256, 512), cancelling(m, 256, 512)
    expected = operands.run(op)
    assert (expected != 0).any()
    blocks, groups = operands.a_scale.shape[:2]
    rows = torch.arange(64 * groups).view(groups, 4, 16).transpose(1, 2)  # of each entry
    for garbage in (0, 1, 127, 254, 255):
        operands.a_scale[(rows >= m).expand(blocks, -1, -1, -1)] = garbage
        got = operands.run(op)
        assert torch.equal(got.view(torch.int16), expected.view(torch.int16)), garbage
    operands.a_scale[(rows < m).expand(blocks, -1, -1, -1)] = 255
    assert operands.run(op).isnan().all()


@pytest.mark.parametrize("rows", list(SmallRows), ids=lambda r: r.name)
def test_few_rows_get_many_workgroups(rows: SmallRows) -> None:
    config = SmallGemmConfig(Recipe.BLOCKSCALE, 7168, 2048, rows, BLayout.PRESHUFFLED)
    assert config.blocks(1) >= 256


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.value)
def test_one_rank_of_the_model(recipe: Recipe) -> None:
    operands = random_operands(recipe, 4096, 7168, 2048, 1)
    check(operands.run(op_for(recipe, 7168, 2048)), operands, 2048)
