# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The tail of a GEMM whose gather is a pull: meet, sum and pull, three kernels.

Partial sums are in the landing slots when all ranks have met. Every block that sums releases at system scope what it
stored, because peers load it. A rank enters the pull when its sum kernel has ended, so the barrier of a pulling block
with its namesakes says that all sums of all ranks are there. Why nothing else is needed: a slice of sums, and a slot,
is written again only after this rank's next meeting, which a peer joins when its pull of this call is over.

Annotations of @fx.struct and @flyc.kernel are read as types, so this file does not postpone their evaluation.
"""

from types import MappingProxyType
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from mori_gemm_ar.kernels.allreduce import CALLER_ALIGN, WAVES_PER_SIMD
from mori_gemm_ar.kernels.device import library
from mori_gemm_ar.kernels.device.barrier import BlockBarrier
from mori_gemm_ar.kernels.device.error_record import write_error
from mori_gemm_ar.kernels.device.exchange import Exchange
from mori_gemm_ar.kernels.device.memory import BoundedPackArray, ElementArray, PackArray
from mori_gemm_ar.kernels.kernel import DeviceKernel
from mori_gemm_ar.kernels.sdma import SdmaArguments, SdmaCall
from mori_gemm_ar.kernels.wire_work import GroupWork, late
from mori_gemm_ar.layout import PACK_BYTES, WAVE_LANES, Phase, Wire
from mori_gemm_ar.layout.fused_window import FUSED_CONTROL
from mori_gemm_ar.layout.pull import PullConfig, PullPhase
from mori_gemm_ar.layout.sdma import Transport
from mori_gemm_ar.layout.wire_terms import GROUP, RUN


class Meeting(Exchange):
    """Epoch and flags of its own, or those of the other tail would fall behind while only this one runs."""

    epoch_offset = FUSED_CONTROL.meet_epoch
    flags = MappingProxyType({Phase.SCATTER: FUSED_CONTROL.meet_flags})

    @flyc.jit
    def run_without_engines(self):
        """Meet all ranks; whether all came. What peers need of this one is released."""
        missed = fx.Uint32(0)
        if self.meets():
            missed = self.meet()
        return library.any_lane(missed) == 0


class _PullBarrier(BlockBarrier):
    """One phase, with rows and epochs of its own. A rank that has failed tells its peers nothing and does not wait."""

    def __init__(self, windows, block, tid, call, alive):
        super().__init__(windows, block, tid, call, (Phase.ENTRY, Phase.ENTRY))
        self.alive = alive
        self.budget = alive.select(self.budget, fx.Int64(0))
        self.first_row = FUSED_CONTROL.pull
        self.epochs = ElementArray(fx.Uint32, windows.own + fx.Int64(FUSED_CONTROL.pull_epochs), align=4)
        self.epoch = self.epochs.load(block) + 1
        self.word = (fx.Uint64(self.epoch) << 32) | fx.Uint64(self.tag)

    @flyc.jit
    def signal(self, number, peer):
        if self.alive:
            BlockBarrier.signal(self, number, peer)

    def _record(self, number, peer, seen):
        seen_words = (fx.Uint32(seen >> 32), fx.Uint32(seen))
        phase = fx.Uint32(int(Phase.PULL))
        write_error(self.error, phase, self.rank, peer, self.block, (self.epoch, self.tag), seen_words)


class _Call(SdmaCall):
    """Slices of whole packs; `part` bytes each, cut at `total`. `reduced`: the own slice of sums."""

    def slice_start(self, rank):
        """First byte of a rank's slice."""
        return fx.min(self.arguments.part * fx.Int64(fx.Uint32(rank)), self.arguments.total)

    def slice_bytes(self, rank):
        """Bytes of a rank's slice."""
        return self.slice_start(fx.Uint32(rank) + 1) - self.slice_start(rank)

    def partials(self):
        """Addresses of the own slice's partial sums in rank order; `src` is where the own product would begin."""
        return self.in_rank_order(self.arguments.src + self.slice_start(self.arguments.rank))

    @flyc.jit
    def release(self):
        """Peers load what this block stored."""
        fx.rocdl.s_waitcnt(vmcnt=0)
        fx.gpu.barrier()
        if library.uniform(self.tid) < WAVE_LANES:
            library.release_system()


class _Meet(_Call):
    """Meet all ranks, unless this one has failed. met(exchange) says whether all came."""

    @flyc.jit
    def run(self):
        if self.works():
            self.meet()

    def meet(self):
        exchange = Meeting(self.windows, self.tid, self.arguments, Phase.SCATTER)
        exchange.publish_if(self.met(exchange))


