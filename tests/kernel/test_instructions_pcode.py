# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Every instruction whose pseudocode the manual publishes, against that pseudocode."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from mori_gemm_ar.emulator.emit import HANDLERS
from tests.kernel import pcode, table_float, table_integer, table_packed, table_scalar
from tests.kernel import test_instructions_lds as lds
from tests.kernel import test_instructions_memory as accesses
from tests.kernel.instruction_check import Column, compare, lanes_of, partial_exec, place, prepare
from tests.kernel.instruction_memory import LOADS, STORES, Kind, register
from tests.kernel.instruction_operands import Spelling, packed_bits, read, registers, words
from tests.kernel.instruction_rows import IMPLICIT, Row
from tests.kernel.instruction_values import WIDTH, encode
from tests.kernel.instructions import EXEC, LANES, VCC, State, execute

pytest.importorskip(pcode.PACKAGE, exc_type=(ImportError, SyntaxError))

U = np.uint64
# Where the emulator deliberately differs from the published text, and why.
DIFFERENCES = {
    "v_sin_f32": "the text multiplies by 2 pi in float32 first; ours reduces the angle exactly",
    "v_cos_f32": "as v_sin_f32",
    "v_div_fmas_f32": "the text rounds before it undoes the scaling; LLVM's division is exact for subnormal quotients "
    "only if there is one rounding",
}
# Handlers whose pseudocode is prose or cannot be run, and what states their meaning instead.
WITHOUT = {
    "s_getreg_b32": "reads a register of the machine: test_instructions_scalar",
    "s_nop": "changes nothing: test_instructions_scalar",
}
ROWS = [
    *table_scalar.ROWS, *table_integer.ROWS, *table_integer.COMPARE_ROWS, *table_float.ROWS, *table_float.COMPARE_ROWS,
    *table_packed.ROWS, *table_float.DIVISION_ROWS,
]  # fmt: skip
# Position of the source that is the 32-bit constant of the encoding.
IMMEDIATES = {"v_fmamk_f32": 1, "v_fmaak_f32": 2}
COMPARED = [row for row in ROWS if pcode.has_pcode(row.name) and row.name not in DIFFERENCES]


def plain(row: Row) -> list[str]:
    """Spellings without modifiers that the pseudocode leaves to the reader; at most four of each row."""
    reads_op_sel = "_pk_" in row.name or "mix" in row.name
    skipped = ("sdwa", "clamp", "|", "neg", "-v", *(() if reads_op_sel else ("op_sel:[",)))
    return [form for form in row.forms if not any(text in form for text in skipped)][:4]


def encoded(spelling: Spelling, name: str, default: str) -> int:
    return sum(bit << n for n, bit in enumerate(spelling.bits(name, default)))


