# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Why a layer runs as it does, as data: path, phases, bytes, padding, launches, refused paths, what is still to win."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from mori_gemm_ar.layout.geometry import lsa_geometry
from mori_gemm_ar.layout.machine import MI355X
from mori_gemm_ar.layout.problem import AllReduceProblem
from mori_gemm_ar.model import costs
from mori_gemm_ar.model.accuracy import HeldOut, held_out_error
from mori_gemm_ar.model.choice import OFFERED, Candidate, Cases, Choice, Refusal, best_of, choose
from mori_gemm_ar.model.constants import Constant, Constants
from mori_gemm_ar.model.modes import FUSED, Plan, even_rows, predict
from mori_gemm_ar.model.records import Records
from mori_gemm_ar.model.terms import Case, Layer, Mode, Tail, Transport, Wire
from mori_gemm_ar.model.tiles import TileGrid

GEMM_THREADS = 512  # eight waves of a workgroup
PULL_BLOCKS = 64  # workgroups of a pulled gather, the best measured grid
VISIBLE_US = 1e-9  # change of a time that means it depends on a constant
FIRST_STEP = 256  # rows between two points of a sweep, doubled until there are few enough
MOST_STEPS = 64
RESOLUTION = 128  # rows within which a sweep finds where the mode changes: the lowest tile


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """One kernel of a plan: what is launched, on how many workgroups, and what it does."""

    name: str
    grid: int
    block: int
    does: str


@dataclass(frozen=True, slots=True)
class Padding:
    """What the tiles and the even cut cost: shares of computed rows and of link bytes that nobody asked for."""

    rows_computed: int
    wasted_rows: float
    wasted_link_bytes: float


@dataclass(frozen=True, slots=True)
class Outlook:
    """A path that is not offered yet or needs a lossy wire, predicted; `assumes` names the unmeasured constants."""

    wire: Wire
    plan: Plan
    offered: bool
    expected_us: float
    pessimistic_us: float
    optimistic_us: float
    assumes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that `explain` prints. All times are predicted microseconds."""

    choice: Choice
    machine: str
    fingerprint: str
    held_out: HeldOut
    launches: tuple[LaunchLine, ...]
    padding: Padding
    outlook: tuple[Outlook, ...]
    assumed: tuple[Constant, ...]  # what the outlook's names stand for

    @property
    def layer(self) -> Layer:
        return self.choice.layer

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON. Keys of times end in `predicted_us`."""
        layer, chosen = self.layer, self.choice.chosen
        return {
            "kind": "explain",
            "layer": {
                "m": layer.m,
                "n": layer.n,
                "k": layer.k,
                "world": layer.world,
                "quant": layer.quant.value,
                "wire": layer.wire.value,
            },
            "machine": self.machine,
            "constants_sha256": self.fingerprint,
            "held_out_error_percent": {
                "without_fused_lsa": round(self.held_out.percent, 3),
                "all_modes": round(self.held_out.percent_all, 3),
            },
            "path": _candidate(chosen),
            "overridden": self.choice.overridden,
            "link_bytes": chosen.expected.link_bytes,
            "padding": {
                "rows_computed": self.padding.rows_computed,
                "wasted_rows_share": round(self.padding.wasted_rows, 6),
                "wasted_link_bytes_share": round(self.padding.wasted_link_bytes, 6),
            },
            "launches": [
                {"name": line.name, "grid": line.grid, "block": line.block, "does": line.does} for line in self.launches
            ],
            "paths": [_candidate(candidate) for candidate in self.choice.best],
            "refused": [{"path": refusal.path, "reason": refusal.reason} for refusal in self.choice.refused],
            "outlook": [_outlook(entry) for entry in self.outlook],
            "assumed": [_assumed(constant) for constant in self.assumed],
        }


