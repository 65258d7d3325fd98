# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The copy-engine all-reduce with fp8 on the wire: the three kernels of `sdma`, whose hand-overs these share.

Slices are of whole groups or rows, and the tail belongs to the slice in which it lies. Reduce quantises the sums into
the own slot of `gathered`, one put for each peer and queue moves payload and scales there, and gather widens all slots,
the own one too. With both legs in fp8 scatter has all blocks: they quantise the input into `partials`, a wire slice for
each owner, the last block to finish puts those, and reduce widens before it sums, also what it quantised itself.

A put carries a full wire slice, however short the slice is; what a short one lacks is never used.

Annotations of @fx.struct and @flyc.kernel are read as types, so this file does not postpone their evaluation.
"""

from pathlib import Path
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from mori_gemm_ar.kernels.allreduce import CALLER_ALIGN, WAVES_PER_SIMD, sum_in_order
from mori_gemm_ar.kernels.device import library
from mori_gemm_ar.kernels.device.memory import ElementArray, PackArray
from mori_gemm_ar.kernels.device.submit import submit_code
from mori_gemm_ar.kernels.device.wire import MxScale, widen_one
from mori_gemm_ar.kernels.kernel import DeviceKernel
from mori_gemm_ar.kernels.sdma import PushSlices, SdmaCall
from mori_gemm_ar.kernels.wire_work import GroupPartials, GroupWork, RowWork, late, store_group
from mori_gemm_ar.layout import WAVE_LANES, Wire
from mori_gemm_ar.layout.sdma import SdmaConfig, SdmaPhase
from mori_gemm_ar.layout.wire_terms import GROUP, RUN, RUNS

_ELEMENT_BYTES = 2


@fx.struct
class SdmaWireArguments:
    """Kernel arguments of all phases in order: all that differs between ranks, sizes and calls."""

    base: fx.Int64  # rank 0's window
    stride: fx.Int64  # bytes from one rank's window to the next
    rank: fx.Uint32
    blocks: fx.Uint32  # grid size
    src: fx.Int64  # local input
    dst: fx.Int64  # local result
    numel: fx.Uint32
    part: fx.Uint32  # elements of a full slice
    slice_bytes: fx.Uint32  # of a full wire slice
    tail_owner: fx.Uint32  # rank whose slice has the last group, where that is short
    tail_wave: fx.Uint32  # wave of the grid that quantises that group, if one does: the one whose runs it follows
    rows: fx.Uint32  # a scale for each row: how many, and their elements
    columns: fx.Uint32
    tag: fx.Uint32  # equal on all ranks of a call
    queues: fx.Uint32  # of each peer
    table: fx.Int64  # handles of the queues
    landing: fx.Int64  # offset of the slots for partial sums; one for each rank
    slot: fx.Int64  # bytes of such a slot
    reduced: fx.Int64  # offset of the slots for sums, `gathered`; one for each rank
    sums_slot: fx.Int64  # bytes of such a slot
    partials: fx.Int64  # both legs in fp8: offset of the own input, a wire slice for each owner
    budget: fx.Int64  # of one wait, in ticks of the 100 MHz clock
    error: fx.Int64  # error record


class _Call(SdmaCall):
    """Slices of elements, and the places of their sums."""

    def slice_start(self, rank):
        """First element of a rank's slice, 64 bits."""
        numel = fx.Int64(fx.Uint32(self.arguments.numel))
        return fx.min(fx.Int64(fx.Uint32(self.arguments.part)) * fx.Int64(fx.Uint32(rank)), numel)

    def slice_elements(self, rank):
        """Elements of a rank's slice, 64 bits."""
        return self.slice_start(fx.Uint32(rank) + 1) - self.slice_start(rank)

    def slice_source(self, rank):
        """Address of a rank's slice of the input."""
        return self.arguments.src + self.slice_start(rank) * _ELEMENT_BYTES

    def source_bytes(self, rank):
        """Bytes of a rank's slice of the input, 64 bits."""
        return self.slice_elements(rank) * _ELEMENT_BYTES

    def wire_bytes(self, rank):
        """What is put of a rank's wire slice: all of it, or nothing where it has no element."""
        full = fx.Int64(fx.Uint32(self.arguments.slice_bytes))
        return (self.slice_elements(rank) > 0).select(full, fx.Int64(0))

    def sums_at(self, rank):
        """Address of a rank's slot of sums in the own window."""
        return self.own_reduced + self.arguments.sums_slot * fx.Int64(fx.Uint32(rank))

    def hand_over_sums(self):
        rank = fx.Uint32(self.arguments.rank)
        self.hand_over(self.arguments.sums_slot * fx.Int64(rank), self.wire_bytes(rank))


