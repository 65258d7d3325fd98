# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Memory that the emulated node refuses: unknown, foreign, past the end of a buffer, of LDS or of scratch."""

from __future__ import annotations

import pytest
import torch

from mori_gemm_ar.emulator import MemoryRegion, Node
from mori_gemm_ar.errors import EmulatorError, MemoryFault
from tests.kernel.isa_builder import TinyCode, descriptor, known, submit, tiny

LANES = torch.arange(64, dtype=torch.int32)


def words(count: int, value: int = -1) -> torch.Tensor:
    return torch.full((count,), value, dtype=torch.int32)


def run(node: Node, code: TinyCode, *values: object, threads: int = 64, blocks: int = 1) -> None:
    submit(node, code, values, threads=threads, blocks=blocks)
    node.run()


# --- memory faults ---

COPY = """
    s_load_dwordx4 s[4:7], s[0:1], 0x0
    v_lshlrev_b32_e32 v1, 2, v0
    s_waitcnt lgkmcnt(0)
    global_load_dword v2, v1, s[4:5]
    s_waitcnt vmcnt(0)
    global_store_dword v1, v2, s[6:7]
    s_endpgm
"""
WIDE_COPY = (
    COPY.replace("b32_e32 v1, 2", "b32_e32 v1, 4")
    .replace("dword v2", "dwordx4 v[4:7]")
    .replace("dword v1, v2", "dwordx4 v1, v[4:7]")
)


@pytest.mark.parametrize(
    ("body", "place", "count", "lane", "access"),
    [
        (COPY, "source", 40, 40, "global_load_dword v2, v1, s[4:5]"),
        (COPY, "target", 63, 63, "global_store_dword v1, v2, s[6:7]"),
        (WIDE_COPY, "source", 4 * 17 + 3, 17, "global_load_dwordx4 v[4:7], v1, s[4:5]"),
        (WIDE_COPY, "target", 2, 0, "global_store_dwordx4 v1, v[4:7], s[6:7]"),
    ],
)
def test_access_past_a_region(body: str, place: str, count: int, lane: int, access: str) -> None:
    """The first lane that leaves known memory, also in the middle of a wide access; nothing is written by the store."""
    node, source, target = Node(2), words(256, 1), words(256, 2)
    known(node, "source", source[:count] if place == "source" else source)
    known(node, "target", target[:count] if place == "target" else target)
    with pytest.raises(MemoryFault) as caught:
        run(node, tiny(body, (8, 8)), source, target)
    message = str(caught.value)
    assert message.startswith("kernel tiny, line ")
    assert f"{access}, GPU 0, workgroup (0, 0, 0), wave 0, lane {lane}: access of " in message
    assert f"must lie in a known region; nearest is {place} [" in message
    assert torch.equal(target, words(256, 2))
    with pytest.raises(EmulatorError, match="the emulated node stopped earlier: kernel tiny, line"):
        node.step()


@pytest.mark.parametrize("body", [COPY, WIDE_COPY], ids=["dword", "dwordx4"])
def test_access_up_to_the_end_of_a_region(body: str) -> None:
    """Negative control of the faults."""
    node, source, target = Node(1), torch.arange(256, dtype=torch.int32), words(256)
    count = 64 if body == COPY else 256
    known(node, "source", source[:count])
    known(node, "target", target[:count])
    run(node, tiny(body, (8, 8)), source, target)
    assert torch.equal(target[:count], source[:count])


def test_memory_that_is_no_longer_known() -> None:
    node, source, target = Node(1), words(64, 1), words(64)
    known(node, "target", target)
    known(node, "source", source)
    run(node, tiny(COPY, (8, 8)), source, target)
    node.regions.remove(MemoryRegion("source", source.data_ptr(), 256, 0))
    with pytest.raises(MemoryFault, match="lane 0: access of 4 bytes"):
        run(node, tiny(COPY, (8, 8)), source, target)


