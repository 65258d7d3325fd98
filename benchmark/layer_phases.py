# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Where a layer's time goes: kernels and their grids, predicted phases, and on a GPU the time of each launch."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, cast

from mori_gemm_ar.layout import GemmConfig, Recipe
from mori_gemm_ar.layout.sdma import Transport
from mori_gemm_ar.layout.stream import StreamPhase
from mori_gemm_ar.model import Case as Values
from mori_gemm_ar.model import Layer, Mode, Plan, Quant, Tail, Tile, predict, reason_not_plan
from mori_gemm_ar.model import Transport as ModelTransport
from mori_gemm_ar.model.tiles import TILES
from mori_gemm_ar.plan import LayerPlan, LayerSpec, constants, model_layer

if TYPE_CHECKING:
    import torch

    from mori_gemm_ar.op import GemmAllReduceOp
    from mori_gemm_ar.runtime import Pipeline, World

WARMUP, SAMPLES = 10, 50  # of each column
_PUSHED, _PULLED = ("reduce, put, meet", "copy out"), ("meet", "reduce", "pull")


# ---- what is launched ----------------------------------------------------------------------------------------


def pipeline_of(op: GemmAllReduceOp, m: int, operands: Sequence[torch.Tensor]) -> Pipeline:
    """The launches of the next call with stand-ins for its operands, as the op prepares them."""
    assert op._launches is not None, "create() made it"
    sizes = [tensor.numel() * tensor.element_size() for tensor in operands]
    return op._launches.template(op.plan(m), op._next, op._budget, sizes, foreign=False)


def phase_names(plan: LayerPlan, launches: int) -> tuple[str, ...]:
    """What each launch of a plan does, in order; those that the time model knows have its names."""
    if plan.mode is Mode.GEMM_ONLY:
        names: tuple[str, ...] = ("gemm",)
    elif plan.mode is Mode.SPLIT_LSA:
        names = ("gemm", "all-reduce")
    elif plan.tail is Tail.STREAMED:
        names = ("gemm", *(phase.value for phase in StreamPhase), "copy out")
    elif plan.gather is Transport.LSA:
        names = ("gemm", *_PULLED)
    else:
        names = ("gemm", "scatter" if plan.fused is None else "drain", *_PUSHED)
    return names[:launches]


def kernels_of(plan: LayerPlan, pipeline: Pipeline) -> list[dict[str, Any]]:
    """Each launch: what it does, its kernel and its grid."""
    names = phase_names(plan, len(pipeline.launches))
    return [
        {"phase": name, "kernel": launch.name, "blocks": launch.grid[0], "threads": launch.block[0]}
        for name, launch in zip(names, pipeline.launches, strict=True)
    ]


# ---- predicted -----------------------------------------------------------------------------------------------


def predicted(spec: LayerSpec, plan: LayerPlan) -> dict[str, Any]:
    """What the model says of this plan on MI355X; a reason where it has no formula. Nothing here is measured."""
    if not plan.m:
        return {"reason": "no rows, no launch"}
    layer, asked = model_layer(spec, plan.m), _model_plan(spec.recipe, plan)
    reason = reason_not_plan(layer, asked)
    return {"reason": reason} if reason is not None else _prediction(layer, asked)


def predicted_gemm(m: int, n: int, k: int, recipe: Recipe, config: Any) -> dict[str, Any]:
    """The same of the product alone."""
    if not m:
        return {"reason": "no rows, no launch"}
    return _prediction(Layer(m, n, k, 1, Quant(recipe.value)), Plan(Mode.GEMM_ONLY, _tile(recipe, config)))


def _prediction(layer: Layer, plan: Plan) -> dict[str, Any]:
    found = predict(constants().at(Values.EXPECTED), layer, plan)
    return {
        "predicted_us": round(found.total_us, 2),
        "phases_predicted_us": {phase.name: round(phase.us, 2) for phase in found.phases},
        "graph_overhead_predicted_us": round(found.overhead_us, 2),
        "link_bytes": found.link_bytes,
        "machine": constants().machine,
    }


