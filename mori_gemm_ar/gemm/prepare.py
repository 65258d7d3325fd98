# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Operand preparation in torch: the order of a preshuffled B, scale layouts, and the quantisers' reference."""

from __future__ import annotations

import torch

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import rules
from mori_gemm_ar.layout.gemm_rules import reason_not_gemm_k, reason_not_gemm_n
from mori_gemm_ar.layout.gemm_terms import (
    E4M3_INVERSE_MAX,
    MX_BLOCK,
    MX_EXPONENT_SHIFT,
    MX_NAN,
    MX_ROUND_UP,
    MX_ROWS,
    N_UNIT,
    SCALE_BLOCK,
    SCALE_FLOOR,
    SHUFFLE_K,
)
from mori_gemm_ar.layout.terms import round_up

FP8 = torch.float8_e4m3fn
_PACK = 16
_SCALED = (torch.bfloat16, torch.float16, torch.float32)


def preshuffle_b(b: torch.Tensor) -> torch.Tensor:
    """B [N, K] with its bytes in the order (N/16, K/64, 4, 16, 16), for b_layout="preshuffled"; a new tensor.

    The same order as aiter's `shuffle_weight(layout=(16, 16))` and mori's `preshuffle_b`. Any one-byte dtype; N a
    multiple of 16, K of 128. Raises `ConfigError`.
    """
    if b.ndim != 2 or b.element_size() != 1:
        raise ConfigError(f"b={tuple(b.shape)} of {b.dtype} must be [N, K] of one-byte elements; quantise it first")
    n, k = b.shape
    rules.require(reason_not_gemm_n(n) or reason_not_gemm_k(k))
    parts = b.contiguous().view(torch.uint8).view(n // N_UNIT, N_UNIT, k // SHUFFLE_K, SHUFFLE_K // _PACK, _PACK)
    return parts.permute(0, 2, 3, 1, 4).contiguous().view(n, k).view(b.dtype)


def pack_a_exponents(exponents: torch.Tensor) -> torch.Tensor:
    """uint8 [M, K/32] exponents to [K/32, ceil(M/64), 16, 4], as MXFP8 takes A's: row 64 g + 16 i + r at [:, g, r, i].

    Rows past M get exponent 0. Raises `ConfigError`.
    """
    if exponents.ndim != 2 or exponents.element_size() != 1:
        raise ConfigError(f"exponents={tuple(exponents.shape)} of {exponents.dtype} must be uint8 [M, K/32]")
    m, blocks = exponents.shape
    rows = round_up(m, MX_ROWS)
    padded = torch.zeros(rows, blocks, dtype=torch.uint8, device=exponents.device)
    padded[:m] = exponents.view(torch.uint8)
    return padded.t().reshape(blocks, rows // MX_ROWS, 4, 16).permute(0, 1, 3, 2).contiguous()


def _magnitudes(x: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 [M, K/block, block], and the largest magnitude of each block as integer bits, so that NaN wins."""
    if x.ndim != 2 or x.dtype not in _SCALED:
        raise ConfigError(f"x={tuple(x.shape)} of {x.dtype} must be [M, K] of one of {_SCALED}")
    rules.require(reason_not_gemm_k(x.shape[1]))
    values = x.float().reshape(x.shape[0], x.shape[1] // block, block)
    return values, (values.view(torch.int32) & 0x7FFFFFFF).amax(dim=-1)


def quantize_1x128(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [M, K] to e4m3fn [M, K] and scales fp32 [K/128, M], as BLOCKSCALE takes A; x is about a * scale.

    scale = largest magnitude / 448, at least 2^-126: blocks of smaller values lose bits and end as zeros, never as NaN.
    A block with NaN or infinity dequantises to NaN, and no other block does. Raises `ConfigError`.
    """
    values, largest = _magnitudes(x, SCALE_BLOCK)
    scale = largest.view(torch.float32) * torch.tensor(E4M3_INVERSE_MAX, dtype=torch.float32)
    # As integers, so that NaN passes.
    floor = torch.tensor(SCALE_FLOOR, dtype=torch.float32).view(torch.int32)
    scale = torch.maximum(scale.view(torch.int32), floor.to(scale.device)).view(torch.float32)
    data = (values * (1.0 / scale)[..., None]).to(FP8)
    return data.reshape(x.shape), scale.t().contiguous()


def quantize_mxfp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [M, K] to e4m3fn [M, K] and exponents uint8 [K/32, ceil(M/64), 16, 4], as MXFP8 takes A.

    A block of 32 gets the smallest power of two, at least 2^-127, that keeps it within 448. A block with NaN or
    infinity gets exponent 255, NaN. Raises `ConfigError`.
    """
    values, largest = _magnitudes(x, MX_BLOCK)
    exponent = (((largest.long() + MX_ROUND_UP) >> 23) - MX_EXPONENT_SHIFT).clamp_min(0)
    inverse = ((254 - exponent) << 23).to(torch.int32).view(torch.float32)
    finite = largest < 0x7F800000
    exponent = torch.where(finite, exponent, MX_NAN)
    inverse = torch.where(finite, inverse, torch.nan)
    data = (values * inverse[..., None]).to(FP8)
    return data.reshape(x.shape), pack_a_exponents(exponent.to(torch.uint8))
