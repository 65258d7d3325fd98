# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Litmus tests: two sides hand words over many times, and count what the reader saw.

Iteration i is known by its epoch i + 1. A side that waits in vain stops and counts one outcome "late".

Annotations of @fx.struct and @flyc.kernel are read as types, so this file does not postpone their evaluation.
"""

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from mori_gemm_ar.kernels.device import library, sdma
from mori_gemm_ar.kernels.device.memory import ElementArray
from mori_gemm_ar.kernels.kernel import DeviceKernel
from mori_gemm_ar.layout.hwcheck import Arrival, BufferingConfig, EngineConfig, MessageConfig, Path, Scope
from mori_gemm_ar.layout.terms import WAVE_LANES

WRITER, READER = 0, 1
_RELEASES = {Scope.AGENT: library.release_agent, Scope.SYSTEM: library.release_system}
_ACQUIRES = {Scope.AGENT: library.acquire_agent, Scope.SYSTEM: library.acquire_system}


@fx.struct
class LitmusArguments:
    """Kernel arguments of all tests in order. Workgroup b plays role `role` + b * `step`: writer, reader, helper."""

    role: fx.Uint32
    step: fx.Uint32
    iterations: fx.Uint32
    budget: fx.Int64  # of one wait, in ticks of the 100 MHz clock
    data: fx.Int64  # what is handed over, where the reader reads it
    source: fx.Int64  # the writer's own copy of it, which an engine reads
    flag: fx.Int64  # epoch word of the writer, polled by the reader
    answer: fx.Int64  # epoch word of the reader, polled by the writer
    signal: fx.Int64  # word that an engine counts in
    first: fx.Int64  # handle of the queue of the first put
    second: fx.Int64  # of the second one
    length: fx.Int64  # bytes of the first put; the words handed over are its last ones
    result: fx.Int64  # outcomes, one word each


def _epoch(iteration):
    return fx.Uint32(iteration) + 1


def _word(epoch):
    return fx.Uint64(epoch) << 32


def _pattern(epoch, lane):
    """What lane's word is in an iteration; never what it was in the one before."""
    return fx.Uint32(epoch) * WAVE_LANES + fx.Uint32(lane)


def _reached(address, epoch, budget):
    """1 once the word's epoch has come, 0 when the budget ran out; equal in all lanes."""
    seen = fx.Uint32(library.wait_epoch(address, epoch, budget) >> 32)
    return fx.Uint32(1) - library.any_lane((seen - epoch) >> 31)


def _fence(fences, scope):
    if scope is not Scope.NONE:
        fences[scope]()


@flyc.jit
def _tally(arguments, lane, current, old, late):
    """Store the counted outcomes."""
    if lane == 0:
        library.store_system_u32(arguments.result, current)
        library.store_system_u32(arguments.result + 4, old)
        library.store_system_u32(arguments.result + 8, late)


@flyc.jit
def _read(config, arguments, lane, data, told):
    """The reader: for each epoch that `told` shows, acquire, read, count what was seen and answer."""
    direct = isinstance(config, MessageConfig) and config.path is Path.READ_DIRECT
    load = data.load
    going, current, old, late = fx.Uint32(1), fx.Uint32(0), fx.Uint32(0), fx.Uint32(0)
    for i in range(fx.Int32(arguments.iterations)):
        if going != 0:
            before = load(lane)  # a cache now holds what was there before
            going = _reached(told, _epoch(i), arguments.budget)
            _fence(_ACQUIRES, config.acquire)
            if fx.const_expr(direct):
                seen = library.load_system_u32(arguments.data + fx.Int64(lane * 4))
            else:
                seen = load(lane)
            wrong = library.any_lane(seen ^ _pattern(_epoch(i), lane)) | library.any_lane(before & 0)
            current = current + going * (fx.Uint32(1) - wrong)
            old = old + going * wrong
            late = late + fx.Uint32(1) - going
            fx.rocdl.s_waitcnt(vmcnt=0)
            if lane == 0:
                library.store_system_u64(arguments.answer, _word(_epoch(i)))
    _tally(arguments, lane, current, old, late)


def _message_kernel(config: MessageConfig):
    def kernel(arguments: LitmusArguments):
        lane = fx.Uint32(fx.thread_idx.x)
        role = library.uniform(arguments.role + arguments.step * fx.Uint32(fx.block_idx.x))
        data = ElementArray(fx.Uint32, arguments.data, 4)
        # A helper's flag stands behind the writer's: the writer tells it, and it releases on behalf of the writer.
        told = arguments.flag if config.own_release else arguments.signal
        going = fx.Uint32(1)
        store = data.store
        place = arguments.data + fx.Int64(lane * 4)
        if role == WRITER:
            for i in range(fx.Int32(arguments.iterations)):
                if going != 0:
                    going = _reached(arguments.answer, fx.Uint32(i), arguments.budget)
                    if fx.const_expr(config.path is Path.WRITE_DIRECT):
                        library.store_system_u32(place, _pattern(_epoch(i), lane))
                    else:
                        store(lane, _pattern(_epoch(i), lane))
                    fx.rocdl.s_waitcnt(vmcnt=0)
                    if fx.const_expr(config.own_release):
                        _fence(_RELEASES, config.release)
                    if lane == 0:
                        library.store_system_u64(told, _word(_epoch(i)))
        if role == READER:
            _read(config, arguments, lane, data, arguments.flag)
        if role > READER:
            for i in range(fx.Int32(arguments.iterations)):
                if going != 0:
                    going = _reached(arguments.signal, _epoch(i), arguments.budget)
                    _fence(_RELEASES, config.release)
                    if lane == 0:
                        library.store_system_u64(arguments.flag, _word(_epoch(i)))

    return kernel


