# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""One copy engine, its packets posted by hand: order, strictness, faults, and what stays behind."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest

from mori_gemm_ar.emulator import EVERYWHERE, EngineFaults, EngineSettings, MemoryRegion, Node
from mori_gemm_ar.emulator.races.detector import RaceDetector
from mori_gemm_ar.emulator.weak import WeakMemory
from mori_gemm_ar.errors import ConfigError, EmulatorError, RaceError
from mori_gemm_ar.layout import copy_queue
from mori_gemm_ar.layout.copy_queue import MAX_PUT_BYTES, RING_BYTES, UNIT_BYTES, Add, Copy, Fence, decode, encode, unit

WHERE = "copy engine of GPU 0 to peer 1, queue 0, position 0x"


class Bench:
    """A GPU with one queue to a peer, and 64 KiB to copy in."""

    def __init__(
        self,
        settings: EngineSettings | None = None,
        weak: int | None = None,
        nbytes: int = 1 << 16,
        node: Node | None = None,
    ) -> None:
        self.node = node or Node(2, memory=None if weak is None else WeakMemory(weak), engines=settings)
        self.queues = self.node.engines.open(0, 2, 1)
        self.engine = self.queues.engines[1]
        self.bytes = np.zeros(nbytes, np.uint8)
        self.base = self.bytes.ctypes.data
        self.node.regions.add(MemoryRegion("memory", self.base, nbytes, 0, symmetric=True))
        self.posted = 0

    def word(self, name: str) -> int:
        return ctypes.c_uint64.from_address(getattr(self.engine.addresses, name)).value

    def post(self, *dwords: int) -> None:
        """Write dwords behind what is there."""
        for dword in dwords:
            at = self.engine.addresses.ring + self.posted % RING_BYTES
            ctypes.c_uint32.from_address(at).value = dword
            self.posted += 4

    def ring(self, value: int | None = None) -> None:
        ctypes.c_uint64.from_address(self.engine.addresses.doorbell).value = self.posted if value is None else value

    def put(self, *packets: Copy | Add | Fence) -> None:
        for packet in packets:
            self.post(*unit(packet))
        self.ring()

    def run(self, rounds: int = 200) -> None:
        for _ in range(rounds):
            self.node.step()

    @property
    def drained(self) -> bool:
        return self.word("rptr") == self.posted


# --- packets as data ---


def test_packets_round_trip() -> None:
    for packet in (Copy(1 << 40 | 64, 1 << 41 | 8, 1 << 30), Add(1 << 40, 7), Fence(1 << 40, 9)):
        assert decode(encode(packet)) == packet
        assert len(unit(packet)) * 4 == UNIT_BYTES
    assert decode((0,)) is None
    assert copy_queue.units_of(MAX_PUT_BYTES) == 1
    assert copy_queue.units_of(MAX_PUT_BYTES + 1, 1) == 3
    assert copy_queue.units_of(0) == 0
    for nbytes in (0, (1 << 30) + 1):
        with pytest.raises(ValueError, match="split the copy"):
            encode(Copy(0, 0, nbytes))


# --- order ---


def test_packets_of_every_kind_land() -> None:
    bench = Bench()
    bench.bytes[:4096] = 7
    base = bench.base
    bench.put(Copy(base + 8192, base, 4096), Add(base + 16384, 5), Fence(base + 16392, 0xABCD), Add(base + 16384, 1))
    bench.run()
    assert bench.drained
    assert (bench.bytes[8192:12288] == 7).all()
    assert bench.bytes[16384:16396].view(np.uint32).tolist() == [6, 0, 0xABCD]


def _last_writer(seed: int, *, ordered: bool = False, fence: bool = False, weak: bool = False) -> int:
    """Two copies to one place: which one's bytes stay."""
    bench = Bench(EngineSettings(seed=seed, ordered=ordered), weak=seed if weak else None)
    bench.bytes[:64], bench.bytes[64:128] = 1, 2
    first, second = Copy(bench.base + 1024, bench.base, 64), Copy(bench.base + 1024, bench.base + 64, 64)
    bench.put(first, *([Fence(bench.base + 2048, 1)] if fence else []), second)
    bench.run(50)
    assert bench.drained
    return int(bench.bytes[1024])


@pytest.mark.parametrize("weak", [False, True])
def test_two_copies_land_in_any_order_unless_a_fence_stands_between(weak: bool) -> None:
    assert {_last_writer(seed, weak=weak) for seed in range(20)} == {1, 2}
    assert {_last_writer(seed, fence=True, weak=weak) for seed in range(20)} == {2}
    assert {_last_writer(seed, ordered=True, weak=weak) for seed in range(20)} == {2}


