# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The same layer with one process for each GPU: an MI355X where there is one, an emulated GPU elsewhere.

torchrun --nproc-per-node=2 examples/torchrun_layer.py
"""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy: the emulator's small products are 6 to 10 times faster

import torch
import torch.distributed as dist

from mori_gemm_ar.op import GemmAllReduceOp

M, N, K = 24, 128, 128  # K of this rank

dist.init_process_group("gloo")  # its key-value store is used, not its collectives
place = "cpu"
if torch.cuda.is_available():  # true for ROCm builds of torch too
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    place = "cuda"
generator = torch.Generator().manual_seed(dist.get_rank())
x = torch.randn(M, K, generator=generator).bfloat16().to(place)
b = torch.randn(N, K, generator=generator).to(torch.float8_e4m3fn).to(place)
b_scale = torch.ones(N // 128, K // 128, device=place)
with GemmAllReduceOp.create(None, n=N, k=K, m_max=64, quant="blockscale", b_layout="row") as op:
    a, a_scale = op.quantize(x)
    out = op.output(M)  # where the next call writes: passing it costs no copy
    op(a, b, a_scale, b_scale, out=out)
    op.check()  # waits, and raises the failure of a call if there was one
    print(f"rank {op.rank} of {op.world_size} on {op.target.name}: sum of the result {float(out.float().sum()):.3f}")
dist.barrier()
dist.destroy_process_group()