def _buffering_kernel(config: BufferingConfig):
    def kernel(arguments: LitmusArguments):
        """Own word: `flag`; the other's: `data`. `answer` and `signal` are the sides' meeting words, own and other's.

        Result: one word for each iteration behind the outcomes, 1 where the other's store was seen.
        """
        lane = fx.Uint32(fx.thread_idx.x)
        going, late = fx.Uint32(1), fx.Uint32(0)
        place = arguments.result + 64
        for i in range(fx.Int32(arguments.iterations)):
            if going != 0:
                epoch = _epoch(i)
                if lane == 0:
                    library.store_system_u64(arguments.answer, _word(epoch))
                going = _reached(arguments.signal, epoch, arguments.budget)
                late = late + fx.Uint32(1) - going
                if lane == 0:
                    library.store_system_u32(arguments.flag, epoch)
                    if fx.const_expr(config.waits):
                        fx.rocdl.s_waitcnt(vmcnt=0)
                    other = library.load_system_u32(arguments.data)
                    seen = fx.Uint32(1) - ((other - epoch) >> 31)
                    library.store_system_u32(place + fx.Int64(fx.Uint32(i) * 4), seen)
                # The next iteration's words must not be mixed up with this one's: meet again, at an odd point.
                if lane == 0:
                    library.store_system_u64(arguments.answer + 8, _word(epoch))
                going = going * _reached(arguments.signal + 8, epoch, arguments.budget)
        _tally(arguments, lane, fx.Uint32(0), fx.Uint32(0), late)

    return kernel


def _engine_kernel(config: EngineConfig):
    two = config.puts == 2

    def kernel(arguments: LitmusArguments):
        lane = fx.Uint32(fx.thread_idx.x)
        role = library.uniform(arguments.role + arguments.step * fx.Uint32(fx.block_idx.x))
        last = arguments.length - 4 * WAVE_LANES
        source = ElementArray(fx.Uint32, arguments.source + last, 4)
        data = ElementArray(fx.Uint32, arguments.data + last, 4)
        marker, marked = arguments.source + arguments.length, arguments.data + arguments.length
        store = source.store
        going = fx.Uint32(1)
        if role == WRITER:
            for i in range(fx.Int32(arguments.iterations)):
                if going != 0:
                    going = _reached(arguments.answer, fx.Uint32(i), arguments.budget)
                    epoch = _epoch(i)
                    store(lane, _pattern(epoch, lane))
                    if fx.const_expr(two):
                        if lane == 0:
                            library.store_system_u64(marker, _word(epoch))
                    fx.rocdl.s_waitcnt(vmcnt=0)
                    if fx.const_expr(config.release):
                        library.release_agent()
                    if lane == 0:
                        first, budget = arguments.first, arguments.budget
                        if fx.const_expr(config.arrival is Arrival.SIGNAL):
                            sdma.put_signal(
                                first, arguments.data, arguments.source, arguments.length, arguments.signal, budget
                            )
                        else:
                            sdma.put(first, arguments.data, arguments.source, arguments.length, budget)
                        if fx.const_expr(config.arrival is Arrival.DRAIN):
                            sdma.drain(first, budget)
                        if fx.const_expr(two):
                            sdma.put(arguments.second, marked, marker, fx.Int64(8), budget)
                        else:
                            if fx.const_expr(config.arrival is Arrival.DRAIN):
                                library.store_system_u64(arguments.flag, _word(epoch))
        if role == READER:
            # The engine counts in a low word; as an epoch it stands in a high one.
            flag = arguments.signal - 4 if config.arrival is Arrival.SIGNAL else arguments.flag
            told = marked if two else flag
            _read(config, arguments, lane, data, told)

    return kernel


_KERNELS: dict[type, Any] = {
    MessageConfig: _message_kernel,
    BufferingConfig: _buffering_kernel,
    EngineConfig: _engine_kernel,
}


def litmus_kernel(config: MessageConfig | BufferingConfig | EngineConfig) -> DeviceKernel:
    """The kernel of a test. Grid: one workgroup of one wave for each role that this rank plays."""
    function = _KERNELS[type(config)](config)
    built = flyc.kernel(function, name=config.kernel_name, known_block_size=[WAVE_LANES, 1, 1])
    return DeviceKernel(config.kernel_name, built, LitmusArguments, WAVE_LANES)
