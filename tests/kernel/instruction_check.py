# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Run the spellings of a row and compare all registers with what the row's reference says."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field

import numpy as np

from tests.kernel.instruction_operands import Spelling, mixed, packed, read, registers, strip, words
from tests.kernel.instruction_rows import IMPLICIT, Row
from tests.kernel.instruction_values import OPEN, WIDTH, choose, decode, encode
from tests.kernel.instructions import EXEC, LANES, State, execute, mask_of

U = np.uint64
WAVES, SCALAR_WAVES = 4, 192
UNDEFINED = Ellipsis  # the column entry of an open result

Column = list  # of bits, None (any NaN) or UNDEFINED, per wave and lane


def lanes_of(row: Row) -> int:
    """Lanes that a row computes apart from each other."""
    return 1 if row.name.startswith("s_") else LANES


# ---- sources -------------------------------------------------------------------------------------------------
def prepare(row: Row, spelling: Spelling, rng: np.random.Generator, waves: int) -> State:
    """A random state whose source registers hold values of their types."""
    accumulates = any(operand[0] == "a" for operand in spelling.operands)
    state = State.random(rng, waves, 260 if accumulates else 24 if lanes_of(row) > 1 else 4)
    results = [r for r in row.results.split() if r not in IMPLICIT]
    previous: dict[str, np.ndarray] = {}
    kinds = [k for k in row.sources.split() if k not in IMPLICIT]
    operands = spelling.operands[len(results) :] + spelling.operands[:1] * any(k[0] == "+" for k in kinds)
    for operand, kind in zip(operands, sorted(kinds, key=lambda k: k[0] == "+"), strict=True):
        kind = kind.lstrip("+")
        found = registers(strip(operand)[0])
        if found is None or kind == "mask" or found[1][0] == EXEC:
            continue
        file, indices = found
        shape = (waves, LANES) if file == "v" else (waves,)
        bits = choose(rng, kind, shape, previous.get(file))
        if WIDTH[kind] < 32:  # the other half holds a value of the type as well
            bits |= choose(rng, kind, shape, bits) << U(WIDTH[kind])
        previous[file] = bits
        for n, index in enumerate(indices):
            (state.v if file == "v" else state.s)[index] = bits >> U(32 * n) & U(0xFFFFFFFF)
    return state


def sources_of(row: Row, state: State, spelling: Spelling) -> list[list]:
    """Decoded sources, one list per source with an entry per wave and lane (one per wave of scalar instructions)."""
    results = [r for r in row.results.split() if r not in IMPLICIT]
    operands = iter(spelling.operands[len(results) :])
    values, number, shape = [], 0, (state.waves, lanes_of(row))
    implicit = {"scc": state.scc[:, None], "exec": state.pair(EXEC)[:, None], "lane": np.arange(shape[1])}
    for kind in row.sources.split():
        if kind in implicit:
            values.append(np.broadcast_to(implicit[kind], shape).reshape(-1).tolist())
        elif kind == "mask":
            found = registers(next(operands))
            assert found is not None
            values.append(state.lanes(found[1][0]).reshape(-1).tolist())
        elif kind[0] == "+":
            bits = words(state, spelling.operands[0], kind[1:]) & U((1 << WIDTH[kind[1:]]) - 1)
            values.append(decode(kind[1:], bits[:, : shape[1]].reshape(-1)))
        else:
            values.append(_source(state, spelling, next(operands), kind, number, shape[1]))
            number += 1
    return values


def _source(state: State, spelling: Spelling, operand: str, kind: str, number: int, lanes: int) -> list:
    if kind.endswith("x2"):
        return packed(state, spelling, operand, kind, number)
    if kind == "mix":
        return mixed(state, spelling, operand, number)
    return decode(kind, read(state, spelling, operand, kind, number)[:, :lanes].reshape(-1))


# ---- results -------------------------------------------------------------------------------------------------
def fields(kind: str) -> list[tuple[int, str]]:
    """Bit offset and type of the parts of a result."""
    if kind.endswith("x2"):
        element = kind.removesuffix("x2")
        return [(0, element), (WIDTH[element], element)]
    return [(0, kind.split(":")[0])]


