# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Global, flat, scratch, buffer and scalar memory accesses, against bytes moved one lane at a time."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from mori_gemm_ar.errors import MemoryFault
from tests.kernel.instruction_memory import LOADS, STORES, WAVES, Kind, lanes, masks, put, register, slots, take
from tests.kernel.instructions import LANES, State, execute

U = np.uint64
COUNT = WAVES * LANES
SCALAR_LOADS = {f"s_load_dword{n}": int(n[1:] or 1) for n in ("", "x2", "x4", "x8", "x16")}
COVERED = {
    *(f"{s}_load_{k}" for s in ("global", "flat", "scratch", "buffer") for k in LOADS),
    *(f"{s}_store_{k}" for s in ("global", "flat", "scratch", "buffer") for k in STORES),
    *SCALAR_LOADS, "buffer_wbl2", "buffer_inv",
}  # fmt: skip


def seeded(text: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(text.encode()))


def block(rng: np.random.Generator, nbytes: int) -> np.ndarray:
    return rng.integers(0, 255, nbytes, np.uint8, endpoint=True)


def set_lanes(state: State, first: int, values: np.ndarray) -> None:
    """A 64-bit value per wave and lane into two vector registers."""
    state.v[first], state.v[first + 1] = values & U(0xFFFFFFFF), values >> U(32)


def scramble_inactive(state: State, registers: tuple[int, ...]) -> None:
    """Addresses of inactive lanes must not matter."""
    for index in registers:
        state.v[index][~state.lanes(126)] = 0xDEADBEEF


# ---- global and flat -----------------------------------------------------------------------------------------
# address operands, base register pair or None, immediate offset
ADDRESSES = {
    "global": [("v[2:3], {d}off", False, 0), ("v[2:3], {d}off offset:16", False, 16),
         ("v[2:3], {d}off offset:-8 sc0 sc1", False, -8),
               ("v1, {d}s[8:9]", True, 0), ("v1, {d}s[8:9] offset:64 nt", True, 64)],
    "flat": [("v[2:3]{d}", False, 0), ("v[2:3]{d} offset:32", False, 32)],
}  # fmt: skip


def place_addresses(rng, state: State, memory: np.ndarray, kind: Kind, scalar: bool, immediate: int) -> np.ndarray:
    """Distinct addresses per lane into the registers; returns the byte each lane touches first."""
    where = slots(rng, COUNT, kind.nbytes).reshape(WAVES, LANES) + 128
    start = memory.ctypes.data
    state.set_pair(8, np.full(WAVES, start + 16, U))
    state.v[1] = where - 16 - immediate
    set_lanes(state, 2, (where + start - immediate).astype(U))
    return where


@pytest.mark.parametrize("name", LOADS)
@pytest.mark.parametrize("space", ADDRESSES)
def test_load(space, name):
    kind = LOADS[name]
    for form, scalar, immediate in ADDRESSES[space]:
        text = f"{space}_load_{name} {register('v', 12, kind)}, " + form.format(d="")
        rng = seeded(text)
        memory = block(rng, 4 * COUNT * kind.nbytes + 256)
        for before, sparse in masks(rng, State.random(rng, WAVES)):
            where = place_addresses(rng, before, memory, kind, scalar, immediate)
            scramble_inactive(before, (1, 2, 3))
            want = before.copy()
            for wave, lane in lanes(before):
                put(want, wave, lane, 12, kind, memory[where[wave, lane] :][: kind.nbytes].tobytes())
            assert want.differences(execute(text, before, sparse=sparse, memory={"m": memory}))[:1] == []


def test_load_over_its_own_address():
    rng = seeded("alias")
    memory = block(rng, 4 * COUNT * 16)
    before = State.random(rng, WAVES)
    where = place_addresses(rng, before, memory, Kind(16), False, 0)
    want = before.copy()
    for wave, lane in lanes(before):
        put(want, wave, lane, 2, Kind(16), memory[where[wave, lane] :][:16].tobytes())
    assert want.differences(execute("global_load_dwordx4 v[2:5], v[2:3], off", before, memory={"m": memory})) == []


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("space", ADDRESSES)
def test_store(space, name):
    kind = STORES[name]
    for form, scalar, immediate in ADDRESSES[space]:
        data = register("v", 12, kind) + ", " if space == "global" else ", " + register("v", 12, kind)
        text = f"{space}_store_{name} " + form.format(d=data)
        rng = seeded(text)
        memory = block(rng, 4 * COUNT * kind.nbytes + 256)
        for before, sparse in masks(rng, State.random(rng, WAVES)):
            where = place_addresses(rng, before, memory, kind, scalar, immediate)
            scramble_inactive(before, (1, 2, 3))
            want = memory.copy()
            for wave, lane in lanes(before):
                want[where[wave, lane] :][: kind.nbytes] = np.frombuffer(take(before, wave, lane, 12, kind), np.uint8)
            after = execute(text, before, sparse=sparse, memory={"m": memory})
            assert before.differences(after) == []
            np.testing.assert_array_equal(memory, want)


