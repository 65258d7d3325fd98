# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Values of the instruction tests: bit patterns per type, edge cases, and conversion to Python numbers and back.

References compute with Python integers, floats and fractions. A float result that is no double is given as a
Fraction, which is then rounded once. NaN stands for any NaN: payloads are not part of the contract. `r16` and `r32`
are sources that hold floats but reach the reference as raw bits, for what depends on signalling NaNs.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import numpy as np

from tests.kernel import pcode_float

NAN, INF = math.nan, math.inf
OPEN = None  # a result that no manual fixes
WIDTH = {
    "b8": 8, "b16": 16, "u16": 16, "i16": 16, "f16": 16, "bf16": 16,
    "b32": 32, "u32": 32, "i32": 32, "f32": 32, "b64": 64, "u64": 64, "i64": 64, "f64": 64,
    "r16": 16, "r32": 32, "mix": 32, "f16x2": 32, "bf16x2": 32, "u16x2": 32, "i16x2": 32, "r16x2": 32, "f32x2": 64,
    "b32x2": 64,
}  # fmt: skip
FLOATS = {"f16": ("e", np.uint16, np.float16), "f32": ("f", np.uint32, np.float32), "f64": ("d", np.uint64, np.float64)}
_FORMAT = {"f16": ("f", 16), "bf16": ("bf", 16), "f32": ("f", 32), "f64": ("f", 64)}
_RAW = {"r16": "f16", "r32": "f32", "mix": "f32"}

_NICE = [0.0, 1.0, 0.5, 1.5, 2.0, 2.5, 3.5, 255.0, 4.0, 1 / 3, 0.49999997, 1e-3, 65504.0, 8388609.0, 2.0**31, 2.0**32]


def _float_edges(kind: str) -> list[int]:
    exponent, mantissa = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}[kind]
    inf, sign = ((1 << exponent) - 1) << mantissa, 1 << (exponent + mantissa)
    quiet = 1 << (mantissa - 1)
    edges = [inf, inf - 1, inf | quiet, inf | quiet | 1, inf | 1, 1, quiet, (1 << mantissa) - 1, 1 << mantissa]
    edges += [encode(kind, value) for value in _NICE]
    return [bits | flip for bits in edges for flip in (0, sign)]


def _integer_edges(width: int) -> list[int]:
    top = 1 << (width - 1)
    edges = [0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 47, 63, 64, 65, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x10000]
    edges += [0x7FFFFF, 0x800000, 0xFFFFFF, 0x1000000, 0x7FFFFFFF, 0x80000000, 0x0C0D0B08, 0x07060504]
    edges += [top, top - 1, top + 1, *(-n for n in (1, 2, 3, 8, 16, 32, 64))]
    return sorted({edge & ((1 << width) - 1) for edge in edges})


def encode(kind: str, value: float | Fraction | int) -> int | None:
    """Bits of a value, rounded to nearest even once; None for a NaN."""
    if kind not in _FORMAT:
        assert isinstance(value, int), (kind, value)
        return value & ((1 << WIDTH[kind]) - 1)
    if isinstance(value, float):
        if math.isnan(value):
            return None
        if kind in FLOATS:
            letter = FLOATS[kind][0]
            try:
                return int.from_bytes(struct.pack("<" + letter, value), "little")
            except OverflowError:
                value = math.copysign(INF, value)
                return int.from_bytes(struct.pack("<" + letter, value), "little")
        return pcode_float.FORMATS[_FORMAT[kind]].encode(pcode_float.from_float(value))
    return pcode_float.FORMATS[_FORMAT[kind]].encode(pcode_float.finite(value))


EDGES = {
    kind: _float_edges(_RAW.get(kind, kind)) if kind in (*_FORMAT, *_RAW) else _integer_edges(width)
    for kind, width in WIDTH.items()
    if not kind.endswith("x2")
}


def decode(kind: str, bits: np.ndarray) -> list:
    """Bit patterns (uint64) to Python numbers; every float of 64 bits or fewer is exact as a Python float."""
    if kind in FLOATS:
        _, raw, number = FLOATS[kind]
        with np.errstate(all="ignore"):
            return bits.astype(raw).view(number).astype(np.float64).tolist()
    if kind == "bf16":
        return decode("f32", bits << np.uint64(16))
    numbers = bits.tolist()
    if kind[0] == "i":
        width = WIDTH[kind]
        return [n - (1 << width) if n >> (width - 1) else n for n in numbers]
    return numbers


