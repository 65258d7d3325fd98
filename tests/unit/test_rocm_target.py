# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What the rocm target does around its launches: lifetimes, faults, capture, streams, and the error record."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from mori_gemm_ar.ar import AllReduceOp, collective
from mori_gemm_ar.compile.store import CodeForm
from mori_gemm_ar.emulator import MemoryRegion
from mori_gemm_ar.errors import (
    ClosedError,
    CollectiveMismatch,
    CollectiveSetupError,
    CollectiveTimeout,
    ConfigError,
    HipError,
    MoriGemmArError,
)
from mori_gemm_ar.layout import AllReduceConfig, DType, Stage
from mori_gemm_ar.runtime import Launch, LocalWorld, Pipeline, RankContext, Target
from mori_gemm_ar.runtime.rocm import PinnedRecord, RocmTarget
from tests.unit.rocm_fakes import STREAMS, EmulatedRocmTarget, FakeNode, RocmWorld, StandInStore, run

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def stand_in_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective, "default_store", StandInStore)


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path, 2)


def create(world: RocmWorld, **arguments: Any) -> AllReduceOp:
    return AllReduceOp.create(world, 4096, **{"dtypes": (BF16,), "timeout_s": 1.0, **arguments})


def filled(ctx: RankContext, numel: int = 100) -> torch.Tensor:
    return torch.full((numel,), ctx.rank + 1.0, dtype=BF16)


def reduce_once(op: AllReduceOp, ctx: RankContext) -> None:
    """One call with its check. A CPU tensor has no stream that would keep its memory until a kernel has run."""
    x = filled(ctx)
    y = op(x)
    op.check()
    assert bool((y == 3).all())


def words(node: FakeNode) -> Counter[str]:
    """How often each call was made."""
    return Counter(line.split()[0] for line in node.fake.log)


def assert_nothing_held(node: FakeNode) -> None:
    calls = words(node)
    assert calls["host_malloc"] == calls["host_free"]
    assert calls["event_create"] == calls["event_destroy"]
    assert all(not target.cco.live for target in node.targets.values())


# --- the life of an op ---


def test_it_is_a_target_of_a_gpu(node: FakeNode) -> None:
    def body(ctx: RankContext, world: RocmWorld) -> None:
        target: Target = world.target()
        assert (target.name, target.code_form, target.records_copies) == ("rocm", CodeForm.HSACO, True)
        assert (target.default_timeout_s, target.ticks_per_second) == (30.0, 100_000_000)

    run(node, body)


def test_teardown_is_in_the_documented_order(node: FakeNode) -> None:
    """FakeCco aborts when the device communicator is closed by itself, and when memory goes before its window."""

    def body(ctx: RankContext, world: RocmWorld) -> list[str]:
        op = create(world)
        x = filled(ctx)
        y = op(x)
        op.close()
        op.close()
        assert bool((y == 3).all())
        with pytest.raises(ClosedError):
            op(filled(ctx))
        return [line for line in world.log if line != "id"]

    steps = ["init", "alloc_mem", "register_window", "create_dev_comm", "close window", "close memory", "destroy"]
    assert run(node, body) == [steps, steps]
    assert_nothing_held(node)
    # Waiting for the device comes before the first release.
    log = [line.split()[0] for line in node.fake.log]
    assert log.index("host_free") > max(at for at, word in enumerate(log) if word == "launch")


def test_fifty_ops_hold_what_one_holds(node: FakeNode) -> None:
    def body(ctx: RankContext, world: RocmWorld) -> None:
        for _ in range(50):
            with create(world) as op:
                reduce_once(op, ctx)

    run(node, body)
    assert_nothing_held(node)
    assert words(node)["module"] == 2  # one for each stage, loaded once for the process


STEPS = {
    "id": "name the communicator",
    "init": "reserve symmetric memory",
    "alloc_mem": "allocate the window",
    "register_window": "allocate the window",
    "create_dev_comm": "allocate the window",
}


@pytest.mark.parametrize("ranks", [(0,), (0, 1)], ids=["one rank", "all ranks"])
@pytest.mark.parametrize("step", STEPS)
def test_a_fault_of_mori(node: FakeNode, step: str, ranks: tuple[int, ...]) -> None:
    """The original error where it happened, rank and step on the others, everything given back, the next op works."""
    node.faults = {rank: {step: RuntimeError(f"{step} said no")} for rank in ranks}

    def body(ctx: RankContext, world: RocmWorld) -> None:
        with pytest.raises(CollectiveSetupError) as caught:
            create(world)
        assert re.search(rf"rank \d failed at step '{STEPS[step]}': RuntimeError: {step} said no", str(caught.value))
        if ctx.rank in ranks and not (step == "id" and ctx.rank):
            assert isinstance(caught.value.__cause__, RuntimeError)
        ctx.exchange("all have failed", None)
        assert_nothing_held(node)
        node.faults = {}
        with create(world) as op:
            reduce_once(op, ctx)

    run(node, body)
    assert_nothing_held(node)


