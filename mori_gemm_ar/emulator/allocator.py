# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Settings of the C allocator that the emulator's many short-lived arrays need."""

from __future__ import annotations

import ctypes
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_KEEP_BYTES = 1 << 30


@cache
def keep_freed_pages() -> bool:
    """Let freed memory stay in the process: otherwise each large temporary is paged in anew, ten times its cost.

    Process-wide, once. Returns whether the C library took it (glibc does; others are merely slower).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_M_MMAP_THRESHOLD, _KEEP_BYTES), (_M_TRIM_THRESHOLD, _KEEP_BYTES), (_M_ARENA_MAX, 1))
    return all(mallopt(option, value) for option, value in settings)
