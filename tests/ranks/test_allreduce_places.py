# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Where input and output of an all-reduce may lie: any alignment, in place, in the window, strided, overlapping."""

from __future__ import annotations

import pytest
import torch

from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import Stage
from mori_gemm_ar.runtime import RankContext
from tests.ranks.worlds import (
    BF16,
    DTYPES,
    FP16,
    FP32,
    MAX_BYTES,
    Delays,
    Guarded,
    both_stages,
    fresh,
    reference,
    require_all,
    require_bits,
    run,
    unfair,
)


@both_stages
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_starts_at_every_element(stage: Stage, dtype: torch.dtype) -> None:
    """tensor[1:] is aligned to one element only; source and destination shift on their own."""

    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 1 << 14, stage=stage, dtypes=(dtype,)) as op:
            for source in range(0, 8, 3):
                for target in range(0, 8, 3):
                    numel = 1003 + source
                    inputs = [fresh(numel, dtype, source, target, rank) for rank in range(ctx.size)]
                    x, out = Guarded(numel, dtype, shift=source + ctx.rank), Guarded(numel, dtype, shift=target)
                    x.tensor.copy_(inputs[ctx.rank])
                    op(x.tensor, out=out.tensor)
                    where = {"source": source, "target": target, "dtype": dtype, "rank": ctx.rank}
                    require_bits(out.tensor, reference(inputs), **where)
                    require_bits(x.tensor, inputs[ctx.rank], what="input", **where)
                    x.require_intact(**where)
                    out.require_intact(**where)

    run(3, body)


@both_stages
@pytest.mark.parametrize("world", [1, 2, 5])
def test_in_place(world: int, stage: Stage) -> None:
    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, MAX_BYTES, stage=stage) as op:
            for dtype in DTYPES:
                for numel in (1, 9, 1001, MAX_BYTES // dtype.itemsize):
                    inputs = [fresh(numel, dtype, numel, rank) for rank in range(ctx.size)]
                    x = Guarded(numel, dtype, shift=1)
                    x.tensor.copy_(inputs[ctx.rank])
                    assert op(x.tensor, out=x.tensor) is x.tensor
                    require_bits(x.tensor, reference(inputs), dtype=dtype, numel=numel, rank=ctx.rank)
                    x.require_intact(dtype=dtype, numel=numel, rank=ctx.rank)

    run(world, body)


@pytest.mark.parametrize("world", [1, 2, 4, 7])
def test_zero_copy_from_the_window(world: int) -> None:
    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, MAX_BYTES) as op:
            for dtype in DTYPES:
                for numel in (0, 1, 1003, MAX_BYTES // dtype.itemsize):
                    inputs = [fresh(numel, dtype, numel, rank) for rank in range(ctx.size)]
                    buffer = op.buffer((numel,), dtype)
                    buffer.copy_(inputs[ctx.rank])
                    y = op(buffer)
                    where = {"world": world, "dtype": dtype, "numel": numel, "rank": ctx.rank}
                    require_bits(y, reference(inputs), **where)
                    require_bits(buffer, inputs[ctx.rank], what="input", **where)
                    assert numel == 0 or y.data_ptr() != buffer.data_ptr()
                    ctx.barrier()  # the buffer is one memory for all shapes and dtypes

    run(world, body)


@pytest.mark.parametrize("stage", [Stage.TWO, None], ids=["TWO", "auto"])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_zero_copy_in_place_in_the_window(world: int, stage: Stage | None) -> None:
    def body(ctx: RankContext) -> None:
        delays = Delays(ctx)
        with AllReduceOp.create(ctx, MAX_BYTES, stage=stage, dtypes=(BF16,)) as op:
            for numel in (1, 9, 1003, MAX_BYTES // 2, 8):
                inputs = [fresh(numel, BF16, numel, rank) for rank in range(ctx.size)]
                buffer = op.buffer((numel,), BF16)
                buffer.copy_(inputs[ctx.rank])
                delays.maybe()
                assert op(buffer, out=buffer) is buffer
                require_bits(buffer, reference(inputs), world=world, numel=numel, rank=ctx.rank)

    run(world, body, node=unfair(1))


def test_one_stage_in_place_in_the_window_is_refused() -> None:
    """Peers read the window until the end of that kernel. Nothing is launched, and the op goes on."""

    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 1 << 12, stage=Stage.ONE, dtypes=(BF16,)) as op:
            buffer = op.buffer((100,), BF16)
            buffer.fill_(ctx.rank + 1)
            with pytest.raises(ConfigError, match=r"stage=Stage.ONE must be Stage.TWO for an in-place call.*out="):
                op(buffer, out=buffer)
            require_all(buffer, ctx.rank + 1)
            require_all(op(buffer), 6, rank=ctx.rank)

    run(3, body)


@both_stages
def test_ranks_may_mix_zero_copy_and_staged_input(stage: Stage) -> None:
    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 1 << 14, stage=stage, dtypes=(BF16,)) as op:
            for turn in range(ctx.size):
                inputs = [fresh((3, 667), BF16, turn, rank) for rank in range(ctx.size)]
                x = inputs[ctx.rank].clone()
                if ctx.rank == turn:
                    x = op.buffer((3, 667), BF16).copy_(x)
                require_bits(op(x), reference(inputs), turn=turn, rank=ctx.rank)

    run(3, body)


