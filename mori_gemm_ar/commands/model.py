# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""`model fit` and `model check`: calibrate the time model, and say how good it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from mori_gemm_ar.commands import plots
from mori_gemm_ar.commands.show import errors_as_exit, line, table, write_json, write_text
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.model.accuracy import Report, Row, check, mean_absolute, predicted_rows
from mori_gemm_ar.model.calibrate import StageResult, fit, fitted_constants
from mori_gemm_ar.model.constants import Confidence, Constants, dump, load
from mori_gemm_ar.model.records import Records, Role, load_records
from mori_gemm_ar.model.results import read_results, readings_of, records_of

app = typer.Typer(no_args_is_help=True, help="Calibrate the time model, or check it against published readings.")

JsonOption = Annotated[Path | None, typer.Option("--json", help="Write the outcome to this file.")]
PlotOption = Annotated[Path | None, typer.Option("--plot", help="Draw predicted against measured to this file.")]
FromOption = Annotated[
    Path | None, typer.Option("--from", help="Take RESULT_JSON rows of this folder or file, not the published ones.")
]
MachineOption = Annotated[Path | None, typer.Option("--machine", help="Constants file; the shipped one by default.")]
HOW = "least squares of rows of role fit in measurements.json"
HOW_OWN = "least squares of own RESULT_JSON rows"


@app.command("fit")
def fit_command(
    json: JsonOption = None, plot: PlotOption = None, source: FromOption = None, machine: MachineOption = None
) -> None:
    """Fit the constants to rows of role fit. --json writes a constants file that `create(machine=...)` takes."""
    with errors_as_exit():
        constants = load(machine)
        records = _records(source, constants)
        readings: Mapping[str, float] = {}
        if source is not None:
            constants, readings = _own(constants, source)
        _, results = fit(constants, records.rows)
        fitted = fitted_constants(constants, results, HOW if source is None else HOW_OWN)
        if not results and not readings:
            raise ConfigError(f"from={str(source)!r} must hold validated rows timed on a GPU; none of its rows is one")
        if readings:
            table("read directly", ("constant", "value"), [(name, f"{value:g}") for name, value in readings.items()])
        if source is not None:
            _show_excluded(records)
        _show_results(results, fitted)
        rows = predicted_rows(fitted, records)
        line(f"mean absolute error of {len(rows)} rows: {mean_absolute(rows):.2f} %")
        if plot is not None:
            plots.plot_rows(plot, rows)
        if json is not None:
            write_text(json, dump(fitted))
            line(f"constants written to {json}")


@app.command("check")
def check_command(
    json: JsonOption = None, plot: PlotOption = None, source: FromOption = None, machine: MachineOption = None
) -> None:
    """Predict every row and print predicted, measured, error and role. Exit 1 when a gate fails."""
    with errors_as_exit():
        constants = load(machine)
        records = _records(source, constants)
        report = check(constants, records, folds=source is None)
        if source is not None:
            report = replace(report, gates=())
        _show_rows(report.rows)
        _show_report(report, constants)
        if plot is not None:
            plots.plot_rows(plot, report.rows)
        if json is not None:
            write_json(json, report.to_dict())
        if not report.passed:
            raise typer.Exit(1)


def _records(source: Path | None, constants: Constants) -> Records:
    """Published rows, or a user's own."""
    if source is None:
        return load_records()
    return Records({"results": "own RESULT_JSON rows"}, {}, records_of(read_results(source), constants))


def _own(constants: Constants, source: Path) -> tuple[Constants, Mapping[str, float]]:
    """The machine under a name of its own, with what microbenchmarks read directly; and that."""
    rows = read_results(source)
    readings = readings_of(rows)
    units = {constant.name: constant.unit for constant in constants.constants}
    for name, (_, unit) in readings.items():
        if name not in units:
            raise ConfigError(f"constant={name!r} must be one of {', '.join(units)}; see docs/model.md")
        if units[name] != unit:
            raise ConfigError(f"constant={name}.unit={unit!r} must be {units[name]!r}; convert the value")
    values = {name: value for name, (value, _) in readings.items()}
    predicted = any(row.get("predicted") is True for row in rows)
    if predicted:
        line("these rows come from a stand-in of hwcheck: their times are predicted, and so is what is fitted to them")
    what = "predicted times of a stand-in" if predicted else "own RESULT_JSON rows"
    sources = (*constants.sources, ("results", f"{what}, counted in the order of their files"))
    machine = f"{constants.machine}, {'a stand-in, predicted' if predicted else 'own readings'}"
    own = replace(constants, machine=machine, sources=sources)
    return own.with_values(values, what if predicted else "own microbenchmarks", {}, Confidence.MEASURED), values


