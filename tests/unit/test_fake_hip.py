# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What the rocm target launches through a fake libamdhip64.so equals, byte for byte, what the emulated target runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mori_gemm_ar.ar import AllReduceOp, call, collective
from mori_gemm_ar.layout import Stage
from mori_gemm_ar.runtime import LocalWorld, RankContext
from mori_gemm_ar.runtime.emulated import EmulatedTarget
from tests.unit.fake_cco import FixedBacking
from tests.unit.rocm_fakes import EmulatedRocmTarget, FakeNode, Launched, RocmWorld, StandInStore, run

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
MAX_BYTES = 1 << 16
# (elements, type, in place); one element off an even start as well
CALLS = [
    (0, BF16, False), (1, BF16, False), (7, FP16, True), (8, FP32, False), (129, FP32, True), (1000, BF16, True),
    (4096, FP16, False), (12345, BF16, False), (16384, FP32, False), (1000, BF16, False),
]  # fmt: skip
STAGES = (None, Stage.ONE, Stage.TWO)


@pytest.fixture(autouse=True)
def stand_in_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective, "default_store", StandInStore)


class SameMemory:
    """Operands and flat memory that both targets use, so that addresses are equal too."""

    def __init__(self, node: FakeNode, size: int) -> None:
        self.node, self.size = node, size
        self.memory = [[self._pair(numel) for numel, _, _ in CALLS] for _ in range(size)]

    @staticmethod
    def _pair(numel: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(4 * numel + 8, dtype=torch.uint8), torch.zeros(4 * numel + 8, dtype=torch.uint8)

    def operands(self, rank: int, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        numel, dtype, in_place = CALLS[index]
        start = dtype.itemsize * (index % 2)
        x, out = (part[start : start + numel * dtype.itemsize].view(dtype) for part in self.memory[rank][index])
        return x.fill_(rank + 1 + index), x if in_place else out

    def calls(self, rank: int, op: AllReduceOp, check: bool = True) -> None:
        """The same calls on either target; results are checked."""
        for index in range(len(CALLS)):
            x, out = self.operands(rank, index)
            op(x, out)
            if check:
                op.check()
                assert bool((out == sum(peer + 1 + index for peer in range(self.size))).all()), (index, out)
        if op._options.stage is not Stage.ONE:
            buffer = op.buffer((64,), FP32).fill_(rank + 1)
            op(buffer, buffer)
            if check:
                op.check()
                assert float(buffer[0]) == sum(range(1, self.size + 1))

    def on_emulated(self, stage: Stage | None, execute: bool = True) -> list[list[Launched]]:
        """What the emulated target executes, for each rank."""
        executed: dict[int, list[Launched]] = {rank: [] for rank in range(self.size)}

        class Spy(EmulatedTarget):
            def submit(self, pipeline: Any) -> None:
                executed[self._host.rank].extend(Launched.of(launch) for launch in pipeline.launches)
                if execute:
                    super().submit(pipeline)

        def body(ctx: RankContext) -> None:
            ctx.backing = FixedBacking(self.node.flat, ctx.node.regions, ctx.rank)
            ctx.target = lambda device="auto": Spy(ctx)
            with AllReduceOp.create(ctx, MAX_BYTES, stage=stage, timeout_s=5.0) as op:
                executed[ctx.rank].clear()  # the self-test's tensors are not ours to place
                self.calls(ctx.rank, op, check=execute)

        LocalWorld(self.size).run(body)
        return [executed[rank] for rank in range(self.size)]

    def on_rocm(self, stage: Stage | None, execute: bool = True) -> list[list[Launched]]:
        """What the fake library saw, for each rank."""

        def body(ctx: RankContext, world: RocmWorld) -> list[Launched]:
            with AllReduceOp.create(world, MAX_BYTES, stage=stage, timeout_s=5.0) as op:
                before = len(self.node.fake.launches(ctx.rank))
                self.calls(ctx.rank, op, check=execute)
                return self.node.fake.launches(ctx.rank)[before:]

        return run(self.node, body, self.size, target=EmulatedRocmTarget if execute else Unexecuted)


class Unexecuted(EmulatedRocmTarget):
    """Launches are logged and that is all."""

    def execute(self, *launch: Any) -> None:
        pass


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name if stage else "AUTO")
@pytest.mark.parametrize("size", [1, 2, 3])
def test_launches_equal_those_of_the_emulated_target(tmp_path: Path, size: int, stage: Stage | None) -> None:
    same = SameMemory(FakeNode(tmp_path, size), size)
    expected = same.on_emulated(stage)
    launched = same.on_rocm(stage)
    assert launched == expected
    assert not same.node.fake.errors
    assert [len(rank) for rank in launched] == [len(CALLS) + (stage is not Stage.ONE)] * size
    stages = {launch.kernel.rpartition("_")[2] for rank in launched for launch in rank}
    assert stages == ({"1stage", "2stage"} if stage is None else {f"{stage.value}stage"})


ARGUMENTS = ("base", "stride", "rank", "blocks", "src", "dst", "numel", "tag", "input", "reduced", "budget", "error")
SWAPS = [(None, None), ("base", "stride"), ("rank", "blocks"), ("src", "dst"), ("numel", "tag"), ("input", "reduced")]


@pytest.mark.parametrize(("first", "second"), SWAPS)
def test_a_swapped_argument_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str | None, second: str | None
) -> None:
    """Nothing is executed here: swapped regions, for one, would give right sums. Unswapped, the two are equal."""
    monkeypatch.setattr(AllReduceOp, "_self_test", lambda self: None)
    same = SameMemory(FakeNode(tmp_path, 2), 2)
    expected = same.on_emulated(Stage.TWO, execute=False)
    pack = call.pack_arguments

    def swapped(slots: Any, values: tuple[int, ...]) -> bytes:
        changed = dict(zip(ARGUMENTS, values, strict=True))
        changed[first], changed[second] = changed[second], changed[first]
        return pack(slots, tuple(changed.values()))

    if first is not None:
        monkeypatch.setattr(call, "pack_arguments", swapped)
    assert (same.on_rocm(Stage.TWO, execute=False) == expected) is (first is None)
