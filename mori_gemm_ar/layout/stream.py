# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The streamed tail: each chunk is summed and pushed on as soon as it has arrived from all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mori_gemm_ar.layout.allreduce import DEFAULT_THREADS
from mori_gemm_ar.layout.dtypes import DType
from mori_gemm_ar.layout.fused_rules import reason_not_stream_config
from mori_gemm_ar.layout.geometry import LaunchGeometry
from mori_gemm_ar.layout.ownership import OwnerSlices
from mori_gemm_ar.layout.rules import require
from mori_gemm_ar.layout.sdma import PUSH_THREADS
from mori_gemm_ar.layout.terms import MAX_WORLD, PACK_BYTES, WAVE_LANES, ceil_div
from mori_gemm_ar.layout.wire_terms import Wire

# Each block releases once for each chunk, about 25 ns of the device each; a chunk's sum needs a tenth of its transfer.
STREAM_BLOCKS = 64
STREAM_CHUNKS = WAVE_LANES // MAX_WORLD  # of a slice at most: one lane looks after each chunk of each rank


class StreamPhase(Enum):
    """The kernels, in order."""

    SUM = "sum"  # chunk by chunk: wait, sum, push
    END = "end"  # one wave: wait for the own queues and all ranks' chunks, and meet all ranks


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """Compile key of one phase; bf16, exact wire. Rank, size, chunks and addresses are arguments."""

    world: int
    phase: StreamPhase

    def __post_init__(self) -> None:
        require(reason_not_stream_config(self.world, self.phase, StreamPhase))

    @property
    def dtype(self) -> DType:
        """Of the partial sums and of the result."""
        return DType.BF16

    @property
    def wire(self) -> Wire:
        """What is pushed."""
        return Wire.EXACT

    @property
    def threads(self) -> int:
        """Of a block."""
        return PUSH_THREADS if self.phase is StreamPhase.END else DEFAULT_THREADS

    @property
    def key(self) -> str:
        """Stable, unique for each config, and a legal symbol."""
        return f"tail_stream_{self.phase.value}_w{self.world}"

    @property
    def kernel_name(self) -> str:
        return self.key


def stream_geometry(config: StreamConfig, slices: OwnerSlices, chunks: int, n: int) -> LaunchGeometry:
    """Grid of a phase: enough for one chunk, up to STREAM_BLOCKS; equal on all ranks."""
    if config.phase is StreamPhase.END:
        return LaunchGeometry(1, config.threads)
    bands = ceil_div(slices.slice_bands, max(min(chunks, slices.slice_bands), 1))
    packs = bands * slices.tile_m * n * 2 // PACK_BYTES
    return LaunchGeometry(max(1, min(STREAM_BLOCKS, ceil_div(packs, config.threads))), config.threads)
