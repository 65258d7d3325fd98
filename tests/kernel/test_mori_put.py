# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Puts by amd-mori's device code, linked into a kernel of ours: what is copied, in which packets, and how waits end.

Both by the stand-in and, where a clang is there, by what the wheel of amd-mori compiles to.

Annotations of @fx.struct and @flyc.kernel are read as types, so this file does not postpone their evaluation.
"""

import ctypes
import struct
from pathlib import Path

import flydsl.compiler as flyc
import flydsl.expr as fx
import pytest
import torch

from mori_gemm_ar.compile.build import build_kernel
from mori_gemm_ar.compile.store import CodeObject
from mori_gemm_ar.emulator import EVERYWHERE, EngineFaults, EngineSettings, MemoryRegion, Node
from mori_gemm_ar.emulator.races.detector import RaceDetector
from mori_gemm_ar.emulator.weak import WeakMemory
from mori_gemm_ar.isa import parse_isa
from mori_gemm_ar.kernels.device import library
from mori_gemm_ar.kernels.device.submit import submit_code
from mori_gemm_ar.kernels.kernel import DeviceKernel
from mori_gemm_ar.layout.copy_queue import (
    HANDLE_OFFSETS,
    MAX_PUT_BYTES,
    RECORD_WORDS,
    RING_BYTES,
    UNIT_BYTES,
    Copy,
    unit,
)
from tests.kernel.harness import run_kernel
from tests.kernel.mori_bitcode import STAND_IN, compiled
from tests.unit.mori_source import wheel

BUDGET = 1_000_000_000
QUEUES = 2  # to each of two ranks; rank 0 is the own one
DEAD = EngineSettings(faults=EngineFaults(dead=EVERYWHERE))


@fx.struct
class PutArguments:
    """Lane i of each block uses queue `first + i` and moves the i-th run of bytes."""

    table: fx.Int64
    first: fx.Uint32
    lanes: fx.Uint32
    dst: fx.Int64
    src: fx.Int64
    step: fx.Int64
    nbytes: fx.Int64
    budget: fx.Int64
    result: fx.Int64  # two words per lane: late put, late drain


def build_put(bitcode: Path) -> CodeObject:
    submit = submit_code(bitcode)

    @flyc.kernel(name="mori_put", known_block_size=[64, 1, 1])
    def kernel(arguments: PutArguments):
        lane = fx.Uint32(fx.thread_idx.x)
        library.release_agent()
        if lane < arguments.lanes:
            number = fx.Uint32(fx.block_idx.x) * arguments.lanes + lane
            at = arguments.step * fx.Int64(number)
            queue = submit.queue(arguments.table, arguments.first + lane)
            late = submit.put(queue, arguments.dst + at, arguments.src + at, arguments.nbytes, arguments.budget)
            stuck = submit.drain(queue, arguments.budget)
            place = arguments.result + fx.Int64(number * 8)
            library.store_system_u32(place, late)
            library.store_system_u32(place + 4, stuck)

    return build_kernel(DeviceKernel("mori_put", kernel, PutArguments, 64), key=f"mori_put_{bitcode.stem}")


@pytest.fixture(scope="module", params=["stand-in", "compiled"])
def code(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CodeObject:
    if request.param == "stand-in":
        return build_put(STAND_IN)
    return build_put(compiled(wheel(tmp_path_factory), tmp_path_factory.mktemp("mori")))


class Bench:
    """One GPU with queues to itself and to a peer, and mori's structures: one window for source and target."""

    def __init__(self, node: Node | None = None, words: int = 4096) -> None:
        self.node, self.words = node or Node(1), words
        self.queues = self.node.engines.open(0, 2, QUEUES)
        self.memory = torch.zeros(2 * words, dtype=torch.int32)
        self.memory[:words] = torch.arange(1, words + 1, dtype=torch.int32)
        self.result = torch.full((256,), -1, dtype=torch.int32)
        own = self.memory.data_ptr()
        # A stride of 0 puts the peer's window over the own one. Sizes and places as in amd-mori 1.2.4's cco.hpp.
        self.window = ctypes.create_string_buffer(struct.pack("<QIi16x", own, 0, 0), 32)
        facts = (0, 2, 2, 0, 0, 0, own, 0)
        self.comm = ctypes.create_string_buffer(
            struct.pack("<6i2Q128xI4xQ2Q", *facts, QUEUES, self.queues.table, 0, 0), 200
        )
        comm, window = (ctypes.addressof(held) for held in (self.comm, self.window))
        handles = [ctypes.c_uint64.from_address(self.queues.table + 8 * i).value for i in range(2 * QUEUES)]
        records = [struct.pack("<8Q", comm, window, *divmod(i, QUEUES), own, own, h, 0) for i, h in enumerate(handles)]
        assert len(RECORD_WORDS) == 8
        self.records = torch.frombuffer(bytearray(b"".join(records)), dtype=torch.uint8)
        for name, address, nbytes in (("window structure", window, 32), ("comm structure", comm, 200)):
            self.node.regions.add(MemoryRegion(name, address, nbytes, 0))

    def run(self, code: CodeObject, nbytes: int, *, lanes: int = 1, blocks: int = 1, budget: int = BUDGET):
        """(late put, late drain) of every lane; the target is the second half of the memory."""
        values = (
            self.records, QUEUES, lanes, self.memory.data_ptr() + 4 * self.words, self.memory, nbytes, nbytes, budget,
            self.result,
        )  # fmt: skip
        tensors = {"memory": self.memory, "records": self.records, "result": self.result}
        run_kernel(code, (blocks, 1, 1), (64, 1, 1), values, tensors, self.node)
        return self.result[: 2 * lanes * blocks].view(-1, 2).tolist()

    def word(self, queue: int, name: str) -> ctypes.c_uint64:
        """What a pointer of a handle to the peer points to."""
        handle = ctypes.c_uint64.from_address(self.queues.table + 8 * (QUEUES + queue)).value
        return ctypes.c_uint64.from_address(ctypes.c_uint64.from_address(handle + HANDLE_OFFSETS[name]).value)

    def ring(self, queue: int, units: int) -> list[tuple[int, ...]]:
        dwords = (ctypes.c_uint32 * (8 * units)).from_address(self.queues.engines[QUEUES + queue].addresses.ring)
        return [tuple(dwords[8 * n : 8 * n + 8]) for n in range(units)]

    def copied(self, words: int) -> bool:
        target = self.memory[self.words :]
        return torch.equal(target[:words], self.memory[:words]) and not target[words:].any()


