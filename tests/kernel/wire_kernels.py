# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Kernels that do nothing but quantise to a wire slice and widen it, one for each pattern of lanes.

Annotations of @fx.struct and @flyc.kernel are read as types, so this file does not postpone their evaluation.
"""

import flydsl.compiler as flyc
import flydsl.expr as fx

from mori_gemm_ar.compile.build import build_kernel
from mori_gemm_ar.compile.store import CodeObject
from mori_gemm_ar.kernels.device import wire
from mori_gemm_ar.kernels.device.memory import ElementArray
from mori_gemm_ar.kernels.kernel import DeviceKernel
from mori_gemm_ar.layout import Wire

THREADS = 64
ROW = 512  # columns of the row kernel: one run in each lane of a wave


@fx.struct
class WireArguments:
    x: fx.Int64  # fp32 [numel]
    slice: fx.Int64  # wire slice of numel elements
    back: fx.Int64  # fp32 [numel]
    numel: fx.Uint32  # whole blocks of 512, or of 64 for one element in each lane


def _build(function, name: str) -> CodeObject:
    kernel = flyc.kernel(function, name=name, known_block_size=[THREADS, 1, 1])
    return build_kernel(DeviceKernel(name, kernel, WireArguments, THREADS), key=name)


def build_runs(kind: Wire) -> CodeObject:
    """Eight elements in each lane; groups in quads, or rows of 512 in waves. Grid numel / 512."""

    def kernel(arguments: WireArguments):
        run = fx.Uint32(fx.block_idx.x) * THREADS + fx.Uint32(fx.thread_idx.x)
        x, back = (ElementArray(fx.Float32, address, 4) for address in (arguments.x, arguments.back))
        values = [x.load(run * 8 + i) for i in range(8)]
        lanes = wire.Waves if kind.per_row else wire.Quads
        scale = wire.SCALES[kind](lanes.largest(wire.magnitude(values)))
        out = wire.WireSliceArray(kind, arguments.slice, arguments.numel)
        words = wire.quantise(values, scale)
        index = fx.Uint32(fx.block_idx.x) if kind.per_row else run // 4
        if kind.per_row:
            out.store(run, words)
            out.store_scale(index, scale.code)
        else:
            nbytes = arguments.numel + arguments.numel // 32
            wire.QuadWriter(arguments.slice, nbytes, arguments.numel).store(run, words, scale.code)
        fx.rocdl.s_waitcnt(vmcnt=0)
        fx.gpu.barrier()
        for i, value in enumerate(wire.widen(out.load(run), wire.SCALES[kind].value(out.load_scale(index)))):
            back.store(run * 8 + i, value)

    return _build(kernel, f"wire_runs_{kind.label}")


def build_elements() -> CodeObject:
    """One element in each lane, a group in each half of a wave. Grid numel / 64."""

    def kernel(arguments: WireArguments):
        at = fx.Uint32(fx.block_idx.x) * THREADS + fx.Uint32(fx.thread_idx.x)
        x, back = (ElementArray(fx.Float32, address, 4) for address in (arguments.x, arguments.back))
        value = x.load(at)
        scale = wire.MxScale(wire.HalfWaves.largest(wire.magnitude([value])))
        out = wire.WireSliceArray(Wire.FP8, arguments.slice, arguments.numel)
        out.bytes.store(at, fx.Uint8(wire.quantise_one(value, scale)))
        out.store_scale(at // 32, scale.code)
        fx.rocdl.s_waitcnt(vmcnt=0)
        fx.gpu.barrier()
        byte, code = fx.Uint32(out.bytes.load(at)), out.load_scale(at // 32)
        back.store(at, wire.widen_one(byte, wire.MxScale.value(code)))

    return _build(kernel, "wire_elements")
