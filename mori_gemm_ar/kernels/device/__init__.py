# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The private room for ISA plumbing: scoped accesses, packs, peers and barriers as small named objects."""
