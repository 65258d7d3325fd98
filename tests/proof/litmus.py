# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Message passing in a few instructions: a producer hands 64 words to a consumer through a flag."""

from __future__ import annotations

import torch

from mori_gemm_ar.emulator import MemoryRegion, Node
from mori_gemm_ar.emulator.adversary import Adversary
from mori_gemm_ar.emulator.weak import WeakMemory
from tests.kernel.isa_builder import TinyCode, submit, tiny

# Arguments: data, flag, result. The consumer first looks at the data, as a cache would.
PRODUCER = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
v_lshlrev_b32_e32 v1, 2, v0
v_add_u32_e32 v2, 100, v0
v_mov_b32_e32 v3, 0
v_mov_b32_e32 v4, 1
s_waitcnt lgkmcnt(0)
global_store_dword v1, v2, s[4:5]
s_waitcnt vmcnt(0)
buffer_wbl2 {scope}
s_waitcnt vmcnt(0)
global_store_dword v3, v4, s[6:7] {scope}
s_endpgm
"""
CONSUMER = """
s_load_dwordx4 s[4:7], s[0:1], 0x0
s_load_dwordx2 s[8:9], s[0:1], 0x10
v_lshlrev_b32_e32 v1, 2, v0
v_mov_b32_e32 v3, 0
s_waitcnt lgkmcnt(0)
global_load_dword v2, v1, s[4:5]
s_waitcnt vmcnt(0)
.LBB0_1:
global_load_dword v4, v3, s[6:7] {scope}
s_waitcnt vmcnt(0)
v_cmp_eq_u32_e32 vcc, 0, v4
s_cbranch_vccnz .LBB0_1
buffer_inv {scope}
global_load_dword v2, v1, s[4:5]
s_waitcnt vmcnt(0)
global_store_dword v1, v2, s[8:9]
s_endpgm
"""
SYSTEM, AGENT = "sc0 sc1", "sc1"


def without(text: str, line: str) -> str:
    """The kernel with the first line that starts so left out; the line has to be there."""
    lines = text.strip().splitlines()
    index = next(i for i, candidate in enumerate(lines) if candidate.startswith(line))
    return "\n".join(lines[:index] + lines[index + 1 :])


def pass_message(
    producer: TinyCode, consumer: TinyCode, *, seed: int, gpus: tuple[int, int], adversary: Adversary | None = None
) -> bool:
    """Run both kernels; whether the consumer got all 64 words. Data and flag live on the consumer's GPU."""
    memory = WeakMemory(seed, adversary or Adversary())
    node = Node(2, memory=memory)
    data, flag, result = (torch.zeros(64, dtype=torch.int32) for _ in range(3))
    for name, tensor in (("data", data), ("flag", flag), ("result", result)):
        node.regions.add(MemoryRegion(name, tensor.data_ptr(), 256, gpus[1], symmetric=True))
    values = [data, flag, result]
    submit(node, consumer, values, gpu=gpus[1])
    if gpus[0] == gpus[1]:  # another stream of the same GPU
        from mori_gemm_ar.emulator import KernelLaunch
        from mori_gemm_ar.runtime import kernel_of, pack_arguments

        kernel = kernel_of(producer)
        arguments = pack_arguments(kernel.args, [t.data_ptr() for t in values])
        node.submit(gpus[0], KernelLaunch(kernel, (1, 1, 1), (64, 1, 1), arguments, "producer"), 1)
    else:
        submit(node, producer, values, gpu=gpus[0])
    node.run()
    return torch.equal(result, torch.arange(100, 164, dtype=torch.int32))


def kernel(body: str) -> TinyCode:
    """A kernel of three addresses."""
    return tiny(body, (8, 8, 8))
