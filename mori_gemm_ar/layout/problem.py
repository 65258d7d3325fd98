# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What is to be reduced."""

from __future__ import annotations

from dataclasses import dataclass

from mori_gemm_ar.layout.dtypes import DType
from mori_gemm_ar.layout.rules import reason_not_problem, require
from mori_gemm_ar.layout.terms import PACK_BYTES


@dataclass(frozen=True, slots=True)
class AllReduceProblem:
    """A flat sum of `numel` elements over `world` ranks. The shape of the tensor does not matter."""

    world: int
    numel: int
    dtype: DType

    def __post_init__(self) -> None:
        require(reason_not_problem(self.world, self.numel, self.dtype))

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.nbytes

    @property
    def packs(self) -> int:
        """Whole 16-byte packs."""
        return self.nbytes // PACK_BYTES

    @property
    def tail(self) -> int:
        """Elements after the last whole pack."""
        return self.nbytes % PACK_BYTES // self.dtype.nbytes
