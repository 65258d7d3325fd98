# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The rules of a lossy wire; see layout.rules for how a predicate answers."""

from __future__ import annotations

from typing import Any

from mori_gemm_ar.layout.dtypes import DType
from mori_gemm_ar.layout.rules import (
    reason_not_int,
    reason_not_max_bytes,
    reason_not_member,
    reason_not_numel,
    reason_not_world,
)
from mori_gemm_ar.layout.terms import MAX_NUMEL, U32, Gather, Stage, ceil_div
from mori_gemm_ar.layout.wire_terms import ROW_UNIT, Wire

_ELEMENT_BYTES = 2  # of every type that a lossy wire carries


def reason_not_wire(wire: object) -> str | None:
    """What crosses the links."""
    return reason_not_member("wire", wire, Wire, "use Wire.parse(value)")


def reason_not_lossy(wire: object) -> str | None:
    """A wire that has a format of its own."""
    if wire is Wire.EXACT:
        return f"wire={Wire.EXACT.value!r} must be a lossy one; the exact wire carries the elements themselves"
    return reason_not_wire(wire)


def reason_not_wire_dtype(dtype: object, wire: Wire) -> str | None:
    """An element type that the wire carries: a lane quantises the eight elements of one 16-byte pack."""
    if wire.lossy and dtype is DType.FP32:
        return f"dtype=fp32 must be a 16-bit type for wire={wire.value!r}; use wire='exact', or sum bf16"
    return None


def reason_not_wire_stage(stage: object, wire: Wire) -> str | None:
    """A lossy wire needs slices with an owner; in one stage there are none."""
    if wire.lossy and stage is Stage.ONE:
        return f"stage={stage} must be {Stage.TWO} or None for wire={wire.value!r}; one stage has no owner"
    return None


def reason_not_carried(world: object, dtype: object, wire: Any) -> str | None:
    """The wire of a compile key: what it carries, between ranks."""
    reason = reason_not_wire(wire) or reason_not_wire_dtype(dtype, wire)
    if reason is None and wire.lossy and world == 1:
        reason = f"wire={wire.value!r} must be 'exact' in a world of 1; nothing crosses a link there"
    return reason


def reason_not_wire_config(world: object, dtype: object, stage: object, gather: object, wire: Any) -> str | None:
    """The wire of an AllReduceConfig whose other fields are right."""
    reason = reason_not_carried(world, dtype, wire) or reason_not_wire_stage(stage, wire)
    if reason is None and wire.lossy and gather is not Gather.INTERLEAVED:
        reason = f"gather={gather} must be {Gather.INTERLEAVED} for wire={wire.value!r}; the other is a test's control"
    return reason


def reason_not_columns(wire: Wire, numel: int, columns: Any) -> str | None:
    """Elements of a row: given where a scale belongs to a row, and only there."""
    if not wire.per_row:
        return None if columns is None else f"columns={columns!r} must be None for wire={wire.value!r}; it has no rows"
    way_out = "use wire='fp8', whose scales do not follow rows"
    reason = reason_not_int("columns", columns, ROW_UNIT, MAX_NUMEL, way_out)
    if reason is None and columns % ROW_UNIT:
        reason = f"columns={columns} must be a multiple of {ROW_UNIT} for wire={wire.value!r}; {way_out}"
    if reason is None and numel % columns:
        reason = f"numel={numel} must be whole rows of columns={columns}; {way_out}"
    return reason


def reason_not_split(world: object, numel: Any, wire: Any, columns: object) -> str | None:
    """The fields of WireSplit."""
    reason = reason_not_world(world) or reason_not_numel(numel) or reason_not_lossy(wire)
    return reason or reason_not_columns(wire, numel, columns) or reason_not_row_slices(world, numel, columns)


def reason_not_slice_elements(elements: Any, world: int, numel: int, unit: int) -> str | None:
    """Elements of a full slice that a caller decides about: whole units, and enough for all."""
    least = ceil_div(numel, world)
    reason = reason_not_int("slice_elements", elements, least, MAX_NUMEL, f"{world} slices hold {numel} elements")
    if reason is None and elements % unit:
        reason = f"slice_elements={elements} must be a multiple of {unit}; a scale belongs to one slice"
    return reason


def reason_not_row_slices(world: Any, numel: int, columns: Any) -> str | None:
    """Slices of rows, all taken as full: kernels add 32-bit offsets up to the end of the last one."""
    if columns is None:
        return None
    elements = ceil_div(ceil_div(numel, columns), world) * columns * world
    if elements <= U32 // _ELEMENT_BYTES:
        return None
    return f"columns={columns} must be shorter: {world} slices of whole rows would pass 4 GiB; use wire='fp8'"


def reason_not_wire_slice(wire: Any, elements: Any, columns: object) -> str | None:
    """The fields of WireSlice."""
    reason = reason_not_lossy(wire) or reason_not_int("elements", elements, 0, MAX_NUMEL, "split the tensor")
    return reason or reason_not_columns(wire, elements, columns)


def reason_not_wire_capacity(wire: object, max_bytes: object, world: object) -> str | None:
    """The arguments that the regions of a window are sized by."""
    return reason_not_wire(wire) or reason_not_max_bytes(max_bytes) or reason_not_world(world)
