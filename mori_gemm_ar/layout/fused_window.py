# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The window of the fused op: control words at constant offsets, then payload laid out for the largest M."""

from __future__ import annotations

from dataclasses import dataclass

from mori_gemm_ar.layout.allreduce import (
    CONTROL,
    CONTROL_REGIONS,
    EPOCH_BYTES,
    PAYLOAD_SLACK,
    SLOT_BYTES,
    control_regions,
)
from mori_gemm_ar.layout.fused_rules import MAX_CHUNKS, reason_not_fused_window
from mori_gemm_ar.layout.gemm_terms import Tile
from mori_gemm_ar.layout.ownership import OwnerSlices
from mori_gemm_ar.layout.rules import reason_not_index, reason_not_rank, require
from mori_gemm_ar.layout.terms import MAX_BLOCKS, MAX_WORLD, REGION_ALIGN, round_up
from mori_gemm_ar.layout.window import RegionSpec, WindowMap, payload_layout
from mori_gemm_ar.layout.wire import WireSlice
from mori_gemm_ar.layout.wire_terms import Wire

OUTPUT_BYTES = 2  # of an element of C
MAX_OUTPUTS = 2
_TALLEST = max(tile.m for tile in Tile)
_COUNTER_BYTES = 4

_FUSED_REGIONS = control_regions(
    (
        ("tile_arrivals", _COUNTER_BYTES * MAX_WORLD * MAX_CHUNKS),  # u32 [destination][chunk], wrap by themselves
        ("meet_epoch", EPOCH_BYTES),  # u32, calls whose slices were stored into peers' windows or are pulled
        ("meet_flags", SLOT_BYTES * MAX_WORLD),  # u64 [peer]
        ("pull_epochs", EPOCH_BYTES * MAX_BLOCKS),  # u32 [block], advanced by the block itself
        ("pull", SLOT_BYTES * MAX_BLOCKS * MAX_WORLD),  # u64 [block][peer]
        ("chunk_calls", _COUNTER_BYTES * MAX_WORLD * MAX_CHUNKS),  # u32 [owner][chunk], streamed calls that had it
        ("chunk_landed", SLOT_BYTES * MAX_WORLD * MAX_CHUNKS),  # u64 [source][chunk], partial sums; engines add to it
        ("chunk_summed", SLOT_BYTES * MAX_WORLD * MAX_CHUNKS),  # u64 [owner][chunk], sums; the same
        (
            "chunk_arrivals",
            _COUNTER_BYTES * MAX_CHUNKS,
        ),  # u32 [chunk], blocks that have summed
    ),
    CONTROL.nbytes,
)


@dataclass(frozen=True, slots=True)
class FusedControl:
    """Byte offsets of the control words that only the fused op has. `FUSED_CONTROL` is the only instance."""

    tile_arrivals: int
    meet_epoch: int
    meet_flags: int
    pull_epochs: int
    pull: int
    chunk_calls: int
    chunk_landed: int
    chunk_summed: int
    chunk_arrivals: int
    nbytes: int  # of all control words, the all-reduce's included

    def arrivals(self, dest: int, chunk: int) -> int:
        """Offset of the counter of a chunk's tiles."""
        require(reason_not_rank(dest, MAX_WORLD) or reason_not_index("chunk", chunk, MAX_CHUNKS))
        return self.tile_arrivals + _COUNTER_BYTES * (dest * MAX_CHUNKS + chunk)


FUSED_CONTROL = FusedControl(
    **{region.name: region.offset for region in _FUSED_REGIONS},
    nbytes=round_up(_FUSED_REGIONS[-1].end, REGION_ALIGN),
)


@dataclass(frozen=True, slots=True)
class FusedWindow:
    """What the payload is sized by.

    outputs: results that rotate. landing: whether slices of partial sums arrive here. reduced_rows: largest M of which
    the load/store all-reduce keeps its sums here; for larger ones there is room for an own slice.
    """

    world: int
    n: int
    m_max: int
    wire: Wire = Wire.EXACT
    outputs: int = MAX_OUTPUTS
    landing: bool = True
    reduced_rows: int = 0

    def __post_init__(self) -> None:
        require(reason_not_fused_window(self.world, self.n, self.m_max, self.wire, self.outputs, self.reduced_rows))

    def slice_rows(self, m: int) -> int:
        """Rows of a full slice under any tile."""
        return OwnerSlices(self.world, m, _TALLEST).slice_rows

    def slot_bytes(self, m: int) -> int:
        """Bytes of a landing slot: a rank's partial sums of one slice, or the same as a wire slice."""
        elements = self.slice_rows(m) * self.n
        if self.wire.both:
            return round_up(WireSlice(self.wire, elements).nbytes, REGION_ALIGN)
        return round_up(elements * OUTPUT_BYTES, REGION_ALIGN)

    def sums_bytes(self, m: int) -> int:
        """Bytes of a rank's sums as a wire slice."""
        return round_up(WireSlice(self.wire, self.slice_rows(m) * self.n).nbytes, REGION_ALIGN)

    def reduced_bytes(self, m: int) -> int:
        """Bytes of the own sums, exact."""
        own = round_up(self.slice_rows(m) * self.n * OUTPUT_BYTES, REGION_ALIGN)
        return max(own, self._whole(min(m, self.reduced_rows)))

    def _whole(self, m: int) -> int:
        return round_up(m * self.n * OUTPUT_BYTES, REGION_ALIGN) + PAYLOAD_SLACK

    def specs(self) -> tuple[RegionSpec, ...]:
        """Payload regions as functions of M: own product, own sums, what arrives, results.

        The all-reduce's regions have its names, so that its launches find them.
        """
        world, wire = self.world, self.wire
        specs = [RegionSpec("input", self._whole)]
        if wire.lossy:
            specs.append(RegionSpec("quantized", lambda m: self.sums_bytes(m) + PAYLOAD_SLACK))
            specs.append(RegionSpec("gathered", lambda m: self.sums_bytes(m) * world))
        else:
            specs.append(RegionSpec("reduced", self.reduced_bytes))
        if wire.both:
            specs.append(RegionSpec("partials", lambda m: self.slot_bytes(m) * world + REGION_ALIGN))
        if self.landing:
            specs.append(RegionSpec("landing", lambda m: self.slot_bytes(m) * world))
        specs.extend(RegionSpec(f"output{slot}", self._whole) for slot in range(self.outputs))
        return tuple(specs)

    def map(self) -> WindowMap:
        """The regions."""
        payload = payload_layout(self.specs(), capacity=self.m_max, start=FUSED_CONTROL.nbytes)
        return WindowMap((*CONTROL_REGIONS, *_FUSED_REGIONS, *payload.regions))
