# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The formats of a lossy wire, stated in torch bit by bit. The kernels are another implementation of this page."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import Wire, WireSlice
from mori_gemm_ar.layout.gemm_terms import (
    E4M3_INVERSE_MAX,
    E4M3_MAX,
    MX_EXPONENT_SHIFT,
    MX_NAN,
    MX_ROUND_UP,
    SCALE_FLOOR,
)
from mori_gemm_ar.layout.wire_terms import GROUP, NAN_CODES

FP8 = torch.float8_e4m3fn
_ABSOLUTE, _INFINITE = 0x7FFFFFFF, 0x7F800000
_NAN_CODE = NAN_CODES & 0xFF


def wire_slice(shape: Sequence[int], wire: Wire) -> WireSlice:
    """Places of a tensor of this shape on the wire. Raises `ConfigError`."""
    columns = (shape[-1] if len(shape) else 1) if wire.per_row else None
    return WireSlice(wire, torch.Size(shape).numel(), columns)


def quantize_wire(x: torch.Tensor, wire: Wire | str = Wire.FP8) -> torch.Tensor:
    """The wire slice of a tensor, uint8 [`WireSlice.nbytes`]: e4m3 codes in order, then scales in order.

    A scale belongs to 32 consecutive elements of the flattened tensor, of which the last may have fewer, or with
    "fp8-row" to a row of the last dimension. Values are scaled, rounded to nearest even, and none passes 448.

    e8m0 scale e stands for 2^(e - 127): e - 127 = ceil(log2(largest / 448)), at least -127; e = 0 for a group of zeros.
    fp32 scale: largest * (1/448) in fp32, at least 2^-126. A group or row with a NaN or an infinity is NaN: codes 0x7f
    and scale 255 or NaN. Raises `ConfigError`.
    """
    wire = Wire.parse(wire)
    layout = wire_slice(x.shape, wire)
    values = _units(x.detach().float(), layout)
    largest = (values.view(torch.int32) & _ABSOLUTE).amax(dim=1) if len(values) else values.new_zeros(0).int()
    finite = largest < _INFINITE
    scale, inverse = _row_scales(largest) if wire.per_row else _mx_scales(largest)
    # The guard: rounding may carry a scaled row's largest past 448 by an ulp, which nearest-even takes back.
    codes = (values * inverse[:, None]).clamp(-E4M3_MAX, E4M3_MAX).to(FP8).view(torch.uint8)
    codes = torch.where(finite[:, None], codes, _NAN_CODE)
    if wire.per_row:
        scales = torch.where(finite, scale, torch.nan).view(torch.uint8)
    else:
        scales = torch.where(finite, scale, MX_NAN).to(torch.uint8)
    out = torch.zeros(layout.nbytes, dtype=torch.uint8, device=x.device)
    out[: layout.elements] = codes.reshape(-1)[: layout.elements]
    out[layout.scales_offset : layout.scales_offset + len(scales)] = scales
    return out


def dequantize_wire(
    data: torch.Tensor, shape: Sequence[int], dtype: torch.dtype, wire: Wire | str = Wire.FP8
) -> torch.Tensor:
    """The tensor that a wire slice stands for: code * scale in fp32, rounded once to `dtype`; overflow gives infinity.

    Raises `ConfigError`.
    """
    wire = Wire.parse(wire)
    layout = wire_slice(shape, wire)
    if data.dtype is not torch.uint8 or data.numel() != layout.nbytes:
        raise ConfigError(
            f"data={tuple(data.shape)} of {data.dtype} must be uint8 [{layout.nbytes}] for shape={tuple(shape)}; "
            f"pass what quantize_wire gave"
        )
    codes = data[: layout.elements].view(FP8).float()
    raw = data[layout.scales_offset : layout.scales_offset + layout.scales * wire.scale_bytes]
    if wire.per_row:
        scale = raw.clone().view(torch.float32)
    else:
        # By bits: 2^-127 is subnormal, and a power function may flush it.
        exponent = raw.int()
        scale = torch.where(exponent > 0, exponent << 23, 1 << 22).view(torch.float32)
        scale = torch.where(exponent == MX_NAN, torch.nan, scale)
    values = (_units(codes, layout) * scale[:, None]).reshape(-1)[: layout.elements]
    # One NaN, the positive quiet one: conversions of torch keep no particular bits of it.
    return values.to(dtype).masked_fill(values.isnan(), torch.nan).reshape(tuple(shape))


def _units(values: torch.Tensor, layout: WireSlice) -> torch.Tensor:
    """[scales, elements that share one], zeros for what the last group lacks."""
    unit = layout.columns or GROUP
    padded = torch.zeros(layout.scales * unit, dtype=torch.float32, device=values.device)
    padded[: layout.elements] = values.reshape(-1)
    return padded.view(layout.scales, unit)


def _mx_scales(largest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(e8m0 exponents, their inverses in fp32) of the largest magnitudes' bits."""
    exponent = (((largest.long() + MX_ROUND_UP) >> 23) - MX_EXPONENT_SHIFT).clamp_min(0)
    return exponent, ((254 - exponent).clamp_min(1) << 23).int().view(torch.float32)


def _row_scales(largest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(fp32 scales, their inverses)."""
    scale = largest.view(torch.float32) * torch.tensor(E4M3_INVERSE_MAX, dtype=torch.float32)
    scale = scale.clamp_min(SCALE_FLOOR)
    return scale, 1.0 / scale
