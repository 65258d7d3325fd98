# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Vector instructions on float32 and float64, conversions, and all float comparisons."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tests.kernel import pcode_float
from tests.kernel.instruction_rows import Row, sdwa, spell
from tests.kernel.instruction_values import (
    INF,
    NAN,
    OPEN,
    chain,
    decode,
    divide,
    encode,
    exact,
    ieee,
    larger,
    smaller,
    truncate,
)

TINY32 = 2.0**-126
_UNDEFINED_DENORMALS = "compilers scale denormals away from it; what the hardware does with them is not documented"


def _row(
    name: str, results: str, sources: str, encoding: str, reference: Callable, *more: str, clamp: bool = True,
         ulps: int = 0,
    note: str = "",
) -> Row:  # fmt: skip
    floats = "f" in sources or "r32" in sources
    forms = spell(results, sources, encoding, floats=floats, clamp=clamp and results == "f32") + more
    return Row(name, results, sources, reference, forms, ulps, note)


def finite_or_same(function: Callable[[float], float]) -> Callable:
    """Rounding to an integer keeps infinities, NaNs and the sign of zero."""
    return lambda a: math.copysign(function(a), a) if math.isfinite(a) else a


def approximate(function: Callable[[float], float]) -> Callable:
    """A function of a single float32; open for denormal arguments and results."""

    def evaluate(a: float):
        if 0 < abs(a) < TINY32:
            return OPEN
        result = NAN if math.isnan(a) else function(a)
        return OPEN if 0 < abs(result) < TINY32 else result

    return evaluate


def root(a: float) -> float:
    return math.sqrt(a) if a >= 0 else NAN


def logarithm(a: float) -> float:
    return NAN if a < 0 else -INF if a == 0 else math.log2(a)


def power_of_two(a: float) -> float:
    return 0.0 if a < -200 else INF if a >= 128 else math.pow(2.0, a)


def turn(a: float, quarter: int) -> float:
    """sin of 2 pi (a + quarter / 4); exact zeros and ones at whole quarters."""
    if math.isinf(a):
        return NAN
    part = (math.fmod(a, 1.0) + quarter / 4) % 1.0 if quarter else math.fmod(a, 1.0)
    steps = part * 4
    if steps == int(steps):
        return (0.0, 1.0, 0.0, -1.0)[int(steps) % 4]
    # Close to a zero of the function the argument must be reduced before it is multiplied by pi.
    near = part - round(part * 2) / 2
    return math.sin(2 * math.pi * near) * (-1 if round(part * 2) % 2 else 1)


def scale(a: float, n: int):
    """a * 2**n with one rounding."""
    if not math.isfinite(a) or a == 0:
        return a
    n = min(max(n, -3000), 3000)
    return exact(lambda x: x * pcode_float.Fraction(2) ** n)(a)


def mantissa(a: float) -> float:
    return math.frexp(a)[0] if math.isfinite(a) else a


def exponent(a: float) -> int:
    return math.frexp(a)[1] if math.isfinite(a) else 0


def fraction(a: float) -> float:
    """At most the largest float32 below 1."""
    if not math.isfinite(a):
        return NAN
    value = a - math.floor(a) or 0.0
    return min(decode("f32", np.array([encode("f32", value)], np.uint64))[0], 1 - 2.0**-24)


def median(a: int, b: int, c: int) -> float:
    """The larger of the two that are not the maximum; with a NaN the minimum."""
    x, y, z = decode("f32", np.array([a, b, c], np.uint64))
    if any(map(math.isnan, (x, y, z))):
        return chain(32, smaller)(a, b, c)
    top = max(x, y, z)
    return larger(y, z) if x == top else larger(x, z) if y == top else larger(x, y)


def extreme(function: Callable) -> Callable:
    """IEEE 754-2019 minimum and maximum of three: a NaN wins."""

    def evaluate(*values: float) -> float:
        if any(map(math.isnan, values)):
            return NAN
        return function(function(values[0], values[1]), values[2])

    return evaluate


def toward_zero(value: float) -> float:
    """The float16 below in magnitude; finite overflow gives the largest number."""
    if not math.isfinite(value):
        return value
    real = pcode_float.from_float(value)
    bits = pcode_float.FORMATS["f", 16].encode(real, pcode_float.Rounding.TOWARD_ZERO)
    return decode("f16", np.array([bits], np.uint64))[0]