def test_the_read_pointer_passes_only_what_has_landed() -> None:
    for seed in range(10):
        bench = Bench(EngineSettings(seed=seed, busy=0.2))
        bench.bytes[:32768] = 3
        bench.put(*[Copy(bench.base + 32768 + 8192 * n, bench.base + 8192 * n, 8192) for n in range(4)])
        while not bench.drained:
            bench.node.step()
            done = bench.word("rptr") // UNIT_BYTES
            assert (bench.bytes[32768 : 32768 + 8192 * done] == 3).all()


def test_a_copy_moves_in_pieces() -> None:
    seen = set()
    for seed in range(10):
        bench = Bench(EngineSettings(seed=seed))
        bench.bytes[:32768] = 3
        bench.put(Copy(bench.base + 32768, bench.base, 32768))
        while not bench.drained:
            bench.node.step()
            seen.add(int((bench.bytes[32768:] == 3).sum()))
    assert len(seen) > 5


def test_the_ring_goes_round() -> None:
    bench = Bench()
    bench.bytes[0] = 1
    for _ in range(3):
        for _ in range(RING_BYTES // UNIT_BYTES - 1):
            bench.post(*unit(Add(bench.base + 64)))
        bench.ring()
        while not bench.drained:
            bench.node.step()
    assert bench.posted > 2 * RING_BYTES
    assert int(bench.bytes[64:72].view(np.uint64)[0]) == 3 * (RING_BYTES // UNIT_BYTES - 1)


OVERLAPS = {
    "same target": ((8192, 0), (8192, 1024)),
    "target, then source": ((8192, 0), (16384, 8192 + 1023)),
    "source, then target": ((8192, 0), (1, 4096)),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", OVERLAPS)
def test_copies_that_may_overtake_each_other_are_a_race(name: str, seed: int) -> None:
    def posted(fenced: bool = False, drained: bool = False, **settings: object) -> None:
        node = Node(2, engines=EngineSettings(seed=seed, **settings), races=RaceDetector())  # type: ignore[arg-type]
        bench = Bench(node=node)
        first, second = (Copy(bench.base + to, bench.base + of, 1024) for to, of in OVERLAPS[name])
        bench.put(first)
        bench.run(200 if drained else 0)
        bench.put(*([Fence(bench.base + 32768, 1)] if fenced else []), second)
        bench.run(50)
        assert bench.drained

    with pytest.raises(RaceError, match=r"queue 0: Copy.* and Copy.* at position 0x0 must not touch the same bytes"):
        posted()
    posted(fenced=True)
    posted(drained=True)
    posted(ordered=True)


# --- strictness ---


def _stray(bench: Bench) -> None:
    bench.put(Copy(bench.base + (1 << 16) - 32, bench.base, 64))


WRONG = {
    "opcode": (lambda b: (b.post(*[0x2B] + [0] * 7), b.ring()), r"0 \(ring \+ 0x0\): opcode=43 must be one of"),
    "tiled copy": (lambda b: (b.post(0x101, *[0] * 7), b.ring()), "COPY must be linear"),
    "parameters": (lambda b: (b.post(1, 63, 1, *[0] * 5), b.ring()), "COPY must be linear without parameters"),
    "32-bit atomic": (lambda b: (b.post(0x1E00000A, *[0] * 7), b.ring()), "ATOMIC must be a 64-bit addition"),
    "half a packet": (lambda b: (b.post(1, 63, 0, 0), b.ring()), "COPY must have 7 dwords, but 4 are posted"),
    "too long": (lambda b: b.put(Copy(b.base, b.base, MAX_PUT_BYTES + 1)), "must copy at most"),
    "stray": (_stray, "target of Copy.* must lie in a known region; nearest is memory"),
    "stray source": (lambda b: b.put(Copy(b.base, 64, 64)), "source of Copy.* must lie in a known region"),
    "stray signal": (lambda b: b.put(Add(64)), "target of Add.* must lie in a known region"),
    "misaligned signal": (lambda b: b.put(Add(b.base + 4)), "target of Add.* must be aligned"),
    "misaligned doorbell": (lambda b: b.ring(30), "the doorbell must be a multiple of 4"),
    "far doorbell": (lambda b: b.ring(RING_BYTES + 32), "the doorbell must be within 262144 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_no_kernel_of_ours_posts_is_an_error(name: str) -> None:
    bench = Bench()
    if bench.base % 8:
        bench.base += 8 - bench.base % 8
    wrong, message = WRONG[name]
    wrong(bench)
    with pytest.raises(EmulatorError, match=WHERE + r".*" + message):
        bench.run(3)


def test_a_put_above_128_mib_is_an_error() -> None:
    bench = Bench(nbytes=MAX_PUT_BYTES + 64)
    bench.put(Copy(bench.base, bench.base, MAX_PUT_BYTES + 1))
    with pytest.raises(EmulatorError, match="must copy at most 134217728 bytes; split the put"):
        bench.run(3)


def test_a_doorbell_that_goes_back_is_an_error() -> None:
    bench = Bench()
    bench.put(Add(bench.base), Add(bench.base))
    bench.run()
    bench.ring(UNIT_BYTES)
    with pytest.raises(EmulatorError, match="must not go back from 0x40"):
        bench.run(3)


# --- faults ---


def _faulty(**switches: object) -> Bench:
    bench = Bench(EngineSettings(faults=EngineFaults(**switches)))  # type: ignore[arg-type]
    bench.bytes[:8192] = 7
    copies = [Copy(bench.base + 16384 * n, bench.base, 8192) for n in (1, 2)]
    bench.put(copies[0], Add(bench.base + 65528 - bench.base % 8), copies[1])
    bench.run()
    return bench


def _landed(bench: Bench) -> list[int]:
    return [int((bench.bytes[16384 * n : 16384 * n + 8192] == 7).sum()) for n in (1, 2)]


def _signals(bench: Bench) -> int:
    return ctypes.c_uint64.from_address(bench.base + 65528 - bench.base % 8).value


@pytest.mark.parametrize("where", [EVERYWHERE, ((0, 1, 0),), ((0, None, None),), ((None, 1, 0),)])
def test_each_fault_does_what_it_says(where: tuple[tuple[int | None, int | None, int | None], ...]) -> None:
    right = ([8192, 8192], 1, 3 * UNIT_BYTES)
    state = {
        name: (_landed(bench), _signals(bench), bench.word("rptr"))
        for name in ("no_data", "dead", "stalled", "torn", "lost", "late")
        for bench in [_faulty(**{name: where}, late_ticks=10)]
    }
    assert state == {
        "no_data": ([0, 0], 0, 3 * UNIT_BYTES),
        "dead": ([0, 0], 0, 0),
        "stalled": ([8192, 0], 0, UNIT_BYTES),
        "torn": ([4096, 4096], 1, 3 * UNIT_BYTES),
        "lost": ([8192, 8192], 0, 0),
        "late": right,
    }


def test_a_fault_hits_only_the_queue_that_it_names() -> None:
    for where in (((1, 1, 0),), ((0, 0, 0),), ((0, 1, 1),), ()):
        bench = _faulty(dead=where)
        assert (_landed(bench), _signals(bench)) == ([8192, 8192], 1)


def test_a_late_queue_takes_its_time() -> None:
    bench = Bench(EngineSettings(faults=EngineFaults(late=EVERYWHERE, late_ticks=1_000_000)))
    bench.put(Add(bench.base - bench.base % 8 + 8))
    start = bench.node.clock.ticks
    while not bench.drained:
        bench.node.step()
    assert bench.node.clock.ticks - start >= 1_000_000


def test_absent_queues_are_not_opened() -> None:
    settings = EngineSettings(faults=EngineFaults(absent=((1, None, None),)))
    node = Node(2, engines=settings)
    assert node.engines.fault(0, 2, 1) is None
    assert node.engines.fault(1, 2, 1) == "queue 0 of rank 1 to peer 0 is absent: EngineFaults.absent names it"
    with pytest.raises(ConfigError, match="is absent"):
        node.engines.open(1, 2, 1)


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        ({"dead": True}, "dead=True must be a tuple of"),
        ({"torn": ((0, 1),)}, "torn=.* must be a tuple of"),
        ({"late_ticks": -1}, "late_ticks=-1 must not be negative"),
    ],
)
def test_settings_are_checked(switches: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineFaults(**switches)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="busy=2 must be a probability"):
        EngineSettings(busy=2)


# --- what others see of it ---


def test_reports_name_what_is_stuck() -> None:
    bench = _faulty(stalled=EVERYWHERE, stalled_after=2)
    line = "copy engine of GPU 0 to peer 1, queue 0 (stalled): read pointer 0x40, doorbell 0x60, 0 packets under way"
    assert bench.node.engines.report() == [line]
    assert line in bench.node.report()
    assert bench.node.engines.undrained
    assert bench.node.idle()  # kernels are done; engines may go on


def test_nothing_stays_behind() -> None:
    bench = _faulty(dead=EVERYWHERE)
    bench.queues.close()
    bench.queues.close()
    assert [region.name for region in bench.node.regions.known] == ["memory"]
    assert bench.node.regions.uncached == 0
    assert not bench.node.engines.undrained
    bench.node.engines.configure(EngineSettings(ordered=True))
    with pytest.raises(ConfigError, match="before the first queue"):
        Bench().node.engines.configure(EngineSettings())


def test_uncached_memory_is_apart() -> None:
    bench = Bench()
    rings = [region for region in bench.node.regions.known if region.uncached]
    assert len(rings) == 2
    assert rings[1].describe(bench.engine.addresses.doorbell) == "queue 0 of GPU 0 to peer 1: doorbell + 0x0"
    assert all(math.gcd(region.address, 4096) == 4096 for region in rings)
