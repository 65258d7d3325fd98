# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Standalone all-reduces."""

from mori_gemm_ar.ar.op import AllReduceOp

__all__ = ["AllReduceOp"]
