# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The reduce behind a GEMM that quantises its tiles: as with both legs in fp8, but partial sums come band by band.

Annotations of @fx.struct and @flyc.kernel are read as types, so this file does not postpone their evaluation.
"""

import flydsl.compiler as flyc
import flydsl.expr as fx

from mori_gemm_ar.kernels.device.wire import WireSliceArray
from mori_gemm_ar.kernels.kernel import DeviceKernel
from mori_gemm_ar.kernels.sdma_wire import Groups
from mori_gemm_ar.kernels.wire_work import GroupPartials, late
from mori_gemm_ar.layout.bands import BandsConfig
from mori_gemm_ar.layout.wire_terms import GROUP, RUN

_WAVES_PER_SIMD = 4  # arguments stay in scalar registers through the loop over bands


@fx.struct
class BandsArguments:
    """Kernel arguments in order: all that differs between ranks, sizes and calls."""

    base: fx.Int64  # rank 0's window
    stride: fx.Int64  # bytes from one rank's window to the next
    rank: fx.Uint32
    blocks: fx.Uint32  # grid size
    src: fx.Int64  # not used
    dst: fx.Int64  # not used
    numel: fx.Uint32
    part: fx.Uint32  # elements of a full slice
    slice_bytes: fx.Uint32  # of a full slice of sums on the wire
    tail_owner: fx.Uint32  # not used: rows are whole groups
    tag: fx.Uint32  # equal on all ranks of a call
    queues: fx.Uint32  # of each peer
    table: fx.Int64  # handles of the queues
    landing: fx.Int64  # offset of the slots for partial sums; one for each rank
    slot: fx.Int64  # bytes of such a slot
    reduced: fx.Int64  # offset of the slots for sums; one for each rank
    sums_slot: fx.Int64  # bytes of such a slot
    partials: fx.Int64  # offset of the own product, slots for all owners
    band: fx.Uint32  # elements of a band
    bands: fx.Uint32  # of the own slice
    budget: fx.Int64  # of one wait, in ticks of the 100 MHz clock
    error: fx.Int64  # error record


class _ReduceBands(GroupPartials, Groups):
    """Widen and sum the own slice band by band, quantise the sums, and put them to all peers."""

    @flyc.jit
    def run(self):
        self.acquire()
        self.measure()
        for band in range(fx.Int32(0), fx.Int32(self.arguments.bands), fx.Int32(1)):
            self.sum_band(fx.Uint32(band))
        self.hand_over_sums()

    @flyc.jit
    def sum_band(self, band):
        rank, elements = fx.Uint32(self.arguments.rank), fx.Uint32(self.arguments.band)
        runs = fx.Int32(elements // RUN)
        place = fx.Int64(band) * fx.Int64(elements // GROUP * (GROUP + 1))
        own = self.windows.own + self.arguments.partials + self.arguments.slot * fx.Int64(rank)
        addresses = [late(address + place) for address in self.in_rank_order(own)]
        slices = [WireSliceArray(self.config.wire, address, elements) for address in addresses]
        quantise_into, sum_of_slices = self.quantiser(late(self.sums_at(rank))), self.sum_of_slices
        before = fx.Int32(band) * runs
        left = self.packs - self.part * fx.Int32(rank) - before
        for run in range(self.first, fx.min(runs, left), self.jump):
            quantise_into(before + run, sum_of_slices(slices, run))


def bands_kernel(config: BandsConfig) -> DeviceKernel:
    """The kernel of a config: any rank, any size and any grid of `config.threads` threads."""

    @flyc.kernel(name=config.kernel_name, known_block_size=[config.threads, 1, 1])
    def kernel(arguments: BandsArguments):
        _ReduceBands(config, arguments).run()

    return DeviceKernel(config.kernel_name, kernel, BandsArguments, config.threads, _WAVES_PER_SIMD)
