# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Standalone all-reduces."""

from mori_gemm_ar.ar.op import AllReduceOp
from mori_gemm_ar.ar.transport import CopyEngines

__all__ = ["AllReduceOp", "CopyEngines"]
