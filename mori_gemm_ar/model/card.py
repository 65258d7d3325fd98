# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The benchmark card as data: one row for each mode and baseline, measured only where a verified row of it exists.

A measured time needs a row that was validated, timed on a GPU, and agrees with the card in shape and with the other
rows in the state of the software. Everything else is predicted, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from mori_gemm_ar.model import costs
from mori_gemm_ar.model.accuracy import HeldOut
from mori_gemm_ar.model.choice import OFFERED, Cases, Refusal, best_of
from mori_gemm_ar.model.constants import Constants
from mori_gemm_ar.model.modes import Plan, predict
from mori_gemm_ar.model.results import ALLREDUCE, BASELINE, EMULATED, state_of, transport_of, wire_of
from mori_gemm_ar.model.terms import Case, Layer, Mode, Wire
from mori_gemm_ar.model.tiles import TILES
from mori_gemm_ar.model.values import Values

ALONE = "all-reduce alone"


class Status(Enum):
    """What stands behind a row."""

    MEASURED = "measured"  # verified and timed on a GPU
    VERIFIED = "verified"  # right numbers, no time of a GPU
    PREDICTED = "predicted"  # nothing was run
    REFUSED = "refused"  # a row was there but may not be compared


@dataclass(frozen=True, slots=True)
class CardRow:
    """One line of the card. `measured_us` is there exactly for MEASURED; `predicted_us` is None without a formula."""

    name: str
    wire: str
    status: Status
    predicted_us: float | None
    measured_us: float | None = None
    reason: str = ""
    rel_l2: float | None = None

    @property
    def us(self) -> float | None:
        return self.measured_us if self.measured_us is not None else self.predicted_us

    @property
    def cell(self) -> str:
        """The time cell: a bare number is measured, everything else carries its label."""
        if self.status is Status.REFUSED:
            return "-"
        if self.measured_us is not None:
            return f"{self.measured_us:.1f}"
        return "-" if self.predicted_us is None else f"{self.predicted_us:.1f} (predicted)"


@dataclass(frozen=True, slots=True)
class Card:
    """All rows of one layer."""

    layer: Layer
    machine: str
    held_out: HeldOut
    state: str
    rows: tuple[CardRow, ...]

    @property
    def header(self) -> str:
        layer = self.layer
        shape = f"[{layer.m}, {layer.n}] K={layer.k}, {layer.world} ranks, {layer.quant.value}"
        measured = sum(row.status is Status.MEASURED for row in self.rows)
        times = f"{measured} of {len(self.rows)} times measured, the others predicted for {self.machine}"
        return f"{shape}. {times}; model error {self.held_out}."

    def to_markdown(self) -> str:
        """A table with the header above it."""
        base = next((row.us for row in self.rows if row.name == Mode.SPLIT_SDMA.value and row.wire == "bf16"), None)
        lines = [f"**{self.header}**", "", "| mode | wire | us | against split-sdma | status | relL2 | note |"]
        lines.append("|---|---|---:|---:|---|---:|---|")
        for row in self.rows:
            whole = row.status is not Status.REFUSED and not row.name.startswith(ALONE)
            ratio = f"{row.us / base - 1.0:+.1%}" if whole and row.us is not None and base is not None else "-"
            error = "-" if row.rel_l2 is None else f"{row.rel_l2:.2e}"
            cells = (row.name, row.wire, row.cell, ratio, row.status.value, error, row.reason)
            lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        layer = self.layer
        return {
            "kind": "card",
            "layer": {
                "m": layer.m,
                "n": layer.n,
                "k": layer.k,
                "world": layer.world,
                "quant": layer.quant.value,
            },
            "machine": self.machine,
            "state": json.loads(self.state) if self.state else None,
            "header": self.header,
            "held_out_error_percent": round(self.held_out.percent, 3),
            "rows": [
                {
                    "name": row.name,
                    "wire": row.wire,
                    "status": row.status.value,
                    "predicted_us": None if row.predicted_us is None else round(row.predicted_us, 2),
                    "measured_us": row.measured_us,
                    "rel_l2": row.rel_l2,
                    "reason": row.reason,
                }
                for row in self.rows
            ],
        }


def predicted_rows(constants: Constants, layer: Layer) -> Iterator[CardRow]:
    """Every mode on every wire that it has, the all-reduce alone, and baselines of other libraries with a formula."""
    cases = Cases.of(constants)
    modes = (Mode.GEMM_ONLY,) if layer.world == 1 else tuple(mode for mode in Mode if mode is not Mode.GEMM_ONLY)
    for wire in Wire if layer.world > 1 else (Wire.BF16,):
        for mode in modes:
            best = best_of(cases, replace(layer, wire=wire), mode, OFFERED[0])
            if isinstance(best, Refusal):
                continue
            yield CardRow(mode.value, wire.value, Status.PREDICTED, best.expected_us, reason=best.plan.label)
    if layer.world > 1:
        yield from _parts(constants.at(Case.EXPECTED), layer)


