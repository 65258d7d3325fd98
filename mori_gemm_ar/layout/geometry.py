# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Launch geometry. A cap belongs to where the loads go, not to the op: what saturates a link starves local memory."""

from __future__ import annotations

from dataclasses import dataclass

from mori_gemm_ar.layout.allreduce import AllReduceConfig
from mori_gemm_ar.layout.machine import Machine
from mori_gemm_ar.layout.ownership import PackOwnership
from mori_gemm_ar.layout.problem import AllReduceProblem
from mori_gemm_ar.layout.rules import (
    reason_not_geometry,
    reason_not_int,
    reason_not_matching,
    reason_not_member,
    reason_not_threads,
    require,
)
from mori_gemm_ar.layout.terms import MAX_BLOCKS, MAX_BYTES, MemoryClass, Stage, ceil_div
from mori_gemm_ar.layout.wire import WireSplit


@dataclass(frozen=True, slots=True)
class LaunchGeometry:
    """Workgroups and threads of each; never an empty grid."""

    blocks: int
    threads: int

    def __post_init__(self) -> None:
        require(reason_not_geometry(self.blocks, self.threads))


def block_cap(memory: MemoryClass, machine: Machine) -> int:
    """Most blocks that still help a kernel of this class."""
    require(reason_not_member("memory", memory, MemoryClass, "say where the kernel's loads go"))
    caps = {
        MemoryClass.REMOTE_LOAD: machine.remote_load_blocks,
        MemoryClass.REMOTE_FP8: machine.remote_fp8_blocks,
        MemoryClass.LOCAL: machine.compute_units,
    }
    return caps[memory]


def capped_geometry(items: int, threads: int, memory: MemoryClass, machine: Machine) -> LaunchGeometry:
    """One thread for each item, up to the cap; no items still give one block."""
    require(reason_not_int("items", items, 0, MAX_BYTES, "split the work") or reason_not_threads(threads))
    blocks = min(block_cap(memory, machine), ceil_div(items, threads))
    return LaunchGeometry(max(blocks, 1), threads)


def lsa_geometry(
    problem: AllReduceProblem, config: AllReduceConfig, machine: Machine, columns: int | None = None
) -> LaunchGeometry:
    """Grid of the load/store all-reduce, equal on all ranks; one block for numel = 0, so that barriers still meet.

    columns: elements of a row, where the wire scales rows.
    """
    require(reason_not_matching(problem, config))
    memory = MemoryClass.LOCAL if problem.world == 1 else MemoryClass.REMOTE_LOAD
    if config.wire.lossy:
        items = WireSplit(problem.world, problem.numel, config.wire, columns).lanes
        memory = MemoryClass.REMOTE_FP8
    elif config.stage is Stage.ONE:
        items = problem.packs
    else:
        items = PackOwnership.of(problem).part
    wanted = capped_geometry(items, config.threads, memory, machine)
    return LaunchGeometry(min(wanted.blocks, MAX_BLOCKS), config.threads)
