# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What a transport needs to turn one call into launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mori_gemm_ar.compile.store import CodeObject
from mori_gemm_ar.layout import AllReduceProblem, LaunchGeometry, Stage, WindowMap, Wire
from mori_gemm_ar.runtime import Buffer, CopyQueues, ErrorRecord, Launch, kernel_of, pack_arguments

Codes = dict[Any, CodeObject]


@dataclass(slots=True)
class OpWindow:
    """An op's symmetric memory on one rank."""

    map: WindowMap
    rank: int
    address: int
    base: int  # rank 0's window
    stride: int
    error: ErrorRecord
    queues: CopyQueues | None = None
    bitcode: str = ""  # which amd-mori bitcode submits; "": our own code

    def at(self, region: str) -> int:
        """Address of a region of this rank's window."""
        return self.address + self.map.offset(region)


@dataclass(frozen=True, slots=True)
class Call:
    """One all-reduce of contiguous memory. `stage` is for load and store only; None lets the size decide.

    columns: elements of a row, where the wire scales rows. The other fields are for copy engines: slice_elements, of a
    full slice, if not as even as possible; sums, the region in which sums are gathered; scattered, whether the slices
    are on their way already; tag, if not that of an all-reduce alone.
    """

    problem: AllReduceProblem
    source: int
    destination: int
    budget: int  # of each wait, in ticks
    stage: Stage | None = None
    wire: Wire = Wire.EXACT
    columns: int | None = None
    slice_elements: int | None = None
    sums: str = "reduced"
    scattered: bool = False
    tag: int | None = None

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The caller's memory."""
        nbytes = self.problem.nbytes
        return Buffer("x", self.source, nbytes), Buffer("out", self.destination, nbytes)


class Configured(Protocol):
    """A compile key."""

    @property
    def key(self) -> str:
        """Its name."""


def launch(
    window: OpWindow, codes: Codes, call: Call, config: Configured, geometry: LaunchGeometry, own: Sequence[int]
) -> Launch:
    """A launch of the kernel of a config. `own`: its arguments behind those with which all kernels of a call begin."""
    code = codes[config]
    common = (window.base, window.stride, window.rank, geometry.blocks, call.source, call.destination)
    arguments = pack_arguments(kernel_of(code).args, (*common, *own))
    return Launch(code, (geometry.blocks, 1, 1), (geometry.threads, 1, 1), arguments, config.key)
