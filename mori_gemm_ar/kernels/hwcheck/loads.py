# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Kernels of the microbenchmarks, each of which does one thing that the time model has a constant for.

Annotations of @fx.struct and @flyc.kernel are read as types, so this file does not postpone their evaluation.
"""

import flydsl.compiler as flyc
import flydsl.expr as fx

from mori_gemm_ar.kernels.allreduce import sum_of_packs
from mori_gemm_ar.kernels.device import library, sdma
from mori_gemm_ar.kernels.device.memory import ElementArray, PackArray
from mori_gemm_ar.kernels.kernel import DeviceKernel
from mori_gemm_ar.layout import PACK_BYTES, WAVE_LANES
from mori_gemm_ar.layout.hwcheck import Load, LoadConfig, Scope

_RELEASES = {Scope.AGENT: library.release_agent, Scope.SYSTEM: library.release_system}


@fx.struct
class LoadArguments:
    """Kernel arguments of all loads in order."""

    base: fx.Int64  # rank 0's window
    stride: fx.Int64  # bytes from one rank's window to the next
    rank: fx.Uint32
    world: fx.Uint32
    source: fx.Int64  # offset in a window
    target: fx.Int64  # offset in a window
    nbytes: fx.Int64  # of a put, or of a slice
    blocks: fx.Uint32
    table: fx.Int64  # handles of the queues
    per_peer: fx.Uint32  # queues to each peer that there are
    queues: fx.Uint32  # of them in use
    peers: fx.Uint32  # peers that are put to
    puts: fx.Uint32  # on each queue
    budget: fx.Int64  # of one wait, in ticks of the 100 MHz clock
    result: fx.Int64  # address of a word: 1 where a wait ran out of its budget


def _nothing(config, arguments):
    pass


@flyc.jit
def _puts(config, arguments):
    """Lane p * queues + q puts on queue q to the peer p places on; the source is the own window's, never written."""
    lane = fx.Uint32(fx.thread_idx.x)
    place, queue = lane // arguments.queues, lane % arguments.queues
    peer = (arguments.rank + 1 + place) % arguments.world
    late = fx.Uint32(0)
    if place < arguments.peers:
        own = arguments.base + arguments.stride * fx.Int64(fx.Uint32(arguments.rank))
        there = arguments.base + arguments.stride * fx.Int64(peer)
        step = arguments.nbytes * fx.Int64(arguments.puts) * fx.Int64(queue)
        source, target = own + arguments.source + step, there + arguments.target + step
        handle = sdma.queue(arguments.table, peer * arguments.per_peer + queue)
        for i in range(fx.Int32(arguments.puts)):
            at = arguments.nbytes * fx.Int64(i)
            late = late | sdma.put(handle, target + at, source + at, arguments.nbytes, arguments.budget)
        late = late | sdma.drain(handle, arguments.budget)
    if late != 0:
        library.store_system_u32(arguments.result, fx.Uint32(1))


@flyc.jit
def _releases(config, arguments):
    """Each lane writes a word of its own, and each wave releases what it wrote."""
    number = fx.Uint32(fx.block_idx.x) * (config.waves * WAVE_LANES) + fx.Uint32(fx.thread_idx.x)
    own = arguments.base + arguments.stride * fx.Int64(fx.Uint32(arguments.rank))
    ElementArray(fx.Uint32, own + arguments.target, 4).store(number, number)
    fx.rocdl.s_waitcnt(vmcnt=0)
    if fx.const_expr(config.scope is not Scope.NONE):
        _RELEASES[config.scope]()
    fx.rocdl.s_waitcnt(vmcnt=0)


@flyc.jit
def _sum(config, arguments):
    """Slices of bf16 one behind the other at `source`, summed into `target`."""
    own = arguments.base + arguments.stride * fx.Int64(fx.Uint32(arguments.rank))
    inputs = [PackArray(own + arguments.source + arguments.nbytes * part) for part in range(config.parts)]
    store = PackArray(own + arguments.target).store
    packs = fx.Int32(arguments.nbytes // PACK_BYTES)
    threads = config.waves * WAVE_LANES
    first = fx.Int32(fx.block_idx.x) * threads + fx.Int32(fx.thread_idx.x)
    for pack in range(first, packs, fx.Int32(arguments.blocks) * threads):
        store(pack, sum_of_packs(inputs, pack, fx.BFloat16))


def _peers(config, arguments):
    """Addresses of `source` at the peers, the next rank first."""
    peers = [(arguments.rank + 1 + place) % arguments.world for place in range(config.parts - 1)]
    return [arguments.base + arguments.stride * fx.Int64(fx.Uint32(peer)) + arguments.source for peer in peers]


@flyc.jit
def _pull(config, arguments):
    """`nbytes` of every peer into the own window, all peers by each thread in turn."""
    threads = config.waves * WAVE_LANES
    own = arguments.base + arguments.stride * fx.Int64(fx.Uint32(arguments.rank))
    packs = fx.Int32(arguments.nbytes // PACK_BYTES)
    first = fx.Int32(fx.block_idx.x) * threads + fx.Int32(fx.thread_idx.x)
    library.acquire_system()
    loads = [PackArray(address).load for address in _peers(config, arguments)]
    targets = [own + arguments.target + arguments.nbytes * place for place in range(config.parts - 1)]
    stores = [PackArray(address).store for address in targets]
    for pack in range(first, packs, fx.Int32(arguments.blocks) * threads):
        for load, store in zip(loads, stores, strict=True):
            store(pack, load(pack))


_LOADS = {Load.NOTHING: _nothing, Load.PUTS: _puts, Load.RELEASES: _releases, Load.SUM: _sum, Load.PULL: _pull}


def load_kernel(config: LoadConfig) -> DeviceKernel:
    """The kernel of a load. Grid: one workgroup for NOTHING and PUTS, any number for the others."""
    threads = config.waves * WAVE_LANES

    @flyc.kernel(name=config.kernel_name, known_block_size=[threads, 1, 1])
    def kernel(arguments: LoadArguments):
        _LOADS[config.load](config, arguments)

    return DeviceKernel(config.kernel_name, kernel, LoadArguments, threads)
