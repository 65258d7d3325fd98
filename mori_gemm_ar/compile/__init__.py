# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""FlyDSL in, code objects out. `store` needs the standard library only; `build` and `backend` import FlyDSL."""

from __future__ import annotations

from mori_gemm_ar.compile.store import CodeObject, CodeStore, default_store

__all__ = ["CodeObject", "CodeStore", "default_store"]
