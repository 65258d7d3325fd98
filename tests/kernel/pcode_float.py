# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Exact software floats for the pseudocode evaluator: bit pattern -> rational number -> one rounding -> bit pattern."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction


class Rounding(Enum):
    NEAREST_EVEN = "ROUND_NEAREST_EVEN"
    TOWARD_ZERO = "ROUND_TOWARD_ZERO"


class Class(Enum):
    FINITE = 0
    INF = 1
    NAN = 2


@dataclass(frozen=True)
class Real:
    """A decoded number. `magnitude` is the absolute value, or for a NaN its mantissa field as a fraction of 1."""

    sign: int
    magnitude: Fraction
    kind: Class = Class.FINITE

    @property
    def value(self) -> Fraction:
        return -self.magnitude if self.sign else self.magnitude

    @property
    def is_zero(self) -> bool:
        return self.kind is Class.FINITE and self.magnitude == 0


@dataclass(frozen=True)
class Format:
    """Width of the fields, and how much of the top exponent is special: all of it, one NaN code, or nothing."""

    exponent_bits: int
    mantissa_bits: int
    has_inf: bool = True
    has_nan: bool = True

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def width(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def exponent_mask(self) -> int:
        return (1 << self.exponent_bits) - 1

    @property
    def mantissa_mask(self) -> int:
        return (1 << self.mantissa_bits) - 1

    @property
    def largest(self) -> int:
        """Bit pattern of the largest finite number."""
        top = (self.exponent_mask << self.mantissa_bits) | self.mantissa_mask
        if self.has_inf:
            return top - self.mantissa_mask - 1
        return top - 1 if self.has_nan else top

    def fields(self, bits: int) -> tuple[int, int, int]:
        """Sign, biased exponent and mantissa fields."""
        sign, exponent = bits >> (self.width - 1) & 1, bits >> self.mantissa_bits & self.exponent_mask
        return sign, exponent, bits & self.mantissa_mask

    def decode(self, bits: int) -> Real:
        sign, exponent, mantissa = self.fields(bits)
        if exponent == self.exponent_mask:
            if self.has_inf:
                kind = Class.NAN if mantissa else Class.INF
                return Real(sign, Fraction(mantissa, 1 << self.mantissa_bits), kind)
            if self.has_nan and mantissa == self.mantissa_mask:
                return Real(sign, Fraction(1, 2), Class.NAN)
        scale = max(exponent, 1) - self.bias - self.mantissa_bits
        if exponent:
            mantissa |= 1 << self.mantissa_bits
        return Real(sign, Fraction(mantissa << scale) if scale >= 0 else Fraction(mantissa, 1 << -scale))

    def encode(self, real: Real, rounding: Rounding = Rounding.NEAREST_EVEN) -> int:
        """Round once. Overflow gives infinity, or the NaN code of a format without one, or the largest number."""
        top = real.sign << (self.width - 1)
        if real.kind is Class.NAN:
            return top | self._nan(real.magnitude)
        if real.kind is Class.INF:
            return top | self._overflow()
        if real.is_zero:
            return top
        quantum = max(floor_log2(real.magnitude), 1 - self.bias) - self.mantissa_bits
        scaled = real.magnitude / (Fraction(2) ** quantum)
        steps = round(scaled) if rounding is Rounding.NEAREST_EVEN else math.floor(scaled)
        # `steps` has the hidden bit unless subnormal, so adding it to the exponent below it carries rightly.
        bits = ((quantum + self.mantissa_bits + self.bias - 1) << self.mantissa_bits) + steps
        if bits <= self.largest:
            return top | bits
        return top | (self._overflow() if rounding is Rounding.NEAREST_EVEN else self.largest)

    def _nan(self, payload: Fraction) -> int:
        if not self.has_nan:
            return self.largest
        if not self.has_inf:
            return self.largest + 1
        mantissa = int(payload * (1 << self.mantissa_bits)) or 1 << (self.mantissa_bits - 1)
        return (self.exponent_mask << self.mantissa_bits) | mantissa

    def _overflow(self) -> int:
        return self.largest + 1 if self.has_inf or self.has_nan else self.largest


FORMATS = {
    ("f", 16): Format(5, 10),
    ("f", 32): Format(8, 23),
    ("f", 64): Format(11, 52),
    ("bf", 16): Format(8, 7),
    ("bf", 8): Format(5, 2),
    ("fp", 8): Format(4, 3, has_inf=False),
    ("fp", 6): Format(2, 3, has_inf=False, has_nan=False),
    ("bf", 6): Format(3, 2, has_inf=False, has_nan=False),
    ("fp", 4): Format(2, 1, has_inf=False, has_nan=False),
}

QUIET_NAN = Real(0, Fraction(1, 2), Class.NAN)
INFINITY = Real(0, Fraction(0), Class.INF)


def floor_log2(value: Fraction) -> int:
    """Largest e with 2**e <= value, for value > 0."""
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if Fraction(2) ** guess <= value else guess - 1


def finite(value: Fraction | float | int, zero_sign: int = 0) -> Real:
    """A finite Real; a zero gets `zero_sign`."""
    exact = Fraction(value)
    return Real(zero_sign if exact == 0 else int(exact < 0), abs(exact))


def from_float(value: float) -> Real:
    """A Real from a Python float, for functions that are only approximate anyway."""
    if math.isnan(value):
        return QUIET_NAN
    sign = int(math.copysign(1.0, value) < 0)
    return Real(sign, Fraction(0), Class.INF) if math.isinf(value) else finite(value, sign)


def to_float(real: Real) -> float:
    if real.kind is Class.NAN:
        return math.nan
    magnitude = math.inf if real.kind is Class.INF else float(real.magnitude)
    return math.copysign(magnitude, -1.0 if real.sign else 1.0)


def quieted(real: Real) -> Real:
    """The NaN with its quiet bit set."""
    quiet = Fraction(1, 2)
    return Real(real.sign, real.magnitude if real.magnitude >= quiet else real.magnitude + quiet, Class.NAN)


def _nan_of(*operands: Real) -> Real | None:
    return next((quieted(x) for x in operands if x.kind is Class.NAN), None)


def negated(a: Real) -> Real:
    return Real(a.sign ^ 1, a.magnitude, a.kind)


def added(a: Real, b: Real) -> Real:
    nan = _nan_of(a, b)
    if nan:
        return nan
    if a.kind is Class.INF or b.kind is Class.INF:
        if a.kind is b.kind and a.sign != b.sign:
            return QUIET_NAN
        return a if a.kind is Class.INF else b
    return finite(a.value + b.value, zero_sign=a.sign & b.sign if a.is_zero and b.is_zero else 0)


def multiplied(a: Real, b: Real) -> Real:
    nan = _nan_of(a, b)
    if nan:
        return nan
    sign = a.sign ^ b.sign
    if a.kind is Class.INF or b.kind is Class.INF:
        return QUIET_NAN if a.is_zero or b.is_zero else Real(sign, Fraction(0), Class.INF)
    return Real(sign, a.magnitude * b.magnitude)


def divided(a: Real, b: Real) -> Real:
    nan = _nan_of(a, b)
    if nan:
        return nan
    sign = a.sign ^ b.sign
    if b.kind is Class.INF:
        return QUIET_NAN if a.kind is Class.INF else Real(sign, Fraction(0))
    if b.is_zero:
        return QUIET_NAN if a.is_zero else Real(sign, Fraction(0), Class.INF)
    return Real(sign, Fraction(0), Class.INF) if a.kind is Class.INF else Real(sign, a.magnitude / b.magnitude)


def square_root(a: Real) -> Real:
    """Root with 140 bits, enough for a correct rounding to 53 bits of any square root."""
    if a.kind is Class.NAN:
        return quieted(a)
    if a.is_zero:
        return a
    if a.sign:
        return QUIET_NAN
    if a.kind is Class.INF:
        return a
    shift = 280 + 2 * max(0, -floor_log2(a.magnitude))
    scaled = a.magnitude * (1 << shift)
    root = math.isqrt(scaled.numerator // scaled.denominator)
    exact = root * root == scaled
    # The sticky half keeps an inexact root off every rounding boundary.
    return Real(0, (Fraction(root) if exact else root + Fraction(1, 2)) / (1 << (shift // 2)))


def truncated(a: Real) -> Real:
    """Toward zero; keeps the sign of zero, infinities and NaNs."""
    if a.kind is Class.NAN:
        return quieted(a)
    return a if a.kind is Class.INF else Real(a.sign, Fraction(int(a.magnitude)))


def floored(a: Real) -> Real:
    if a.kind is not Class.FINITE:
        return truncated(a)
    return finite(math.floor(a.value), zero_sign=a.sign if a.is_zero else 0)


def rounded_even(a: Real) -> Real:
    """To the nearest integer, ties to even, the sign kept."""
    if a.kind is not Class.FINITE:
        return truncated(a)
    return Real(a.sign, Fraction(round(a.magnitude)))


def to_integer(a: Real, low: int, high: int) -> int:
    """Toward zero, saturated; NaN gives 0."""
    if a.kind is Class.NAN:
        return 0
    if a.kind is Class.INF:
        return low if a.sign else high
    return min(max(-int(a.magnitude) if a.sign else int(a.magnitude), low), high)


def compared(a: Real, b: Real) -> int | None:
    """-1, 0 or 1; None if one is a NaN. Zeros are equal."""
    if Class.NAN in (a.kind, b.kind):
        return None
    left, right = ((1 - 2 * x.sign, Fraction(0)) if x.kind is Class.INF else (0, x.value) for x in (a, b))
    return (left > right) - (left < right)