def _show_results(results: Sequence[StageResult], fitted: Constants) -> None:
    units = {constant.name: constant.unit for constant in fitted.constants}
    lines = []
    for result in results:
        for name, before, after in zip(result.stage.constants, result.before, result.after, strict=True):
            left = "kept, no row tells it apart" if name in result.undetermined else ""
            lines.append((name, f"{before:g}", f"{after:g}", units[name], result.stage.name, left))
    table("constants, least squares of relative errors", ("constant", "before", "after", "unit", "stage", ""), lines)
    freedom = [(r.stage.name, str(len(r.rows)), str(len(r.stage.constants)), str(r.freedom)) for r in results]
    table("degrees of freedom", ("stage", "rows", "constants", "rows less constants"), freedom)


def _show_excluded(records: Records) -> None:
    lines = [(record.id, record.mode, record.reason or "") for record in records.role(Role.EXCLUDED)]
    if lines:
        table("rows that do not calibrate", ("row", "mode", "reason"), lines, left=("mode", "reason"))


def _show_rows(rows: Sequence[Row]) -> None:
    lines = []
    for row in sorted(rows, key=lambda r: (r.record.series or "", r.record.role.value, r.record.id)):
        record = row.record
        what = record.mode if record.phase is None else f"{record.mode} {record.phase}"
        shape = f"[{record.m}, {record.n}] K={record.k or '-'} x{record.world}"
        extra = " ".join(
            text
            for text in (
                record.quant,
                record.wire,
                f"{record.chunks} chunks" if record.chunks else None,
                record.variant,
                "RACY: time only" if record.correct == "racy" else None,
            )
            if text
        )
        times = (f"{row.predicted:.1f}", f"{record.value:g}", f"{100 * row.error:+.1f} %")
        lines.append((record.where, what, shape, extra, *times, record.role.value, record.series or ""))
    columns = ("source:line", "what", "shape", "details", "predicted us", "measured us", "error", "role", "series")
    table("every row that is not excluded", columns, lines, left=("what", "shape", "details", "role", "series"))


def _show_report(report: Report, constants: Constants) -> None:
    series = [
        (
            name,
            role.value,
            str(len(rows)),
            f"{mean_absolute(rows):.2f} %",
            f"{max(abs(100 * r.error) for r in rows):.1f} %",
        )
        for name, role, rows in report.series()
    ]
    table("mean absolute error", ("series", "role", "rows", "mean", "largest"), series, left=("role",))
    if report.folds:
        folds = []
        for fold in report.folds:
            m, n, k, world = fold.shape
            error = f"{mean_absolute(fold.rows):.2f} %" if fold.rows else "-"
            skipped = f"{fold.skipped}: {', '.join(fold.undetermined)}" if fold.skipped else ""
            folds.append((f"[{m}, {n}] K={k or '-'} x{world}", str(len(fold.rows)), error, skipped))
        title = "leave one shape out: its fit rows, predicted by a fit without it"
        table(
            title, ("shape", "rows", "mean", "not predictable without it"), folds, left=("not predictable without it",)
        )
    if report.excluded:
        count = sum(number for _, number in report.excluded)
        reasons = [(reason, str(number)) for reason, number in report.excluded]
        table(f"{count} rows excluded", ("reason", "rows"), reasons)
    gates = [
        (gate.name, str(gate.count), f"{gate.percent:.2f} %", f"{gate.limit:g} %", "pass" if gate.passed else "FAIL")
        for gate in report.gates
    ]
    if gates:
        table(
            f"gates, constants of {constants.machine}", ("mean absolute error of", "rows", "is", "at most", ""), gates
        )
