# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Functions on floats that generated code calls: arithmetic and conversions with the hardware's rounding and zeros."""

from __future__ import annotations

import numpy as np

u2, u4, u8, i4, i8, f4, f8 = np.uint16, np.uint32, np.uint64, np.int32, np.int64, np.float32, np.float64
_TINY = f4(2.0**-126)  # below it float32 has fewer digits
_HALF_WAY = i8(-(2**63))


def fma32(a, b, c) -> np.ndarray:
    """float32 a*b + c with one rounding: float64 sum, corrected where double rounding could differ."""
    a, b, c = np.asarray(a), np.asarray(b), np.asarray(c)
    exact = _exact_product(a, b)
    if exact is not None:
        return exact + c
    total = _wide_sum(a, b, c)
    result = total.astype(f4)
    # Half way between two float32 the lower 29 bits are 1 and zeros, which the shift makes the smallest integer.
    bits = total.view(i8)
    bits <<= i8(35)
    tie, small = bits.min(initial=0) == _HALF_WAY, _has_small(result)
    if tie or small:
        risky = (bits == _HALF_WAY) | (np.abs(result) <= _TINY) if small else bits == _HALF_WAY
        _correct(result, np.flatnonzero(risky), a, b, c)
    return result


def _wide_sum(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """float64 a*b + c; the product is exact. Two arrays do for three operands, which keeps them in the cache."""
    if not a.shape == b.shape == c.shape:
        return np.asarray(a.astype(f8) * b.astype(f8) + c.astype(f8))
    total, other = a.astype(f8), b.astype(f8)
    total *= other
    other[...] = c
    total += other
    return total


def _correct(result: np.ndarray, where: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """Round anew at some flat positions: where the float64 sum lies half way between two float32, or is small."""
    whole = [part if part.shape == result.shape else np.broadcast_to(part, result.shape) for part in (a, b, c)]
    a, b, addend = (part.take(where).astype(f8) for part in whole)
    product = a * b
    np.put(result, where, _round_to_odd(product, addend, product + addend).astype(f4))


def _has_small(values: np.ndarray) -> bool:
    """Whether a magnitude is 2^-126 or less: the smallest positive numbers, and the negative ones as signed bits."""
    positive, negative = values.view(u4).min(initial=0xFFFFFFFF), values.view(i4).min(initial=0)
    return bool(positive <= 0x00800000 or negative <= -0x7F800000)


def _powers_of_two(values: np.ndarray) -> bool:
    """Whether no value has a mantissa. The first one nearly always tells, so that the answer no is cheap."""
    bits = values.view(u4)
    return bits.size > 0 and not bits.item(0) & 0x7FFFFF and int((bits << u4(9)).max()) == 0


def _exact_product(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """a*b if float32 holds it exactly: a factor is a power of two, and nothing overflows or gets too small."""
    if not (_powers_of_two(b) or _powers_of_two(a)):
        return None
    product = np.asarray(a * b)
    size = product.view(u4) << u4(1)  # without the sign; from 2^-126 on and below infinity in one comparison
    if int((size - u4(0x01000000)).max()) < 0xFE000000:
        return product
    whole = (size >= u4(0x01000000)) | (a == 0) | (b == 0)
    return product if int(size.max()) < 0xFF000000 and whole.all() else None


def _round_to_odd(product: np.ndarray, addend: np.ndarray, total: np.ndarray) -> np.ndarray:
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    bits = np.asarray(total, f8).view(i8)
    inexact_even = ((error > 0) | (error < 0)) & ((bits & 1) == 0)
    if not inexact_even.any():
        return np.asarray(total, f8)
    step = np.where((error > 0) == (total > 0), i8(1), i8(-1))
    return np.where(inexact_even, bits + step, bits).view(f8)


def _fma_odd(a, b, c) -> np.ndarray:
    """a*b + c in float64, rounded to odd, so that a later rounding to half the digits or fewer is right."""
    product = np.asarray(a).astype(f8) * np.asarray(b).astype(f8)
    addend = np.asarray(c).astype(f8)
    return _round_to_odd(*np.broadcast_arrays(product, addend, product + addend))


def fma16(a, b, c) -> np.ndarray:
    """float16 a*b + c with one rounding."""
    return _fma_odd(a, b, c).astype(np.float16)


def to_u32(value: np.ndarray) -> np.ndarray:
    """Float to uint32: truncate, saturate, NaN to 0."""
    wide = np.nan_to_num(np.asarray(value).astype(f8), nan=0.0, posinf=2.0**33, neginf=-1.0)
    return np.clip(np.trunc(wide), 0.0, 4294967295.0).astype(u8).astype(u4)


def to_i32(value: np.ndarray) -> np.ndarray:
    """Float to int32: truncate, saturate, NaN to 0."""
    wide = np.nan_to_num(np.asarray(value).astype(f8), nan=0.0, posinf=2.0**33, neginf=-(2.0**33))
    return np.clip(np.trunc(wide), -2147483648.0, 2147483647.0).astype(i8).astype(i4).view(u4)


def bf16_bits(value: np.ndarray) -> np.ndarray:
    """float32 to bfloat16 bits (in uint32), round to nearest even; NaN stays NaN and becomes quiet."""
    bits = np.asarray(value).view(u4)
    upper = bits >> u4(16)
    rounded = (bits + u4(0x7FFF) + (upper & u4(1))) >> u4(16)
    nan = np.isnan(value)
    return np.where(nan, upper | u4(0x40), rounded) if nan.any() else rounded


def pack_bf16(low, high) -> np.ndarray:
    """Two float32 to packed bfloat16."""
    return bf16_bits(low) | (bf16_bits(high) << u4(16))


def pack_f16(low, high) -> np.ndarray:
    """Two float32 to packed float16, round to nearest even."""
    low, high = np.broadcast_arrays(low, high)
    return low.astype(np.float16).view(u2).astype(u4) | (high.astype(np.float16).view(u2).astype(u4) << u4(16))


def f16_toward_zero(value: np.ndarray) -> np.ndarray:
    """float32 to float16 bits, truncating; overflow saturates to the largest finite value."""
    half = np.asarray(value).astype(np.float16)
    away = np.abs(half.astype(f4)) > np.abs(value)
    return np.where(away, half.view(u2) - u2(1), half.view(u2)).astype(u4)


def clamp(value) -> np.ndarray:
    """Output clamp to [0, 1]; with DX10_CLAMP a NaN becomes 0."""
    return np.fmin(np.fmax(value, 0), 1)


def _signalling(value) -> np.ndarray:
    bits = np.ascontiguousarray(value)
    quiet = {2: u2(0x200), 4: u4(0x400000)}[bits.dtype.itemsize]
    return np.isnan(bits) & ((bits.view(quiet.dtype) & quiet) == 0)


def _extreme_num(function, a, b, negative: bool) -> np.ndarray:
    result = function(a, b)
    if ((a > b) | (a < b)).all():
        return result
    zero = (a == 0) & (b == 0)
    result = np.where(zero, np.where(np.signbit(a) == negative, a, b), result)
    return np.where(_signalling(a) | _signalling(b), a + b, result)


def max_num(a, b) -> np.ndarray:
    """IEEE maxNum with +0 above -0: a quiet NaN loses against a number, a signalling one gives a quiet NaN."""
    return _extreme_num(np.fmax, a, b, False)


def min_num(a, b) -> np.ndarray:
    """IEEE minNum with -0 below +0; NaNs as in max_num."""
    return _extreme_num(np.fmin, a, b, True)


def med3(a, b, c) -> np.ndarray:
    """The larger of the two that are not the maximum; a NaN anywhere gives the minimum, as the hardware does."""
    top = max_num(max_num(a, b), c)
    middle = np.where(top == a, max_num(b, c), np.where(top == b, max_num(a, c), max_num(a, b)))
    nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
    return np.where(nan, min_num(min_num(a, b), c), middle)


def maximum(a, b) -> np.ndarray:
    """IEEE 754-2019 maximum: a NaN wins, +0 is above -0."""
    return np.where((a == 0) & (b == 0), a + b, np.maximum(a, b))


def minimum(a, b) -> np.ndarray:
    """IEEE 754-2019 minimum: a NaN wins, -0 is below +0."""
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a), a, b), np.minimum(a, b))


