# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The self-test: data that every rank knows goes over every leg, and what went wrong is named by leg."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from mori_gemm_ar.ar import wire as wires
from mori_gemm_ar.ar.call import Call, OpWindow
from mori_gemm_ar.ar.probe import Probe
from mori_gemm_ar.errors import CollectiveError
from mori_gemm_ar.layout import PACK_BYTES, AllReduceProblem, DType, Stage, Wire
from mori_gemm_ar.layout.sdma import Transport, probe_problem, queue_pieces
from mori_gemm_ar.layout.wire_terms import ROW_UNIT
from mori_gemm_ar.runtime import Target

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
    wire: Wire = Wire.EXACT

    @property
    def queues(self) -> int:
        """Copy-engine queues to each peer."""
        return self.window.queues.per_peer if self.window.queues is not None else 1

    @property
    def problem(self) -> AllReduceProblem:
        """A little for every queue of every rank, and a tail; without engines no more than the op allows."""
        probe = probe_problem(self.world, self.queues, self.element, self.wire)
        if self.window.queues is not None:  # the window has room for it
            return probe
        numel = min(probe.numel, self.max_bytes // self.element.nbytes)
        if self.wire.per_row:
            numel -= numel % ROW_UNIT
        return AllReduceProblem(self.world, numel, self.element)

    @property
    def probe(self) -> Probe:
        """What is sent."""
        return Probe(self.problem, self.dtype, self.wire)

    def prepare(self) -> None:
        """Zero where data will land, or old data would pass for new. All ranks do it before any of them goes on."""
        for start, nbytes in self.probe.runs(self.window):
            self.target.fill(start, nbytes, 0)
        for _, start in self._guards():
            self.target.fill(start, _CANARY_BYTES, _CANARY)

    def steps(self, transport: Transport, stage: Stage | None) -> Iterator[tuple[str, Callable[[], None]]]:
        """(name, check) in order. All ranks pass one before any of them goes on to the next.

        So a rank that only got sums of wrong data, or no sums, says what its peer found and blames no other leg. A
        check raises `CollectiveError`.
        """
        x = self.probe.data(self.window.rank).to(self.target.torch_device)
        out = torch.zeros_like(x)
        columns = wires.columns_of(self.wire, x)
        call = Call(self.problem, x.data_ptr(), out.data_ptr(), self.budget, stage, self.wire, columns)
        name = f"{stage.value}-stage all-reduce by load and store" if stage else "all-reduce by copy engine"
        run, check = partial(self.run, transport, call), partial(self._check_result, out, name)
        if transport is Transport.LSA:
            yield "self-test", lambda: self._all(run, check)
            return
        yield "self-test", lambda: self._all(run, self._check_scatter)
        yield "self-test of the sums", self._check_sums
        yield "self-test of the gather", lambda: self._all(self._check_gather, check)

    @staticmethod
    def _all(*parts: Callable[[], None]) -> None:
        for part in parts:
            part()

    # ---- places ----------------------------------------------------------------------------------------------
    def _guards(self) -> list[tuple[str, int]]:
        """(region, address) of bytes behind each run that nothing may write; where a region has room for them."""
        runs, found = self.probe.runs(self.window), []
        for start, nbytes in runs:
            behind = start + -(-nbytes // PACK_BYTES) * PACK_BYTES
            region = self.window.map.locate(start - self.window.address)
            assert region is not None, "every run lies in a region"
            end = min([self.window.address + region.end, *(other for other, _ in runs if other > start)])
            if behind + _CANARY_BYTES <= end:
                found.append((region.name, behind))
        return found

    # ---- checks ----------------------------------------------------------------------------------------------
    def _check_scatter(self) -> None:
        rank, probe = self.window.rank, self.probe
        for peer in self._peers():
            self._check_put("scatter", peer, probe.landing_at(self.window, peer), probe.scattered(peer, rank))

    def _check_sums(self) -> None:
        rank, expected = self.window.rank, self.probe.summed(self.window.rank)
        seen = self.target.read(self.probe.sums_at(self.window, rank), len(expected))
        if seen != expected:
            raise CollectiveError(
                f"self-test, reduce of rank {rank}: {_differ(seen, expected)} of {len(seen)} bytes are wrong; "
                f"the kernel does not run right on this machine"
            )

    def _check_gather(self) -> None:
        for peer in self._peers():
            self._check_put("gather", peer, self.probe.sums_at(self.window, peer), self.probe.summed(peer))

    def _check_put(self, leg: str, sender: int, start: int, expected: bytes) -> None:
        """Raise unless what a rank put to this one has landed."""
        seen = self.target.read(start, len(expected))
        if seen == expected:
            return
        wrong, landed = [], False
        for queue, piece in enumerate(queue_pieces(range(len(expected)), self.queues)):
            part = slice(piece.start, piece.stop)
            if seen[part] != expected[part]:
                wrong.append(str(queue))
                landed |= any(seen[part])
        queues = f", queue {', '.join(wrong)}" if self.queues > 1 else ""
        raise CollectiveError(
            f"self-test, {leg} leg by copy engine, rank {sender} to rank {self.window.rank}{queues}: "
            f"{_differ(seen, expected)} of {len(expected)} bytes are wrong; "
            f"{'part of a put did not land' if landed else _NO_ENGINES}"
        )

    def _check_result(self, out: torch.Tensor, name: str) -> None:
        self._require(out.cpu(), self.probe.sum(), f"the {name}", "peers' memory is not reached")
        for region, start in self._guards():
            if self.target.read(start, _CANARY_BYTES) != bytes([_CANARY]) * _CANARY_BYTES:
                raise CollectiveError(f"self-test of the {name} wrote past its data in region {region!r} of the window")

    def _peers(self) -> list[int]:
        return [rank for rank in range(self.world) if rank != self.window.rank]

    @staticmethod
    def _require(out: torch.Tensor, expected: torch.Tensor, what: str, why: str) -> None:
        out, expected = out.flatten(), expected.flatten()
        wrong = torch.nonzero(out.view(torch.int8) != expected.view(torch.int8)).flatten()
        if len(wrong):
            first = int(wrong[0]) // out.element_size()
            raise CollectiveError(
                f"self-test of {what} gave {out[first].item()} instead of {expected[first].item()} at element {first}; "
                f"{why}"
            )


def _differ(seen: bytes, expected: bytes) -> int:
    return sum(a != b for a, b in zip(seen, expected, strict=True))
