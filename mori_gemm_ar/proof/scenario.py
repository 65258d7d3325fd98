# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Parts that scenarios of all-reduces share: data, the reference, and a look at the error record while kernels run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import torch

from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.ar.wire import sum_through
from mori_gemm_ar.errors import CollectiveError, CollectiveMismatch, CollectiveTimeout
from mori_gemm_ar.layout import DType, Wire
from mori_gemm_ar.layout.allreduce import ERROR_WORDS, ErrorStatus, ErrorWord
from mori_gemm_ar.proof.pipelines import WrongResult
from mori_gemm_ar.runtime import LocalWorld, RankContext

TORCH = {DType.BF16: torch.bfloat16, DType.FP16: torch.float16, DType.FP32: torch.float32}


COLUMNS = 48  # of a row, where the wire has rows; a wave takes one, so a block of eight waves takes eight


def data(dtype: DType, seed: int, call: int, rank: int, numel: int, wire: Wire = Wire.EXACT) -> torch.Tensor:
    """What a rank brings to a call."""
    generator = torch.Generator().manual_seed(seed * 1009 + call * 31 + rank)
    values = torch.randn(numel, generator=generator).to(TORCH[dtype])
    return values.view(-1, COLUMNS) if wire.per_row else values


def expected_sum(dtype: DType, world: int, seed: int, call: int, numel: int, wire: Wire = Wire.EXACT) -> torch.Tensor:
    """fp32 sum in rank order, rounded once, as the wire delivers it."""
    return sum_through([data(dtype, seed, call, rank, numel, wire) for rank in range(world)], wire)


def compare(result: torch.Tensor, expected: torch.Tensor, where: str) -> None:
    """Raise `WrongResult` unless all bits are equal."""
    if not torch.equal(result.view(torch.int8), expected.view(torch.int8)):
        wrong = torch.nonzero((result != expected).flatten()).flatten()
        first = int(wrong[0]) if len(wrong) else -1
        raise WrongResult(f"{where}: {len(wrong)} elements differ, the first is {first}")


class RecordWatch:
    """Looks at the error record from the host's side whenever the node has run a round."""

    def __init__(self, context: RankContext, op: AllReduceOp) -> None:
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

    def require(self, error: CollectiveError, kind: type[CollectiveError], peer: int) -> None:
        """Raise `WrongResult` unless the error is right and its record was complete while the kernel still ran."""
        if not isinstance(error, kind) or f"rank {peer}" not in str(error):
            raise WrongResult(f"expected {kind.__name__} naming rank {peer}, got {type(error).__name__}: {error}")
        if self._incomplete:
            raise WrongResult(self._incomplete)
        if not self._seen:
            raise WrongResult("the host saw the error record only after the kernel had ended")

    def stop(self) -> None:
        """Stop looking."""
        self._context.node.watchers.remove(self._look)


def odd_one_out(
    world: Callable[[], LocalWorld],
    make: Callable[[RankContext], AllReduceOp],
    values: Callable[[int, bool], torch.Tensor],
    odd: int,
) -> None:
    """A rank stays away, then makes another call: the others name it, in a record complete for the host.

    values(rank, other): what a rank calls with; `other`: of another size than the rest.
    """

    def rank_body(context: RankContext, *, calls: bool) -> None:
        op = make(context)
        watch = RecordWatch(context, op)
        expected = CollectiveMismatch if calls else CollectiveTimeout
        try:
            if context.rank != odd or calls:
                op(values(context.rank, context.rank == odd))
                raise WrongResult(f"rank {context.rank} returned although rank {odd} made another call or none")
            op.target.synchronize()
        except (CollectiveTimeout, CollectiveMismatch) as error:
            if context.rank != odd:
                watch.require(error, expected, odd)
        finally:
            watch.stop()
            with contextlib.suppress(CollectiveError):
                op.close()

    for calls in (False, True):
        world().run(partial(rank_body, calls=calls))