def test_of_equal_addresses_the_last_lane_stays():
    """The hardware's order is not documented; ours is waves, then lanes."""
    rng = seeded("equal")
    memory, before = block(rng, 64), State.random(rng, WAVES)
    set_lanes(before, 2, np.full((WAVES, LANES), memory.ctypes.data + 8, U))
    execute("global_store_dword v[2:3], v12, off", before, memory={"m": memory})
    assert memory[8:12].view(np.uint32)[0] == before.v[12, -1, -1]


def test_access_outside_every_region_names_the_lane():
    rng = seeded("fault")
    memory, before = block(rng, 256), State.random(rng, WAVES)
    addresses = np.full((WAVES, LANES), memory.ctypes.data, U)
    addresses[1, 7] += U(253)
    set_lanes(before, 2, addresses)
    with pytest.raises(MemoryFault, match=r"wave 1, lane 7: access of 4 bytes"):
        execute("global_load_dword v12, v[2:3], off", before, memory={"m": memory})


# ---- scratch -------------------------------------------------------------------------------------------------
# operands, vector offset used, scalar offset used, immediate
SCRATCH = [
    ("off, {d}off offset:8", False, False, 8),
    ("v1, {d}off", True, False, 0),
    ("off, {d}s5 offset:4", False, True, 4),
]


@pytest.mark.parametrize("name", [*(f"load_{k}" for k in LOADS), *(f"store_{k}" for k in STORES)])
def test_scratch(name):
    is_load = name.startswith("load")
    kind = (LOADS if is_load else STORES)[name.split("_", 1)[1]]
    data = register("v", 12, kind)
    for form, vector, scalar, immediate in SCRATCH:
        operands = f"{data}, " + form.format(d="") if is_load else form.format(d=f"{data}, ")
        text = f"scratch_{name} {operands}"
        rng = seeded(text)
        for before, sparse in masks(rng, State.random(rng, WAVES, scratch=64)):
            before.v[1], before.s[5] = rng.integers(0, 32, (WAVES, LANES)), rng.integers(0, 8, WAVES) * 4
            scramble_inactive(before, (1,))
            want = before.copy()
            for wave, lane in lanes(before):
                at = (
                    immediate
                    + (int(before.v[1, wave, lane]) if vector else 0)
                    + (int(before.s[5, wave]) if scalar else 0)
                )
                if is_load:
                    put(want, wave, lane, 12, kind, before.scratch[wave, lane, at:][: kind.nbytes].tobytes())
                else:
                    row = np.frombuffer(take(before, wave, lane, 12, kind), np.uint8)
                    want.scratch[wave, lane, at : at + kind.nbytes] = row
            assert want.differences(execute(text, before, sparse=sparse))[:1] == []


def test_scratch_from_accumulation_registers():
    rng = seeded("spill")
    before = State.random(rng, WAVES, vector=260, scratch=64)
    want = before.copy()
    want.scratch.view(np.uint32)[..., 4:8] = np.moveaxis(before.v[256:260], 0, -1)
    assert want.differences(execute("scratch_store_dwordx4 off, a[0:3], off offset:16", before)) == []


# ---- buffers -------------------------------------------------------------------------------------------------
# operands after the data, lane offset used, scalar offset, immediate
BUFFER = [("v1, s[8:11], 0 offen", True, 0, 0), ("v1, s[8:11], s5 offen offset:16", True, 1, 16),
          ("off, s[8:11], s5 nt", False, 1, 0), ("v1, s[8:11], 8 offen sc0 sc1", True, 8, 0)]  # fmt: skip


def buffer_state(rng, before: State, memory: np.ndarray, kind: Kind) -> int:
    """Descriptor over the middle of the memory, with lane offsets that run past its end; returns its size."""
    size = len(memory) // 2 // 4 * 4
    before.set_pair(8, np.full(WAVES, memory.ctypes.data + 64, U))
    before.s[10], before.s[11] = size, 0x27000
    # Aligned: the manual leaves open what happens to a dword that crosses the end.
    before.v[1] = slots(rng, COUNT, kind.nbytes, min(kind.nbytes, 4)).reshape(WAVES, LANES)
    before.s[5] = rng.integers(0, 8) * 4
    return size