def clamped(kind: str, value):
    """`clamp`: floats to [0, 1] with NaN to 0, integers to their range."""
    if kind[0] in "ui":
        low = 0 if kind[0] == "u" else -(1 << (WIDTH[kind] - 1))
        return min(max(value, low), low + (1 << WIDTH[kind]) - 1)
    return 0.0 if value != value else min(max(value, 0.0), 1.0)


def _bits(kind: str, value, clamp: bool):
    if value is OPEN:
        return UNDEFINED
    if kind not in WIDTH:
        return int(value)
    return encode(kind, clamped(kind, value) if clamp else value)


def evaluate(row: Row, before: State, spelling: Spelling) -> list[Column]:
    """One column per part of a result, by the row's reference."""
    kinds = [part for kind in row.results.split() for _, part in fields(kind)]
    clamp = "clamp" in spelling.options
    rows = []
    for values in zip(*sources_of(row, before, spelling), strict=True):
        outcome = row.reference(*values)
        outcome = outcome if isinstance(outcome, tuple) else (outcome,)
        rows.append([_bits(k, x, clamp) for k, x in zip(kinds, outcome, strict=True)])
    return [list(column) for column in zip(*rows, strict=True)]


@dataclass
class FloatPart:
    """A float inside a vector register: where it may be any NaN, and where anything."""

    index: int
    shift: int
    kind: str
    any_nan: np.ndarray
    undefined: np.ndarray


@dataclass
class Expected:
    """State after an instruction, and which of its parts are compared as floats."""

    state: State
    floats: list[FloatPart] = field(default_factory=list)


def place(row: Row, before: State, spelling: Spelling, columns: list[Column]) -> Expected:
    """The state after writing the columns under EXEC."""
    expected, remaining, operands = Expected(before.copy()), iter(columns), iter(spelling.operands)
    after, active = expected.state, before.lanes(EXEC)
    for kind in row.results.split():
        bits, parts = U(0), []
        for shift, part in fields(kind):
            column = np.array(next(remaining), object).reshape(before.waves, -1)
            nan, undefined = (np.equal(column, None), np.equal(column, UNDEFINED))
            parts.append((shift, part, nan.astype(bool), undefined.astype(bool)))
            bits = bits | np.where(nan | undefined, 0, column).astype(U) << U(shift)
        if kind in IMPLICIT:
            if kind == "scc":
                after.scc[:] = bits[:, 0] != 0
            else:
                after.set_pair(EXEC, bits[:, 0])
            continue
        found = registers(next(operands))
        assert found is not None
        file, indices = found
        if kind == "mask":
            after.set_pair(indices[0], mask_of((bits != 0) & active))
        elif file == "s":
            for n, index in enumerate(indices):
                after.s[index] = bits[:, 0] >> U(32 * n) & U(0xFFFFFFFF)
        else:
            bits, moved = _insert(kind, spelling, bits, words(before, spelling.operands[0], "b64"))
            for n, index in enumerate(indices):
                np.copyto(after.v[index], (bits >> U(32 * n)).astype(np.uint32), where=active, casting="unsafe")
            for shift, part, nan, undefined in parts:
                if part[0] in "fb" and part not in ("b16", "b32", "b64"):
                    whole = indices[0] + (shift + moved) // 32
                    expected.floats.append(
                        FloatPart(whole, (shift + moved) % 32, part, nan & active, undefined & active)
                    )
    return expected


def _insert(kind: str, spelling: Spelling, bits: np.ndarray, old: np.ndarray) -> tuple[np.ndarray, int]:
    """Result bits in their register (a half, an SDWA part, or all of it), and how far they moved."""
    if ":" in kind:
        upper = kind.endswith(":hi") or (kind.endswith(":sel") and spelling.bits("op_sel", "0,0,0,0")[-1] == 1)
        return ((old & U(0xFFFF)) | bits << U(16), 16) if upper else ((old & U(0xFFFF0000)) | bits, 0)
    selection = spelling.options.get("dst_sel", "DWORD")
    if selection == "DWORD":
        return bits, 0
    part, index = selection.split("_")
    size = 8 if part == "BYTE" else 16
    moved = int(index) * size
    window = U(((1 << size) - 1) << moved)
    kept = old & ~window if spelling.options["dst_unused"] == "UNUSED_PRESERVE" else U(0)
    return kept | (bits << U(moved) & window), moved