class _MeetEngines(_Meet):
    """First put what the GEMM has not put, and wait for the queues."""

    def met(self, exchange):
        return self.put_through(exchange, self.slice_source, self.slice_bytes)

    def slice_source(self, rank):
        return self.arguments.src + self.slice_start(rank)


class _MeetStores(_Meet):
    """The GEMM has stored into the peers' windows and released it."""

    def met(self, exchange):
        return exchange.run_without_engines()


class _Sum(_Call):
    """Sum the own slice, exact."""

    @flyc.jit
    def run(self):
        self.acquire()
        inputs = [PackArray(address, CALLER_ALIGN) for address in self.partials()]
        packs = fx.Int32(self.slice_bytes(self.arguments.rank) // PACK_BYTES)
        store, sum_packs = PackArray(self.own_reduced).store, self.sum_packs
        for pack in range(self.first, packs, self.jump):
            store(pack, sum_packs(inputs, pack))
        self.release()


class _Pull(_Call):
    """Load every rank's slice into the result."""

    def __init__(self, config, arguments):
        super().__init__(config, arguments)
        self.barrier = _PullBarrier(self.windows, self.block, self.tid, arguments, self.works())

    @flyc.jit
    def run(self):
        if self.barrier.meet(fx.Int32(0)):
            self.load_slices(fx.Int32(library.pin(self.first)))
            self.barrier.publish()

    @flyc.jit
    def load_slices(self, first):
        part = fx.Int32(self.arguments.part // PACK_BYTES)
        stations = self.windows.around_ring(self.arguments.reduced, part)
        slices = [(PackArray(address), start) for address, start in stations]
        store = BoundedPackArray(self.arguments.dst, self.arguments.total // PACK_BYTES, CALLER_ALIGN).store
        for pack in range(first, part, self.jump):
            # A short slice is read past its end, inside the window; the bound of dst drops those stores.
            loaded = [array.load(pack) for array, _ in slices]
            for (_, start), value in zip(slices, loaded, strict=True):
                store(fx.Uint32(pack) + fx.Uint32(start), value)


class _Groups(GroupWork, _Call):
    """e4m3 with a scale for each group of 32; slices are whole groups, so there is no tail."""

    def measure(self):
        """Sizes, computed where a phase needs them, for the reason of `late`."""
        part, total = (library.pin_uniform_i64(value) for value in (self.arguments.part, self.arguments.total))
        self.elements = fx.Uint32(part // 2)
        self.groups = self.elements // GROUP
        self.part = fx.Int32(self.elements // RUN)
        self.packs = fx.Int32(fx.Uint32(total // 2) // RUN)


class _SumGroups(_Groups):
    """Sum the own slice and quantise it."""

    @flyc.jit
    def run(self):
        self.acquire()
        self.measure()
        inputs = [PackArray(address, CALLER_ALIGN) for address in self.partials()]
        load_sum, quantise_into = self.sum_of_runs, self.quantiser(late(self.own_reduced))
        start = self.part * fx.Int32(self.arguments.rank)
        for run in range(self.first, fx.min(self.part, self.packs - start), self.jump):
            quantise_into(run, load_sum(inputs, run))
        self.release()


class _PullGroups(_Groups, _Pull):
    """Widen every rank's slice into the result."""

    @flyc.jit
    def load_slices(self, first):
        self.measure()
        self.gather(first)

    def stations(self):
        return self.windows.around_ring(self.arguments.reduced, self.part)


_MEETINGS: dict[Transport, Any] = {Transport.SDMA: _MeetEngines, Transport.LSA: _MeetStores}
_WORK: dict[tuple[PullPhase, Wire], Any] = {
    (PullPhase.SUM, Wire.EXACT): _Sum,
    (PullPhase.SUM, Wire.FP8): _SumGroups,
    (PullPhase.PULL, Wire.EXACT): _Pull,
    (PullPhase.PULL, Wire.FP8): _PullGroups,
}


def pull_kernel(config: PullConfig) -> DeviceKernel:
    """The kernel of a phase: any rank, any size and any grid of `config.threads` threads."""
    meets = config.phase is PullPhase.MEET
    phase = _MEETINGS[config.push] if meets else _WORK[config.phase, config.wire]

    @flyc.kernel(name=config.kernel_name, known_block_size=[config.threads, 1, 1])
    def kernel(arguments: SdmaArguments):
        phase(config, arguments).run()

    return DeviceKernel(config.kernel_name, kernel, SdmaArguments, config.threads, None if meets else WAVES_PER_SIMD)
