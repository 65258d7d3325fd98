# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What every all-reduce with a lossy wire does to data, whoever moves it: quantise, widen and sum, slice by slice.

Parts of a kernel's class. They use its config, arguments, element, world and jump, and sizes of its slices: `packs`,
runs of whole groups or rows in the tensor; `part`, runs or rows of a full slice; `elements` of one. `stations()` gives
(address, first run) of each rank's wire slice.

Three things keep them within 64 registers: addresses are computed where they are used (`late`), runs are widened one
after the other (`widen_run`), and a lane quantises a few owners' runs at a time (`_BATCH`).
"""

import flydsl.compiler as flyc
import flydsl.expr as fx

from mori_gemm_ar.kernels.allreduce import CALLER_ALIGN, sum_in_order
from mori_gemm_ar.kernels.device import assembly, library
from mori_gemm_ar.kernels.device.memory import BoundedPackArray
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
)
from mori_gemm_ar.layout import WAVE_LANES, Wire
from mori_gemm_ar.layout.wire_terms import RUN, RUNS

_BATCH = 4  # packs of a lane that wait to be quantised: more would not fit in registers


def pack_run(values, element):
    """Eight fp32 values as a 16-byte pack of 16-bit elements."""
    return fx.Vector.from_elements(values).to(element).bitcast(fx.Int32)


def unpack_run(pack, element):
    """The eight fp32 values of a pack."""
    values = pack.bitcast(element).to(fx.Float32)
    return [values[i] for i in range(RUN)]


def widen_run(words, scale):
    """Eight fp32 values of a loaded run, one run after the other: all at once they would not fit in registers."""
    words = assembly.stay(words)
    return widen([words[0], words[1]], scale)


def late(address):
    """The address itself, computed here: what is computed ahead of the barriers is held in registers through them."""
    return library.pin_uniform_i64(address)


def store_group(out, at, group, value):
    """Quantise a group of one fp32 value in each of 32 lanes: codes from place `at` of this lane, and its scale."""
    scale = MxScale(HalfWaves.largest(magnitude([value])))
    out.bytes.store(at, fx.Uint8(quantise_one(value, scale)))
    # All lanes store one byte to one place: cheaper than a branch.
    out.store_scale(group, scale.code)


def _batches(world):
    """The ranks in order, _BATCH at a time."""
    return [range(first, min(first + _BATCH, world)) for first in range(0, world, _BATCH)]


class GroupWork:
    """A scale for each group of 32 elements: a lane takes eight, and four neighbours a group."""

    def slice_at(self, address):
        return WireSliceArray(self.config.wire, address, self.elements)

    def quantiser(self, address):
        """(run of a slice, eight fp32 sums) -> stored in the wire slice at an address."""
        out = QuadWriter(address, self.elements + self.groups, self.elements)

        def store(run, values):
            # Rounded first: what travels is the exact all-reduce's result, quantised.
            values = unpack_run(pack_run(values, self.element), self.element)
            scale = MxScale(Quads.largest(magnitude(values)))
            out.store(run, quantise(values, scale), scale.code)

        return store

    def sum_of_runs(self, inputs, run):
        """Eight fp32 sums of exact partials, pack arrays in rank order."""
        loaded = [array.load(run).bitcast(self.element) for array in inputs]
        total = sum_in_order(loaded, fx.Float32)
        return [total[i] for i in range(RUN)]

    @flyc.jit
    def gather(self, first):
        """Widen all slices into dst."""
        slices = [(self.slice_at(address), start) for address, start in self.stations()]
        store = BoundedPackArray(late(self.arguments.dst), self.packs, CALLER_ALIGN).store
        element = self.element
        for run in range(first, self.part, self.jump):
            # A short slice is read past its end, inside the window; the bound of dst drops those stores.
            loaded = [(array.load(run), array.load_scale(fx.Uint32(run) // RUNS)) for array, _ in slices]
            for (words, code), (_, start) in zip(loaded, slices, strict=True):
                values = widen_run(words, MxScale.value(code))
                store(fx.Uint32(run) + fx.Uint32(start), pack_run(values, element))


class GroupPartials:
    """The same on the scatter leg: partial sums travel as wire slices, `slice_bytes` from one owner's to the next."""

    @flyc.jit
    def quantise_for_owners(self, address):
        """Quantise the whole groups of the caller's input, a wire slice for each owner from an address on."""
        load = BoundedPackArray(self.arguments.src, self.packs, CALLER_ALIGN).load
        quantise_into = self.owners_quantiser(address)
        part = fx.Uint32(self.part)
        for run in range(self.first, self.part, self.jump):
            for owners in _batches(self.world):
                loaded = [load(fx.Uint32(run) + part * owner) for owner in owners]
                for owner, pack in zip(owners, loaded, strict=True):
                    quantise_into(owner, run, assembly.stay(pack))

    def owners_quantiser(self, address):
        """(owner, run of its slice, pack) -> stored."""
        out = QuadWriter(address, self.slice_bytes * self.world, self.elements)

        def store(owner, run, pack):
            values = unpack_run(pack, self.element)
            scale = MxScale(Quads.largest(magnitude(values)))
            there = self.exists(run, owner)
            out.store(run, quantise(values, scale), scale.code, self.slice_bytes * owner, there)

        return store

    def exists(self, run, owner):
        """Whether an owner's slice has a run; None where it does no harm to store one that it lacks."""
        return None

    def sum_of_slices(self, slices, run):
        """Eight fp32 sums of wire slices in rank order."""
        group = fx.Uint32(run) // RUNS
        loaded = [(array.load(run), array.load_scale(group)) for array in slices]
        total = None
        for words, code in loaded:
            values = fx.Vector.from_elements(widen_run(words, MxScale.value(code)))
            # Added here, before the next rank's run is widened.
            total = assembly.stay(values if total is None else total + values)
        return [total[i] for i in range(RUN)]