class Groups(GroupWork, _Call):
    """A scale for each group."""

    def measure(self):
        """Sizes, from what the arguments say; where a phase needs them, for the reason of `late`."""
        numel, part = (
            fx.Uint32(library.pin_uniform_u32(value)) for value in (self.arguments.numel, self.arguments.part)
        )
        self.packs = fx.Int32(numel // GROUP * RUNS)
        self.tail = fx.Int32(numel % GROUP)
        self.tail_start = self.packs * RUN
        self.last = fx.Int32(numel) - 1
        self.lane = fx.Int32(fx.Uint32(self.tid) % WAVE_LANES)
        self.elements, self.groups = part, part // GROUP
        self.part = fx.Int32(part // RUN)
        # Of the tail in the slice to which it belongs.
        self.tail_group = (numel - part * fx.Uint32(self.arguments.tail_owner)) // GROUP

    def shares_tail(self):
        """Whether this thread is one of the 32 that quantise the tail.

        They are of the wave that stores the scales before the tail's, so no word of memory has two writers.
        """
        wave = library.uniform(fx.Uint32(self.first) // WAVE_LANES)
        return (wave == self.arguments.tail_wave) & (self.lane < GROUP)

    def in_tail(self, value):
        """The value, or zero for an element that the tail lacks."""
        return (self.lane < self.tail).select(value, fx.Float32(0.0))

    def tail_place(self):
        """Of this lane's element in the slice that has the tail."""
        return fx.Int32(self.tail_group * GROUP) + self.lane

    def load_widened(self, array):
        """This lane's element of the tail in fp32, out of the wire slice that has it."""
        byte = fx.Uint32(array.bytes.load(self.tail_place()))
        return widen_one(byte, MxScale.value(array.load_scale(self.tail_group)))


class _Push(PushSlices, _Call):
    """Scatter by one wave: put every peer's slice, exact, into its slot for this rank, and meet all ranks."""


class _BothLegs(GroupPartials, Groups):
    """Partial sums travel as wire slices."""

    def measure(self):
        super().measure()
        self.slice_bytes = fx.Uint32(library.pin_uniform_u32(self.arguments.slice_bytes))

    def partials_at(self, owner):
        """Address of the wire slice for an owner in the own window."""
        start = fx.Int64(fx.Uint32(self.arguments.slice_bytes)) * fx.Int64(fx.Uint32(owner))
        return self.windows.own + self.arguments.partials + start


class _QuantiseAndPush(_BothLegs):
    """Scatter with both legs in fp8: all blocks quantise, the last one puts the wire slices to their owners."""

    @flyc.jit
    def run(self):
        self.measure()
        stage_tail = self.stage_tail
        self.quantise_for_owners(self.partials_at(0))
        if self.shares_tail():
            stage_tail()
        self.hand_over(fx.Int64(0), fx.Int64(0))

    def exists(self, run, owner):
        """The tail's group, which is stored by itself, lies behind the runs of whole groups."""
        return fx.Uint32(run) + fx.Uint32(self.part) * owner < fx.Uint32(self.packs)

    def stage_tail(self):
        at = fx.min(self.tail_start + self.lane, self.last)
        value = ElementArray(self.element, self.arguments.src, CALLER_ALIGN).load(at).to(fx.Float32)
        out = self.slice_at(self.partials_at(self.arguments.tail_owner))
        store_group(out, self.tail_place(), self.tail_group, self.in_tail(value))

    def push(self, start, nbytes):
        self.put_slices(self.partials_at, self.wire_bytes)


class _ReduceGroups(Groups):
    """Sum the own slice, quantise it into the own slot, and put that to all peers."""

    @flyc.jit
    def run(self):
        self.acquire()
        self.measure()
        rank = fx.Uint32(self.arguments.rank)
        load_sum, store_tail = self.sum_of(), self.store_tail
        quantise_into = self.quantiser(late(self.sums_at(rank)))
        start = self.part * fx.Int32(rank)
        for run in range(self.first, fx.min(self.part, self.packs - start), self.jump):
            quantise_into(run, load_sum(run))
        if self.shares_tail():
            store_tail()
        self.hand_over_sums()

    def addresses(self):
        """Of the partial sums of the own slice, in rank order."""
        return self.in_rank_order(self.slice_source(self.arguments.rank))

    def sum_of(self):
        """(run of the own slice) -> eight fp32 sums."""
        inputs = [PackArray(address, CALLER_ALIGN) for address in self.addresses()]
        return lambda run: self.sum_of_runs(inputs, run)

    def tail_sum(self):
        """fp32 sum of this lane's element of the tail."""
        most = fx.Int32(self.tail_group * GROUP) + self.tail - 1
        at = fx.min(self.tail_place(), most)
        arrays = [ElementArray(self.element, address, CALLER_ALIGN) for address in self.addresses()]
        return sum_in_order([array.load(at) for array in arrays], fx.Float32)

    def store_tail(self):
        rounded = self.tail_sum().to(self.element).to(fx.Float32)
        out = self.slice_at(self.sums_at(self.arguments.rank))
        store_group(out, self.tail_place(), self.tail_group, self.in_tail(rounded))


class _ReduceBothLegs(_BothLegs, _ReduceGroups):
    """The same of wire slices; the own one as everybody would see it."""

    def slices(self):
        return [self.slice_at(address) for address in self.in_rank_order(self.partials_at(self.arguments.rank))]

    def sum_of(self):
        slices = self.slices()
        return lambda run: self.sum_of_slices(slices, run)

    def tail_sum(self):
        return sum_in_order([self.load_widened(array) for array in self.slices()], fx.Float32)


class _GatherGroups(Groups):
    """Widen all slots into dst."""

    @flyc.jit
    def run(self):
        self.acquire()
        self.measure()
        self.gather(self.first)
        store = ElementArray(self.element, self.arguments.dst, CALLER_ALIGN).store
        load_widened, tail = self.load_widened, self.slice_at(self.sums_at(self.arguments.tail_owner))
        element, at = self.element, self.tail_start + self.first
        if self.first < self.tail:
            store(at, load_widened(tail).to(element))

    def stations(self):
        return [(self.sums_at(rank), self.part * rank) for rank in range(self.world)]


class _Rows(RowWork, _Call):
    """A scale for each row."""

    def measure(self):
        """Sizes, from what the arguments say; where a phase needs them, for the reason of `late`."""
        rows, columns, part = (
            fx.Uint32(library.pin_uniform_u32(value))
            for value in (self.arguments.rows, self.arguments.columns, self.arguments.part)
        )
        self.rows, self.runs = fx.Int32(rows), fx.Int32(columns // RUN)
        self.packs = self.rows * self.runs
        self.part = fx.Int32((rows + (self.world - 1)) // self.world)
        self.elements = part


class _ReduceRows(_Rows):
    """Sum the own rows into the own landing slot, which no engine writes, and quantise them from there."""

    @flyc.jit
    def run(self):
        self.acquire()
        self.measure()
        rank = fx.Uint32(self.arguments.rank)
        inputs = [PackArray(address, CALLER_ALIGN) for address in self.in_rank_order(self.slice_source(rank))]
        local = PackArray(late(self.windows.own + self.arguments.landing + self.arguments.slot * fx.Int64(rank)))
        self.quantise_rows(self.first, inputs, local, late(self.sums_at(rank)))
        self.hand_over_sums()

    def held_from(self, start):
        """Slots and the own input begin with the own slice."""
        return fx.Int32(0)


class _GatherRows(_Rows):
    """Widen all slots into dst, row by row."""

    @flyc.jit
    def run(self):
        self.acquire()
        self.measure()
        self.widen_rows(self.first)

    def stations(self):
        return [(self.sums_at(rank), self.part * self.runs * rank) for rank in range(self.world)]


_PHASES: dict[Wire, dict[SdmaPhase, Any]] = {
    Wire.FP8: {SdmaPhase.SCATTER: _Push, SdmaPhase.REDUCE: _ReduceGroups, SdmaPhase.GATHER: _GatherGroups},
    Wire.FP8_BOTH: {
        SdmaPhase.SCATTER: _QuantiseAndPush,
        SdmaPhase.REDUCE: _ReduceBothLegs,
        SdmaPhase.GATHER: _GatherGroups,
    },
    Wire.FP8_ROW: {SdmaPhase.SCATTER: _Push, SdmaPhase.REDUCE: _ReduceRows, SdmaPhase.GATHER: _GatherRows},
}


def sdma_wire_kernel(config: SdmaConfig, bitcode: Path | None = None) -> DeviceKernel:
    """The kernel of a phase with a lossy wire: as `sdma_kernel`."""
    phase, submit = _PHASES[config.wire][config.phase], submit_code(bitcode)

    @flyc.kernel(name=config.kernel_name, known_block_size=[config.threads, 1, 1])
    def kernel(arguments: SdmaWireArguments):
        phase(config, arguments, submit).run()

    return DeviceKernel(config.kernel_name, kernel, SdmaWireArguments, config.threads, WAVES_PER_SIMD)
