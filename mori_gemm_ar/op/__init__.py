# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The fp8 GEMM with its all-reduce as one op."""

from __future__ import annotations

from mori_gemm_ar.model import Mode
from mori_gemm_ar.op.op import GemmAllReduceOp
from mori_gemm_ar.op.options import Support
from mori_gemm_ar.plan import LayerPlan, Tuning

__all__ = ["GemmAllReduceOp", "LayerPlan", "Mode", "Support", "Tuning"]
