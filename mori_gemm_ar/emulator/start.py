# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What the registers of a workgroup hold when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mori_gemm_ar.isa import EXEC

if TYPE_CHECKING:
    from mori_gemm_ar.emulator.node import KernelLaunch
    from mori_gemm_ar.emulator.pool import Pool


@dataclass(frozen=True, slots=True)
class StartRegisters:
    """Registers that the hardware sets: equal in all workgroups of a launch but for the workgroup's coordinates."""

    scalars: np.ndarray  # (pairs, 2)
    coordinates: dict[int, int]  # scalar register -> axis
    items: np.ndarray  # work items, (waves, lanes)
    active: np.ndarray  # execution mask of each wave

    @classmethod
    def of(cls, launch: KernelLaunch, arguments: int) -> StartRegisters:
        """Those of a launch whose argument segment lies at an address."""
        descriptor = launch.kernel.descriptor
        user: list[int] = []

        def add(value: int, count: int) -> None:
            user.extend((value >> 32 * part) & 0xFFFFFFFF for part in range(count))

        for name, count in (("private_segment_buffer", 4), ("dispatch_ptr", 2), ("queue_ptr", 2)):
            if descriptor.get(f"amdhsa_user_sgpr_{name}", 0):
                add(0, count)
        if descriptor.get("amdhsa_user_sgpr_kernarg_segment_ptr", 0):
            add(arguments, 2)
        for name, count in (("dispatch_id", 2), ("flat_scratch_init", 2), ("private_segment_size", 1)):
            if descriptor.get(f"amdhsa_user_sgpr_{name}", 0):
                add(0, count)
        first = 4 * descriptor.get("amdhsa_user_sgpr_kernarg_preload_offset", 0)
        for word in range(descriptor.get("amdhsa_user_sgpr_kernarg_preload_length", 0)):
            add(int.from_bytes(launch.arguments[first + 4 * word : first + 4 * word + 4], "little"), 1)
        axes = [n for n, name in enumerate("xyz") if descriptor.get(f"amdhsa_system_sgpr_workgroup_id_{name}", 0)]
        scalars = np.zeros(-(-len(user) // 2) * 2, np.uint32)
        scalars[: len(user)] = user
        coordinates = {len(user) + place: axis for place, axis in enumerate(axes)}
        return cls(scalars.reshape(-1, 2), coordinates, *_work_items(launch))

    def set(self, pool: Pool, waves: slice, workgroup: tuple[int, int, int]) -> None:
        """Start a workgroup."""
        pool.S[: len(self.scalars), waves] = self.scalars[:, None]
        for register, axis in self.coordinates.items():
            pool.S[register >> 1, waves, register & 1] = workgroup[axis]
        pool.V[0, waves] = self.items
        pool.S64[EXEC.index >> 1, waves] = self.active


def _work_items(launch: KernelLaunch) -> tuple[np.ndarray, np.ndarray]:
    """Work items of each lane, and the execution mask of each wave."""
    x, y, z = launch.block
    flat = np.arange(-(-x * y * z // 64) * 64, dtype=np.uint32).reshape(-1, 64)
    item = flat % np.uint32(x)
    if launch.kernel.descriptor.get("amdhsa_system_vgpr_workitem_id", 0):
        item |= (flat // np.uint32(x)) % np.uint32(y) << np.uint32(10)
        item |= flat // np.uint32(x * y) << np.uint32(20)
    return item, np.packbits(flat < x * y * z, axis=1, bitorder="little").view(np.uint64)[:, 0]
