# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The reduce of a fused GEMM whose tiles are quantised: partial sums come as bands, each a wire slice of its own."""

from __future__ import annotations

from dataclasses import dataclass

from mori_gemm_ar.layout.allreduce import DEFAULT_THREADS
from mori_gemm_ar.layout.dtypes import DType
from mori_gemm_ar.layout.fused_rules import reason_not_fused_world
from mori_gemm_ar.layout.geometry import LaunchGeometry, capped_geometry
from mori_gemm_ar.layout.machine import Machine
from mori_gemm_ar.layout.rules import require
from mori_gemm_ar.layout.terms import MemoryClass
from mori_gemm_ar.layout.wire_terms import RUN, Wire


@dataclass(frozen=True, slots=True)
class BandsConfig:
    """Compile key; bf16, both legs e4m3. Rank, size and addresses are arguments."""

    world: int

    def __post_init__(self) -> None:
        require(reason_not_fused_world(self.world))

    @property
    def dtype(self) -> DType:
        """Of the result."""
        return DType.BF16

    @property
    def wire(self) -> Wire:
        """What crosses the links."""
        return Wire.FP8_BOTH

    @property
    def threads(self) -> int:
        """Of a block."""
        return DEFAULT_THREADS

    @property
    def key(self) -> str:
        """Stable, unique for each config, and a legal symbol."""
        return f"tail_bands_w{self.world}"

    @property
    def kernel_name(self) -> str:
        return self.key


def bands_geometry(config: BandsConfig, band_elements: int, machine: Machine) -> LaunchGeometry:
    """Grid: all compute units, as far as one band keeps them busy."""
    return capped_geometry(band_elements // RUN, config.threads, MemoryClass.LOCAL, machine)
