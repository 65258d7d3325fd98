# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The submit code of kernels/device/sdma.ll on an emulated GPU: what is copied, in which packets, and how waits end."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
import torch

from mori_gemm_ar.emulator import EVERYWHERE, EngineFaults, EngineSettings, MemoryRegion, Node
from mori_gemm_ar.emulator.races.detector import RaceDetector
from mori_gemm_ar.emulator.weak import WeakMemory
from mori_gemm_ar.kernels.device import sdma
from mori_gemm_ar.layout.copy_queue import HANDLE_OFFSETS, MAX_PUT_BYTES, RING_BYTES, UNIT_BYTES, Add, Copy, unit
from tests.kernel.harness import run_kernel
from tests.kernel.sdma_kernels import build_put

BUDGET = 1_000_000_000
DEAD = EngineSettings(faults=EngineFaults(dead=EVERYWHERE))


class Bench:
    """One GPU with queues to two peers, and memory to copy between."""

    def __init__(self, node: Node | None = None, words: int = 1 << 14) -> None:
        self.node = node or Node(1)
        self.queues = self.node.engines.open(0, 2, 2)
        self.src = torch.arange(1, words + 1, dtype=torch.int32)
        self.dst = torch.zeros(words, dtype=torch.int32)
        self.signal = torch.zeros(16, dtype=torch.int64)
        self.result = torch.full((2 * 64 * 64,), -1, dtype=torch.int32)

    def run(self, nbytes, *, lanes=1, puts=1, blocks=1, first=0, step=None, budget=BUDGET, waves=1, **build):
        """One launch; returns (late puts, late drain) of every lane."""
        tensors = {"src": self.src, "dst": self.dst, "signal": self.signal, "result": self.result}
        values = (
            self.queues.table, first, lanes, puts, self.dst, self.src, nbytes if step is None else step, nbytes,
            self.signal, budget, self.result,
        )  # fmt: skip
        code = build_put(waves, **build)
        run_kernel(code, (blocks, 1, 1), (64 * waves, 1, 1), values, tensors, self.node)
        return self.result[: 2 * lanes * blocks * waves].view(-1, 2).tolist()

    def word(self, queue: int, name: str) -> ctypes.c_uint64:
        """What a pointer of a handle points to; the last word itself."""
        handle = ctypes.c_uint64.from_address(self.queues.table + 8 * queue).value
        word = ctypes.c_uint64.from_address(handle + HANDLE_OFFSETS[name])
        return word if name == "cachedHwReadIndex" else ctypes.c_uint64.from_address(word.value)

    def pointers(self, queue: int) -> set[int]:
        names = ("rptr", "wptr", "doorbell", "cachedWptr", "committedWptr")
        return {self.word(queue, name).value for name in names}

    def ring(self, queue: int, units: int) -> list[tuple[int, ...]]:
        dwords = (ctypes.c_uint32 * (8 * units)).from_address(self.queues.engines[queue].addresses.ring)
        return [tuple(dwords[8 * n : 8 * n + 8]) for n in range(units)]


def nodes() -> list[Node]:
    weak = [Node(1, memory=WeakMemory(seed)) for seed in range(3)]
    return [Node(1), Node(1, engines=EngineSettings(ordered=True)), Node(1, races=RaceDetector()), *weak]


# --- what is copied ---


@pytest.mark.parametrize("which", range(6))
def test_a_put_copies_and_the_drain_sees_it(which: int) -> None:
    bench = Bench(nodes()[which])
    assert bench.run(4096) == [[0, 0]]
    assert torch.equal(bench.dst[:1024], bench.src[:1024])
    assert not bench.dst[1024:].any()
    assert bench.pointers(0) == {UNIT_BYTES}


@pytest.mark.parametrize("which", range(6))
def test_two_waves_and_four_blocks_on_the_same_two_queues(which: int) -> None:
    """Lanes 0 and 1 of every wave use queues 1 and 2: turns pass from wave to wave on both."""
    bench = Bench(nodes()[which])
    assert bench.run(512, lanes=2, puts=3, blocks=4, waves=2, first=1, signal=True) == [[0, 0]] * 16
    words = 16 * 3 * 512 // 4
    assert torch.equal(bench.dst[:words], bench.src[:words])
    assert not bench.dst[words:].any()
    assert bench.signal[0] == 48
    assert bench.pointers(1) == bench.pointers(2) == {8 * 3 * 2 * UNIT_BYTES}
    assert bench.pointers(0) == bench.pointers(3) == {0}


def test_bytes_that_fill_no_word() -> None:
    bench = Bench()
    bench.src = torch.arange(64, dtype=torch.uint8)
    bench.dst = torch.zeros(64, dtype=torch.uint8)
    assert bench.run(13) == [[0, 0]]
    assert bench.dst.tolist() == [*range(13), *[0] * 51]


# --- packets ---


