# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The GEMM that sends its tiles to their owners while it computes.

Push by SDMA: C is stored locally. The workgroup that finishes a chunk of a destination puts it into the owner's landing
slot: every wave waits for its stores, the workgroup meets, one lane releases and counts at agent scope, and the last
arriver's acquire makes it speak for all that were counted. Push by LSA: C is stored into the owner's landing slot, and
every workgroup releases at system scope what it stored.

Annotations of @fx.struct and @flyc.kernel are read as types, so this file does not postpone their evaluation.
"""

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from mori_gemm_ar.kernels.device import library, sdma
from mori_gemm_ar.kernels.device.exchange import Exchange
from mori_gemm_ar.kernels.device.windows import Windows
from mori_gemm_ar.kernels.gemm.kernel import WAVES_PER_SIMD, exact_store, multiply
from mori_gemm_ar.kernels.gemm.operands import WAVES
from mori_gemm_ar.kernels.gemm.place import OrderedPlace, WavePlace
from mori_gemm_ar.kernels.gemm.store import WireStore
from mori_gemm_ar.kernels.kernel import DeviceKernel
from mori_gemm_ar.layout import CONTROL, SLOT_BYTES, WAVE_LANES, Phase
from mori_gemm_ar.layout.fused import FusedConfig
from mori_gemm_ar.layout.fused_rules import MAX_CHUNKS
from mori_gemm_ar.layout.fused_window import FUSED_CONTROL
from mori_gemm_ar.layout.sdma import Transport


@fx.struct
class FusedArguments:
    """Kernel arguments in order: those of GemmArguments, then what finds the tile and its owner."""

    a: fx.Int64  # e4m3fn [m, K]
    b: fx.Int64  # e4m3fn [N, K]
    c: fx.Int64  # bf16 [m, N] in the own window; not used by LSA
    a_scale: fx.Int64
    b_scale: fx.Int64
    m: fx.Uint32
    base: fx.Int64  # rank 0's window
    stride: fx.Int64  # bytes from one rank's window to the next
    rank: fx.Uint32
    slice_rows: fx.Uint32  # of a full slice
    bands: fx.Uint32  # of a full slice
    short_chunks: fx.Uint32  # chunks of `few` bands, which come first; the others have one more
    few: fx.Uint32
    by_few: fx.Uint32  # reciprocals of few and of few + 1
    by_more: fx.Uint32
    landing: fx.Int64  # offset of the slots for partial sums; one for each rank
    slot: fx.Int64  # bytes of a slot
    tag: fx.Uint32  # equal on all ranks of a call
    queues: fx.Uint32  # of each peer
    table: fx.Int64  # handles of the queues
    budget: fx.Int64  # of one wait, in ticks of the 100 MHz clock
    error: fx.Int64  # error record


class _Tile:
    """One workgroup and its tile."""

    def __init__(self, config, arguments):
        self.config, self.arguments = config, arguments
        self.n = config.gemm.n
        self.windows = Windows(config.world, arguments.base, arguments.stride, arguments.rank)
        self.place = OrderedPlace(config, arguments)
        self.tid = fx.Int32(fx.thread_idx.x)

    @flyc.jit
    def run(self):
        # The same for all waves: who has no tile takes part in nothing.
        if self.place.row < fx.Uint32(self.arguments.m):
            self.work()

    def work(self):
        multiply(self.config.gemm, self.arguments, self.place, WavePlace(self.config.gemm.tile), self.store())
        fx.rocdl.s_waitcnt(vmcnt=0)
        fx.gpu.barrier()
        self.hand_over()

    def store(self):
        return exact_store(self.config.gemm, self.target())

    def landing_at(self, row):
        """Address of the own slot in the owner's window for a row of its slice."""
        slot = self.arguments.landing + self.arguments.slot * fx.Int64(fx.Uint32(self.arguments.rank))
        return self.windows.of(self.place.dest) + slot + fx.Int64(row) * (2 * self.n)


