# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What loads, stores and read-modify-writes do, byte by byte and lane by lane, for the memory tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tests.kernel.instruction_check import partial_exec
from tests.kernel.instruction_values import decode, encode
from tests.kernel.instructions import EXEC, State

WAVES = 3
M32 = (1 << 32) - 1


@dataclass(frozen=True)
class Kind:
    """Bytes of an item, sign extension, and the half of the register that it fills or comes from."""

    nbytes: int
    signed: bool = False
    half: int | None = None

    @property
    def registers(self) -> int:
        return max(1, self.nbytes // 4)


LOADS = {
    "ubyte": Kind(1), "sbyte": Kind(1, True), "ushort": Kind(2), "sshort": Kind(2, True), "dword": Kind(4),
    "dwordx2": Kind(8), "dwordx3": Kind(12), "dwordx4": Kind(16), "ubyte_d16": Kind(1, False, 0),
    "ubyte_d16_hi": Kind(1, False, 1), "sbyte_d16": Kind(1, True, 0), "sbyte_d16_hi": Kind(1, True, 1),
    "short_d16": Kind(2, False, 0), "short_d16_hi": Kind(2, False, 1),
}  # fmt: skip
STORES = {
    "byte": Kind(1), "short": Kind(2), "dword": Kind(4), "dwordx2": Kind(8), "dwordx3": Kind(12), "dwordx4": Kind(16),
    "byte_d16_hi": Kind(1, False, 1), "short_d16_hi": Kind(2, False, 1),
}  # fmt: skip


def register(name: str, first: int, kind: Kind) -> str:
    """`v12` or `v[12:15]`."""
    return f"{name}{first}" if kind.registers == 1 else f"{name}[{first}:{first + kind.registers - 1}]"


def put(state: State, wave: int, lane: int, first: int, kind: Kind, data: bytes) -> None:
    """Registers after loading `data`."""
    if kind.nbytes >= 4:
        for n in range(kind.registers):
            state.v[first + n, wave, lane] = int.from_bytes(data[4 * n : 4 * n + 4], "little")
        return
    value = int.from_bytes(data, "little", signed=kind.signed)
    if kind.half is None:
        state.v[first, wave, lane] = value & M32
    else:
        old = int(state.v[first, wave, lane])
        state.v[first, wave, lane] = (
            old & (0xFFFF0000 if kind.half == 0 else 0xFFFF) | (value & 0xFFFF) << 16 * kind.half
        )


def take(state: State, wave: int, lane: int, first: int, kind: Kind) -> bytes:
    """Bytes that a store writes."""
    whole = b"".join(int(state.v[first + n, wave, lane]).to_bytes(4, "little") for n in range(kind.registers))
    return whole[2 * (kind.half or 0) :][: kind.nbytes]


def lanes(state: State) -> Iterator[tuple[int, int]]:
    """Active lanes in the order of the hardware's serial semantics: waves, then lanes."""
    yield from np.argwhere(state.lanes(EXEC)).tolist()


def masks(rng: np.random.Generator, state: State) -> Iterator[tuple[State, bool]]:
    """The state with all lanes in adjacent waves, and with holes in waves that are apart."""
    yield state, False
    part = state.copy()
    part.set_pair(EXEC, partial_exec(rng, state.waves))
    yield part, True


def slots(rng: np.random.Generator, count: int, size: int, align: int = 1) -> np.ndarray:
    """Offsets of distinct places of `size` bytes, shuffled and not aligned to more than `align`."""
    room = 2 * size
    shift = rng.integers(0, (room - size) // align + 1, count) * align
    return rng.permutation(count) * room + shift


# ---- read-modify-write: old value and operands to new value --------------------------------------------------
def _signed(value: int, width: int) -> int:
    return value - (1 << width) if value >> (width - 1) else value


def _float(width: int, formula: Callable[[float, float], float]) -> Callable[[int, int], int]:
    def evaluate(old: int, value: int) -> int:
        a, b = decode(f"f{width}", np.array([old, value], np.uint64))
        bits = encode(f"f{width}", formula(a, b))
        assert bits is not None, "the tests keep NaNs out of atomics"
        return bits

    return evaluate


def _halves(kind: str) -> Callable[[int, int], int]:
    def evaluate(old: int, value: int) -> int:
        parts = []
        for shift in (0, 16):
            a, b = decode(kind, np.array([old >> shift & 0xFFFF, value >> shift & 0xFFFF], np.uint64))
            bits = encode(kind, a + b)
            assert bits is not None
            parts.append(bits << shift)
        return parts[0] | parts[1]

    return evaluate


def operations(width: int) -> dict[str, Callable[[int, int], int]]:
    """Integer operations on `width` bits; the caller truncates."""
    return {
        "swap": lambda old, value: value, "add": lambda old, value: old + value, "sub": lambda old, value: old - value,
        "and": lambda old, value: old & value, "or": lambda old, value: old | value, "xor": lambda old,
             value: old ^ value,
        "umin": min, "umax": max,
        "smin": lambda old, value: min(old, value, key=lambda n: _signed(n, width)),
        "smax": lambda old, value: max(old, value, key=lambda n: _signed(n, width)),
        "inc": lambda old, value: 0 if old >= value else old + 1,
        "dec": lambda old, value: value if old == 0 or old > value else old - 1,
    }  # fmt: skip


FLOAT_OPERATIONS: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "add_f32": ("f32", _float(32, lambda a, b: a + b)),
    "add_f64": ("f64", _float(64, lambda a, b: a + b)),
    "pk_add_f16": ("f16x2", _halves("f16")),
    "pk_add_bf16": ("bf16x2", _halves("bf16")),
}
