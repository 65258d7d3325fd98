# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Scalar instructions: SOP1, SOP2, SOPK, SOPC and the harmless part of SOPP."""

from __future__ import annotations

import re

import numpy as np

from mori_gemm_ar.emulator.emit import Emitter, handles
from mori_gemm_ar.errors import IsaError
from mori_gemm_ar.isa import EXEC, Instruction, Literal, Operand, Token

# result expression over {0}, {1}; condition code expression over the same and {r}, or "" when SCC is kept
_BINARY32 = {
    "s_add_u32": ("{0} + {1}", "{r} < {0}"),
    "s_sub_u32": ("{0} - {1}", "{1} > {0}"),
    "s_add_i32": ("{0} + {1}", "((({0} ^ {r}) & ({1} ^ {r})) >> C31) != 0"),
    "s_sub_i32": ("{0} - {1}", "((({0} ^ {1}) & ({0} ^ {r})) >> C31) != 0"),
    "s_min_u32": ("np.minimum({0}, {1})", "{0} < {1}"),
    "s_max_u32": ("np.maximum({0}, {1})", "{0} >= {1}"),
    "s_and_b32": ("{0} & {1}", "{r} != 0"),
    "s_or_b32": ("{0} | {1}", "{r} != 0"),
    "s_xor_b32": ("{0} ^ {1}", "{r} != 0"),
    "s_andn2_b32": ("{0} & ~{1}", "{r} != 0"),
    "s_orn2_b32": ("{0} | ~{1}", "{r} != 0"),
    "s_nand_b32": ("~({0} & {1})", "{r} != 0"),
    "s_nor_b32": ("~({0} | {1})", "{r} != 0"),
    "s_xnor_b32": ("~({0} ^ {1})", "{r} != 0"),
    "s_lshl_b32": ("{0} << ({1} & C31)", "{r} != 0"),
    "s_lshr_b32": ("{0} >> ({1} & C31)", "{r} != 0"),
    "s_mul_i32": ("{0} * {1}", ""),
    "s_mul_hi_u32": ("mul_hi_u({0}, {1})", ""),
    "s_pack_ll_b32_b16": ("({0} & CFFFF) | ({1} << C16)", ""),
    "s_pack_lh_b32_b16": ("({0} & CFFFF) | ({1} & ~CFFFF)", ""),
    "s_pack_hh_b32_b16": ("({0} >> C16) | ({1} & ~CFFFF)", ""),
    "s_bfm_b32": ("((C1 << ({0} & C31)) - C1) << ({1} & C31)", ""),
}
_SIGNED32 = {
    "s_min_i32": ("np.minimum({0}, {1})", "{0} < {1}"),
    "s_max_i32": ("np.maximum({0}, {1})", "{0} >= {1}"),
    "s_ashr_i32": ("{0} >> ({1} & i4(31))", "{r} != 0"),
    "s_mul_hi_i32": ("mul_hi_i({0}, {1}).view(i4)", ""),
    "s_absdiff_i32": ("np.abs({0} - {1})", "{r} != 0"),
}
_BINARY64 = {
    "s_and_b64": "{0} & {1}",
    "s_or_b64": "{0} | {1}",
    "s_xor_b64": "{0} ^ {1}",
    "s_andn2_b64": "{0} & ~{1}",
    "s_orn2_b64": "{0} | ~{1}",
    "s_nand_b64": "~({0} & {1})",
    "s_nor_b64": "~({0} | {1})",
    "s_xnor_b64": "~({0} ^ {1})",
}
_SHIFT64 = {
    "s_lshl_b64": "{0} << {1}",
    "s_lshr_b64": "{0} >> {1}",
    "s_ashr_i64": "({0}.view(i8) >> {1}.view(i8)).view(u8)",
}
_UNARY32 = {
    "s_not_b32": ("~{0}", "{r} != 0"),
    "s_abs_i32": ("np.abs({0}.view(i4)).view(u4)", "{r} != 0"),
    "s_brev_b32": ("reverse_bits({0})", ""),
    "s_bcnt0_i32_b32": ("popcount(~{0})", "{r} != 0"),
    "s_bcnt1_i32_b32": ("popcount({0})", "{r} != 0"),
    "s_ff0_i32_b32": ("first_one(~{0})", ""),
    "s_ff1_i32_b32": ("first_one({0})", ""),
    "s_flbit_i32_b32": ("leading_zeros({0})", ""),
    "s_flbit_i32": ("leading_signs({0})", ""),
    "s_sext_i32_i8": ("sign_extend({0}, 8).view(u4)", ""),
    "s_sext_i32_i16": ("sign_extend({0}, 16).view(u4)", ""),
}
_UNARY64_TO_32 = {
    "s_bcnt0_i32_b64": ("popcount(~{0})", "{r} != 0"),
    "s_bcnt1_i32_b64": ("popcount({0})", "{r} != 0"),
    "s_ff0_i32_b64": ("first_one(~{0})", ""),
    "s_ff1_i32_b64": ("first_one({0})", ""),
    "s_flbit_i32_b64": ("leading_zeros({0})", ""),
}
_SAVE_EXEC = {
    "s_and_saveexec_b64": "{s} & {e}",
    "s_or_saveexec_b64": "{s} | {e}",
    "s_xor_saveexec_b64": "{s} ^ {e}",
    "s_andn2_saveexec_b64": "{s} & ~{e}",
    "s_orn2_saveexec_b64": "{s} | ~{e}",
    "s_andn1_saveexec_b64": "~{s} & {e}",
    "s_orn1_saveexec_b64": "~{s} | {e}",
    "s_nand_saveexec_b64": "~({s} & {e})",
    "s_nor_saveexec_b64": "~({s} | {e})",
    "s_xnor_saveexec_b64": "~({s} ^ {e})",
}
_COMPARE = {"eq": "==", "lg": "!=", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}
# Pure timing: they change no state that a program can see.
_NO_EFFECT = ("s_nop", "s_setprio")