def _parts(v: Values, layer: Layer) -> Iterator[CardRow]:
    """All-reduces alone, and a GEMM of ours before the all-reduces of others."""
    alone = predict(v, replace(layer, world=1, wire=Wire.BF16), Plan(Mode.GEMM_ONLY, TILES[layer.quant][0]))
    gemm = sum(phase.us for phase in alone.phases)
    m, n, world = layer.m, layer.n, layer.world
    parts = (
        (allreduce_name("lsa"), costs.lsa_allreduce_us(v, m, n, world), "predicted: not run here"),
        (allreduce_name("sdma"), costs.sdma_allreduce_us(v, m, n, world), "predicted: not run here"),
        ("our GEMM + aiter all-reduce", gemm + costs.aiter_allreduce_us(v, m, n, world), "predicted: not run here"),
        ("our GEMM + RCCL all-reduce", gemm + costs.rccl_allreduce_us(v, m, n, world), "predicted from one reading"),
    )
    for name, us, reason in parts:
        yield CardRow(name, Wire.BF16.value, Status.PREDICTED, us, reason=reason)


def allreduce_name(transport: str) -> str:
    """Row of an all-reduce without a GEMM."""
    return f"{ALONE}, {transport}"


def row_name(result: Mapping[str, Any]) -> str:
    """Row of the card that a RESULT_JSON row belongs to."""
    if result.get("benchmark") in (ALLREDUCE, BASELINE):
        return allreduce_name(transport_of(result))
    return str(result.get("mode"))


def reason_not_comparable(result: Mapping[str, Any], layer: Layer, state: str) -> str | None:
    """Why a RESULT_JSON row may not stand on the card of a layer. Shapes must agree where there is a time."""
    if result.get("validated") is not True:
        failure = result.get("failure") or result.get("reason") or "an unverified row is no result"
        return f"validated={result.get('validated')!r} must be true; {failure}"
    if state_of(result) != state:
        return f"software={state_of(result)} must be {state}; rows of two states are not compared"
    if _time(result) is None:
        return None
    world = result.get("world_size", result.get("world"))
    shape: list[tuple[str, Any, Any]] = [
        ("m", result.get("m"), layer.m),
        ("n", result.get("n"), layer.n),
        ("world", world, layer.world),
    ]
    if result.get("benchmark") not in (ALLREDUCE, BASELINE):
        shape += [("k", result.get("k"), layer.k), ("quant", result.get("quant"), layer.quant.value)]
    for name, have, want in shape:
        if have != want:
            return f"{name}={have!r} must be {want!r}, the card's; run it for this layer"
    return None


def _time(result: Mapping[str, Any]) -> float | None:
    time = result.get("time_us")
    if result.get("device") == EMULATED or isinstance(time, bool) or not isinstance(time, int | float):
        return None
    return float(time)


def card(
    constants: Constants, held_out: HeldOut, layer: Layer, results: Iterable[Mapping[str, Any]], state: str
) -> Card:
    """Predicted rows, replaced by results that may stand on the card; the others are listed as refused.

    A row whose shape differs but which was verified in this state keeps its prediction and counts as verified.
    """
    rows = list(predicted_rows(constants, layer))
    for result in results:
        rows = _with_result(rows, result, layer, state)
    return Card(layer, constants.machine, held_out, state, tuple(rows))


def _with_result(rows: list[CardRow], result: Mapping[str, Any], layer: Layer, state: str) -> list[CardRow]:
    name, wire = row_name(result), wire_of(result) or Wire.BF16.value
    reason = reason_not_comparable(result, layer, state)
    position = next((i for i, row in enumerate(rows) if (row.name, row.wire) == (name, wire)), None)
    rel_l2 = result.get("rel_l2")
    base = rows[position] if position is not None else CardRow(name, wire, Status.PREDICTED, None)
    if reason is not None:
        return [*rows, replace(base, status=Status.REFUSED, predicted_us=None, reason=reason, rel_l2=rel_l2)]
    time = _time(result)
    ranks = result.get("world_size", result.get("world"))
    shape = f"[{result.get('m')}, {result.get('n')}] on {ranks} ranks ({result.get('device')})"
    note = f"verified at {shape}" if time is None else "verified and timed"
    status = Status.VERIFIED if time is None else Status.MEASURED
    new = replace(base, status=status, measured_us=time, reason=note, rel_l2=rel_l2)
    return [*rows, new] if position is None else [*rows[:position], new, *rows[position + 1 :]]
