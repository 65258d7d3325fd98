# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Closed sets and hard bounds that the rules and the types share."""

from __future__ import annotations

from enum import Enum

PACK_BYTES = 16  # unit of the flat all-reduce: one 128-bit access per lane
MAX_WORLD = 8  # ranks of one node; also the peer slots of a signal row
MAX_BLOCKS = 256  # rows of every signal array; bounds a grid with barriers, is not a tuning value
WAVE_LANES = 64  # lanes of a gfx950 wave
MAX_THREADS = 1024  # threads of one workgroup
MAX_GRID = 2**31 - 1  # workgroups of one launch
MAX_BYTES = 2**32 - 256  # kernels add 32-bit byte offsets, and a gather may run MAX_WORLD - 1 packs past the end
MAX_NUMEL = MAX_BYTES // 2  # elements of the narrowest dtype; fits a signed 32-bit kernel argument
MAX_ROWS = 2**31 - 1  # rows are signed 32-bit kernel arguments
MAX_TILE_M = 1024  # tallest output tile that a workgroup can own
MAX_WINDOW = 2**48  # bytes that a GPU virtual address reaches
REGION_ALIGN = 256  # bytes: two 128-byte L2 lines, so no two regions share a line
U32 = 2**32


class Stage(Enum):
    """How often a byte of the payload crosses the links; both stages give the same bits."""

    ONE = 1  # every rank sums everything from its peers' inputs
    TWO = 2  # every rank sums its own slice, then all ranks gather the slices


class Gather(Enum):
    """Loop nesting of the two-stage gather."""

    INTERLEAVED = "interleaved"  # any W-1 consecutive remote loads of a wave name W-1 different peers
    SEQUENTIAL = "sequential"  # one peer after the other: one link busy, the control of tests


class RegionKind(Enum):
    """What a window region holds, and so what its place may depend on."""

    CONTROL = "control"  # flags, counters, locks, errors: offset is a constant
    PAYLOAD = "payload"  # data: offset depends on capacity only


class MemoryClass(Enum):
    """Where a kernel's loads go; each class has a grid cap of its own."""

    REMOTE_LOAD = "remote_load"  # peers' windows: requests queue on the links
    REMOTE_FP8 = "remote_fp8"  # the same, with half the bytes in each access
    LOCAL = "local"  # this GPU's memory: every compute unit helps


def ceil_div(value: int, divisor: int) -> int:
    """Integer quotient, rounded up."""
    return -(-value // divisor)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple that is not below the value."""
    return ceil_div(value, multiple) * multiple
