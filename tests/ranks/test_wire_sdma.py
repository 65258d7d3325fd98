# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The copy-engine all-reduce with fp8 on the wire: bit by bit its statement in torch and the load/store transport."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch

from mori_gemm_ar.emulator import EngineSettings, Node
from mori_gemm_ar.emulator.adversary import DEFAULT_ADVERSARY
from mori_gemm_ar.emulator.races.detector import RaceDetector
from mori_gemm_ar.emulator.weak import WeakMemory
from mori_gemm_ar.errors import CollectiveMismatch
from mori_gemm_ar.layout import DType, Wire
from mori_gemm_ar.layout.sdma import SdmaPhase, Transport, sdma_config
from mori_gemm_ar.runtime import LocalWorld, RankContext
from tests.ranks.test_sdma_allreduce import engines_from
from tests.ranks.test_wire import shapes
from tests.ranks.wire_data import create as create_on
from tests.ranks.wire_data import each_wire, wire_reference
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

create = partial(create_on, transport="sdma")


# --- bits ---


@each_wire
@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_bits_of_every_size(world: int, wire: Wire) -> None:
    """New data in each call, sizes up and down, against torch and load and store; every other out= at an odd place."""

    def body(ctx: RankContext) -> None:
        with create(ctx, wire) as op, create(ctx, wire, transport="lsa") as other:
            assert op.transports == (Transport.SDMA,) and other.transports == (Transport.LSA,)
            sizes = shapes(wire, world)
            for call, shape in enumerate(sizes + sizes[::-1]):
                inputs = [fresh(shape, BF16, world, call, rank) for rank in range(world)]
                x, where = inputs[ctx.rank].clone(), {"wire": wire, "shape": shape, "rank": ctx.rank}
                out = Guarded(shape, BF16, shift=call % 8) if call % 2 else None
                y = op(x, out=out.tensor if out else None)
                require_bits(x, inputs[ctx.rank], what="input", **where)
                if out:
                    out.require_intact(**where)
                require_bits(y, wire_reference(inputs, wire), world=world, **where)
                if call < len(sizes):
                    require_bits(other(x), y, what="load and store", **where)

    run(world, body, seed=world)


@each_wire
@pytest.mark.parametrize("queues", [1, 3, 8])
def test_bits_of_fp16_and_of_many_queues(queues: int, wire: Wire) -> None:
    """Also where a wire slice has fewer packs than there are queues, and where the input lies at an odd place."""

    def body(ctx: RankContext) -> None:
        with create(ctx, wire, (FP16,), queues=queues) as op:
            for call, shape in enumerate(shapes(wire, 3)):
                inputs = [fresh(shape, FP16, 5, rank) for rank in range(3)]
                source = Guarded(shape, FP16, shift=call % 8)
                source.tensor.copy_(inputs[ctx.rank])
                y = op(source.tensor)
                require_bits(y, wire_reference(inputs, wire), wire=wire, shape=shape, queues=queues, rank=ctx.rank)

    run(3, body)


@each_wire
def test_it_is_not_the_exact_one(wire: Wire) -> None:
    """Negative control: the wire that was asked for is in force, on ops that only have copy engines too."""
    inputs = [fresh((64, 64), BF16, rank) for rank in range(2)]

    def body(ctx: RankContext) -> None:
        with create(ctx, wire) as op:
            plan = op.plan(4096, BF16, columns=64 if wire.per_row else None)
            assert plan.config == sdma_config(2, DType.BF16, SdmaPhase.REDUCE, wire)
            with pytest.raises(AssertionError, match="elements differ"):
                require_bits(op(inputs[ctx.rank]), reference(inputs))

    run(2, body)


@each_wire
@pytest.mark.parametrize("seed", range(3))
def test_neither_seed_nor_delays_change_bits(seed: int, wire: Wire) -> None:
    """Ranks, blocks and engines drift apart; engines that never move before they must are among them."""

    def body(ctx: RankContext) -> None:
        delays = Delays(ctx, seed)
        with create(ctx, wire, queues=2) as op:
            for call, m in enumerate((100, 3, 41, 0, 1, 64)):
                inputs = [fresh((m, 528), BF16, seed, call, rank) for rank in range(3)]
                delays.only(call)
                require_bits(op(inputs[ctx.rank]), wire_reference(inputs, wire), seed=seed, call=call, rank=ctx.rank)

    engines = EngineSettings(ordered=bool(seed % 2), busy=(0.0, 0.2, 1.0)[seed])
    LocalWorld(3, seed, node=unfair(seed), engines=engines).run(body)


@each_wire
@pytest.mark.parametrize("seed", range(3))
def test_bits_in_weak_memory_without_a_race(seed: int, wire: Wire) -> None:
    """Several blocks, and less than one after that; the short group lies in the last slice and in the first."""
    columns = 48
    rows = (2 * 9 * 3 + 1, 2, 25) if wire.per_row else (2 * 512 * 8 * 3 // columns, 1, 90)

    def body(ctx: RankContext) -> None:
        delays = Delays(ctx, seed)
        with create(ctx, wire, queues=1 + seed % 2, timeout_s=5) as op:
            for call, m in enumerate(rows):
                shape = (m, columns) if wire.per_row else (m * columns + 5,)
                inputs = [fresh(shape, BF16, seed, call, rank) for rank in range(3)]
                delays.only(call + seed)
                require_bits(op(inputs[ctx.rank]), wire_reference(inputs, wire), seed=seed, call=call, rank=ctx.rank)

    adversary = replace(DEFAULT_ADVERSARY, engine=1.0)
    node: Callable[[int], Node] = lambda size: Node(size, memory=WeakMemory(seed, adversary), races=RaceDetector())  # noqa: E731
    LocalWorld(3, seed, node=node, engines=EngineSettings(busy=(0.0, 0.5, 1.0)[seed])).run(body)


@each_wire
def test_both_transports_of_one_op(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """With "auto" calls of one op take turns; neither disturbs what the other keeps in the window."""
    engines_from(monkeypatch, 1 << 14)

    def body(ctx: RankContext) -> None:
        delays = Delays(ctx)
        with create(ctx, wire, transport="auto") as op:
            assert op.transports == (Transport.LSA, Transport.SDMA)
            for call, m in enumerate((100, 7, 64, 65, 1, 3, 120, 120, 2)):
                inputs = [fresh((m, 176), BF16, call, rank) for rank in range(3)]
                delays.only(call)
                require_bits(op(inputs[ctx.rank]), wire_reference(inputs, wire), call=call, m=m, rank=ctx.rank)

    run(3, body, node=unfair(1))


# --- refusals ---


@each_wire
def test_ranks_that_call_with_another_size_are_told(wire: Wire) -> None:
    def body(ctx: RankContext) -> None:
        with create(ctx, wire) as op:
            op(torch.ones((4, 96) if ctx.rank else (8, 80), dtype=BF16))

    texts = [str(error) for error in errors(2, body) if isinstance(error, CollectiveMismatch)]
    rows = " in rows of 80" if wire.per_row else ""
    assert texts and all(f"640 x bf16{rows}, by copy engine, wire '{wire.value}'" in text for text in texts), texts


def test_refused_at_create() -> None:
    def body(ctx: RankContext) -> None:
        create(ctx, Wire.FP8, (BF16, FP32))

    assert all("dtype=fp32 must be a 16-bit type for wire='fp8'" in str(error) for error in errors(2, body))
