# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Functions that generated code calls: masks, integers and moves between lanes. `float_helpers` has the rest."""

from __future__ import annotations

import numpy as np

u2, u4, u8, i4, i8 = np.uint16, np.uint32, np.uint64, np.int32, np.int64
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
