# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Where results of the fused op lie and how long they live: outputs that rotate, `out`, and recorded calls."""

from __future__ import annotations

import random

import pytest
import torch

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.op import GemmAllReduceOp
from mori_gemm_ar.runtime import Launch, RankContext
from tests.ranks.layers import FUSED_SDMA, SPLIT_LSA, STREAMED, Layer, N, Tensors, Way, create, each_main_way, layer
from tests.ranks.worlds import BF16, Delays, Guarded, require_bits, run, unfair

MS = (300, 5, 256)  # fused and ragged, split, fused


def launched(op: GemmAllReduceOp, *operands: torch.Tensor, out: torch.Tensor | None = None) -> list[Launch]:
    """What a call launches; it does not run."""
    with op.target.record() as recording:
        op(*operands, out=out)
    return list(recording.launches)


# --- eager calls ---


@each_main_way
def test_a_result_survives_the_next_call_but_not_the_second(way: Way) -> None:
    def body(ctx: RankContext) -> None:
        with create(ctx, way, max(MS)) as op:
            results: list[torch.Tensor] = []
            for call in range(4):
                data = layer(2, MS[call % 3], call)
                promised = op.output(MS[call % 3])
                y = op(*data.of(ctx.rank))
                assert y.data_ptr() == promised.data_ptr() and y.shape == promised.shape, "output(m) is the next result"
                require_bits(y, data.expected(), call=call, rank=ctx.rank)
                if call:
                    before = layer(2, MS[(call - 1) % 3], call - 1)
                    require_bits(results[-1], before.expected(), what="result before", call=call, rank=ctx.rank)
                if call >= 2:
                    assert y.data_ptr() == results[-2].data_ptr(), "two of them rotate"
                results.append(y)
            require_bits(results[1][:1], results[3][:1], what="two calls later its memory has the new result")

    run(2, body)


def test_one_output_is_overwritten_by_the_next_call() -> None:
    def body(ctx: RankContext) -> None:
        with create(ctx, FUSED_SDMA, 300, tuning={"outputs": 1}) as op:
            first = op(*layer(2, 300, 0).of(ctx.rank))
            require_bits(first, layer(2, 300, 0).expected(), rank=ctx.rank)
            second = op(*layer(2, 300, 1).of(ctx.rank))
            assert first.data_ptr() == second.data_ptr() == op.output(300).data_ptr()
            require_bits(first, layer(2, 300, 1).expected(), rank=ctx.rank)

    run(2, body)


@each_main_way
def test_the_output_given_as_out(way: Way) -> None:
    """It is what the call would have returned: nothing more is launched and nothing copied."""

    def body(ctx: RankContext) -> None:
        with create(ctx, way, max(MS)) as op:
            for call, m in enumerate(MS):
                data = layer(2, m, call)
                out = op.output(m)
                launches = launched(op, *data.of(ctx.rank))
                op._next = (op._next + 1) % 2  # the slot of the call that was recorded and will not run
                assert out.data_ptr() == op.output(m).data_ptr()
                given = launched(op, *data.of(ctx.rank), out=out)
                op._next = (op._next + 1) % 2
                names = [launch.name for launch in given]
                assert names == [launch.name for launch in launches]
                assert not any("gather" in name for name in names), names
                assert op(*data.of(ctx.rank), out=out) is out
                require_bits(out, data.expected(), m=m, rank=ctx.rank)

    run(2, body)


@each_main_way
def test_an_output_elsewhere(way: Way) -> None:
    """Only its own bytes are written, and the results in the window stay as they are."""

    def body(ctx: RankContext) -> None:
        with create(ctx, way, max(MS)) as op:
            kept = op(*layer(2, 300, 9).of(ctx.rank))
            for call, m in enumerate(MS):
                data, out = layer(2, m, call), Guarded((m, N), BF16)
                assert op(*data.of(ctx.rank), out=out.tensor) is out.tensor
                require_bits(out.tensor, data.expected(), m=m, rank=ctx.rank)
                out.require_intact(m=m, rank=ctx.rank)
                if not call:
                    require_bits(kept, layer(2, 300, 9).expected(), what="result before", rank=ctx.rank)
            launches = launched(op, *layer(2, 300, 0).of(ctx.rank), out=torch.empty(300, N, dtype=BF16))
            # Sums that are pushed arrive in the window; what pulls them writes where it is told.
            pushed = way in (FUSED_SDMA, STREAMED)
            assert any("gather" in launch.name for launch in launches) == pushed

    run(2, body)


