# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Which registers an instruction reads and writes, implicit ones included.

A register is a bit position: v0..v255, a0..a255, s0..s127 (special registers at their operand encodings), scc. A set
of registers is an int. The tables say what the operand text does not: destinations, tied operands, vcc, scc, exec,
m0. A mnemonic that no table knows is an `IsaError`, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mori_gemm_ar.errors import IsaError
from mori_gemm_ar.isa import EXEC, M0, VCC, Instruction, Operand, Reg, Token

_BASE = {"v": 0, "a": 256, "s": 512}
SCC_BIT = 640
SCC = 1 << SCC_BIT


def mask_of(reg: Reg) -> int:
    """The set of a run of registers."""
    return ((1 << reg.count) - 1) << (_BASE[reg.file] + reg.index)


def bit_of(reg: Reg) -> int:
    """Position of the first register of a run."""
    return _BASE[reg.file] + reg.index


VCC_MASK, EXEC_MASK, M0_MASK = mask_of(VCC), mask_of(EXEC), mask_of(M0)
_SPECIAL_NAMES = {106: "vcc_lo", 107: "vcc_hi", 124: "m0", 126: "exec_lo", 127: "exec_hi"}


def bits_of(mask: int) -> list[int]:
    """The registers of a set, in rising order."""
    bits = []
    while mask:
        low = mask & -mask
        bits.append(low.bit_length() - 1)
        mask ^= low
    return bits


def name_of(bit: int) -> str:
    """`v12`, `a3`, `s7`, `vcc_lo`, `scc`."""
    if bit == SCC_BIT:
        return "scc"
    file = "s" if bit >= 512 else "a" if bit >= 256 else "v"
    index = bit - _BASE[file]
    return _SPECIAL_NAMES.get(index, f"s{index}") if file == "s" else f"{file}{index}"


def names_of(mask: int) -> str:
    """The set in words, at most four registers."""
    bits = bits_of(mask)
    text = ", ".join(name_of(bit) for bit in bits[:4])
    return text if len(bits) <= 4 else f"{text} and {len(bits) - 4} more"


def union(masks: Iterable[int]) -> int:
    """All registers of several sets."""
    whole = 0
    for mask in masks:
        whole |= mask
    return whole


def operand_mask(operand: Operand) -> int:
    """Registers that an operand names; `scc` as a source counts."""
    if operand.reg is not None:
        return mask_of(operand.reg)
    if isinstance(operand.value, Token):
        return {"scc": SCC, "vccz": VCC_MASK, "execz": EXEC_MASK}.get(operand.value.text, 0)
    return 0


def _names(prefix: str, words: str) -> re.Pattern[str]:
    return re.compile(rf"^{prefix}_({'|'.join(words.split())})$")


# ---- scalar -------------------------------------------------------------------------------------------------------

_S_PLAIN = _names("s", r"""
    mov_b(32|64) movk_i32 brev_b(32|64) ff[01]_i32_b(32|64) flbit_i32(_b32|_b64|_i64)? sext_i32_i(8|16) getpc_b64
    mul_i32 mul_hi_[iu]32 bfm_b(32|64) pack_(ll|lh|hh)_b32_b16 getreg_b32""")  # fmt: skip
_S_SCC = _names("s", r"""
    (add|sub)_[iu]32 (and|or|xor|nand|nor|xnor|andn2|orn2)_b(32|64) (lshl|lshr)_b(32|64) ashr_i(32|64)
    lshl[1234]_add_u32 bfe_[iu](32|64) abs_i32 absdiff_i32 (min|max)_[iu]32 not_b(32|64) bcnt[01]_i32_b(32|64)
    (wqm|quadmask)_b(32|64)""")  # fmt: skip
_S_CARRY = _names("s", "addc_u32 subb_u32")
_S_SAVEEXEC = _names("s", "(and|or|xor|nand|nor|xnor|andn[12]|orn[12])_saveexec_b64")
_S_SELECT = _names("s", "cselect_b(32|64)")
_S_TIED = _names("s", "bitset[01]_b(32|64) mulk_i32")
_S_COMPARE = _names("s", "cmpk?_(eq|lg|gt|ge|lt|le)_[iu](32|64) bitcmp[01]_b(32|64)")
_S_NOTHING = _names("s", r"""
    waitcnt nop barrier endpgm sleep setprio branch sethalt trap icache_inv dcache_inv dcache_wb
    cbranch_(scc|vcc|exec)[a-z0-9]+ sendmsg ttracedata version code_end endpgm_saved""")  # fmt: skip
_S_LOAD = _names("s", r"(buffer_)?load_dword(x2|x4|x8|x16)? memtime memrealtime")


