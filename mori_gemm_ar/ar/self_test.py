# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The self-test: data that every rank knows goes over every leg, and what went wrong is named by leg."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from mori_gemm_ar.ar.call import Call, OpWindow
from mori_gemm_ar.errors import CollectiveError
from mori_gemm_ar.layout import PACK_BYTES, AllReduceProblem, DType, Stage
from mori_gemm_ar.layout.sdma import ByteSlices, Transport
from mori_gemm_ar.runtime import Target

_PACKS = 5  # of each rank's slice
_TAIL = 3  # elements after the last whole pack
_CANARY = 0xA5
_CANARY_BYTES = 128  # looked at behind each run of bytes
_NO_ENGINES = (
    "the copy engines do nothing although their queues drain: amd-mori was built without them, or "
    "MORI_ENABLE_SDMA was unset when it was; use transport='lsa'"
)


@dataclass(frozen=True, slots=True)
class SelfTest:
    """One rank's part. `run(transport, call)` submits a call and waits for it, raising what the kernels report."""

    window: OpWindow
    target: Target
    world: int
    dtype: torch.dtype
    element: DType
    max_bytes: int
    budget: int
    run: Callable[[Transport, Call], None]

    @property
    def problem(self) -> AllReduceProblem:
        """As large as slices of all ranks with a tail, or as the op allows."""
        wanted = _PACKS * PACK_BYTES * self.world // self.element.nbytes + _TAIL
        return AllReduceProblem(self.world, min(wanted, self.max_bytes // self.element.nbytes), self.element)

    def prepare(self) -> None:
        """Zero where data will land, or old data would pass for new. All ranks do it before any of them goes on."""
        for start, nbytes in self._landings():
            self.target.fill(start, nbytes, 0)
        for _, start in self._guards():
            self.target.fill(start, _CANARY_BYTES, _CANARY)

    def over(self, transport: Transport, stage: Stage | None) -> None:
        """Raise `CollectiveError` unless a transport moves data."""
        problem = self.problem
        x = self._data(self.window.rank).to(self.target.torch_device)
        out = torch.zeros_like(x)
        call = Call(problem, x.data_ptr(), out.data_ptr(), self.budget, stage)
        self.run(transport, call)
        if transport is Transport.SDMA:
            self._check_legs(problem)
        name = f"{stage.value}-stage all-reduce by load and store" if stage else "all-reduce by copy engine"
        self._require(out.cpu(), self._sum(), f"the {name}", "peers' memory is not reached")
        for region, start in self._guards():
            if self.target.read(start, _CANARY_BYTES) != bytes([_CANARY]) * _CANARY_BYTES:
                raise CollectiveError(f"self-test of the {name} wrote past its data in region {region!r} of the window")

    # ---- data ------------------------------------------------------------------------------------------------
    def _data(self, rank: int) -> torch.Tensor:
        """What a rank contributes: every element of every rank differs from its neighbours."""
        index = torch.arange(self.problem.numel, dtype=torch.int64)
        return ((index * 7 + rank * 11) % 61 - 30 + rank).to(self.dtype)

    def _sum(self) -> torch.Tensor:
        total = self._data(0).float()
        for rank in range(1, self.world):
            total = total + self._data(rank).float()
        return total.to(self.dtype)

    # ---- places ----------------------------------------------------------------------------------------------
    def _landings(self) -> list[tuple[int, int]]:
        """(address, bytes) of each run of the window that the test's data fills, in order."""
        problem = self.problem
        runs = [(self.window.at("reduced"), problem.nbytes)]
        if "landing" in self.window.map.names:
            longest = max(len(ByteSlices.of(problem).slice(rank)) for rank in range(self.world))
            slot = self.window.map.region("landing").nbytes // self.world
            runs += [(self.window.at("landing") + slot * rank, longest) for rank in range(self.world)]
        return runs

    def _guards(self) -> list[tuple[str, int]]:
        """(region, address) of bytes behind each run that nothing may write; where a region has room for them."""
        runs = self._landings()
        found = []
        for number, (start, nbytes) in enumerate(runs):
            behind = start + -(-nbytes // PACK_BYTES) * PACK_BYTES
            region = self.window.map.locate(start - self.window.address)
            assert region is not None, "every run lies in a region"
            end = self.window.address + region.end
            if region.name == "landing" and number + 1 < len(runs):
                end = runs[number + 1][0]
            if behind + _CANARY_BYTES <= end:
                found.append((region.name, behind))
        return found

    # ---- checks ----------------------------------------------------------------------------------------------
    def _check_legs(self, problem: AllReduceProblem) -> None:
        slices, own = ByteSlices.of(problem), self.window.rank
        slot = self.window.map.region("landing").nbytes // self.world
        for peer in range(self.world):
            if peer != own:
                expected = self._bytes(self._data(peer), slices.slice(own))
                self._require_bytes("scatter", peer, self.window.at("landing") + slot * peer, expected)
        for peer in range(self.world):
            run = slices.slice(peer)
            leg = "reduce" if peer == own else "gather"
            self._require_bytes(leg, peer, self.window.at("reduced") + run.start, self._bytes(self._sum(), run))

    @staticmethod
    def _bytes(values: torch.Tensor, run: range) -> bytes:
        return values.view(torch.uint8)[run.start : run.stop].numpy().tobytes()

    def _require_bytes(self, leg: str, peer: int, start: int, expected: bytes) -> None:
        seen = self.target.read(start, len(expected))
        if seen == expected:
            return
        wrong = sum(a != b for a, b in zip(seen, expected, strict=True))
        where = f"{leg} leg by copy engine, rank {peer} to rank {self.window.rank}"
        why = _NO_ENGINES if not any(seen) else "part of a put did not land"
        if leg == "reduce":
            where, why = f"reduce of rank {peer}", "the kernel does not run right on this machine"
        raise CollectiveError(f"self-test, {where}: {wrong} of {len(expected)} bytes are wrong; {why}")

    @staticmethod
    def _require(out: torch.Tensor, expected: torch.Tensor, what: str, why: str) -> None:
        wrong = torch.nonzero(out.view(torch.int8) != expected.view(torch.int8)).flatten()
        if len(wrong):
            first = int(wrong[0]) // out.element_size()
            raise CollectiveError(
                f"self-test of {what} gave {out[first].item()} instead of {expected[first].item()} at element {first}; "
                f"{why}"
            )