def sine(turns) -> np.ndarray:
    """`v_sin_f32`: sine of an angle in turns, reduced exactly to a quarter turn first."""
    part = turns.astype(f8)
    part = part - np.rint(part)
    part = np.where(np.abs(part) > 0.25, np.copysign(0.5, part) - part, part)
    return np.sin(part * (2 * np.pi)).astype(f4)


def cosine(turns) -> np.ndarray:
    """`v_cos_f32`."""
    part = turns.astype(f8)
    return np.sin((0.25 - np.abs(part - np.rint(part))) * (2 * np.pi)).astype(f4)


def classify(value: np.ndarray, mask) -> np.ndarray:
    """`v_cmp_class_*`: whether the class bit of each value is set in `mask`."""
    tiny = np.finfo(value.dtype).tiny
    quiet_bit = {2: u2(0x200), 4: u4(0x400000), 8: u8(0x8000000000000)}[value.dtype.itemsize]
    bits = np.ascontiguousarray(value).view({2: u2, 4: u4, 8: u8}[value.dtype.itemsize])
    nan, negative, size = np.isnan(value), np.signbit(value), np.abs(value)
    quiet = (bits & quiet_bit) != 0
    finite_class = np.select([np.isinf(value), size >= tiny, size > 0], [0, 1, 2], 3)
    number = np.where(negative, 2 + finite_class, 9 - finite_class)
    number = np.where(nan, np.where(quiet, 1, 0), number).astype(u4)
    return ((np.asarray(mask) >> number) & u4(1)) != 0