def nodes() -> list[Node]:
    return [Node(1), Node(1, races=RaceDetector()), *(Node(1, memory=WeakMemory(seed)) for seed in range(2))]


@pytest.mark.parametrize("which", range(4))
def test_lanes_put_through_their_queues(code: CodeObject, which: int) -> None:
    bench = Bench(nodes()[which])
    assert bench.run(code, 512, lanes=2) == [[0, 0]] * 2
    assert bench.copied(256)
    assert [bench.word(q, n).value for q in (0, 1) for n in ("rptr", "wptr", "doorbell", "committedWptr")] == [32] * 8


def test_blocks_share_a_queue(code: CodeObject) -> None:
    bench = Bench()
    assert bench.run(code, 256, lanes=2, blocks=4) == [[0, 0]] * 8
    assert bench.copied(512)
    assert bench.word(1, "cachedWptr").value == 4 * UNIT_BYTES


def test_packets_are_those_of_our_own_code(code: CodeObject) -> None:
    bench = Bench()
    bench.run(code, 4096)
    source = bench.memory.data_ptr()
    assert bench.ring(0, 2) == [unit(Copy(source + 4 * bench.words, source, 4096)), (0,) * 8]


def test_nothing_is_posted_for_no_bytes(code: CodeObject) -> None:
    bench = Bench()
    assert bench.run(code, 0) == [[0, 0]]
    assert bench.word(0, "cachedWptr").value == 0


@pytest.mark.parametrize("extra", [0, 1, MAX_PUT_BYTES + 5])
def test_a_long_put_is_split(code: CodeObject, extra: int) -> None:
    """The engine is dead: only what is posted matters."""
    bench, nbytes = Bench(Node(1, engines=DEAD)), MAX_PUT_BYTES + extra
    assert bench.run(code, nbytes, budget=1000) == [[0, 1]]
    source, wanted = bench.memory.data_ptr(), []
    for done in range(0, nbytes, MAX_PUT_BYTES):
        part = min(nbytes - done, MAX_PUT_BYTES)
        wanted.append(unit(Copy(source + 4 * bench.words + done, source + done, part)))
    assert bench.ring(0, len(wanted) + 1) == [*wanted, (0,) * 8]


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_put_into_a_full_ring_ends(code: CodeObject, lanes: int) -> None:
    """One lane's queue is full and its engine dead: nothing is reserved, and the other lane posts all the same."""
    bench = Bench(Node(1, engines=EngineSettings(faults=EngineFaults(dead=((0, 1, 0),)))))
    for name in ("cachedWptr", "committedWptr", "doorbell"):
        bench.word(0, name).value = RING_BYTES
    assert bench.run(code, 64, lanes=lanes, budget=5000) == [[1, 1], [0, 0]][:lanes]
    assert bench.word(0, "cachedWptr").value == RING_BYTES
    target = bench.memory[bench.words :]
    assert not target[:16].any()
    assert torch.equal(target[16 : 16 * lanes], bench.memory[16 : 16 * lanes])


def test_a_put_behind_a_hole_ends(code: CodeObject) -> None:
    """Somebody reserved, and never posted."""
    bench = Bench()
    bench.word(0, "cachedWptr").value = UNIT_BYTES
    assert bench.run(code, 64, budget=5000) == [[1, 0]]
    assert bench.word(0, "cachedWptr").value == UNIT_BYTES


def test_the_audit_says_what_is_unbounded(code: CodeObject) -> None:
    """Waits inside mori's put have no bound, whatever stands in front of them."""
    report = code.manifest["audit"]
    assert report["verdict"] == "fail"
    assert any(text.startswith("bounded_waits: ") for text in report["findings"])


def test_mori_s_code_is_inlined(code: CodeObject) -> None:
    """A call would need a stack, and no kernel of ours has one."""
    names = {i.name for i in parse_isa(code.isa).kernel("mori_put").instructions}
    assert not {name for name in names if name.startswith(("s_swappc", "s_setpc", "scratch_"))}
    assert code.manifest["resources"]["scratch_bytes"] == 0
