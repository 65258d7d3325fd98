# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Every pipeline that is proved, by name, and its clean seeds. A new kind adds a family here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.op import Tail
from mori_gemm_ar.proof.all_reduce import ALL_REDUCES
from mori_gemm_ar.proof.copies import COPIES
from mori_gemm_ar.proof.gemm import GEMMS, QUANTIZERS
from mori_gemm_ar.proof.layers import LAYERS
from mori_gemm_ar.proof.pipelines import Pipeline


@dataclass(frozen=True, slots=True)
class Family:
    """Pipelines of one kind. `spread`: clean seeds of tier ci, over all of them; `each`: of tier full, for each.

    share: of the spread seeds, by pipeline, where the runs of some take much longer; equal shares without it.
    """

    name: str
    pipelines: tuple[Pipeline, ...]
    spread: int
    each: int
    share: tuple[int, ...] = ()


_COPY_SEEDS = tuple(164 if p.world == 2 else 3 if p.world == 8 else 12 if not p.wire.lossy else 7 for p in COPIES)
FEW_SEEDS = frozenset(p.name for p in LAYERS if p.tail is Tail.STREAMED or p.wire.both)  # in tier ci, and no mutants
_LAYER_SEEDS = tuple(
    (2 if p.world == 2 else 1) if p.name in FEW_SEEDS else 20 if p.world == 2 else 3 if p.world == 3 else 2
    for p in LAYERS
)
# Smaller worlds stand for the others, whose mutants take several times as long, and exact wires for lossy ones. The
# fused op's mutants take CI past its time.
FULL_ONLY = frozenset(
    [p.name for p in COPIES if p.world > 2]
    + [p.name for p in ALL_REDUCES if p.world > 4 or p.config.wire.lossy]
    + [p.name for p in LAYERS]
)
FAMILIES = (
    Family("lsa", ALL_REDUCES, spread=200, each=200),
    Family("sdma", COPIES, spread=200, each=200, share=_COPY_SEEDS),
    Family("gemm", (*GEMMS, *QUANTIZERS), spread=60, each=50),
    Family("layers", LAYERS, spread=sum(_LAYER_SEEDS), each=200, share=_LAYER_SEEDS),
)
PIPELINES: tuple[Pipeline, ...] = tuple(pipeline for family in FAMILIES for pipeline in family.pipelines)


def pipeline_named(name: str) -> Pipeline:
    """The pipeline called `name`."""
    for pipeline in PIPELINES:
        if pipeline.name == name:
            return pipeline
    raise ConfigError(f"pipeline={name!r} must be one of {[p.name for p in PIPELINES]}")


def pipelines_named(name: str) -> tuple[Pipeline, ...]:
    """The pipelines of a family, or the one pipeline of that name."""
    for family in FAMILIES:
        if family.name == name:
            return family.pipelines
    return (pipeline_named(name),)


def clean_seeds(pipelines: Sequence[Pipeline], *, full: bool, seeds: int = 0) -> dict[str, range]:
    """Clean seeds of each pipeline, by its name: a family's seeds are spread over those that are asked for, or in full
    given to each. `seeds`: as many instead of the family's own."""
    plan: dict[str, range] = {}
    for family in FAMILIES:
        members = [pipeline.name for pipeline in pipelines if pipeline in family.pipelines]
        if full:
            plan |= {name: range(seeds or family.each) for name in members}
        elif family.share and not seeds:
            parts = zip(family.pipelines, pairwise(accumulate(family.share, initial=0)), strict=True)
            plan |= {pipeline.name: range(*ends) for pipeline, ends in parts if pipeline.name in members}
        else:
            count = seeds or family.spread
            plan |= {name: range(number, count, len(members)) for number, name in enumerate(members)}
    return plan
