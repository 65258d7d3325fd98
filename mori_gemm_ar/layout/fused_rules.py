# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The rules of the fused GEMM; see layout.rules for how a predicate answers."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from mori_gemm_ar.layout.gemm_rules import reason_not_gemm_m, reason_not_gemm_n
from mori_gemm_ar.layout.rules import reason_not_int, reason_not_member, reason_not_world
from mori_gemm_ar.layout.sdma import Transport
from mori_gemm_ar.layout.terms import MAX_BYTES, MAX_ROWS, MAX_WORLD, ceil_div
from mori_gemm_ar.layout.wire_rules import reason_not_wire
from mori_gemm_ar.layout.wire_terms import GROUP, Wire

if TYPE_CHECKING:
    from mori_gemm_ar.layout.fused import FusedConfig

MAX_CHUNKS = 64  # counters of each destination; more puts than this only add their dispatch
_MAX_WORK = 2**20  # RECIPROCAL_BITS of layout.fused


def reason_not_fused_world(world: object) -> str | None:
    """Ranks of a fused kernel: alone, there is nobody to send to."""
    return reason_not_int("world", world, 2, MAX_WORLD, "one rank alone runs the GEMM")


def reason_not_stripe(stripe: object, push: object, columns: int) -> str | None:
    """Columns of tiles before a peer-storing GEMM changes its destination."""
    if push is Transport.SDMA:
        return None if stripe is None else f"stripe={stripe!r} must be None with push={push}; chunks have an order"
    return reason_not_int("stripe", stripe, 1, columns, f"there are {columns} columns of tiles")


def reason_not_fused_config(config: FusedConfig) -> str | None:
    """The fields of FusedConfig."""
    gemm, push, wire = config.gemm, config.push, config.wire
    reason = (
        reason_not_fused_world(config.world)
        or reason_not_member("push", push, Transport, "name what carries finished tiles")
        or reason_not_stripe(config.stripe, push, ceil_div(gemm.n, gemm.tile.n))
        or reason_not_fused_wire(wire, gemm.n)
    )
    if reason is None and config.signals and push is not Transport.SDMA:
        reason = f"signals={config.signals} must be False with push={push}; only copy engines signal"
    if reason is None and wire is Wire.FP8:
        reason = f"wire={wire.value!r} must be 'exact' or 'fp8-both' for the GEMM; the gather leg is the tail's"
    if reason is None and wire.both and (push is not Transport.SDMA or config.signals):
        reason = f"wire={wire.value!r} must be 'exact' with push={push}, signals={config.signals}; only puts carry it"
    return reason


def reason_not_stream_config(world: object, phase: object, phases: type[Enum]) -> str | None:
    """The fields of StreamConfig."""
    return reason_not_fused_world(world) or reason_not_member("phase", phase, phases, "name a kernel of the tail")


def reason_not_fused_chunks(chunks: object) -> str | None:
    """Chunks of a slice that a caller wants; a slice of fewer bands has fewer."""
    return reason_not_int("chunks", chunks, 1, MAX_CHUNKS, "1 sends a whole slice at once")


def reason_not_fused_grid(m: Any, chunks: object) -> str | None:
    """The fields of FusedGrid."""
    reason = reason_not_gemm_m(m) or reason_not_fused_chunks(chunks)
    if reason is None and m == 0:
        reason = "m=0 must be above 0 for a fused kernel; no rows need no launch"
    return reason


def reason_not_fused_bands(bands: int, world: int) -> str | None:
    """Bands of a slice: kernels divide by multiplication, which is exact up to a product of 2^20."""
    if world * bands * (bands + 1) < _MAX_WORK:
        return None
    return f"bands={bands} of a slice must be fewer on {world} ranks; split the rows, or use split-sdma"


def reason_not_fused_rows(m: int, world: int, tile_m: int) -> str | None:
    """Rows from which tiles can leave while others are computed: one band for each rank."""
    least = world * tile_m
    if m >= least:
        return None
    return f"m={m} must be at least world*tile_m={least} for a fused mode; below, GEMM and all-reduce run in turn"


def reason_not_outputs(outputs: object) -> str | None:
    """Results that rotate in the window."""
    return reason_not_int("outputs", outputs, 1, 2, "with 1, the next call overwrites what the last one returned")


def reason_not_fused_wire(wire: Any, n: int) -> str | None:
    """What crosses the links of a fused op."""
    reason = reason_not_wire(wire)
    if reason is None and wire.per_row:
        reason = f"wire={wire.value!r} must be 'exact', 'fp8' or 'fp8-both' here; scales of rows are the all-reduce's"
    if reason is None and wire.lossy and n % GROUP:
        reason = (
            f"n={n} must be a multiple of {GROUP} for wire={wire.value!r}, or a scale would cover parts of two rows"
        )
    return reason


def reason_not_m_max(m_max: Any, n: int) -> str | None:
    """The largest M of an op: results of up to 4 GiB."""
    most = MAX_BYTES // (2 * n)
    return reason_not_int("m_max", m_max, 1, most, f"n={n} columns of bf16 leave room for that many rows in 4 GiB")


def reason_not_fused_window(
    world: object, n: Any, m_max: object, wire: object, outputs: object, rows: object
) -> str | None:
    """The fields of FusedWindow."""
    return (
        reason_not_world(world)
        or reason_not_gemm_n(n)
        or reason_not_m_max(m_max, n)
        or reason_not_fused_wire(wire, n)
        or reason_not_outputs(outputs)
        or reason_not_int("reduced_rows", rows, 0, MAX_ROWS, "0 if the load/store all-reduce is not used")
    )


def reason_not_pull_config(world: object, phase: Any, push: object, wire: Any) -> str | None:
    """The fields of PullConfig: equal kernels have equal keys."""
    reason = (
        reason_not_fused_world(world)
        or reason_not_member("push", push, Transport, "name what brings partial sums")
        or reason_not_wire(wire)
    )
    if reason is None and wire not in (Wire.EXACT, Wire.FP8):
        reason = f"wire={wire.value!r} must be 'exact' or 'fp8' for a pulled gather; use gather by copy engine"
    meets = getattr(phase, "value", None) == "meet"
    if reason is None and not meets and push is not Transport.LSA:
        reason = f"push={push} must be {Transport.LSA} for {phase}; only MEET depends on it"
    if reason is None and meets and wire is not Wire.EXACT:
        reason = f"wire={wire.value!r} must be 'exact' for {phase}; it moves no sums"
    return reason
