# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Section 2."""

from __future__ import annotations

from mori_gemm_ar.hwcheck.hardware import Rank
from mori_gemm_ar.hwcheck.section import Log


def litmus(rank: Rank, log: Log) -> None:
    pass
