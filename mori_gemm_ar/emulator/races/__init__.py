# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Happens-before race detection on emitted machine code: LDS within a workgroup, global memory between all agents."""

from mori_gemm_ar.emulator.races.detector import RaceDetector
from mori_gemm_ar.emulator.races.engine import EngineAgent

__all__ = ["EngineAgent", "RaceDetector"]
