# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Shapes, decisions, windows and counters: the arithmetic that host and kernels share. Standard library only."""

from __future__ import annotations

from mori_gemm_ar.layout import rules
from mori_gemm_ar.layout.allreduce import (
    CONTROL,
    DEFAULT_THREADS,
    EPOCH_BYTES,
    ERROR_WORDS,
    SLOT_BYTES,
    AllReduceConfig,
    AllReduceControl,
    CallTag,
    ErrorStatus,
    ErrorWord,
    Phase,
    allreduce_window,
    call_tag,
    decode_tag,
    error_words,
    select_config,
    select_stage,
    signal_word,
    split_signal_word,
)
from mori_gemm_ar.layout.counters import WrappingCounter, epoch_reached, next_epoch
from mori_gemm_ar.layout.dtypes import DType
from mori_gemm_ar.layout.gemm import (
    GemmConfig,
    GemmProblem,
    QuantizeConfig,
    SmallGemmConfig,
    a_scale_shape,
    b_scale_shape,
    gemm_candidates,
    select_gemm,
    tile_of_block,
)
from mori_gemm_ar.layout.gemm_terms import BLayout, Recipe, SmallRows, Tile
from mori_gemm_ar.layout.geometry import LaunchGeometry, block_cap, capped_geometry, lsa_geometry
from mori_gemm_ar.layout.machine import MI355X, Machine
from mori_gemm_ar.layout.ownership import DEFAULT_CHUNKS, OwnerSlices, PackOwnership, block_packs, pack_home
from mori_gemm_ar.layout.problem import AllReduceProblem
from mori_gemm_ar.layout.terms import (
    MAX_BLOCKS,
    MAX_BYTES,
    MAX_NUMEL,
    MAX_WORLD,
    PACK_BYTES,
    REGION_ALIGN,
    WAVE_LANES,
    Gather,
    MemoryClass,
    RegionKind,
    Stage,
)
from mori_gemm_ar.layout.window import PayloadLayout, Region, RegionSpec, WindowMap, payload_layout
from mori_gemm_ar.layout.wire import WireSlice, WireSplit
from mori_gemm_ar.layout.wire_terms import Wire

__all__ = [
    "CONTROL",
    "DEFAULT_CHUNKS",
    "DEFAULT_THREADS",
    "EPOCH_BYTES",
    "ERROR_WORDS",
    "MAX_BLOCKS",
    "MAX_BYTES",
    "MAX_NUMEL",
    "MAX_WORLD",
    "MI355X",
    "PACK_BYTES",
    "REGION_ALIGN",
    "SLOT_BYTES",
    "WAVE_LANES",
    "AllReduceConfig",
    "AllReduceControl",
    "AllReduceProblem",
    "BLayout",
    "CallTag",
    "DType",
    "ErrorStatus",
    "ErrorWord",
    "Gather",
    "GemmConfig",
    "GemmProblem",
    "LaunchGeometry",
    "Machine",
    "MemoryClass",
    "OwnerSlices",
    "PackOwnership",
    "PayloadLayout",
    "Phase",
    "QuantizeConfig",
    "Recipe",
    "Region",
    "RegionKind",
    "RegionSpec",
    "SmallGemmConfig",
    "SmallRows",
    "Stage",
    "Tile",
    "WindowMap",
    "Wire",
    "WireSlice",
    "WireSplit",
    "WrappingCounter",
    "a_scale_shape",
    "allreduce_window",
    "b_scale_shape",
    "block_cap",
    "block_packs",
    "call_tag",
    "capped_geometry",
    "decode_tag",
    "epoch_reached",
    "error_words",
    "gemm_candidates",
    "lsa_geometry",
    "next_epoch",
    "pack_home",
    "payload_layout",
    "rules",
    "select_config",
    "select_gemm",
    "select_stage",
    "signal_word",
    "split_signal_word",
    "tile_of_block",
]
