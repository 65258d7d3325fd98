# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Quantise to and widen from the formats of a lossy wire, and the places of a wire slice in memory.

What is right for every lane pattern is a function of values; `Quads`, `HalfWaves` and `Waves` say which lanes share a
scale. All lanes that share one have to be active. Nothing here knows where data comes from or goes to. The statement
in torch is `ar.wire_format`.
"""

from __future__ import annotations

import flydsl.expr as fx

from mori_gemm_ar.kernels.device import assembly, library
from mori_gemm_ar.kernels.device.buffers import Buffer
from mori_gemm_ar.kernels.device.memory import ElementArray
from mori_gemm_ar.layout.gemm_terms import (
    E4M3_INVERSE_MAX,
    MX_EXPONENT_SHIFT,
    MX_NAN,
    MX_ROUND_UP,
    SCALE_FLOOR,
)
from mori_gemm_ar.layout.wire_terms import NAN_CODES, RUN, RUNS, Wire

_ABSOLUTE = 0x7FFFFFFF
_INFINITE = 0x7F800000
_QUIET_NAN = 0x7FC00000
_LOWEST_SCALE = 1 << 22  # bits of 2^-127
_NOWHERE = -1  # a byte offset past the end of every buffer
_NO_RUN = -RUN  # the same for the eight bytes of a run


# --- which lanes share a scale ---


def _from_other(word, distance):
    """The 32-bit value of the lane whose number differs in the bit `distance`."""
    # Pinned, or two uses of one place would share its computation across branches.
    lane = fx.Int32(library.pin(fx.thread_idx.x)) ^ distance
    return fx.Uint32(fx.rocdl.ds_bpermute(fx.Int32.ir_type, lane * 4, fx.Int32(word)))


class Quads:
    """Lanes 4 i to 4 i + 3: a group of 32 elements, eight in each lane."""

    @staticmethod
    def largest(bits):
        for other in (assembly.swap_neighbours, assembly.swap_pairs):
            bits = fx.max(bits, fx.Uint32(other(bits)))
        return bits


class Alternates:
    """Every other one of lanes 8 i to 8 i + 7: a group of 32 elements, eight in each lane."""

    @staticmethod
    def largest(bits):
        bits = fx.max(bits, fx.Uint32(assembly.swap_pairs(bits)))
        upper = fx.Uint32(library.pin(fx.thread_idx.x)) % 8 >= 4
        behind, ahead = (fx.Uint32(assembly.rotate_in_row(bits, by)) for by in (4, 12))
        return fx.max(bits, upper.select(behind, ahead))


class HalfWaves:
    """Lanes 0 to 31, or 32 to 63: a group of 32 elements, one in each lane."""

    @staticmethod
    def largest(bits):
        for by in (8, 4, 2, 1):
            bits = fx.max(bits, fx.Uint32(assembly.rotate_in_row(bits, by)))
        return fx.max(bits, _from_other(bits, 16))


class Waves:
    """All 64 lanes."""

    @staticmethod
    def largest(bits):
        bits = HalfWaves.largest(bits)
        return fx.max(bits, _from_other(bits, 32))


# --- scales ---


def magnitude(values):
    """Largest magnitude of this lane's fp32 values, as unsigned bits, so that NaN and infinity win."""
    largest = fx.Uint32(0)
    for value in values:
        largest = fx.max(largest, value.bitcast(fx.Uint32) & _ABSOLUTE)
    return largest


class MxScale:
    """e8m0 scale of a group whose largest magnitude has these bits: 2^(code - 127), the smallest that reaches it."""

    def __init__(self, largest):
        exponent = (largest + MX_ROUND_UP) >> 23
        exponent = fx.max(exponent, fx.Uint32(MX_EXPONENT_SHIFT)) - MX_EXPONENT_SHIFT
        self.finite = largest < _INFINITE
        self.inverse = ((254 - exponent) << 23).bitcast(fx.Float32)
        self.code = self.finite.select(exponent, fx.Uint32(MX_NAN))

    @staticmethod
    def value(code):
        """The scale in fp32. Code 255 gives infinity, which the NaN payload of such a group turns into NaN."""
        return fx.max(fx.Uint32(code) << 23, fx.Uint32(_LOWEST_SCALE)).bitcast(fx.Float32)