def _array(emitter: Emitter, expression: str, operand: Operand, dtype: str = "u4") -> str:
    """Literals become one-element arrays, so that wrapping arithmetic never meets two bare scalars."""
    if isinstance(operand.value, Literal):
        return emitter.temp(f"np.full(1, {expression}, {dtype})")
    return expression


@handles(*_BINARY32)
def _binary32(e: Emitter, i: Instruction) -> None:
    template, condition = _BINARY32[i.name]
    a, b = (_array(e, e.ssrc(o), o) for o in i.operands[1:])
    result = e.temp(template.format(a, b))
    if condition:
        e.line(f"scc[...] = {condition.format(a, b, r=result)}")
    e.sput(i.operands[0], result)


@handles(*_SIGNED32)
def _signed32(e: Emitter, i: Instruction) -> None:
    template, condition = _SIGNED32[i.name]
    a, b = (_array(e, e.ssrc(o, "i"), o, "i4") for o in i.operands[1:])
    result = e.temp(template.format(a, b))
    if condition:
        e.line(f"scc[...] = {condition.format(a, b, r=result)}")
    e.sput(i.operands[0], f"{result}.view(u4)")


@handles("s_addc_u32", "s_subb_u32")
def _with_carry(e: Emitter, i: Instruction) -> None:
    sign = "+" if i.name == "s_addc_u32" else "-"
    a, b = (_array(e, e.ssrc(o), o) for o in i.operands[1:])
    wide = e.temp(f"{a}.astype(i8) {sign} {b}.astype(i8) {sign} scc")
    e.line(f"scc[...] = ({wide} >> i8(32)) != 0")
    e.sput(i.operands[0], f"{wide}.astype(u4)")


@handles(*_BINARY64)
def _binary64(e: Emitter, i: Instruction) -> None:
    a, b = (_array(e, e.ssrc64(o), o, "u8") for o in i.operands[1:])
    result = e.temp(_BINARY64[i.name].format(a, b))
    e.line(f"scc[...] = {result} != 0")
    e.sput64(i.operands[0], result)


@handles(*_SHIFT64)
def _shift64(e: Emitter, i: Instruction) -> None:
    value = _array(e, e.ssrc64(i.operands[1]), i.operands[1], "u8")
    amount = _array(e, e.ssrc(i.operands[2]), i.operands[2])
    result = e.temp(_SHIFT64[i.name].format(value, f"({amount} & u4(63)).astype(u8)"))
    e.line(f"scc[...] = {result} != 0")
    e.sput64(i.operands[0], result)


@handles("s_lshl1_add_u32", "s_lshl2_add_u32", "s_lshl3_add_u32", "s_lshl4_add_u32")
def _shift_add(e: Emitter, i: Instruction) -> None:
    a, b = (_array(e, e.ssrc(o), o) for o in i.operands[1:])
    wide = e.temp(f"({a}.astype(u8) << u8({i.name[6]})) + {b}.astype(u8)")
    e.line(f"scc[...] = ({wide} >> u8(32)) != 0")
    e.sput(i.operands[0], f"{wide}.astype(u4)")


