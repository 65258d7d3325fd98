# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Instructions that FlyDSL's public surface lacks. The only file of the kernels that names FlyDSL's private modules."""

from __future__ import annotations

import flydsl.expr as fx
from flydsl._mlir import ir
from flydsl._mlir.dialects import llvm, rocdl

# Lane patterns of DPP.
_QUAD_PERM_1032 = 1 | 0 << 2 | 3 << 4 | 2 << 6
_QUAD_PERM_2301 = 2 | 3 << 2 | 0 << 4 | 1 << 6
_ROW_ROR = 0x120


class Barrier:
    """A workgroup barrier with the waits before it, as one piece of assembly that memory accesses do not cross.

    Handover: LDS that some waves wrote or read changes hands here; the wait counts belong to the barrier. The
    comment in the assembly says so, for whoever reads the emitted text.
    """

    @staticmethod
    def handover(name, vmcnt, lgkmcnt=0):
        """Wait until at most `vmcnt` vector-memory and `lgkmcnt` LDS operations are under way, then meet.

        None waits for none of a kind: there is nothing of it to hand over.
        """
        counts = {"vmcnt": vmcnt, "lgkmcnt": lgkmcnt}
        waits = " ".join(f"{counter}({count})" for counter, count in counts.items() if count is not None)
        text = f"s_waitcnt {waits} ; handover {name}\ns_barrier ; handover {name}"
        llvm.inline_asm(None, [], text, "~{memory}", has_side_effects=True)


def lds_pointer(address):
    """An LDS byte address as the pointer type that copies take."""
    return llvm.inttoptr(ir.Type.parse("!llvm.ptr<3>"), fx.Int32(address).ir_value())


def copy_to_lds(resource, lds_address, nbytes, lane_offset, scalar_offset, immediate):
    """Lane l's `nbytes` from a buffer to LDS at lds_address + immediate + l * nbytes, under way when this returns.

    Source: descriptor + lane_offset + scalar_offset + immediate. The caller owes a wait on the vector-memory counter
    before anyone reads the LDS; the compiler adds none.
    """
    words = [fx.Int32(value).ir_value() for value in (nbytes, lane_offset, scalar_offset, immediate)]
    cached = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 0)
    rocdl.raw_ptr_buffer_load_async_lds(resource, lds_pointer(lds_address), *words, aux=cached)


def keep_order():
    """The compiler moves no instruction across this point."""
    fx.rocdl.sched_barrier(0)


def swap_neighbours(word):
    """The 32-bit value of the other lane of each pair of lanes (2 i, 2 i + 1)."""
    return _from_lane(word, _QUAD_PERM_1032)


def swap_pairs(word):
    """The 32-bit value of the lane two places off in each group of four lanes."""
    return _from_lane(word, _QUAD_PERM_2301)


def stay(vector):
    """The vector itself, computed here: neither sunk into a later block nor computed ahead of a loop."""
    value = vector.ir_value()
    return fx.Vector(llvm.inline_asm(value.type, [value], "", "=v,0", has_side_effects=True))


def rotate_in_row(word, by):
    """The 32-bit value of the lane `by` places before, modulo 16, in the lane's row of 16 lanes."""
    return _from_lane(word, _ROW_ROR + by)


def _from_lane(word, control):
    value = fx.Int32(word).ir_value()
    signless = ir.IntegerType.get_signless(32)
    order, full = ir.IntegerAttr.get(signless, control), ir.IntegerAttr.get(signless, 15)
    return fx.Int32(rocdl.update_dpp(value.type, value, value, order, full, full, ir.BoolAttr.get(True)))


def fp8_pack(values):
    """Four fp32 to e4m3fn in one word: nearest even; what rounds past 448 becomes NaN."""
    word, kind = fx.Int32(0), fx.Int32.ir_type
    for half in range(2):
        low, high = values[2 * half], values[2 * half + 1]
        word = fx.Int32(fx.rocdl.cvt_pk_fp8_f32(kind, low, high, word, bool(half)))
    return word


def run_text(text, clobbers, scalars, vector):
    """A text of assembly with 64-bit scalars as $0, $1, ... and one 32-bit vector behind them.

    clobbers: the registers that it changes, as LLVM constraints. Memory accesses do not cross it.
    """
    values = [fx.Int64(value).ir_value() for value in scalars] + [fx.Int32(vector).ir_value()]
    constraints = ",".join(["s"] * len(scalars) + ["v"] + ([clobbers] if clobbers else []) + ["~{memory}"])
    llvm.inline_asm(None, values, text, constraints, has_side_effects=True)
