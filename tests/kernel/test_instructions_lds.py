# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""LDS accesses, and read-modify-writes on LDS and global memory, against bytes moved one lane at a time."""

from __future__ import annotations

import numpy as np
import pytest

from mori_gemm_ar.errors import MemoryFault
from tests.kernel.instruction_memory import (
    FLOAT_OPERATIONS,
    LOADS,
    STORES,
    WAVES,
    Kind,
    lanes,
    masks,
    operations,
    put,
    register,
    slots,
    take,
)
from tests.kernel.instruction_values import choose
from tests.kernel.instructions import LANES, State, execute
from tests.kernel.test_instructions_memory import COUNT, scramble_inactive, seeded, set_lanes

U = np.uint64
LDS = 16384
READS = {
    "b32": "dword", "b64": "dwordx2", "b96": "dwordx3", "b128": "dwordx4", "u8": "ubyte", "i8": "sbyte",
         "u16": "ushort",
    "i16": "sshort", "u8_d16": "ubyte_d16", "u8_d16_hi": "ubyte_d16_hi", "i8_d16": "sbyte_d16",
         "i8_d16_hi": "sbyte_d16_hi",
    "u16_d16": "short_d16", "u16_d16_hi": "short_d16_hi",
}  # fmt: skip
WRITES = {
    "b8": "byte", "b16": "short", "b32": "dword", "b64": "dwordx2", "b96": "dwordx3", "b128": "dwordx4",
    "b8_d16_hi": "byte_d16_hi", "b16_d16_hi": "short_d16_hi",
}  # fmt: skip
PAIRS = [f"{stride}_b{width}" for stride in ("2", "2st64") for width in (32, 64)]
LDS_NAMES = {
    "add_u32": "add", "sub_u32": "sub", "inc_u32": "inc", "dec_u32": "dec", "min_i32": "smin", "max_i32": "smax",
    "min_u32": "umin", "max_u32": "umax", "and_b32": "and", "or_b32": "or", "xor_b32": "xor", "add_f32": "add_f32",
}  # fmt: skip
LDS_ATOMICS = {
    **{f"ds_{name}": operation for name, operation in LDS_NAMES.items()},
    **{f"ds_{name.replace('_', '_rtn_', 1)}": operation for name, operation in LDS_NAMES.items()},
    "ds_wrxchg_rtn_b32": "swap",
}
GLOBAL_ATOMICS = [*operations(32), "cmpswap", *FLOAT_OPERATIONS]
BUFFER_ATOMICS = ("add_f32", "pk_add_f16", "pk_add_bf16")
COVERED = {
    *(f"ds_read_{k}" for k in READS), *(f"ds_write_{k}" for k in WRITES), *(f"ds_read{p}" for p in PAIRS),
    *(f"ds_write{p}" for p in PAIRS), *(f"global_load_lds_{k}" for k in ("dword", "dwordx3", "dwordx4")), *LDS_ATOMICS,
         *(f"buffer_atomic_{name}" for name in BUFFER_ATOMICS),
    *(f"{s}_atomic_{n}{w}" for s in ("global", "flat") for n in GLOBAL_ATOMICS for w in ("",
         "_x2") if not (w and "_" in n)),
}  # fmt: skip


# ---- LDS -----------------------------------------------------------------------------------------------------
def lds_state(rng, kind: Kind) -> State:
    """Distinct places per lane in v1, all waves in one workgroup's LDS."""
    state = State.random(rng, WAVES, lds=LDS)
    where = slots(rng, COUNT, kind.nbytes, 4 if kind.nbytes >= 4 else 1)
    state.v[1] = where.reshape(WAVES, LANES)
    return state


def pair_state(rng, size: int, unit: int) -> State:
    """Places for two items that are a few units apart, distinct over all lanes, aligned to a dword."""
    state = State.random(rng, WAVES, lds=LDS)
    step = size if unit > size else 8 * size
    for wave in range(WAVES):
        state.v[1, wave] = wave * LANES * 8 * size + rng.permutation(LANES) * step + 4
    return state


