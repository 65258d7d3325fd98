# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Every rule once. A predicate takes raw arguments and returns the reason against them, or None.

Predicates check types before they calculate, so zero, negatives, floats and bools are refused with a text and never
divided by. Constructors, sizing and selection call these same functions and raise `ConfigError(reason)`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout.dtypes import DType
from mori_gemm_ar.layout.terms import (
    MAX_BLOCKS,
    MAX_BYTES,
    MAX_GRID,
    MAX_NUMEL,
    MAX_ROWS,
    MAX_THREADS,
    MAX_TILE_M,
    MAX_WINDOW,
    MAX_WORLD,
    PACK_BYTES,
    REGION_ALIGN,
    U32,
    WAVE_LANES,
    Gather,
    RegionKind,
    Stage,
)

if TYPE_CHECKING:
    from mori_gemm_ar.layout.allreduce import AllReduceConfig
    from mori_gemm_ar.layout.problem import AllReduceProblem
    from mori_gemm_ar.layout.window import Region


def require(reason: str | None) -> None:
    """Raise ConfigError with the reason, if there is one."""
    if reason is not None:
        raise ConfigError(reason)


# --- building blocks ---


def _show(value: object) -> str:
    # str() of an IntEnum member is its number from Python 3.11 on.
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else reprlib.repr(value)


def reason_not_int(name: str, value: object, low: int, high: int, way_out: str) -> str | None:
    """An int, not a bool, in low..high inclusive."""
    # bool is an int in Python, but a flag passed for a count is a mistake.
    if isinstance(value, bool) or not isinstance(value, int):
        return f"{name}={_show(value)} must be an int, one of {low}..{high}; {way_out}"
    if not low <= value <= high:
        return f"{name}={value} must be one of {low}..{high}; {way_out}"
    return None


def reason_not_member(name: str, value: object, kind: type[Enum], way_out: str) -> str | None:
    """A member of a closed set."""
    if not isinstance(value, kind):
        return f"{name}={_show(value)} must be one of {', '.join(map(_show, kind))}; {way_out}"
    return None


def reason_not_u32(name: str, value: object) -> str | None:
    """A word that the device keeps in 32 bits."""
    return reason_not_int(name, value, 0, U32 - 1, "epochs and tags are unsigned 32-bit words")


# --- problems ---


def reason_not_world(world: object) -> str | None:
    """A group of ranks inside one node; odd sizes are fine."""
    return reason_not_int("world", world, 1, MAX_WORLD, f"use a group of 1 to {MAX_WORLD} ranks")


def reason_not_rank(rank: object, world: int) -> str | None:
    """A rank of a valid world."""
    return reason_not_int("rank", rank, 0, world - 1, f"a group of {world} has ranks 0 to {world - 1}")


def reason_not_numel(numel: object) -> str | None:
    """Elements of one call; none is fine."""
    return reason_not_int("numel", numel, 0, MAX_NUMEL, "split the tensor over several calls")


def reason_not_dtype(dtype: object) -> str | None:
    """An element type that the kernels sum."""
    return reason_not_member("dtype", dtype, DType, "convert the tensor, or use DType.from_label(label)")


def reason_not_problem(world: object, numel: Any, dtype: Any) -> str | None:
    """The fields of AllReduceProblem."""
    reason = reason_not_world(world) or reason_not_numel(numel) or reason_not_dtype(dtype)
    if reason is None and numel * dtype.nbytes > MAX_BYTES:
        reason = f"nbytes={numel * dtype.nbytes} must be at most {MAX_BYTES}; split the tensor over several calls"
    return reason


def reason_not_max_bytes(max_bytes: object) -> str | None:
    """Capacity of a window."""
    return reason_not_int("max_bytes", max_bytes, 1, MAX_BYTES, "give the bytes of the largest payload of one call")


def reason_not_fitting(nbytes: int, max_bytes: int) -> str | None:
    """Payload of a valid problem against the capacity of its op."""
    if nbytes > max_bytes:
        return (
            f"nbytes={nbytes} must be at most max_bytes={max_bytes}; "
            f"create the op with max_bytes={nbytes} or split the tensor"
        )
    return None


# --- decisions ---


def reason_not_threads(threads: int) -> str | None:
    """Threads of a workgroup: whole waves."""
    way_out = f"use a multiple of {WAVE_LANES} up to {MAX_THREADS}"
    reason = reason_not_int("threads", threads, WAVE_LANES, MAX_THREADS, way_out)
    if reason is None and threads % WAVE_LANES:
        reason = f"threads={threads} must be whole waves of {WAVE_LANES} lanes; {way_out}"
    return reason


