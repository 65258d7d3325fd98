# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The fp8 GEMM as an op: C = scale * A B^T in bf16, and the preparation of its operands."""

from __future__ import annotations

from mori_gemm_ar.gemm.op import GemmOp
from mori_gemm_ar.gemm.prepare import pack_a_exponents, preshuffle_b, quantize_1x128, quantize_mxfp8

__all__ = ["GemmOp", "pack_a_exponents", "preshuffle_b", "quantize_1x128", "quantize_mxfp8"]
