# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The copy-engine all-reduce: scatter, reduce and gather, three kernels in a row.

Rank r owns a run of packs of the payload. Scatter: one wave puts every peer's slice into the slot that the peer keeps
for this rank. Reduce: all blocks sum the slots in fp32 in rank order and round once, as load and store do; the last
block to finish puts the sums to all peers. Gather: copy all slices to the caller.

Why no barrier comes before the puts: a slot is read until its owner has reduced, and the owner's sums, without which
no call ends, come after that. Likewise for the gathered slices: the next ones need this rank's next scatter.

Annotations of @fx.struct and @flyc.kernel are read as types, so this file does not postpone their evaluation.
"""

from pathlib import Path
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.kernels.allreduce import CALLER_ALIGN, ELEMENTS, sum_in_order, sum_of_packs
from mori_gemm_ar.kernels.device import library, sdma
from mori_gemm_ar.kernels.device.exchange import Exchange
from mori_gemm_ar.kernels.device.memory import ElementArray, PackArray
from mori_gemm_ar.kernels.device.submit import submit_code
from mori_gemm_ar.kernels.device.windows import Windows
from mori_gemm_ar.kernels.kernel import DeviceKernel
from mori_gemm_ar.layout import CONTROL, PACK_BYTES, WAVE_LANES, Phase
from mori_gemm_ar.layout.sdma import SdmaConfig, SdmaPhase


@fx.struct
class SdmaArguments:
    """Kernel arguments of all phases in order: all that differs between ranks, sizes and calls."""

    base: fx.Int64  # rank 0's window
    stride: fx.Int64  # bytes from one rank's window to the next
    rank: fx.Uint32
    blocks: fx.Uint32  # grid size
    src: fx.Int64  # local input
    dst: fx.Int64  # local result
    total: fx.Int64  # bytes of the payload
    part: fx.Int64  # bytes of a full slice, whole packs
    tag: fx.Uint32  # equal on all ranks of a call
    queues: fx.Uint32  # of each peer
    table: fx.Int64  # handles of the queues
    landing: fx.Int64  # offset of the slots; one for each rank
    slot: fx.Int64  # bytes of a slot
    reduced: fx.Int64  # offset of the gathered slices
    budget: fx.Int64  # of one wait, in ticks of the 100 MHz clock
    error: fx.Int64  # error record


class SdmaCall:
    """What all phases share, whatever the wire: this thread's place, and whether a kernel has failed."""

    def __init__(self, config, arguments, submit=sdma):
        self.config, self.arguments, self.world, self.submit = config, arguments, config.world, submit
        self.element = ELEMENTS[config.dtype]
        self.tid, self.block = fx.Int32(fx.thread_idx.x), fx.Int32(fx.block_idx.x)
        self.first = self.block * config.threads + self.tid
        self.jump = fx.Int32(arguments.blocks) * config.threads
        self.windows = Windows(config.world, arguments.base, arguments.stride, arguments.rank)
        self.own_reduced = self.windows.own + arguments.reduced

    def works(self):
        """Whether no kernel of this op has failed: a failed rank tells its peers nothing more."""
        return library.uniform(library.load_agent_u32(self.windows.own + fx.Int64(CONTROL.claim))) == 0

    @flyc.jit
    def acquire(self):
        """What peers' engines wrote, for all waves of the block."""
        if library.uniform(self.tid) < WAVE_LANES:
            library.acquire_system()
        fx.gpu.barrier()

    def in_rank_order(self, own):
        """Addresses of the own slice's partial sums: `own`, and what peers put into their slots."""
        slots = self.windows.own + self.arguments.landing
        rank = fx.Uint32(self.arguments.rank)
        addresses = []
        for peer in range(self.world):
            addresses.append((rank == peer).select(own, slots + self.arguments.slot * peer))
        return addresses

    @flyc.jit
    def hand_over(self, start, nbytes):
        """Wait for what this block wrote, release and count it; the last block goes on for all: push(start, nbytes).

        System scope, because with another size the same bytes belong to a peer, whose engine writes them.
        """
        fx.rocdl.s_waitcnt(vmcnt=0)
        fx.gpu.barrier()
        if library.uniform(self.tid) < WAVE_LANES:
            self.arrive(start, nbytes)

    @flyc.jit
    def arrive(self, start, nbytes):
        counter = self.windows.own + fx.Int64(CONTROL.copy_arrivals)
        last = fx.Uint32(self.arguments.blocks) - 1
        before = fx.Uint32(0)
        library.release_system()
        if self.tid == 0:
            before = library.count_agent(counter, last)
        library.acquire_agent()
        if (library.uniform(before) == last) & self.works():
            self.push(start, nbytes)

    def push(self, start, nbytes):
        """Put the own sums to all peers, into the same place of `reduced`, and meet them: the call is over."""
        exchange = Exchange(self.windows, self.tid, self.arguments, Phase.GATHER, self.submit)
        source = self.own_reduced + start
        target = self.windows.of(exchange.peer) + self.arguments.reduced + start
        exchange.publish_if(exchange.run(source, target, nbytes))

    def put_slices(self, source, nbytes):
        """Put to every peer what source(peer) and nbytes(peer) say, into its slot for this rank, and meet all ranks."""
        exchange = Exchange(self.windows, self.tid, self.arguments, Phase.SCATTER, self.submit)
        self.put_through(exchange, source, nbytes)

    def put_through(self, exchange, source, nbytes):
        """The same through an exchange of the caller's; whether all ranks came."""
        slot = self.arguments.landing + self.arguments.slot * fx.Int64(fx.Uint32(self.arguments.rank))
        peer = exchange.peer
        return exchange.run(source(peer), self.windows.of(peer) + slot, nbytes(peer))

    def sum_packs(self, arrays, pack):
        return sum_of_packs(arrays, pack, self.element)


