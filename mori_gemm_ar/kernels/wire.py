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

from mori_gemm_ar.kernels.allreduce import (
    CALLER_ALIGN,
    WAVES_PER_SIMD,
    Staged,
    TwoStage,
    sum_in_order,
)
from mori_gemm_ar.kernels.device import assembly, library
from mori_gemm_ar.kernels.device.memory import BoundedPackArray, PackArray
from mori_gemm_ar.kernels.device.wire import (
    HalfWaves,
    MxScale,
    Quads,
    QuadWriter,
    RowScale,
    Waves,
    WireSliceArray,
    magnitude,
    quantise,
    quantise_one,
    widen,
    widen_one,
)
from mori_gemm_ar.kernels.kernel import DeviceKernel
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


def _pack(values, element):
    """Eight fp32 values as a 16-byte pack of 16-bit elements."""
    return fx.Vector.from_elements(values).to(element).bitcast(fx.Int32)


def _unpack(pack, element):
    """The eight fp32 values of a pack."""
    values = pack.bitcast(element).to(fx.Float32)
    return [values[i] for i in range(RUN)]


_BATCH = 4  # packs of a lane that wait to be quantised: more would not fit in registers


def _batches(world):
    """The ranks in order, _BATCH at a time."""
    return [range(first, min(first + _BATCH, world)) for first in range(0, world, _BATCH)]


def _widen(words, scale):
    """Eight fp32 values of a loaded run, one run after the other: all at once they would not fit in registers."""
    words = assembly.stay(words)
    return widen([words[0], words[1]], scale)


def _late(address):
    """The address itself, computed here: what is computed ahead of the barriers is held in registers through them."""
    return library.pin_uniform_i64(address)


