# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Whose code gives work to copy engines: that of sdma.ll, or amd-mori's."""

from __future__ import annotations

from mori_gemm_ar.kernels.device import sdma
from mori_gemm_ar.kernels.device.mori import MoriSubmit


def submit_code(bitcode=None):
    """queue, put and drain: of `bitcode`, a file of amd-mori's device code, or our own without one."""
    return sdma if bitcode is None else MoriSubmit(bitcode)