def plan_dict(plan: Plan) -> dict[str, Any]:
    """A plan as JSON."""
    return {
        "label": plan.label,
        "mode": plan.mode.value,
        "tile": str(plan.tile),
        "chunks": plan.chunks,
        "gather": plan.gather.value,
        "tail": plan.tail.value,
        "stripe": plan.stripe,
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        **plan_dict(candidate.plan),
        "predicted_us": round(candidate.expected_us, 2),
        "pessimistic_predicted_us": round(candidate.pessimistic_us, 2),
        "optimistic_predicted_us": round(candidate.optimistic_us, 2),
        "phases": [
            {"name": phase.name, "predicted_us": round(phase.us, 2), "link_bytes": phase.link_bytes}
            for phase in candidate.phases
        ],
        "overhead_predicted_us": round(candidate.expected.overhead_us, 2),
    }


def _outlook(entry: Outlook) -> dict[str, Any]:
    return {
        "wire": entry.wire.value,
        **plan_dict(entry.plan),
        "offered": entry.offered,
        "predicted_us": round(entry.expected_us, 2),
        "pessimistic_predicted_us": round(entry.pessimistic_us, 2),
        "optimistic_predicted_us": round(entry.optimistic_us, 2),
        "assumes": list(entry.assumes),
    }


def _assumed(constant: Constant) -> dict[str, Any]:
    return {
        "name": constant.name,
        "value": constant.value,
        "pessimistic": constant.pessimistic,
        "optimistic": constant.optimistic,
        "unit": constant.unit,
        "meaning": constant.meaning,
        "why": constant.source,
    }


def explain(constants: Constants, records: Records, layer: Layer) -> Explanation:
    """The choice for a layer with everything behind it. Pure: the same on every rank and in every process."""
    choice = choose(constants, layer)
    promised = tuple(outlook(constants, layer))
    named = {name for entry in promised for name in entry.assumes}
    return Explanation(
        choice=choice,
        machine=constants.machine,
        fingerprint=constants.fingerprint,
        held_out=held_out_error(constants, records),
        launches=tuple(launches(layer, choice.chosen.plan)),
        padding=padding(layer, choice.chosen.plan),
        outlook=promised,
        assumed=tuple(constant for constant in constants.unmeasured if constant.name in named),
    )


def padding(layer: Layer, plan: Plan) -> Padding:
    """Rows and link bytes that the plan adds to what was asked for."""
    grid = TileGrid.of(layer, plan.tile)
    rows = grid.tiles // grid.columns * plan.tile.m
    even = layer.m / layer.world
    largest = grid.slices.slice_rows if plan.mode in FUSED else even_rows(layer)
    moved = min(largest, layer.m) if layer.world > 1 else 0
    return Padding(rows, 1.0 - grid.filled, moved / even - 1.0 if moved and even else 0.0)


def launches(layer: Layer, plan: Plan) -> Iterator[LaunchLine]:
    """Kernels of a plan in order."""
    grid = TileGrid.of(layer, plan.tile)
    does = {
        Mode.FUSED_SDMA: f"{plan.tile} tiles, then a put for each finished chunk of {plan.chunks}",
        Mode.FUSED_LSA: f"{plan.tile} tiles, stored into their owners' windows",
    }.get(plan.mode, f"{plan.tile} tiles")
    if grid.tiles:
        yield LaunchLine("gemm", grid.tiles, GEMM_THREADS, does)
    if plan.mode is Mode.GEMM_ONLY:
        return
    if plan.mode is Mode.SPLIT_LSA:
        config, trips, _ = costs.lsa_trips(layer.m, layer.n, layer.world)
        geometry = lsa_geometry(AllReduceProblem(layer.world, layer.m * layer.n, config.dtype), config, MI355X)
        stage = f"{config.stage.value}-stage all-reduce, {trips} trips"
        yield LaunchLine("allreduce", geometry.blocks, geometry.threads, stage)
        return
    first = {
        Mode.SPLIT_SDMA: ("scatter", "one put to each peer, drain, flags"),
        Mode.FUSED_SDMA: ("drain", "wait for the queues, flags"),
        Mode.FUSED_LSA: ("barrier", "flags of all ranks"),
    }[plan.mode]
    yield LaunchLine(first[0], 1, GEMM_THREADS, first[1])
    if plan.tail is not Tail.PHASED:
        yield LaunchLine("stream", MI355X.compute_units, GEMM_THREADS, "reduce and gather each chunk as it arrives")
        return
    yield LaunchLine("reduce", MI355X.compute_units, GEMM_THREADS, f"sum of {layer.world} slices")
    narrow = layer.wire is not Wire.BF16
    if narrow:
        yield LaunchLine("quantize", MI355X.compute_units, GEMM_THREADS, "narrow the own slice")
    if plan.gather is Transport.LSA:
        yield LaunchLine("pull", PULL_BLOCKS, GEMM_THREADS, "barrier, then load and widen the peers' slices")
        return
    yield LaunchLine("gather", 1, GEMM_THREADS, "one put to each peer, drain, flags")
    if narrow:
        yield LaunchLine("dequantize", MI355X.compute_units, GEMM_THREADS, "widen what has landed")


