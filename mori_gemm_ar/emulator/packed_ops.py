# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""16-bit and packed vector instructions, and moves between lanes through the LDS crossbar."""

from __future__ import annotations

import numpy as np

from mori_gemm_ar.emulator.emit import HALVES, Emitter, handles
from mori_gemm_ar.emulator.sources import source, store, upper_half
from mori_gemm_ar.errors import IsaError
from mori_gemm_ar.isa import Instruction, Literal, Operand, Reg

# 16-bit instructions: name -> (source view, count, template giving a 16-bit array)
_HALF = {
    "v_add_f16": ("h", 2, "{0} + {1}"),
    "v_sub_f16": ("h", 2, "{0} - {1}"),
    "v_subrev_f16": ("h", 2, "{1} - {0}"),
    "v_mul_f16": ("h", 2, "{0} * {1}"),
    "v_max_f16": ("h", 2, "max_num({0}, {1})"),
    "v_min_f16": ("h", 2, "min_num({0}, {1})"),
    "v_fma_f16": ("h", 3, "fma16({0}, {1}, {2})"),
    "v_rcp_f16": ("h", 1, "(f4(1) / {0}.astype(f4)).astype(np.float16)"),
    "v_sqrt_f16": ("h", 1, "np.sqrt({0}.astype(f4)).astype(np.float16)"),
    "v_floor_f16": ("h", 1, "np.floor({0})"),
    "v_ceil_f16": ("h", 1, "np.ceil({0})"),
    "v_trunc_f16": ("h", 1, "np.trunc({0})"),
    "v_rndne_f16": ("h", 1, "np.rint({0})"),
    "v_cvt_f16_u16": ("w", 1, "{0}.astype(np.float16)"),
    "v_cvt_f16_i16": ("j", 1, "{0}.astype(np.float16)"),
    "v_add_u16": ("w", 2, "{0} + {1}"),
    "v_sub_u16": ("w", 2, "{0} - {1}"),
    "v_subrev_u16": ("w", 2, "{1} - {0}"),
    "v_mul_lo_u16": ("w", 2, "{0} * {1}"),
    "v_mad_u16": ("w", 3, "{0} * {1} + {2}"),
    "v_max_u16": ("w", 2, "np.maximum({0}, {1})"),
    "v_min_u16": ("w", 2, "np.minimum({0}, {1})"),
    "v_max_i16": ("j", 2, "np.maximum({0}, {1})"),
    "v_min_i16": ("j", 2, "np.minimum({0}, {1})"),
    "v_lshlrev_b16": ("w", 2, "{1} << ({0} & u2(15))"),
    "v_lshrrev_b16": ("w", 2, "{1} >> ({0} & u2(15))"),
    "v_ashrrev_i16": ("j", 2, "{1} >> ({0} & np.int16(15))"),
}
_PACKED16 = {
    "v_pk_add_f16": ("h", 2, "{0} + {1}"),
    "v_pk_mul_f16": ("h", 2, "{0} * {1}"),
    "v_pk_max_f16": ("h", 2, "max_num({0}, {1})"),
    "v_pk_min_f16": ("h", 2, "min_num({0}, {1})"),
    "v_pk_fma_f16": ("h", 3, "fma16({0}, {1}, {2})"),
    "v_pk_add_u16": ("w", 2, "{0} + {1}"),
    "v_pk_sub_u16": ("w", 2, "{0} - {1}"),
    "v_pk_add_i16": ("j", 2, "{0} + {1}"),
    "v_pk_sub_i16": ("j", 2, "{0} - {1}"),
    "v_pk_mul_lo_u16": ("w", 2, "{0} * {1}"),
    "v_pk_mad_u16": ("w", 3, "{0} * {1} + {2}"),
    "v_pk_max_u16": ("w", 2, "np.maximum({0}, {1})"),
    "v_pk_min_u16": ("w", 2, "np.minimum({0}, {1})"),
    "v_pk_max_i16": ("j", 2, "np.maximum({0}, {1})"),
    "v_pk_min_i16": ("j", 2, "np.minimum({0}, {1})"),
    "v_pk_lshlrev_b16": ("w", 2, "{1} << ({0} & u2(15))"),
    "v_pk_lshrrev_b16": ("w", 2, "{1} >> ({0} & u2(15))"),
    "v_pk_ashrrev_i16": ("j", 2, "{1} >> ({0} & np.int16(15))"),
}
_PACKED32 = {
    "v_pk_add_f32": (2, "np.add({0}, {1})"),
    "v_pk_mul_f32": (2, "np.multiply({0}, {1})"),
    "v_pk_fma_f32": (3, "fma32({0}, {1}, {2})"),
}
# Most 16-bit instructions clear the upper half of their destination; those with op_sel write one half only.
_KEEP_OTHER_HALF = ("v_fma_f16", "v_mad_u16")
_NUMPY16 = {"h": "np.float16", "w": "u2", "j": "np.int16"}


