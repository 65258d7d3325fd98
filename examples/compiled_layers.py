# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Two layers in a graph of `torch.compile`: the op is called by its name, and the result is an argument.

python examples/compiled_layers.py
"""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy: the emulator's small products are 6 to 10 times faster

import torch

from mori_gemm_ar.integrations import torch_ops
from mori_gemm_ar.op import GemmAllReduceOp
from mori_gemm_ar.runtime import LocalWorld, RankContext

RANKS, M, N, K = 2, 16, 128, 128


def run(rank: RankContext) -> bool:
    """What every rank does; returns whether compiled and eager results have the same bits."""
    generator = torch.Generator().manual_seed(rank.rank)
    x = torch.randn(M, K, generator=generator).bfloat16()
    b = torch.randn(N, K, generator=generator).to(torch.float8_e4m3fn)
    b_scale = torch.ones(1, 1)
    with GemmAllReduceOp.create(rank, n=N, k=K, m_max=M, quant="blockscale", b_layout="row", device="emulated") as op:
        name = torch_ops.register_op(f"layer of rank {rank.rank}", op)  # graphs hold the name, not the op
        a, a_scale = op.quantize(x)

        def layers(a: torch.Tensor, a_scale: torch.Tensor) -> torch.Tensor:
            first = torch_ops.gemm_all_reduce(a, b, a_scale, b_scale, op_name=name)
            second = torch_ops.gemm_all_reduce(a, b, a_scale * 2, b_scale, op_name=name)
            return second - first

        compiled = torch.compile(layers, backend="aot_eager", fullgraph=True)
        same = torch.equal(compiled(a, a_scale), layers(a, a_scale))
        torch_ops.unregister_op(name)
        return same


assert LocalWorld(RANKS, seed=0).run(run) == [True] * RANKS
print("compiled and eager results are equal bit by bit")
