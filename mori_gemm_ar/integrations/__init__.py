# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The ops inside other programs: torch operators, and a plugin of SGLang. Nothing is imported before it is used."""
