# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Failure cases that others met with sizes, views, empty batches, capacity and range."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.errors import CollectiveMismatch, ConfigError
from mori_gemm_ar.layout import Stage
from mori_gemm_ar.runtime import RankContext
from tests.ranks.worlds import BF16, Delays, Guarded, both_stages, errors, require_all, require_bits, run

# --- world sizes ---


@pytest.mark.parametrize(("world", "total"), [(1, 1), (2, 3), (3, 6), (5, 15), (6, 21), (7, 28), (8, 36)])
def test_supported_world_sizes(world: int, total: int) -> None:
    def body(ctx: RankContext) -> None:
        for stage in (Stage.ONE, Stage.TWO, None):
            with AllReduceOp.create(ctx, 1 << 14, stage=stage, dtypes=(BF16,)) as op:
                y = op(torch.full((7, 1000), ctx.rank + 1.0, dtype=BF16))
                require_all(y, total, world=world, stage=stage, rank=ctx.rank)

    run(world, body)


@pytest.mark.parametrize("world", [9, 16])
def test_unsupported_world_sizes(world: int) -> None:
    """Decided when the op is created, alike on all ranks, with the sizes that work."""

    def body(ctx: RankContext) -> int:
        with pytest.raises(ConfigError) as caught:
            AllReduceOp.create(ctx, 1 << 14, dtypes=(BF16,))
        assert str(caught.value) == f"world={world} must be one of 1..8; use a group of 1 to 8 ranks"
        return len(ctx.node.regions)

    assert run(world, body) == [0] * world


# --- non-contiguous input, and the contract of in place ---

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "t": lambda base: base.t(),
    "every_other_column": lambda base: base[:, ::2],
    "columns_1_to_5": lambda base: base[:, 1:5],
    "every_other_row": lambda base: base[::2],
    "three_dimensions": lambda base: base.view(2, 3, 8),
    "one_dimension": lambda base: base.view(48),
    "no_dimension": lambda base: base[2, 3],
}


def base_of(rank: int) -> torch.Tensor:
    return torch.arange(48).view(6, 8).to(BF16) + 64 * rank


@both_stages
@pytest.mark.parametrize("name", VIEWS)
def test_views_in_and_out_of_place(name: str, stage: Stage) -> None:
    """2*base + 64 in the logical positions; memory around a view stays as it was."""
    view = VIEWS[name]
    expected = view(2 * torch.arange(48).view(6, 8) + 64).to(BF16)

    def body(ctx: RankContext) -> None:
        where = {"view": name, "stage": stage, "rank": ctx.rank}
        with AllReduceOp.create(ctx, 1 << 10, stage=stage, dtypes=(BF16,)) as op:
            base = base_of(ctx.rank)
            require_bits(op(view(base)), expected, **where)
            require_bits(base, base_of(ctx.rank), what="x unchanged", **where)
            elsewhere = torch.full((*expected.shape, 2), 7.0, dtype=BF16)
            op(view(base), out=elsewhere[..., 0])
            require_bits(elsewhere[..., 0], expected, what="strided out", **where)
            require_all(elsewhere[..., 1], 7.0, what="around strided out", **where)
            op(view(base), out=view(base))
            around = base_of(ctx.rank)
            view(around).copy_(expected)
            require_bits(base, around, what="in place", **where)

    run(2, body)


def test_expanded_tensors() -> None:
    """Readable as input; as output their elements share memory, so they are refused on every rank."""

    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 1 << 10, dtypes=(BF16,)) as op:
            x = base_of(ctx.rank)[:1].expand(6, 8)
            expected = (2 * torch.arange(8) + 64).to(BF16).expand(6, 8)
            require_bits(op(x), expected, rank=ctx.rank)
            with pytest.raises(ConfigError, match=r"out.stride=\(0, 1\) must not be expanded; pass a tensor with"):
                op(x, out=x)
            require_bits(x, base_of(ctx.rank)[:1].expand(6, 8), what="after the error", rank=ctx.rank)
            require_bits(op(x), expected, what="next call", rank=ctx.rank)

    run(2, body)


# --- zero tokens ---


@both_stages
def test_no_rows(stage: Stage) -> None:
    """An empty call is a call: it has the right shape, and the neighbouring calls stay in step."""

    def body(ctx: RankContext) -> None:
        delays = Delays(ctx)
        with AllReduceOp.create(ctx, 1 << 14, stage=stage, dtypes=(BF16,)) as op:
            for call, m in enumerate((0, 4, 0, 4, 0, 0, 1)):
                delays.maybe()
                x = torch.full((m, 1024), ctx.rank + 1.0, dtype=BF16)
                y = op(x, out=torch.empty_like(x)) if call % 2 else op(x)
                assert tuple(y.shape) == (m, 1024) and y.dtype is BF16
                require_all(y, 3, call=call, m=m, rank=ctx.rank)

    run(2, body)