@handles(*_HALF)
def _half(e: Emitter, i: Instruction) -> None:
    view, count, template = _HALF[i.name]
    sources = [source(e, i, n + 1, view) for n in range(count)]
    result = e.temp(f"np.asarray({template.format(*sources)}, dtype={_NUMPY16[view if 'cvt' not in i.name else 'h']})")
    if i.name in _KEEP_OTHER_HALF:
        e.line(f"np.copyto({e.vdst(i.operands[0], 'w', upper_half(i))}, {result}.view(u2), where=k)")
    else:
        store(e, i, f"{result}.view(u2).astype(u4)", "u")
    if i.encoding == "dpp":
        e.line("k = k0")


@handles("v_pack_b32_f16")
def _pack_halves(e: Emitter, i: Instruction) -> None:
    low, high = source(e, i, 1, "w"), source(e, i, 2, "w")
    store(e, i, f"({low}).astype(u4) | (({high}).astype(u4) << u4(16))", "u")


def _packed_half_source(e: Emitter, i: Instruction, position: int, view: str, upper_result: bool) -> str:
    operand = i.operands[position]
    select = i.bits("op_sel_hi", (1, 1, 1)) if upper_result else i.bits("op_sel", (0, 0, 0))
    negate = i.bits("neg_hi" if upper_result else "neg_lo", (0, 0, 0))
    half = select[position - 1]
    if isinstance(operand.value, Literal) and half == 1:
        # An inline float is float16 with nothing above it; an integer is 32 bits wide.
        value = operand.value.value
        upper = 0 if isinstance(value, float) else value >> 16 & 0xFFFF
        text = e.constant(np.uint16(upper).view(HALVES[view]))
    else:
        text = e.src(operand, view, half)
    if negate[position - 1] and view != "h":
        raise IsaError(f"{i}: an integer source cannot be negated")
    return f"np.negative({text})" if negate[position - 1] else text


@handles(*_PACKED16)
def _packed16(e: Emitter, i: Instruction) -> None:
    view, count, template = _PACKED16[i.name]
    parts = []
    for upper in (False, True):
        sources = [_packed_half_source(e, i, n + 1, view, upper) for n in range(count)]
        text = template.format(*sources)
        if "clamp" in i.modifiers:
            if view != "h":
                raise IsaError(f"{i}: integer clamp is not modelled")
            text = f"clamp({text})"
        parts.append(e.temp(f"np.asarray({text}, dtype={_NUMPY16[view]}).view(u2).astype(u4)"))
    e.put(i.operands[0], f"{parts[0]} | ({parts[1]} << u4(16))")


def _packed_word_source(e: Emitter, i: Instruction, position: int, upper_result: bool, view: str) -> str:
    operand = i.operands[position]
    select = i.bits("op_sel_hi", (1, 1, 1)) if upper_result else i.bits("op_sel", (0, 0, 0))
    negate = i.bits("neg_hi" if upper_result else "neg_lo", (0, 0, 0))
    word = select[position - 1]
    reg = operand.reg
    if reg is not None:
        text = e.src(Operand(Reg(reg.file, reg.index + word)), view)
    elif word == 0 or (isinstance(operand.value, Literal) and operand.value.value == 0):
        text = e.src(Operand(operand.value), view)
    else:
        raise IsaError(f"{i}: the upper word of a constant is not modelled")
    return f"np.negative({text})" if negate[position - 1] else text


@handles(*_PACKED32)
def _packed32(e: Emitter, i: Instruction) -> None:
    count, template = _PACKED32[i.name]
    destination = i.operands[0].reg
    if destination is None or destination.count != 2:
        raise IsaError(f"{i}: destination must be a pair of vector registers")
    results = []
    for upper in (False, True):
        sources = [_packed_word_source(e, i, n + 1, upper, "f") for n in range(count)]
        text = template.format(*sources)
        results.append(e.temp(f"clamp({text})" if "clamp" in i.modifiers else text))
    for part, result in zip(destination, results, strict=True):
        e.put(Operand(part), result, "f")


