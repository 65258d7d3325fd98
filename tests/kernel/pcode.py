# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Run the CDNA pseudocode that the package tinygrad ships: an oracle for instructions that shares nothing with ours.

    run("v_add_co_u32_e64", 0xFFFFFFFF, 2, lane=3)      -> Outcome(d0=1, vcc=8, ...)      one lane
    wave("v_add_f32_e32", xs, ys, exec_mask=7)          -> Outcome(d0=[...64], ...)       64 lanes
    run("ds_add_rtn_u32", addr=8, data=5, mem=bytearray(64))

Values are bit patterns. Bits of d0 that the pseudocode leaves alone keep those of the argument `d0`. Source modifiers
(neg, abs, op_sel of packed operands, SDWA selects except of fp8) are not part of the pseudocode: apply them before.
Needs Python 3.11 and tinygrad: guard a test file with `pytest.importorskip(pcode.PACKAGE)`.
"""

from __future__ import annotations

import math
import re
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module

from tests.kernel import pcode_float as pf
from tests.kernel.pcode_errata import ERRATA
from tests.kernel.pcode_eval import Machine, Memory, Vgprs
from tests.kernel.pcode_float import INFINITY, QUIET_NAN, Rounding
from tests.kernel.pcode_lang import PcodeSyntaxError, parse
from tests.kernel.pcode_values import PcodeUnsupported, Val, flag, raw, rounded, val

PACKAGE = "tinygrad.runtime.autogen.amd.cdna.str_pcode"
LANES = 64
ALL_LANES = (1 << LANES) - 1

# Register numbers that stand for the operands in pseudocode that indexes VGPR[lane][number].
SRC0, VDST, ADDR, DATA0 = range(4)

# Spellings of LLVM for gfx950 whose pseudocode has another name.
ALIASES = {
    "v_fma_mix_f32": "v_mad_mix_f32",
    "v_fma_mixlo_f16": "v_mad_mixlo_f16",
    "v_fma_mixhi_f16": "v_mad_mixhi_f16",
}


class NoPseudocode(LookupError):
    """The manual describes the instruction in prose only, or not at all."""


@dataclass(frozen=True)
class Inputs:
    """What an instruction reads beside its sources. `opsel` and `bitop3` are the encoded fields, `sdwa` is src0_sel."""

    d0: int | Sequence[int] = 0
    scc: int = 0
    vcc: int = 0
    exec_mask: int = ALL_LANES
    lane: int = 0
    m0: int = 0
    pc: int = 0
    imm: int = 0
    opsel: int = 0
    opsel_hi: int = 0
    bitop3: int = 0
    sdwa: int = 6
    ieee: bool = True
    addr: int | Sequence[int] = 0
    saddr: int = 0
    offset: int = 0
    offset0: int | None = None
    offset1: int | None = None
    data: int | Sequence[int] = 0
    data2: int = 0
    mem: MutableMapping[int, int] | bytearray = field(default_factory=bytearray)


@dataclass(frozen=True)
class Outcome:
    """State after the instruction. `d0` is also the loaded or returned data; `d1` a carry; `s0` what a swap left there.

    A comparison writes its mask to d0, and in the e32 form to vcc too. Carries of the e64 forms read and write `vcc`,
    whichever pair of registers the instruction names.
    """

    d0: int | list[int]
    d1: int
    s0: int | list[int]
    scc: int
    vcc: int
    exec_mask: int
    pc: int


@cache
def _texts() -> dict[str, str]:
    return {op.name.lower(): text for op, text in import_module(PACKAGE).PCODE.items()}


@cache
def text(mnemonic: str) -> str:
    """Pseudocode of an LLVM mnemonic, errata applied."""
    base = re.sub(r"_(e32|e64|sdwa|dpp)$", "", mnemonic)
    base = ALIASES.get(base, base)
    for name in (mnemonic, base, base + "_e32", base + "_e64"):
        if name in _texts():
            found = _texts()[name]
            break
    else:
        raise NoPseudocode(mnemonic)
    try:
        parse(found)
    except PcodeSyntaxError as error:
        raise NoPseudocode(f"{mnemonic}: prose only") from error
    if base in ERRATA:
        found = ERRATA[base].corrected(found)
    return found


def has_pcode(mnemonic: str) -> bool:
    """Whether run() knows the instruction."""
    try:
        text(mnemonic)
    except NoPseudocode:
        return False
    return True


def run(mnemonic: str, *sources: int, **inputs: object) -> Outcome:
    """One lane, or a scalar instruction. Keywords are the fields of Inputs."""
    given = Inputs(**inputs)  # type: ignore[arg-type]
    registers = {SRC0: {given.lane: sources[0] if sources else 0}, VDST: {given.lane: given.d0}}
    machine = _machine(mnemonic, sources, given, registers)
    machine.run(parse(text(mnemonic)))
    return _outcome(mnemonic, machine, registers, given)


def wave(mnemonic: str, *sources: int | Sequence[int], **inputs: object) -> Outcome:
    """All 64 lanes; a source, d0, addr or data is one value or one per lane. Inactive lanes keep their d0."""
    given = Inputs(**inputs)  # type: ignore[arg-type]
    spread = [_spread(source) for source in sources]
    d0, addr, data = _spread(given.d0), _spread(given.addr), _spread(given.data)
    if _crosses_lanes(text(mnemonic)):
        registers = {SRC0: spread[0] if spread else [], VDST: d0, ADDR: addr, DATA0: data}
        scalar = [source[given.lane] for source in spread]
        machine = _machine(mnemonic, scalar, replace(given, d0=0, addr=ADDR, data=DATA0), registers)
        machine.run(parse(text(mnemonic)))
        result = _outcome(mnemonic, machine, registers, given)
        return result if "D0" in text(mnemonic) else replace(result, d0=registers[VDST], s0=registers[SRC0])
    is_mask = "D0.u64[laneId]" in text(mnemonic)
    s0, d1, mask, vcc, exec_mask = list(spread[0]) if spread else [], 0, 0, 0, given.exec_mask
    for lane in range(LANES):
        if not given.exec_mask >> lane & 1:
            continue
        own = replace(given, lane=lane, d0=0 if is_mask else d0[lane], addr=addr[lane], data=data[lane])
        step = run(mnemonic, *(source[lane] for source in spread), **vars(own))
        bit = 1 << lane
        d1, mask, vcc = d1 | (step.d1 & 1) << lane, mask | (step.d0 & bit), vcc | (step.vcc & bit)
        exec_mask = exec_mask & ~bit | step.exec_mask & bit
        d0[lane] = step.d0
        if s0:
            s0[lane] = step.s0
    writes_vcc = re.search(r"(?m)^VCC\b", text(mnemonic)) or (is_mask and mnemonic.endswith("_e32"))
    return Outcome(mask if is_mask else d0, d1, s0, given.scc, vcc if writes_vcc else given.vcc, exec_mask, given.pc)


def _spread(value: int | Sequence[int]) -> list[int]:
    return [value] * LANES if isinstance(value, int) else list(value)


def _crosses_lanes(found: str) -> bool:
    return bool(re.search(r"VGPR\[(?!laneId\])", re.sub(r"//.*", "", found)))


def _machine(mnemonic: str, sources: Sequence[int], given: Inputs, registers: dict) -> Machine:
    offset0 = given.offset & 0xFF if given.offset0 is None else given.offset0
    offset1 = given.offset >> 8 & 0xFF if given.offset1 is None else given.offset1
    d0, data = raw(given.d0), raw(given.data)
    found = text(mnemonic)
    # Pseudocode without an address calculation means the address with the offset in it.
    whole = "MEM[ADDR" in found
    names = {
        "D0": d0, "D1": raw(0), "RETURN_DATA": d0, "SIMM16": raw(given.imm), "SIMM32": raw(given.imm),
        "VDATA": data if "_store_" in mnemonic else d0, "SDATA": data if "_store_" in mnemonic else d0,
        "DATA": data, "DATA0": data, "DATA2": raw(given.data2), "MEM": Memory(given.mem), "LDS": Memory(given.mem),
        "ADDR": val("u", 64, given.addr + given.offset * whole), "ADDR_BASE": val("u", 32, given.addr),
        "VADDR": val("u", 64, given.addr), "SBASE": val("u", 64, given.addr), "SADDR": val("u", 64, given.saddr),
        "SOFFSET": val("u", 64, given.saddr), "SRSRC": raw(0), "OFFSET": val("i", 64, given.offset),
        "OFFSET0": val("u", 8, offset0), "OFFSET1": val("u", 8, offset1), "M0": raw(given.m0),
        "SCC": flag(given.scc), "VCC": val("u", 64, given.vcc), "EXEC": val("u", 64, given.exec_mask),
        "VCCZ": flag(given.vcc == 0), "EXECZ": flag(given.exec_mask == 0), "PC": val("i", 64, given.pc),
        "laneId": val("u", 32, given.lane), "laneID": val("u", 32, given.lane), "VGPR": Vgprs(registers),
        "SRC0": val("u", 32, SRC0), "VDST": val("u", 32, VDST), "OPSEL": val("u", 4, given.opsel),
        "OPSEL_HI": val("u", 3, given.opsel_hi), "SDWA_SRC0_SEL": val("u", 3, given.sdwa),
        "BYTE1": val("u", 3, 1), "BYTE2": val("u", 3, 2), "BYTE3": val("u", 3, 3), "WORD1": val("u", 3, 5),
        "INST.NEG": val("u", 3, given.bitop3), "INST.ABS": val("u", 3, given.bitop3 >> 3),
        "INST.OMOD": val("u", 2, given.bitop3 >> 6), "WAVE_MODE.IEEE": flag(given.ieee),
        "INF": rounded(INFINITY, ("f", 64)), "NAN": rounded(QUIET_NAN, ("f", 64)),
        "PI": rounded(pf.finite(math.pi), ("f", 64)),
        "ROUND_MODE": Rounding.NEAREST_EVEN, **{mode.value: mode for mode in Rounding},
        "UNDERFLOW_F32": val("f", 32, 0), "OVERFLOW_F32": val("f", 32, 0x7F800000),
        "UNDERFLOW_F64": val("f", 64, 0), "OVERFLOW_F64": val("f", 64, 0x7FF << 52),
    }  # fmt: skip
    names.update({f"S{i}": raw(source) for i, source in enumerate(sources)})
    names["S"] = [raw(source) for source in sources]
    return Machine(names, _call)


def _call(name: str, arguments: list[Val]) -> Val:
    """`v_max_f32(a, b)` in the text of another instruction."""
    if not re.match(r"[sv]_\w+$", name) or not has_pcode(name):
        raise PcodeUnsupported(f"function {name}")
    machine = _machine(name, [argument.bits for argument in arguments], Inputs(), {})
    machine.run(parse(text(name)))
    return val(*machine.d0_type, machine.env["D0"].bits)


def _outcome(mnemonic: str, machine: Machine, registers: dict, given: Inputs) -> Outcome:
    env = machine.env
    found = text(mnemonic)
    d0 = env["D0"].bits
    for name in ("RETURN_DATA", "VDATA", "SDATA"):
        if re.search(rf"(?m)^{name}\b[^=]*=", found):
            words = env[name] if isinstance(env[name], list) else [env[name]]
            d0 = sum(word.bits << (32 * i) for i, word in enumerate(words))
    if "VGPR[laneId][VDST.u32]" in found:
        d0 = registers[VDST][given.lane]
    vcc = d0 if "D0.u64[laneId]" in found and mnemonic.endswith("_e32") else env["VCC"].bits
    s0 = env["S0"].bits if "S0" in env else 0
    return Outcome(d0, env["D1"].bits, s0, env["SCC"].bits, vcc, env["EXEC"].bits, int(env["PC"]))