# ---- checks --------------------------------------------------------------------------------------------------
def partial_exec(rng: np.random.Generator, waves: int) -> np.ndarray:
    """Masks with holes: a random one per wave, but one wave with a single lane and one with none."""
    masks = rng.integers(0, (1 << 64) - 1, waves, np.uint64, endpoint=True)
    masks[1 % waves], masks[2 % waves] = U(1 << int(rng.integers(64))), U(0)
    return masks


def check(row: Row, form: str) -> None:
    """One spelling: all lanes of adjacent waves, then some lanes of waves apart from each other."""
    waves = WAVES if lanes_of(row) > 1 else SCALAR_WAVES
    rng = np.random.default_rng(zlib.crc32((row.name + form).encode()))
    spelling = Spelling.of(form)
    before = prepare(row, spelling, rng, waves)
    if "exec" in row.sources:
        before.set_pair(EXEC, partial_exec(rng, waves))
    compare(
        row,
        form,
        before,
        place(row, before, spelling, evaluate(row, before, spelling)),
        execute(row.name + form, before),
    )
    if lanes_of(row) > 1:
        before.set_pair(EXEC, partial_exec(rng, waves))
    columns = evaluate(row, before, spelling)
    compare(row, form, before, place(row, before, spelling, columns), execute(row.name + form, before, sparse=True))


def compare(row: Row, form: str, before: State, expected: Expected, after: State) -> None:
    """Raise with the first wrong register and the sources that led to it."""
    tolerated = after.copy()
    for part in expected.floats:
        _accept(tolerated, expected.state, part, row.ulps, "clamp" in form)
    found = expected.state.differences(tolerated)
    if found:
        lane = re.match(r"v\[\d+, (\d+), (\d+)\]", found[0])
        wave = re.match(r"s(?:cc)?\[(?:\d+, )?(\d+)\]", found[0])
        at = int(lane[1]) * LANES + int(lane[2]) if lane else int(wave[1]) * lanes_of(row) if wave else 0
        values = [source[at] for source in sources_of(row, before, Spelling.of(form))]
        raise AssertionError(
            f"{row.name}{form}: {len(found)} differences, first (expected and got) {found[0]}; sources there {values}"
        )


def _accept(after: State, want: State, part: FloatPart, ulps: int, zero_sign_open: bool) -> None:
    """Overwrite tolerated results with the expected bits."""
    width = WIDTH[part.kind]
    got_bits, want_bits = (
        (s.v[part.index].astype(U) | (s.v[part.index + 1].astype(U) << U(32) if width == 64 else U(0))) >> U(part.shift)
        & U((1 << width) - 1)
        for s in (after, want)
    )
    sign, inf = U(1 << (width - 1)), U(encode(part.kind, float("inf")) or 0)
    is_nan = (got_bits & ~sign) > inf
    near = np.zeros(is_nan.shape, bool)
    if ulps:
        a, b = (np.where(x & sign, -((x & ~sign).astype(np.int64)), x.astype(np.int64)) for x in (got_bits, want_bits))
        near = ~is_nan & (np.abs(a - b) <= ulps)
    if zero_sign_open:
        near |= ((got_bits | want_bits) & ~sign) == 0
    fine = np.where(part.any_nan, is_nan, near) | part.undefined
    window = np.uint32(((1 << min(width, 32)) - 1) << part.shift)
    for n in range(width // 32 or 1):
        merged = (after.v[part.index + n] & ~window) | (want.v[part.index + n] & window)
        np.copyto(after.v[part.index + n], merged, where=fine)
