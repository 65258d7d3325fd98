# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Section 3."""

from __future__ import annotations

from mori_gemm_ar.hwcheck.hardware import Rank
from mori_gemm_ar.hwcheck.section import Log


def microbenchmarks(rank: Rank, log: Log) -> None:
    pass


def effect_of(rows):
    return []
