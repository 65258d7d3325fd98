# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Data: what a published kernel of the same purpose compiles to, for the same columns as our own report.

Source: the kernels of the PyPI package amd-mori 1.2.4 (mori.ops.gemm_ar), compiled with FlyDSL 0.5.0 for gfx950,
rank 0, world 8, M=16384 N=7168 K=2048, tiles as named. Rows with "no put" leave out the copy-engine device functions.
"""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = "amd-mori 1.2.4, compiled with FlyDSL 0.5.0"


@dataclass(frozen=True, slots=True)
class PublishedStep:
    """Executed instructions of one wave per K step of 128, by class."""

    instructions: int
    mfma: int
    valu: int
    ds_read: int
    global_to_lds: int
    vmem_load: int  # scales
    waits: int
    barriers: int
    scalar: int


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """Static figures of one kernel. `stores` as text: count x bytes."""

    vgpr: int
    sgpr: int
    vgpr_spills: int
    scratch_bytes: int
    lds_bytes: int
    instructions: int
    mfma: int
    waits: int
    barriers: int
    stores: str
    step: PublishedStep | None = None


_BLOCKSCALE = PublishedStep(203, 16, 110, 16, 6, 6, 13, 8, 18)
_PTPC = PublishedStep(72, 16, 0, 16, 6, 0, 6, 8, 10)
_MXFP8 = PublishedStep(122, 32, 7, 24, 8, 6, 9, 8, 12)

PUBLISHED: dict[str, PublishedRow] = {
    "GEMM blockscale 128x256": PublishedRow(176, 59, 0, 0, 98304, 3490, 256, 213, 130, "8 x 16 B", _BLOCKSCALE),
    "GEMM ptpc 128x256": PublishedRow(158, 38, 0, 0, 98304, 1574, 256, 124, 130, "8 x 16 B", _PTPC),
    "GEMM ptpc 256x256": PublishedRow(256, 43, 0, 0, 131072, 2397, 512, 187, 130, "16 x 16 B"),
    "GEMM mxfp8 256x256": PublishedRow(256, 55, 3, 16, 131072, 2434, 512, 167, 130, "16 x 16 B", _MXFP8),
    "GEMM mxfp8 256x128 (narrow)": PublishedRow(154, 51, 0, 0, 98304, 1746, 256, 165, 130, "16 x 8 B"),
    "fused scatter blockscale, no put": PublishedRow(176, 62, 0, 0, 98304, 3573, 256, 216, 132, "8 x 16 B"),
    "fused scatter mxfp8, no put": PublishedRow(256, 58, 2, 12, 131072, 2479, 512, 169, 132, "16 x 16 B"),
    "direct LSA blockscale": PublishedRow(176, 60, 0, 0, 98304, 3558, 256, 217, 131, "8 x 16 B"),
    "reduce (8 inputs)": PublishedRow(58, 46, 0, 0, 0, 181, 0, 10, 0, "1 x 16 B"),
    "quantise to fp8": PublishedRow(50, 27, 0, 0, 0, 595, 0, 36, 0, "7 x 16 B + 1"),
    "dequantise from fp8": PublishedRow(33, 24, 0, 0, 0, 1739, 0, 64, 0, "98 x 16 B"),
    "LSA pull of fp8": PublishedRow(53, 70, 0, 0, 0, 1576, 0, 58, 0, "98 x 16 B"),
    "LSA all-reduce 1-stage": PublishedRow(58, 46, 0, 0, 0, 242, 0, 14, 1, "1"),
    "LSA all-reduce 2-stage": PublishedRow(62, 75, 0, 0, 0, 375, 0, 28, 3, "9"),
}
