# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The all-reduce with fp8 on the wire against its statement in torch, bit by bit, and what it may lose."""

from __future__ import annotations

import random

import pytest
import torch

from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.errors import CollectiveMismatch, CollectiveSetupError, ConfigError
from mori_gemm_ar.layout import MI355X, AllReduceConfig, DType, Stage, Wire
from mori_gemm_ar.runtime import RankContext
from tests.ranks.wire_data import LOSSY, MAX_BYTES, create, each_wire, gaussian, through, wire_reference
from tests.ranks.worlds import (
    BF16,
    FP16,
    FP32,
    Delays,
    Guarded,
    errors,
    fresh,
    reference,
    require_bits,
    run,
    unfair,
)


def shapes(wire: Wire, world: int) -> list[tuple[int, ...]]:
    """Empty, below and around a group, one for each rank, ragged, several blocks; rows of one lane up to many."""
    if wire.per_row:
        return [(0, 16), (1, 16), (world, 48), (world * 8 + 1, 528), (3, 5, 1040), (world * 17, 64)]
    edges = [0, 1, 31, 32, 33, 95, 32 * world - 1, 32 * world + 5, 4096 * world + 40, 40_001]
    return [*((numel,) for numel in edges), (7, 11, 13)]


# --- bits ---


@each_wire
@pytest.mark.parametrize("world", range(2, 9))
def test_bits_of_every_size(world: int, wire: Wire) -> None:
    """New data in each call, sizes up and down; every other call writes into guarded memory at an odd place."""

    def body(ctx: RankContext) -> None:
        with create(ctx, wire) as op:
            sizes = shapes(wire, world)
            for call, shape in enumerate(sizes + sizes[::-1]):
                inputs = [fresh(shape, BF16, world, call, rank) for rank in range(world)]
                x = inputs[ctx.rank].clone()
                out = Guarded(shape, BF16, shift=call % 8) if call % 2 else None
                y = op(x, out=out.tensor if out else None)
                require_bits(x, inputs[ctx.rank], what="input", shape=shape, rank=ctx.rank)
                if out:
                    out.require_intact(shape=shape, rank=ctx.rank)
                require_bits(y, wire_reference(inputs, wire), world=world, wire=wire, shape=shape, rank=ctx.rank)

    run(world, body, seed=world)


@each_wire
def test_bits_of_fp16(wire: Wire) -> None:
    def body(ctx: RankContext) -> None:
        with create(ctx, wire, (FP16,)) as op:
            for shape in shapes(wire, 3):
                inputs = [fresh(shape, FP16, 5, rank) for rank in range(3)]
                require_bits(op(inputs[ctx.rank]), wire_reference(inputs, wire), wire=wire, shape=shape, rank=ctx.rank)

    run(3, body)


def test_the_reference_can_tell_the_wires_apart() -> None:
    """Negative control: equal bits above mean these roundings, in this order, on these legs."""
    inputs = [fresh((64, 64), BF16, rank) for rank in range(4)]
    exact = reference(inputs)
    results = [exact, *(wire_reference(inputs, wire) for wire in LOSSY)]
    for at, one in enumerate(results):
        for other in results[:at]:
            with pytest.raises(AssertionError, match="elements differ"):
                require_bits(one, other)
    require_bits(wire_reference(inputs, Wire.FP8), through(exact, Wire.FP8, BF16))


@each_wire
@pytest.mark.parametrize("seed", range(3))
def test_neither_seed_nor_delays_change_bits(seed: int, wire: Wire) -> None:
    def body(ctx: RankContext) -> None:
        delays, shared = Delays(ctx, seed), random.Random(seed)
        with create(ctx, wire) as op:
            for call in range(6):
                shape = (shared.randint(0, 120), 16 * shared.randint(1, 30))
                inputs = [fresh(shape, BF16, call, rank) for rank in range(4)]
                delays.only(call)
                require_bits(op(inputs[ctx.rank]), wire_reference(inputs, wire), call=call, rank=ctx.rank)

    run(4, body, seed=seed, node=unfair(seed))


# --- NaN, infinity, and who owns what ---


@each_wire
def test_a_rows_bits_do_not_depend_on_its_owner(wire: Wire) -> None:
    """The same row at every place of a tensor, and in worlds of other slices: one set of bits."""
    rows = [gaussian(96, BF16, rank) for rank in range(4)]

    def body(ctx: RankContext) -> None:
        with create(ctx, wire) as op:
            for count in (1, 9, 40):
                y = op(rows[ctx.rank].expand(count, 96).contiguous())
                require_bits(y, wire_reference([row.view(1, 96) for row in rows], wire).expand(count, 96).contiguous())

    run(4, body)


@each_wire
def test_large_values_saturate_and_never_become_nan(wire: Wire) -> None:
    """Sums up to the largest that bf16 has, and a group whose scale is the smallest there is."""

    def body(ctx: RankContext) -> None:
        with create(ctx, wire) as op:
            x = gaussian((16, 64), BF16, 4)
            x = x * torch.ldexp(torch.ones(16, 1), torch.arange(16).view(16, 1) * 17 - 135).to(BF16)
            x[15, 3], x[14, 60], x[0, :] = 1.5e38, -1.2e38, 2.0**-133
            y = op(x)
            require_bits(y, wire_reference([x] * 2, wire), rank=ctx.rank)
            assert not bool(torch.isnan(y).any())

    run(2, body)