def test_inactive_lanes_may_hold_any_address() -> None:
    body = COPY.replace("s_waitcnt lgkmcnt(0)", "s_waitcnt lgkmcnt(0)\ns_mov_b64 exec, 0xff", 1)
    node, source, target = Node(1), torch.arange(64, dtype=torch.int32), words(64)
    known(node, "source", source[:8])
    known(node, "target", target[:8])
    run(node, tiny(body, (8, 8)), source, target)
    assert torch.equal(target[:8], source[:8]) and torch.equal(target[8:], words(56))


def test_scalar_loads_are_checked() -> None:
    body = "s_load_dwordx2 s[4:5], s[0:1], 0x0\ns_waitcnt lgkmcnt(0)\ns_load_dwordx4 s[8:11], s[4:5], 0x8\ns_endpgm"
    node, source = Node(1), words(64)
    known(node, "source", source[:5])
    with pytest.raises(MemoryFault, match=r"s_load_dwordx4 s\[8:11\].*access of 16 bytes at .* must lie in a known"):
        run(node, tiny(body), source)


def test_overlapping_regions_count_as_one() -> None:
    """Two views of one tensor are known as long as either is; the gap beside them is not."""
    node, memory = Node(1), words(192, 0)
    first = MemoryRegion("first", memory.data_ptr(), 4 * 100, 0, ((0, 40, "head"),))
    second = MemoryRegion("second", memory.data_ptr() + 4 * 60, 4 * 100, 1)
    for region in (first, second, first):
        node.regions.add(region)
    assert len(node.regions) == 1
    whole = node.regions.find(memory.data_ptr(), 4 * 160)
    assert whole is not None and (whole.name, whole.home, whole.nbytes) == ("first", 0, 640)
    assert whole.describe(memory.data_ptr() + 8) == "first: head + 0x8"
    node.regions.remove(first)
    assert node.regions.find(memory.data_ptr(), 640)
    node.regions.remove(first)
    assert node.regions.find(memory.data_ptr()) is None
    assert node.regions.find(memory.data_ptr() + 4 * 60, 400) == second
    node.regions.remove(second)
    node.regions.remove(second)
    assert len(node.regions) == 0


# --- atomics ---

ADD = """
    s_load_dwordx2 s[4:5], s[0:1], 0x0
    v_mov_b32_e32 v1, 0
    v_mov_b32_e32 v2, 1
    s_waitcnt lgkmcnt(0)
    global_atomic_add v1, v2, s[4:5]
    s_endpgm
"""


@pytest.mark.parametrize("home", [1, None], ids=["own", "host"])
def test_atomics_on_own_and_host_memory(home: int | None) -> None:
    node, counter = Node(2), words(4, 0)
    submit(node, tiny(ADD), (known(node, "counter", counter, home),), gpu=1, threads=256, blocks=3)
    node.run()
    assert counter.tolist() == [768, 0, 0, 0]


def test_atomics_on_peer_memory_are_refused() -> None:
    node, counter = Node(2), words(4, 0)
    submit(node, tiny(ADD), (known(node, "counter", counter, 1),), gpu=0)
    with pytest.raises(EmulatorError) as caught:
        node.run()
    assert "global_atomic_add v1, v2, s[4:5], GPU 0, workgroup (0, 0, 0), wave 0: " in str(caught.value)
    assert "read-modify-write of peer memory at counter + 0x0; it belongs to GPU 1" in str(caught.value)
    assert counter.tolist() == [0] * 4


# --- buffers ---

BUFFER_COPY = """
    s_load_dwordx4 s[4:7], s[0:1], 0x0
    s_load_dwordx4 s[8:11], s[0:1], 0x10
    v_lshlrev_b32_e32 v1, {shift}, v0
    s_waitcnt lgkmcnt(0)
    buffer_load_{kind} {rows}, v1, s[4:7], 0 offen
    s_waitcnt vmcnt(0)
    buffer_store_{kind} {rows}, v1, s[8:11], 0 offen offset:4
    s_endpgm
"""