@pytest.mark.parametrize("offset", [0, 4, 2048])
@pytest.mark.parametrize("name", READS)
def test_read(name, offset):
    kind = LOADS[READS[name]]
    text = f"ds_read_{name} {register('v', 12, kind)}, v1" + (f" offset:{offset}" if offset else "")
    rng = seeded(text)
    for before, sparse in masks(rng, lds_state(rng, kind)):
        scramble_inactive(before, (1,))
        want = before.copy()
        for wave, lane in lanes(before):
            at = int(before.v[1, wave, lane]) + offset
            put(want, wave, lane, 12, kind, before.lds[at : at + kind.nbytes].tobytes())
        assert want.differences(execute(text, before, sparse=sparse))[:1] == []


def test_read_into_accumulation_registers():
    before = State.random(seeded("a"), WAVES, vector=260, lds=LDS)
    before.v[1] = np.arange(COUNT).reshape(WAVES, LANES) * 16
    want = before.copy()
    want.v[256:260] = np.moveaxis(before.lds[: 16 * COUNT].view(np.uint32).reshape(WAVES, LANES, 4), -1, 0)
    assert want.differences(execute("ds_read_b128 a[0:3], v1", before)) == []


@pytest.mark.parametrize("offset", [0, 8])
@pytest.mark.parametrize("name", WRITES)
def test_write(name, offset):
    kind = STORES[WRITES[name]]
    text = f"ds_write_{name} v1, {register('v', 12, kind)}" + (f" offset:{offset}" if offset else "")
    rng = seeded(text)
    for before, sparse in masks(rng, lds_state(rng, kind)):
        scramble_inactive(before, (1,))
        want = before.copy()
        for wave, lane in lanes(before):
            at = int(before.v[1, wave, lane]) + offset
            want.lds[at : at + kind.nbytes] = np.frombuffer(take(before, wave, lane, 12, kind), np.uint8)
        assert want.differences(execute(text, before, sparse=sparse))[:1] == []


@pytest.mark.parametrize("offsets", [(0, 1), (2, 5)])
@pytest.mark.parametrize("pair", PAIRS)
def test_pairs(pair, offsets):
    """Two items at offsets counted in items, or in 64 items."""
    size = int(pair[-2:]) // 8
    item, unit = Kind(size), size * (64 if "st64" in pair else 1)
    options = " ".join(f"offset{n}:{value}" for n, value in enumerate(offsets) if value)
    both = register("v", 12, Kind(2 * size))
    read = f"ds_read{pair} {both}, v1 {options}"
    write = f"ds_write{pair} v1, {register('v', 12, item)}, {register('v', 12 + item.registers, item)} {options}"
    alias = read.replace(", v1", ", v12") if size == 4 else read
    for text, address in ((read, 1), (write, 1), (alias, 12 if size == 4 else 1)):
        rng = seeded(text)
        for before, sparse in masks(rng, pair_state(rng, size, unit)):
            before.v[address] = before.v[1]
            scramble_inactive(before, (address,))
            want = before.copy()
            for wave, lane in lanes(before):
                for n, offset in enumerate(offsets):
                    at, first = int(before.v[address, wave, lane]) + offset * unit, 12 + n * item.registers
                    if text == write:
                        want.lds[at : at + size] = np.frombuffer(take(before, wave, lane, first, item), np.uint8)
                    else:
                        put(want, wave, lane, first, item, before.lds[at : at + size].tobytes())
            assert want.differences(execute(text, before, sparse=sparse))[:1] == []


def test_access_past_the_end_of_lds_names_the_lane():
    before = State.random(seeded("lds"), WAVES, lds=256)
    before.v[1] = 0
    before.v[1, 2, 9] = 254
    with pytest.raises(MemoryFault, match=r"wave 2, lane 9: LDS access at 0xfe must lie below 0x100"):
        execute("ds_read_b32 v12, v1", before)


