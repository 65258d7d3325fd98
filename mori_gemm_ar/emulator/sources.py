# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Sources and results of vector instructions with their lane (DPP) and sub-word (SDWA, op_sel) selections."""

from __future__ import annotations

import numpy as np

from mori_gemm_ar.emulator.emit import HALVES, Emitter
from mori_gemm_ar.errors import IsaError
from mori_gemm_ar.isa import Instruction, Operand

_SDWA_SELECT = {
    "BYTE_0": (0, 8),
    "BYTE_1": (8, 8),
    "BYTE_2": (16, 8),
    "BYTE_3": (24, 8),
    "WORD_0": (0, 16),
    "WORD_1": (16, 16),
}


# Scalar-half instructions that choose halves by op_sel on this target; packed ones read it themselves.
_OP_SEL = ("v_fma_f16", "v_mad_u16", "v_pack_b32_f16")


def upper_half(i: Instruction) -> int:
    """Half of the destination that op_sel names: its last bit."""
    return i.bits("op_sel", (0, 0, 0, 0))[-1]


def source(e: Emitter, i: Instruction, position: int, view: str) -> str:
    """Source number `position` (1 is the first) with SDWA or DPP selection applied."""
    operand = i.operands[position]
    if view in ("q", "Q", "d"):
        return e.src64(operand, view)
    half = i.bits("op_sel", (0, 0, 0, 0))[position - 1] if view in HALVES and i.name in _OP_SEL else 0
    if i.encoding == "sdwa":
        return _sdwa_source(e, i, operand, position - 1, view)
    if i.encoding == "dpp" and position == 1:
        return _dpp_source(e, i, operand, view)
    return e.src(operand, view, half)


def _sdwa_source(e: Emitter, i: Instruction, operand: Operand, number: int, view: str) -> str:
    choice = i.modifiers.get(f"src{number}_sel", "DWORD")
    if choice == "DWORD":
        return e.src(operand, view)
    offset, width = _SDWA_SELECT[choice]
    word = e.temp(f"({e.src(Operand(operand.value))} >> u4({offset})) & u4({(1 << width) - 1})")
    if operand.sext:
        word = e.temp(f"sign_extend({word}, {width}).view(u4)")
    helper = {"w": "lo16", "j": "lo16i", "h": "lo16f"}.get(view)
    text = f"{helper}({word})" if helper else f"{word}.view({ {'u': 'u4', 'i': 'i4', 'f': 'f4'}[view] })"
    text = f"np.abs({text})" if operand.absolute else text
    return f"np.negative({text})" if operand.neg else text


def _dpp_lanes(i: Instruction) -> tuple[np.ndarray, np.ndarray]:
    """Source lane of each lane, and whether it exists."""
    lane = np.arange(64)
    row, column = lane // 16 * 16, lane % 16
    if "quad_perm" in i.modifiers:
        order = np.array(i.bits("quad_perm", ()))
        return lane // 4 * 4 + order[lane % 4], np.ones(64, bool)
    for name, shift in (("row_shl", 1), ("row_shr", -1)):
        if name in i.modifiers:
            target = column + shift * i.option(name)
            return row + np.clip(target, 0, 15), (target >= 0) & (target < 16)
    if "row_ror" in i.modifiers:
        return row + (column - i.option("row_ror")) % 16, np.ones(64, bool)
    if "row_newbcast" in i.modifiers:
        return row + i.option("row_newbcast"), np.ones(64, bool)
    if "row_bcast" in i.modifiers:
        step = i.option("row_bcast")
        previous = lane // 16 - 1 if step == 15 else np.full(64, 0)
        source_lane = np.where(previous < 0, 0, previous * 16 + 15) if step == 15 else np.full(64, 31)
        return source_lane, (lane >= 16) if step == 15 else (lane >= 32)
    for name, step in (("wave_shl", 1), ("wave_shr", -1), ("wave_rol", 1), ("wave_ror", -1)):
        if name in i.modifiers:
            target = lane + step
            inside = (target >= 0) & (target < 64)
            return target % 64, inside if name.startswith("wave_sh") else np.ones(64, bool)
    if "row_mirror" in i.modifiers or "row_half_mirror" in i.modifiers:
        size = 16 if "row_mirror" in i.modifiers else 8
        return lane // size * size + size - 1 - lane % size, np.ones(64, bool)
    raise IsaError(f"{i}: lane pattern is not known")


def _dpp_source(e: Emitter, i: Instruction, operand: Operand, view: str) -> str:
    """The value from another lane. `k` shrinks to the lanes that are written: row and bank masks act on them only."""
    lane = np.arange(64)
    rows, banks = i.option("row_mask", 15), i.option("bank_mask", 15)
    writes = ((rows >> lane // 16) & (banks >> lane % 16 // 4) & 1).astype(bool)
    lane_of, valid = _dpp_lanes(i)
    e.temporaries += 1
    moved = f"t{e.temporaries}"
    arguments = ", ".join(e.constant(value) for value in (lane_of, valid, writes))
    e.line(f"k, {moved} = dpp({e.src(Operand(operand.value))}, {arguments}, k0, {i.has('bound_ctrl')})")
    if view in HALVES:
        text = f"{ {'w': 'lo16', 'j': 'lo16i', 'h': 'lo16f'}[view] }({moved})"
    else:
        text = f"{moved}.view({ {'u': 'u4', 'i': 'i4', 'f': 'f4'}[view] })"
    text = f"np.abs({text})" if operand.absolute else text
    return f"np.negative({text})" if operand.neg else text


def _finish(e: Emitter, i: Instruction, text: str, view: str) -> str:
    """Output modifiers of float results."""
    if {"mul2", "mul4", "div2"} & set(i.modifiers):
        raise IsaError(f"{i}: the hardware ignores output multipliers while denormals are enabled")
    if "clamp" in i.modifiers:
        if view not in ("f", "h"):
            raise IsaError(f"{i}: integer clamp is not modelled")
        text = f"clamp({text})"
    return text


def store(e: Emitter, i: Instruction, text: str, view: str) -> None:
    """Write a result of the given view to operand 0, through SDWA selection if there is one."""
    text = _finish(e, i, text, view)
    choice = i.modifiers.get("dst_sel", "DWORD")
    if view in ("q", "d"):
        e.put64(i.operands[0], text if view == "q" else f"({text}).view(u8)")
    elif choice != "DWORD":
        offset, width = _SDWA_SELECT[choice]
        kept = {"UNUSED_PAD": "C0", "UNUSED_PRESERVE": e.src(Operand(i.operands[0].value))}.get(
            i.modifiers["dst_unused"]
        )
        if kept is None:
            raise IsaError(f"{i}: dst_unused is not modelled")
        bits = text if view in ("u",) else f"np.asarray({text}).view(u4)"
        mask = ((1 << width) - 1) << offset
        e.put(i.operands[0], f"({kept} & u4({~mask & 0xFFFFFFFF})) | ((({bits}) << u4({offset})) & u4({mask}))")
    else:
        e.put(i.operands[0], text, view)
