# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Fused fp8 GEMM and all-reduce for MI355X, executed on real GPUs or on an emulated gfx950 node."""

__version__ = "0.1.0"