def test_packets_are_these_dwords() -> None:
    """By hand from the header of amd-mori 1.2.4, and as layout.copy_queue has them."""
    bench = Bench()
    bench.run(4096, signal=True)
    source, target, signal = (t.data_ptr() for t in (bench.src, bench.dst, bench.signal))
    low = 0xFFFFFFFF
    copy = (0x1, 0xFFF, 0, source & low, source >> 32, target & low, target >> 32, 0)
    add = (0x5E00000A, signal & low, signal >> 32, 1, 0, 0, 0, 0)
    assert bench.ring(0, 3) == [copy, add, (0,) * 8]
    assert [unit(Copy(target, source, 4096)), unit(Add(signal))] == [copy, add]


def test_nothing_is_posted_for_no_bytes() -> None:
    bench = Bench()
    assert bench.run(0) == [[0, 0]]
    assert bench.pointers(0) == {0}
    assert bench.run(0, signal=True) == [[0, 0]]
    assert bench.ring(0, 2) == [unit(Add(bench.signal.data_ptr())), (0,) * 8]
    assert bench.signal[0] == 1


@pytest.mark.parametrize("extra", [-1, 0, 1, MAX_PUT_BYTES + 5])
def test_a_long_put_is_split(extra: int) -> None:
    """The engine is dead: only what is posted matters."""
    bench, nbytes = Bench(Node(1, engines=DEAD)), MAX_PUT_BYTES + extra
    assert bench.run(nbytes, signal=True, budget=1000) == [[0, 1]]
    wanted, done = [], 0
    while done < nbytes:
        part = min(nbytes - done, MAX_PUT_BYTES)
        wanted.append(unit(Copy(bench.dst.data_ptr() + done, bench.src.data_ptr() + done, part)))
        done += part
    assert bench.ring(0, len(wanted) + 2) == [*wanted, unit(Add(bench.signal.data_ptr())), (0,) * 8]


@pytest.mark.parametrize("which", [0, 1, 3, 4])  # the race detector takes half a minute for so many packets
def test_the_ring_wraps(which: int) -> None:
    """The ring is all but full of what the host posted, and its engine is late: puts wait for room, and go round."""
    node = nodes()[which]
    late = EngineFaults(late=EVERYWHERE, late_ticks=100_000)
    node.engines.configure(EngineSettings(ordered=which == 1, faults=late))
    bench, puts, before = Bench(node), 30, RING_BYTES // UNIT_BYTES - 3
    node.regions.add(MemoryRegion("counter", bench.signal[8:].data_ptr(), 8, 0))
    dwords = (ctypes.c_uint32 * (8 * before)).from_address(bench.queues.engines[0].addresses.ring)
    dwords[:] = unit(Add(bench.signal[8:].data_ptr())) * before
    for name in ("cachedWptr", "committedWptr", "wptr", "doorbell"):
        bench.word(0, name).value = before * UNIT_BYTES
    assert bench.run(16, puts=puts, blocks=2) == [[0, 0]] * 2
    assert torch.equal(bench.dst[: 8 * puts], bench.src[: 8 * puts])
    assert bench.signal[8] == before
    assert bench.pointers(0) == {(before + 2 * puts) * UNIT_BYTES}
    assert bench.word(0, "cachedHwReadIndex").value > 0


# --- waits end ---


def test_a_drain_of_a_dead_engine_ends() -> None:
    bench = Bench(Node(1, engines=DEAD))
    assert bench.run(64, budget=5000) == [[0, 1]]
    assert not bench.dst.any()
    assert bench.word(0, "doorbell").value == UNIT_BYTES


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_put_into_a_full_ring_ends(lanes: int) -> None:
    """One lane's queue is full; another lane of the wave posts all the same."""
    bench = Bench(Node(1, engines=EngineSettings(faults=EngineFaults(dead=((0, 0, 0),)))))
    for name in ("cachedWptr", "committedWptr", "doorbell"):
        bench.word(0, name).value = RING_BYTES
    assert bench.run(64, lanes=lanes, budget=5000) == [[1, 1], [0, 0]][:lanes]
    assert bench.dst[16 : 16 * lanes].tolist() == bench.src[16 : 16 * lanes].tolist()
    assert not bench.dst[:16].any()
    assert bench.word(0, "doorbell").value == RING_BYTES


def test_a_put_behind_a_hole_ends() -> None:
    """Somebody reserved, and never posted."""
    bench = Bench()
    bench.word(0, "cachedWptr").value = UNIT_BYTES
    assert bench.run(64, budget=5000) == [[1, 0]]
    assert not bench.dst.any()


def test_numbers_of_the_device_code_are_those_of_the_layout() -> None:
    text = re.sub(r";[^\n]*", "", Path(sdma.LIBRARY).read_text())
    header = Add(0)
    numbers = {RING_BYTES, RING_BYTES - 1, MAX_PUT_BYTES, MAX_PUT_BYTES - 1, UNIT_BYTES, unit(header)[0]}
    assert numbers <= {int(n) for n in re.findall(r"\b\d+\b", text)}
    for offset in HANDLE_OFFSETS.values():
        assert offset == 0 or f"%h, i64 {offset}\n" in text