def _scalar(i: Instruction, masks: list[int]) -> tuple[int, int] | None:
    name = i.name
    rest = union(masks[1:])
    if _S_PLAIN.match(name) or _S_LOAD.match(name):
        return rest, masks[0]
    if _S_SCC.match(name):
        return rest, masks[0] | SCC
    if _S_CARRY.match(name):
        return rest | SCC, masks[0] | SCC
    if _S_SAVEEXEC.match(name):
        return rest | EXEC_MASK, masks[0] | EXEC_MASK | SCC
    if _S_SELECT.match(name):
        return rest | SCC, masks[0]
    if name in ("s_cmov_b32", "s_cmov_b64", "s_cmovk_i32"):
        return rest | SCC | masks[0], masks[0]
    if _S_TIED.match(name):
        return rest | masks[0], masks[0]
    if name == "s_addk_i32":
        return rest | masks[0], masks[0] | SCC
    if _S_COMPARE.match(name):
        return rest | masks[0], SCC
    if _S_NOTHING.match(name):
        condition = {"scc": SCC, "vcc": VCC_MASK, "exe": EXEC_MASK}.get(name.removeprefix("s_cbranch_")[:3], 0)
        return condition, 0
    return None


# ---- vector arithmetic --------------------------------------------------------------------------------------------

_V_PLAIN = _names("v", r"""
    mov_b(32|64) not_b32 bfrev_b32 nop ffbh_[iu]32 ffbl_b32 bcnt_u32_b32 (add|sub|subrev|mul|min|max)_f(16|32|64)
    mul_legacy_f32 (add|sub|subrev)_u(16|32) (add|sub)_i(16|32) mul_lo_u(16|32) mul_hi_[iu]32 mul(_hi)?_[iu]32_[iu]24
    (min|max)_[iu](16|32) (and|or|xor|xnor)_b32 (lshlrev|lshrrev)_b(16|32|64) ashrrev_i(16|32|64) add3_u32
    add_lshl_u32 and_or_b32 lshl_add_u(32|64) lshl_or_b32 or3_b32 xad_u32 bfe_[iu]32 bfi_b32 bfm_b32 perm_b32
    align(bit|byte)_b32 bitop3_b(16|32) mad_[iu]32_[iu]24 mad_(legacy_)?[fiu]16 mad_[iu]32_[iu]16 fma_f(16|32|64)
    (fma|mad)_mix_f32 fma(mk|ak)_f(16|32) (max|min|med)3_[fiu](16|32) (maximum|minimum)3_f32
    (ceil|floor|trunc|rndne|fract|rcp|rsq|sqrt|sin|cos|exp|log|rcp_iflag|frexp_mant)_f(16|32|64)
    (exp|log)_legacy_f32 frexp_exp_i(16|32)_f(16|32|64) ldexp_f(16|32|64) cvt_[a-z]+[0-9]+(_[a-z]+[0-9]+)+
    cvt_f32_ubyte[0-3] cvt_(pk|rpi|flr|off|sr|scalef32)_[a-z0-9_]+ cvt_pk[a-z_0-9]+ div_fixup_f(16|32|64)
    mbcnt_(lo|hi)_u32_b32 prng_b32 sad_[a-z0-9_]+ lerp_u8 cube[a-z]+_f32 pack_b32_f16 pk_[a-z0-9_]+ dot[0-9a-z_]+
    accvgpr_(read|write|mov)_b32""")  # fmt: skip
_V_COMPARE = _names("v", "cmp_(class|[a-z]+)_[fiu](16|32|64)")
_V_COMPARE_EXEC = _names("v", "cmpx_(class|[a-z]+)_[fiu](16|32|64)")
_V_TWO_RESULTS = _names("v", "(add|sub|subrev|addc|subb|subbrev)_co_u32 div_scale_f(32|64) mad_(u64_u32|i64_i32)")
# The destination is also a source, or keeps a half that the instruction does not write.
_V_TIED = _names("v", r"""
    (fmac|mac)_f(16|32|64) pk_fmac_f16 dot[0-9]+c_[a-z0-9_]+ fma_mix(lo|hi)_f16 mad_mix(lo|hi)_f16
    cvt_pk_(fp8|bf8)_f32 cvt_sr_(fp8|bf8)_f32 cvt_sr_(f16|bf16)_f32 cvt_scalef32_(pk|sr)[a-z0-9_]*
    writelane_b32""")  # fmt: skip
_V_SWAP = _names("v", "swap_b32 permlane(16|32)_swap_b32")
_V_MATRIX = re.compile(r"^v_(s?mf(ma|mac))_")
_V_TO_SCALAR = _names("v", "readfirstlane_b32 readlane_b32")


