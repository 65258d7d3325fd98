# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Kernels that check a machine against the model. No op launches them."""
