# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What a self-test sends, and which bytes each leg has to bring where: known to every rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from mori_gemm_ar.ar import wire as wires
from mori_gemm_ar.ar.call import OpWindow
from mori_gemm_ar.ar.sdma import slot_bytes
from mori_gemm_ar.ar.wire_format import quantize_wire
from mori_gemm_ar.layout import AllReduceProblem, Wire, WireSplit
from mori_gemm_ar.layout.sdma import ByteSlices
from mori_gemm_ar.layout.wire_terms import ROW_UNIT


@dataclass(frozen=True, slots=True)
class Probe:
    """One call of a self-test. Ranks' elements differ from their neighbours', so no data passes for other data."""

    problem: AllReduceProblem
    dtype: torch.dtype
    wire: Wire

    def data(self, rank: int) -> torch.Tensor:
        """What a rank contributes, to be read only; rows of ROW_UNIT elements where the wire scales rows."""
        return _inputs(self)[rank]

    def sum(self) -> torch.Tensor:
        """What the call gives on every rank."""
        return wires.through(_owners_sum(self), self.wire)

    # ---- legs ------------------------------------------------------------------------------------------------
    def scattered(self, sender: int, owner: int) -> bytes:
        """What a rank puts into another one's landing slot."""
        return self._slice(self.data(sender), owner, quantised=self.wire.both)

    def summed(self, owner: int) -> bytes:
        """What an owner puts to all ranks."""
        return self._slice(_owners_sum(self), owner, quantised=self.wire.lossy)

    def _slice(self, values: torch.Tensor, owner: int, *, quantised: bool) -> bytes:
        if not self.wire.lossy:
            run = ByteSlices.of(self.problem).slice(owner)
            return _bytes(values.view(torch.uint8)[run.start : run.stop])
        run = self._split.slice(owner)
        part = values.flatten()[run.start : run.stop]
        if not quantised:
            return _bytes(part.view(torch.uint8))
        return _bytes(quantize_wire(part.view(-1, ROW_UNIT) if self.wire.per_row else part, self.wire))

    # ---- places ----------------------------------------------------------------------------------------------
    def landing_at(self, window: OpWindow, sender: int) -> int:
        """Address of what a rank puts here on the scatter leg."""
        return window.at("landing") + slot_bytes(window, "landing", self.problem.world) * sender

    def sums_at(self, window: OpWindow, owner: int) -> int:
        """Address of an owner's sums."""
        if self.wire.lossy:
            return window.at("gathered") + slot_bytes(window, "gathered", self.problem.world) * owner
        return window.at("reduced") + ByteSlices.of(self.problem).slice(owner).start

    def runs(self, window: OpWindow) -> list[tuple[int, int]]:
        """(address, bytes) of each run of a rank's window that the call fills, in order."""
        ranks, problem = range(self.problem.world), self.problem
        own = window.map.region(wires.reduced_region(window.map))
        full = self._split.slice_layout.nbytes if self.wire.lossy else problem.nbytes
        runs = [(window.at(own.name), min(full, own.nbytes))]
        if "landing" in window.map.names:
            longest = max(len(self.scattered(0, rank)) for rank in ranks)
            runs += [(self.landing_at(window, rank), longest) for rank in ranks]
        if "gathered" in window.map.names:
            runs += [(self.sums_at(window, rank), full) for rank in ranks]
        return runs

    @property
    def _split(self) -> WireSplit:
        columns = ROW_UNIT if self.wire.per_row else None
        return WireSplit(self.problem.world, self.problem.numel, self.wire, columns)


# Every check needs them, and ranks that share a process share them.
@lru_cache(maxsize=4)
def _inputs(probe: Probe) -> tuple[torch.Tensor, ...]:
    index = torch.arange(probe.problem.numel, dtype=torch.int64)
    ranks = range(probe.problem.world)
    values = [((index * 7 + rank * 11) % 61 - 30 + rank).to(probe.dtype) for rank in ranks]
    return tuple(v.view(-1, ROW_UNIT) for v in values) if probe.wire.per_row else tuple(values)


@lru_cache(maxsize=4)
def _owners_sum(probe: Probe) -> torch.Tensor:
    return wires.owners_sum(_inputs(probe), probe.wire)


def _bytes(values: torch.Tensor) -> bytes:
    return values.numpy().tobytes()
