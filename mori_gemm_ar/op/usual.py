# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The short way through the checks of a call, for operands as they nearly always are."""

from __future__ import annotations

from collections.abc import Callable

import torch

from mori_gemm_ar.gemm.arguments import ALIGNMENT, FP8, Contract
from mori_gemm_ar.layout import Recipe
from mori_gemm_ar.layout.gemm import a_scale_shape, b_scale_shape

Addresses = tuple[int, int, int, int]
UsualOperands = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], "tuple[int, Addresses] | None"]


def usual_operands(contract: Contract) -> UsualOperands:
    """A function of a, b, a_scale, b_scale that gives (M, their addresses) or None.

    It accepts a part of what `Contract.check` accepts: the shapes and types that the recipe names, contiguous. It
    refuses without a reason; then the contract finds one, or accepts a form that is seldom used.
    """
    recipe, columns = contract.recipe, contract.k
    # The number of a device: -1 for the CPU.
    index = torch.device(contract.device).index
    device = -1 if index is None else index
    b_shape, b_scales = (contract.n, contract.k), b_scale_shape(recipe, contract.n, contract.k)
    fp8, scale = FP8, torch.uint8 if recipe is Recipe.MXFP8 else torch.float32
    ambiguous = columns // 128 if recipe is Recipe.BLOCKSCALE else -1  # square a_scale, in either order
    a_scales: dict[int, tuple[int, ...]] = {}

    def addresses(
        a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor
    ) -> tuple[int, Addresses] | None:
        try:
            m, k = a.shape
            expected = a_scales.get(m)
            if expected is None:
                expected = a_scales[m] = a_scale_shape(recipe, m, columns)
            if (
                k != columns
                or m == ambiguous
                or a.dtype is not fp8
                or b.dtype is not fp8
                or a_scale.dtype is not scale
                or b_scale.dtype is not scale
                or b.shape != b_shape
                or b_scale.shape != b_scales
                or a_scale.shape != expected
                or not a.is_contiguous()
                or not b.is_contiguous()
                or not a_scale.is_contiguous()
                or not b_scale.is_contiguous()
                or a.get_device() != device
                or b.get_device() != device
                or a_scale.get_device() != device
                or b_scale.get_device() != device
            ):
                return None
            found = a.data_ptr(), b.data_ptr(), a_scale.data_ptr(), b_scale.data_ptr()
        except (AttributeError, ValueError, TypeError, RuntimeError):
            return None
        if (found[0] | found[1]) % ALIGNMENT or (found[2] | found[3]) % 4:
            return None
        return m, found

    return addresses
