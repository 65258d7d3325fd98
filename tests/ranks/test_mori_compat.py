# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Code in the style of `mori.ops.gemm_ar` on our constructor: its arguments, its call order, its results."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mori_gemm_ar.errors import ClosedError, CollectiveSetupError, ConfigError, MoriGemmArError
from mori_gemm_ar.gemm import quantize_1x128
from mori_gemm_ar.integrations.mori_compat import (
    GemmAllReduceOp,
    padded_m,
    preshuffle_a_scale,
    preshuffle_b,
    supports,
)
from mori_gemm_ar.layout import Recipe, Wire
from mori_gemm_ar.layout.sdma import Transport
from mori_gemm_ar.op import Mode
from mori_gemm_ar.runtime import RankContext
from tests.kernel.gemm_data import FP8
from tests.ranks.layers import K, Layer, N, Tensors, layer
from tests.ranks.worlds import BF16, require_bits, run


def peers_operands(data: Layer, rank: int, m: int, recipe: Recipe) -> Tensors:
    """As the peer takes them: B preshuffled, and for mxfp8 the exponents in int32."""
    mine = data.ranks[rank]
    if recipe is Recipe.BLOCKSCALE:
        return mine.a, preshuffle_b(mine.b), mine.a_scale, mine.b_scale
    # Logical exponents [M, K/32] again: row 64 g + 16 i + r stands at [:, g, r, i].
    blocks, groups = mine.a_scale.shape[:2]
    exponents = mine.a_scale.permute(1, 3, 2, 0).reshape(groups * 64, blocks)[:m]
    return mine.a, preshuffle_b(mine.b), preshuffle_a_scale(exponents), mine.b_scale.t().contiguous().to(torch.int32)


