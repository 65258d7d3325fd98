# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Parser and control-flow graph of gfx950 ISA text, as FlyDSL's LLVM prints it. Standard library only."""

from mori_gemm_ar.isa.cfg import BasicBlock, basic_blocks
from mori_gemm_ar.isa.operands import EXEC, M0, VCC, Label, Literal, Operand, Reg, Token
from mori_gemm_ar.isa.text import ArgSlot, Instruction, IsaModule, Kernel, parse_isa

__all__ = [
    "EXEC",
    "M0",
    "VCC",
    "ArgSlot",
    "BasicBlock",
    "Instruction",
    "IsaModule",
    "Kernel",
    "Label",
    "Literal",
    "Operand",
    "Reg",
    "Token",
    "basic_blocks",
    "parse_isa",
]
