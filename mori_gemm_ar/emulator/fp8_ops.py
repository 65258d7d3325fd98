# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""e4m3fn: bytes to float32 and back by bit arithmetic, and the conversion instructions.

1 sign, 4 exponent (bias 7) and 3 mantissa bits; denormals; 0x7f and 0xff are NaN and there is no infinity.
"""

from __future__ import annotations

import numpy as np

from mori_gemm_ar.emulator.emit import Emitter, handles
from mori_gemm_ar.emulator.sources import source
from mori_gemm_ar.errors import IsaError
from mori_gemm_ar.isa import Instruction

_i4, _u4, _f4 = np.int32, np.uint32, np.float32
_FIELDS = _i4(-0x78100000)  # sign, four exponent and three mantissa bits where float32 has them
REBIAS_EXPONENT = 120  # of the power of two between what those fields mean in float32 and the value
_REBIAS = _f4(2.0**REBIAS_EXPONENT)
_SELECT = {"WORD_0": 0, "WORD_1": 16, "BYTE_0": 0, "BYTE_1": 8, "BYTE_2": 16, "BYTE_3": 24, "DWORD": 0}


def decode_e4m3(codes: np.ndarray) -> np.ndarray:
    """float32 of e4m3fn bytes (any shape, contiguous uint8)."""
    wide = codes.view(np.int8).astype(_i4)
    wide <<= _i4(20)
    wide &= _FIELDS
    values = wide.view(_f4)
    values *= _REBIAS
    nan = codes & np.uint8(0x7F) == np.uint8(0x7F)
    if nan.any():
        values[nan] = np.nan
    return values


def decode_planes(words: np.ndarray, factors: np.ndarray | np.float32 = _REBIAS) -> np.ndarray:
    """float32 of four e4m3fn values in each of (n, size) contiguous uint32, as (n, 4, size), lowest byte first.

    `factors` holds 2^REBIAS_EXPONENT times the scale of each value, in a shape that broadcasts.
    """
    n, size = words.shape
    signed, fields = words.view(_i4), np.empty((n, 4, size), _i4)
    for byte in range(3):
        np.left_shift(signed, _i4(24 - 8 * byte), out=fields[:, byte])
    # Arithmetic, so that the sign stays on top.
    np.right_shift(fields[:, :3], _i4(4), out=fields[:, :3])
    np.right_shift(signed, _i4(4), out=fields[:, 3])
    fields &= _FIELDS
    values = fields.view(_f4)
    values *= factors
    sizes = words.view(np.uint8) & np.uint8(0x7F)
    if sizes.max(initial=0) == 0x7F:
        values[(sizes == np.uint8(0x7F)).reshape(n, size, 4).swapaxes(1, 2)] = np.nan
    return values


def encode_e4m3(values: np.ndarray) -> np.ndarray:
    """e4m3fn bits, in uint32, of float32: round to nearest even; what rounds past 448, infinity and NaN give NaN."""
    values = np.asarray(values, _f4)
    bits = values.view(_u4)
    size = bits & _u4(0x7FFFFFFF)
    rounded = (size + _u4(0x7FFFF) + ((size >> _u4(20)) & _u4(1))) >> _u4(20)
    normal = np.minimum(rounded - np.minimum(rounded, _u4(120 << 3)), _u4(0x7F))
    with np.errstate(over="ignore", invalid="ignore"):
        small = np.rint(np.minimum(np.abs(values), _f4(1.0)) * _f4(512.0))
    tiny = size < _u4(121 << 23)
    code = np.where(tiny, np.where(tiny, small, _f4(0.0)).astype(_u4), normal)
    return code | (bits >> _u4(24)) & _u4(0x80)


def unpack_e4m3(words: np.ndarray, shift: int) -> np.ndarray:
    """float32 of the byte of each word that starts at bit `shift`."""
    return decode_e4m3(np.ascontiguousarray((words >> _u4(shift)).astype(np.uint8)))


@handles("v_cvt_pk_fp8_f32")
def _to_fp8(e: Emitter, i: Instruction) -> None:
    """Two values into the half of the destination that op_sel[2] of the text names; the other half stays."""
    select = i.bits("op_sel", (0, 0, 0))
    if any(select[:-1]):
        raise IsaError(f"{i}: op_sel may name the destination half only")
    low, high = source(e, i, 1, "f"), source(e, i, 2, "f")
    pair = f"(encode_e4m3({low}) | (encode_e4m3({high}) << u4(8))).astype(u2)"
    e.line(f"np.copyto({e.vdst(i.operands[0], 'w', select[-1])}, {pair}, where=k)")


@handles("v_cvt_pk_f32_fp8")
def _pair_from_fp8(e: Emitter, i: Instruction) -> None:
    destination = i.operands[0].reg
    if destination is None or destination.count != 2:
        raise IsaError(f"{i}: destination must be a pair of vector registers")
    shift = _selection(i, 0)
    word = e.temp(f"{e.src(i.operands[1])} + C0")
    low, high = (e.temp(f"unpack_e4m3({word}, {shift + more}).view(u4)") for more in (0, 8))
    for part, value in zip(destination, (low, high), strict=True):
        e.line(f"np.copyto({e.vreg(part)}, {value}, where=k)")
    e.wrote(destination)


@handles("v_cvt_f32_fp8")
def _from_fp8(e: Emitter, i: Instruction) -> None:
    e.put(i.operands[0], f"unpack_e4m3({e.src(i.operands[1])} + C0, {_selection(i, 0)})", "f")


def _selection(i: Instruction, default: int) -> int:
    """Bit at which the sub-word starts that an SDWA source names."""
    if i.encoding != "sdwa":
        if i.encoding not in ("e32", ""):
            raise IsaError(f"{i}: only the e32 and sdwa forms are modelled")
        return default
    if i.modifiers.get("dst_sel", "DWORD") != "DWORD":
        raise IsaError(f"{i}: dst_sel is not modelled")
    return _SELECT[i.modifiers.get("src0_sel", "DWORD")]
