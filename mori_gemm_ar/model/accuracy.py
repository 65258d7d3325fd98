# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""How good the model is: every row predicted, the errors by role, the gates, and leave-one-shape-out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mori_gemm_ar.model.calibrate import STAGES, Memo, fit
from mori_gemm_ar.model.constants import Constants
from mori_gemm_ar.model.records import Record, Records, Role
from mori_gemm_ar.model.replay import predict_record
from mori_gemm_ar.model.terms import Case, Mode

ABOVE_FLOOR = 512  # rows of an all-reduce from which its time is bytes, not floor
SENSITIVE = 1e-6  # relative change of a prediction that means it depends on a constant


@dataclass(frozen=True, slots=True)
class Row:
    """A reading and what the model says about it, microseconds."""

    record: Record
    predicted: float
    stages: tuple[str, ...]  # fit stages that it enters; empty: it is only compared

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted / self.record.value - 1.0


@dataclass(frozen=True, slots=True)
class Gate:
    """A mean absolute error over some rows, in percent, and what it may be."""

    name: str
    percent: float
    limit: float
    count: int

    @property
    def passed(self) -> bool:
        return self.count > 0 and self.percent <= self.limit


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Mean absolute error of the held-out end-to-end rows, percent: without and with fused-lsa."""

    percent: float
    count: int
    percent_all: float
    count_all: int

    def __str__(self) -> str:
        most = f"{self.percent:.2f} % over {self.count} published layers that were held out of the fit"
        return f"{most} ({self.percent_all:.2f} % over {self.count_all} with fused-lsa)"


@dataclass(frozen=True, slots=True)
class Fold:
    """One shape left out of the fit: errors of its rows, and how many rows lost their constants with it."""

    shape: tuple[int | None, int | None, int | None, int | None]
    rows: tuple[Row, ...]
    undetermined: tuple[str, ...]
    skipped: int


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that `model check` prints."""

    rows: tuple[Row, ...]
    gates: tuple[Gate, ...]
    folds: tuple[Fold, ...]
    excluded: tuple[tuple[str, int], ...]

    @property
    def passed(self) -> bool:
        return all(gate.passed for gate in self.gates)

    def series(self) -> Iterator[tuple[str, Role, list[Row]]]:
        """Rows by series and role, in a fixed order."""
        keys = sorted({(row.record.series or "", row.record.role.value) for row in self.rows})
        for series, role in keys:
            members = [row for row in self.rows if (row.record.series, row.record.role.value) == (series, role)]
            yield series, Role(role), members

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "kind": "model check",
            "passed": self.passed,
            "gates": [
                {
                    "name": g.name,
                    "mean_absolute_error_percent": round(g.percent, 3),
                    "limit_percent": g.limit,
                    "rows": g.count,
                    "passed": g.passed,
                }
                for g in self.gates
            ],
            "rows": [_row(row) for row in self.rows],
            "leave_one_shape_out": [
                {
                    "shape": dict(zip(("m", "n", "k", "world"), fold.shape, strict=True)),
                    "rows": [_row(row) for row in fold.rows],
                    "undetermined": list(fold.undetermined),
                    "skipped": fold.skipped,
                }
                for fold in self.folds
            ],
            "excluded": dict(self.excluded),
        }


def _row(row: Row) -> dict[str, Any]:
    record = row.record
    return {
        "id": record.id,
        "source": record.where,
        "series": record.series,
        "role": record.role.value,
        "mode": record.mode,
        "phase": record.phase,
        "m": record.m,
        "n": record.n,
        "k": record.k,
        "world": record.world,
        "quant": record.quant,
        "wire": record.wire,
        "chunks": record.chunks,
        "correct": record.correct,
        "state": record.state,
        "measured_us": record.value,
        "predicted_us": round(row.predicted, 2),
        "error_percent": round(100 * row.error, 2),
        "stages": list(row.stages),
    }


def mean_absolute(rows: Iterable[Row]) -> float:
    """Mean absolute relative error, percent; 0 for no rows."""
    errors = [abs(row.error) for row in rows]
    return 100 * sum(errors) / len(errors) if errors else 0.0


def predicted_rows(constants: Constants, records: Records) -> tuple[Row, ...]:
    """Every row that is not excluded, at the expected values."""
    values = constants.at(Case.EXPECTED)
    kept = records.role(Role.FIT, Role.HELD_OUT, Role.EXTERNAL)
    return tuple(Row(record, predict_record(values, record), stages_of(record)) for record in kept)