# ---- copies from global memory to LDS ------------------------------------------------------------------------
COPIES = {"dword": 4, "dwordx3": 12, "dwordx4": 16}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("space", ["global", "buffer"])
def test_copy_to_lds(space, name):
    """Lane l fills LDS at M0 + offset + l * size; the offset moves both ends. Past a buffer's end it writes zeros."""
    size = COPIES[name]
    operands = "v[2:3], off offset:16" if space == "global" else "v1, s[8:11], s5 offen offset:16 lds"
    text = f"{space}_load_{'lds_' * (space == 'global')}{name} {operands}"
    rng = seeded(text)
    memory = rng.integers(0, 255, 8192, np.uint8, endpoint=True)
    for before, sparse in masks(rng, State.random(rng, WAVES, lds=LDS)):
        before.s[124] = np.arange(WAVES) * 2048 + 32
        before.v[1] = rng.integers(0, 1000, (WAVES, LANES)) * 4
        before.s[5] = 8 * (space == "buffer")
        set_lanes(before, 2, before.v[1].astype(U) + U(memory.ctypes.data))
        before.set_pair(8, np.full(WAVES, memory.ctypes.data, U))
        limit = 3000
        before.s[10], before.s[11] = limit, 0x27000
        scramble_inactive(before, (1, 2, 3))
        want = before.copy()
        for wave, lane in lanes(before):
            at = int(before.v[1, wave, lane]) + 16 + int(before.s[5, wave])
            target = int(before.s[124, wave]) + 16 + lane * size
            outside = space == "buffer" and at + size > limit
            want.lds[target : target + size] = 0 if outside else memory[at : at + size]
        assert want.differences(execute(text, before, sparse=sparse, memory={"m": memory}))[:1] == []


# ---- read-modify-write ---------------------------------------------------------------------------------------
def values(rng, kind: str, count: int) -> np.ndarray:
    """Bit patterns of a type without infinities and NaNs, so that every sum is a number."""
    bits = choose(rng, kind, (count,))
    exponent = {"f32": 0x40000000, "f64": 1 << 62, "f16x2": 0x40004000, "bf16x2": 0x40004000}.get(kind, 0)
    return bits & ~U(exponent)


def model(name: str, width: int):
    """Value type, and the function of old value and operand."""
    if name in FLOAT_OPERATIONS:
        return FLOAT_OPERATIONS[name]
    return f"u{width}", operations(width).get(name)


@pytest.mark.parametrize("name", LDS_ATOMICS)
def test_lds_atomic(name):
    """Lanes that meet act one after the other, in lane order; the old value goes to each."""
    kind, formula = model(LDS_ATOMICS[name], 32)
    returns = "_rtn_" in name
    text = f"{name} {'v12, ' * returns}v1, v5 offset:8"
    rng = seeded(text)
    for before, sparse in masks(rng, State.random(rng, WAVES, lds=512)):
        before.lds[:] = values(rng, kind, 128).astype(np.uint32).view(np.uint8)
        before.v[1] = rng.integers(0, 120, (WAVES, LANES)) * 4
        before.v[5] = values(rng, kind, COUNT).reshape(WAVES, LANES)
        scramble_inactive(before, (1,))
        want = before.copy()
        memory = want.lds.view(np.uint32)
        for wave, lane in lanes(before):
            at = (int(before.v[1, wave, lane]) + 8) // 4
            old = int(memory[at])
            memory[at] = formula(old, int(before.v[5, wave, lane])) & 0xFFFFFFFF
            if returns:
                want.v[12, wave, lane] = old
        assert want.differences(execute(text, before, sparse=sparse))[:1] == []


