# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Known operands through the product, every leg and the result of every path of an op, compared element by element.

B has a one in each row, so the product of a rank is a choice of A's columns: small integers that differ from those of
the neighbouring ranks, rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from mori_gemm_ar.ar.call import OpWindow
from mori_gemm_ar.ar.sdma import slot_bytes
from mori_gemm_ar.ar.wire import sum_through
from mori_gemm_ar.errors import CollectiveError
from mori_gemm_ar.gemm.arguments import FP8
from mori_gemm_ar.gemm.prepare import preshuffle_b
from mori_gemm_ar.layout import BLayout, Recipe
from mori_gemm_ar.layout.gemm import a_scale_shape, b_scale_shape
from mori_gemm_ar.layout.sdma import Transport
from mori_gemm_ar.model import Mode
from mori_gemm_ar.model.modes import FUSED
from mori_gemm_ar.plan import ENGINE_MODES, LayerPlan, LayerSpec, plan_layer
from mori_gemm_ar.runtime import Target

_ONE = {Recipe.PTPC: (torch.float32, 1), Recipe.BLOCKSCALE: (torch.float32, 1), Recipe.MXFP8: (torch.uint8, 127)}
_FEW = 5  # rows of a path that needs no more
_NO_DATA = "no byte arrived: copy engines do nothing where mori was built or started without MORI_ENABLE_SDMA=1"


@dataclass(frozen=True, slots=True)
class Operands:
    """What a rank multiplies."""

    a: torch.Tensor
    b: torch.Tensor
    a_scale: torch.Tensor
    b_scale: torch.Tensor