def stages_of(record: Record) -> tuple[str, ...]:
    """Stages of the fit that a row enters."""
    return tuple(stage.name for stage in STAGES if record.role is Role.FIT and stage.takes(record))


def _fused_lsa(row: Row) -> bool:
    return row.record.mode == Mode.FUSED_LSA.value


def _model_shape(row: Row, mode: str, series: str) -> bool:
    record = row.record
    shape = (record.m, record.n, record.k, record.world, record.quant, record.mode)
    return record.series == series and shape == (16384, 7168, 2048, 8, "blockscale", mode)


# Name, limit in percent, rows. The limits are the accuracy that the documentation promises.
GATES: tuple[tuple[str, float, Callable[[Row], bool]], ...] = (
    (
        "held-out end to end, without fused-lsa",
        1.6,
        lambda row: row.record.series == "end-to-end" and row.record.role is Role.HELD_OUT and not _fused_lsa(row),
    ),
    (
        "held-out end to end, all modes",
        3.5,
        lambda row: row.record.series == "end-to-end" and row.record.role is Role.HELD_OUT,
    ),
    ("external layers, bf16 wire", 2.1, lambda row: row.record.series == "external"),
    (
        "held-out all-reduces from 512 rows on",
        2.2,
        lambda row: (
            row.record.series == "all-reduce"
            and row.record.role is Role.HELD_OUT
            and (row.record.m or 0) >= ABOVE_FLOOR
        ),
    ),
    (
        "fused-sdma at [16384, 7168] K=2048, 8 ranks, blockscale",
        2.0,
        lambda row: _model_shape(row, "fused-sdma", "external"),
    ),
    (
        "the same with an fp8 gather, pulled",
        5.0,
        lambda row: (
            _model_shape(row, "fused-sdma", "external-fp8") and (row.record.source, row.record.line) == ("readme", 604)
        ),
    ),
)


def held_out_error(constants: Constants, records: Records) -> HeldOut:
    """The error that every table of predictions states."""
    kept = Records(records.sources, records.states, records.series("end-to-end"))
    rows = [row for row in predicted_rows(constants, kept) if row.record.role is Role.HELD_OUT]
    plain = [row for row in rows if not _fused_lsa(row)]
    return HeldOut(mean_absolute(plain), len(plain), mean_absolute(rows), len(rows))


def check(constants: Constants, records: Records, folds: bool = True) -> Report:
    """Predict every row, judge the gates, and leave each fitted shape out once."""
    rows = predicted_rows(constants, records)
    gates = []
    for name, limit, takes in GATES:
        members = [row for row in rows if takes(row)]
        gates.append(Gate(name, mean_absolute(members), limit, len(members)))
    left_out = tuple(leave_one_shape_out(constants, records.rows)) if folds else ()
    reasons: dict[str, int] = {}
    for record in records.role(Role.EXCLUDED):
        reason = (record.reason or "").partition(" but ")[0]
        reasons[reason] = reasons.get(reason, 0) + 1
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return Report(rows, tuple(gates), left_out, tuple(ordered))


def leave_one_shape_out(constants: Constants, rows: Sequence[Record]) -> Iterator[Fold]:
    """Fit without each shape in turn and predict its fit rows. A row whose constants went with it is skipped."""
    used = [row for row in rows if row.role is Role.FIT and stages_of(row)]
    memo: Memo = {}
    present = [stage for stage in STAGES if any(stage.takes(row) for row in used)]
    for shape in sorted({row.shape for row in used}, key=lambda s: tuple(x or 0 for x in s)):
        values, results = fit(constants, [row for row in used if row.shape != shape], memo=memo)
        fitted = {result.stage.name for result in results}
        lost = [name for stage in present if stage.name not in fitted for name in stage.constants]
        lost.extend(name for result in results for name in result.undetermined)
        judged, skipped = [], 0
        for record in used:
            if record.shape != shape:
                continue
            base = predict_record(values, record)
            moved = [replace(values, **{name: getattr(values, name) * 1.01 + 1e-3}) for name in lost]
            if any(abs(predict_record(other, record) / base - 1.0) > SENSITIVE for other in moved):
                skipped += 1
            else:
                judged.append(Row(record, base, stages_of(record)))
        yield Fold(shape, tuple(judged), tuple(sorted(lost)), skipped)