def choose(rng: np.random.Generator, kind: str, shape: tuple[int, ...], other: np.ndarray | None = None) -> np.ndarray:
    """Random bits, edge cases, moderate numbers, and where `other` is given also equal and neighbouring values."""
    if kind == "mix" or kind.endswith("x2"):
        element = kind.removesuffix("x2") if kind != "mix" else "f16"
        low, high = choose(rng, element, shape, other), choose(rng, element, shape)
        both = low & np.uint64((1 << WIDTH[element]) - 1) | high << np.uint64(WIDTH[element])
        return both if kind != "mix" else np.where(rng.integers(0, 2, shape) == 0, both, choose(rng, "f32", shape))
    width, kind = WIDTH[kind], _RAW.get(kind, kind)
    top = np.uint64((1 << width) - 1)
    random = rng.integers(0, (1 << 64) - 1, shape, np.uint64, endpoint=True) & top
    edges = rng.choice(np.array(EDGES[kind], np.uint64), shape)
    if kind in _FORMAT:
        _, raw, number = FLOATS.get(kind, FLOATS["f32"])
        numbers = (rng.standard_normal(shape) * np.exp2(rng.integers(-6, 7, shape))).astype(number)
        moderate = numbers.view(raw).astype(np.uint64) >> np.uint64(16 if kind == "bf16" else 0)
    else:
        moderate = (random >> rng.integers(0, width, shape).astype(np.uint64)) & top
    near = random if other is None else (other + rng.integers(0, 3, shape).astype(np.uint64) - np.uint64(1)) & top
    return np.choose(rng.choice(4, shape, p=[0.25, 0.4, 0.25, 0.1]), [random, edges, moderate, near])


# ---- formulas that several tables use ------------------------------------------------------------------------
def exact(formula):
    """Evaluate on fractions when all arguments are finite, else on floats, whose infinities and NaNs are IEEE's."""

    def evaluate(*values: float):
        if all(map(math.isfinite, values)):
            result = formula(*map(Fraction, values))
            # A zero result takes its sign from the float formula; magnitudes that underflow a double have none.
            return result if result else math.copysign(0.0, formula(*values))
        return formula(*values)

    return evaluate


def divide(a: float, b: float) -> float:
    """IEEE division on Python floats."""
    if b != 0:
        return a / b
    return NAN if a == 0 or math.isnan(a) else math.copysign(INF, a) * math.copysign(1.0, b)


def larger(a: float, b: float) -> float:
    """IEEE maxNum with -0 < +0; a NaN loses."""
    if math.isnan(a) or math.isnan(b):
        return b if math.isnan(a) else a
    return max(a, b) if a != b else (b if math.copysign(1, a) < 0 else a)


def smaller(a: float, b: float) -> float:
    return -larger(-a, -b)


def _signalling(bits: int, width: int) -> bool:
    inf, quiet = (0x7C00, 0x200) if width == 16 else (0x7F800000, 0x400000)
    size = bits & ((1 << (width - 1)) - 1)
    return size > inf and not size & quiet


def ieee(width: int, function):
    """maxNum or minNum on raw bits: with IEEE mode on, a signalling NaN wins and becomes quiet."""

    def evaluate(a: int, b: int) -> float:
        if _signalling(a, width) or _signalling(b, width):
            return NAN
        return function(*decode(f"f{width}", np.array([a, b], np.uint64)))

    return evaluate


def chain(width: int, function):
    """Three operands, two at a time. A quiet NaN between the steps loses against the third."""
    first, letter = ieee(width, function), f"f{width}"

    def evaluate(a: int, b: int, c: int) -> float:
        between = encode(letter, first(a, b))
        quiet = 0x7E00 if width == 16 else 0x7FC00000
        return first(quiet if between is None else between, c)

    return evaluate


def truncate(value: float, low: int, high: int) -> int:
    """Toward zero, saturated, NaN to 0."""
    if math.isnan(value):
        return 0
    return low if value < low else high if value > high else int(value)
