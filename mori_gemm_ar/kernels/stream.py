# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The streamed tail, two kernels. SUM: chunk by chunk, wait for all ranks' partial sums, sum the own slice's part, push
it to all ranks. END: one wave waits for the own queues and for every rank's chunks, and meets all ranks.

A chunk has arrived when every peer's engine has added one to its word in `chunk_landed`: an engine works in order, and
an addition waits for the copies before it. The last block that has summed a chunk pushes it, again with an addition at
each peer, in `chunk_summed`. How often a chunk was used stands in `chunk_calls`; END advances it.

Progress: a block waits for engines and peers only, never for another block, so any number of resident blocks will do;
it starts when the GEMM of its rank has ended, and chunks come from GEMMs, which wait for nobody.

Why slots and sums may be written again: a peer's next call starts after it has got this rank's sums of this call, which
were pushed when the slots had been read. The flags of END carry the tag, so ranks that make different calls find out.

Annotations of @fx.struct and @flyc.kernel are read as types, so this file does not postpone their evaluation.
"""

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from mori_gemm_ar.kernels.device import library, sdma
from mori_gemm_ar.kernels.device.memory import ElementArray, PackArray
from mori_gemm_ar.kernels.kernel import DeviceKernel
from mori_gemm_ar.kernels.pull import Meeting
from mori_gemm_ar.kernels.sdma import SdmaCall
from mori_gemm_ar.layout import PACK_BYTES, SLOT_BYTES, WAVE_LANES, Phase
from mori_gemm_ar.layout.fused_rules import MAX_CHUNKS
from mori_gemm_ar.layout.fused_window import FUSED_CONTROL
from mori_gemm_ar.layout.stream import STREAM_CHUNKS, StreamConfig, StreamPhase

_WAVES_PER_SIMD = 4  # arguments stay in scalar registers through the loop over chunks
_FAILED = MAX_CHUNKS + 1  # a chunk past the last one


@fx.struct
class StreamArguments:
    """Kernel arguments in order: all that differs between ranks, sizes and calls."""

    base: fx.Int64  # rank 0's window
    stride: fx.Int64  # bytes from one rank's window to the next
    rank: fx.Uint32
    blocks: fx.Uint32  # grid size
    src: fx.Int64  # own product
    dst: fx.Int64  # not used: sums are gathered in the window
    total: fx.Int64  # bytes of the product
    part: fx.Int64  # bytes of a full slice
    band: fx.Int64  # bytes of a band
    full: fx.Uint32  # ranks with a full slice: the first ones
    chunks: fx.Uint32  # of a full slice
    ragged: fx.Uint32  # chunks of the rank behind those
    short_chunks: fx.Uint32  # chunks of `few` bands, which come first; the others have one more
    few: fx.Uint32
    tag: fx.Uint32  # equal on all ranks of a call
    queues: fx.Uint32  # of each peer
    table: fx.Int64  # handles of the queues
    landing: fx.Int64  # offset of the slots; one for each rank
    slot: fx.Int64  # bytes of a slot
    reduced: fx.Int64  # offset of the gathered sums
    budget: fx.Int64  # of one wait, in ticks of the 100 MHz clock
    error: fx.Int64  # error record


class _Chunks:
    """Places of chunks, in bytes, and how many each rank's slice has."""

    def __init__(self, arguments):
        self.arguments = arguments

    def of(self, rank):
        """How many chunks a rank's slice has."""
        rank, full = fx.Uint32(rank), fx.Uint32(self.arguments.full)
        behind = (rank == full).select(fx.Uint32(self.arguments.ragged), fx.Uint32(0))
        return (rank < full).select(fx.Uint32(self.arguments.chunks), behind)

    def slice_start(self, rank):
        """First byte of a rank's slice."""
        return fx.min(self.arguments.part * fx.Int64(fx.Uint32(rank)), self.arguments.total)

    def start(self, chunk):
        """First byte of a chunk in a full slice."""
        chunk, short = fx.Uint32(chunk), fx.Uint32(self.arguments.short_chunks)
        bands = chunk * fx.Uint32(self.arguments.few) + fx.max(chunk, short) - short
        return self.arguments.band * fx.Int64(bands)