def test_a_padded_call() -> None:
    """From bf16 rows to the sum, padded first as the peer wants it; the same bits without the padding."""
    m = 200

    def body(ctx: RankContext) -> None:
        g = torch.Generator().manual_seed(ctx.rank)
        x, w = torch.randn(m, K, generator=g).to(BF16), (torch.randn(N, K, generator=g) * 64).to(FP8)
        b_scale = torch.rand(N // 128, K // 128, generator=g)
        with GemmAllReduceOp(ctx, n=N, k=K, m_max=m) as op:
            b = preshuffle_b(w)
            m_pad = op.padded_m(x.shape[0])
            assert m_pad == padded_m(m, 2) == 256 == op.m_max
            padded = op.pad_rows(x, m_pad)
            assert not padded[m:].any() and torch.equal(padded[:m], x)
            a, a_scale = quantize_1x128(padded)
            out = op(a, b, a_scale, b_scale)[:m].clone()
            few, few_scale = quantize_1x128(x)
            require_bits(op(few, b, few_scale, b_scale), out, rank=ctx.rank)
            assert op.pad_rows(x[:5] + 1, 256).data_ptr() == padded.data_ptr() and not padded[5:].any()
            assert op.pad_rows(x.float(), 256).dtype is torch.float32

    run(2, body)


@pytest.mark.parametrize("quant", ["blockscale", "mxfp8"])
@pytest.mark.parametrize(("gather_dtype", "gather_transport"), [("bf16", "lsa"), ("fp8", "lsa"), ("fp8", "sdma")])
def test_arguments_mean_what_they_mean_there(quant: str, gather_dtype: str, gather_transport: str) -> None:
    recipe = Recipe(quant)
    wire = Wire.FP8 if gather_dtype == "fp8" else Wire.EXACT

    def body(ctx: RankContext) -> None:
        with GemmAllReduceOp(
            ctx, n=N, k=K, m_max=512, quant=quant, gather_dtype=gather_dtype, gather_transport=gather_transport
        ) as op:
            rows = 256 if quant == "mxfp8" else 128
            assert (op.block_m, op.block_n, op.m_max, op.max_shapes) == (rows, 256, 512, 512 // (2 * rows))
            assert (op.rank, op.world_size, op.quant) == (ctx.rank, 2, quant)
            plan = op._op.plan(512)
            gather = Transport.SDMA if gather_dtype == "bf16" else Transport(gather_transport)
            assert (plan.mode, plan.gather, op._op.wire) == (Mode.FUSED_SDMA, gather, wire)
            results = []
            for number, m in enumerate((512, 40)):
                data = layer(2, m, number, recipe=recipe)
                y = op(*peers_operands(data, ctx.rank, m, recipe))
                require_bits(y, data.expected(wire), quant=quant, m=m, rank=ctx.rank)
                results.append(y.data_ptr())
            assert results[0] == results[1], "one output, which the next call overwrites"
            assert op.window_bytes == GemmAllReduceOp.window_bytes_for(
                2, m_max=512, n=N, block_m=rows, gather_dtype=gather_dtype, gather_transport=gather_transport
            )

    run(2, body)


def test_orders_of_a_scale() -> None:
    """Those that say which they are give the same bits; row by row is refused, as there."""
    k = 256

    def body(ctx: RankContext) -> None:
        data = layer(2, 256, 0, k=k)
        mine = data.ranks[ctx.rank]
        b, scale = preshuffle_b(mine.b), mine.a_scale
        with GemmAllReduceOp(ctx, n=N, k=k, m_max=256) as op:
            for spelling in (scale, scale.reshape(-1), scale.t()):
                for b_scale in (mine.b_scale, mine.b_scale.reshape(-1)):
                    require_bits(op(mine.a, b, spelling, b_scale), data.expected(), rank=ctx.rank)
            wide = torch.zeros(256, 2 * k).to(FP8)
            wide[:, :k] = mine.a
            require_bits(op(wide[:, :k], b, scale, mine.b_scale), data.expected(), rank=ctx.rank)
            with pytest.raises(ValueError, match=r"a_scale.stride=\(2, 1\) of \[M, K/128\] must be"):
                op(mine.a, b, scale.t().contiguous(), mine.b_scale)

    run(2, body)


def test_scales_of_weights() -> None:
    """Made once for each tensor and again after a change; recorded calls keep what they need."""

    def body(ctx: RankContext) -> None:
        with GemmAllReduceOp(ctx, n=N, k=K, m_max=512, quant="mxfp8") as op:
            datas = [layer(2, 512, number, recipe=Recipe.MXFP8) for number in range(2)]
            operands = [peers_operands(data, ctx.rank, 512, Recipe.MXFP8) for data in datas]
            with op._op.target.record() as recording:
                y = op(*operands[0])
            for number in (0, 1, 0):
                require_bits(op(*operands[number]), datas[number].expected(), number=number, rank=ctx.rank)
            assert len(op._operands._scales) == 2
            recording.replay()
            require_bits(y, datas[0].expected(), what="replay", rank=ctx.rank)
            for mine, other in zip(operands[0], operands[1], strict=True):
                mine.copy_(other)
            require_bits(op(*operands[0]), datas[1].expected(), what="in place", rank=ctx.rank)
            assert len(op._operands._scales) == 2

    run(2, body)


WRONG: dict[str, dict[str, Any]] = {
    r"quant='ptpc' must be one of 'blockscale', 'mxfp8'": {"quant": "ptpc"},
    r"block_m=64 with block_n=256 must be one of": {"block_m": 64},
    r"block_m=128 with block_n=512 must be one of": {"block_n": 512},
    r"tile=Tile.M256_N256 must be one of 64 x 64 per wave": {"block_m": 256},
    r"gather_dtype='FP8' must be one of 'bf16', 'fp8'": {"gather_dtype": "FP8"},
    r"gather_transport='sla' must be one of": {"gather_dtype": "fp8", "gather_transport": "sla"},
    r"queues=0 must be": {"sdma_queues": 0},
    r"m_max=0 must be": {"m_max": 0},
    r"max_shapes=0 must be": {"max_shapes": 0},
    r"k=100 must be": {"k": 100},
}


@pytest.mark.parametrize("message", WRONG)
def test_arguments_that_are_refused(message: str) -> None:
    """A ValueError, on every rank also where one rank alone is wrong; `supports` says no."""
    wrong = WRONG[message]
    asked = {"n": N, "k": K, "m_max": 256, **wrong}

    def body(ctx: RankContext) -> MoriGemmArError:
        with pytest.raises(ValueError, match=message):
            GemmAllReduceOp(ctx, **asked)
        with pytest.raises(MoriGemmArError) as caught:
            GemmAllReduceOp(ctx, **(asked if ctx.rank else {"n": N, "k": K, "m_max": 256}))
        assert len(ctx.node.regions) == 0
        return caught.value

    right, failed = run(2, body)
    assert isinstance(failed, ConfigError) and isinstance(right, CollectiveSetupError)
    assert "rank 1 failed at step 'check arguments'" in str(right)
    if not wrong.keys() & {"sdma_queues", "max_shapes"}:
        options = {name: value for name, value in wrong.items() if name not in ("k", "m_max")}
        assert not supports(asked["m_max"], N, asked["k"], 2, **options)


def test_supports() -> None:
    assert supports(16384, 7168, 2048, 8)
    assert supports(5, 7168, 2048, 8, gather_dtype="fp8", quant="mxfp8", gather_transport="sdma")
    assert not supports(5, 7168, 2048, 9)
    assert not supports(0, 7168, 2048, 8)
    assert not supports(5, 7168, 2048, 8, quant="mxfp4")
    assert not supports(5, 7160, 2048, 8)


def test_too_many_rows_and_a_closed_op() -> None:
    def body(ctx: RankContext) -> None:
        data = layer(2, 257, 0)
        with GemmAllReduceOp(ctx, n=N, k=K, m_max=256) as op:
            a, b, a_scale, b_scale = peers_operands(data, ctx.rank, 257, Recipe.BLOCKSCALE)
            with pytest.raises(ValueError, match="m=257 must be one of"):
                op(a, b, a_scale, b_scale)
            with pytest.raises(ValueError, match="m_pad=256 must be at least the rows of x"):
                op.pad_rows(a, 256)
            op.self_test()
            op.self_test(256)
            op.close()
            op.close()
            for use in (op.self_test, lambda: op(a, b, a_scale, b_scale)):
                with pytest.raises(ClosedError) as caught:
                    use()
                assert isinstance(caught.value, RuntimeError)

    run(2, body)
