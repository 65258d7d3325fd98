# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Sizes and places of what a lossy wire carries, and who quantises which elements.

A *wire slice* holds a run of elements: e4m3 bytes in order, zeros up to a multiple of 16, then the scales in order. It
is contiguous, so one put moves both. A scale belongs to GROUP consecutive elements of the flattened tensor (elements
that the last group lacks count as zero), or to a row.
"""

from __future__ import annotations

from dataclasses import dataclass

from mori_gemm_ar.layout.rules import reason_not_rank, require
from mori_gemm_ar.layout.terms import PACK_BYTES, WAVE_LANES, ceil_div, round_up
from mori_gemm_ar.layout.window import RegionSpec
from mori_gemm_ar.layout.wire_rules import (
    reason_not_slice_elements,
    reason_not_split,
    reason_not_wire_capacity,
    reason_not_wire_slice,
)
from mori_gemm_ar.layout.wire_terms import GROUP, ROW_UNIT, RUN, Wire


@dataclass(frozen=True, slots=True)
class WireSlice:
    """Bytes of a run of elements on the wire. `columns`: elements of a row, where scales belong to rows."""

    wire: Wire
    elements: int
    columns: int | None = None

    def __post_init__(self) -> None:
        require(reason_not_wire_slice(self.wire, self.elements, self.columns))

    @property
    def scales(self) -> int:
        """Number of scales."""
        return ceil_div(self.elements, self.columns or GROUP)

    @property
    def scales_offset(self) -> int:
        """Byte at which the scales start: the payload, rounded up to 16."""
        return round_up(self.elements, PACK_BYTES)

    @property
    def nbytes(self) -> int:
        """All bytes, a multiple of 16: the distance of consecutive slices."""
        return self.scales_offset + round_up(self.scales * self.wire.scale_bytes, PACK_BYTES)


@dataclass(frozen=True, slots=True)
class WireSplit:
    """Rank r owns elements [r * part, (r + 1) * part), cut at the end, of whole groups or rows.

    All slices have the places of a full one, `slice_layout`, however short they are. The last may be empty.
    slice_elements: of a full slice, where something else than the wire decides about it.
    """

    world: int
    numel: int
    wire: Wire
    columns: int | None = None
    slice_elements: int | None = None

    def __post_init__(self) -> None:
        require(reason_not_split(self.world, self.numel, self.wire, self.columns))
        if self.slice_elements is not None:
            require(reason_not_slice_elements(self.slice_elements, self.world, self.numel, self.unit))

    @property
    def unit(self) -> int:
        """Elements that share a scale."""
        return self.columns or GROUP

    @property
    def part(self) -> int:
        """Elements of a full slice."""
        if self.slice_elements is not None:
            return self.slice_elements
        return ceil_div(ceil_div(self.numel, self.unit), self.world) * self.unit

    @property
    def lanes(self) -> int:
        """Lanes that work on a full slice: one for each run of it, or a wave for each row."""
        return self.part // self.unit * WAVE_LANES if self.wire.per_row else self.part // RUN

    @property
    def slice_layout(self) -> WireSlice:
        return WireSlice(self.wire, self.part, self.columns)

    def slice(self, rank: int) -> range:
        """Elements of a rank's slice."""
        require(reason_not_rank(rank, self.world))
        return range(min(rank * self.part, self.numel), min((rank + 1) * self.part, self.numel))


# --- windows ---


def slice_capacity(wire: Wire, max_bytes: int, world: int) -> int:
    """Bytes of the largest wire slice of calls of up to `max_bytes` bytes of 16-bit elements; grows with max_bytes."""
    require(reason_not_wire_capacity(wire, max_bytes, world))
    numel = max(max_bytes // 2, 1)
    if not wire.per_row:
        return WireSplit(world, numel, wire).slice_layout.nbytes
    # One row of everything is the longest slice, rows of ROW_UNIT have the most scales.
    scales = ceil_div(ceil_div(numel, ROW_UNIT), world)
    return round_up(numel, PACK_BYTES) + round_up(scales * wire.scale_bytes, PACK_BYTES)


def scatter_bytes(slice_nbytes: int, world: int) -> int:
    """Bytes of a rank's own quantised tensor: a wire slice for each owner, then one for a last group that is short."""
    return slice_nbytes * world + WireSlice(Wire.FP8_BOTH, GROUP).nbytes


def wire_regions(wire: Wire, world: int) -> tuple[RegionSpec, ...]:
    """Payload regions of the load/store all-reduce behind `input`, as functions of max_bytes.

    `quantized`: the own slice of the sum, which peers gather. `partials`: the own tensor, quantised for its owners.
    """
    regions = [RegionSpec("quantized", lambda max_bytes: slice_capacity(wire, max_bytes, world))]
    if wire.both:
        regions.append(
            RegionSpec("partials", lambda max_bytes: scatter_bytes(slice_capacity(wire, max_bytes, world), world))
        )
    return tuple(regions)
