# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Typed values of the pseudocode evaluator, and the functions that the pseudocode calls without defining them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from tests.kernel import pcode_float as pf
from tests.kernel.pcode_float import FORMATS, Class, Real, Rounding
from tests.kernel.pcode_lang import view_type

FLOAT_KINDS = ("f", "bf", "fp")
RAW_WIDTH = 2048  # of a register operand, before a view picks its type

Kind = tuple[str, int]


class PcodeUnsupported(NotImplementedError):
    """The pseudocode names something that it does not define, and neither does this evaluator."""


@dataclass(frozen=True)
class Val:
    """Bits with a type. `exact` holds an unrounded power of two, which rounds with the product it goes into."""

    kind: str
    width: int
    bits: int
    exact: Real | None = None

    def __int__(self) -> int:
        if self.kind == "i" and self.bits >> (self.width - 1):
            return self.bits - (1 << self.width)
        return self.bits

    @property
    def is_float(self) -> bool:
        return self.kind in FLOAT_KINDS

    def real(self) -> Real:
        if self.exact is not None:
            return self.exact
        return FORMATS[self.kind, self.width].decode(self.bits) if self.is_float else pf.finite(int(self))

    def true(self) -> bool:
        return not self.real().is_zero if self.is_float else self.bits != 0


def val(kind: str, width: int, number: int) -> Val:
    return Val(kind, width, number & ((1 << width) - 1))


def raw(number: int) -> Val:
    """A register operand, whose type its use decides."""
    return val("b", RAW_WIDTH, number)


def flag(condition: bool) -> Val:
    return Val("u", 1, int(condition))


def rounded(real: Real, kind: Kind, mode: Rounding = Rounding.NEAREST_EVEN) -> Val:
    return Val(*kind, FORMATS[kind].encode(real, mode))


def promoted(value: Val) -> Kind:
    """C integer promotion: narrower than 32 bits becomes a signed 32-bit integer."""
    return (value.kind, value.width) if value.width >= 32 else ("i", 32)


def common(a: Val, b: Val) -> Kind:
    """C usual arithmetic conversion: the wider type, of equal widths the unsigned one."""
    left, right = promoted(a), promoted(b)
    if left[1] != right[1]:
        return max(left, right, key=lambda kind: kind[1])
    return left if left[0] != "i" else right


# Built-in functions: (rounding mode, arguments...) -> Val


def _convert(target: str, scaled: bool, mode: Rounding, x: Val, scale: Val | None = None) -> Val:
    """`f32_to_fp8(x)`, and `f32_to_fp8_scale(x, s)` with s an exponent of bias 127 that narrowing divides by."""
    real = x.real()
    if target in ("snorm", "unorm"):
        low, limit = (-32767, 32767) if target == "snorm" else (0, 65535)
        steps = pf.rounded_even(pf.multiplied(real, pf.finite(limit)))
        return val("i" if low else "u", 16, pf.to_integer(steps, low, limit))
    kind = view_type(target)
    if kind is None or x.width == RAW_WIDTH:
        raise PcodeUnsupported(f"conversion {x.kind}{x.width} to {target}")
    if kind[0] not in FLOAT_KINDS:
        low, high = (-(1 << (kind[1] - 1)), (1 << (kind[1] - 1)) - 1) if kind[0] == "i" else (0, (1 << kind[1]) - 1)
        return val(*kind, pf.to_integer(real, low, high))
    if scaled and int(scale) == 255:
        real = pf.QUIET_NAN
    elif scaled:
        power = int(scale) - 127
        real = pf.multiplied(real, pf.finite(Fraction(2) ** (-power if kind[1] < x.width else power)))
    return rounded(pf.quieted(real) if real.kind is Class.NAN else real, kind, mode)


def _like(function: Callable[..., Real], mode: Rounding, *arguments: Val) -> Val:
    """Apply a function of Reals; the result has the type of the first argument."""
    return rounded(function(*(x.real() for x in arguments)), (arguments[0].kind, arguments[0].width), mode)


def _approximate(function: Callable[..., float], mode: Rounding, *arguments: Val) -> Val:
    """A transcendental function in double precision, rounded once: hardware differs by an ulp or two."""
    try:
        result = function(*(pf.to_float(x.real()) for x in arguments))
    except OverflowError:
        result = math.inf
    except ValueError:
        result = math.nan
    return rounded(pf.from_float(result), (arguments[0].kind, arguments[0].width), mode)