HIP_CALLS = (
    "hipGetDevicePropertiesR0600", "hipModuleLoadData", "hipModuleGetFunction", "hipEventCreateWithFlags",
    "hipHostMalloc", "hipHostGetDevicePointer", "hipMemsetAsync", "hipStreamSynchronize", "hipModuleLaunchKernel",
    "hipDeviceSynchronize",
)  # fmt: skip


@pytest.mark.parametrize("call", HIP_CALLS)
def test_a_fault_of_hip(node: FakeNode, call: str) -> None:
    """It strikes whichever rank comes first."""
    node.fake.fail(call)

    def body(ctx: RankContext, world: RocmWorld) -> Exception:
        with pytest.raises(MoriGemmArError) as caught:
            create(world)
        ctx.exchange("all have failed", None)
        assert_nothing_held(node)
        with create(world) as op:
            reduce_once(op, ctx)
        return caught.value

    errors = run(node, body)
    own = [error for error in errors if isinstance(error, HipError)]
    others = [error for error in errors if isinstance(error, CollectiveSetupError | CollectiveTimeout)]
    assert (len(own), len(others)) == (1, 1)
    assert re.fullmatch(rf"{call}( \(.*\))? failed with error 2: out of memory", str(own[0]))
    if isinstance(others[0], CollectiveSetupError):
        assert call in str(others[0])
    assert_nothing_held(node)


def test_another_gpu_is_refused(node: FakeNode) -> None:
    node.fake.raw.fake_arch(b"gfx942:sramecc+:xnack-")

    def body(ctx: RankContext, world: RocmWorld) -> None:
        with pytest.raises(ConfigError, match=r"device=cpu must be a gfx950, but is gfx942:sramecc\+:xnack-; choose"):
            create(world)

    run(node, body)


def test_ranks_of_several_nodes_are_refused(node: FakeNode) -> None:
    def body(ctx: RankContext, world: RocmWorld) -> None:
        class Spread(EmulatedRocmTarget):
            def communicator(self, per_rank_bytes: int) -> Any:
                communicator = super().communicator(per_rank_bytes)
                communicator._comm.nranks = 1  # what the device communicator then tells
                return communicator

        world._target = Spread
        with pytest.raises(MoriGemmArError, match=r"ranks must share one node: mori.cco reaches 1 of 1 ranks"):
            create(world)

    run(node, body)
    assert_nothing_held(node)


# --- calls ---


def code_of(form: CodeForm) -> Any:
    return StandInStore().get(AllReduceConfig(2, DType.BF16, Stage.ONE), form)


def test_code_must_be_loaded_and_hold_an_hsaco(node: FakeNode) -> None:
    def body(ctx: RankContext, world: RocmWorld) -> None:
        target = world.target()
        code = code_of(CodeForm.HSACO)
        with pytest.raises(ConfigError, match="must be loaded before it is launched"):
            target.submit(Pipeline("p", (Launch(code, (1, 1, 1), (512, 1, 1), b"", "p"),)))
        with pytest.raises(ConfigError, match="must hold an HSACO to run on a GPU"):
            target.load(code_of(CodeForm.ISA))

    run(node, body)


def test_a_capture_holds_launches_only(node: FakeNode) -> None:
    """No allocation, no wait, no copy and no event, although the stream is a new one."""

    def body(ctx: RankContext, world: RocmWorld) -> list[str]:
        with create(world) as op:
            gpu = op.target.gpu
            x, out = filled(ctx), torch.empty(100, dtype=BF16)
            op(x, out)
            before = len(node.fake.log)
            gpu.current += STREAMS
            with op.target.record() as recording:
                assert op.target.recording
                op(x, out)
                with pytest.raises(ConfigError, match="must be finished before replay"):
                    recording.replay()
                with pytest.raises(ConfigError, match="must not be nested"), op.target.record():
                    pass
            during = [line.split()[0] for line in node.fake.log[before:]]
            op.check()
            recording.replay()
            recording.replay()
            assert gpu.replays == 2
            assert not op.target.recording
            return during

    for during in run(node, body):
        assert set(during) == {"launch"}


