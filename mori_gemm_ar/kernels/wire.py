# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The load/store all-reduce in two stages with fp8 on the wire.

As the exact one, but the owner of a slice quantises its sum into a wire slice, and the gather widens what it loads. All
ranks widen the same bytes, the owner its own too, so all hold the same bits. With both legs in fp8 each rank quantises
its input as it stages it, one wire slice for each owner, and owners widen before they sum.

Groups: a lane takes eight elements and four neighbours a group; the elements after the last whole group are a group of
the first 32 lanes of block 0, one for each, which all ranks sum and round alike. Rows: a wave takes a row.

Annotations of @fx.struct and @flyc.kernel are read as types, so this file does not postpone their evaluation.
"""

import flydsl.compiler as flyc
import flydsl.expr as fx

from mori_gemm_ar.kernels.allreduce import CALLER_ALIGN, WAVES_PER_SIMD, Staged, TwoStage, sum_in_order
from mori_gemm_ar.kernels.device import library
from mori_gemm_ar.kernels.device.memory import BoundedPackArray, PackArray
from mori_gemm_ar.kernels.device.wire import HalfWaves, MxScale, WireSliceArray, magnitude, quantise_one, widen_one
from mori_gemm_ar.kernels.kernel import DeviceKernel
from mori_gemm_ar.kernels.wire_work import GroupPartials, GroupWork, RowWork, late, store_group
from mori_gemm_ar.layout import PACK_BYTES, WAVE_LANES, AllReduceConfig, Wire
from mori_gemm_ar.layout.wire_terms import GROUP, RUN, RUNS


@fx.struct
class WireArguments:
    """Kernel arguments in order: those of AllReduceArguments, then what formats need."""

    base: fx.Int64
    stride: fx.Int64
    rank: fx.Uint32
    blocks: fx.Uint32
    src: fx.Int64
    dst: fx.Int64
    numel: fx.Uint32
    tag: fx.Uint32
    input_offset: fx.Int64  # the exact input; not used where both legs are fp8
    reduced_offset: fx.Int64  # the own slice of the sum, as a wire slice
    budget: fx.Int64
    error: fx.Int64
    partials_offset: fx.Int64  # both legs in fp8: the own input, a wire slice for each owner
    rows: fx.Uint32  # a scale for each row: how many, and their elements
    columns: fx.Uint32


class _Groups(GroupWork, TwoStage):
    """A scale for each group. What TwoStage calls packs are the runs of whole groups here, and the tail is the rest."""

    def __init__(self, config, arguments):
        super().__init__(config, arguments)
        self.measure()

    def measure(self):
        """Sizes, computed here from what the arguments say; each phase does it anew, for the reason of `late`."""
        numel = fx.Uint32(library.pin_uniform_u32(self.arguments.numel))
        self.packs = fx.Int32(numel // GROUP * RUNS)
        self.tail = fx.Int32(numel % GROUP)
        self.tail_start = self.packs * RUN
        self.last = fx.Int32(numel) - 1
        self.groups = ((numel + (GROUP - 1)) // GROUP + (self.world - 1)) // self.world
        self.part = fx.Int32(self.groups * RUNS)
        self.elements = self.groups * GROUP

    def shares_tail(self, first):
        """Whether this thread is one of the 32 that round the tail; `first` is its number in the grid."""
        return first < (self.tail > 0).select(fx.Int32(GROUP), fx.Int32(0))

    def in_tail(self, first, value):
        """The value, or zero for an element that the tail lacks."""
        return self.owns_tail(first).select(value, fx.Float32(0.0))

    def tail_place(self, first):
        """Where to load from: inside the tensor, whatever the lane."""
        return fx.min(self.tail_start + first, self.last)

    def round_tail(self, total):
        """The sum in fp32 as it comes out of the wire."""
        rounded = total.to(self.element).to(fx.Float32)
        scale = MxScale(HalfWaves.largest(magnitude([rounded])))
        code = quantise_one(rounded, scale)
        return widen_one(code, MxScale.value(scale.code)).to(self.element)

    @flyc.jit
    def after_entry(self, first):
        """Sum and quantise the own slice into the window; sum and round the tail, which stays in a register."""
        self.measure()
        load_sum, tail_sum = self.sum_of(), self.tail_sum_of()
        quantise_into = self.quantiser(late(self.windows.own + self.arguments.reduced_offset))
        start = self.part * fx.Int32(self.arguments.rank)
        for run in range(first, fx.min(self.part, self.packs - start), self.jump):
            quantise_into(run, load_sum(start, run))
        tail = self.element(0.0)
        round_tail = self.round_tail
        if self.shares_tail(first):
            tail = round_tail(tail_sum(first))
        return tail

    def sum_of(self):
        """(first run of the slice, run of it) -> eight fp32 sums."""
        inputs = [PackArray(address) for address in self.windows.in_rank_order(self.arguments.input_offset)]
        return lambda start, run: self.sum_of_runs(inputs, start + run)

    def tail_sum_of(self):
        """(thread's number) -> fp32 sum of its element of the tail."""
        addresses = self.windows.in_rank_order(self.arguments.input_offset)

        def load(first):
            at = self.tail_place(first)
            total = sum_in_order([self.window_elements(a).load(at) for a in addresses], fx.Float32)
            return self.in_tail(first, total)

        return load

    @flyc.jit
    def after_second(self, first, tail):
        """Gather the slices, and store the tail."""
        self.measure()
        store = self.caller_elements(self.arguments.dst).store
        self.gather(first)
        if self.owns_tail(first):
            store(self.tail_start + first, tail)

    def stations(self):
        """All slices: its peers' first, then the own one."""
        return self.windows.around_ring(self.arguments.reduced_offset, self.part)


class _BothLegs(GroupPartials, _Groups):
    """Inputs travel as wire slices too, one for each owner; the tail's group stands behind them."""

    def measure(self):
        super().measure()
        scale_bytes = (self.groups + (PACK_BYTES - 1)) // PACK_BYTES * PACK_BYTES
        self.slice_bytes = self.elements + scale_bytes

    def tail_at(self, partials):
        return WireSliceArray(self.config.wire, partials + fx.Int64(self.slice_bytes * self.world), GROUP)

    @flyc.jit
    def stage_in(self):
        """Quantise the caller's input for all owners at once."""
        stage_tail = self.stage_tail
        self.quantise_for_owners(self.windows.own + self.arguments.partials_offset)
        if self.shares_tail(self.first):
            stage_tail(self.first)

    def stage_tail(self, first):
        value = self.caller_elements(self.arguments.src).load(self.tail_place(first)).to(fx.Float32)
        out = self.tail_at(self.windows.own + self.arguments.partials_offset)
        store_group(out, first, 0, self.in_tail(first, value))

    def sum_of(self):
        own = fx.Int64(self.slice_bytes * fx.Uint32(self.arguments.rank))
        addresses = self.windows.in_rank_order(self.arguments.partials_offset + own)
        slices = [self.slice_at(address) for address in addresses]
        return lambda start, run: self.sum_of_slices(slices, run)

    def tail_sum_of(self):
        groups = [self.tail_at(address) for address in self.windows.in_rank_order(self.arguments.partials_offset)]

        def load(first):
            loaded = [(fx.Uint32(group.bytes.load(first)), group.load_scale(0)) for group in groups]
            return sum_in_order([widen_one(byte, MxScale.value(code)) for byte, code in loaded], fx.Float32)

        return load


class _Rows(RowWork, Staged):
    """A scale for each row, and a wave for each row in every phase, so a block still has to meet its namesakes only."""

    def __init__(self, config, arguments):
        super().__init__(config, arguments)
        self.tail = fx.Int32(0)
        self.measure()

    def measure(self):
        """Sizes, computed here from what the arguments say; each phase does it anew, for the reason of `late`."""
        rows, columns = (
            fx.Uint32(library.pin_uniform_u32(value)) for value in (self.arguments.rows, self.arguments.columns)
        )
        self.rows, self.runs = fx.Int32(rows), fx.Int32(columns // RUN)
        self.packs = self.rows * self.runs
        self.part = fx.Int32((rows + (self.world - 1)) // self.world)
        self.elements = fx.Uint32(self.part) * columns

    def copy_tail(self, source, target):
        """Rows are whole packs."""

    @flyc.jit
    def stage_packs(self):
        load = BoundedPackArray(self.arguments.src, self.packs, CALLER_ALIGN).load
        store = BoundedPackArray(self.own_input, self.packs).store
        lane, wave, waves = self.place(self.first)
        world, slice_packs = self.world, fx.Uint32(self.part * self.runs)
        for row in range(wave, self.part, waves):
            start = row * self.runs
            for run in range(lane, self.runs, WAVE_LANES):
                places = [fx.Uint32(start + run) + slice_packs * owner for owner in range(world)]
                loaded = [load(at) for at in places]
                for at, value in zip(places, loaded, strict=True):
                    store(at, value)

    @flyc.jit
    def after_entry(self, first):
        """Sum each own row into dst and find its largest magnitude; then quantise it from there.

        The own slice of dst is free before the middle barrier even where dst is the input that peers read: of that
        they read their own slices.
        """
        self.measure()
        inputs = [PackArray(address) for address in self.windows.in_rank_order(self.arguments.input_offset)]
        local = PackArray(late(self.arguments.dst), CALLER_ALIGN)
        self.quantise_rows(first, inputs, local, late(self.windows.own + self.arguments.reduced_offset))
        return self.element(0.0)

    def held_from(self, start):
        """Inputs and dst are whole tensors."""
        return start

    @flyc.jit
    def after_second(self, first, tail):
        """Widen all slices into dst."""
        self.measure()
        self.widen_rows(first)

    def stations(self):
        """All slices: its peers' first, then the own one."""
        return self.windows.around_ring(self.arguments.reduced_offset, self.part * self.runs)


_PHASES = {Wire.FP8: _Groups, Wire.FP8_BOTH: _BothLegs, Wire.FP8_ROW: _Rows}


def wire_kernel(config: AllReduceConfig) -> DeviceKernel:
    """The kernel of a config with a lossy wire: any rank, any size and any grid, equal on all ranks."""
    phases = _PHASES[config.wire]

    @flyc.kernel(name=config.kernel_name, known_block_size=[config.threads, 1, 1])
    def kernel(arguments: WireArguments):
        phases(config, arguments).run()

    return DeviceKernel(config.kernel_name, kernel, WireArguments, config.threads, WAVES_PER_SIMD)
