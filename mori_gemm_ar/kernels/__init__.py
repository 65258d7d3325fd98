# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Device code in FlyDSL: one op or phase in each file, ISA plumbing in device/."""
