# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Targets, launches, symmetric memory, and worlds of ranks."""

from mori_gemm_ar.runtime.group import Group, agree, require_equal
from mori_gemm_ar.runtime.launch import Buffer, Launch, Pipeline, kernel_of, pack_arguments
from mori_gemm_ar.runtime.local_world import LocalWorld, RankContext, RankOutcome
from mori_gemm_ar.runtime.process_world import ProcessWorld, connect
from mori_gemm_ar.runtime.resource import Resource, Rollback
from mori_gemm_ar.runtime.symmetric import Communicator
from mori_gemm_ar.runtime.target import CopyQueues, ErrorRecord, Recording, SymmetricMemory, Target, World

__all__ = [
    "Buffer",
    "Communicator",
    "CopyQueues",
    "ErrorRecord",
    "Group",
    "Launch",
    "LocalWorld",
    "Pipeline",
    "ProcessWorld",
    "RankContext",
    "RankOutcome",
    "Recording",
    "Resource",
    "Rollback",
    "SymmetricMemory",
    "Target",
    "World",
    "agree",
    "connect",
    "kernel_of",
    "pack_arguments",
    "require_equal",
]