def _model_plan(recipe: Recipe, plan: LayerPlan) -> Plan:
    gather = ModelTransport.LSA if plan.gather is Transport.LSA else ModelTransport.SDMA
    stripe = plan.fused.stripe if plan.fused is not None else None
    return Plan(plan.mode, _tile(recipe, plan.gemm), plan.chunks, gather, plan.tail, stripe)


def _tile(recipe: Recipe, config: Any) -> Tile:
    # The model has no formula for few rows: the lowest tile is nearest.
    return Tile(config.tile.m, config.tile.n) if isinstance(config, GemmConfig) else TILES[Quant(recipe.value)][-1]


# ---- timed on a GPU ------------------------------------------------------------------------------------------


class Clock(Protocol):
    """Marks in the order of a GPU's work."""

    def mark(self) -> Any:
        """A mark behind everything queued so far."""

    def finish(self) -> None:
        """Wait for everything queued."""

    def us(self, first: Any, last: Any) -> float:
        """Microseconds between two marks, after `finish`."""


class HipClock:
    """Events of torch's current stream."""

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda  # ROCm builds of torch keep the name

    def mark(self) -> Any:
        """An event, recorded."""
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def finish(self) -> None:
        """Wait for the device."""
        self._cuda.synchronize()

    def us(self, first: Any, last: Any) -> float:
        """Between two events."""
        return float(first.elapsed_time(last)) * 1e3


@dataclass(frozen=True, slots=True)
class Timing:
    """Samples of all ranks, equal on all of them: [sample][rank][step] microseconds."""

    samples: tuple[tuple[tuple[float, ...], ...], ...]

    @property
    def slowest(self) -> list[float]:
        """Of each sample, the time of its slowest rank."""
        return [max(sum(steps) for steps in sample) for sample in self.samples]

    @property
    def critical_rank(self) -> int:
        """The rank that was slowest most often; the lowest of equals."""
        totals = [[sum(steps) for steps in sample] for sample in self.samples]
        return statistics.mode(sorted(sample.index(max(sample)) for sample in totals))

    def column(self) -> dict[str, float]:
        """p50 and p95 of the slowest rank."""
        times = self.slowest
        p95 = statistics.quantiles(times, n=20, method="inclusive")[-1] if len(times) > 1 else times[0]
        return {"p50": statistics.median(times), "p95": p95}

    def steps(self, names: Sequence[str]) -> dict[str, float]:
        """Median of each step's slowest rank."""
        return {
            name: statistics.median(max(steps[step] for steps in sample) for sample in self.samples)
            for step, name in enumerate(names)
        }


def timed(
    world: World, clock: Clock, steps: Sequence[Callable[[], object]], warmup: int = WARMUP, samples: int = SAMPLES
) -> Timing:
    """Collective: time `steps`, which together make one call, over and over.

    Before each timed call goes an untimed one: it meets all ranks on the device, so what follows starts together.
    """
    own = []
    for sample in range(warmup + samples):
        world.exchange("sample", None)
        for step in steps:
            step()
        marks = [clock.mark()]
        for step in steps:
            step()
            marks.append(clock.mark())
        clock.finish()
        if sample >= warmup:
            own.append(tuple(clock.us(first, last) for first, last in pairwise(marks)))
    ranks = cast("list[list[tuple[float, ...]]]", world.exchange("samples", own))
    return Timing(tuple(zip(*ranks, strict=True)))


def single_launches(op: GemmAllReduceOp, m: int, operands: Sequence[torch.Tensor]) -> list[Callable[[], object]]:
    """The launches of a call as steps, to be made in order on all ranks. Each repetition writes `op.output(m)`."""
    from mori_gemm_ar.runtime import Pipeline

    whole, addresses = pipeline_of(op, m, operands), [tensor.data_ptr() for tensor in operands]
    prepared = [op.target.prepare(Pipeline(whole.name, (launch,), whole.buffers)) for launch in whole.launches]
    return [partial(one.run, addresses) for one in prepared]
