# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The all-reduce by copy engines: bit by bit the reference and the load/store transport, on every rank."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest
import torch

from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.ar import op as op_module
from mori_gemm_ar.ar import transport as transport_module
from mori_gemm_ar.emulator import EngineSettings
from mori_gemm_ar.errors import CollectiveMismatch, CollectiveTimeout
from mori_gemm_ar.layout import MI355X
from mori_gemm_ar.layout.sdma import SdmaPhase, Transport
from mori_gemm_ar.runtime import LocalWorld, RankContext
from tests.ranks.worlds import (
    BF16,
    DTYPES,
    FP32,
    MAX_BYTES,
    Delays,
    Guarded,
    errors,
    fresh,
    now,
    reference,
    require_all,
    require_bits,
    run,
    unfair,
)

KIB = 1 << 10


def create(ctx: RankContext, max_bytes: int = MAX_BYTES, **options: Any) -> AllReduceOp:
    options.setdefault("transport", "sdma")
    return AllReduceOp.create(ctx, max_bytes, **options)


def engines_from(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Let "auto" choose copy engines from this size on."""
    machine = dataclasses.replace(MI355X, copy_bytes=nbytes)
    monkeypatch.setattr(op_module, "MI355X", machine)
    monkeypatch.setattr(transport_module, "MI355X", machine)


def sizes(world: int, dtype: torch.dtype) -> list[int]:
    """Empty, below and around a pack, one pack for some ranks and for each, odd tails, several blocks, the limit."""
    pack, most = 16 // dtype.itemsize, MAX_BYTES // dtype.itemsize
    edges = {0, 1, 7, 8, 9, pack + 1, 333, 7 * 143, most - 1, most}
    return sorted(edges | {world * pack - 1, world * pack, world * pack + 1})


# --- bits ---


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_bits_of_every_size_and_dtype(world: int) -> None:
    """New data in each call, against the reference and against load and store; every other out= at an odd place."""

    def body(ctx: RankContext) -> None:
        with create(ctx) as op, create(ctx, transport="lsa") as other:
            assert op.transports == ((Transport.SDMA,) if world > 1 else (Transport.LSA,))
            assert other.transports == (Transport.LSA,)
            for dtype in DTYPES:
                for call, numel in enumerate(sizes(world, dtype)):
                    inputs = [fresh(numel, dtype, world, numel, rank) for rank in range(world)]
                    x, expected = inputs[ctx.rank].clone(), reference(inputs)
                    out = Guarded(numel, dtype, shift=call % 8) if call % 2 else None
                    y = op(x, out=out.tensor if out else None)
                    where = {"world": world, "dtype": dtype, "numel": numel, "rank": ctx.rank}
                    require_bits(y, expected, **where)
                    require_bits(x, inputs[ctx.rank], what="input", **where)
                    if out:
                        assert y is out.tensor
                        out.require_intact(**where)
                    require_bits(other(x), y, what="load and store", **where)

    run(world, body, seed=world)


@pytest.mark.parametrize("queues", [1, 2, 3, 8])
def test_bits_do_not_depend_on_queues(queues: int) -> None:
    """Also where a slice has fewer packs than there are queues."""

    def body(ctx: RankContext) -> None:
        with create(ctx, queues=queues, dtypes=(BF16, FP32)) as op:
            assert op.queues == queues
            for dtype in (BF16, FP32):
                for numel in (0, 1, 8, 3 * 8, 3 * 8 * 5 + 3, 1001, 3 * 8 * queues, MAX_BYTES // 4):
                    inputs = [fresh(numel, dtype, queues, numel, rank) for rank in range(3)]
                    where = {"queues": queues, "dtype": dtype, "numel": numel, "rank": ctx.rank}
                    require_bits(op(inputs[ctx.rank]), reference(inputs), **where)

    run(3, body, seed=queues)


@pytest.mark.parametrize(("world", "queues"), [(2, 1), (3, 2)])
def test_bits_of_megabytes(world: int, queues: int) -> None:
    """Copies land in pieces and out of order."""
    numel = (3 << 20) // 2 + 5

    def body(ctx: RankContext) -> None:
        inputs = [fresh(numel, BF16, rank) for rank in range(world)]
        with create(ctx, 2 * numel, queues=queues, dtypes=(BF16,)) as op:
            require_bits(op(inputs[ctx.rank]), reference(inputs), world=world, rank=ctx.rank)

    run(world, body)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_neither_seed_nor_delays_change_bits(seed: int, ordered: bool) -> None:
    """Ranks, blocks and engines drift apart; engines that never move before they must are among them."""
    engines = EngineSettings(ordered=ordered, busy=(0.0, 0.2, 1.0)[seed])

    def body(ctx: RankContext) -> None:
        delays = Delays(ctx, seed)
        with create(ctx, 1 << 16, queues=2, dtypes=(BF16,)) as op:
            for call, numel in enumerate((20_000, 4096, 9, 32_768, 0, 12_345)):
                inputs = [fresh(numel, BF16, call, rank) for rank in range(ctx.size)]
                delays.only(call) if seed % 2 else delays.maybe()
                require_bits(op(inputs[ctx.rank]), reference(inputs), seed=seed, call=call, rank=ctx.rank)

    LocalWorld(4, seed, node=unfair(seed), engines=engines).run(body)


# --- where data lies ---


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_places(dtype: torch.dtype) -> None:
    """In place, from and in the window, strided, transposed, at odd places; overlapping source and destination."""

    def body(ctx: RankContext) -> None:
        with create(ctx, dtypes=(dtype,)) as op:
            inputs = [fresh((30, 40), dtype, 1, rank) for rank in range(3)]
            mine, expected = inputs[ctx.rank], reference(inputs)
            where = {"dtype": dtype, "rank": ctx.rank}
            x = mine.clone()
            assert op(x, out=x) is x
            require_bits(x, expected, place="in place", **where)
            inside = op.buffer((30, 40), dtype)
            inside.copy_(mine)
            require_bits(op(inside), expected, place="from the window", **where)
            require_bits(inside, mine, place="buffer afterwards", **where)
            op(inside, out=inside)
            require_bits(inside, expected, place="in the window", **where)
            wide = torch.zeros(30, 80, dtype=dtype)
            wide[:, ::2] = mine
            require_bits(op(wide[:, ::2]), expected, place="strided", **where)
            require_bits(op(mine.t().contiguous().t()), expected, place="transposed", **where)
            result = torch.zeros(30, 80, dtype=dtype)
            op(mine, out=result[:, ::2])
            require_bits(result[:, ::2].contiguous(), expected, place="strided out", **where)
            assert not result[:, 1::2].any()
            for shift in (1, 3, 7):
                source, out = Guarded((30, 40), dtype, shift=shift), Guarded((30, 40), dtype, shift=8 - shift)
                source.tensor.copy_(mine)
                op(source.tensor, out=out.tensor)
                require_bits(out.tensor, expected, place=shift, **where)
                out.require_intact(place=shift, **where)
                source.require_intact(place=shift, **where)

    run(3, body)


@pytest.mark.parametrize("where", ["heap", "window"])
def test_the_input_may_be_overwritten_after_the_call(where: str) -> None:
    """Engines have read it when the call returns."""

    def body(ctx: RankContext) -> None:
        delays = Delays(ctx)
        with create(ctx, 1 << 16, dtypes=(BF16,)) as op:
            x = op.buffer((20_000,), BF16) if where == "window" else torch.empty(20_000, dtype=BF16)
            results = []
            for call in range(6):
                delays.only(call)
                x.fill_(ctx.rank + 1 + call)
                results.append(op(x))
                x.fill_(float("nan"))
            for call, y in enumerate(results):
                require_all(y, 6 + 3 * call, call=call, rank=ctx.rank)

    run(3, body, node=unfair(2))


# --- sizes in turn, replays, epochs ---


def alternate(world: int, transport: str, rounds: int) -> None:
    """4 KiB, 256 KiB and 3 MiB on one op: eager, recorded, eager, ... with other data in every round."""
    numels = [nbytes // 2 for nbytes in (4 * KIB, 256 * KIB, 3 * KIB * KIB)]

    def body(ctx: RankContext) -> None:
        bases = [[fresh(numel, BF16, numel, rank) for rank in range(world)] for numel in numels]
        sums = [reference(base) for base in bases]
        with create(ctx, 3 * KIB * KIB, transport=transport, queues=2, dtypes=(BF16,)) as op:
            inputs = [torch.empty(numel, dtype=BF16) for numel in numels]
            recordings, outputs = [], []
            for x in inputs:
                with op.target.record() as recording:
                    outputs.append(op(x))
                recordings.append(recording)
            for turn in range(rounds):
                # A sum of shifted inputs is the shifted sum: other bytes for every shard, and no time lost.
                for number in (range(3), (2, 0, 1), (1, 2, 0))[turn % 3]:
                    shift = 1009 * turn + 13
                    inputs[number].copy_(torch.roll(bases[number][ctx.rank], shift))
                    if (turn + number) % 2:
                        recordings[number].replay()
                        y = outputs[number]
                    else:
                        y = op(inputs[number])
                    expected = torch.roll(sums[number], shift)
                    require_bits(y, expected, turn=turn, size=numels[number], rank=ctx.rank)
            used = {op.plan(numel, BF16).transport for numel in numels}
            assert used == (set(Transport) if transport == "auto" else {Transport(transport)})
            op.check()

    run(world, body)


@pytest.mark.parametrize("transport", ["lsa", "sdma", "auto"])
def test_sizes_in_turn(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine rounds; with "auto" the 4 KiB go by load and store."""
    engines_from(monkeypatch, 256 * KIB)
    alternate(2, transport, 9)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("transport", ["lsa", "sdma", "auto"])
def test_sizes_in_turn_for_long(transport: str, world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engines_from(monkeypatch, 256 * KIB)
    alternate(world, transport, 200)


@pytest.mark.parametrize("world", [2, 4])
def test_m_up_and_down(world: int) -> None:
    """Stale slots and slices of a larger call are never taken for those of a smaller one."""

    def body(ctx: RankContext) -> None:
        delays = Delays(ctx)
        with create(ctx, 128 * 1024 * 2, dtypes=(BF16,)) as op:
            for call, m in enumerate((128, 1, 64, 2, 127, 0, 3, 128, 1, 1, 100, 7)):
                inputs = [fresh((m, 1024), BF16, call, rank) for rank in range(world)]
                delays.only(call)
                require_bits(op(inputs[ctx.rank]), reference(inputs), world=world, m=m, call=call, rank=ctx.rank)

    run(world, body, node=unfair(world))


@pytest.mark.parametrize("start", [2**31 - 3, 2**32 - 3])
def test_epochs_wrap_round(start: int) -> None:
    def body(ctx: RankContext) -> None:
        with create(ctx, 1 << 14, dtypes=(BF16,)) as op:
            op._start_epoch(start)
            ctx.barrier()
            for call in range(7):
                inputs = [fresh(1000 + call, BF16, call, rank) for rank in range(ctx.size)]
                require_bits(op(inputs[ctx.rank]), reference(inputs), start=start, call=call, rank=ctx.rank)
            epoch = int.from_bytes(op.target.read(op._window.at("copy_epoch"), 4), "little")
            assert epoch == (start + 7) % 2**32

    run(3, body)


# --- ranks that disagree or do not come ---


@pytest.mark.parametrize("absence", ["sleeps", "has_ended"])
def test_a_rank_that_never_calls(absence: str) -> None:
    def body(ctx: RankContext) -> str:
        op = create(ctx, 1 << 12, timeout_s=5, dtypes=(BF16,))
        require_all(op(torch.full((100,), ctx.rank + 1.0, dtype=BF16)), 6)
        if ctx.rank == 1:
            if absence == "sleeps":
                ctx.sleep(100)
            op.close()
            return ""
        start = now(ctx)
        with pytest.raises(CollectiveTimeout) as caught:
            op(torch.ones(100, dtype=BF16))
        assert 4.9 < now(ctx) - start < 11
        with pytest.raises(CollectiveTimeout):
            op(torch.ones(100, dtype=BF16))
        op.close()
        return str(caught.value)

    first, _, third = run(3, body)
    for rank, text in ((0, first), (2, third)):
        assert f"rank {rank} " in text and "rank 1" in text and "scatter (all slices are here)" in text, text
        # The self-test was the first call.
        assert "call 3" in text and ("saw call 2" in text or "last seen at call 2" in text), text


@pytest.mark.parametrize("odd", [0, 8, 65, 6000])
def test_another_size_on_one_rank(odd: int) -> None:
    """Both sizes are named on all ranks, before the budget ends, and the next op is right."""

    def body(ctx: RankContext) -> None:
        op = create(ctx, 1 << 14, timeout_s=30, dtypes=(BF16,))
        require_all(op(torch.full((64,), ctx.rank + 1.0, dtype=BF16)), 6)
        start = now(ctx)
        with pytest.raises(CollectiveMismatch) as caught:
            op(torch.ones(odd if ctx.rank == 2 else 64, dtype=BF16))
        assert now(ctx) - start < 30
        text = str(caught.value)
        assert f"{odd} x bf16, by copy engine" in text and "64 x bf16, by copy engine" in text, text
        assert f"rank {ctx.rank} called" in text and "at the scatter" in text, text
        assert ("but rank 2 with" in text) == (ctx.rank != 2), text
        with pytest.raises(CollectiveMismatch):
            op.check()
        op.close()
        ctx.barrier()
        assert len(ctx.node.regions) == 0
        with create(ctx, 1 << 12, dtypes=(BF16,)) as new:
            require_all(new(torch.full((64,), ctx.rank + 1.0, dtype=BF16)), 6)

    assert errors(3, body) == [None] * 3


def test_sizes_on_both_sides_of_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """With "auto" such ranks wait at different places: each names the other once its budget is spent."""
    engines_from(monkeypatch, 1024)

    def body(ctx: RankContext) -> str:
        op = create(ctx, 1 << 12, transport="auto", timeout_s=5, dtypes=(BF16,))
        with pytest.raises(CollectiveTimeout) as caught:
            op(torch.ones(512 + 8 * ctx.rank - 8, dtype=BF16))
        op.close()
        return str(caught.value)

    first, second = run(2, body)
    assert "rank 0 waited 5 s for rank 1 at the entry barrier" in first, first
    assert "rank 1" in second and "rank 0" in second and "at the scatter" in second, second


# --- time ---


def test_eight_ranks_in_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    """[1024, 1024] bf16: at most 0.6 s of this process's time, best of five; other processes do not count."""
    times: list[tuple[float, float]] = []

    def body(ctx: RankContext) -> None:
        with create(ctx, 2 << 20, dtypes=(BF16,)) as op:
            assert op.plan(1 << 20, BF16).config.phase is SdmaPhase.REDUCE
            x = torch.full((1024, 1024), ctx.rank + 1.0, dtype=BF16)
            for _ in range(6):  # the first one translates kernels
                ctx.barrier()
                start = time.perf_counter(), time.process_time()
                y = op(x)
                ctx.barrier()
                if ctx.rank == 0:
                    times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
            require_all(y, 36, rank=ctx.rank)

    run(8, body)
    wall, cpu = (min(column) for column in zip(*times[1:], strict=True))
    with capsys.disabled():
        print(f"\n8 ranks [1024, 1024] bf16 by copy engine, emulated: {wall:.3f} s, of which {cpu:.3f} s of CPU time")
    assert cpu < 0.6, times
