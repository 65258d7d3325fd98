# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Day one on a GPU: does it do what emulator, memory model and time model say? docs/hardware.md tells how to run it."""
