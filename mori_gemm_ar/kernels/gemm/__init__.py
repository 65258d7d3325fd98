# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The fp8 GEMM of eight waves: where a wave stands, loaders, scaling, pipeline, store; each a small device class."""