def paths(spec: LayerSpec, *, engines: bool) -> Iterator[LayerPlan]:
    """One plan for each mode and gather that the op may use, of as few rows as it takes."""
    for mode in spec.modes:
        if mode in (Mode.GEMM_ONLY, Mode.SPLIT_LSA):
            forced = replace(spec, mode=None if mode is Mode.GEMM_ONLY else mode)
            yield plan_layer(forced, min(_FEW, spec.m_max))
            continue
        if mode in ENGINE_MODES and not engines:
            continue
        largest = plan_layer(replace(spec, mode=mode), spec.m_max, engines=engines)
        tile = largest.fused.gemm.tile if largest.fused is not None else None
        rows, chunks = min(_FEW * spec.world, spec.m_max), spec.tuning.chunks
        if mode in FUSED:
            if tile is None:
                continue
            bands = 1
            if mode is Mode.FUSED_SDMA:  # a chunk for each queue
                queues = spec.tuning.queues
                bands = min(queues, chunks or queues, spec.m_max // (spec.world * tile.m))
                chunks = chunks or bands
            rows = spec.world * tile.m * bands
        for gather in spec.gathers(mode):
            tuning = replace(spec.tuning, gather=gather, tile=tile or spec.tuning.tile, chunks=chunks)
            yield plan_layer(replace(spec, mode=mode, tuning=tuning), rows, engines=engines)


class LayerSelfTest:
    """One plan, run once. `run(plan, operands)` makes the call and returns its result."""

    def __init__(
        self,
        spec: LayerSpec,
        plan: LayerPlan,
        window: OpWindow,
        target: Target,
        run: Callable[[LayerPlan, Operands], torch.Tensor],
    ) -> None:
        self.spec, self.plan, self.window, self.target, self._run = spec, plan, window, target, run
        self._result: torch.Tensor | None = None

    def prepare(self) -> None:
        """Zero where data will land, or old data would pass for new. All ranks do it before any of them goes on."""
        for region in self.window.map.regions:
            if region.name == "input" or region.name.startswith(("landing", "output", "reduced")):
                self.target.fill(self.window.address + region.offset, region.nbytes, 0)

    def steps(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """(name, check) in order; all ranks pass one before any of them goes on to the next."""
        yield "self-test", self._call
        elsewhere = self.plan.mode in (Mode.GEMM_ONLY, Mode.FUSED_LSA)
        if not elsewhere and (self.plan.fused is None or not self.spec.wire.both):
            yield "self-test of the product", self._check_product
        if self.plan.slice_rows and not self.spec.wire.both:
            yield "self-test of the scatter", self._check_scatter
        yield "self-test of the result", self._check_result

    # ---- data ------------------------------------------------------------------------------------------------
    def _a(self, rank: int) -> torch.Tensor:
        row = torch.arange(self.plan.m, dtype=torch.int64)[:, None]
        column = torch.arange(self.spec.k, dtype=torch.int64)
        return ((row * 7 + column * 3 + rank * 11) % 13 - 6).float()

    def product(self, rank: int) -> torch.Tensor:
        """bf16 [m, N] of one rank."""
        return self._a(rank)[:, torch.arange(self.spec.n) % self.spec.k].to(torch.bfloat16)

    def operands(self) -> Operands:
        """Of this rank, on its device."""
        spec, device = self.spec, self.target.torch_device
        b = torch.zeros(spec.n, spec.k)
        rows = torch.arange(spec.n)
        b[rows, rows % spec.k] = 1.0
        weight = b.to(FP8)
        if spec.b_layout is BLayout.PRESHUFFLED:
            weight = preshuffle_b(weight)
        dtype, one = _ONE[spec.recipe]
        scales = (a_scale_shape(spec.recipe, self.plan.m, spec.k), b_scale_shape(spec.recipe, spec.n, spec.k))
        a_scale, b_scale = (torch.full(shape, one, dtype=dtype, device=device) for shape in scales)
        return Operands(self._a(self.window.rank).to(FP8).to(device), weight.to(device), a_scale, b_scale)

    # ---- checks ----------------------------------------------------------------------------------------------
    def _call(self) -> None:
        # An engine that stops after its first packet shows at the second; a pushed gather brings that one.
        once = self.plan.mode is not Mode.FUSED_SDMA or self.plan.gather is Transport.SDMA
        for _ in range(1 if once else 2):
            self._result = self._run(self.plan, self.operands())

    def _check_product(self) -> None:
        self._compare("product", self._read("input", 0, self.product(self.window.rank)), self.product(self.window.rank))

    def _check_scatter(self) -> None:
        plan, rank = self.plan, self.window.rank
        own = slice(min(rank * plan.slice_rows, plan.m), min((rank + 1) * plan.slice_rows, plan.m))
        for peer in range(self.spec.world):
            if peer == rank:
                continue
            expected = self.product(peer)[own]
            slot = slot_bytes(self.window, "landing", self.spec.world) * peer
            seen = self._read("landing", slot, expected)
            leg = f"scatter leg from rank {peer} to rank {rank}"
            if plan.mode in ENGINE_MODES:
                self._require_data(leg, seen, expected)
            self._compare(leg, seen, expected)

    def _check_result(self) -> None:
        assert self._result is not None, "the call came first"
        plan, own = self.plan, self.window.rank
        expected = sum_through([self.product(rank) for rank in range(self.spec.world)], self.spec.wire)
        result = self._result.cpu()
        if not plan.slice_rows:
            self._compare("result", result, expected)
            return
        # The own slice first: what is wrong there is wrong before anything is gathered.
        for rank in (own, *(peer for peer in range(self.spec.world) if peer != own)):
            rows = slice(rank * plan.slice_rows, (rank + 1) * plan.slice_rows)
            leg = "sums" if rank == own else f"gather leg from rank {rank} to rank {own}"
            if rank != own and plan.gather is Transport.SDMA:
                self._require_data(leg, result[rows], expected[rows])
            self._compare(leg, result[rows], expected[rows], rows.start)

    def _read(self, region: str, start: int, like: torch.Tensor) -> torch.Tensor:
        nbytes = like.numel() * like.element_size()
        data = bytearray(self.target.read(self.window.at(region) + start, nbytes))
        return torch.frombuffer(data, dtype=like.dtype).view(like.shape) if nbytes else like

    def _require_data(self, leg: str, seen: torch.Tensor, expected: torch.Tensor) -> None:
        if expected.numel() and not seen.any():
            raise CollectiveError(f"self-test of {self.plan.label}, {leg}: {_NO_DATA}")

    def _compare(self, what: str, seen: torch.Tensor, expected: torch.Tensor, start: int = 0) -> None:
        wrong = torch.nonzero(seen.view(torch.int16) != expected.view(torch.int16))
        if not len(wrong):
            return
        row, column = wrong[0].tolist()
        whose = "" if "leg" in what else f" of rank {self.window.rank}"
        raise CollectiveError(
            f"self-test of {self.plan.label}, {what}{whose}: {len(wrong)} of {seen.numel()} elements are wrong, the "
            f"first at row {start + row}, column {column}: {seen[row, column].item()} instead of "
            f"{expected[row, column].item()}"
        )
