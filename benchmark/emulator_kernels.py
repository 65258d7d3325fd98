# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Kernels of one GPU that the emulator benchmark runs: launch, data, and how to tell that they worked."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mori_gemm_ar.errors import EmulatorError

if TYPE_CHECKING:
    import torch

    from mori_gemm_ar.compile.store import CodeObject

BF16_GATE = 2.1e-3  # 1.3 times the error of rounding normal data to bf16 once, 1.66e-3
GEMM = "bf16 GEMM 1024x1024xK1024"
BLOCKSCALE_GEMM = "blockscale fp8 GEMM [1024,1024]xK512"


@dataclass(frozen=True, slots=True)
class Kernel:
    """How to launch a kernel and how to tell that it worked. Tensors are named for reports."""

    name: str
    code: CodeObject
    grid: tuple[int, int]
    threads: int
    arguments: tuple[int, ...]
    tensors: dict[str, torch.Tensor]
    verify: Callable[[], None]
    flops: int = 0


def _require_close(name: str, got: torch.Tensor, expected: torch.Tensor, gate: float) -> None:
    error = float((got.double() - expected).norm() / expected.norm())
    if not error <= gate:
        raise EmulatorError(f"{name}: relative L2 error={error:.3e} must be at most {gate:.1e}; nothing was timed")


def vector_add(kernels: Any) -> Kernel:
    """fp32, one element per thread, ragged."""
    import torch

    numel = 2**20 + 3  # the last block is ragged
    name = f"vector add of {numel}"
    a, b = torch.randn(2, numel, generator=torch.Generator().manual_seed(1))
    c = torch.zeros(numel)
    return Kernel(
        name,
        kernels.build_vector_add_branch(),
        (-(-numel // kernels.VECTOR_ADD_THREADS), 1),
        kernels.VECTOR_ADD_THREADS,
        (a.data_ptr(), b.data_ptr(), c.data_ptr(), numel),
        {"a": a, "b": b, "c": c},
        lambda: _require_close(name, c, (a + b).double(), 0.0),
    )


def rms_norm(kernels: Any) -> Kernel:
    """bf16, one row per block."""
    import torch

    rows, columns, epsilon = 1024, 2048, 1e-6
    name = f"RMS norm [{rows},{columns}] bf16"
    generator = torch.Generator().manual_seed(2)
    x = torch.randn((rows, columns), generator=generator).bfloat16()
    weight = torch.randn(columns, generator=generator).bfloat16()
    y = torch.zeros_like(x)
    wide = x.double()
    expected = wide / (wide.square().mean(dim=1, keepdim=True) + epsilon).sqrt() * weight.double()
    return Kernel(
        name,
        kernels.build_rms_norm(),
        (rows, 1),
        kernels.RMS_NORM_THREADS,
        (x.data_ptr(), weight.data_ptr(), y.data_ptr(), columns, _float_bits(1 / columns), _float_bits(epsilon)),
        {"x": x, "weight": weight, "y": y},
        lambda: _require_close(name, y, expected, BF16_GATE),
    )


def gemm(kernels: Any) -> Kernel:
    """bf16 with MFMA and LDS."""
    import torch

    m = n = k = 1024
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn((rows, k), generator=generator).bfloat16() for rows in (m, n))
    c = torch.zeros((m, n), dtype=torch.bfloat16)
    expected = a.double() @ b.double().T
    return Kernel(
        GEMM,
        kernels.build_gemm_bf16(),
        (n // kernels.GEMM_TILE, m // kernels.GEMM_TILE),
        kernels.GEMM_THREADS,
        (a.data_ptr(), b.data_ptr(), c.data_ptr(), n, k),
        {"a": a, "b": b, "c": c},
        lambda: _require_close(GEMM, c, expected, BF16_GATE),
        2 * m * n * k,
    )


def blockscale_gemm() -> Kernel:
    """fp8 with a scale for each 1x128 of A and 128x128 of B, B preshuffled; data as in `bench_gemm`."""
    import torch

    from mori_gemm_ar.compile.store import default_store
    from mori_gemm_ar.gemm import preshuffle_b
    from mori_gemm_ar.layout import MI355X, BLayout, GemmProblem, Recipe, select_gemm

    m, n, k, block = 1024, 1024, 512, 128
    generator = torch.Generator().manual_seed(4)
    a, b = ((torch.randn((rows, k), generator=generator) * 64).to(torch.float8_e4m3fn) for rows in (m, n))
    powers = [torch.randint(-4, 3, (rows, k // block), generator=generator) for rows in (m, n // block)]
    a_scale, b_scale = (torch.exp2(power.float()) for power in powers)
    wide_b = b.double() * b_scale.double().repeat_interleave(block, 0).repeat_interleave(block, 1)
    expected = (a.double() * a_scale.double().repeat_interleave(block, 1)) @ wide_b.T
    c = torch.zeros((m, n), dtype=torch.bfloat16)
    tensors = {"a": a, "b": preshuffle_b(b), "c": c, "a_scale": a_scale.T.contiguous(), "b_scale": b_scale}
    config = select_gemm(GemmProblem(m, n, k, Recipe.BLOCKSCALE), BLayout.PRESHUFFLED, MI355X)
    code = default_store().get(config)
    return Kernel(
        BLOCKSCALE_GEMM,
        code,
        (config.blocks(m), 1),
        code.manifest["resources"]["threads"],
        (*(tensor.data_ptr() for tensor in tensors.values()), m),
        tensors,
        lambda: _require_close(BLOCKSCALE_GEMM, c, expected, BF16_GATE),
        2 * m * n * k,
    )


def _float_bits(value: float) -> int:
    return int.from_bytes(struct.pack("<f", value), "little")