def source_bits(row: Row, state: State, spelling: Spelling) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Operands of the pseudocode per wave and lane, and what it reads beside them."""
    operands = iter(spelling.operands[len([r for r in row.results.split() if r not in IMPLICIT]) :])
    sources: list[np.ndarray] = []
    others: dict[str, np.ndarray] = {"exec_mask": state.pair(EXEC), "vcc": state.pair(VCC), "scc": state.scc.astype(U)}
    for kind in row.sources.split():
        if kind == "mask":
            found = registers(next(operands))
            assert found is not None
            others["vcc"] = state.pair(found[1][0])
        elif kind[0] == "+":
            continue
        elif kind.endswith("x2") and row.name != "v_pk_mov_b32":
            low, high = packed_bits(state, spelling, next(operands), kind, len(sources))
            sources.append(low | high << U(WIDTH[kind] // 2))
        elif kind not in IMPLICIT:
            operand, wide = next(operands), {"mix": "b32", "b32x2": "b64"}.get(kind, kind)
            if kind == "mix" and registers(operand) is None:
                wide = ("f32", "f16")[spelling.bits("op_sel_hi", "0,0,0")[len(sources)]]
            sources.append(read(state, Spelling(spelling.operands, {}), operand, wide, len(sources)))
    return sources, others


def columns_of(row: Row, form: str, state: State, spelling: Spelling) -> list[Column]:
    """What the pseudocode computes, one column per part of a result."""
    sources, others = source_bits(row, state, spelling)
    default = "1,1" if row.name == "v_pk_mov_b32" else "0,0,0"
    fixed = {"opsel": encoded(spelling, "op_sel", "0,0,0"), "opsel_hi": encoded(spelling, "op_sel_hi", default)}
    if row.name == "v_cvt_pk_fp8_f32":
        fixed["opsel"] = spelling.bits("op_sel", "0,0,0")[2] << 3
    fixed["bitop3"] = int(spelling.options.get("bitop3", "0"), 0)
    mnemonic = row.name + form.split(" ")[0]
    d0 = words(state, spelling.operands[0], "b64") if "+" in row.sources or ":" in row.results else None
    rows = []
    for wave in range(state.waves):
        for lane in range(lanes_of(row)):
            inputs = {name: int(value[wave]) for name, value in others.items()}
            if d0 is not None:
                inputs["d0"] = int(d0[wave, lane])
            arguments = [int(source[wave, lane]) for source in sources]
            if row.name in IMMEDIATES:
                inputs["imm"] = arguments.pop(IMMEDIATES[row.name])
            outcome = pcode.run(mnemonic, *arguments, lane=lane, **inputs, **fixed)
            rows.append([bits for kind in row.results.split() for bits in parts(row, kind, spelling, outcome, lane)])
    return [list(column) for column in zip(*rows, strict=True)]


def parts(row: Row, kind: str, spelling: Spelling, outcome: pcode.Outcome, lane: int) -> list:
    """Bits of the parts of a result, None for a NaN."""
    if kind == "scc":
        return [outcome.scc]
    if kind == "exec":
        return [outcome.exec_mask]
    if kind == "mask":
        if row.results == "mask":
            return [outcome.d0 >> lane & 1]
        return [outcome.d1 & 1 if "mad" in row.name else outcome.vcc >> lane & 1]
    upper = kind.endswith(":hi") or (kind.endswith(":sel") and spelling.bits("op_sel", "0")[-1])
    element, shift = kind.removesuffix("x2").split(":")[0], 16 if upper else 0
    width = WIDTH[element]
    found = []
    for n in range(2 if kind.endswith("x2") else 1):
        bits = outcome.d0 >> (shift + n * width) & ((1 << width) - 1)
        found.append(None if element in ("f16", "bf16", "f32", "f64") and is_nan(element, bits) else bits)
    return found


def is_nan(kind: str, bits: int) -> bool:
    infinity = encode(kind, float("inf"))
    assert infinity is not None
    return bits & ((1 << (WIDTH[kind] - 1)) - 1) > infinity


@pytest.mark.parametrize("row", COMPARED, ids=lambda row: row.name)
def test_row(row):
    for form in plain(row):
        rng = np.random.default_rng(zlib.crc32(("pcode" + row.name + form).encode()))
        spelling = Spelling.of(form)
        before = prepare(row, spelling, rng, 1 if lanes_of(row) > 1 else LANES)
        if "exec" in row.sources:
            before.set_pair(EXEC, partial_exec(rng, before.waves))
        expected = place(row, before, spelling, columns_of(row, form, before, spelling))
        compare(row, form, before, expected, execute(row.name + form, before))


# ---- lanes ---------------------------------------------------------------------------------------------------
def lane_state(text: str) -> State:
    rng = np.random.default_rng(zlib.crc32(text.encode()))
    before = State.random(rng, 1)
    before.set_pair(EXEC, rng.integers(0, (1 << 64) - 1, 1, np.uint64, endpoint=True))
    return before


@pytest.mark.parametrize("name", ["ds_bpermute_b32", "ds_permute_b32"])
def test_crossbar(name):
    before = lane_state(name)
    want = before.copy()
    inputs = {"exec_mask": int(before.pair(EXEC)[0]), "d0": before.v[12, 0].tolist(), "offset": 8}
    addresses, data = (before.v[n, 0].tolist() for n in (1, 5))
    want.v[12, 0] = pcode.wave(name, addr=addresses, data=data, **inputs).d0
    assert want.differences(execute(f"{name} v12, v1, v5 offset:8", before))[:1] == []


@pytest.mark.parametrize("width", [16, 32])
def test_swap_of_rows(width):
    """All lanes active: what an inactive lane does is our choice."""
    before = State.random(np.random.default_rng(width), 1)
    want = before.copy()
    found = pcode.wave(f"v_permlane{width}_swap_b32", before.v[1, 0].tolist(), d0=before.v[12, 0].tolist())
    want.v[12, 0], want.v[1, 0] = found.d0, found.s0
    assert want.differences(execute(f"v_permlane{width}_swap_b32_e32 v12, v1", before))[:1] == []


def test_single_lanes():
    before = lane_state("single lanes")
    values, active = before.v[1, 0].tolist(), int(before.pair(EXEC)[0])
    want = before.copy()
    want.s[20, 0] = pcode.wave("v_readfirstlane_b32", values, exec_mask=active).d0
    want.s[21, 0] = pcode.wave("v_readlane_b32", values, int(before.s[3, 0]), exec_mask=active).d0
    old = before.v[12, 0].tolist()
    want.v[12, 0] = pcode.wave("v_writelane_b32", int(before.s[5, 0]), 7, d0=old, exec_mask=active).d0
    text = "v_readfirstlane_b32 s20, v1\nv_readlane_b32 s21, v1, s3\nv_writelane_b32 v12, s5, 7"
    assert want.differences(execute(text, before)) == []


def test_swap():
    before = lane_state("swap")
    want = before.copy()
    active = int(before.pair(EXEC)[0])
    found = pcode.wave("v_swap_b32", before.v[1, 0].tolist(), d0=before.v[12, 0].tolist(), exec_mask=active)
    want.v[12, 0], want.v[1, 0] = found.d0, found.s0
    assert want.differences(execute("v_swap_b32 v12, v1", before)) == []


# ---- memory --------------------------------------------------------------------------------------------------
MEMORY = 4096
ACCESSES = {
    **{f"{s}_load_{k}": (kind, False) for s in ("global", "flat", "scratch", "buffer") for k, kind in LOADS.items()},
    **{f"{s}_store_{k}": (kind, True) for s in ("global", "flat", "scratch", "buffer") for k, kind in STORES.items()},
    **{f"ds_read_{k}": (LOADS[v], False) for k, v in lds.READS.items()},
    **{f"ds_write_{k}": (STORES[v], True) for k, v in lds.WRITES.items()},
}
FORMS = {
    "global": ("{data}, v[2:3], off offset:8", "v[2:3], {data}, off offset:8"),
    "flat": ("{data}, v[2:3] offset:8", "v[2:3], {data} offset:8"),
    "scratch": ("{data}, v1, off offset:8", "v1, {data}, off offset:8"),
    "buffer": ("{data}, v1, s[8:11], 0 offen offset:8",) * 2,
    "ds": ("{data}, v1 offset:8", "v1, {data} offset:8"),
}


@pytest.mark.parametrize("name", [n for n in ACCESSES if pcode.has_pcode(n)])
def test_access(name):
    """Sixteen lanes, each on its own bytes."""
    kind, is_store = ACCESSES[name]
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    memory = rng.integers(0, 255, MEMORY, np.uint8, endpoint=True)
    space = name.split("_")[0]
    size = 64 if space == "scratch" else MEMORY
    before = State.random(rng, 1, lds=MEMORY, scratch=size)
    before.lds[:], before.scratch[:] = memory, memory[:size]
    before.set_pair(EXEC, np.array([0xFFFF], U))
    before.v[1, 0] = np.arange(LANES) * 32 + 4 if space != "scratch" else 20
    address = before.v[1].astype(U) + U(memory.ctypes.data)
    before.v[2], before.v[3] = address & U(0xFFFFFFFF), address >> U(32)
    before.set_pair(8, np.array([memory.ctypes.data], U))
    before.s[10:12, 0] = MEMORY, 0x27000
    want, stored = before.copy(), bytearray(memory.tobytes())
    for lane in range(16):
        data = sum(int(before.v[12 + n, 0, lane]) << 32 * n for n in range(4))
        given = bytearray(memory.tobytes()[:size]) if space == "scratch" else stored
        outcome = pcode.run(name, addr=int(before.v[1, 0, lane]), offset=8, d0=data, data=data, mem=given)
        if space == "scratch":
            want.scratch[0, lane] = np.frombuffer(bytes(given), np.uint8)
        for n in range(0 if is_store else kind.registers):
            want.v[12 + n, 0, lane] = outcome.d0 >> 32 * n & 0xFFFFFFFF
    if space == "ds":
        want.lds[:] = np.frombuffer(bytes(stored), np.uint8)
    text = f"{name} " + FORMS[space][is_store].format(data=register("v", 12, kind))
    assert want.differences(execute(text, before, memory={"m": memory}))[:1] == []
    if space not in ("ds", "scratch"):
        assert memory.tobytes() == bytes(stored)


@pytest.mark.parametrize("pair", lds.PAIRS)
def test_pair(pair):
    """Two items per lane; offsets count items, or 64 items."""
    rng = np.random.default_rng(zlib.crc32(pair.encode()))
    size, unit = int(pair[-2:]) // 8, int(pair[-2:]) // 8 * (64 if "st64" in pair else 1)
    words_ = size // 4
    before = lds.pair_state(rng, size, unit)
    before.set_pair(EXEC, np.array([0xFFFF, 0, 0], U))
    offsets = {"offset0": 3, "offset1": 1}
    options = " ".join(f"{name}:{value}" for name, value in offsets.items())
    first, second = register("v", 12, Kind(size)), register("v", 12 + words_, Kind(size))
    for text in (
        f"ds_read{pair} {register('v', 12, Kind(2 * size))}, v1 {options}",
        f"ds_write{pair} v1, {first}, {second} {options}",
    ):
        want, stored = before.copy(), bytearray(before.lds.tobytes())
        for lane in range(16):
            items = [sum(int(before.v[12 + n + m, 0, lane]) << 32 * m for m in range(words_)) for n in (0, words_)]
            given = {"addr": int(before.v[1, 0, lane]), "data": items[0], "data2": items[1], "mem": stored, **offsets}
            outcome = pcode.run(text.split()[0], **given)
            for n in range(2 * words_ * ("read" in text)):
                want.v[12 + n, 0, lane] = outcome.d0 >> 32 * n & 0xFFFFFFFF
        want.lds[:] = np.frombuffer(bytes(stored), np.uint8)
        assert want.differences(execute(text, before))[:1] == []


@pytest.mark.parametrize("name", accesses.SCALAR_LOADS)
def test_scalar_load(name):
    count = accesses.SCALAR_LOADS[name]
    rng = np.random.default_rng(count)
    memory, before = rng.integers(0, 255, 512, np.uint8, endpoint=True), State.random(rng, 1)
    before.set_pair(8, np.array([memory.ctypes.data], U))
    before.s[5] = 32
    want = before.copy()
    loaded = pcode.run(name, addr=0, saddr=32, offset=8, mem=bytearray(memory.tobytes())).d0
    want.s[16 : 16 + count, 0] = [loaded >> 32 * n & 0xFFFFFFFF for n in range(count)]
    destination = "s16" if count == 1 else f"s[16:{15 + count}]"
    text = f"{name} {destination}, s[8:9], s5 offset:8"
    assert want.differences(execute(text, before, memory={"m": memory})) == []


ATOMICS = sorted(name for name in lds.COVERED if "atomic" in name or name in lds.LDS_ATOMICS)


@pytest.mark.parametrize("name", [n for n in ATOMICS if pcode.has_pcode(n)])
def test_atomic(name):
    """Lanes one after the other, several on each place, with the old value returned where that is possible."""
    operation = lds.LDS_ATOMICS.get(name, name.split("_atomic_")[-1])
    wide, local = operation.endswith(("_x2", "f64")), name.startswith("ds_")
    words_, operation = 2 if wide else 1, operation.removesuffix("_x2")
    count = words_ * (2 if operation == "cmpswap" else 1)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    kind, _ = lds.model(operation, 64 if wide else 32)
    memory = lds.values(rng, kind, 32).astype(np.uint64 if wide else np.uint32)
    before = State.random(rng, 1, lds=256)
    before.lds[: memory.nbytes] = memory.view(np.uint8)
    before.set_pair(EXEC, np.array([0xFFFFFF], U))
    before.v[1, 0] = rng.integers(0, 8, LANES) * 4 * words_
    address = before.v[1].astype(U) + U(memory.ctypes.data)
    before.v[2], before.v[3] = address & U(0xFFFFFFFF), address >> U(32)
    before.set_pair(8, np.array([memory.ctypes.data], U))
    before.s[10:12, 0] = memory.nbytes, 0x27000
    for first in range(12, 12 + count, words_):
        chosen = lds.values(rng, kind, LANES)
        if operation == "cmpswap" and first > 12:
            chosen = memory[before.v[1, 0] // (4 * words_) + 8 // (4 * words_)].astype(U)
        for n in range(words_):
            before.v[first + n, 0] = chosen >> U(32 * n) & U(0xFFFFFFFF)
    stored, want = bytearray(before.lds if local else memory.tobytes()), before.copy()
    returns = not local or "_rtn_" in name
    data, result = register("v", 12, Kind(4 * count)), register("v", 6, Kind(4 * words_))
    target = 12 if name.startswith("buffer") else 6
    for lane in range(24):
        value = sum(int(before.v[12 + n, 0, lane]) << 32 * n for n in range(count))
        outcome = pcode.run(name, addr=int(before.v[1, 0, lane]), offset=8, data=value, mem=stored)
        for n in range(words_ * returns):
            want.v[target + n, 0, lane] = outcome.d0 >> 32 * n & 0xFFFFFFFF
    if local:
        text = f"{name} {f'{result}, ' * returns}v1, {data} offset:8"
        want.lds[:] = np.frombuffer(bytes(stored), np.uint8)
    elif name.startswith("buffer"):
        text = f"{name} {data}, v1, s[8:11], 0 offen offset:8 sc0"
    else:
        text = f"{name} {result}, v[2:3], {data}{', off' * name.startswith('global')} offset:8 sc0"
    assert want.differences(execute(text, before, memory={"m": memory}))[:1] == []
    assert local or memory.tobytes() == bytes(stored)


# ---- completeness --------------------------------------------------------------------------------------------
def test_every_handler_with_pseudocode_is_compared():
    compared = {row.name for row in COMPARED} | set(ACCESSES) | set(ATOMICS)
    compared |= {"ds_bpermute_b32", "ds_permute_b32", "v_permlane16_swap_b32", "v_permlane32_swap_b32"}
    compared |= {"v_readfirstlane_b32", "v_readlane_b32", "v_writelane_b32", "v_swap_b32"}
    compared |= {f"ds_{way}{pair}" for way in ("read", "write") for pair in lds.PAIRS} | set(accesses.SCALAR_LOADS)
    missing = {name for name in HANDLERS if pcode.has_pcode(name)} - compared - set(DIFFERENCES) - set(WITHOUT)
    assert not missing, sorted(missing)