def test_no_rows_on_one_rank_only() -> None:
    """Both ranks get the error that names both calls; a new op is not touched by it."""

    def body(ctx: RankContext) -> None:
        op = AllReduceOp.create(ctx, 1 << 14, timeout_s=5, dtypes=(BF16,))
        with pytest.raises(CollectiveMismatch) as caught:
            op(torch.ones(0 if ctx.rank else 4, 1024, dtype=BF16))
        assert "4096 x bf16, 1-stage" in str(caught.value) and "0 x bf16, 1-stage" in str(caught.value)
        with pytest.raises(CollectiveMismatch):
            op(torch.ones(4, 1024, dtype=BF16))
        op.close()
        with AllReduceOp.create(ctx, 1 << 14, dtypes=(BF16,)) as new:
            require_all(new(torch.full((4, 1024), ctx.rank + 1.0, dtype=BF16)), 3, rank=ctx.rank)

    assert errors(2, body) == [None, None]


# --- workspace and its limit ---


@both_stages
def test_capacity_is_what_the_check_says(stage: Stage) -> None:
    """All sizes up to max_bytes work, none above, with a neighbour's window beside it that must stay as it is."""

    def body(ctx: RankContext) -> None:
        neighbour = AllReduceOp.create(ctx, 65536, dtypes=(BF16,))
        with neighbour, AllReduceOp.create(ctx, 65536, stage=stage, dtypes=(BF16,)) as op:
            pattern = neighbour.buffer((32768,), BF16).copy_(torch.arange(32768) % 251)
            before, results = pattern.clone(), []
            for m in (10, 11, 16, 17, 32, 33, 64, 10):
                x = torch.full((m, 1024), ctx.rank + 1.0, dtype=BF16)
                out = Guarded((m, 1024), BF16)
                for repeat in range(5):
                    if m > 32:
                        with pytest.raises(ConfigError, match=rf"nbytes={m * 2048} must be at most max_bytes=65536; "):
                            op(x, out=out.tensor)
                        continue
                    out.tensor.zero_()
                    require_all(op(x, out=out.tensor), 3, m=m, repeat=repeat, rank=ctx.rank)
                    results.append(out.tensor.clone())
                out.require_intact(m=m, rank=ctx.rank)
                require_bits(pattern, before, what="neighbour", m=m, rank=ctx.rank)
            require_bits(results[-1], results[0], what="last call", rank=ctx.rank)

    run(2, body)


# --- range and accumulator ---


def sums(values: list[list[float]]) -> torch.Tensor:
    """`[2, 256]` bf16 with each rank's first values given and 1 elsewhere; the result of every rank and stage."""

    def body(ctx: RankContext) -> list[torch.Tensor]:
        results = []
        for stage in (Stage.ONE, Stage.TWO):
            with AllReduceOp.create(ctx, 1 << 10, stage=stage, dtypes=(BF16,)) as op:
                x = torch.ones(2, 256, dtype=BF16)
                x.view(-1)[: len(values[ctx.rank])] = torch.tensor(values[ctx.rank])
                results.append(op(x))
        return results

    first, *others = [y for rank in run(len(values), body) for y in rank]
    for y in others:
        require_bits(y, first, values=values)
    require_all(first.view(-1)[len(values[0]) :], len(values), values=values)
    return first.view(-1)[: len(values[0])]


def test_values_beyond_fp16() -> None:
    require_all(sums([[1e30], [1.0]]), 1e30)
    require_all(sums([[70000.0] * 8] * 2), 140288)


def test_accumulator_is_wider_than_bf16() -> None:
    total = sums([[256.0]] + [[1.0]] * 7)
    require_all(total, 264)
    narrow = torch.tensor(256.0, dtype=BF16)
    for _ in range(7):
        narrow += 1  # negative control: what a bf16 accumulator makes of it
    assert narrow.item() == 256


def test_overflow_is_infinity_and_never_nan() -> None:
    """fp32 keeps 3e38 twice out of range: infinity, as documented; what cancels in rank order is finite."""
    require_all(sums([[3e38], [3e38]]), float("inf"))
    require_all(sums([[3e38], [-3e38]]), 0.0)
    require_all(sums([[3e38], [3e38], [-3e38], [-3e38]]), float("inf"))
    require_all(sums([[3e38], [-3e38], [3e38], [-3e38]]), 0.0)