def outlook(constants: Constants, layer: Layer) -> Iterator[Outlook]:
    """Fused-sdma on every wire and with every tail: what is measured elsewhere, and what is a promise."""
    cases = Cases.of(constants)
    for wire in Wire:
        narrowed = replace(layer, wire=wire)
        for tail in Tail:
            best = best_of(cases, narrowed, Mode.FUSED_SDMA, tail)
            if isinstance(best, Refusal):
                continue
            yield Outlook(
                wire,
                best.plan,
                tail in OFFERED,
                best.expected_us,
                best.pessimistic_us,
                best.optimistic_us,
                tuple(assumptions(constants, narrowed, best.plan)),
            )


def assumptions(constants: Constants, layer: Layer, plan: Plan) -> Iterator[str]:
    """Names of the unmeasured constants that this plan's time depends on."""
    values = constants.at(Case.EXPECTED)
    base = predict(values, layer, plan).total_us
    for constant in constants.unmeasured:
        for case in (Case.PESSIMISTIC, Case.OPTIMISTIC):
            moved = replace(values, **{constant.name: constant.at(case)})
            if moved != values and abs(predict(moved, layer, plan).total_us - base) > VISIBLE_US:
                yield constant.name
                break


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One M of a sweep: the chosen path and the best time of each mode, predicted, pessimistic."""

    m: int
    mode: str
    chosen: str
    predicted_us: float
    modes: tuple[tuple[str, float], ...]


def sweep_rows(m_max: int) -> list[int]:
    """M values to look at: small ones, then even steps that meet the boundaries of tiles and waves."""
    step = FIRST_STEP
    while m_max // step > MOST_STEPS:
        step *= 2
    small = [m for m in (1, 8, 16, 32, 64, 128) if m < m_max]
    return sorted({*small, *range(step, m_max + 1, step), m_max})


def sweep(constants: Constants, layer: Layer, rows: Iterable[int] | None = None) -> list[SweepRow]:
    """The choice over M, up to the layer's own M, with further rows where the mode changes."""
    cases = {m: _sweep_row(constants, replace(layer, m=m)) for m in (sweep_rows(layer.m) if rows is None else rows)}
    if rows is None:
        for low, high in list(pairwise(sorted(cases))):
            while high - low > RESOLUTION and cases[low].mode != cases[high].mode:
                middle = (low + high) // 2 // RESOLUTION * RESOLUTION or (low + high) // 2
                if middle in (low, high):
                    break
                cases[middle] = _sweep_row(constants, replace(layer, m=middle))
                low, high = (middle, high) if cases[middle].mode == cases[low].mode else (low, middle)
    return [cases[m] for m in sorted(cases)]


def _sweep_row(constants: Constants, layer: Layer) -> SweepRow:
    choice = choose(constants, layer)
    modes = tuple((best.plan.mode.value, best.pessimistic_us) for best in choice.best)
    chosen = choice.chosen
    return SweepRow(layer.m, chosen.plan.mode.value, chosen.plan.label, chosen.expected_us, modes)


def crossovers(rows: Iterable[SweepRow]) -> list[tuple[int, str]]:
    """(M, path) wherever the mode changes from one row to the next."""
    changes: list[tuple[int, str]] = []
    for row in rows:
        if not changes or changes[-1][1] != row.mode:
            changes.append((row.m, row.mode))
    return changes
