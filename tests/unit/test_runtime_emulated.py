# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The emulated target: submission, known memory, streams, record and replay. Kernels are hand-written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mori_gemm_ar.errors import ConfigError, DeadlockError, IsaError, MemoryFault
from mori_gemm_ar.runtime import Buffer, Launch, LocalWorld, Pipeline, RankContext, kernel_of, pack_arguments
from tests.kernel.isa_builder import TinyCode, tiny

# words[item] += value
ADD = tiny(
    """
    s_load_dwordx2 s[4:5], s[0:1], 0x0
    s_load_dword s6, s[0:1], 0x8
    v_lshlrev_b32_e32 v1, 2, v0
    s_waitcnt lgkmcnt(0)
    global_load_dword v2, v1, s[4:5]
    s_waitcnt vmcnt(0)
    v_add_u32_e32 v2, s6, v2
    global_store_dword v1, v2, s[4:5]
    s_endpgm
    """,
    (8, 4),
)
# Wait until the first word is not 0.
WAIT = tiny(
    """
    s_load_dwordx2 s[4:5], s[0:1], 0x0
    v_mov_b32_e32 v1, 0
    s_waitcnt lgkmcnt(0)
.LBB0_1:
    global_load_dword v2, v1, s[4:5] sc0 sc1
    s_waitcnt vmcnt(0)
    v_cmp_eq_u32_e32 vcc, 0, v2
    s_cbranch_vccnz .LBB0_1
    s_endpgm
    """,
    (8, 4),
)


def launch(code: TinyCode, words: torch.Tensor, value: int = 0) -> Launch:
    return Launch(code, (1, 1, 1), (64, 1, 1), pack_arguments(kernel_of(code).args, (words.data_ptr(), value)), "tiny")


def pipeline(words: torch.Tensor, *values: int, code: TinyCode = ADD) -> Pipeline:
    """One launch for each value, over all of `words`."""
    buffer = Buffer("words", words.data_ptr(), 4 * words.numel())
    return Pipeline("adds", tuple(launch(code, words, value) for value in values), (buffer,))


def words(value: int = 0) -> torch.Tensor:
    return torch.full((64,), value, dtype=torch.int32)


def alone(body: Callable[[RankContext], Any]) -> Any:
    return LocalWorld(1).run(body)[0]


def require_all(tensor: torch.Tensor, value: int) -> None:
    assert tensor.tolist() == [value] * 64


# --- submission ---


def test_launches_of_a_pipeline_run_in_order() -> None:
    def body(ctx: RankContext) -> None:
        target, memory = ctx.target(), words()
        target.submit(pipeline(memory, 1, 10, 100))
        target.settle()
        require_all(memory, 111)

    alone(body)


def test_buffers_are_known_until_the_last_launch_has_ended() -> None:
    def body(ctx: RankContext) -> None:
        target, memory = ctx.target(), words()
        target.submit(pipeline(memory, 1, 2))
        region = ctx.node.regions.find(memory.data_ptr(), 256)
        assert region is not None and (region.name, region.home) == ("words of rank 0", 0)
        target.synchronize()
        assert len(ctx.node.regions) == 0

    alone(body)


def test_memory_that_was_not_named_faults() -> None:
    """Negative control: a pipeline that forgets its buffer."""

    def body(ctx: RankContext) -> None:
        target, memory = ctx.target(), words()
        target.submit(Pipeline("adds", (launch(ADD, memory, 1),)))
        with pytest.raises(MemoryFault, match=r"kernel tiny, line \d+: .*, lane 0: access of 4 bytes"):
            target.synchronize()

    alone(body)


def test_a_buffer_of_two_pipelines_stays_known_to_the_second() -> None:
    """The same memory in flight twice, and a part of it: whoever ends first must not take it from the others."""

    def body(ctx: RankContext) -> None:
        slow, quick, memory, flag = ctx.target(), ctx.target(), words(), words()
        both = (Buffer("flag", flag.data_ptr(), 256), Buffer("words", memory.data_ptr(), 256))
        slow.submit(Pipeline("slow", (launch(WAIT, flag), launch(ADD, memory, 5)), both))
        quick.submit(pipeline(memory, 1))
        quick.synchronize()
        quick.submit(Pipeline("part", (launch(ADD, flag, 1),), (Buffer("flag again", flag.data_ptr(), 128),)))
        slow.synchronize()
        require_all(memory, 6)
        quick.synchronize()
        assert len(ctx.node.regions) == 0

    alone(body)


