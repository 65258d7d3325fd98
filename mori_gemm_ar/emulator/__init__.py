# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""A gfx950 node on the CPU: executes ISA text with several GPUs, real barriers and checked memory. NumPy only."""

from mori_gemm_ar.emulator.engine_queues import QueueSet
from mori_gemm_ar.emulator.engine_settings import EVERYWHERE, EngineFaults, EngineSettings
from mori_gemm_ar.emulator.engines import Engines
from mori_gemm_ar.emulator.node import TICKS_PER_SECOND, KernelLaunch, Node
from mori_gemm_ar.emulator.regions import MemoryRegion, RegionTable
from mori_gemm_ar.emulator.translate import Program, translate

__all__ = [
    "EVERYWHERE",
    "TICKS_PER_SECOND",
    "EngineFaults",
    "EngineSettings",
    "Engines",
    "KernelLaunch",
    "MemoryRegion",
    "Node",
    "Program",
    "QueueSet",
    "RegionTable",
    "translate",
]