@pytest.mark.parametrize(("kind", "shift", "rows"), [("dword", 2, "v2"), ("dwordx4", 4, "v[4:7]")])
@pytest.mark.parametrize("inside", [0, 4, 20, 100, 252])
def test_buffer_bounds(kind: str, shift: int, rows: str, inside: int) -> None:
    """Loads past the end read 0, stores are dropped, both dword by dword, and neither touches memory outside."""
    code = tiny(BUFFER_COPY.format(kind=kind, shift=shift, rows=rows), (8, 8, 8, 8))
    node, source, target = Node(1), torch.arange(1, 257, dtype=torch.int32), words(258)
    known(node, "source", source[: max(inside // 4, 1)])
    known(node, "target", target[:151])
    run(node, code, *descriptor(source, inside), *descriptor(target, 600))
    count = min((64 << shift) // 4, 149)
    loaded = torch.where(torch.arange(256) < inside // 4, source, 0).to(torch.int32)
    assert torch.equal(target[1 : 1 + count], loaded[:count])
    assert target[0] == -1 and torch.equal(target[1 + count :], words(257 - count))


def test_a_buffer_that_claims_too_much_faults() -> None:
    code = tiny(BUFFER_COPY.format(kind="dword", shift=2, rows="v2"), (8, 8, 8, 8))
    node, source, target = Node(1), words(64), words(64)
    known(node, "source", source[:32])
    known(node, "target", target)
    with pytest.raises(MemoryFault, match=r"buffer_load_dword v2.*lane 32: access of 4 bytes"):
        run(node, code, *descriptor(source, 256), *descriptor(target, 256))


# --- LDS and scratch ---

LDS = """
    s_load_dwordx2 s[4:5], s[0:1], 0x0
    v_lshlrev_b32_e32 v1, 2, v0
    ds_write_b32 v1, v0 offset:{offset}
    s_waitcnt lgkmcnt(0)
    ds_read_b32 v2, v1 offset:{offset}
    s_waitcnt lgkmcnt(0)
    global_store_dword v1, v2, s[4:5]
    s_endpgm
"""


def test_lds_out_of_range() -> None:
    node, out = Node(1), words(64)
    known(node, "out", out)
    run(node, tiny(LDS.format(offset=64), lds=320), out)
    assert torch.equal(out, LANES)
    with pytest.raises(MemoryFault) as caught:
        run(node, tiny(LDS.format(offset=68), lds=320), out)
    assert "ds_write_b32 v1, v0 offset:68, GPU 0, workgroup (0, 0, 0), wave 0, lane 63: LDS access at " in str(
        caught.value
    )
    assert str(caught.value).endswith("LDS access at 0x140 must lie below 0x140")


def test_lds_of_a_kernel_without_lds() -> None:
    with pytest.raises(MemoryFault, match="must lie below 0x0"):
        run(node := Node(1), tiny(LDS.format(offset=0)), known(node, "out", words(64)))


SCRATCH = """
    s_load_dwordx2 s[4:5], s[0:1], 0x0
    v_lshlrev_b32_e32 v1, 2, v0
    v_mov_b32_e32 v3, {address}
    {mask}
    scratch_store_dword v3, v0, off offset:4
    s_waitcnt vmcnt(0)
    scratch_load_dword v2, v3, off offset:4
    s_waitcnt vmcnt(0)
    global_store_dword v1, v2, s[4:5]
    s_endpgm
"""


def test_scratch_is_private_and_bounded() -> None:
    node, out = Node(1), words(64)
    known(node, "out", out)
    run(node, tiny(SCRATCH.format(address=8, mask="s_nop 0"), scratch=16), out)
    assert torch.equal(out, LANES)
    with pytest.raises(MemoryFault, match=r"scratch_store_dword.*, lane 0: scratch access at 0x10 must lie below 0x10"):
        run(node, tiny(SCRATCH.format(address=12, mask="s_nop 0"), scratch=16), out)


def test_inactive_lanes_may_hold_any_scratch_address() -> None:
    """v3 is written in the active lanes only."""
    body = SCRATCH.format(address=8, mask="s_nop 0")
    body = body.replace("v_mov_b32_e32 v3", "s_waitcnt lgkmcnt(0)\ns_mov_b64 exec, 0xf0\nv_mov_b32_e32 v3")
    node, out = Node(1), words(64)
    run(node, tiny(body, scratch=16), known(node, "out", out))
    expected = words(64)
    expected[4:8] = LANES[4:8]
    assert torch.equal(out, expected)