def buffer_offset(before: State, wave: int, lane: int, form: tuple) -> int:
    _, vector, scalar, immediate = form
    moved = int(before.s[5, wave]) if scalar == 1 else scalar
    return immediate + moved + (int(before.v[1, wave, lane]) if vector else 0)


@pytest.mark.parametrize("name", LOADS)
def test_buffer_load(name):
    """Dwords past the end read 0."""
    kind = LOADS[name]
    for form in BUFFER:
        text = f"buffer_load_{name} {register('v', 12, kind)}, {form[0]}"
        rng = seeded(text)
        memory = block(rng, 4 * COUNT * max(4, kind.nbytes) + 256)
        for before, sparse in masks(rng, State.random(rng, WAVES)):
            size = buffer_state(rng, before, memory, kind)
            scramble_inactive(before, (1,))
            want, step = before.copy(), min(4, kind.nbytes)
            for wave, lane in lanes(before):
                at = buffer_offset(before, wave, lane, form)
                parts = [memory[64 + o :][:step].tobytes() if o + step <= size else bytes(step)
                         for o in range(at, at + kind.nbytes, step)]  # fmt: skip
                put(want, wave, lane, 12, kind, b"".join(parts))
            assert want.differences(execute(text, before, sparse=sparse, memory={"m": memory}))[:1] == []


@pytest.mark.parametrize("name", STORES)
def test_buffer_store(name):
    """Dwords past the end are dropped."""
    kind = STORES[name]
    for form in BUFFER:
        text = f"buffer_store_{name} {register('v', 12, kind)}, {form[0]}"
        rng = seeded(text)
        memory = block(rng, 4 * COUNT * max(4, kind.nbytes) + 256)
        for before, sparse in masks(rng, State.random(rng, WAVES)):
            size = buffer_state(rng, before, memory, kind)
            scramble_inactive(before, (1,))
            want, step = memory.copy(), min(4, kind.nbytes)
            for wave, lane in lanes(before):
                at = buffer_offset(before, wave, lane, form)
                data = np.frombuffer(take(before, wave, lane, 12, kind), np.uint8)
                for o in range(0, kind.nbytes, step):
                    if at + o + step <= size:
                        want[64 + at + o :][:step] = data[o : o + step]
            after = execute(text, before, sparse=sparse, memory={"m": memory})
            assert before.differences(after) == []
            np.testing.assert_array_equal(memory, want)


# ---- scalar loads and cache maintenance ----------------------------------------------------------------------
@pytest.mark.parametrize("name", SCALAR_LOADS)
@pytest.mark.parametrize("offset", ["0x8", "0x0", "-0x10", "s5", "s5 offset:0x20"])
def test_scalar_load(name, offset):
    """The two low bits of the address do not count."""
    count = SCALAR_LOADS[name]
    rng = seeded(name + offset)
    memory, before = block(rng, 4096), State.random(rng, WAVES)
    starts = rng.integers(32, 512, WAVES)
    before.set_pair(8, (starts + memory.ctypes.data).astype(U))
    before.s[5] = rng.integers(0, 256, WAVES)
    first = 20 if count < 4 else 16
    destination = f"s{first}" if count == 1 else f"s[{first}:{first + count - 1}]"
    want = before.copy()
    for wave in range(WAVES):
        at = int(starts[wave]) + (int(before.s[5, wave]) if offset[0] == "s" else int(offset, 16))
        at = (at + (0x20 if "offset" in offset else 0) + memory.ctypes.data) // 4 * 4 - memory.ctypes.data
        want.s[first : first + count, wave] = memory[at : at + 4 * count].copy().view(np.uint32)
    for sparse in (False, True):
        got = execute(f"{name} {destination}, s[8:9], {offset}", before, sparse=sparse, memory={"m": memory})
        assert want.differences(got) == []


def test_scalar_load_over_its_own_base():
    rng = seeded("self")
    memory, before = block(rng, 64), State.random(rng, WAVES)
    before.set_pair(8, np.full(WAVES, memory.ctypes.data, U))
    want = before.copy()
    want.s[8:10] = memory[8:16].view(np.uint32)[:, None]
    assert want.differences(execute("s_load_dwordx2 s[8:9], s[8:9], 0x8", before, memory={"m": memory})) == []


@pytest.mark.parametrize("text", ["buffer_wbl2 sc0 sc1", "buffer_wbl2 sc1", "buffer_inv sc0 sc1", "buffer_inv sc1"])
def test_cache_maintenance_changes_no_register(text):
    before = State.random(seeded(text), WAVES)
    assert before.differences(execute(text, before)) == []
