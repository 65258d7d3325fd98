# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Maps of a symmetric window: named regions, equal on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mori_gemm_ar.layout.rules import (
    reason_not_layout,
    reason_not_m,
    reason_not_region,
    reason_not_region_name,
    reason_not_spec,
    reason_not_used,
    reason_not_window,
    require,
)
from mori_gemm_ar.layout.terms import REGION_ALIGN, RegionKind, round_up


@dataclass(frozen=True, slots=True)
class Region:
    """A named run of bytes. Offsets count from the start of the window."""

    name: str
    kind: RegionKind
    offset: int
    nbytes: int

    def __post_init__(self) -> None:
        require(reason_not_region(self.name, self.kind, self.offset, self.nbytes))

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


@dataclass(frozen=True, slots=True)
class WindowMap:
    """Regions in order, disjoint and aligned, control before payload. Padding between them belongs to nobody."""

    regions: tuple[Region, ...]

    def __post_init__(self) -> None:
        require(reason_not_window(self.regions))

    @property
    def nbytes(self) -> int:
        return round_up(self.regions[-1].end, REGION_ALIGN)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(region.name for region in self.regions)

    def region(self, name: str) -> Region:
        require(reason_not_region_name(name, self.names))
        return next(region for region in self.regions if region.name == name)

    def offset(self, name: str) -> int:
        return self.region(name).offset

    def locate(self, offset: int) -> Region | None:
        """The region that holds this byte; None for padding and for bytes outside the window."""
        return next((region for region in self.regions if region.offset <= offset < region.end), None)

    def intervals(self, used_bytes: Mapping[str, int]) -> dict[str, range]:
        """Bytes that one call touches, by region; a region that `used_bytes` does not name is touched whole."""
        for name in used_bytes:
            require(reason_not_region_name(name, self.names))
        touched = {}
        for region in self.regions:
            used = used_bytes.get(region.name, region.nbytes)
            require(reason_not_used(region.name, used, region.nbytes))
            touched[region.name] = range(region.offset, region.offset + used)
        return touched


@dataclass(frozen=True, slots=True)
class RegionSpec:
    """A payload region whose bytes are a function of M that never falls as M grows."""

    name: str
    nbytes: Callable[[int], int]

    def __post_init__(self) -> None:
        require(reason_not_spec(self.name, self.nbytes))


@dataclass(frozen=True, slots=True)
class PayloadLayout:
    """Payload regions placed for `capacity`: a smaller M moves fewer bytes at the same offsets.

    So a region only ever aliases itself, whatever M a late or early peer still works on.
    """

    specs: tuple[RegionSpec, ...]
    capacity: int
    start: int
    regions: tuple[Region, ...] = field(init=False)

    def __post_init__(self) -> None:
        require(reason_not_layout(self.specs, self.capacity, self.start))
        regions = []
        cursor = round_up(self.start, REGION_ALIGN)
        for spec in self.specs:
            region = Region(spec.name, RegionKind.PAYLOAD, cursor, spec.nbytes(self.capacity))
            regions.append(region)
            cursor = round_up(region.end, REGION_ALIGN)
        require(reason_not_window(tuple(regions)))
        object.__setattr__(self, "regions", tuple(regions))

    def used(self, m: int) -> dict[str, int]:
        """Bytes of each region that a call with this M uses."""
        require(reason_not_m(m, self.capacity))
        used = {spec.name: spec.nbytes(m) for spec in self.specs}
        for region in self.regions:
            require(reason_not_used(region.name, used[region.name], region.nbytes))
        return used

    def intervals(self, m: int) -> dict[str, range]:
        return WindowMap(self.regions).intervals(self.used(m))


def payload_layout(specs: tuple[RegionSpec, ...], capacity: int, start: int = 0) -> PayloadLayout:
    """Place `specs` in order behind byte `start`, each as large as M = `capacity` makes it."""
    return PayloadLayout(specs, capacity, start)