@handles("s_bfe_u32", "s_bfe_i32", "s_bfe_u64", "s_bfe_i64")
def _bit_field(e: Emitter, i: Instruction) -> None:
    wide, signed = i.name.endswith("64"), i.name[6] == "i"
    value = e.ssrc64(i.operands[1]) if wide else e.ssrc(i.operands[1])
    value = _array(e, value, i.operands[1], "u8" if wide else "u4")
    result = e.temp(f"scalar_bfe({value}, {e.ssrc(i.operands[2])}, {64 if wide else 32}, {signed})")
    e.line(f"scc[...] = {result} != 0")
    (e.sput64 if wide else e.sput)(i.operands[0], result)


@handles(*_UNARY32)
def _unary32(e: Emitter, i: Instruction) -> None:
    template, condition = _UNARY32[i.name]
    value = e.temp(f"np.array({_array(e, e.ssrc(i.operands[1]), i.operands[1])})")
    result = e.temp(template.format(value))
    if condition:
        e.line(f"scc[...] = {condition.format(value, r=result)}")
    e.sput(i.operands[0], result)


@handles(*_UNARY64_TO_32)
def _unary64_to_32(e: Emitter, i: Instruction) -> None:
    template, condition = _UNARY64_TO_32[i.name]
    value = _array(e, e.ssrc64(i.operands[1]), i.operands[1], "u8")
    result = e.temp(template.format(value))
    if condition:
        e.line(f"scc[...] = {condition.format(value, r=result)}")
    e.sput(i.operands[0], result)


@handles("s_not_b64")
def _not64(e: Emitter, i: Instruction) -> None:
    result = e.temp(f"~{_array(e, e.ssrc64(i.operands[1]), i.operands[1], 'u8')}")
    e.line(f"scc[...] = {result} != 0")
    e.sput64(i.operands[0], result)


@handles("s_brev_b64")
def _reverse64(e: Emitter, i: Instruction) -> None:
    e.sput64(i.operands[0], f"reverse_bits(np.array({_array(e, e.ssrc64(i.operands[1]), i.operands[1], 'u8')}))")


@handles("s_mov_b32", "s_movk_i32")
def _move32(e: Emitter, i: Instruction) -> None:
    source = i.operands[1]
    if i.name == "s_movk_i32":
        source = _signed16(source)
    e.sput(i.operands[0], e.ssrc(source))


@handles("s_mov_b64")
def _move64(e: Emitter, i: Instruction) -> None:
    e.sput64(i.operands[0], e.ssrc64(i.operands[1]))


@handles("s_cmov_b32")
def _conditional_move32(e: Emitter, i: Instruction) -> None:
    destination = i.operands[0].reg
    assert destination is not None
    e.sput(i.operands[0], f"np.where(scc, {e.ssrc(i.operands[1])}, {e.sreg(destination.index)})")


@handles("s_cmov_b64")
def _conditional_move64(e: Emitter, i: Instruction) -> None:
    destination = i.operands[0].reg
    assert destination is not None
    e.sput64(i.operands[0], f"np.where(scc, {e.ssrc64(i.operands[1])}, {e.spair(destination.index)})")


@handles("s_cselect_b32")
def _select32(e: Emitter, i: Instruction) -> None:
    e.sput(i.operands[0], f"np.where(scc, {e.ssrc(i.operands[1])}, {e.ssrc(i.operands[2])})")


@handles("s_cselect_b64")
def _select64(e: Emitter, i: Instruction) -> None:
    e.sput64(i.operands[0], f"np.where(scc, {e.ssrc64(i.operands[1])}, {e.ssrc64(i.operands[2])})")


@handles(*_SAVE_EXEC)
def _save_exec(e: Emitter, i: Instruction) -> None:
    execution = e.spair(EXEC.index)
    old = e.temp(f"{execution}.copy()")
    new = e.temp(_SAVE_EXEC[i.name].format(s=_array(e, e.ssrc64(i.operands[1]), i.operands[1], "u8"), e=old))
    e.sput64(i.operands[0], old)
    e.sput64(Operand(EXEC), new)
    e.line(f"scc[...] = {new} != 0")


def _signed16(operand: Operand) -> Operand:
    """A 16-bit immediate, sign-extended; LLVM prints negative values either way."""
    if not isinstance(operand.value, Literal) or not isinstance(operand.value.value, int):
        raise IsaError(f"operand {operand} must be a 16-bit immediate")
    low = operand.value.value & 0xFFFF
    return Operand(Literal(low - 0x10000 if low & 0x8000 else low))


