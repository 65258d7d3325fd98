# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The rules of a layer's spec, one predicate each; `supports`, `create` and sizing ask the same ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mori_gemm_ar.layout.fused_rules import (
    reason_not_fused_bands,
    reason_not_fused_chunks,
    reason_not_fused_wire,
    reason_not_m_max,
    reason_not_outputs,
)
from mori_gemm_ar.layout.gemm_rules import (
    reason_not_b_layout,
    reason_not_gemm_k,
    reason_not_gemm_n,
    reason_not_gemm_problem,
    reason_not_recipe,
    reason_not_tile,
)
from mori_gemm_ar.layout.gemm_terms import Tile
from mori_gemm_ar.layout.ownership import OwnerSlices
from mori_gemm_ar.layout.rules import reason_not_int, reason_not_member, reason_not_world
from mori_gemm_ar.layout.sdma import Transport, reason_not_queues
from mori_gemm_ar.layout.stream import STREAM_CHUNKS
from mori_gemm_ar.layout.wire_terms import Wire
from mori_gemm_ar.model import Mode, Tail
from mori_gemm_ar.model.modes import FUSED

if TYPE_CHECKING:
    from mori_gemm_ar.plan import LayerSpec, Tuning


def reason_not_mode(mode: object, wire: Wire) -> str | None:
    """How a layer runs; None leaves it to the model."""
    if mode is None:
        return None
    reason = reason_not_member("mode", mode, Mode, 'use "auto", or Mode.FUSED_SDMA and its like')
    if reason is None and mode is Mode.GEMM_ONLY:
        reason = f"mode={Mode.GEMM_ONLY.value!r} must be a mode that reduces; GemmOp runs the product alone"
    if reason is None and mode is Mode.FUSED_LSA and wire is Wire.FP8_BOTH:
        reason = f"wire={wire.value!r} must be 'exact' or 'fp8' for mode={Mode.FUSED_LSA.value!r}; use 'fused-sdma'"
    return reason


def reason_not_tuning(tuning: Tuning, recipe: object, wire: Wire) -> str | None:
    """The fields of Tuning."""
    if not isinstance(tuning.batch_invariant, bool):
        return f"batch_invariant={tuning.batch_invariant!r} must be True or False"
    reason = (
        (None if tuning.chunks is None else reason_not_fused_chunks(tuning.chunks))
        or reason_not_int("stripe", tuning.stripe, 1, 2**20, "2 is the measured default")
        or (None if tuning.tile is None else reason_not_tile(tuning.tile, recipe))
        or reason_not_queues(tuning.queues)
        or reason_not_outputs(tuning.outputs)
    )
    if reason is None and tuning.gather is not None:
        reason = reason_not_member("gather", tuning.gather, Transport, "None leaves it to the model")
    if reason is None:
        reason = reason_not_tail(tuning, wire)
    if reason is None and tuning.gather is Transport.LSA and wire is Wire.FP8_BOTH:
        reason = f"gather={tuning.gather} must be {Transport.SDMA} or None for wire={wire.value!r}"
    return reason


def reason_not_tail(tuning: Tuning, wire: Wire) -> str | None:
    """What follows the scatter of fused-sdma."""
    reason = reason_not_member("tail", tuning.tail, Tail, "Tail.PHASED is the default")
    if reason is not None or tuning.tail is Tail.PHASED:
        return reason
    if tuning.tail is Tail.BESIDE:
        return f"tail={tuning.tail} must be {Tail.PHASED} or {Tail.STREAMED}; sums beside the GEMM are predicted only"
    if wire is not Wire.EXACT:
        return f"tail={tuning.tail} must be {Tail.PHASED} for wire={wire.value!r}; chunks are streamed as they are"
    if tuning.chunks is not None and tuning.chunks > STREAM_CHUNKS:
        return f"chunks={tuning.chunks} must be at most {STREAM_CHUNKS} for tail={tuning.tail}; longer ones save puts"
    if tuning.gather is Transport.LSA:
        return f"tail={tuning.tail} must be {Tail.PHASED} for gather={tuning.gather}; only pushed chunks are streamed"
    return None


def reason_not_layer_spec(spec: LayerSpec) -> str | None:
    """The fields of LayerSpec, types first."""
    return (
        reason_not_world(spec.world)
        or reason_not_gemm_n(spec.n)
        or reason_not_gemm_k(spec.k)
        or reason_not_recipe(spec.recipe)
        or reason_not_b_layout(spec.b_layout)
        or reason_not_m_max(spec.m_max, spec.n)
        or reason_not_gemm_problem(spec.m_max, spec.n, spec.k, spec.recipe)
        or reason_not_fused_wire(spec.wire, spec.n)
        or reason_not_mode(spec.mode, spec.wire)
        or reason_not_tuning(spec.tuning, spec.recipe, spec.wire)
        or _reason_not_divisible(spec)
    )


def _reason_not_divisible(spec: Any) -> str | None:
    if spec.world == 1 or (spec.mode is not None and spec.mode not in FUSED):
        return None
    shortest = min(tile.m for tile in Tile)
    return reason_not_fused_bands(OwnerSlices(spec.world, spec.m_max, shortest).slice_bands, spec.world)