class PushSlices:
    """Scatter by one wave of the caller's own memory. Part of a kernel's class, which has slices of bytes."""

    @flyc.jit
    def run(self):
        if self.works():
            self.put_slices(self.slice_source, self.source_bytes)


class _Call(SdmaCall):
    """Slices of bytes."""

    def __init__(self, config, arguments, submit):
        super().__init__(config, arguments, submit)
        self.packed = arguments.total & fx.Int64(-PACK_BYTES)

    def slice_start(self, rank):
        """First byte of a rank's slice."""
        return fx.min(self.arguments.part * fx.Int64(rank), self.packed)

    def slice_source(self, rank):
        """Address of a rank's slice of the input."""
        return self.arguments.src + self.slice_start(rank)

    def source_bytes(self, rank):
        """Bytes of a rank's slice; the last one takes what follows the whole packs."""
        end = fx.min(self.arguments.part * fx.Int64(fx.Uint32(rank) + 1), self.packed)
        last = fx.Uint32(rank) == self.world - 1
        return last.select(self.arguments.total, end) - self.slice_start(rank)

    def count(self, nbytes):
        """Elements in less than a pack of bytes."""
        return fx.Int32(nbytes) // (self.element.width // 8)

    def behind(self, packs):
        """This thread's element behind that many packs."""
        return packs * (PACK_BYTES * 8 // self.element.width) + self.first


class _Scatter(PushSlices, _Call):
    """One wave: put every peer's slice into its slot for this rank, and meet all ranks."""


class _Reduce(_Call):
    """Sum the own slice into the window; the last block to finish puts it to all peers and meets them."""

    @flyc.jit
    def run(self):
        self.acquire()
        rank = self.arguments.rank
        start, nbytes = self.slice_start(rank), self.source_bytes(rank)
        partials = self.in_rank_order(self.arguments.src + start)
        self.sum(partials, start, nbytes)
        self.hand_over(start, nbytes)

    @flyc.jit
    def sum(self, partials, start, nbytes):
        inputs = [PackArray(address, CALLER_ALIGN) for address in partials]
        to, packs = self.own_reduced + start, fx.Int32(nbytes // PACK_BYTES)
        store, sum_packs = PackArray(to).store, self.sum_packs
        for pack in range(self.first, packs, self.jump):
            store(pack, sum_packs(inputs, pack))
        tail = self.count(nbytes - fx.Int64(packs) * PACK_BYTES)
        elements, store_element = self.elements(partials), self.elements([to])[0].store
        at, sum_elements = self.behind(packs), self.sum_elements
        if self.first < tail:
            store_element(at, sum_elements(elements, at))

    def elements(self, addresses):
        return [ElementArray(self.element, address, CALLER_ALIGN) for address in addresses]

    def sum_elements(self, arrays, at):
        return sum_in_order([array.load(at) for array in arrays], self.element)


class _Gather(_Call):
    """Copy the gathered slices to the caller."""

    @flyc.jit
    def run(self):
        self.acquire()
        load = PackArray(self.own_reduced).load
        store = PackArray(self.arguments.dst, CALLER_ALIGN).store
        packs = fx.Int32(self.packed // PACK_BYTES)
        for pack in range(self.first, packs, self.jump):
            store(pack, load(pack))
        tail = self.count(self.arguments.total - self.packed)
        load_element = ElementArray(self.element, self.own_reduced, CALLER_ALIGN).load
        store_element = ElementArray(self.element, self.arguments.dst, CALLER_ALIGN).store
        at = self.behind(packs)
        if self.first < tail:
            store_element(at, load_element(at))


_PHASES: dict[SdmaPhase, Any] = {SdmaPhase.SCATTER: _Scatter, SdmaPhase.REDUCE: _Reduce, SdmaPhase.GATHER: _Gather}


def sdma_kernel(config: SdmaConfig, bitcode: Path | None = None) -> DeviceKernel:
    """The kernel of a phase: any rank, any size and any grid of `config.threads` threads; `bitcode` as in `submit`."""
    if config.wire.lossy:
        raise ConfigError(f"wire={config.wire.value!r} must be 'exact' here; kernels.sdma_wire makes the others")
    phase, submit = _PHASES[config.phase], submit_code(bitcode)

    @flyc.kernel(name=config.kernel_name, known_block_size=[config.threads, 1, 1])
    def kernel(arguments: SdmaArguments):
        phase(config, arguments, submit).run()

    return DeviceKernel(config.kernel_name, kernel, SdmaArguments, config.threads)