class RowScale:
    """fp32 scale of a row whose largest magnitude has these bits: largest / 448, at least 2^-126."""

    def __init__(self, largest):
        scale = largest.bitcast(fx.Float32) * fx.Float32(E4M3_INVERSE_MAX)
        scale = fx.max(scale.bitcast(fx.Uint32), fx.Float32(SCALE_FLOOR).bitcast(fx.Uint32))
        self.finite = largest < _INFINITE
        self.inverse = fx.Float32(1.0) / scale.bitcast(fx.Float32)
        self.code = self.finite.select(scale, fx.Uint32(_QUIET_NAN))

    @staticmethod
    def value(code):
        """The scale in fp32."""
        return fx.Uint32(code).bitcast(fx.Float32)


SCALES = {Wire.FP8: MxScale, Wire.FP8_BOTH: MxScale, Wire.FP8_ROW: RowScale}


# --- payload ---


def _pair():
    return fx.Vector.make_type(2, fx.Float32)


def quantise(values, scale):
    """Eight fp32 values to two words of e4m3: nearest even. No finite one passes 448, because the scale fits them."""
    words = [assembly.fp8_pack([value * scale.inverse for value in values[at : at + 4]]) for at in (0, 4)]
    return [scale.finite.select(word, fx.Int32(NAN_CODES)) for word in words]


def quantise_one(value, scale):
    """One fp32 value to the low byte of a word."""
    scaled = value * scale.inverse
    word = fx.Int32(fx.rocdl.cvt_pk_fp8_f32(fx.Int32.ir_type, scaled, fx.Float32(0.0), fx.Int32(0), False))
    return scale.finite.select(word, fx.Int32(NAN_CODES & 0xFF))


def widen(words, scale):
    """Eight fp32 values of two words; `scale` in fp32."""
    values = []
    for word in words:
        for half in (False, True):
            two = fx.Vector(fx.rocdl.cvt_pk_f32_fp8(_pair(), fx.Int32(word), half)) * scale
            values += [two[0], two[1]]
    return values


def widen_one(byte, scale):
    """One fp32 value of the low byte of a word."""
    return fx.Vector(fx.rocdl.cvt_pk_f32_fp8(_pair(), fx.Int32(byte), False))[0] * scale


# --- memory ---


class WireSliceArray:
    """A wire slice in global memory at a wave-uniform address: runs of eight codes, then scales.

    `elements`: of a full slice, a multiple of 16. Accesses are plain; the caller owes that indices are inside.
    """

    def __init__(self, wire, address, elements):
        self.kind = fx.Uint32 if wire.per_row else fx.Uint8
        self.runs = ElementArray(fx.Int64, address, align=8)
        self.bytes = ElementArray(fx.Uint8, address, align=1)
        # From the slice's own address on: one scalar base serves payload and scales.
        self.scales = ElementArray(self.kind, address, align=wire.scale_bytes)
        self.first_scale = fx.Uint32(elements) // wire.scale_bytes

    def load(self, run):
        """Two words of a run, as a vector."""
        return self.runs.load_vector(run, fx.Int32, 2)

    def store(self, run, words):
        self.runs.store(run, fx.Vector.from_elements(words))

    def load_scale(self, index):
        """The scale's code, in 32 bits."""
        return fx.Uint32(self.scales.load(self.first_scale + fx.Uint32(index)))

    def store_scale(self, index, code):
        self.scales.store(self.first_scale + fx.Uint32(index), self.kind(code))


class QuadWriter:
    """Wire slices that quads of lanes write, through one descriptor: a run by each lane, its group's scale by lane 0.

    `address` and `nbytes` of the memory that holds the slices, wave-uniform; `elements` of a full slice. No branch is
    taken: the other lanes' scales go past the end.
    """

    def __init__(self, address, nbytes, elements):
        self.buffer = Buffer(address, nbytes, align=1)
        self.elements = fx.Uint32(elements)

    def store(self, run, words, code, start=0, there=None):
        """Run `run` of the slice at byte `start`, which is wave-uniform; `code` is equal in all lanes of the quad.

        there: whether the run exists, equal in the quad too; what does not is not stored.
        """
        place = fx.Uint32(run) * RUN
        if there is not None:
            place = there.select(fx.Int32(place), fx.Int32(_NO_RUN))
        self.buffer.store(fx.Vector.from_elements(words), place, start)
        group, inside = fx.Uint32(run) // RUNS, fx.Uint32(run) % RUNS
        leads = inside == 0
        if there is not None:
            leads = leads & there
        at = leads.select(fx.Int32(self.elements + group), fx.Int32(_NOWHERE))
        self.buffer.store(fx.Uint8(code).ir_value(), at, start)
