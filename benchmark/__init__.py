# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Scripts that measure, each after verifying what it measures. Run them by path; tests import them by name."""
