# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Functions that generated code calls: bit packing, conversions with the hardware's rounding, cross-lane moves."""

from __future__ import annotations

import numpy as np

u2, u4, u8, i4, i8, f4, f8 = np.uint16, np.uint32, np.uint64, np.int32, np.int64, np.float32, np.float64
_FULL = np.uint64(0xFFFFFFFFFFFFFFFF)
_32 = np.uint64(32)


# ---- masks and pairs -----------------------------------------------------------------------------------------
def lanes(condition: np.ndarray, k, n: int) -> np.ndarray:
    """An (n, 64) bool array from a condition, cleared in inactive lanes."""
    if condition.shape != (n, 64):
        condition = np.broadcast_to(condition, (n, 64))
    return condition if k is True else condition & k


def pack(mask: np.ndarray) -> np.ndarray:
    """(n, 64) bool to (n,) uint64, lane 0 in bit 0."""
    return np.packbits(mask, axis=1, bitorder="little").view(u8)[:, 0]


def unpack(bits: np.ndarray) -> np.ndarray:
    """(n,) uint64 to (n, 64) bool."""
    as_bytes = np.ascontiguousarray(bits).view(np.uint8).reshape(len(bits), 8)
    return np.unpackbits(as_bytes, axis=1, bitorder="little").view(np.bool_)


def execution_mask(bits: np.ndarray):
    """`True` when all lanes of all waves are active, else the (n, 64) mask."""
    return True if (bits == _FULL).all() else unpack(bits)