def reason_not_config(world: object, dtype: object, stage: object, threads: int, gather: object) -> str | None:
    """The fields of AllReduceConfig."""
    reason = (
        reason_not_world(world)
        or reason_not_dtype(dtype)
        or reason_not_member("stage", stage, Stage, "let select_stage(problem, machine) choose")
        or reason_not_threads(threads)
        or reason_not_member("gather", gather, Gather, "leave it at Gather.INTERLEAVED")
    )
    # One compile key per kernel: a one-stage kernel never reads the option.
    if reason is None and stage is Stage.ONE and gather is not Gather.INTERLEAVED:
        reason = f"gather={gather} must be {Gather.INTERLEAVED} for {stage}; only {Stage.TWO} has a gather"
    return reason


def reason_not_stage(stage: object, in_place_in_window: bool) -> str | None:
    """A stage whose protocol fits where the result goes."""
    reason = reason_not_member("stage", stage, Stage, "let select_stage(problem, machine) choose")
    if reason is None and in_place_in_window and stage is not Stage.TWO:
        # Peers read the window's input until the one-stage kernel's last barrier; the result would overwrite it.
        reason = f"stage={stage} must be {Stage.TWO} for an in-place call on op.buffer(); give another out= tensor"
    return reason


def reason_not_matching(problem: AllReduceProblem, config: AllReduceConfig) -> str | None:
    """A config and the problem that it is used for."""
    if config.world != problem.world:
        return f"config.world={config.world} must be {problem.world}; build the config for the problem's group"
    if config.dtype is not problem.dtype:
        return f"config.dtype={config.dtype} must be {problem.dtype}; build the config for the problem's dtype"
    return None


def reason_not_tag(tag: int) -> str | None:
    """A word that call_tag made."""
    reason = reason_not_u32("tag", tag)
    # The top four bits name type, stage and wire; call_tag makes all values but one.
    if reason is None and tag >> 28 == 15:
        reason = f"tag={tag:#x} must be a word of call_tag(numel, dtype, stage); read it from a signal slot's low half"
    return reason


def reason_not_machine(labels: Mapping[str, object], counts: Mapping[str, object]) -> str | None:
    """The fields of Machine: texts, and counts or rates."""
    for field, value in labels.items():
        if not isinstance(value, str) or not value:
            return f"{field}={_show(value)} must be a non-empty str; use MI355X"
    for field, value in counts.items():
        reason = reason_not_int(field, value, 1, MAX_GRID, "use MI355X or its measured figure")
        if reason is not None:
            return reason
    return None


# --- launches ---


def reason_not_geometry(blocks: object, threads: int) -> str | None:
    """The fields of LaunchGeometry."""
    return reason_not_int("blocks", blocks, 1, MAX_GRID, "an empty problem still launches 1") or reason_not_threads(
        threads
    )


def reason_not_blocks(blocks: object) -> str | None:
    """For grids whose blocks own a row of the signal arrays."""
    return reason_not_int("blocks", blocks, 1, MAX_BLOCKS, "each block needs its own row of the signal arrays")


def reason_not_slot(block: object, peer: object) -> str | None:
    """Coordinates of a signal slot."""
    return reason_not_int("block", block, 0, MAX_BLOCKS - 1, "the signal arrays have this many rows") or reason_not_int(
        "peer", peer, 0, MAX_WORLD - 1, "a row has one slot for each rank"
    )


# --- windows ---


def reason_not_region(name: object, kind: object, offset: Any, nbytes: object) -> str | None:
    """The fields of Region."""
    if not isinstance(name, str) or not name.isidentifier():
        return f"name={_show(name)} must be an identifier; errors and views refer to regions by name"
    reason = (
        reason_not_member("kind", kind, RegionKind, f"say what {name} holds")
        or reason_not_int("offset", offset, 0, MAX_WINDOW, f"place {name} inside the window")
        or reason_not_int("nbytes", nbytes, 1, MAX_WINDOW, f"leave {name} out if it is empty")
    )
    if reason is None and offset % REGION_ALIGN:
        reason = f"offset={offset} must be a multiple of {REGION_ALIGN}; round up the offset of {name}"
    return reason


