# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What the fused op gives: in every mode the bits of the sum, in rank order, of the ranks' own products."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mori_gemm_ar.emulator import Node
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import BLayout, Recipe, Wire
from mori_gemm_ar.op import Mode
from mori_gemm_ar.runtime import RankContext
from tests.kernel.gemm_data import Operands, random_operands
from tests.ranks.layers import (
    FUSED_LSA,
    FUSED_SDMA,
    FUSED_SDMA_PULLED,
    SDMA,
    SPLIT_LSA,
    TILE,
    N,
    Way,
    create,
    each_way,
    layer,
    relative_l2,
)
from tests.ranks.wire_data import GATES
from tests.ranks.worlds import BF16, Delays, reference, require_bits, run, unfair

FUSED = (Mode.FUSED_SDMA, Mode.FUSED_LSA)


def m_max(world: int) -> int:
    """Ragged, and room for two bands of some ranks."""
    return world * TILE.m * 2 - 50


def check_rows(world: int, way: Way, recipe: Recipe, ms: tuple[int, ...], **more: Any) -> None:
    """All of them on one op, each with new data; one rank is late, and workgroups drift apart with `drift`."""
    node = unfair(world) if more.pop("drift", False) else Node

    def body(ctx: RankContext) -> None:
        delays = Delays(ctx)
        with create(ctx, way, m_max(world), recipe, **more) as op:
            for call, m in enumerate(ms):
                data = layer(world, m, call, recipe=recipe)
                where = {"way": way, "recipe": recipe.value, "world": world, "m": m, "rank": ctx.rank}
                delays.only(call)
                y = op(*data.of(ctx.rank, preshuffled=op.spec.b_layout is BLayout.PRESHUFFLED))
                require_bits(y, data.expected(), **where)
                plan = op.plan(m)
                if m == 0:
                    assert plan.mode is Mode.GEMM_ONLY
                elif way.mode in FUSED and m < world * TILE.m:
                    assert plan.mode is Mode.SPLIT_LSA, where
                    least = f"m={m} must be at least world*tile_m={world * TILE.m} for a fused mode"
                    assert plan.why.startswith(least), plan.why
                else:
                    gather = None if way.mode is Mode.SPLIT_LSA else way.gather
                    assert (plan.mode, plan.gather, plan.why) == (way.mode, gather, ""), (where, plan.label)

    run(world, body, seed=world, node=node)


@each_way
def test_every_mode_and_gather(way: Way) -> None:
    """Ragged, none, one, the largest, and the largest that a fused mode leaves to the split one."""
    check_rows(2, way, Recipe.BLOCKSCALE, (333, 0, 1, m_max(2), 2 * TILE.m - 1))


@pytest.mark.parametrize("recipe", [Recipe.PTPC, Recipe.MXFP8], ids=lambda recipe: recipe.value)
@pytest.mark.parametrize("way", [FUSED_SDMA, FUSED_LSA], ids=str)
def test_every_recipe(recipe: Recipe, way: Way) -> None:
    """The smallest M that is fused, and a ragged one; three ranks, where the order of the sum shows."""
    ms = (3 * TILE.m, 3 * TILE.m + 77)
    check_rows(3, way, recipe, ms, drift=recipe is Recipe.PTPC)


def test_preshuffled_b() -> None:
    check_rows(2, FUSED_SDMA, Recipe.BLOCKSCALE, (333, 64), b_layout="preshuffled")


def test_eight_ranks() -> None:
    """A last rank that owns a few rows, and one that owns none."""
    check_rows(8, FUSED_SDMA_PULLED, Recipe.BLOCKSCALE, (8 * TILE.m + 1,))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", list(Recipe), ids=lambda recipe: recipe.value)
@pytest.mark.parametrize("world", [2, 3, 4, 8])
@each_way
def test_every_mode_recipe_and_world(world: int, recipe: Recipe, way: Way) -> None:
    band = world * TILE.m
    ms = (band + 77, 1, band, 0, band - 1, band + 1, 64, m_max(world), 7)
    check_rows(world, way, recipe, ms, drift=True)
    check_rows(world, way, recipe, ms[::-1], b_layout="preshuffled")


def test_the_data_tells_one_order_of_ranks_from_another() -> None:
    """Negative control: a sum in another order, in bf16, or with one rank missing is not taken for the right one."""
    for recipe in Recipe:
        data = layer(3, 3 * TILE.m, 0, recipe=recipe)
        right = data.expected()
        for order in ((1, 2, 0), (0, 2, 1)):
            assert not torch.equal(reference([data.products[rank] for rank in order]), right), (recipe, order)
        narrow = data.products[0] + data.products[1] + data.products[2]
        assert not torch.equal(narrow, right) and not torch.equal(reference(data.products[:2]), right)


# --- wires that lose ---

LOSSY = [
    (SPLIT_LSA, Wire.FP8),
    (SPLIT_LSA, Wire.FP8_BOTH),
    (Way(Mode.SPLIT_SDMA, SDMA), Wire.FP8_BOTH),
    (FUSED_SDMA, Wire.FP8),
    (FUSED_SDMA_PULLED, Wire.FP8),
    (FUSED_LSA, Wire.FP8),
    (Way(Mode.FUSED_LSA, SDMA), Wire.FP8),
]


