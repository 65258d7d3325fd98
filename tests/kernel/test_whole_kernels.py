# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""FlyDSL kernels compiled to machine code and executed by the emulator, against torch."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from mori_gemm_ar.emulator import Node
from mori_gemm_ar.errors import MemoryFault
from tests.kernel import flydsl_kernels as kernels
from tests.kernel.harness import float_bits, run_kernel

# relL2 of a bf16 GEMM: rounding the result alone gives 1.66e-3.
GEMM_GATE = 2.1e-3


@cache
def built(name: str):
    return getattr(kernels, f"build_{name}")()


def seeded(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("variant", ["vector_add_branch", "vector_add_bounds"])
@pytest.mark.parametrize("n", [1, 63, 64, 255, 256, 257, 1000, 20000])
def test_vector_add_stops_at_the_ragged_edge(variant: str, n: int) -> None:
    a, b = seeded(n, seed=n), seeded(n, seed=n + 1)
    guarded = torch.full((n + 64,), 7.0)
    c = guarded[:n]
    blocks = -(-n // kernels.VECTOR_ADD_THREADS)
    run_kernel(
        built(variant),
        (blocks, 1, 1),
        (kernels.VECTOR_ADD_THREADS, 1, 1),
        (a, b, c, n),
        {"a": a, "b": b, "c": guarded},
    )
    assert torch.equal(c, a + b)
    assert torch.equal(guarded[n:], torch.full((64,), 7.0))


def test_vector_add_without_its_guard_is_caught() -> None:
    """Negative control: claiming more elements than there is memory faults instead of reading on."""
    a, b, c = (torch.zeros(100) for _ in range(3))
    with pytest.raises(MemoryFault, match=r"vector_add_branch.*lane \d+.*must lie in a known region"):
        run_kernel(
            built("vector_add_branch"),
            (1, 1, 1),
            (kernels.VECTOR_ADD_THREADS, 1, 1),
            (a, b, c, 200),
            {"a": a, "b": b, "c": c},
        )


@pytest.mark.parametrize(("rows", "columns"), [(1, 8), (3, 256), (17, 1000), (40, 2048), (5, 7168)])
def test_rms_norm_reduces_across_lanes_and_waves(rows: int, columns: int) -> None:
    x = seeded(rows, columns, seed=rows, dtype=torch.bfloat16)
    weight = seeded(columns, seed=columns, dtype=torch.bfloat16)
    y = torch.zeros_like(x)
    epsilon = 1e-6
    run_kernel(
        built("rms_norm"),
        (rows, 1, 1),
        (kernels.RMS_NORM_THREADS, 1, 1),
        (x, weight, y, columns, float_bits(1.0 / columns), float_bits(epsilon)),
        {"x": x, "weight": weight, "y": y},
    )
    wide = x.double()
    expected = wide * torch.rsqrt(wide.pow(2).mean(dim=1, keepdim=True) + epsilon) * weight.double()
    # One rounding to bf16 (half an ulp, 2^-9) and a little for fp32 sums.
    assert torch.allclose(y.double(), expected, rtol=2**-8, atol=1e-30)


def _gemm(m: int, n: int, k: int, a: torch.Tensor, b: torch.Tensor, node: Node | None = None) -> torch.Tensor:
    c = torch.full((m, n), float("nan"), dtype=torch.bfloat16)
    grid = (n // kernels.GEMM_TILE, m // kernels.GEMM_TILE, 1)
    run_kernel(built("gemm_bf16"), grid, (kernels.GEMM_THREADS, 1, 1), (a, b, c, n, k), {"a": a, "b": b, "c": c}, node)
    return c


@pytest.mark.parametrize(("m", "n", "k"), [(128, 128, 64), (128, 256, 128), (384, 128, 512), (256, 640, 192)])
def test_bf16_gemm(m: int, n: int, k: int) -> None:
    a, b = (seeded(rows, k, seed=rows + k, dtype=torch.bfloat16) for rows in (m, n))
    c = _gemm(m, n, k, a, b)
    expected = a.double() @ b.double().T
    relative = ((c.double() - expected).norm() / expected.norm()).item()
    assert relative <= GEMM_GATE, f"relL2={relative} at {m}x{n}x{k}"


def test_bf16_gemm_is_exact_on_small_integers() -> None:
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randint(-2, 3, (128, 128), generator=generator).to(torch.bfloat16) for _ in range(2))
    assert torch.equal(_gemm(128, 128, 128, a, b).float(), (a.float() @ b.float().T).to(torch.bfloat16).float())


def test_results_do_not_depend_on_how_waves_are_batched() -> None:
    """Window and residency are choices of the emulator, not of the program."""
    a, b = (seeded(256, 128, seed=s, dtype=torch.bfloat16) for s in (1, 2))
    whole = _gemm(256, 256, 128, a, b)
    small = _gemm(256, 256, 128, a, b, Node(1, residency=1, window=1))
    assert torch.allclose(whole.float(), small.float(), rtol=2**-7, atol=0)
    assert not torch.isnan(small).any()
