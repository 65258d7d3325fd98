# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What an all-reduce with fp8 on the wire owes its caller, whoever moves the bytes."""

from __future__ import annotations

import math

import pytest
import torch

from mori_gemm_ar.layout import Wire
from mori_gemm_ar.runtime import RankContext
from tests.ranks.wire_data import GATES, create, each_wire, gaussian, relative_l2, wire_reference
from tests.ranks.worlds import BF16, Delays, fresh, require_bits, run, unfair

each_transport = pytest.mark.parametrize("transport", ["lsa", "sdma"])


@each_transport
@each_wire
def test_in_place_and_in_the_window(wire: Wire, transport: str) -> None:
    """Input, output or both in the window's buffer, and in the tensor itself; a zero-copy input keeps its values."""

    def body(ctx: RankContext) -> None:
        with create(ctx, wire, transport=transport) as op:
            for call, shape in enumerate([(37, 48), (5, 1040), (2, 16)] if wire.per_row else [(37, 43), (5, 1040)]):
                inputs = [fresh(shape, BF16, call, rank) for rank in range(3)]
                expected, where = wire_reference(inputs, wire), {"wire": wire, "shape": shape, "rank": ctx.rank}
                x = inputs[ctx.rank].clone()
                assert op(x, out=x) is x
                require_bits(x, expected, how="in place", **where)
                held = op.buffer(shape, BF16)
                held.copy_(inputs[ctx.rank])
                require_bits(op(held), expected, how="zero copy", **where)
                require_bits(held, inputs[ctx.rank], what="input", **where)
                op(held, out=held)
                require_bits(held, expected, how="in place in the window", **where)

    run(3, body)


@each_transport
@each_wire
def test_replays_use_new_data(wire: Wire, transport: str) -> None:
    """Recorded calls, mixed with direct ones of other sizes, one rank late each time."""

    def body(ctx: RankContext) -> None:
        delays = Delays(ctx)
        with create(ctx, wire, transport=transport) as op:
            slots = [torch.empty(shape, dtype=BF16) for shape in ((19, 80), (3, 176))]
            with op.target.record() as recording:
                outputs = [op(x) for x in slots]
            for replay in range(12):
                sets = [[fresh(x.shape, BF16, replay, rank) for rank in range(3)] for x in slots]
                for x, inputs in zip(slots, sets, strict=True):
                    x.copy_(inputs[ctx.rank])
                delays.only(replay)
                recording.replay()
                for y, inputs in zip(outputs, sets, strict=True):
                    require_bits(y, wire_reference(inputs, wire), replay=replay, rank=ctx.rank)
                if replay % 5 == 4:
                    inputs = [fresh((90, 96), BF16, replay, 9, rank) for rank in range(3)]
                    require_bits(op(inputs[ctx.rank]), wire_reference(inputs, wire), replay=replay, rank=ctx.rank)

    run(3, body, node=unfair(2))


@each_transport
@each_wire
def test_nan_and_infinity_stay_in_their_unit(wire: Wire, transport: str) -> None:
    """From any rank, in the middle and in the ragged tail; all else keeps the bits that it has without them."""
    columns, unit = 80, 80 if wire.per_row else 32
    marks = [(0, 3, math.nan), (1, 1000, math.inf), (2, 2017, -math.inf)]
    marks += [] if wire.per_row else [(0, 2410, math.nan)]
    shape = (30, columns) if wire.per_row else (30 * columns + 17,)

    def body(ctx: RankContext) -> None:
        with create(ctx, wire, transport=transport) as op:
            clean = [gaussian(shape, BF16, rank) for rank in range(3)]
            dirty = [x.clone() for x in clean]
            hit = torch.zeros(clean[0].numel(), dtype=torch.bool)
            for rank, at, value in marks:
                dirty[rank].view(-1)[at] = value
                hit[at // unit * unit : (at // unit + 1) * unit] = True
            y, before = op(dirty[ctx.rank]), op(clean[ctx.rank])
            require_bits(y, wire_reference(dirty, wire), wire=wire, rank=ctx.rank)
            assert torch.equal(torch.isnan(y).flatten(), hit)
            require_bits(y.flatten()[~hit], before.flatten()[~hit], wire=wire, rank=ctx.rank)

    run(3, body)


@each_transport
@each_wire
@pytest.mark.parametrize("world", [2, 4, 8])
def test_gates_on_gaussian_data(world: int, wire: Wire, transport: str) -> None:
    """Two-sided; all ranks hold the same bits, and the op's own measurement says the same."""

    def body(ctx: RankContext) -> torch.Tensor:
        low, high = GATES[wire]
        inputs = [gaussian((60, 1024), BF16, world, rank) for rank in range(world)]
        with create(ctx, wire, transport=transport) as op:
            y = op(inputs[ctx.rank])
            own, measured = op.wire_error(inputs[ctx.rank]), op.wire_error()
        loss = relative_l2(y, inputs)
        assert low <= loss <= high, f"wire={wire.value} world={world} rank={ctx.rank} relL2={loss:.3e}"
        # The op's fp32 sample is as large as its window allows.
        assert own.relative_l2 == pytest.approx(loss, rel=0.05) and (own.data, own.of_rows) == ("given", 60)
        assert low <= float(measured) <= high and measured.data == "gaussian" and measured.wire is wire
        return torch.cat([y.flatten(), torch.tensor([own.relative_l2, measured.relative_l2]).to(BF16)])

    ranks = run(world, body, seed=world)
    for rank in range(1, world):
        require_bits(ranks[rank], ranks[0], world=world, wire=wire, rank=rank)
