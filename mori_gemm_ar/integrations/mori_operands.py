# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Operands as `mori.ops.gemm_ar` takes them, in the form of our op. What can be viewed is viewed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import Recipe
from mori_gemm_ar.layout.gemm import a_scale_shape, b_scale_shape

_KEPT = 4096  # weights whose scales are kept: N*K/1024 bytes each
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass
class MoriOperands:
    """Turns operands of one op; keeps what it made of weights' scales, so that recorded calls find it again."""

    recipe: Recipe
    n: int
    k: int
    _scales: dict[int, tuple[torch.Tensor, int, torch.Tensor]] = field(default_factory=dict)

    def ours(self, a: Any, b: Any, a_scale: Any, b_scale: Any, *, recording: bool) -> Tensors:
        """a, b, a_scale, b_scale as `mori_gemm_ar.op.GemmAllReduceOp` takes them; it checks what is left alone.

        A copy is made of operands that are not contiguous, which a recorded call must not need.
        """
        for name, tensor in (("a_fp8", a), ("b_preshuffled", b), ("a_scale", a_scale), ("b_scale", b_scale)):
            if not isinstance(tensor, torch.Tensor):
                raise ConfigError(f"{name}={type(tensor).__name__} must be a torch.Tensor")
        if recording and not (a.is_contiguous() and b.is_contiguous()):
            raise ConfigError("a_fp8 and b_preshuffled must be contiguous in a recorded call; make copies that live on")
        m = a.shape[0] if a.ndim else 0
        if self.recipe is Recipe.MXFP8:
            return a.contiguous(), b.contiguous(), self._packed(a_scale, m), self._narrow(b_scale)
        shape = b_scale_shape(self.recipe, self.n, self.k)
        fits = b_scale.is_contiguous() and b_scale.numel() == shape[0] * shape[1]
        return a.contiguous(), b.contiguous(), a_scale, b_scale.view(shape) if fits else b_scale

    def _packed(self, a_scale: torch.Tensor, m: int) -> torch.Tensor:
        """Four exponents of each int32, as bytes."""
        shape = a_scale_shape(self.recipe, m, self.k)
        words = shape[0] * shape[1] * shape[2]
        if a_scale.dtype is not torch.int32 or tuple(a_scale.shape) != (words,) or not a_scale.is_contiguous():
            raise ConfigError(
                f"a_scale={tuple(a_scale.shape)} of {a_scale.dtype} must be ({words},) of torch.int32; "
                f"use preshuffle_a_scale"
            )
        return a_scale.view(torch.uint8).view(shape)

    def _narrow(self, b_scale: torch.Tensor) -> torch.Tensor:
        """Exponents of a weight, K block by K block in int32, as bytes row by row: made once, or after a change."""
        # A tensor made in inference mode counts no changes.
        key, version = b_scale.data_ptr(), 0 if b_scale.is_inference() else b_scale._version
        kept = self._scales.get(key)
        if kept is not None and kept[1] == version and kept[0].shape == b_scale.shape:
            return kept[2]
        rows, columns = b_scale_shape(self.recipe, self.n, self.k)
        if b_scale.dtype is not torch.int32 or b_scale.numel() != rows * columns or not b_scale.is_contiguous():
            raise ConfigError(
                f"b_scale={tuple(b_scale.shape)} of {b_scale.dtype} must be contiguous torch.int32, {columns} x {rows} "
                f"elements; use exponents.t().contiguous().to(torch.int32)"
            )
        made = b_scale.view(columns, rows).t().to(torch.uint8).contiguous()
        if kept is None and len(self._scales) >= _KEPT:
            self._scales.pop(next(iter(self._scales)))
        # The tensor is kept too, or another one could come to lie at its address.
        self._scales[key] = b_scale, version, made
        return made