# --- what is lost ---


@pytest.mark.parametrize("world", [1, 3])
def test_nothing_is_lost_where_nothing_lossy_is_sent(world: int) -> None:
    """An exact op, and any op in a world of one."""

    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, MAX_BYTES, wire="fp8" if world == 1 else "exact", dtypes=(BF16,)) as op:
            inputs = [fresh(333, BF16, rank) for rank in range(world)]
            assert op.wire is Wire.EXACT and op.wire_error(inputs[ctx.rank]).relative_l2 == 0.0
            require_bits(op(inputs[ctx.rank]), reference(inputs), rank=ctx.rank)

    run(world, body)


def test_wire_error_of_odd_tensors() -> None:
    """One element, none, one long row above the room of its sample; and an op that can hardly hold anything."""

    def body(ctx: RankContext) -> None:
        with create(ctx, Wire.FP8, max_bytes=4096) as op:
            for shape in ((), (0,), (1,), (2048,), (2, 0)):
                found = op.wire_error(gaussian(shape, BF16, ctx.rank))
                assert 0 <= found.relative_l2 < 0.1 and found.data == "given"
            assert (found.rows, found.columns) == (0, 0) or found.rows <= 1
            with op.target.record(), pytest.raises(ConfigError, match="must not be called while recording"):
                op.wire_error()
        with create(ctx, Wire.FP8, max_bytes=2) as op:
            assert float(op.wire_error()) == 0.0

    run(2, body)


# --- choices and refusals ---


def test_a_lossy_wire_takes_two_stages_whatever_the_size() -> None:
    def body(ctx: RankContext) -> None:
        with create(ctx, Wire.FP8, max_bytes=1 << 24) as op:
            assert op.wire is Wire.FP8
            for numel in (0, 8, 1 << 22):
                plan = op.plan(numel, BF16)
                assert plan.config == AllReduceConfig(2, DType.BF16, Stage.TWO, wire=Wire.FP8)
            assert plan.blocks == MI355X.remote_fp8_blocks
        with create(ctx, Wire.FP8_ROW) as op:
            assert op.plan(100 * 64, BF16, columns=64).blocks == 7
            with pytest.raises(ConfigError, match="columns=None must be an int"):
                op.plan(6400, BF16)

    run(2, body)


REFUSED = [
    ({"wire": "mxfp8"}, "wire='mxfp8' must be one of 'exact', 'fp8', 'fp8-both', 'fp8-row'"),
    ({"wire": None}, "wire=None must be one of"),
    ({"wire": "fp8", "stage": Stage.ONE}, "stage=Stage.ONE must be Stage.TWO or None for wire='fp8'"),
    ({"wire": "fp8", "dtypes": (BF16, FP32)}, "dtype=fp32 must be a 16-bit type for wire='fp8'"),
]


@pytest.mark.parametrize(("arguments", "text"), REFUSED, ids=[str(arguments) for arguments, _ in REFUSED])
def test_refused_at_create(arguments: dict[str, object], text: str) -> None:
    def body(ctx: RankContext) -> None:
        AllReduceOp.create(ctx, 4096, **arguments)

    for error in errors(2, body):
        assert isinstance(error, ConfigError | CollectiveSetupError) and text in str(error)


def test_refused_calls() -> None:
    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 4096, wire="fp8-row") as op:
            assert op.dtypes == (BF16, FP16)
            with pytest.raises(ConfigError, match="must be among the dtypes"):
                op(torch.ones(32, dtype=FP32))
            with pytest.raises(ConfigError, match="columns=24 must be a multiple of 16 for wire='fp8-row'"):
                op(torch.ones(2, 24, dtype=BF16))
            require_bits(op(torch.ones(2, 32, dtype=BF16)), torch.full((2, 32), 2.0, dtype=BF16))

    run(2, body)


def test_ranks_that_ask_for_different_wires_are_told() -> None:
    def body(ctx: RankContext) -> None:
        AllReduceOp.create(ctx, 4096, wire=("exact", "fp8")[ctx.rank])

    for error in errors(2, body):
        assert "transport, queues, wire and cco_device must be equal on all ranks" in str(error)
        assert "'exact'" in str(error) and "'fp8'" in str(error)


def test_ranks_that_call_with_different_rows_are_told() -> None:
    """The same elements in other rows have other scales: a mismatch, and no wrong sum."""

    def body(ctx: RankContext) -> None:
        with create(ctx, Wire.FP8_ROW) as op:
            op(torch.ones((4, 96) if ctx.rank else (8, 48), dtype=BF16))

    texts = [str(error) for error in errors(2, body) if isinstance(error, CollectiveMismatch)]
    assert texts and all("in rows of 48, 2-stage, wire 'fp8-row'" in text and "in rows of 96" in text for text in texts)