def test_unknown_code_queues_nothing() -> None:
    def body(ctx: RankContext) -> None:
        target, memory = ctx.target(), words()
        bad = tiny("s_frobnicate s0\ns_endpgm", (8, 4))
        mixed = Pipeline("mixed", (launch(ADD, memory, 1), launch(bad, memory, 1)), pipeline(memory).buffers)
        with pytest.raises(IsaError, match="s_frobnicate"):
            target.submit(mixed)
        assert ctx.node.idle() and len(ctx.node.regions) == 0
        target.submit(pipeline(memory, 7))
        target.settle()
        require_all(memory, 7)

    alone(body)


def test_an_empty_pipeline_does_nothing() -> None:
    def body(ctx: RankContext) -> None:
        target = ctx.target()
        target.submit(pipeline(words()))
        target.settle()
        assert len(ctx.node.regions) == 0

    alone(body)


# --- streams ---


def test_targets_of_one_rank_run_side_by_side() -> None:
    """A kernel that waits for a later one on another target; the same kernel, so that it also needs room."""

    def body(ctx: RankContext) -> None:
        waiting, setting, flag = ctx.target(), ctx.target(), words()
        waiting.submit(pipeline(flag, 0, code=WAIT))
        setting.submit(pipeline(flag, 1))
        waiting.synchronize()
        setting.synchronize()
        require_all(flag, 1)

    alone(body)


def test_one_target_is_one_stream() -> None:
    """Negative control: behind the kernel that waits for it, the same launch never starts."""

    def body(ctx: RankContext) -> None:
        target, flag = ctx.target(), words()
        target.submit(pipeline(flag, 0, code=WAIT))
        target.submit(pipeline(flag, 1))
        with pytest.raises(DeadlockError, match=r"wave 0 at line \d+: .*polls words of rank 0"):
            target.synchronize()

    alone(body)


# --- record and replay ---


def test_recording_runs_nothing_until_it_is_replayed() -> None:
    def body(ctx: RankContext) -> None:
        target, memory = ctx.target(), words()
        with target.record() as recording:
            assert target.recording
            target.submit(pipeline(memory, 1, 2))
            target.submit(pipeline(memory, 4))
            target.settle()
            require_all(memory, 0)
            assert ctx.node.instructions == 0 and len(ctx.node.regions) == 0
        assert not target.recording
        assert [launch.arguments[8] for launch in recording.launches] == [1, 2, 4]
        require_all(memory, 0)
        for turn in range(3):
            recording.replay()
            require_all(memory, 7 * (turn + 1))
        memory.fill_(100)  # memory is read anew, argument bytes are those of the recording
        recording.replay()
        require_all(memory, 107)
        assert len(ctx.node.regions) == 0

    alone(body)


def test_recordings_can_be_put_together() -> None:
    def body(ctx: RankContext) -> None:
        target, memory = ctx.target(), words()
        with target.record() as inner:
            target.submit(pipeline(memory, 1))
        with target.record() as outer:
            inner.replay()
            target.submit(pipeline(memory, 10))
            inner.replay()
        require_all(memory, 0)
        outer.replay()
        require_all(memory, 12)
        assert len(outer.launches) == 3 and len(inner.launches) == 1

    alone(body)


def test_misuse_of_a_recording() -> None:
    def body(ctx: RankContext) -> None:
        target = ctx.target()
        with target.record() as recording:
            with pytest.raises(ConfigError, match="recording must be finished before replay; leave its `with` block"):
                recording.replay()
            with pytest.raises(ConfigError, match="recording must not be nested"), target.record():
                pass
            assert target.recording  # the first one goes on
        recording.replay()

    alone(body)


def test_an_error_ends_the_recording() -> None:
    def body(ctx: RankContext) -> None:
        target, memory = ctx.target(), words()
        with pytest.raises(KeyError), target.record():
            raise KeyError("mine")
        assert not target.recording
        target.submit(pipeline(memory, 3))
        target.settle()
        require_all(memory, 3)

    alone(body)


def test_recordings_belong_to_one_target() -> None:
    def body(ctx: RankContext) -> None:
        recorded, other, memory = ctx.target(), ctx.target(), words()
        with recorded.record() as recording:
            other.submit(pipeline(memory, 1))
            other.settle()
        require_all(memory, 1)
        assert recording.launches == ()

    alone(body)


# --- host access ---


def test_host_access() -> None:
    def body(ctx: RankContext) -> None:
        target, memory = ctx.target(), words()
        target.fill(memory.data_ptr(), 8, 0xFF)
        target.write(memory.data_ptr() + 8, b"\x01\x00\x00\x00")
        assert memory[:4].tolist() == [-1, -1, 1, 0]
        assert target.read(memory.data_ptr() + 4, 8) == b"\xff" * 4 + b"\x01\0\0\0"
        with pytest.raises(ConfigError, match="communicator must be created before its memory is viewed"):
            target.tensor_memory(memory.data_ptr(), 4)

    alone(body)