class _Put(_Tile):
    """Push by SDMA."""

    def target(self):
        return self.arguments.c + fx.Int64(self.place.row) * (2 * self.n) + fx.Int64(self.place.column) * 2

    @flyc.jit
    def hand_over(self):
        """Count the tile, unless it is the own rank's; who completes a chunk puts it."""
        if library.uniform(self.tid) < WAVE_LANES:
            # Pinned, or both conditions become one, and the text no longer says which waves may come here.
            if library.pin_uniform_u32(self.place.dest) != fx.Uint32(self.arguments.rank):
                self.arrive()

    @flyc.jit
    def arrive(self):
        chunk = self.place.chunk_of_dest()
        place = self.place.dest * MAX_CHUNKS + chunk.number
        counter = self.windows.own + fx.Int64(FUSED_CONTROL.tile_arrivals) + fx.Int64(place * 4)
        last = chunk.bands * self.config.columns - 1
        before = fx.Uint32(0)
        if self.tid == 0:
            before = library.arrive_agent(counter, last)
        claim = library.load_agent_u32(self.windows.own + fx.Int64(CONTROL.claim))
        # A failed rank tells its peers nothing more.
        if (library.uniform(before) == last) & (library.uniform(claim) == 0):
            self.put(chunk)

    def transfer(self, chunk):
        """(source, target, bytes) of a chunk."""
        pitch = 2 * self.n
        source = self.arguments.c + fx.Int64(chunk.row) * pitch
        return source, self.landing_at(chunk.row - self.place.slice_start), fx.Int64(chunk.rows) * pitch

    @flyc.jit
    def put(self, chunk):
        source, target, nbytes = self.transfer(chunk)
        queues = fx.Uint32(self.arguments.queues)
        index = self.place.dest * queues + chunk.number % queues
        if self.tid == 0:
            handle = sdma.queue(self.arguments.table, index)
            late = self.submit(handle, target, source, nbytes, chunk)
            if late != 0:
                Exchange(self.windows, self.tid, self.arguments, Phase.SCATTER).fail(
                    Phase.SCATTER_PUT, self.place.dest, fx.Uint64(0)
                )

    def submit(self, handle, target, source, nbytes, chunk):
        return sdma.put(handle, target, source, nbytes, self.arguments.budget)


class _PutWire(_Put):
    """The same with tiles that are quantised as they are stored; `c` has a slot for each owner, the own one too.

    A band of a slot is a wire slice, so a chunk, a run of bands, is contiguous.
    """

    def __init__(self, config, arguments):
        super().__init__(config, arguments)
        self.band_bytes = config.band_bytes

    def store(self):
        gemm = self.config.gemm
        address = self.slot_at(self.arguments.c, self.place.dest) + fx.Int64(self.place.band) * self.band_bytes

        def make(place, wave, tiles):
            ragged = gemm.n % gemm.tile.n != 0
            return WireStore(address, gemm.n, gemm.tile.m, place.column, place.columns, wave, tiles, ragged)

        return make

    def slot_at(self, region, rank):
        return region + self.arguments.slot * fx.Int64(fx.Uint32(rank))

    def transfer(self, chunk):
        start = fx.Int64(chunk.start) * self.band_bytes
        landing = self.windows.of(self.place.dest) + self.arguments.landing
        source = self.slot_at(self.arguments.c, self.place.dest) + start
        target = self.slot_at(landing, self.arguments.rank) + start
        return source, target, fx.Int64(chunk.bands) * self.band_bytes


class _SignalledPut(_Put):
    """The same, and the engine tells the owner when a chunk has landed."""

    def submit(self, handle, target, source, nbytes, chunk):
        place = fx.Uint32(self.arguments.rank) * MAX_CHUNKS + chunk.number
        signal = self.windows.of(self.place.dest) + fx.Int64(FUSED_CONTROL.chunk_landed) + fx.Int64(place * SLOT_BYTES)
        return sdma.put_signal(handle, target, source, nbytes, signal, self.arguments.budget)


class _Store(_Tile):
    """Push by LSA."""

    def target(self):
        return self.landing_at(self.place.row - self.place.slice_start) + fx.Int64(self.place.column) * 2

    @flyc.jit
    def hand_over(self):
        if library.uniform(self.tid) < WAVE_LANES:
            library.release_system()


def _push_of(config: FusedConfig) -> Any:
    if config.push is Transport.LSA:
        return _Store
    if config.wire.both:
        return _PutWire
    return _SignalledPut if config.signals else _Put


def fused_kernel(config: FusedConfig) -> DeviceKernel:
    """The kernel of a config for any m > 0. Grid: FusedGrid.blocks workgroups of eight waves."""
    push = _push_of(config)

    @flyc.kernel(name=config.kernel_name, known_block_size=[WAVES * WAVE_LANES, 1, 1])
    def kernel(arguments: FusedArguments):
        push(config, arguments).run()

    return DeviceKernel(config.kernel_name, kernel, FusedArguments, WAVES * WAVE_LANES, WAVES_PER_SIMD)