def test_calls_keep_their_order_across_streams(node: FakeNode) -> None:
    def body(ctx: RankContext, world: RocmWorld) -> None:
        with create(world) as op:
            x, out = filled(ctx), torch.empty(100, dtype=BF16)
            for step in (0, 1, 1, 0):
                op.target.gpu.current = ctx.rank + 1 + STREAMS * step
                op(x, out)
            op.check()

    run(node, body)
    for rank in (0, 1):
        first, second = (hex(rank + 1 + STREAMS * step) for step in (0, 1))
        lines = [line.split() for line in node.fake.log]
        events = [
            (word, *rest)
            for word, *rest in lines
            if word in ("event_record", "stream_wait") and int(rest[0], 16) % STREAMS == rank + 1
        ]
        assert events == [
            ("event_record", first), ("stream_wait", second), ("event_record", second), ("stream_wait", first),
        ]  # fmt: skip


def test_a_window_buffer_is_the_window(node: FakeNode) -> None:
    def body(ctx: RankContext, world: RocmWorld) -> None:
        with create(world) as op:
            buffer = op.buffer((4, 8), BF16)
            assert buffer.shape == (4, 8)
            assert node.flat.start(ctx.rank) < buffer.data_ptr() < node.flat.start(ctx.rank) + (1 << 20)
            buffer.fill_(ctx.rank + 1)
            out = op(buffer)
            op.check()
            assert bool((out == 3).all())

    run(node, body)


class PinnedTarget(EmulatedRocmTarget):
    """The error record where the rocm target puts it, not in the window."""

    def error_record(self, own: int, nbytes: int) -> PinnedRecord:
        record = RocmTarget.error_record(self, own, nbytes)
        region = MemoryRegion("pinned", record.address, nbytes, self._group.rank)
        self._group.node.regions.add(region)
        assert record.address != own
        return record


def test_a_failure_reaches_pinned_memory_and_the_next_call(node: FakeNode) -> None:
    """Ranks disagree about the size. Nobody waits for the device to find out."""

    def body(ctx: RankContext, world: RocmWorld) -> str:
        op = create(world)
        record = op._window.error
        assert isinstance(record, PinnedRecord)
        assert record.read() == bytes(64)
        x = filled(ctx, 8 * (ctx.rank + 1))
        out = torch.empty_like(x)
        op(x, out)  # returns: the launch is queued, and that is all
        with pytest.raises(CollectiveMismatch, match=r"rank . called all-reduce with .*, but rank . with") as caught:
            op.check()
        assert op.target.read(record.address, 64) == record.read()
        waits = words(node)["device_synchronize"]
        with pytest.raises(CollectiveMismatch):
            op(x, out)
        assert words(node)["device_synchronize"] == waits
        op.close()
        with pytest.raises(ClosedError):
            record.read()
        return str(caught.value)

    texts = LocalWorld(2).run(lambda ctx: body(ctx, RocmWorld(ctx, node, PinnedTarget)))
    assert all("16 x bf16" in text and "8 x bf16" in text for text in texts)
    assert_nothing_held(node)


# --- copy engines ---


def test_queues_of_mori_reach_the_op(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read back through HIP, from structures as the header of amd-mori lays them out."""
    monkeypatch.setenv("MORI_ENABLE_SDMA", "1")

    def body(ctx: RankContext, world: RocmWorld) -> tuple[int, int]:
        comm = world.target().communicator(1 << 16)
        device = comm.create_dev_comm(2)
        queues, fault = device.copy_queues, device.copy_engine_fault
        comm.destroy()
        assert fault is None
        assert queues is not None
        return queues.per_peer, queues.world

    assert run(node, body) == [(2, 2), (2, 2)]


def test_no_queues_of_mori_are_explained(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MORI_ENABLE_SDMA", raising=False)

    def body(ctx: RankContext, world: RocmWorld) -> tuple[str | None, str | None]:
        comm = world.target().communicator(1 << 16)
        asked, not_asked = comm.create_dev_comm(1), comm.create_dev_comm()
        comm.destroy()
        assert asked.copy_queues is None
        assert not_asked.copy_queues is None
        return asked.copy_engine_fault, not_asked.copy_engine_fault

    for asked, not_asked in run(node, body):
        assert asked is not None
        assert asked.startswith("MORI_ENABLE_SDMA is not set")
        assert not_asked is None
