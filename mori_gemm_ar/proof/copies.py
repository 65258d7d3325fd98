# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Pipelines of the all-reduce by copy engines: three kernels, engines that wait for the last legal moment.

Calls as for load and store. In a further scenario two ops of a rank, driven by two threads, put to the same queues at
the same time; in the last ones a rank stays away or makes another call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch

from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.emulator import EngineSettings
from mori_gemm_ar.emulator.adversary import DEFAULT_ADVERSARY, Adversary
from mori_gemm_ar.layout import DType, Wire
from mori_gemm_ar.layout.sdma import SdmaConfig, SdmaPhase, sdma_config
from mori_gemm_ar.proof.pipelines import Codes, ProvedKernel, watched_node
from mori_gemm_ar.proof.scenario import COLUMNS, TORCH, Calls, odd_one_out, run_calls, with_failures
from mori_gemm_ar.runtime import LocalWorld, RankContext

_PACK = 16
# Most packets wait until nothing else moves.
LAST_MOMENT = replace(DEFAULT_ADVERSARY, engine=0.6)
_FEW = 3  # ranks, up to which the reduce has nine workgroups


@dataclass(frozen=True, slots=True)
class CopyPipeline:
    """The all-reduce by copy engines of one world, type and wire. `races`: run it under the race detector."""

    name: str
    world: int
    dtype: DType = DType.BF16
    queues: int = 1
    races: bool = True
    wire: Wire = Wire.EXACT

    def configs(self) -> dict[SdmaPhase, SdmaConfig]:
        """Compile keys of the kernels."""
        return {phase: sdma_config(self.world, self.dtype, phase, self.wire) for phase in SdmaPhase}

    def kernels(self) -> tuple[ProvedKernel, ...]:
        """Scatter, reduce and gather."""
        return tuple(ProvedKernel.shipped(phase.value, config) for phase, config in self.configs().items())

    def sizes(self) -> tuple[int, ...]:
        """Elements of the calls: slices of two workgroups, of nine with a ragged tail, of less than one, one pack.

        In a large world the nine are the gather's, and the reduce has three. Rows: of two workgroups, nine, and one.
        """
        if self.wire.per_row:
            return tuple(rows * self.world * COLUMNS for rows in (11, 67, 1))
        per_pack, blocks = _PACK // self.dtype.nbytes, 8 if self.world <= _FEW else 2
        return (
            (512 + 9) * self.world * per_pack,
            (blocks * 512 + 70) * self.world * per_pack + 3,
            40 * per_pack + 1,
            per_pack,
        )

    def exercise(self, seed: int, codes: Codes, adversary: Adversary | None = LAST_MOMENT) -> None:
        """Run the scenarios; see `Pipeline`."""
        self._calls(seed, codes, adversary)
        if seed % 16 < 6:  # all seeds of a mutant; two ops take more than half of a run
            self._shared_queues(seed, codes, adversary)
        if with_failures(seed):
            self._failures(seed, codes, adversary)

    # ---- worlds and ops --------------------------------------------------------------------------------------
    def _world(self, seed: int, adversary: Adversary | None) -> LocalWorld:
        node = partial(watched_node, seed=seed, adversary=adversary, races=self.races)
        return LocalWorld(self.world, seed, node=node, engines=EngineSettings(seed=seed))

    def _planned(self, seed: int) -> Calls:
        return Calls(self.world, self.dtype, self.wire, seed, self.sizes())

    def _op(self, context: RankContext, codes: Codes, timeout_s: float) -> AllReduceOp:
        op = AllReduceOp.create(
            context,
            max(self.sizes()) * self.dtype.nbytes,
            timeout_s=timeout_s,
            dtypes=(TORCH[self.dtype],),
            transport="sdma",
            wire=self.wire,
            queues=self.queues,
        )
        # After the self-test, which would otherwise catch most mutants before the calls do.
        for phase, config in self.configs().items():
            op._codes[config] = codes(context.rank, phase.value, op._codes[config])
        return op

    # ---- scenarios -------------------------------------------------------------------------------------------
    def _calls(self, seed: int, codes: Codes, adversary: Adversary | None) -> None:
        make = partial(self._op, codes=codes, timeout_s=1.0)
        run_calls(self._world(seed, adversary), make, self._planned(seed))

    def _shared_queues(self, seed: int, codes: Codes, adversary: Adversary | None) -> None:
        """Two ops of each rank put to the same queues, from two threads; short calls, so that their puts meet.

        No host waits for an idle GPU between the calls, and bytes change owners from call to call.
        """
        short = self.sizes()[2]
        sizes = (short, short // COLUMNS * COLUMNS * 3) * 2
        mine, others = (replace(self._planned(seed), sizes=sizes, first=first) for first in (50, 100))

        def rank_body(context: RankContext) -> list[list[torch.Tensor]]:
            with self._op(context, codes, timeout_s=1.0) as first, self._op(context, codes, timeout_s=1.0) as second:
                second._require_window().queues = first._require_window().queues

                def other() -> list[torch.Tensor]:
                    second.bind()
                    return others.make(second, context.rank)

                thread = context.spawn(other)
                return [mine.make(first, context.rank), thread.join()]

        results = self._world(seed, adversary).run(rank_body)
        mine.check([first for first, _ in results])
        others.check([second for _, second in results])

    def _failures(self, seed: int, codes: Codes, adversary: Adversary | None) -> None:
        world, make = partial(self._world, seed, adversary), partial(self._op, codes=codes, timeout_s=0.01)
        odd_one_out(world, make, self._planned(seed).call)


COPIES = (
    *(CopyPipeline(f"sdma-w{world}", world) for world in (2, 3, 8)),
    *(CopyPipeline(f"sdma-{wire.value}-w3", 3, wire=wire) for wire in Wire if wire.lossy),
)