def _operand(state: State, wave: int, lane: int, first: int, words: int) -> int:
    return sum(int(state.v[first + n, wave, lane]) << 32 * n for n in range(words))


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("name", [n for n in sorted(COVERED) if n.startswith(("global_atomic", "flat_atomic"))])
def test_global_atomic(name, returns):
    """sc0 asks for the old value. The operand of cmpswap holds the new value, then the expected one."""
    space, operation = name.split("_atomic_")
    wide = operation.endswith(("_x2", "f64"))
    operation = operation.removesuffix("_x2")
    words, width = (2, 64) if wide else (1, 32)
    kind, formula = model(operation, width)
    count = words * (2 if operation == "cmpswap" else 1)
    data, target = register("v", 12, Kind(4 * count)), register("v", 6, Kind(4 * words)) + ", "
    for address in ["v[2:3], {}, off", "v1, {}, s[8:9] offset:16"] if space == "global" else ["v[2:3], {}"]:
        text = f"{name} {target * returns}{address.format(data)}{' sc0' * returns}"
        rng = seeded(text)
        places = 40
        memory = values(rng, kind, places).astype(np.uint64 if wide else np.uint32)
        for before, sparse in masks(rng, State.random(rng, WAVES)):
            where = rng.integers(4, places, (WAVES, LANES)) * 4 * words
            set_lanes(before, 2, (where + memory.ctypes.data).astype(U))
            before.v[1] = where - 16
            before.set_pair(8, np.full(WAVES, memory.ctypes.data, U))
            for first in range(12, 12 + count, words):
                chosen = values(rng, kind, COUNT).reshape(WAVES, LANES)
                if operation == "cmpswap" and first > 12:  # half of the comparisons hold
                    chosen = np.where(rng.integers(0, 2, chosen.shape) == 0, memory[where // (4 * words)], chosen)
                for n in range(words):
                    before.v[first + n] = chosen >> U(32 * n) & U(0xFFFFFFFF)
            scramble_inactive(before, (1, 2, 3))
            want, expected = before.copy(), memory.copy()
            for wave, lane in lanes(before):
                at = where[wave, lane] // (4 * words)
                old, value = int(expected[at]), _operand(before, wave, lane, 12, words)
                if operation == "cmpswap":
                    new = value if old == _operand(before, wave, lane, 12 + words, words) else old
                else:
                    new = formula(old, value) & ((1 << width) - 1)
                expected[at] = new
                for n in range(words * returns):
                    want.v[6 + n, wave, lane] = old >> 32 * n & 0xFFFFFFFF
            after = execute(text, before, sparse=sparse, memory={"m": memory})
            assert want.differences(after)[:1] == []
            np.testing.assert_array_equal(memory, expected)


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("operation", BUFFER_ATOMICS)
def test_buffer_atomic(operation, returns):
    """The data register takes the old value; past the end nothing is written and 0 comes back."""
    kind, formula = FLOAT_OPERATIONS[operation]
    text = f"buffer_atomic_{operation} v12, v1, s[8:11], 0 offen offset:4{' sc0' * returns}"
    rng = seeded(text)
    memory = values(rng, kind, 64).astype(np.uint32)
    for before, sparse in masks(rng, State.random(rng, WAVES)):
        before.set_pair(8, np.full(WAVES, memory.ctypes.data, U))
        before.s[10], before.s[11] = 4 * 40, 0x27000
        before.v[1] = rng.integers(0, 60, (WAVES, LANES)) * 4
        before.v[12] = values(rng, kind, COUNT).reshape(WAVES, LANES)
        scramble_inactive(before, (1,))
        want, expected = before.copy(), memory.copy()
        for wave, lane in lanes(before):
            at = int(before.v[1, wave, lane]) // 4 + 1
            old = int(expected[at]) if at < 40 else 0
            if at < 40:
                expected[at] = formula(old, int(before.v[12, wave, lane]))
            if returns:
                want.v[12, wave, lane] = old
        after = execute(text, before, sparse=sparse, memory={"m": memory})
        assert want.differences(after)[:1] == []
        np.testing.assert_array_equal(memory, expected)