class _Counts(Meeting):
    """Lane p looks after rank p: counts of its chunks, beside its flag."""

    def __init__(self, call):
        # Pinned, or its addresses are computed ahead of loops and held in registers.
        super().__init__(call.windows, library.pin(call.tid), call.arguments, Phase.SCATTER)
        self.call, self.chunks = call, _Chunks(call.arguments)

    @flyc.jit
    def count(self, phase, words, owner, source, chunk):
        """Wait until an engine of `source` has counted a chunk of `owner`; 1, and the record, where none does."""
        calls = self.windows.own + fx.Int64(FUSED_CONTROL.chunk_calls)
        expected = library.load_agent_u32(calls + fx.Int64((owner * MAX_CHUNKS + chunk) * 4)) + 1
        word = self.windows.own + fx.Int64(words) + fx.Int64((source * MAX_CHUNKS + chunk) * SLOT_BYTES)
        late = library.wait_count(word, expected, self.budget)
        if late != 0:
            self.fail(phase, source, fx.Uint64(self.epoch - 1) << 32)
        return late

    @flyc.jit
    def landed(self, chunk):
        """Wait for a peer's partial sums of a chunk of the own slice; 1 where they do not come."""
        missed = fx.Uint32(0)
        if self.meets():
            missed = self.count(Phase.SCATTER, FUSED_CONTROL.chunk_landed, self.rank, self.lane, chunk)
        return missed

    @flyc.jit
    def push(self, chunk, start, nbytes):
        """Put bytes of the own sums to a peer, and let the engine count them there as a chunk."""
        if self.meets():
            late = self.put(chunk, start, nbytes)
            if late != 0:
                self.fail(Phase.GATHER_PUT, self.lane, fx.Uint64(0))

    def put(self, chunk, start, nbytes):
        there = self.windows.of(self.lane)
        place = self.rank * MAX_CHUNKS + chunk
        signal = there + fx.Int64(FUSED_CONTROL.chunk_summed) + fx.Int64(place * SLOT_BYTES)
        target, source = there + self.call.arguments.reduced + start, self.call.own_reduced + start
        handle = sdma.queue(self.table, self.lane * self.queues + chunk % self.queues)
        return sdma.put_signal(handle, target, source, nbytes, signal, self.budget)

    @flyc.jit
    def finish(self):
        """The call is over on this rank when the own queues have drained and all ranks and their chunks are here."""
        missed = self.everything()
        library.acquire_system()
        if library.any_lane(missed) == 0:
            self.advance()
        self.publish_if(library.any_lane(missed) == 0)

    @flyc.jit
    def everything(self):
        """1 where an own queue does not drain, a rank does not come, or one of its chunks does not."""
        missed = fx.Uint32(0)
        if self.serves():
            missed = self.undrained()
        if library.any_lane(missed) == 0:
            if self.meets():
                missed = self.meet()
            if library.any_lane(missed) == 0:
                missed = self.not_gathered()
        return missed

    @flyc.jit
    def judge(self, seen):
        """A rank that made another call is named before those that miss its chunks and so stay away."""
        if (seen != self.word) & (fx.Uint32(seen >> 32) == self.epoch):
            self.fail(self.phase, self.lane, seen)
        return Meeting.judge(self, seen)

    @flyc.jit
    def undrained(self):
        late = sdma.drain(sdma.queue(self.table, self.lane), self.budget)
        if late != 0:
            self.fail(Phase.GATHER_PUT, self.peer, fx.Uint64(0))
        return late

    @flyc.jit
    def not_gathered(self):
        """Every lane looks after one chunk of one rank."""
        missed = fx.Uint32(0)
        owner, chunk = self.lane // STREAM_CHUNKS, self.lane % STREAM_CHUNKS
        if (owner != self.rank) & (chunk < self.chunks.of(owner)):
            missed = self.count(Phase.GATHER, FUSED_CONTROL.chunk_summed, owner, owner, chunk)
        return missed

    @flyc.jit
    def advance(self):
        """One more call for each chunk that there was."""
        owner, chunk = self.lane // STREAM_CHUNKS, self.lane % STREAM_CHUNKS
        calls = ElementArray(fx.Uint32, self.windows.own + fx.Int64(FUSED_CONTROL.chunk_calls), align=4)
        load, store, at = calls.load, calls.store, owner * MAX_CHUNKS + chunk
        if chunk < self.chunks.of(owner):
            store(at, load(at) + 1)