class RowWork:
    """A scale for each row, and a wave for each row. `rows` of the tensor, `runs` of a row.

    `held_from(start)`: the first own row, row `start` of the tensor, in the arrays that quantise_rows gets.
    """

    def place(self, first):
        """(lane, wave in the grid, waves of the grid) of the thread with this number in the grid."""
        lane = fx.Int32(fx.Uint32(first) % WAVE_LANES)
        wave = fx.Int32(library.uniform(fx.Uint32(first) // WAVE_LANES))
        return lane, wave, self.jump // WAVE_LANES

    @flyc.jit
    def quantise_rows(self, first, inputs, local, address):
        """Sum each own row of the partials, keep the sum in the same row of `local`, and quantise it from there, when
        its largest magnitude is known, into the wire slice at an address."""
        load, keep, element, sum_packs = local.load, local.store, self.element, self.sum_packs
        out = WireSliceArray(Wire.FP8_ROW, address, self.elements)
        store, store_scale = out.store, out.store_scale
        lane, wave, waves = self.place(first)
        start = self.part * fx.Int32(self.arguments.rank)
        for row in range(wave, fx.min(self.part, self.rows - start), waves):
            here, there = row * self.runs, (self.held_from(start) + row) * self.runs
            largest = fx.Uint32(0)
            for run in range(lane, self.runs, WAVE_LANES):
                pack = sum_packs(inputs, there + run)
                keep(there + run, pack)
                largest = fx.max(largest, magnitude(unpack_run(pack, element)))
            scale = RowScale(Waves.largest(largest))
            # The same lane stored what it loads here.
            for run in range(lane, self.runs, WAVE_LANES):
                store(here + run, quantise(unpack_run(load(there + run), element), scale))
            store_scale(row, scale.code)

    @flyc.jit
    def widen_rows(self, first):
        """Widen all slices into dst, row by row."""
        slices = [(WireSliceArray(Wire.FP8_ROW, address, self.elements), start) for address, start in self.stations()]
        store = BoundedPackArray(late(self.arguments.dst), self.packs, CALLER_ALIGN).store
        element = self.element
        lane, wave, waves = self.place(first)
        for row in range(wave, self.part, waves):
            scales = [array.load_scale(row) for array, _ in slices]
            here = row * self.runs
            for run in range(lane, self.runs, WAVE_LANES):
                loaded = [array.load(here + run) for array, _ in slices]
                for words, scale, (_, start) in zip(loaded, scales, slices, strict=True):
                    # Pinned, or pairs of each scale are made ahead of the loop and held in registers.
                    values = widen_run(words, RowScale.value(library.pin(scale)))
                    store(fx.Uint32(here + run + start), pack_run(values, element))
