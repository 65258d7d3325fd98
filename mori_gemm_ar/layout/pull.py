# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The tail whose gather is a pull: partial sums lie in the owners' landing slots, and ranks load the sums from them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mori_gemm_ar.layout.allreduce import DEFAULT_THREADS
from mori_gemm_ar.layout.dtypes import DType
from mori_gemm_ar.layout.fused_rules import reason_not_pull_config
from mori_gemm_ar.layout.geometry import LaunchGeometry, capped_geometry
from mori_gemm_ar.layout.machine import Machine
from mori_gemm_ar.layout.rules import require
from mori_gemm_ar.layout.sdma import PUSH_THREADS, Transport
from mori_gemm_ar.layout.terms import PACK_BYTES, MemoryClass
from mori_gemm_ar.layout.wire_terms import RUN, Wire


class PullPhase(Enum):
    """The kernels, in order."""

    MEET = "meet"  # one wave: wait for the own copy engines, if they push, and meet all peers: partial sums are here
    SUM = "sum"  # sum the own slice, and release it to the peers
    PULL = "pull"  # every block meets its namesakes and loads all slices into the result


@dataclass(frozen=True, slots=True)
class PullConfig:
    """Compile key of one phase, bf16. Rank, size and addresses are arguments.

    push: what brought the partial sums, for MEET only; the other phases have LSA there, so that they have one key.
    """

    world: int
    phase: PullPhase
    push: Transport = Transport.LSA
    wire: Wire = Wire.EXACT

    def __post_init__(self) -> None:
        require(reason_not_pull_config(self.world, self.phase, self.push, self.wire))

    @property
    def dtype(self) -> DType:
        """Of the partial sums and of the result."""
        return DType.BF16

    @property
    def threads(self) -> int:
        """Of a block."""
        return PUSH_THREADS if self.phase is PullPhase.MEET else DEFAULT_THREADS

    @property
    def key(self) -> str:
        """Stable, unique for each config, and a legal symbol."""
        key = f"tail_{self.phase.value}_w{self.world}"
        if self.phase is PullPhase.MEET:
            key += f"_{self.push.value}"
        return f"{key}_{self.wire.label}" if self.wire.lossy else key

    @property
    def kernel_name(self) -> str:
        return self.key


def pull_config(world: int, phase: PullPhase, push: Transport, wire: Wire) -> PullConfig:
    """The config that ships; a phase keeps only what it depends on."""
    if phase is PullPhase.MEET:
        return PullConfig(world, phase, push)
    return PullConfig(world, phase, wire=wire)


def pull_geometry(config: PullConfig, slice_elements: int, machine: Machine) -> LaunchGeometry:
    """Grid of a phase: all compute units sum, few pull, since loads that cross links only queue."""
    if config.phase is PullPhase.MEET:
        return LaunchGeometry(1, config.threads)
    lanes = slice_elements // RUN if config.wire.lossy else slice_elements * 2 // PACK_BYTES
    memory = MemoryClass.LOCAL
    if config.phase is PullPhase.PULL:
        memory = MemoryClass.REMOTE_FP8 if config.wire.lossy else MemoryClass.REMOTE_LOAD
    return capped_geometry(lanes, config.threads, memory, machine)
