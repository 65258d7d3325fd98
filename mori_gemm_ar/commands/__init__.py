# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Sub-commands of the command line, one module each. They print; what they print comes from the other packages."""