def reason_not_window(regions: Sequence[Region]) -> str | None:
    """Each region by its own rule, then all of them against each other."""
    if not isinstance(regions, tuple) or not regions:
        return f"regions={_show(regions)} must be a non-empty tuple of Region; list control first, then payload"
    for region in regions:
        reason = reason_not_region(*(getattr(region, field, None) for field in ("name", "kind", "offset", "nbytes")))
        if reason is not None:
            return reason
    names = [region.name for region in regions]
    for name in names:
        if names.count(name) > 1:
            return f"name={name!r} must be unique in a window; rename one of the regions"
    for left, right in pairwise(regions):
        end = left.offset + left.nbytes
        if right.offset < end:
            return f"{right.name}.offset={right.offset} must be at least {end}; list regions in order, without overlap"
        if left.kind is RegionKind.PAYLOAD and right.kind is RegionKind.CONTROL:
            return f"{right.name}.kind={right.kind} must be {RegionKind.PAYLOAD} after payload; put control first"
    return None


def reason_not_region_name(name: object, names: Sequence[str]) -> str | None:
    """A name that this window knows."""
    if name not in names:
        return f"name={_show(name)} must be one of {', '.join(names)}; this window has no other region"
    return None


def reason_not_used(name: str, used: object, nbytes: int) -> str | None:
    """Bytes that a call uses of a region."""
    return reason_not_int(f"{name}.used", used, 0, nbytes, "lay the window out for the largest M")


def reason_not_spec(name: object, nbytes: object) -> str | None:
    """The fields of RegionSpec."""
    if not isinstance(name, str) or not name.isidentifier():
        return f"name={_show(name)} must be an identifier; errors and views refer to regions by name"
    if not callable(nbytes):
        return f"nbytes={_show(nbytes)} must be a function of M; wrap a constant as lambda m: {_show(nbytes)}"
    return None


def reason_not_layout(specs: object, capacity: object, start: object) -> str | None:
    """The arguments of payload_layout."""
    if not isinstance(specs, tuple) or not specs:
        return f"specs={_show(specs)} must be a non-empty tuple of RegionSpec; describe at least one region"
    for spec in specs:
        reason = reason_not_spec(getattr(spec, "name", None), getattr(spec, "nbytes", None))
        if reason is not None:
            return reason
    return reason_not_int("capacity", capacity, 1, MAX_BYTES, "give the largest M") or reason_not_int(
        "start", start, 0, MAX_WINDOW, "give the end of the control regions"
    )


def reason_not_m(m: object, capacity: int) -> str | None:
    """An M that the layout has room for; 0 is fine."""
    return reason_not_int("m", m, 0, capacity, f"lay the window out for more than {capacity}")


# --- ownership and counters ---


def reason_not_pack_ownership(world: object, packs: object) -> str | None:
    """The fields of PackOwnership."""
    return reason_not_world(world) or reason_not_int("packs", packs, 0, MAX_BYTES // PACK_BYTES, "split the tensor")


def reason_not_index(name: str, value: object, count: int) -> str | None:
    """An index into `count` things."""
    if count == 0:
        return f"{name}={_show(value)} must be inside an empty problem; skip the look-up when there is no work"
    return reason_not_int(name, value, 0, count - 1, f"there are {count}")


def reason_not_owner_slices(world: object, rows: object, tile_m: object) -> str | None:
    """The fields of OwnerSlices."""
    return (
        reason_not_world(world)
        or reason_not_int("rows", rows, 0, MAX_ROWS, "split the rows over several calls")
        or reason_not_int("tile_m", tile_m, 1, MAX_TILE_M, "give the rows of one output tile")
    )


def reason_not_chunks(chunks: object) -> str | None:
    """The number of chunks that a caller wants."""
    return reason_not_int("chunks", chunks, 1, MAX_ROWS, "1 sends a whole slice at once")


def reason_not_chunk_table(bands: Any, chunks: object) -> str | None:
    """The fields of ChunkTable: no more chunks than bands, and none of nothing."""
    return reason_not_int("bands", bands, 0, MAX_ROWS, "give the bands of a full slice") or reason_not_int(
        "chunks", chunks, min(bands, 1), bands, "a chunk has at least one band"
    )


def reason_not_tiles(tiles: object) -> str | None:
    """Arrivals of one call at a wrapping counter."""
    return reason_not_int("tiles", tiles, 1, U32, "a counter with no arrivals elects nobody")