def _log2(x: float) -> float:
    return -math.inf if x == 0 else math.log2(x)


def _exponent(mode: Rounding, x: Val) -> Val:
    return val("i", 32, FORMATS[x.kind, x.width].fields(x.bits)[1])


def _frexp(x: Real) -> tuple[Fraction, int]:
    exponent = pf.floor_log2(x.magnitude) + 1
    return x.magnitude / Fraction(2) ** exponent, exponent


def _frexp_exponent(mode: Rounding, x: Val) -> Val:
    real = x.real()
    return val("i", 32, 0 if real.is_zero or real.kind is not Class.FINITE else _frexp(real)[1])


def _mantissa(x: Real) -> Real:
    return x if x.is_zero else Real(x.sign, _frexp(x)[0])


def _fraction(x: Real) -> Real:
    return pf.added(x, pf.negated(pf.floored(x)))


def _fma(a: Real, b: Real, c: Real) -> Real:
    return pf.added(pf.multiplied(a, b), c)


def _ldexp(mode: Rounding, x: Val, n: Val) -> Val:
    power = min(max(int(n), -5000), 5000)
    return rounded(pf.multiplied(x.real(), pf.finite(Fraction(2) ** power)), (x.kind, x.width), mode)


def _signalling(x: Real) -> bool:
    return x.kind is Class.NAN and x.magnitude < Fraction(1, 2)


def _extreme(sign: int, *arguments: Real) -> Real:
    """IEEE 754-2019 minimum (sign 1) or maximum (sign 0): a NaN wins, and -0 < +0."""
    best = arguments[0]
    for x in arguments:
        if x.kind is Class.NAN:
            return pf.quieted(x)
        order = pf.compared(x, best)
        if order == 1 - 2 * sign or (order == 0 and x.sign == sign):
            best = x
    return best


def _signext_from_bit(mode: Rounding, x: Val, width: Val) -> Val:
    n = int(width)
    if n == 0 or n >= x.width:
        return val("i", x.width, x.bits if n else 0)
    return val("i", x.width, int(val("i", n, x.bits)))


def _float32(mode: Rounding, sign: Val, exponent: Val, mantissa: Val) -> Val:
    return val("f", 32, sign.bits << 31 | exponent.bits << 23 | mantissa.bits)


BUILTINS: dict[str, Callable[..., Any]] = {
    "abs": partial(_like, lambda x: Real(0, x.magnitude, x.kind)),
    "trunc": partial(_like, pf.truncated),
    "floor": partial(_like, pf.floored),
    "rndne": partial(_like, pf.rounded_even),
    "fract": partial(_like, _fraction),
    "mantissa": partial(_like, _mantissa),
    "sqrt": partial(_like, pf.square_root),
    "fma": partial(_like, _fma),
    "cvtToQuietNAN": partial(_like, pf.quieted),
    "ldexp": _ldexp,
    "exponent": _exponent,
    "frexp_exponent": _frexp_exponent,
    "float32": _float32,
    "pow": partial(_approximate, math.pow),
    "log2": partial(_approximate, _log2),
    "sin": partial(_approximate, math.sin),
    "cos": partial(_approximate, math.cos),
    "sign": lambda mode, x: flag(x.bits >> (x.width - 1) == 1),
    "isNAN": lambda mode, x: flag(x.real().kind is Class.NAN),
    "isSignalNAN": lambda mode, x: flag(_signalling(x.real())),
    "isQuietNAN": lambda mode, x: flag(x.real().kind is Class.NAN and not _signalling(x.real())),
    "isEven": lambda mode, x: flag(pf.floored(x.real()).value % 2 == 0),
    "signext": lambda mode, x: x,
    "signext_from_bit": _signext_from_bit,
    "bitCount": lambda mode, x: val("u", 32, x.bits.bit_count()),
    "nop": lambda mode: None,
}
_CONVERSION = re.compile(r"(?:bf|fp|[uif])\d+_to_([a-z]+\d*)(_scale)?$")
_EXTREME = re.compile(r"v_(minimum|maximum)3?_f\d+$")


def builtin(name: str) -> Callable[..., Any] | None:
    """The function of that name, or None where it is another instruction's."""
    if match := _CONVERSION.match(name):
        return partial(_convert, match[1], match[2] is not None)
    if match := _EXTREME.match(name):
        return partial(_like, partial(_extreme, int(match[1] == "minimum")))
    return BUILTINS.get(name)