@pytest.mark.parametrize(("way", "wire"), LOSSY, ids=[f"{way}-{wire.value}" for way, wire in LOSSY])
def test_lossy_wires(way: Way, wire: Wire) -> None:
    """Bit by bit what the wire says, and a loss within two-sided gates, so that an exact wire fails them too."""

    def body(ctx: RankContext) -> None:
        with create(ctx, way, 333, wire=wire) as op:
            for call, m in enumerate((333, 40)):
                data = layer(2, m, call)
                y = op(*data.of(ctx.rank))
                require_bits(y, data.expected(wire), way=way, wire=wire, m=m, rank=ctx.rank)
                low, high = GATES[wire]
                loss = relative_l2(y, data.products)
                assert low <= loss <= high, f"way={way} wire={wire.value} m={m} relL2={loss:.3e}"
            assert not low <= relative_l2(data.expected(), data.products) <= high
            assert op.wire is wire

    run(2, body)


# --- a row by itself ---


def cancelling(m: int, k: int, rank: int) -> Operands:
    """Two blocks of K that are large and cancel: what is left of the others tells in which order they were added."""
    data = random_operands(Recipe.BLOCKSCALE, m, N, k, 10 + rank)
    first, second = slice(128, 256), slice(256, 384)
    data.a.view(torch.uint8)[:, second] = data.a.view(torch.uint8)[:, first] ^ 0x80
    data.b.view(torch.uint8)[:, second] = data.b.view(torch.uint8)[:, first]
    data.a_scale[2] = data.a_scale[1] = data.a_scale[1] * 2.0**16
    data.b_scale[:, 2] = data.b_scale[:, 1]
    return data


def test_a_row_does_not_depend_on_m() -> None:
    """With batch_invariant; without it the kernel for few rows adds in another order, and the bits show it."""
    k, ms = 512, (300, 1, 64, 65)

    def body(ctx: RankContext) -> list[dict[int, torch.Tensor]]:
        data = cancelling(max(ms), k, ctx.rank)
        found = []
        for invariant in (True, False):
            with create(ctx, FUSED_SDMA, max(ms), k=k, tuning={"batch_invariant": invariant}) as op:
                scales = {m: data.a_scale[:, :m].contiguous() for m in ms}
                found.append({m: op(data.a[:m].clone(), data.b, scales[m], data.b_scale).clone() for m in ms})
        return found

    invariant, fast = run(2, body)[0]
    for m in ms:
        require_bits(invariant[m], invariant[max(ms)][:m], m=m)
    assert not torch.equal(fast[64], invariant[64])
    require_bits(fast[65], invariant[65])


# --- what is refused ---


@pytest.mark.parametrize("way", [SPLIT_LSA, FUSED_SDMA], ids=str)
def test_too_many_rows_are_refused(way: Way) -> None:
    """m_max works, one more is an error with the limit, and the op goes on."""

    def body(ctx: RankContext) -> None:
        with create(ctx, way, 260) as op:
            for m in (260, 261, 260):
                data = layer(2, m, 5)
                if m > 260:
                    message = r"m=261 must be one of 0\.\.260; lay the window out for more than 260"
                    with pytest.raises(ConfigError, match=message):
                        op(*data.of(ctx.rank))
                    with pytest.raises(ConfigError, match=message):
                        op.output(m)
                    continue
                require_bits(op(*data.of(ctx.rank)), data.expected(), m=m, rank=ctx.rank)

    run(2, body)


def test_operands_that_are_not_the_ops_are_refused() -> None:
    """By name, before anything is launched; the ranks stay in step."""

    def body(ctx: RankContext) -> None:
        data = layer(2, 256, 6)
        a, b, a_scale, b_scale = data.of(ctx.rank)
        wrong = {
            r"a\.shape=\(256, 64\) must be \('M', 128\)": (a[:, :64].contiguous(), b, a_scale, b_scale),
            r"a\.dtype=torch.bfloat16 must be torch.float8_e4m3fn": (a.to(BF16), b, a_scale, b_scale),
            r"b\.shape=\(256, 128\) must be \(512, 128\)": (a, b[:256], a_scale, b_scale),
            r"a_scale\.shape=\(4, 1\) must be": (a, b, b_scale, a_scale),
            r"b_scale\.dtype=torch.bfloat16 must be torch.float32": (a, b, a_scale, b_scale.to(BF16)),
            r"a\.stride=\(256, 1\) must be contiguous": (torch.cat((a, a), 1)[:, :128], b, a_scale, b_scale),
        }
        with create(ctx, FUSED_SDMA, 256) as op:
            for message, operands in wrong.items():
                with pytest.raises(ConfigError, match=message):
                    op(*operands)
            require_bits(op(a, b, a_scale, b_scale), data.expected(), rank=ctx.rank)

    run(2, body)
