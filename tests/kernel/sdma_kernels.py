# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Small kernels that give work to copy engines, and a GPU with queues to run them on.

Annotations of @fx.struct and @flyc.kernel are read as types, so this file does not postpone their evaluation.
"""

import functools

import flydsl.compiler as flyc
import flydsl.expr as fx

from mori_gemm_ar.compile.build import build_kernel
from mori_gemm_ar.compile.store import CodeObject
from mori_gemm_ar.kernels.device import library, sdma
from mori_gemm_ar.kernels.device.memory import ElementArray
from mori_gemm_ar.kernels.kernel import DeviceKernel

WAVE = 64


@fx.struct
class PutArguments:
    """Lane i of the first wave of a block uses queue `first + i`."""

    table: fx.Int64
    first: fx.Uint32
    lanes: fx.Uint32  # how many lanes post
    puts: fx.Uint32  # by each lane
    dst: fx.Int64  # of lane 0 of block 0
    src: fx.Int64
    step: fx.Int64  # from the bytes of one put to the next, over all puts, lanes and blocks
    nbytes: fx.Int64
    signal: fx.Int64  # word that signals count in
    budget: fx.Int64
    result: fx.Int64  # two words per block and lane: late puts, late drain


@functools.cache
def build_put(waves: int = 1, release: bool = True, signal: bool = False, drain: bool = True) -> CodeObject:
    """`puts` puts per lane of every wave, then a drain; every wave of a block uses the same queues."""

    def kernel(arguments: PutArguments):
        lane = fx.Uint32(fx.thread_idx.x) % WAVE
        wave = fx.Uint32(fx.block_idx.x) * waves + fx.Uint32(fx.thread_idx.x) // WAVE
        number = wave * arguments.lanes + lane
        handle = fx.Int64(0)
        at = arguments.step * fx.Int64(number * arguments.puts)
        late, stuck = fx.Uint32(0), fx.Uint32(0)
        if release:
            library.release_agent()
        if lane < arguments.lanes:
            handle = sdma.queue(arguments.table, arguments.first + lane)
            for _ in range(fx.Int32(arguments.puts)):
                if fx.const_expr(signal):
                    late = late + sdma.put_signal(
                        handle, arguments.dst + at, arguments.src + at, arguments.nbytes, arguments.signal,
                        arguments.budget,
                    )  # fmt: skip
                else:
                    late = late + sdma.put(
                        handle, arguments.dst + at, arguments.src + at, arguments.nbytes, arguments.budget
                    )
                at = at + arguments.step
            if fx.const_expr(drain):
                stuck = sdma.drain(handle, arguments.budget)
            place = arguments.result + fx.Int64(number * 8)
            library.store_system_u32(place, late)
            library.store_system_u32(place + 4, stuck)

    name = f"put_{waves}{'_release' * release}{'_signal' * signal}{'_drain' * drain}"
    built = flyc.kernel(kernel, name=name, known_block_size=[waves * WAVE, 1, 1])
    return build_kernel(DeviceKernel(name, built, PutArguments, waves * WAVE), key=name)


# --- handing data over to a peer through an engine ---

HANDOVER_THREADS = 128


@fx.struct
class SendArguments:
    handle: fx.Int64  # of the queue
    src: fx.Int64  # one word per thread, own memory
    dst: fx.Int64  # the same, the peer's
    flag: fx.Int64  # the peer's word: epoch << 32
    signal: fx.Int64  # word that the engine counts in
    epoch: fx.Uint32
    budget: fx.Int64


@functools.cache
def build_send(release: bool = True, wait: str = "drain", early: bool = False) -> CodeObject:
    """Write, release, put, wait, raise the flag. `wait`: drain, signal (poll the engine's counter) or none.

    `early`: the flag is raised before the wait.
    """

    def kernel(arguments: SendArguments):
        tid = fx.Uint32(fx.thread_idx.x)
        src = ElementArray(fx.Uint32, arguments.src, 4)
        src.store(tid, tid * 3 + arguments.epoch)
        fx.rocdl.s_waitcnt(vmcnt=0)
        fx.gpu.barrier()
        word = fx.Uint64(arguments.epoch) << 32
        nbytes, budget = fx.Int64(4 * HANDOVER_THREADS), arguments.budget
        if tid == 0:
            if fx.const_expr(release):
                library.release_agent()
            if fx.const_expr(wait == "signal"):
                sdma.put_signal(arguments.handle, arguments.dst, arguments.src, nbytes, arguments.signal, budget)
            else:
                sdma.put(arguments.handle, arguments.dst, arguments.src, nbytes, budget)
            if fx.const_expr(early):
                library.store_system_u64(arguments.flag, word)
            if fx.const_expr(wait == "drain"):
                sdma.drain(arguments.handle, budget)
            if fx.const_expr(wait == "signal"):
                # The counter's low word is the number of calls; as an epoch it stands in the high one.
                library.wait_epoch(arguments.signal - 4, arguments.epoch, budget)
            if fx.const_expr(not early):
                library.store_system_u64(arguments.flag, word)

    name = f"send{'_release' * release}_{wait}{'_early' * early}"
    built = flyc.kernel(kernel, name=name, known_block_size=[HANDOVER_THREADS, 1, 1])
    return build_kernel(DeviceKernel(name, built, SendArguments, HANDOVER_THREADS), key=name)


@fx.struct
class ReceiveArguments:
    flag: fx.Int64
    dst: fx.Int64  # what the engine of the peer wrote
    out: fx.Int64
    epoch: fx.Uint32
    budget: fx.Int64


@functools.cache
def build_receive(acquire: str = "system") -> CodeObject:
    """Wait for the flag, acquire at a scope or not at all, read."""

    def kernel(arguments: ReceiveArguments):
        tid = fx.Uint32(fx.thread_idx.x)
        dst = ElementArray(fx.Uint32, arguments.dst, 4)
        out = ElementArray(fx.Uint32, arguments.out, 4)
        library.wait_epoch(arguments.flag, arguments.epoch, arguments.budget)
        if fx.const_expr(acquire == "system"):
            library.acquire_system()
        if fx.const_expr(acquire == "agent"):
            library.acquire_agent()
        out.store(tid, dst.load(tid))

    name = f"receive_{acquire}"
    built = flyc.kernel(kernel, name=name, known_block_size=[HANDOVER_THREADS, 1, 1])
    return build_kernel(DeviceKernel(name, built, ReceiveArguments, HANDOVER_THREADS), key=name)