class _Sum(SdmaCall):
    """One workgroup. `chunk` counts those of the own slice."""

    def __init__(self, config, arguments):
        super().__init__(config, arguments)
        # One LDS word tells all waves what wave 0 saw: zero, or that the kernel has to end.
        self.failed = fx.SharedAllocator().allocate(fx.Array[fx.Uint32, 1, 4]).peek().ptr
        self.failed.store(fx.Uint32(0))
        self.chunks = _Chunks(arguments)
        self.start = self.chunks.slice_start(arguments.rank)
        self.nbytes = self.chunks.slice_start(fx.Uint32(arguments.rank) + 1) - self.start

    @flyc.jit
    def run(self):
        chunk, chunks = fx.Int32(0), fx.Int32(self.chunks.of(self.arguments.rank))
        while chunk < chunks:
            if self.arrived(chunk):
                self.sum(fx.Uint32(library.pin_uniform_u32(chunk)))
                chunk = chunk + 1
            else:
                chunk = fx.Int32(_FAILED)

    @flyc.jit
    def arrived(self, chunk):
        """Wait for all ranks' partial sums of a chunk; whether they came. The same in every thread of the block."""
        fx.gpu.barrier()
        if library.uniform(self.tid) < WAVE_LANES:
            self.wait(fx.Uint32(chunk))
            library.acquire_system()
        fx.gpu.barrier()
        return library.uniform(self.failed.load()) == 0

    @flyc.jit
    def wait(self, chunk):
        missed = fx.Uint32(1)
        if self.works():
            missed = self.landed(chunk)
        if missed != 0:
            self.failed.store(fx.Uint32(1))

    def landed(self, chunk):
        return _Counts(self).landed(chunk)

    @flyc.jit
    def sum(self, chunk):
        """Sum the chunk into the own rows of the output; the last block to finish pushes it."""
        offset = self.chunks.start(chunk)
        nbytes = fx.min(self.chunks.start(chunk + 1), self.nbytes) - offset
        own = self.arguments.src + self.start
        inputs = [PackArray(address + offset) for address in self.in_rank_order(own)]
        store, sum_packs = PackArray(self.own_reduced + self.start + offset).store, self.sum_packs
        for pack in range(self.first, fx.Int32(nbytes // PACK_BYTES), self.jump):
            store(pack, sum_packs(inputs, pack))
        fx.rocdl.s_waitcnt(vmcnt=0)
        fx.gpu.barrier()
        if library.uniform(self.tid) < WAVE_LANES:
            self.hand_on(chunk, self.start + offset, nbytes)

    @flyc.jit
    def hand_on(self, chunk, start, nbytes):
        """Release, and count this block; the last one pushes the chunk, unless something has failed."""
        counter = self.windows.own + fx.Int64(FUSED_CONTROL.chunk_arrivals) + fx.Int64(chunk * 4)
        last = fx.Uint32(self.arguments.blocks) - 1
        before = fx.Uint32(0)
        # System scope: with another size the same bytes belong to a peer, whose engine writes them.
        library.release_system()
        if self.tid == 0:
            before = library.count_agent(counter, last)
        library.acquire_agent()
        if (library.uniform(before) == last) & self.works():
            self.push_chunk(chunk, start, nbytes)

    def push_chunk(self, chunk, start, nbytes):
        _Counts(self).push(chunk, start, nbytes)


class _End(SdmaCall):
    """One wave."""

    @flyc.jit
    def run(self):
        if self.works():
            self.finish()

    def finish(self):
        _Counts(self).finish()


_PHASES: dict[StreamPhase, Any] = {StreamPhase.SUM: _Sum, StreamPhase.END: _End}


def stream_kernel(config: StreamConfig) -> DeviceKernel:
    """The kernel of a phase: any rank, any size and any grid of `config.threads` threads, equal on all ranks."""
    phase = _PHASES[config.phase]

    @flyc.kernel(name=config.kernel_name, known_block_size=[config.threads, 1, 1])
    def kernel(arguments: StreamArguments):
        phase(config, arguments).run()

    waves = _WAVES_PER_SIMD if config.phase is StreamPhase.SUM else None
    return DeviceKernel(config.kernel_name, kernel, StreamArguments, config.threads, waves)
