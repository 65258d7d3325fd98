# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The all-reduce with a lossy wire in torch: what every rank has to hold, bit by bit, whatever the transport."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.ar.wire_format import dequantize_wire, quantize_wire
from mori_gemm_ar.layout import Wire
from mori_gemm_ar.runtime import RankContext
from tests.ranks.worlds import BF16

LOSSY = (Wire.FP8, Wire.FP8_BOTH, Wire.FP8_ROW)
# Relative L2 of Gaussian data: (low, high). Below, the wire was not used; above, something else is lost.
GATES = {Wire.FP8: (2.0e-2, 2.8e-2), Wire.FP8_ROW: (2.0e-2, 2.8e-2), Wire.FP8_BOTH: (3.0e-2, 4.2e-2)}
MAX_BYTES = 1 << 17
each_wire = pytest.mark.parametrize("wire", LOSSY, ids=lambda wire: wire.value)


def create(ctx: RankContext, wire: Wire, dtypes: tuple[torch.dtype, ...] = (BF16,), **more: Any) -> AllReduceOp:
    """An op for small tensors."""
    return AllReduceOp.create(ctx, more.pop("max_bytes", MAX_BYTES), wire=wire, dtypes=dtypes, **more)


def through(x: torch.Tensor, wire: Wire, dtype: torch.dtype) -> torch.Tensor:
    """A tensor after one leg."""
    return dequantize_wire(quantize_wire(x, wire), x.shape, dtype, wire)


def wire_reference(inputs: Sequence[torch.Tensor], wire: Wire) -> torch.Tensor:
    """Partials through the wire if both legs are lossy, fp32 sum in rank order, rounded once, through the wire."""
    dtype = inputs[0].dtype
    partials = [through(x, wire, torch.float32) if wire.both else x.float() for x in inputs]
    total = partials[0].clone()
    for partial in partials[1:]:
        total += partial
    return through(total.to(dtype), wire, dtype)


def gaussian(shape: Sequence[int] | int, dtype: torch.dtype, *seed: int) -> torch.Tensor:
    """Normal deviates, other ones for another seed."""
    generator = torch.Generator().manual_seed(hash(seed) % 2**31)
    return torch.randn(shape, generator=generator).to(dtype)


def relative_l2(actual: torch.Tensor, inputs: Sequence[torch.Tensor]) -> float:
    """Distance from the float64 sum of the inputs, over the length of that sum."""
    exact = torch.stack([x.double() for x in inputs]).sum(dim=0)
    return float((actual.double() - exact).norm() / exact.norm())
