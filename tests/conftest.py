# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Settings that every test process needs before it imports anything of ours."""

import os

# The emulator runs many small matrix products: threads inside OpenBLAS make each of them 6 to 10 times slower, and
# OpenBLAS reads the variable once, when NumPy loads. Hence here, above every import that could bring NumPy in.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from hypothesis import settings

# The first example of a test may compile a kernel, so there is no per-example deadline. CI repeats the same examples.
settings.register_profile("house", deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.load_profile("house")
