# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""A and B on their way from memory through LDS to MFMA operands.

An operand class copies one K step of the workgroup's tile with 16 bytes per lane, and reads 16 x 128 fragments back.
Lane 16 * group + row of a fragment holds k in [16 * group, 16 * group + 16) and the same 64 further on.
Fragment t of B holds column tiles * row + t of the wave's columns, so that each lane ends with neighbours of one row of
C in its accumulators. LDS is read without bank conflicts: 64 banks, lanes 0-3, 12-15, 20-23, 24-27 first.
"""

from __future__ import annotations

from functools import partial

import flydsl.expr as fx

from mori_gemm_ar.kernels.device import library
from mori_gemm_ar.kernels.gemm.place import WAVE_M
from mori_gemm_ar.layout.gemm_terms import K_STEP, SHUFFLE_K, BLayout

WAVES = 8
_PACK = 16  # bytes that a lane copies or reads at once
_COPY = 64 * _PACK  # bytes that a wave copies with one instruction
_ROWS = _COPY // K_STEP  # LDS rows of one copy
_PANEL = 16 * K_STEP  # one K step of 16 preshuffled columns
_PANEL_PITCH = _PANEL + _PACK  # a shift by one pack from panel to panel spreads a fragment over all banks


def _fragment(low, high):
    return low.shuffle(high, list(range(8)))


class _Operand:
    """Two slots of LDS from `start` on, so that one fills while the other is read."""

    def __init__(self, buffer, lds, start, nbytes):
        self.buffer, self.lds = buffer, lds
        self.start, self.nbytes = start, nbytes

    def copies(self, slot, step):
        """Callables that start to copy a K step of the tile into a slot, one piece each."""
        # Only the step is a scalar offset: the range check takes it from the size, which must not be the smaller one.
        first, source = self.lds.address + (self.start + slot * self.nbytes), step * self.step_bytes
        return [
            partial(self.buffer.copy_to_lds, first + target, lane, source, immediate)
            for target, lane, immediate in self.pieces
        ]

    def placed(self, pack):
        """Byte offset of a pack in slot 0. Pinned, so that the rest fits the offset field and one register does."""
        return fx.Int32(library.pin(fx.Uint32(pack) + self.start))

    def load(self, pack, slot, offset):
        return self.lds.load(pack, slot * self.nbytes + offset)


class _LdsRows(_Operand):
    """K steps as rows of 128 bytes. Pack c of the row at position p stands in column c ^ (p % 8)."""

    step_bytes = K_STEP

    def __init__(self, buffer, wave, k, positions, lds, start):
        super().__init__(buffer, lds, start, positions * K_STEP)
        self.wave = wave
        in_copy = wave.lane // _ROWS
        column = (wave.lane % _ROWS ^ in_copy) * _PACK
        source = self.lane_row(wave.wave * _ROWS + in_copy) * k + column
        turns = range(0, positions, _ROWS * WAVES)
        # (LDS offset, lane's source offset, offset added to both) of each copy.
        self.pieces = [(wave.wave * _COPY + turn * K_STEP, source + self.first_row(turn) * k, 0) for turn in turns]
        first = self.first_position() + wave.row
        columns = [(wave.group + 4 * half) ^ (wave.row % 8) for half in range(2)]
        self.packs = [self.placed(first * K_STEP + column * _PACK) for column in columns]

    def read(self, slot, t):
        """Fragment t."""
        return _fragment(*(self.load(pack, slot, t * 16 * K_STEP) for pack in self.packs))


class ARows(_LdsRows):
    """A [M, K]. Fragment t holds rows 16 t + row of the wave's 64."""

    def lane_row(self, position):
        return position

    def first_row(self, start):
        return start

    def first_position(self):
        return self.wave.m * WAVE_M


class BRows(_LdsRows):
    """B [N, K]."""

    def __init__(self, buffer, wave, k, positions, lds, start, tiles):
        self.tiles, self.wave_n = tiles, 16 * tiles
        super().__init__(buffer, wave, k, positions, lds, start)

    def lane_row(self, position):
        """Column of B at a position below 64: fragment position // 16, row position % 16."""
        return self.tiles * (position % 16) + position // 16

    def first_row(self, start):
        """What the column grows by when the position grows by `start`, a multiple of 64."""
        return start // self.wave_n * self.wave_n + start % self.wave_n // 16

    def first_position(self):
        return self.wave.n * self.wave_n


class BPanels(_Operand):
    """B preshuffled: panels of 16 columns, of which one K step is 2 x 1024 consecutive bytes (half, group, column)."""

    step_bytes = _PANEL

    def __init__(self, buffer, wave, k, positions, lds, start, tiles):
        panels = positions // 16
        super().__init__(buffer, lds, start, panels * _PANEL_PITCH)
        source = wave.wave * (16 * k) + wave.lane * _PACK
        self.pieces = [
            ((wave.wave + turn) * _PANEL_PITCH, source + turn * 16 * k, half)
            for turn in range(0, panels, WAVES)
            for half in (0, 16 * SHUFFLE_K)
        ]
        column = wave.n * (16 * tiles) + wave.row * tiles
        self.pack = self.placed(column // 16 * _PANEL_PITCH + (wave.group * 16 + column % 16) * _PACK)

    def read(self, slot, t):
        """Fragment t."""
        return _fragment(*(self.load(self.pack, slot, t * _PACK + half * 16 * SHUFFLE_K) for half in range(2)))


B_OPERANDS = {BLayout.ROW: BRows, BLayout.PRESHUFFLED: BPanels}


def _slot_bytes(tile, b_layout):
    pitch = _PANEL_PITCH if b_layout is BLayout.PRESHUFFLED else _PANEL
    return tile.m * K_STEP + tile.n // 16 * pitch


class Lds:
    """The workgroup's LDS."""

    def __init__(self, config):
        nbytes = 2 * _slot_bytes(config.tile, config.b_layout)
        self.base = fx.SharedAllocator().allocate(fx.Array[fx.Uint8, nbytes, 16]).peek().ptr

    def load(self, lane_offset, offset):
        """A pack as four words."""
        return fx.generic_load(self.base + fx.Int32(lane_offset) + offset, dtype=fx.Int32, count=4)

    @property
    def address(self):
        """Byte address for copies."""
        return fx.Int32(fx.ptrtoint(self.base))