def frexp_exponent(value: np.ndarray) -> np.ndarray:
    """Exponent such that the mantissa lies in [0.5, 1); 0 for zero, infinity and NaN."""
    _, exponent = np.frexp(value)
    return np.where(np.isfinite(value), exponent, 0).astype(i4).view(u4)


def frexp_mantissa(value: np.ndarray) -> np.ndarray:
    """Mantissa in [0.5, 1); infinity and NaN pass through."""
    mantissa, _ = np.frexp(value)
    return np.where(np.isfinite(value), mantissa, value)


def _power(value: np.ndarray) -> np.ndarray:
    """Biased exponent field of float32."""
    return (np.ascontiguousarray(value).view(u4) >> u4(23) & u4(0xFF)).astype(i4)


def div_fixup(quotient, denominator, numerator) -> np.ndarray:
    """`v_div_fixup_f32`: special cases of a division whose quotient is already refined; a NaN there is an overflow."""
    q, d, m = np.broadcast_arrays(quotient, denominator, numerator)
    power_d, power_m = _power(d), _power(m)
    infinite = (d == 0) | np.isinf(m)
    conditions = [
        np.isnan(m),
        np.isnan(d),
        ((d == 0) & (m == 0)) | (np.isinf(d) & np.isinf(m)),
        infinite,
        np.isinf(d) | (m == 0) | (power_m - power_d < -150),
    ]
    zero, inf = f4(0), f4(np.inf)
    size = np.select(conditions[3:], [inf, zero], np.where(np.isnan(q), inf, np.abs(q)))
    signed = np.where(np.signbit(d) != np.signbit(m), -size, size)
    return np.select(conditions[:3], [m, d, u4(0xFFC00000).view(f4)], signed).astype(f4)


def div_scale(source, denominator, numerator) -> tuple[np.ndarray, np.ndarray]:
    """`v_div_scale_f32`: scaled operand and whether the final `v_div_fmas_f32` must rescale.

    `source` equals denominator or numerator, whichever the instruction scales.
    """
    s, d, m = np.broadcast_arrays(source, denominator, numerator)
    tiny, one, up, down = f4(2.0**-126), f4(1), f4(2.0**64), f4(2.0**-64)
    power_d, power_m = _power(d), _power(m)
    reciprocal, quotient = np.abs(one / d), np.abs(m / d)
    huge = (reciprocal > 0) & (reciprocal < tiny)
    small = (quotient > 0) & (quotient < tiny)
    is_d, is_m = s == d, s == m
    conditions = [(d == 0) | (m == 0), power_m - power_d >= 96, power_d == 0, huge & small, huge, small, power_m <= 23]
    factors = [f4(np.nan), np.where(is_d, up, one), up, np.where(is_d, down, one), down, np.where(is_m, up, one), up]
    flags = [False, True, False, True, False, True, False]
    return s * np.select(conditions, factors, one).astype(f4), np.select(conditions, flags, False)


def div_fmas(a, b, c, rescale) -> np.ndarray:
    """`v_div_fmas_f32`: fma that undoes the scaling of `v_div_scale_f32` where `rescale`, rounded once at the end."""
    scale = np.where(rescale, np.where(np.abs(c) >= f4(2.0), f8(2.0**64), f8(2.0**-64)), f8(1.0))
    return (_fma_odd(a, b, c) * scale).astype(f4)
