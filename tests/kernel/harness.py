# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Run one kernel on one emulated GPU with torch tensors as arguments."""

from __future__ import annotations

import struct

import torch

from mori_gemm_ar.emulator import KernelLaunch, MemoryRegion, Node
from mori_gemm_ar.runtime import kernel_of, pack_arguments


def float_bits(value: float) -> int:
    """A float32 kernel argument as the integer that travels."""
    return struct.unpack("<I", struct.pack("<f", value))[0]


def run_kernel(code, grid, block, values, tensors, node: Node | None = None) -> Node:
    """Launch and wait. `values` are the kernel's scalars in order; a tensor among them stands for its address.

    Only `tensors` (name -> tensor) are known memory.
    """
    node = node or Node(1)
    for name, tensor in tensors.items():
        nbytes = tensor.numel() * tensor.element_size()
        node.regions.add(MemoryRegion(name, tensor.data_ptr(), nbytes, 0))
    kernel = kernel_of(code)
    scalars = [v.data_ptr() if isinstance(v, torch.Tensor) else v for v in values]
    arguments = pack_arguments(kernel.args, scalars)
    node.submit(0, KernelLaunch(kernel, grid, block, arguments, kernel.name))
    node.run()
    return node