def legacy_product(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def class_of(bits: int, width: int) -> int:
    """Number of the class that `v_cmp_class` tests: signalling and quiet NaN, then from -inf up to +inf."""
    fields = {16: (5, 10), 32: (8, 23), 64: (11, 52)}[width]
    top, fraction_bits = (1 << fields[0]) - 1, bits & ((1 << fields[1]) - 1)
    power, negative = bits >> fields[1] & top, bits >> (width - 1)
    if power == top and fraction_bits:
        return fraction_bits >> (fields[1] - 1)
    number = 0 if power == top else 1 if power else 2 if fraction_bits else 3
    return 2 + number if negative else 9 - number


_ORDERED = {
    "lt": lambda a, b: a < b, "eq": lambda a, b: a == b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b,
    "lg": lambda a, b: a < b or a > b, "ge": lambda a, b: a >= b, "o": lambda a, b: a == a and b == b,
}  # fmt: skip
_NEGATED = {"nlt": "lt", "neq": "eq", "nle": "le", "ngt": "gt", "nlg": "lg", "nge": "ge", "u": "o"}
_RELATIONS = {**_ORDERED, **{name: lambda a, b, f=_ORDERED[other]: not f(a, b) for name, other in _NEGATED.items()}}

COMPARE_ROWS = [
    Row(f"v_cmp_{name}_{kind}", "mask", f"{kind} {kind}", relation,
        spell("mask", f"{kind} {kind}", "vopc", floats=True) + ("_e64 vcc, |v1|, s3",
             "_e64 vcc, s3, s3") * (kind == "f32"))
    for kind in ("f32", "f64", "f16")
    for name, relation in _RELATIONS.items()
] + [
    Row(
        f"v_cmp_class_f{width}", "mask", f"b{width} b32",
        lambda a, mask, width=width: mask >> class_of(a, width) & 1,
        tuple(f"{form}{source}, {mask}" for form, mask in (("_e32 vcc, ", "v8"), ("_e64 s[20:21], ", "s3"),
                                                           ("_e64 s[20:21], ", "3"), ("_e64 s[20:21], ", "v8"))),
    )
    for width, source in ((16, "v1"), (32, "v1"), (64, "v[2:3]"))
]  # fmt: skip

_FMA = exact(lambda a, b, c: a * b + c)
ROWS = [
    _row("v_add_f32", "f32", "f32 f32", "vop2", lambda a, b: a + b, "_e32 v12, 0.15915494, v5", sdwa("-v1 DWORD",
         "|v5| DWORD")),
    _row("v_sub_f32", "f32", "f32 f32", "vop2", lambda a, b: a - b),
    _row("v_subrev_f32", "f32", "f32 f32", "vop2", lambda a, b: b - a),
    _row("v_mul_f32", "f32", "f32 f32", "vop2", lambda a, b: a * b, "_e64 v12, s3, 0.15915494", "_e64 v12, |v1|, s3"),
    _row("v_mul_legacy_f32", "f32", "f32 f32", "vop3", legacy_product),
    _row("v_fma_f32", "f32", "f32 f32 f32", "vop3", _FMA, " v12, |v1|, s3, -v8", " v12, -v1, v5, 1.0",
         " v12, v1, s3, -v8", " v12, |v1|, s3, v8", " v12, v1, s3, |v8|"),
    Row("v_fmac_f32", "f32", "f32 f32 +f32", _FMA,
        ("_e32 v12, v1, v5", "_e32 v12, s3, v5", "_e32 v12, 0x3377d1cf, v5", "_e32 v12, v12, v5", "_e64 v12, -v1, |s3|",
         "_e64 v12, v1, v5 clamp")),
    Row("v_fmamk_f32", "f32", "f32 f32 f32", _FMA, (" v12, v1, 0x4f800000, v8", " v1, v1, 0xbf800001, v1",
         " v12, 1.0, 0x4f800000, v8")),
    Row("v_fmaak_f32", "f32", "f32 f32 f32", _FMA, (" v12, v1, v5, 0x3f317218", " v5, -4.0, v5, 0xb3800000")),
    _row("v_max_f32", "f32", "r32 r32", "vop2", ieee(32, larger), "_e64 v12, s3, s3", "_e64 v12, |v1|, |v5|"),
    _row("v_min_f32", "f32", "r32 r32", "vop2", ieee(32, smaller)),
    _row("v_max3_f32", "f32", "r32 r32 r32", "vop3", chain(32, larger), " v12, v1, |v5|, |v8|"),
    _row("v_min3_f32", "f32", "r32 r32 r32", "vop3", chain(32, smaller)),
    _row("v_med3_f32", "f32", "r32 r32 r32", "vop3", median),
    _row("v_maximum3_f32", "f32", "f32 f32 f32", "vop3", extreme(larger), " v12, v1, s3, s3", " v12, v1, |v5|, |v8|",
         " v12, |v1|, 0.5, |v8|"),
    _row("v_minimum3_f32", "f32", "f32 f32 f32", "vop3", extreme(smaller), " v12, v1, s3, s3"),
    _row("v_trunc_f32", "f32", "f32", "vop1", finite_or_same(math.trunc)),
    _row("v_ceil_f32", "f32", "f32", "vop1", finite_or_same(math.ceil)),
    _row("v_floor_f32", "f32", "f32", "vop1", finite_or_same(math.floor)),
    _row("v_rndne_f32", "f32", "f32", "vop1", finite_or_same(round)),
    _row("v_fract_f32", "f32", "f32", "vop1", fraction),
    _row("v_ldexp_f32", "f32", "f32 i32", "vop3", scale, clamp=False),
    _row("v_frexp_mant_f32", "f32", "f32", "vop1", mantissa, clamp=False),
    _row("v_frexp_exp_i32_f32", "i32", "f32", "vop1", exponent),
    # approximations: 1 ulp
    *(
        _row(name, "f32", "f32", "vop1", approximate(function), clamp=False, ulps=1, note=_UNDEFINED_DENORMALS)
        for name, function in (
            ("v_rcp_f32", lambda a: divide(1.0, a)), ("v_rcp_iflag_f32", lambda a: divide(1.0, a)),
            ("v_rsq_f32", lambda a: divide(1.0, root(a)) if a else math.copysign(INF, a)),
            ("v_sqrt_f32", lambda a: root(a) if a else a), ("v_exp_f32", power_of_two), ("v_log_f32", logarithm),
            ("v_sin_f32", lambda a: turn(a, 0)), ("v_cos_f32", lambda a: turn(a, 1)),
        )
    ),
    # conversions
    _row("v_cvt_f32_u32", "f32", "u32", "vop1", float),
    _row("v_cvt_f32_i32", "f32", "i32", "vop1", float),
    _row("v_cvt_u32_f32", "u32", "f32", "vop1", lambda a: truncate(a, 0, (1 << 32) - 1)),
    _row("v_cvt_i32_f32", "i32", "f32", "vop1", lambda a: truncate(a, -(1 << 31), (1 << 31) - 1),
         sdwa("v1 DWORD", sel="dst_sel:BYTE_1 dst_unused:UNUSED_PAD")),
    *(
        _row(f"v_cvt_f32_ubyte{n}", "f32", "b32", "vop1", lambda a, n=n: float(a >> 8 * n & 255))
        for n in range(4)
    ),
    _row("v_cvt_f16_f32", "f16", "f32", "vop1", lambda a: a, clamp=False),
    _row("v_cvt_f32_f16", "f32", "f16", "vop1", lambda a: a, sdwa("v1 WORD_1"), sdwa("-|v1| WORD_1"), clamp=False),
    _row("v_cvt_f32_bf16", "f32", "bf16", "vop1", lambda a: a, sdwa("v1 WORD_1"), clamp=False),
    _row("v_cvt_pk_bf16_f32", "bf16x2", "f32 f32", "vop3", lambda a, b: (a, b)),
    _row("v_cvt_pk_f16_f32", "f16x2", "f32 f32", "vop3", lambda a, b: (a, b)),
    _row("v_cvt_pkrtz_f16_f32", "f16x2", "f32 f32", "vop3", lambda a, b: (toward_zero(a), toward_zero(b))),
    # float64
    _row("v_add_f64", "f64", "f64 f64", "vop3", lambda a, b: a + b),
    _row("v_mul_f64", "f64", "f64 f64", "vop3", lambda a, b: a * b),
    _row("v_ldexp_f64", "f64", "f64 i32", "vop3", scale),
    _row("v_cvt_f64_f32", "f64", "f32", "vop1", lambda a: a),
    _row("v_cvt_f32_f64", "f32", "f64", "vop1", lambda a: a, clamp=False),
    _row("v_cvt_f64_u32", "f64", "u32", "vop1", float),
    _row("v_cvt_f64_i32", "f64", "i32", "vop1", float),
    _row("v_cvt_u32_f64", "u32", "f64", "vop1", lambda a: truncate(a, 0, (1 << 32) - 1)),
    _row("v_cvt_i32_f64", "i32", "f64", "vop1", lambda a: truncate(a, -(1 << 31), (1 << 31) - 1)),
]  # fmt: skip

# The steps of a division, whose meaning together is that the quotient is right; alone, only the pseudocode says it.
DIVISION_ROWS = [
    Row("v_div_scale_f32", "f32 mask", "f32 f32 f32", divide,
        (" v12, s[20:21], v5, v5, v8", " v12, vcc, v8, v5, v8", " v12, s[20:21], s5, s5, v8",
             " v12, vcc, 1.0, v5, 1.0")),
    Row("v_div_fmas_f32", "f32", "f32 f32 f32", divide, (" v12, v1, v5, v8", " v1, v1, v5, v8")),
    Row("v_div_fixup_f32", "f32", "f32 f32 f32", divide, (" v12, v1, v5, v8", " v12, v1, s3, v8", " v12, v1, v5, s3",
         " v1, v1, v5, 1.0")),
]  # fmt: skip