@handles("s_addk_i32", "s_mulk_i32", "s_cmovk_i32")
def _immediate(e: Emitter, i: Instruction) -> None:
    destination = i.operands[0].reg
    assert destination is not None
    old, value = e.sreg(destination.index), e.ssrc(_signed16(i.operands[1]))
    if i.name == "s_cmovk_i32":
        e.sput(i.operands[0], f"np.where(scc, {value}, {old})")
        return
    result = e.temp(f"{old} {'+' if i.name == 's_addk_i32' else '*'} {value}")
    if i.name == "s_addk_i32":
        e.line(f"scc[...] = ((({old} ^ {result}) & ({value} ^ {result})) >> C31) != 0")
    e.sput(i.operands[0], result)


def _compare(e: Emitter, i: Instruction) -> None:
    match = re.fullmatch(r"s_cmp(k?)_(\w+)_([iu])(32|64)", i.name)
    assert match is not None
    immediate, relation, kind, bits = match.groups()
    if bits == "64":
        a, b = (e.ssrc64(o) for o in i.operands)
    else:
        second = i.operands[1]
        if immediate and kind == "i":
            second = _signed16(second)
        a, b = e.ssrc(i.operands[0], kind), e.ssrc(second, kind)
    e.line(f"scc[...] = {a} {_COMPARE[relation]} {b}")


for _prefix in ("s_cmp", "s_cmpk"):
    handles(*(f"{_prefix}_{r}_{t}" for r in _COMPARE for t in ("i32", "u32")))(_compare)
handles("s_cmp_eq_u64", "s_cmp_lg_u64")(_compare)


@handles("s_bitcmp0_b32", "s_bitcmp1_b32", "s_bitcmp0_b64", "s_bitcmp1_b64")
def _bit_compare(e: Emitter, i: Instruction) -> None:
    wide = i.name.endswith("64")
    value = e.ssrc64(i.operands[0]) if wide else e.ssrc(i.operands[0])
    kind, limit = ("u8", 63) if wide else ("u4", 31)
    amount = _array(e, e.ssrc(i.operands[1]), i.operands[1])
    bit = f"(({value} >> ({amount} & u4({limit})).astype({kind})) & {kind}(1))"
    e.line(f"scc[...] = {bit} == {i.name[8]}")


@handles("s_bitset0_b32", "s_bitset1_b32")
def _bit_set(e: Emitter, i: Instruction) -> None:
    destination = i.operands[0].reg
    assert destination is not None
    bit = e.temp(f"C1 << ({_array(e, e.ssrc(i.operands[1]), i.operands[1])} & C31)")
    old = e.sreg(destination.index)
    e.sput(i.operands[0], f"{old} | {bit}" if i.name[8] == "1" else f"{old} & ~{bit}")


@handles(*_NO_EFFECT)
def _no_effect(e: Emitter, i: Instruction) -> None:
    pass


@handles("s_getreg_b32")
def _get_register(e: Emitter, i: Instruction) -> None:
    token = i.operands[1].value
    if not isinstance(token, Token) or "XCC_ID" not in token.text:
        raise IsaError(f"{i}: only hwreg(HW_REG_XCC_ID) can be read")
    fields = [int(part) for part in token.text[6:-1].split(",")[1:]] or [0, 32]
    e.sput(
        i.operands[0], f"bfe_u(g.xcc_id(), u4({fields[0]}), u4({fields[1] % 32})) if {fields[1]} < 32 else g.xcc_id()"
    )


@handles("s_memrealtime", "s_memtime")
def _clock(e: Emitter, i: Instruction) -> None:
    e.sput64(i.operands[0], "u8(g.clock())")


@handles("s_waitcnt")
def _wait(e: Emitter, i: Instruction) -> None:
    counts = {}
    for operand in i.operands:
        match = re.fullmatch(r"(vmcnt|lgkmcnt|expcnt)\((\d+)\)", str(operand.value))
        if match:
            counts[match[1]] = int(match[2])
        elif str(operand.value) == "0":
            counts = {"vmcnt": 0, "lgkmcnt": 0, "expcnt": 0}
        else:
            raise IsaError(f"{i}: wait counter {operand} is not known")
    if e.weak and "vmcnt" in counts:
        e.line(f"g.wait_memory({counts['vmcnt']})")
    if e.weak and "lgkmcnt" in counts:
        e.line(f"g.wait_lds({counts['lgkmcnt']})")


def scalar_namespace() -> dict[str, object]:
    """Constants that the templates name."""
    return {"C1": np.uint32(1), "C16": np.uint32(16), "C31": np.uint32(31), "CFFFF": np.uint32(0xFFFF)}