def test_ranks_may_mix_places_with_the_stage_fixed() -> None:
    """In place in the window on one rank, beside it in the window, elsewhere: all are the same two-stage call."""

    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 1 << 14, stage=Stage.TWO, dtypes=(FP16,)) as op:
            for turn in range(4):
                inputs = [fresh(2001, FP16, turn, rank) for rank in range(ctx.size)]
                x, window = inputs[ctx.rank].clone(), op.buffer((2001,), FP16)
                way = (ctx.rank + turn) % 4
                if way == 0:
                    y = op(window.copy_(x), out=window)
                elif way == 1:
                    y = op(x, out=window)
                elif way == 2:
                    y = op(x, out=x)
                else:
                    y = op(window.copy_(x))
                require_bits(y, reference(inputs), turn=turn, way=way, rank=ctx.rank)

    run(4, body)


def test_part_of_the_window_is_not_overwritten_while_peers_read_it() -> None:
    """A view into the buffer, and one past its start as the output, take a copy."""

    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 1 << 14, dtypes=(FP32,)) as op:
            inputs = [fresh(1000, FP32, rank) for rank in range(ctx.size)]
            buffer = op.buffer((1000,), FP32)
            buffer.copy_(inputs[ctx.rank])
            shifted = op(buffer[1:])
            require_bits(shifted, reference([x[1:] for x in inputs]), rank=ctx.rank)
            buffer.copy_(inputs[ctx.rank])
            op(buffer[:-1], out=buffer[1:])
            require_bits(buffer[1:], reference([x[:-1] for x in inputs]), rank=ctx.rank)
            buffer.copy_(inputs[ctx.rank])
            op(inputs[ctx.rank][:500], out=buffer[200:700])
            require_bits(buffer[200:700], reference([x[:500] for x in inputs]), rank=ctx.rank)

    run(3, body, node=unfair(1))


def strided(rank: int) -> list[torch.Tensor]:
    """Non-contiguous inputs, with memory between and around their elements."""
    base = fresh((40, 30), BF16, rank)
    return [
        base.t(),
        base[:, ::2],
        base[:, 1:5],
        base[::3],
        base[:1].expand(6, 30),
        base.view(4, 10, 30).permute(2, 0, 1),
    ]


@both_stages
def test_strided_tensors(stage: Stage) -> None:
    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 1 << 13, stage=stage, dtypes=(BF16,)) as op:
            for case, inputs in enumerate(zip(*map(strided, range(ctx.size)), strict=True)):
                x, expected = inputs[ctx.rank], reference([x.contiguous() for x in inputs])
                before = x.clone()
                where = {"case": case, "rank": ctx.rank}
                require_bits(op(x), expected, **where)
                require_bits(x, before, what="input", **where)
                wide = torch.full((*x.shape, 3), 7.0, dtype=BF16)
                assert op(x, out=wide[..., 1]).data_ptr() == wide[..., 1].data_ptr()
                require_bits(wide[..., 1], expected, **where)
                require_all(wide[..., ::2], 7.0, what="around out", **where)

    run(3, body)


@both_stages
def test_output_that_overlaps_the_input(stage: Stage) -> None:
    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 1 << 13, stage=stage, dtypes=(FP32,)) as op:
            inputs = [fresh((32, 32), FP32, rank) for rank in range(ctx.size)]
            x = inputs[ctx.rank].clone()
            op(x, out=x.t())
            require_bits(x.t(), reference(inputs), rank=ctx.rank)
            line = inputs[ctx.rank].reshape(-1).clone()
            op(line[:1000], out=line[9:1009])
            require_bits(line[9:1009], reference([x.reshape(-1)[:1000] for x in inputs]), rank=ctx.rank)
            require_bits(line[:9], inputs[ctx.rank].reshape(-1)[:9], what="before out", rank=ctx.rank)

    run(3, body)


def test_lazily_negated_views() -> None:
    """`conj().imag` is real and strided, and its memory holds the opposite sign."""

    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 1 << 12, dtypes=(FP32,)) as op:
            x = torch.complex(torch.zeros(9), torch.arange(9.0)).conj().imag[3:4]
            assert x.is_neg() and x.is_contiguous()
            require_all(op(x), -6.0, rank=ctx.rank)
            out = torch.zeros(5, dtype=torch.complex64).conj().imag
            op(torch.full((5,), ctx.rank + 1.0), out=out)
            require_all(out.resolve_neg(), 3.0, rank=ctx.rank)

    run(2, body)


def test_inputs_may_share_memory_between_ranks() -> None:
    """The same tensor on all ranks, and views that overlap."""
    shared = fresh(2000, BF16, 1)

    def body(ctx: RankContext) -> tuple[torch.Tensor, torch.Tensor]:
        with AllReduceOp.create(ctx, 1 << 13, dtypes=(BF16,)) as op:
            result = op(shared), op(shared[10 * ctx.rank : 10 * ctx.rank + 1900])
        assert len(ctx.node.regions) in (0, ctx.size)
        return result

    for rank, (same, shifted) in enumerate(run(3, body)):
        require_bits(same, reference([shared] * 3), rank=rank)
        require_bits(shifted, reference([shared[10 * r : 10 * r + 1900] for r in range(3)]), rank=rank)
