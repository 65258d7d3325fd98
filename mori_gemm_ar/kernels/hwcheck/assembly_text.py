# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""A kernel around a text of assembly, so that any instruction reaches any target by the compiler's own assembler.

Annotations of @fx.struct and @flyc.kernel are read as types, so this file does not postpone their evaluation.
"""

import flydsl.compiler as flyc
import flydsl.expr as fx

from mori_gemm_ar.kernels.device import assembly
from mori_gemm_ar.kernels.kernel import DeviceKernel
from mori_gemm_ar.layout.hwcheck import AssemblyConfig
from mori_gemm_ar.layout.terms import WAVE_LANES


@fx.struct
class AssemblyArguments:
    """Kernel arguments in order; each step is the bytes from one workgroup's part to the next."""

    source: fx.Int64
    source_step: fx.Int64
    result: fx.Int64
    result_step: fx.Int64
    memory: fx.Int64
    memory_step: fx.Int64


def assembly_kernel(config: AssemblyConfig) -> DeviceKernel:
    """The kernel of a text. Grid: any number of workgroups of one wave."""

    @flyc.kernel(name=config.kernel_name, known_block_size=[WAVE_LANES, 1, 1])
    def kernel(arguments: AssemblyArguments):
        lane, block = fx.Uint32(fx.thread_idx.x), fx.Int64(fx.Uint32(fx.block_idx.x))
        if config.lds_bytes:
            words = fx.Array[fx.Uint32, config.lds_bytes // 4, 16]
            place = fx.SharedAllocator().allocate(words).peek().ptr
            (place + fx.Int32(lane)).store(fx.Uint32(0))
        addresses = [
            arguments.source + arguments.source_step * block,
            arguments.result + arguments.result_step * block,
            arguments.memory + arguments.memory_step * block,
        ]
        assembly.run_text(config.text, config.clobbers, addresses, lane * 4)

    return DeviceKernel(config.kernel_name, kernel, AssemblyArguments, WAVE_LANES)
