# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""How many copies to LDS may be under way when a barrier hands them over.

Annotations of @fx.struct and @flyc.kernel are read as types, so this file does not postpone their evaluation.
"""

import flydsl.compiler as flyc
import flydsl.expr as fx

from mori_gemm_ar.kernels.device import library
from mori_gemm_ar.kernels.device.assembly import Barrier
from mori_gemm_ar.kernels.device.buffers import Buffer
from mori_gemm_ar.kernels.kernel import DeviceKernel
from mori_gemm_ar.layout.hwcheck import MAX_COPIES, CopiesConfig
from mori_gemm_ar.layout.terms import PACK_BYTES, WAVE_LANES

_WAVES = 4
_THREADS = _WAVES * WAVE_LANES
_CHUNK = WAVE_LANES * PACK_BYTES  # bytes of one copy of one wave
_CHUNK_WORDS = _CHUNK // 4
_TALLIES = _WAVES * MAX_COPIES * _CHUNK_WORDS
_CLEAN = 0xFFFFFFFF


@fx.struct
class CopiesArguments:
    """Kernel arguments in order."""

    source: fx.Int64  # iterations * MAX_COPIES chunks of one wave, all words different from 0xffffffff
    iterations: fx.Uint32
    result: fx.Int64  # for each workgroup: words current, old, late


def copies_kernel(config: CopiesConfig) -> DeviceKernel:
    """Each wave copies its chunks, all meet, and each wave reads the chunks of the next one. Grid: any."""

    @flyc.kernel(name=config.kernel_name, known_block_size=[_THREADS, 1, 1])
    def kernel(arguments: CopiesArguments):
        tid = fx.Uint32(fx.thread_idx.x)
        lane, wave = tid % WAVE_LANES, library.uniform(tid // WAVE_LANES)
        lds = fx.SharedAllocator().allocate(fx.Array[fx.Uint32, _TALLIES + _WAVES, 16]).peek().ptr
        # The address has to leave the compiler's sight, or it takes what it stored itself for all that is ever there.
        address, clean = fx.Int32(fx.ptrtoint(lds)), library.pin(fx.Uint32(_CLEAN))
        total = fx.Int64(arguments.iterations) * (MAX_COPIES * _CHUNK)
        start_copy = Buffer(arguments.source, total).copy_to_lds
        other = (wave + 1) % _WAVES
        old, count = fx.Uint32(0), fx.Uint32(0)
        put = lds.__setitem__
        for i in range(fx.Int32(arguments.iterations)):
            start = fx.Int32(fx.Uint32(i) * (MAX_COPIES * _CHUNK))
            for copy in fx.range_constexpr(MAX_COPIES):
                for word in fx.range_constexpr(4):
                    at = (wave * MAX_COPIES + copy) * _CHUNK_WORDS + word * WAVE_LANES + lane
                    put(fx.Int32(at), clean)
            Barrier.handover("clean", 0)
            for copy in fx.range_constexpr(MAX_COPIES):
                place = (wave * MAX_COPIES + copy) * _CHUNK
                start_copy(address + fx.Int32(place), fx.Int32(lane * PACK_BYTES), start + copy * _CHUNK)
            Barrier.handover("copies", config.allowed)
            missing = fx.Uint32(0)
            for copy in fx.range_constexpr(config.read):
                for word in fx.range_constexpr(4):
                    at = (other * MAX_COPIES + copy) * _CHUNK_WORDS + word * WAVE_LANES + lane
                    value = lds[fx.Int32(at)]
                    missing = missing | (fx.Uint32(value) == clean).select(fx.Uint32(1), fx.Uint32(0))
            old = old + library.any_lane(missing)
            count = count + 1
            Barrier.handover("read", 0)
        put(fx.Int32(_TALLIES + wave), old)
        Barrier.handover("tallies", 0)
        if tid == 0:
            sum_old = lds[_TALLIES]
            for one in fx.range_constexpr(1, _WAVES):
                sum_old = sum_old + lds[_TALLIES + one]
            place = arguments.result + fx.Int64(fx.Uint32(fx.block_idx.x) * 12)
            library.store_system_u32(place, count * _WAVES - sum_old)
            library.store_system_u32(place + 4, sum_old)
            library.store_system_u32(place + 8, fx.Uint32(0))

    return DeviceKernel(config.kernel_name, kernel, CopiesArguments, _THREADS)
