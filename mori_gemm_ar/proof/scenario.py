# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Parts that scenarios of all-reduces share: data, the reference, and a look at the error record while kernels run."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.ar.arguments import TORCH_DTYPES
from mori_gemm_ar.ar.collective import CollectiveOp
from mori_gemm_ar.ar.wire import sum_through
from mori_gemm_ar.errors import CollectiveError, CollectiveMismatch, CollectiveTimeout
from mori_gemm_ar.layout import DType, Wire
from mori_gemm_ar.layout.allreduce import ERROR_WORDS, ErrorStatus, ErrorWord
from mori_gemm_ar.proof.pipelines import WrongResult
from mori_gemm_ar.runtime import LocalWorld, RankContext

TORCH = {code: dtype for dtype, code in TORCH_DTYPES.items()}
COLUMNS = 48  # of a row, where the wire has rows; a wave takes one, so a block of eight waves takes eight
AnyOp = TypeVar("AnyOp", bound=CollectiveOp)


@dataclass(frozen=True, slots=True)
class Calls:
    """Back-to-back all-reduces with new data in each; data depend on a call's number, which counts from `first`."""

    world: int
    dtype: DType
    wire: Wire
    seed: int
    sizes: tuple[int, ...]
    first: int = 0

    def data(self, call: int, rank: int, numel: int) -> torch.Tensor:
        """What a rank brings to a call."""
        generator = torch.Generator().manual_seed(self.seed * 1009 + (self.first + call) * 31 + rank)
        values = torch.randn(numel, generator=generator).to(TORCH[self.dtype])
        return values.view(-1, COLUMNS) if self.wire.per_row else values

    def make(self, op: AllReduceOp, rank: int) -> list[torch.Tensor]:
        """One rank's part; it overwrites its input as soon as a call returns."""
        results = []
        for call, numel in enumerate(self.sizes):
            x = self.data(call, rank, numel)
            results.append(op(x, torch.full_like(x, float("nan"))))
            x.fill_(float("nan"))
        return results

    def call(self, op: AllReduceOp, rank: int, *, odd: bool) -> None:
        """A call that all ranks make, or another one."""
        op(self.data(0, rank, COLUMNS * (40 if odd else 2)))

    def check(self, results: list[list[torch.Tensor]]) -> None:
        """Raise `WrongResult` unless all ranks got the sum in rank order, rounded once, as the wire delivers it."""
        for call, numel in enumerate(self.sizes):
            expected = sum_through([self.data(call, rank, numel) for rank in range(self.world)], self.wire)
            for rank in range(self.world):
                compare(results[rank][call], expected, f"call {self.first + call}, rank {rank}")


def run_calls(world: LocalWorld, make: Callable[[RankContext], AllReduceOp], calls: Calls) -> None:
    """All ranks make the calls; raises `WrongResult` or the error of the library."""

    def rank_body(context: RankContext) -> list[torch.Tensor]:
        with make(context) as op:
            return calls.make(op, context.rank)

    calls.check(world.run(rank_body))


def compare(result: torch.Tensor, expected: torch.Tensor, where: str) -> None:
    """Raise `WrongResult` unless all bits are equal."""
    if not torch.equal(result.view(torch.int8), expected.view(torch.int8)):
        wrong = torch.nonzero((result != expected).flatten()).flatten()
        first = int(wrong[0]) if len(wrong) else -1
        raise WrongResult(f"{where}: {len(wrong)} elements differ, the first is {first}")


class RecordWatch:
    """Looks at the error record from the host's side whenever the node has run a round."""

    def __init__(self, context: RankContext, op: CollectiveOp) -> None:
        window = op._require_window()
        self._context, self._address = context, window.at("error")
        self._seen = False
        self._incomplete = ""
        context.node.watchers.append(self._look)

    def _look(self) -> None:
        node = self._context.node
        record = node.memory.host_view(self._address, 4 * ERROR_WORDS)
        words = [int.from_bytes(record[i : i + 4], "little") for i in range(0, len(record), 4)]
        if words[ErrorWord.STATUS] == ErrorStatus.NONE:
            return
        self._seen |= not node.idle(self._context.rank)
        covered = [ErrorWord.EXPECTED_EPOCH, ErrorWord.EXPECTED_TAG]
        if words[ErrorWord.STATUS] == ErrorStatus.MISMATCH:
            covered += [ErrorWord.SEEN_EPOCH, ErrorWord.SEEN_TAG]
        if any(words[word] == 0 for word in covered):
            self._incomplete = f"status {words[0]} came before the words that it covers: {words}"

    def require(self, error: CollectiveError, kind: type[CollectiveError], peers: tuple[int, ...]) -> None:
        """Raise `WrongResult` unless the error is right and its record was complete while the kernel still ran."""
        if not isinstance(error, kind) or not any(f"rank {peer}" in str(error) for peer in peers):
            whom = " or ".join(f"rank {peer}" for peer in peers)
            raise WrongResult(f"expected {kind.__name__} naming {whom}, got {type(error).__name__}: {error}")
        if self._incomplete:
            raise WrongResult(self._incomplete)
        if not self._seen:
            raise WrongResult("the host saw the error record only after the kernel had ended")

    def stop(self) -> None:
        """Stop looking."""
        self._context.node.watchers.remove(self._look)


def with_failures(seed: int) -> bool:
    """Whether a seed runs the calls that have to fail as well: they take their time, and there are few ways to fail."""
    return seed % 4 == 0


def odd_one_out(
    world: Callable[[], LocalWorld],
    make: Callable[[RankContext], AnyOp],
    call: Callable[..., None],
    left_out: Collection[int] = (),
) -> None:
    """The last rank stays away, then makes another call: the others name it, in a record complete for the host.

    call(op, rank, odd=...) makes the call of all ranks, or another one. left_out: ranks that miss what the other call
    does not give them, before they see its flag.
    """

    def rank_body(context: RankContext, *, comes: bool) -> None:
        odd = context.size - 1
        expected = CollectiveMismatch if comes and context.rank not in left_out else CollectiveTimeout

        def body(op: AnyOp) -> None:
            if context.rank != odd or comes:
                call(op, context.rank, odd=context.rank == odd)
                raise WrongResult(f"rank {context.rank} returned although rank {odd} made another call or none")

        failing(context, make(context), body, None if context.rank == odd else (expected, (odd,)))

    for comes in (False, True):
        world().run(partial(rank_body, comes=comes))


def failing(
    context: RankContext,
    op: AnyOp,
    body: Callable[[AnyOp], None],
    expected: tuple[type[CollectiveError], tuple[int, ...]] | None,
) -> None:
    """Run what has to fail on this rank: expected is the error and the ranks of which it names one; None takes any."""
    watch = RecordWatch(context, op)
    try:
        with op:
            body(op)
            op.target.synchronize()
    except (CollectiveTimeout, CollectiveMismatch) as error:
        if expected is not None:
            watch.require(error, *expected)
    finally:
        watch.stop()