def join(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Two 32-bit halves to uint64."""
    return low.astype(u8) | (high.astype(u8) << _32)


def low32(value: np.ndarray) -> np.ndarray:
    """Lower half of a uint64."""
    return np.asarray(value).astype(u4)


def high32(value: np.ndarray) -> np.ndarray:
    """Upper half of a uint64."""
    return (value >> _32).astype(u4)


def lo16(value: np.ndarray) -> np.ndarray:
    """Lower 16 bits."""
    return value.astype(u2)


def lo16i(value: np.ndarray) -> np.ndarray:
    """Lower 16 bits as signed."""
    return value.astype(u2).view(np.int16)


def lo16f(value: np.ndarray) -> np.ndarray:
    """Lower 16 bits as float16."""
    return value.astype(u2).view(np.float16)


def sign_extend(value: np.ndarray, bits: int) -> np.ndarray:
    """Sign-extend the low `bits` of uint32 to int32."""
    shift = u4(32 - bits)
    return (value << shift).view(i4) >> i4(32 - bits)


# ---- integers ------------------------------------------------------------------------------------------------
def mul_hi_u(a, b) -> np.ndarray:
    """Upper 32 bits of the unsigned product."""
    return high32(np.asarray(a).astype(u8) * np.asarray(b).astype(u8))


def mul_hi_i(a, b) -> np.ndarray:
    """Upper 32 bits of the signed product."""
    return (np.asarray(a).astype(i8) * np.asarray(b).astype(i8) >> i8(32)).astype(i4).view(u4)


def bfe_u(value, offset, width) -> np.ndarray:
    """Unsigned bit field of width 0..31."""
    width = np.asarray(width) & u4(31)
    return (value >> (np.asarray(offset) & u4(31))) & ((u4(1) << width) - u4(1))


def bfe_i(value, offset, width) -> np.ndarray:
    """Signed bit field of width 0..31; bits past 31 repeat the sign."""
    offset = (np.asarray(offset) & u4(31)).view(i4)
    width = (np.asarray(width) & u4(31)).view(i4)
    shifted = np.asarray(value).view(i4) >> offset
    up = (i4(32) - width) & i4(31)
    return np.where(width == 0, i4(0), (shifted << up) >> up).view(u4)


def scalar_bfe(value: np.ndarray, control, bits: int, signed: bool) -> np.ndarray:
    """`s_bfe_*`: offset in control[5:0], width in control[22:16]."""
    value, control = np.broadcast_arrays(value, np.asarray(control, dtype=u4))
    kind = {(32, False): u4, (32, True): i4, (64, False): u8, (64, True): i8}[bits, signed]
    offset = (control & u4(bits - 1)).astype(kind)
    width = np.minimum((control >> u4(16)) & u4(0x7F), u4(bits)).astype(kind)
    up = kind(bits) - width
    shifted = value.view(kind) >> offset
    safe = np.where(width == 0, kind(0), up)
    result = (shifted << safe) >> safe
    return np.where(width == 0, kind(0), result).view(u8 if bits == 64 else u4)


def popcount(value: np.ndarray) -> np.ndarray:
    """Number of set bits of uint32 or uint64, as uint32."""
    return np.bitwise_count(value).astype(u4)


def first_one(value: np.ndarray) -> np.ndarray:
    """Position of the lowest set bit, or 0xffffffff."""
    lowest = value & (~value + value.dtype.type(1))
    position = popcount(lowest - value.dtype.type(1))
    return np.where(value == 0, u4(0xFFFFFFFF), position)


def leading_zeros(value: np.ndarray) -> np.ndarray:
    """Zeros above the highest set bit, or 0xffffffff for zero."""
    bits = value.dtype.itemsize * 8
    filled = value.copy()
    shift = 1
    while shift < bits:
        filled |= filled >> value.dtype.type(shift)
        shift *= 2
    return np.where(value == 0, u4(0xFFFFFFFF), u4(bits) - popcount(filled))


def leading_signs(value: np.ndarray) -> np.ndarray:
    """Equal bits from the top of an int32 given as uint32, or 0xffffffff for 0 and -1."""
    signed = value.view(i4)
    return leading_zeros((signed ^ (signed >> i4(31))).view(u4))


def reverse_bits(value: np.ndarray) -> np.ndarray:
    """Bit reversal of uint32 or uint64."""
    size = value.dtype.itemsize
    as_bytes = np.ascontiguousarray(value).view(np.uint8).reshape(*value.shape, size)[..., ::-1]
    bits = np.unpackbits(as_bytes, axis=-1).reshape(*value.shape, size, 8)[..., ::-1]
    return np.packbits(bits, axis=-1).reshape(*value.shape, size).view(value.dtype)[..., 0]


def permute_bytes(high, low, selector) -> np.ndarray:
    """`v_perm_b32`: bytes 0-3 come from `low`, 4-7 from `high`, 8-11 are sign fills, 12 is 0, above is 0xff."""
    high, low, selector = np.broadcast_arrays(high, low, selector)
    source = join(low, high)
    result = np.zeros(source.shape, u4)
    for byte in range(4):
        choice = (selector >> u4(8 * byte)) & u4(0xFF)
        plain = (source >> (np.minimum(choice, u4(7)).astype(u8) * u8(8))).astype(u4) & u4(0xFF)
        sign_at = (np.clip(choice, 8, 11).astype(u8) - u8(8)) * u8(16) + u8(15)
        fill = ((source >> sign_at) & u8(1)).astype(u4) * u4(0xFF)
        picked = np.where(choice <= 7, plain, np.where(choice <= 11, fill, np.where(choice == 12, u4(0), u4(0xFF))))
        result |= picked << u4(8 * byte)
    return result


def align_bits(high, low, shift) -> np.ndarray:
    """Lower 32 bits of {high, low} >> shift[4:0]."""
    high, low = np.broadcast_arrays(high, low)
    return low32(join(low, high) >> (np.asarray(shift) & u4(31)).astype(u8))


def mbcnt(mask, base, upper: bool) -> np.ndarray:
    """`v_mbcnt_*`: set bits of `mask` below this lane, plus `base`."""
    lane = np.arange(64, dtype=u4)
    position = np.clip(lane.astype(i4) - (32 if upper else 0), 0, 32).astype(u8)
    below = ((u8(1) << position) - u8(1)).astype(u4)
    return popcount(mask & below) + base


def bitop3(a, b, c, table: int) -> np.ndarray:
    """Bitwise function of three words by truth table; entry index is a*4 + b*2 + c."""
    if bin(table & 0xFF).count("1") > 4:
        return ~bitop3(a, b, c, ~table & 0xFF)
    result = a & u4(0)
    for entry in range(8):
        if table >> entry & 1:
            result = result | ((a if entry & 4 else ~a) & (b if entry & 2 else ~b) & (c if entry & 1 else ~c))
    return result


# ---- floats --------------------------------------------------------------------------------------------------
def fma32(a, b, c) -> np.ndarray:
    """float32 a*b + c with one rounding: float64 sum, corrected where double rounding could differ."""
    product = np.asarray(a).astype(f8) * np.asarray(b).astype(f8)
    addend = np.asarray(c).astype(f8)
    total = np.asarray(product + addend)
    bits = total.view(u8)
    risky = ((bits & u8(0x1FFFFFFF)) == u8(0x10000000)) | (np.abs(total) < f8(2.0**-126))
    if risky.any():
        product, addend, total = np.broadcast_arrays(product, addend, total)
        total = total.copy()
        total[risky] = _round_to_odd(product[risky], addend[risky], total[risky])
    return total.astype(f4)


def _round_to_odd(product: np.ndarray, addend: np.ndarray, total: np.ndarray) -> np.ndarray:
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    bits = np.array(total, dtype=f8).view(i8)
    inexact_even = ((error > 0) | (error < 0)) & ((bits & 1) == 0)
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
    bits = np.ascontiguousarray(value).view(u4)
    rounded = (bits + u4(0x7FFF) + ((bits >> u4(16)) & u4(1))) >> u4(16)
    return np.where(np.isnan(value), (bits >> u4(16)) | u4(0x40), rounded)


def pack_bf16(low, high) -> np.ndarray:
    """Two float32 to packed bfloat16."""
    low, high = np.broadcast_arrays(low, high)
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


# ---- across lanes --------------------------------------------------------------------------------------------
def first_lane(value: np.ndarray, k) -> np.ndarray:
    """Value of the first active lane of each wave (lane 0 when none is active)."""
    if k is True:
        return value[:, 0]
    return value[np.arange(len(value)), k.argmax(axis=1)]


def any_lane(value: np.ndarray, lane) -> np.ndarray:
    """Value of one lane per wave."""
    lane = np.broadcast_to(np.asarray(lane) & u4(63), (len(value),)).astype(np.intp)
    return value[np.arange(len(value)), lane]


def bpermute(address: np.ndarray, value: np.ndarray, k) -> np.ndarray:
    """Pull `value` from lane address/4; an inactive source lane gives 0."""
    if k is not True:
        value = np.where(k, value, u4(0))
    return np.take_along_axis(value, ((address >> u4(2)) & u4(63)).astype(np.intp), axis=1)


def permute(address: np.ndarray, value: np.ndarray, k) -> np.ndarray:
    """Push `value` to lane address/4; lanes nobody writes get 0, the highest writer wins."""
    result = np.zeros(value.shape, u4)
    lane = np.broadcast_to((address >> u4(2)) & u4(63), value.shape)
    for source in range(64):
        rows = np.arange(len(value)) if k is True else np.nonzero(k[:, source])[0]
        result[rows, lane[rows, source]] = value[rows, source]
    return result


def swizzle(value: np.ndarray, source: np.ndarray, k) -> np.ndarray:
    """`ds_swizzle`: lane i reads lane source[i]; an inactive source gives 0."""
    moved = value[:, source]
    return moved if k is True else np.where(k[:, source], moved, u4(0))


def dpp(value: np.ndarray, source: np.ndarray, valid: np.ndarray, writes: np.ndarray, k, bound: bool):
    """DPP: the lanes that are written, and the value that lane i gets from lane source[i].

    A source that does not exist or is inactive gives 0 with bound_ctrl; without it the lane is not written.
    """
    usable = np.broadcast_to(valid, value.shape) if k is True else valid & k[:, source]
    moved = value[:, source]
    if bound:
        moved, usable = np.where(usable, moved, u4(0)), True
    mask = usable & writes if k is True else usable & writes & k
    return np.broadcast_to(mask, value.shape), moved


def swap_rows(first: np.ndarray, second: np.ndarray, width: int, k) -> None:
    """`v_permlane16_swap` / `v_permlane32_swap`: odd rows of `first` change places with even rows of `second`."""
    n = len(first)
    a, b = first.reshape(n, 64 // (2 * width), 2, width), second.reshape(n, 64 // (2 * width), 2, width)
    upper, lower = a[:, :, 1].copy(), b[:, :, 0].copy()
    if k is True:
        a[:, :, 1], b[:, :, 0] = lower, upper
        return
    mask = k.reshape(n, 64 // (2 * width), 2, width)
    np.copyto(a[:, :, 1], lower, where=mask[:, :, 1])
    np.copyto(b[:, :, 0], upper, where=mask[:, :, 0])
