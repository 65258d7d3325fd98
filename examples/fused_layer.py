# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""A row-parallel layer, its GEMM and its all-reduce in one op, on four emulated GPUs in this process.

python examples/fused_layer.py
"""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy: the emulator's small products are 6 to 10 times faster

import torch

from mori_gemm_ar.gemm import preshuffle_b
from mori_gemm_ar.op import GemmAllReduceOp
from mori_gemm_ar.runtime import LocalWorld, RankContext

RANKS, M, N, K = 4, 40, 256, 512  # K of all ranks together


def run(rank: RankContext) -> float:
    """What every rank does; returns the error against the product in fp32."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(M, K, generator=generator).bfloat16()
    weight = torch.randn(N, K, generator=generator).to(torch.float8_e4m3fn)
    mine = slice(rank.rank * K // RANKS, (rank.rank + 1) * K // RANKS)
    b = preshuffle_b(weight[:, mine])
    b_scale = torch.full((N // 128, K // RANKS // 128), 0.25)
    with GemmAllReduceOp.create(
        rank, n=N, k=K // RANKS, m_max=64, quant="blockscale", b_layout="preshuffled", device="emulated"
    ) as op:
        a, a_scale = op.quantize(x[:, mine].contiguous())
        y = op(a, b, a_scale, b_scale)  # lies in the op's window, valid until the call after the next one
        expected = x.float() @ weight.float().t() * 0.25
        return float((y.float() - expected).norm() / expected.norm())


errors = LocalWorld(RANKS, seed=0).run(run)
assert max(errors) < 4e-2, errors  # what quantising the activation to fp8 costs
print(f"relative error on {RANKS} ranks: {max(errors):.1e}")
