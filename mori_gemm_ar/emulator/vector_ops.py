# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Vector ALU instructions on 32 and 64 bits: VOP1, VOP2, VOP3, VOPC."""

from __future__ import annotations

import numpy as np

from mori_gemm_ar.emulator.emit import Emitter, handles
from mori_gemm_ar.emulator.sources import source, store
from mori_gemm_ar.isa import VCC, Instruction, Literal, Operand

# One ufunc: (view, ufunc). Written straight into the destination under the mask.
_UFUNC = {
    "v_add_u32": ("u", "np.add"),
    "v_sub_u32": ("u", "np.subtract"),
    "v_subrev_u32": ("u", "~np.subtract"),
    "v_and_b32": ("u", "np.bitwise_and"),
    "v_or_b32": ("u", "np.bitwise_or"),
    "v_xor_b32": ("u", "np.bitwise_xor"),
    "v_mul_lo_u32": ("u", "np.multiply"),
    "v_min_u32": ("u", "np.minimum"),
    "v_max_u32": ("u", "np.maximum"),
    "v_min_i32": ("i", "np.minimum"),
    "v_max_i32": ("i", "np.maximum"),
    "v_add_f32": ("f", "np.add"),
    "v_sub_f32": ("f", "np.subtract"),
    "v_subrev_f32": ("f", "~np.subtract"),
    "v_mul_f32": ("f", "np.multiply"),
}
# name -> (destination view, source views, template). Views: u i f (32 bit), q Q d (64 bit), w j h (16 bit).
_EXPRESSIONS = {
    "v_mov_b32": ("u", "u", "{0}"),
    "v_not_b32": ("u", "u", "~{0}"),
    "v_bfrev_b32": ("u", "u", "reverse_bits({0} | C0)"),
    "v_ffbh_u32": ("u", "u", "leading_zeros({0} | C0)"),
    "v_ffbh_i32": ("u", "u", "leading_signs({0} | C0)"),
    "v_ffbl_b32": ("u", "u", "first_one({0} | C0)"),
    "v_bcnt_u32_b32": ("u", "uu", "popcount({0}) + {1}"),
    "v_xnor_b32": ("u", "uu", "~({0} ^ {1})"),
    "v_lshlrev_b32": ("u", "uu", "{1} << ({0} & C31)"),
    "v_lshrrev_b32": ("u", "uu", "{1} >> ({0} & C31)"),
    "v_ashrrev_i32": ("i", "ii", "{1} >> ({0} & i4(31))"),
    "v_lshlrev_b64": ("q", "uq", "{1} << ({0} & u4(63)).astype(u8)"),
    "v_lshrrev_b64": ("q", "uq", "{1} >> ({0} & u4(63)).astype(u8)"),
    "v_ashrrev_i64": ("q", "uQ", "({1} >> ({0} & u4(63)).astype(i8)).view(u8)"),
    "v_mul_hi_u32": ("u", "uu", "mul_hi_u({0}, {1})"),
    "v_mul_hi_i32": ("u", "uu", "mul_hi_i({0}.view(i4), {1}.view(i4))"),
    "v_mul_u32_u24": ("u", "uu", "({0} & C24) * ({1} & C24)"),
    "v_mul_hi_u32_u24": ("u", "uu", "mul_hi_u({0} & C24, {1} & C24)"),
    "v_mul_i32_i24": ("u", "uu", "(sign_extend({0}, 24) * sign_extend({1}, 24)).view(u4)"),
    "v_mad_u32_u24": ("u", "uuu", "({0} & C24) * ({1} & C24) + {2}"),
    "v_mad_i32_i24": ("u", "uuu", "(sign_extend({0}, 24) * sign_extend({1}, 24)).view(u4) + {2}"),
    "v_add3_u32": ("u", "uuu", "{0} + {1} + {2}"),
    "v_xad_u32": ("u", "uuu", "({0} ^ {1}) + {2}"),
    "v_lshl_add_u32": ("u", "uuu", "({0} << ({1} & C31)) + {2}"),
    "v_add_lshl_u32": ("u", "uuu", "({0} + {1}) << ({2} & C31)"),
    "v_lshl_or_b32": ("u", "uuu", "({0} << ({1} & C31)) | {2}"),
    "v_and_or_b32": ("u", "uuu", "({0} & {1}) | {2}"),
    "v_or3_b32": ("u", "uuu", "{0} | {1} | {2}"),
    "v_bfi_b32": ("u", "uuu", "({0} & {1}) | (~{0} & {2})"),
    "v_bfm_b32": ("u", "uu", "((C1 << ({0} & C31)) - C1) << ({1} & C31)"),
    "v_bfe_u32": ("u", "uuu", "bfe_u({0}, {1}, {2})"),
    "v_bfe_i32": ("u", "uuu", "bfe_i({0}, {1}, {2})"),
    "v_alignbit_b32": ("u", "uuu", "align_bits({0}, {1}, {2})"),
    "v_alignbyte_b32": ("u", "uuu", "align_bits({0}, {1}, ({2} & u4(3)) << u4(3))"),
    "v_perm_b32": ("u", "uuu", "permute_bytes({0}, {1}, {2})"),
    "v_sad_u32": ("u", "uuu", "np.maximum({0}, {1}) - np.minimum({0}, {1}) + {2}"),
    "v_min3_u32": ("u", "uuu", "np.minimum(np.minimum({0}, {1}), {2})"),
    "v_max3_u32": ("u", "uuu", "np.maximum(np.maximum({0}, {1}), {2})"),
    "v_min3_i32": ("i", "iii", "np.minimum(np.minimum({0}, {1}), {2})"),
    "v_max3_i32": ("i", "iii", "np.maximum(np.maximum({0}, {1}), {2})"),
    "v_med3_u32": ("u", "uuu", "np.maximum(np.minimum({0}, {1}), np.minimum(np.maximum({0}, {1}), {2}))"),
    "v_med3_i32": ("i", "iii", "np.maximum(np.minimum({0}, {1}), np.minimum(np.maximum({0}, {1}), {2}))"),
    "v_lshl_add_u64": ("q", "quq", "({0} << ({1} & u4(7)).astype(u8)) + {2}"),
    "v_mbcnt_lo_u32_b32": ("u", "uu", "mbcnt({0}, {1}, False)"),
    "v_mbcnt_hi_u32_b32": ("u", "uu", "mbcnt({0}, {1}, True)"),
    # float32
    "v_max_f32": ("f", "ff", "max_num({0}, {1})"),
    "v_min_f32": ("f", "ff", "min_num({0}, {1})"),
    "v_max3_f32": ("f", "fff", "max_num(max_num({0}, {1}), {2})"),
    "v_min3_f32": ("f", "fff", "min_num(min_num({0}, {1}), {2})"),
    "v_med3_f32": ("f", "fff", "med3({0}, {1}, {2})"),
    "v_maximum3_f32": ("f", "fff", "maximum(maximum({0}, {1}), {2})"),
    "v_minimum3_f32": ("f", "fff", "minimum(minimum({0}, {1}), {2})"),
    "v_fma_f32": ("f", "fff", "fma32({0}, {1}, {2})"),
    "v_trunc_f32": ("f", "f", "np.trunc({0})"),
    "v_ceil_f32": ("f", "f", "np.ceil({0})"),
    "v_floor_f32": ("f", "f", "np.floor({0})"),
    "v_rndne_f32": ("f", "f", "np.rint({0})"),
    "v_fract_f32": ("f", "f", "np.minimum({0} - np.floor({0}), f4(0.99999994))"),
    "v_rcp_f32": ("f", "f", "f4(1) / {0}"),
    "v_rcp_iflag_f32": ("f", "f", "f4(1) / {0}"),
    "v_rsq_f32": ("f", "f", "(1.0 / np.sqrt({0}.astype(f8))).astype(f4)"),
    "v_sqrt_f32": ("f", "f", "np.sqrt({0})"),
    "v_exp_f32": ("f", "f", "np.exp2({0}.astype(f8)).astype(f4)"),
    "v_log_f32": ("f", "f", "np.log2({0}.astype(f8)).astype(f4)"),
    "v_sin_f32": ("f", "f", "sine({0})"),
    "v_cos_f32": ("f", "f", "cosine({0})"),
    "v_ldexp_f32": ("f", "fi", "np.ldexp({0}.astype(f8), np.clip({1}, -1000, 1000)).astype(f4)"),
    "v_frexp_exp_i32_f32": ("u", "f", "frexp_exponent({0})"),
    "v_frexp_mant_f32": ("f", "f", "frexp_mantissa({0})"),
    "v_div_fixup_f32": ("f", "fff", "div_fixup({0}, {1}, {2})"),
    # conversions
    "v_cvt_f32_u32": ("f", "u", "{0}.astype(f4)"),
    "v_cvt_f32_i32": ("f", "i", "{0}.astype(f4)"),
    "v_cvt_u32_f32": ("u", "f", "to_u32({0})"),
    "v_cvt_i32_f32": ("u", "f", "to_i32({0})"),
    "v_cvt_f16_f32": ("u", "f", "({0}.astype(np.float16).view(u2)).astype(u4)"),
    "v_cvt_f32_f16": ("f", "h", "{0}.astype(f4)"),
    "v_cvt_f32_bf16": ("u", "w", "{0}.astype(u4) << u4(16)"),
    "v_cvt_pk_bf16_f32": ("u", "ff", "pack_bf16({0}, {1})"),
    "v_cvt_pk_f16_f32": ("u", "ff", "pack_f16({0}, {1})"),
    "v_cvt_pkrtz_f16_f32": ("u", "ff", "f16_toward_zero({0}) | (f16_toward_zero({1}) << C16)"),
    "v_cvt_f32_ubyte0": ("f", "u", "({0} & u4(255)).astype(f4)"),
    "v_cvt_f32_ubyte1": ("f", "u", "(({0} >> u4(8)) & u4(255)).astype(f4)"),
    "v_cvt_f32_ubyte2": ("f", "u", "(({0} >> u4(16)) & u4(255)).astype(f4)"),
    "v_cvt_f32_ubyte3": ("f", "u", "({0} >> u4(24)).astype(f4)"),
    # float64
    "v_add_f64": ("d", "dd", "{0} + {1}"),
    "v_mul_f64": ("d", "dd", "{0} * {1}"),
    "v_cvt_f64_f32": ("d", "f", "{0}.astype(f8)"),
    "v_cvt_f32_f64": ("f", "d", "{0}.astype(f4)"),
    "v_cvt_f64_u32": ("d", "u", "{0}.astype(f8)"),
    "v_cvt_f64_i32": ("d", "i", "{0}.astype(f8)"),
    "v_cvt_u32_f64": ("u", "d", "to_u32({0})"),
    "v_cvt_i32_f64": ("u", "d", "to_i32({0})"),
    "v_ldexp_f64": ("d", "di", "np.ldexp({0}, np.clip({1}, -4000, 4000))"),
}
_COMPARE = {"eq": "==", "lg": "!=", "ne": "!=", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_NEGATED = {"neq": "==", "nlg": "lg", "ngt": ">", "nge": ">=", "nlt": "<", "nle": "<="}
_VIEW_OF_TYPE = {
    "u32": "u",
    "i32": "i",
    "f32": "f",
    "u64": "q",
    "i64": "Q",
    "f64": "d",
    "u16": "w",
    "i16": "j",
    "f16": "h",
}


def _saturating(e: Emitter, i: Instruction) -> None:
    """`clamp` of integer add and subtract: the exact result, limited to the range of the type."""
    a, b = (f"{source(e, i, p, 'u')}.astype(i8)" for p in (1, 2))
    a, b = (b, a) if "rev" in i.name else (a, b)
    e.put(i.operands[0], f"np.clip({a} {'+' if 'add' in i.name else '-'} {b}, 0, 4294967295).astype(u4)")


@handles(*_UFUNC)
def _ufunc(e: Emitter, i: Instruction) -> None:
    view, function = _UFUNC[i.name]
    if "clamp" in i.modifiers and i.name in ("v_add_u32", "v_sub_u32", "v_subrev_u32"):
        return _saturating(e, i)
    a, b = source(e, i, 1, view), source(e, i, 2, view)
    if function.startswith("~"):
        function, a, b = function[1:], b, a
    plain = i.encoding not in ("sdwa", "dpp") and not {"clamp", "mul2", "mul4", "div2"} & set(i.modifiers)
    if plain:
        e.line(f"{function}({a}, {b}, out={e.vdst(i.operands[0], view)}, where=k)")
    else:
        store(e, i, f"{function}({a}, {b})", view)
        _reset_mask(e, i)
    return None


def _reset_mask(e: Emitter, i: Instruction) -> None:
    if i.encoding == "dpp":
        e.line("k = k0")


@handles(*_EXPRESSIONS)
def _expression(e: Emitter, i: Instruction) -> None:
    view, views, template = _EXPRESSIONS[i.name]
    sources = [source(e, i, n + 1, v) for n, v in enumerate(views)]
    store(e, i, template.format(*sources), view)
    _reset_mask(e, i)


@handles("v_mul_legacy_f32")
def _mul_legacy(e: Emitter, i: Instruction) -> None:
    a, b = source(e, i, 1, "f"), source(e, i, 2, "f")
    store(e, i, f"np.where(({a} == 0) | ({b} == 0), f4(0), {a} * {b})", "f")


@handles("v_fmac_f32", "v_fmamk_f32", "v_fmaak_f32")
def _fmac(e: Emitter, i: Instruction) -> None:
    a, b = source(e, i, 1, "f"), source(e, i, 2, "f")
    c = e.src(Operand(i.operands[0].value), "f") if i.name == "v_fmac_f32" else source(e, i, 3, "f")
    store(e, i, f"fma32({a}, {b}, {c})", "f")
    _reset_mask(e, i)


@handles("v_mov_b64")
def _move64(e: Emitter, i: Instruction) -> None:
    value = i.operands[1].value
    # A 32-bit literal of a b64 move is sign-extended; src64 already masks to 64 bits.
    e.put64(
        i.operands[0], f"{e.src64(i.operands[1])} | u8(0)" if isinstance(value, Literal) else e.src64(i.operands[1])
    )


@handles("v_bitop3_b32")
def _bitop3(e: Emitter, i: Instruction) -> None:
    a, b, c = (source(e, i, p, "u") for p in (1, 2, 3))
    store(e, i, f"bitop3({a}, {b}, {c}, {i.option('bitop3')})", "u")


@handles("v_bitop3_b16")
def _bitop3_half(e: Emitter, i: Instruction) -> None:
    a, b, c = (f"({source(e, i, p, 'w')}).astype(u4)" for p in (1, 2, 3))
    e.put(i.operands[0], f"bitop3({a}, {b}, {c}, {i.option('bitop3')}) & u4(0xFFFF)")


@handles("v_mad_u64_u32", "v_mad_i64_i32")
def _mad64(e: Emitter, i: Instruction) -> None:
    kind = "u8" if i.name == "v_mad_u64_u32" else "i8"
    view = "u" if kind == "u8" else "i"
    a, b = (e.src(i.operands[p], view) for p in (2, 3))
    addend = e.temp(f"{e.src64(i.operands[4])} | u8(0)")
    product = e.temp(f"({a}.astype({kind}) * {b}.astype({kind})).view(u8)")
    result = e.temp(f"{product} + {addend}")
    if kind == "u8":
        e.put_lane_mask(i.operands[1], f"{result} < {addend}")
    else:  # the sign of the exact sum
        overflow = f"(({product} ^ {result}) & ({addend} ^ {result}))"
        e.put_lane_mask(i.operands[1], f"({overflow} ^ {result}).view(i8) < 0")
    e.put64(i.operands[0], result)


@handles("v_add_co_u32", "v_sub_co_u32", "v_subrev_co_u32", "v_addc_co_u32", "v_subb_co_u32", "v_subbrev_co_u32")
def _carry(e: Emitter, i: Instruction) -> None:
    """VOP2 form: d, vcc, a, b[, vcc]; VOP3 form names any pair."""
    a, b = (f"{e.src(i.operands[p])}.astype(i8)" for p in (2, 3))
    if "rev" in i.name:
        a, b = b, a
    sign = "+" if i.name.startswith("v_add") else "-"
    carry_in = f" {sign} {e.lane_mask(i.operands[4])}" if len(i.operands) == 5 else ""
    wide = e.temp(f"{a} {sign} {b}{carry_in}")
    e.put_lane_mask(i.operands[1], f"({wide} >> i8(32)) != 0")
    e.put(i.operands[0], f"{wide}.astype(u4)")


@handles("v_cndmask_b32")
def _conditional(e: Emitter, i: Instruction) -> None:
    mask = e.lane_mask(i.operands[3]) if len(i.operands) > 3 else e.lane_mask(Operand(VCC))
    view = "f" if any(o.neg or o.absolute for o in i.operands[1:3]) else "u"
    a, b = source(e, i, 1, view), source(e, i, 2, view)
    store(e, i, f"np.where({mask}, {b}, {a})", view)
    _reset_mask(e, i)


@handles("v_div_scale_f32")
def _div_scale(e: Emitter, i: Instruction) -> None:
    scaled, flag = f"t{e.temporaries + 1}", f"t{e.temporaries + 2}"
    e.temporaries += 2
    e.line(f"{scaled}, {flag} = div_scale({', '.join(e.src(i.operands[p], 'f') for p in (2, 3, 4))})")
    e.put_lane_mask(i.operands[1], flag)
    e.put(i.operands[0], scaled, "f")


@handles("v_div_fmas_f32")
def _div_fmas(e: Emitter, i: Instruction) -> None:
    a, b, c = (source(e, i, p, "f") for p in (1, 2, 3))
    store(e, i, f"div_fmas({a}, {b}, {c}, {e.lane_mask(Operand(VCC))})", "f")


def _compare(e: Emitter, i: Instruction) -> None:
    _, _, relation, kind = i.name.split("_")
    view = _VIEW_OF_TYPE[kind]
    if relation == "class":
        text = f"classify({source(e, i, 1, view)}, {e.src(i.operands[2])})"
    else:
        text = _relation(relation, source(e, i, 1, view), source(e, i, 2, view))
    e.put_lane_mask(i.operands[0], text)


def _relation(relation: str, a: str, b: str) -> str:
    if relation == "o":
        return f"~(np.isnan({a}) | np.isnan({b}))"
    if relation == "u":
        return f"np.isnan({a}) | np.isnan({b})"
    if relation in ("lg", "nlg"):
        text = f"(({a} < {b}) | ({a} > {b}))"
        return text if relation == "lg" else f"~{text}"
    if relation in _NEGATED:
        return f"~({a} {_NEGATED[relation]} {b})"
    return f"{a} {_COMPARE[relation]} {b}"


_RELATIONS = {
    "u32 i32 u64 i64 u16 i16": "lt eq le gt ne ge",
    "f32 f64 f16": "lt eq le gt lg ge o u nge nlg ngt nle neq nlt class",
}
for _types, _relations in _RELATIONS.items():
    handles(*(f"v_cmp_{r}_{t}" for t in _types.split() for r in _relations.split()))(_compare)


@handles("v_readfirstlane_b32")
def _read_first_lane(e: Emitter, i: Instruction) -> None:
    value = i.operands[1].reg
    if value is not None and value.file != "s":
        e.sput(i.operands[0], f"first_lane({e.vreg(value)}, k)")
    else:
        e.sput(i.operands[0], e.ssrc(i.operands[1]))


@handles("v_readlane_b32")
def _read_lane(e: Emitter, i: Instruction) -> None:
    value = i.operands[1].reg
    assert value is not None
    e.sput(i.operands[0], f"any_lane({e.vreg(value)}, {e.ssrc(i.operands[2])})")


@handles("v_writelane_b32")
def _write_lane(e: Emitter, i: Instruction) -> None:
    lane = e.temp(f"np.broadcast_to(np.asarray({e.ssrc(i.operands[2])}) & u4(63), (n,)).astype(np.intp)")
    e.line(f"{e.vdst(i.operands[0])}[np.arange(n), {lane}] = {e.ssrc(i.operands[1])}")


@handles("v_accvgpr_read_b32", "v_accvgpr_write_b32", "v_accvgpr_mov_b32")
def _accumulation_move(e: Emitter, i: Instruction) -> None:
    e.put(i.operands[0], e.src(i.operands[1]))


@handles("v_swap_b32")
def _swap(e: Emitter, i: Instruction) -> None:
    old = e.temp(f"{e.src(i.operands[0])}.copy()")
    e.put(i.operands[0], e.src(i.operands[1]))
    e.put(i.operands[1], old)


@handles("v_permlane16_swap_b32", "v_permlane32_swap_b32")
def _permlane_swap(e: Emitter, i: Instruction) -> None:
    width = 16 if "16" in i.name else 32
    i.has("bound_ctrl")  # acts on inactive source lanes only, whose registers count here as they are
    e.line(f"swap_rows({e.vdst(i.operands[0])}, {e.vdst(i.operands[1])}, {width}, k)")


@handles("v_nop")
def _no_operation(e: Emitter, i: Instruction) -> None:
    pass


def vector_namespace() -> dict[str, object]:
    """Constants that the templates name."""
    return {"C0": np.uint32(0), "C24": np.uint32(0xFFFFFF)}