def test_an_output_that_cannot_be_written() -> None:
    """Shape, type, operands' memory, and other parts of the window than the output of this call."""

    def body(ctx: RankContext) -> None:
        data = layer(2, 256, 0)
        with create(ctx, FUSED_SDMA, 300) as op:
            a, b, a_scale, b_scale = data.of(ctx.rank)
            other = op(a, b, a_scale, b_scale)
            inside = r"out must be op\.output\(m\) or memory outside the window"
            wrong = [
                (torch.empty(255, N, dtype=BF16), r"out=\(255, 512\) of torch.bfloat16 must be \(256, 512\)"),
                (torch.empty(256, N), r"out=\(256, 512\) of torch.float32 must be"),
                (torch.empty(N, 256, dtype=BF16).t(), r"out\.stride=\(1, 256\) must be contiguous"),
                (other, inside),
                (op.output(300)[1:257], inside),
                (op.target.tensor_memory(op._window.at("input"), 256 * N * 2).view(BF16).view(256, N), inside),
            ]
            for out, message in wrong:
                with pytest.raises(ConfigError, match=message):
                    op(a, b, a_scale, b_scale, out=out)
            require_bits(other, data.expected(), what="a refused call writes nothing", rank=ctx.rank)
            require_bits(op(a, b, a_scale, b_scale), data.expected(), rank=ctx.rank)

    run(2, body)


def test_operands_in_outputs_memory() -> None:
    """`out` over an operand is refused."""

    def body(ctx: RankContext) -> None:
        with create(ctx, SPLIT_LSA, 8) as op:
            a, b, a_scale, b_scale = layer(2, 8, 0).of(ctx.rank)
            out = b.view(torch.uint8).flatten()[: 8 * N * 2].view(BF16).view(8, N)
            with pytest.raises(ConfigError, match="out must not overlap an operand"):
                op(a, b, a_scale, b_scale, out=out)

    run(2, body)


# --- recorded calls ---


class Recorded:
    """Some calls recorded together, with the tensors they read and those they write."""

    def __init__(self, op: GemmAllReduceOp, ms: tuple[int, ...]) -> None:
        self.op, self.ms = op, ms
        self.inputs: list[Tensors] = [layer(op.world_size, m, 0).of(op.rank) for m in ms]
        with op.target.record() as self.recording:
            self.outputs = [op(*operands) for operands in self.inputs]

    def replay(self, seed: int) -> list[Layer]:
        """New data into the tensors that were recorded; a call's own result is checked before a later one reuses it."""
        datas = [layer(self.op.world_size, m, seed, place) for place, m in enumerate(self.ms)]
        for tensors, data in zip(self.inputs, datas, strict=True):
            for tensor, value in zip(tensors, data.of(self.op.rank), strict=True):
                tensor.copy_(value)
        self.recording.replay()
        return datas

    def require(self, datas: list[Layer], **where: object) -> None:
        """The results that no later call of the recording has overwritten."""
        last = {y.data_ptr(): place for place, y in enumerate(self.outputs) if self.ms[place]}
        for place in last.values():
            require_bits(self.outputs[place], datas[place].expected(), place=place, **where)


@each_main_way
def test_replays_of_several_m_in_any_order(way: Way) -> None:
    """One, two and three calls in a recording, eager calls between; a replay rewrites the outputs it was recorded
    with, and the next eager call is right all the same."""

    def body(ctx: RankContext) -> None:
        shared, delays = random.Random(5), Delays(ctx)
        with create(ctx, way, 300) as op:
            recordings = [Recorded(op, ms) for ms in ((300,), (5, 256), (256, 0, 300), (7,))]
            slots = [[y.data_ptr() for y in recorded.outputs] for recorded in recordings]
            for step in range(6):
                recorded = recordings[shared.randrange(4)]
                delays.only(step)
                recorded.require(recorded.replay(step), way=way, step=step, rank=ctx.rank)
                if step % 3 == 1:
                    eager = layer(2, (300, 4)[step % 2], step, 99)
                    require_bits(op(*eager.of(ctx.rank)), eager.expected(), way=way, step=step, rank=ctx.rank)
            assert slots == [[y.data_ptr() for y in recorded.outputs] for recorded in recordings]
            op.check()

    run(2, body)


def test_a_replay_leaves_the_other_output_alone() -> None:
    """What an eager call returned survives replays that were recorded into the other output."""

    def body(ctx: RankContext) -> None:
        with create(ctx, FUSED_SDMA, 300) as op:
            recorded = Recorded(op, (300,))
            eager = layer(2, 256, 1)
            kept = op(*eager.of(ctx.rank))
            assert kept.data_ptr() != recorded.outputs[0].data_ptr()
            for seed in range(3):
                recorded.require(recorded.replay(seed), rank=ctx.rank)
            require_bits(kept, eager.expected(), rank=ctx.rank)

    run(2, body)


@pytest.mark.slow
@each_main_way
@pytest.mark.parametrize("world", [2, 3, 4])
def test_replays_in_full(world: int, way: Way) -> None:
    def body(ctx: RankContext) -> None:
        shared, delays = random.Random(world), Delays(ctx)
        top = world * 128 + 44
        with create(ctx, way, top) as op:
            choices = ((top,), (5, world * 128), (world * 128, 0, top), (7,), (1, 2, 3, top, 4))
            recordings = [Recorded(op, ms) for ms in choices]
            for step in range(100):
                recorded = shared.choice(recordings)
                delays.maybe()
                recorded.require(recorded.replay(step), way=way, step=step, rank=ctx.rank)
                if step % 7 == 6:
                    eager = layer(world, shared.randint(0, top), step, 99)
                    require_bits(op(*eager.of(ctx.rank)), eager.expected(), way=way, step=step, rank=ctx.rank)

    run(world, body, node=unfair(world))
