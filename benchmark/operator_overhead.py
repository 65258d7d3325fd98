# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What the torch operator adds to a direct call of the op, on the host, in eager mode: dispatch and the op's name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Read once, when NumPy loads. Below, the repository root makes `benchmark` importable when the script runs by path.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmark.bench_host import best_us
from mori_gemm_ar.integrations import torch_ops
from mori_gemm_ar.op import GemmAllReduceOp

MAX_OVERHEAD_US = 25.0


class _DoesNothing(GemmAllReduceOp):
    """An op whose call returns at once, so that only the way to it is measured."""

    def __init__(self) -> None:
        self._closed = False

    def __call__(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        a_scale: torch.Tensor,
        b_scale: torch.Tensor,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Nothing but `out`."""
        return a if out is None else out


def operator_overhead_us(calls: int = 200, repeats: int = 30) -> float:
    """Microseconds that a call through the operator takes beyond a direct one; the best mean of `calls` each."""
    op = _DoesNothing()
    a, b, a_scale, b_scale, out = (torch.zeros(1) for _ in range(5))
    name = torch_ops.register_op("operator_overhead", op)
    operator = torch.ops.mori_gemm_ar.gemm_all_reduce
    try:
        through = best_us(lambda: operator(a, b, a_scale, b_scale, out, name), calls, repeats)
        direct = best_us(lambda: op(a, b, a_scale, b_scale, out=out), calls, repeats)
    finally:
        torch_ops.unregister_op(name)
    return through - direct


if __name__ == "__main__":
    print(
        f"the torch operator adds {operator_overhead_us():.1f} us to a call; at most {MAX_OVERHEAD_US} us are allowed"
    )