def _keeps_destination(i: Instruction) -> bool:
    """Whether an encoding leaves lanes or halves of the destination as they are."""
    if i.has("row_mask"):
        full = i.option("row_mask") == 15 and i.option("bank_mask", 15) == 15
        return not (full and i.has("bound_ctrl"))
    if i.modifiers.get("dst_unused") == "UNUSED_PRESERVE":
        return True
    select = i.bits("op_sel", ())
    return not i.name.startswith(("v_pk_", "v_dot")) and len(select) == len(i.operands) and select[-1] == 1


def _vector(i: Instruction, masks: list[int]) -> tuple[int, int] | None:
    name, first = i.name, masks[0] if masks else 0
    rest = union(masks[1:])
    if _V_TIED.match(name):
        return rest | first | EXEC_MASK, first
    if _V_MATRIX.match(name):
        accumulates = first if name.startswith("v_smfmac") else 0
        return rest | accumulates | EXEC_MASK, first
    if _V_TO_SCALAR.match(name):
        return rest | EXEC_MASK, first
    if _V_TWO_RESULTS.match(name):
        return union(masks[2:]) | EXEC_MASK, first | masks[1]
    if name.startswith("v_div_fmas"):
        return rest | VCC_MASK | EXEC_MASK, first
    if _V_COMPARE_EXEC.match(name):
        return rest | EXEC_MASK, first | EXEC_MASK
    if _V_SWAP.match(name):
        both = first | rest
        return both | EXEC_MASK, both
    if _V_COMPARE.match(name) or _V_PLAIN.match(name) or name == "v_cndmask_b32":
        if _keeps_destination(i):
            rest |= first
        return rest | EXEC_MASK, first
    return None


# ---- memory -------------------------------------------------------------------------------------------------------

VMEM = re.compile(r"^(buffer|global|flat|scratch)_(load|store|atomic)_")
LDS = re.compile(r"^ds_(read|write|bpermute|permute|swizzle|add|sub|inc|dec|min|max|and|or|xor|cmpst|wrxchg)")
CACHE = frozenset({"buffer_wbl2", "buffer_inv"})


def returns_value(i: Instruction) -> bool:
    """Whether a memory atomic returns the old value into its first operand."""
    if i.name.startswith("ds_"):
        return "_rtn_" in i.name
    return i.has("sc0")


def is_lds_copy(i: Instruction) -> bool:
    """Whether a load writes LDS instead of registers."""
    return i.has("lds") or i.name.startswith("global_load_lds_")


def _vmem(i: Instruction, masks: list[int]) -> tuple[int, int]:
    everything = union(masks) | EXEC_MASK
    action = i.name.split("_")[1]
    if is_lds_copy(i):
        return everything | M0_MASK, 0
    if action == "load":
        kept = masks[0] if "_d16" in i.name else 0
        return union(masks[1:]) | kept | EXEC_MASK, masks[0]
    if action == "atomic" and returns_value(i):
        if i.name.startswith("buffer_"):  # data in, old value out, in the same registers
            return everything, masks[0] if "cmpswap" not in i.name else _lower_half(i)
        return union(masks[1:]) | EXEC_MASK, masks[0]
    return everything, 0


def _lower_half(i: Instruction) -> int:
    reg = i.operands[0].reg
    if reg is None or reg.count % 2:
        raise IsaError(f"{i}: a compare-and-swap must have an even number of data registers")
    return mask_of(Reg(reg.file, reg.index, reg.count // 2))


def _lds(i: Instruction, masks: list[int]) -> tuple[int, int]:
    name = i.name
    gives = name.startswith(("ds_read", "ds_bpermute", "ds_permute", "ds_swizzle")) or "_rtn_" in name
    rest = union(masks[1:] if gives else masks) | EXEC_MASK | (M0_MASK if "addtid" in name else 0)
    if gives and "_d16" in name:
        rest |= masks[0]
    return rest, masks[0] if gives else 0


def reads_writes(i: Instruction) -> tuple[int, int]:
    """(registers read, registers written) of an instruction; `IsaError` for a mnemonic that no table knows."""
    masks = [operand_mask(operand) for operand in i.operands]
    effects: tuple[int, int] | None
    if i.name.startswith("s_"):
        effects = _scalar(i, masks)
    elif i.name.startswith("v_"):
        effects = _vector(i, masks)
    elif VMEM.match(i.name):
        effects = _vmem(i, masks)
    elif LDS.match(i.name):
        effects = _lds(i, masks)
    else:
        effects = (0, 0) if i.name in CACHE else None
    if effects is None:
        raise IsaError(f"{i}: the audit does not know {i.name!r}; add it to audit/registers.py with a test")
    return effects