class _Groups(TwoStage):
    """A scale for each group. What TwoStage calls packs are the runs of whole groups here, and the tail is the rest."""

    def __init__(self, config, arguments):
        super().__init__(config, arguments)
        self.measure()

    def measure(self):
        """Sizes, computed here from what the arguments say; each phase does it anew, for the reason of `_late`."""
        numel = fx.Uint32(library.pin_uniform_u32(self.arguments.numel))
        self.packs = fx.Int32(numel // GROUP * RUNS)
        self.tail = fx.Int32(numel % GROUP)
        self.tail_start = self.packs * RUN
        self.last = fx.Int32(numel) - 1
        self.groups = ((numel + (GROUP - 1)) // GROUP + (self.world - 1)) // self.world
        self.part = fx.Int32(self.groups * RUNS)
        self.elements = self.groups * GROUP

    def slice_at(self, address):
        return WireSliceArray(self.config.wire, address, self.elements)

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
        load_sum, tail_sum, quantise_into = self.sum_of(), self.tail_sum_of(), self.quantiser()
        start = self.part * fx.Int32(self.arguments.rank)
        for run in range(first, fx.min(self.part, self.packs - start), self.jump):
            quantise_into(run, load_sum(start, run))
        tail = self.element(0.0)
        round_tail = self.round_tail
        if self.shares_tail(first):
            tail = round_tail(tail_sum(first))
        return tail

    def quantiser(self):
        """(run of the own slice, eight fp32 sums) -> stored in the window."""
        address = _late(self.windows.own + self.arguments.reduced_offset)
        out = QuadWriter(address, self.elements + self.groups, self.elements)

        def store(run, values):
            # Rounded first: what travels is the exact all-reduce's result, quantised.
            values = _unpack(_pack(values, self.element), self.element)
            scale = MxScale(Quads.largest(magnitude(values)))
            out.store(run, quantise(values, scale), scale.code)

        return store

    def sum_of(self):
        """(first run of the slice, run of it) -> eight fp32 sums."""
        inputs = [PackArray(address) for address in self.windows.in_rank_order(self.arguments.input_offset)]

        def load(start, run):
            loaded = [array.load(start + run).bitcast(self.element) for array in inputs]
            total = sum_in_order(loaded, fx.Float32)
            return [total[i] for i in range(RUN)]

        return load

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

    @flyc.jit
    def gather(self, first):
        """Widen all slices into dst, each from the rank that owns it; its peers first, then the own one."""
        stations = self.windows.around_ring(self.arguments.reduced_offset, self.part)
        slices = [(self.slice_at(address), start) for address, start in stations]
        store = BoundedPackArray(_late(self.arguments.dst), self.packs, CALLER_ALIGN).store
        element = self.element
        for run in range(first, self.part, self.jump):
            # A short slice is read past its end, inside the window; the bound of dst drops those stores.
            loaded = [(array.load(run), array.load_scale(fx.Uint32(run) // RUNS)) for array, _ in slices]
            for (words, code), (_, start) in zip(loaded, slices, strict=True):
                values = _widen(words, MxScale.value(code))
                store(fx.Uint32(run) + fx.Uint32(start), _pack(values, element))


class _BothLegs(_Groups):
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
        load = BoundedPackArray(self.arguments.src, self.packs, CALLER_ALIGN).load
        quantise_into, stage_tail = self.partials(), self.stage_tail
        part = fx.Uint32(self.part)
        for run in range(self.first, self.part, self.jump):
            for owners in _batches(self.world):
                loaded = [load(fx.Uint32(run) + part * owner) for owner in owners]
                for owner, pack in zip(owners, loaded, strict=True):
                    quantise_into(owner, run, assembly.stay(pack))
        if self.shares_tail(self.first):
            stage_tail(self.first)

    def partials(self):
        """(owner, run of its slice, pack) -> stored in the own window."""
        own = self.windows.own + self.arguments.partials_offset
        out = QuadWriter(own, self.slice_bytes * self.world, self.elements)

        def store(owner, run, pack):
            values = _unpack(pack, self.element)
            scale = MxScale(Quads.largest(magnitude(values)))
            out.store(run, quantise(values, scale), scale.code, self.slice_bytes * owner)

        return store

    def stage_tail(self, first):
        value = self.caller_elements(self.arguments.src).load(self.tail_place(first)).to(fx.Float32)
        value = self.in_tail(first, value)
        scale = MxScale(HalfWaves.largest(magnitude([value])))
        out = self.tail_at(self.windows.own + self.arguments.partials_offset)
        out.bytes.store(first, fx.Uint8(quantise_one(value, scale)))
        # All lanes store one byte to one place: cheaper than a branch.
        out.store_scale(0, scale.code)

    def sum_of(self):
        own = fx.Int64(self.slice_bytes * fx.Uint32(self.arguments.rank))
        addresses = self.windows.in_rank_order(self.arguments.partials_offset + own)
        slices = [self.slice_at(address) for address in addresses]

        def load(start, run):
            group = fx.Uint32(run) // RUNS
            loaded = [(array.load(run), array.load_scale(group)) for array in slices]
            total = None
            for words, code in loaded:
                values = fx.Vector.from_elements(_widen(words, MxScale.value(code)))
                # Added here, before the next rank's run is widened.
                total = assembly.stay(values if total is None else total + values)
            return [total[i] for i in range(RUN)]

        return load

    def tail_sum_of(self):
        groups = [self.tail_at(address) for address in self.windows.in_rank_order(self.arguments.partials_offset)]

        def load(first):
            loaded = [(fx.Uint32(group.bytes.load(first)), group.load_scale(0)) for group in groups]
            return sum_in_order([widen_one(byte, MxScale.value(code)) for byte, code in loaded], fx.Float32)

        return load


class _Rows(Staged):
    """A scale for each row, and a wave for each row in every phase, so a block still has to meet its namesakes only."""

    def __init__(self, config, arguments):
        super().__init__(config, arguments)
        self.tail = fx.Int32(0)
        self.measure()

    def measure(self):
        """Sizes, computed here from what the arguments say; each phase does it anew, for the reason of `_late`."""
        rows, columns = (
            fx.Uint32(library.pin_uniform_u32(value)) for value in (self.arguments.rows, self.arguments.columns)
        )
        self.rows, self.runs = fx.Int32(rows), fx.Int32(columns // RUN)
        self.packs = self.rows * self.runs
        self.part = fx.Int32((rows + (self.world - 1)) // self.world)
        self.elements = fx.Uint32(self.part) * columns

    def copy_tail(self, source, target):
        """Rows are whole packs."""

    def place(self, first):
        """(lane, wave in the grid, waves of the grid) of the thread with this number in the grid."""
        lane = fx.Int32(fx.Uint32(first) % WAVE_LANES)
        wave = fx.Int32(library.uniform(fx.Uint32(first) // WAVE_LANES))
        return lane, wave, self.jump // WAVE_LANES

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
        local = PackArray(_late(self.arguments.dst), CALLER_ALIGN)
        load, keep, element, sum_packs = local.load, local.store, self.element, self.sum_packs
        address = _late(self.windows.own + self.arguments.reduced_offset)
        out = WireSliceArray(Wire.FP8_ROW, address, self.elements)
        store, store_scale = out.store, out.store_scale
        lane, wave, waves = self.place(first)
        start = self.part * fx.Int32(self.arguments.rank)
        for row in range(wave, fx.min(self.part, self.rows - start), waves):
            here, there = row * self.runs, (start + row) * self.runs
            largest = fx.Uint32(0)
            for run in range(lane, self.runs, WAVE_LANES):
                pack = sum_packs(inputs, there + run)
                keep(there + run, pack)
                largest = fx.max(largest, magnitude(_unpack(pack, element)))
            scale = RowScale(Waves.largest(largest))
            # The same lane stored what it loads here.
            for run in range(lane, self.runs, WAVE_LANES):
                store(here + run, quantise(_unpack(load(there + run), element), scale))
            store_scale(row, scale.code)
        return element(0.0)

    @flyc.jit
    def after_second(self, first, tail):
        """Widen all slices into dst, row by row, each from the rank that owns it."""
        self.measure()
        stations = self.windows.around_ring(self.arguments.reduced_offset, self.part * self.runs)
        slices = [(WireSliceArray(Wire.FP8_ROW, address, self.elements), start) for address, start in stations]
        store = BoundedPackArray(_late(self.arguments.dst), self.packs, CALLER_ALIGN).store
        element = self.element
        lane, wave, waves = self.place(first)
        for row in range(wave, self.part, waves):
            scales = [array.load_scale(row) for array, _ in slices]
            here = row * self.runs
            for run in range(lane, self.runs, WAVE_LANES):
                loaded = [array.load(here + run) for array, _ in slices]
                for words, scale, (_, start) in zip(loaded, scales, slices, strict=True):
                    # Pinned, or pairs of each scale are made ahead of the loop and held in registers.
                    values = _widen(words, RowScale.value(library.pin(scale)))
                    store(fx.Uint32(here + run + start), _pack(values, element))


_PHASES = {Wire.FP8: _Groups, Wire.FP8_BOTH: _BothLegs, Wire.FP8_ROW: _Rows}


def wire_kernel(config: AllReduceConfig) -> DeviceKernel:
    """The kernel of a config with a lossy wire: any rank, any size and any grid, equal on all ranks."""
    phases = _PHASES[config.wire]

    @flyc.kernel(name=config.kernel_name, known_block_size=[config.threads, 1, 1])
    def kernel(arguments: WireArguments):
        phases(config, arguments).run()

    return DeviceKernel(config.kernel_name, kernel, WireArguments, config.threads, WAVES_PER_SIMD)
