# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""gfx950 ISA text for kernels of a few hand-written instructions, and a way to run them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mori_gemm_ar.emulator import KernelLaunch, MemoryRegion, Node
from mori_gemm_ar.runtime import kernel_of, pack_arguments

_HEAD = """\
\t.amdgcn_target "amdgcn-amd-amdhsa-unknown-gfx950"
\t.amdhsa_code_object_version 6
\t.text
\t.globl\t{name}
\t.p2align\t8
\t.type\t{name},@function
{name}:
{body}
.Lfunc_end0:
\t.size\t{name}, .Lfunc_end0-{name}
\t.section\t.rodata,"a",@progbits
\t.p2align\t6, 0x0
\t.amdhsa_kernel {name}
\t\t.amdhsa_group_segment_fixed_size {lds}
\t\t.amdhsa_private_segment_fixed_size {scratch}
\t\t.amdhsa_kernarg_size {argument_bytes}
\t\t.amdhsa_user_sgpr_count 2
\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1
\t\t.amdhsa_enable_private_segment {private}
\t\t.amdhsa_system_sgpr_workgroup_id_x 1
\t\t.amdhsa_system_sgpr_workgroup_id_y 0
\t\t.amdhsa_system_sgpr_workgroup_id_z 0
\t\t.amdhsa_system_vgpr_workitem_id 0
\t\t.amdhsa_next_free_vgpr 32
\t\t.amdhsa_next_free_sgpr 32
\t.end_amdhsa_kernel
\t.text
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
{slots}
    .group_segment_fixed_size: {lds}
    .kernarg_segment_align: 8
    .kernarg_segment_size: {argument_bytes}
    .max_flat_workgroup_size: 1024
    .name:           {name}
    .private_segment_fixed_size: {scratch}
    .symbol:         {name}.kd
    .vgpr_count:     32
    .wavefront_size: 64
amdhsa.target:   amdgcn-amd-amdhsa-unknown-gfx950
amdhsa.version:
  - 1
  - 2
...

\t.end_amdgpu_metadata
"""


def isa_text(body: str, args: Sequence[int] = (8,), *, lds: int = 0, scratch: int = 0, name: str = "tiny") -> str:
    """A module with one kernel. `args` are sizes in bytes; lines that end in a colon are labels.

    On entry s[0:1] point to the arguments, s2 is the workgroup and v0 the work item.
    """
    lines = [line.strip() for line in body.strip().splitlines()]
    slots, end = [], 0
    for size in args:
        end = -(-end // size) * size
        slots.append(
            f"      - .offset:         {end}\n        .size:           {size}\n        .value_kind:     by_value"
        )
        end += size
    return _HEAD.format(
        name=name,
        body="\n".join(line if line.endswith(":") else f"\t{line}" for line in lines),
        lds=lds,
        scratch=scratch,
        private=int(scratch > 0),
        argument_bytes=-(-end // 8) * 8,
        slots="\n".join(slots),
    )


@dataclass(frozen=True)
class TinyCode:
    """A code object around hand-written text."""

    isa: str
    kernel: str = "tiny"
    key: str = "tiny"


def tiny(body: str, args: Sequence[int] = (8,), *, lds: int = 0, scratch: int = 0) -> TinyCode:
    """A code object for a body of instructions."""
    return TinyCode(isa_text(body, args, lds=lds, scratch=scratch))


def known(node: Node, name: str, tensor: torch.Tensor, home: int | None = 0) -> torch.Tensor:
    """Make a tensor's memory known to the node."""
    region = MemoryRegion(name, tensor.data_ptr(), tensor.numel() * tensor.element_size(), home)
    node.regions.add(region)
    return tensor


def submit(
    node: Node, code: TinyCode, values: Sequence[object], gpu: int = 0, threads: int = 64, blocks: int = 1
) -> None:
    """Queue a launch; a tensor among the values stands for its address."""
    kernel = kernel_of(code)
    scalars = [v.data_ptr() if isinstance(v, torch.Tensor) else v for v in values]
    arguments = pack_arguments(kernel.args, scalars)
    node.submit(gpu, KernelLaunch(kernel, (blocks, 1, 1), (threads, 1, 1), arguments, code.kernel))


def descriptor(base: torch.Tensor, nbytes: int) -> tuple[int, int]:
    """The two 64-bit halves of a raw buffer descriptor."""
    low, high = struct.unpack("<QQ", struct.pack("<QII", base.data_ptr(), nbytes, 0x27000))
    return low, high