@handles("v_pk_mov_b32")
def _packed_move(e: Emitter, i: Instruction) -> None:
    destination = i.operands[0].reg
    assert destination is not None
    low, high = i.bits("op_sel", (0, 0))
    first, second = i.operands[1], i.operands[2]
    texts = []
    for operand, word in ((first, low), (second, high)):
        reg = operand.reg
        texts.append(e.src(Operand(Reg(reg.file, reg.index + word)) if reg else operand))
    values = [e.temp(f"{text} + C0") for text in texts]
    for part, value in zip(destination, values, strict=True):
        e.put(Operand(part), value)


@handles("v_fma_mix_f32", "v_fma_mixlo_f16", "v_fma_mixhi_f16")
def _mixed_fma(e: Emitter, i: Instruction) -> None:
    low, high = i.bits("op_sel", (0, 0, 0)), i.bits("op_sel_hi", (0, 0, 0))
    negate, absolute = i.bits("neg_lo", (0, 0, 0)), i.bits("neg_hi", (0, 0, 0))
    sources = []
    for n in range(3):
        operand = i.operands[n + 1]
        text = f"({e.src(operand, 'h', low[n])}).astype(f4)" if high[n] else e.src(operand, "f")
        text = f"np.abs({text})" if absolute[n] else text
        sources.append(f"np.negative({text})" if negate[n] else text)
    result = f"fma32({', '.join(sources)})"
    result = f"clamp({result})" if "clamp" in i.modifiers else result
    if i.name == "v_fma_mix_f32":
        e.put(i.operands[0], result, "f")
    else:
        half = 1 if i.name == "v_fma_mixhi_f16" else 0
        e.line(f"np.copyto({e.vdst(i.operands[0], 'h', half)}, ({result}).astype(np.float16), where=k)")


# ---- lane moves through the LDS crossbar --------------------------------------------------------------------
@handles("ds_bpermute_b32", "ds_permute_b32")
def _bpermute(e: Emitter, i: Instruction) -> None:
    function = "bpermute" if i.name == "ds_bpermute_b32" else "permute"
    address = f"{e.src(i.operands[1])} + u4({i.option('offset')})"
    e.put(i.operands[0], f"{function}({address}, {e.src(i.operands[2])}, k)")


@handles("ds_swizzle_b32")
def _swizzle(e: Emitter, i: Instruction) -> None:
    lane = np.arange(64)
    text = i.modifiers.get("offset", "0")
    if text.startswith("swizzle("):
        offset = _named_swizzle(text[8:-1])
    else:
        offset = int(text, 0)
    if offset >= 0xC000:
        raise IsaError(f"{i}: rotating swizzles are not modelled")
    if offset & 0x8000:
        source_lane = lane // 4 * 4 + np.array([offset >> 2 * (n % 4) & 3 for n in range(64)])
    else:
        keep, add, flip = offset & 31, offset >> 5 & 31, offset >> 10 & 31
        source_lane = lane // 32 * 32 + (((lane % 32) & keep | add) ^ flip)
    value = e.src(i.operands[1])
    e.put(i.operands[0], f"swizzle({value}, {e.constant(source_lane)}, k)")


def _named_swizzle(text: str) -> int:
    parts = [part.strip().strip('"') for part in text.split(",")]
    if parts[0] == "BITMASK_PERM":
        keep = add = flip = 0
        for position, char in zip((4, 3, 2, 1, 0), parts[1], strict=True):
            keep |= (char in "pi") << position
            flip |= (char == "i") << position
            add |= (char == "1") << position
        return keep | add << 5 | flip << 10
    if parts[0] == "QUAD_PERM":
        return 0x8000 | sum(int(p) << 2 * n for n, p in enumerate(parts[1:]))
    if parts[0] == "SWAP":
        return 31 | int(parts[1]) << 10
    if parts[0] == "REVERSE":
        return 31 | (int(parts[1]) - 1) << 10
    if parts[0] == "BROADCAST":
        return (32 - int(parts[1])) & 31 | int(parts[2]) << 5
    raise IsaError(f"swizzle {text!r} is not known")
