# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Pipelines of the load/store all-reduce.

A scenario is at least three back-to-back calls with new data and a changed size, one of them over nine workgroups;
the caller overwrites its input as soon as a call returns. In further ones a rank stays away or makes another call, so
that the failure path runs too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.emulator.adversary import DEFAULT_ADVERSARY, Adversary
from mori_gemm_ar.layout import AllReduceConfig, DType, Stage, Wire
from mori_gemm_ar.proof.pipelines import Codes, ProvedKernel, watched_node
from mori_gemm_ar.proof.scenario import COLUMNS, TORCH, Calls, odd_one_out, run_calls, with_failures
from mori_gemm_ar.runtime import LocalWorld, RankContext

KERNEL = "all-reduce"
_PACK = 16


@dataclass(frozen=True, slots=True)
class AllReducePipeline:
    """The load/store all-reduce of one configuration. `races`: run it under the race detector."""

    name: str
    config: AllReduceConfig
    races: bool = True

    @property
    def world(self) -> int:
        """Ranks."""
        return self.config.world

    def kernels(self) -> tuple[ProvedKernel, ...]:
        """The one kernel."""
        return (ProvedKernel.shipped(KERNEL, self.config),)

    def sizes(self) -> tuple[int, ...]:
        """Elements of the calls: two workgroups, nine with a ragged tail, one, none."""
        config = self.config
        slices = config.world if config.stage is Stage.TWO else 1
        if config.wire.per_row:
            return tuple(rows * slices * COLUMNS for rows in (11, 67, 1))
        per_pack = _PACK // config.dtype.nbytes
        packs = 8 * config.threads + 70
        return (
            (config.threads + 9) * slices * per_pack,
            packs * slices * per_pack + 3,
            40 * per_pack + 1,
        )

    def exercise(self, seed: int, codes: Codes, adversary: Adversary | None = DEFAULT_ADVERSARY) -> None:
        """Run the scenarios; see `Pipeline`."""
        self._calls(seed, codes, adversary)
        if with_failures(seed):
            self._failures(seed, codes, adversary)

    # ---- scenarios -------------------------------------------------------------------------------------------
    def _world(self, seed: int, adversary: Adversary | None) -> LocalWorld:
        node = partial(watched_node, seed=seed, adversary=adversary, races=self.races)
        return LocalWorld(self.world, seed, node=node)

    def _planned(self, seed: int) -> Calls:
        return Calls(self.world, self.config.dtype, self.config.wire, seed, self.sizes())

    def _op(self, context: RankContext, codes: Codes, timeout_s: float) -> AllReduceOp:
        config = self.config
        op = AllReduceOp.create(
            context,
            max(self.sizes()) * config.dtype.nbytes,
            timeout_s=timeout_s,
            stage=config.stage,
            wire=config.wire,
            dtypes=(TORCH[config.dtype],),
        )
        # After the self-test, which would otherwise catch most mutants before the calls do.
        op._codes[config] = codes(context.rank, KERNEL, op._codes[config])
        return op

    def _calls(self, seed: int, codes: Codes, adversary: Adversary | None) -> None:
        make = partial(self._op, codes=codes, timeout_s=1.0)
        run_calls(self._world(seed, adversary), make, self._planned(seed))

    def _failures(self, seed: int, codes: Codes, adversary: Adversary | None) -> None:
        world, make = partial(self._world, seed, adversary), partial(self._op, codes=codes, timeout_s=0.01)
        odd_one_out(world, make, self._planned(seed).call)


def wire_pipeline(wire: Wire, world: int) -> AllReducePipeline:
    """The two-stage all-reduce with a lossy wire."""
    config = AllReduceConfig(world, DType.BF16, Stage.TWO, wire=wire)
    return AllReducePipeline(f"lsa-{wire.value}-w{world}", config)


ALL_REDUCES = (
    *(
        AllReducePipeline(f"lsa-{stage.value}stage-w{world}", AllReduceConfig(world, DType.BF16, stage))
        for world in (2, 3, 4, 8)
        for stage in Stage
    ),
    *(wire_pipeline(wire, 3) for wire in Wire if wire.lossy),
)
