# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""`explain`: which path a layer takes, why not another one, and what it would take, predicted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from mori_gemm_ar.commands import plots
from mori_gemm_ar.commands.show import errors_as_exit, line, table, write_json
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.model.constants import Constants, load
from mori_gemm_ar.model.explanation import Explanation, SweepRow, crossovers, sweep
from mori_gemm_ar.model.explanation import explain as explain_layer
from mori_gemm_ar.model.modes import timeline
from mori_gemm_ar.model.records import load_records
from mori_gemm_ar.model.terms import Case, Layer, Quant, Wire
from mori_gemm_ar.model.trace import perfetto

BAR = 40  # characters of the longest bar of a sweep


def explain(
    m: Annotated[int, typer.Option(help="Rows of the output, all ranks together.")],
    n: Annotated[int, typer.Option(help="Columns of the output.")],
    k: Annotated[int, typer.Option(help="K of one rank.")],
    world: Annotated[int, typer.Option(help="Ranks, 1 to 8.")],
    quant: Annotated[Quant, typer.Option(help="Scaling of the operands.")],
    wire: Annotated[Wire, typer.Option(help="What crosses the links; narrow wires are lossy.")] = Wire.BF16,
    machine: Annotated[Path | None, typer.Option("--machine", help="Constants file; default: shipped.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write everything to this file.")] = None,
    trace: Annotated[
        Path | None, typer.Option("--timeline", help="Draw the path: .json for Perfetto, or .png, .svg, .pdf.")
    ] = None,
    sweep_m: Annotated[bool, typer.Option("--sweep", help="Show the choice over M, up to --m.")] = False,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the sweep to this file.")] = None,
) -> None:
    """The path that a layer takes, its phases, bytes, launches and rivals. Every time is predicted."""
    with errors_as_exit():
        if plot is not None and not sweep_m:
            raise ConfigError("plot must come with --sweep; a single layer is drawn with --timeline")
        constants, layer = load(machine), Layer(m, n, k, world, quant, wire)
        explanation = explain_layer(constants, load_records(), layer)
        document = explanation.to_dict()
        _show(explanation)
        if sweep_m:
            rows = sweep(constants, layer)
            _show_sweep(rows, layer)
            document["sweep"] = [
                {
                    "m": row.m,
                    "path": row.chosen,
                    "predicted_us": round(row.predicted_us, 2),
                    "modes_predicted_us": {name: round(us, 2) for name, us in row.modes},
                }
                for row in rows
            ]
            if plot is not None:
                plots.plot_sweep(plot, rows, f"N={n} K={k}, {world} ranks, {quant.value}, {wire.value} wire: predicted")
        if trace is not None:
            _write_timeline(trace, constants, explanation)
        if json is not None:
            write_json(json, document)


def _write_timeline(path: Path, constants: Constants, explanation: Explanation) -> None:
    plan = explanation.choice.chosen.plan
    spans = timeline(constants.at(Case.EXPECTED), explanation.layer, plan)
    if path.suffix == ".json":
        write_json(path, perfetto(spans, explanation.layer, plan))
    else:
        plots.plot_timeline(path, spans, f"{_title(explanation.layer)}: {plan.label}, predicted")


def _title(layer: Layer) -> str:
    ranks = "1 rank" if layer.world == 1 else f"{layer.world} ranks"
    return f"[{layer.m}, {layer.n}] K={layer.k}, {ranks}, {layer.quant.value}, {layer.wire.value} wire"


def _show(explanation: Explanation) -> None:
    choice, chosen = explanation.choice, explanation.choice.chosen
    line(_title(explanation.layer))
    line(f"path: {chosen.plan.label}, tiles of {chosen.plan.tile}{', set by the table' if choice.overridden else ''}")
    line(f"All times are predicted, none was measured here. Error of the model: {explanation.held_out}.")
    rows = [(p.name, f"{p.us:.1f}", f"{p.link_bytes / 1e6:.2f}" if p.link_bytes else "-") for p in chosen.phases]
    rows.append(("graph replay", f"{chosen.expected.overhead_us:.1f}", "-"))
    total = chosen.expected
    rows.append(("total", f"{total.total_us:.1f}", f"{total.link_bytes / 1e6:.2f}"))
    table("phases", ("phase", "predicted us", "MB per link"), rows)
    padding = explanation.padding
    line(
        f"padding: {padding.rows_computed} rows computed, {100 * padding.wasted_rows:.1f} % for nothing; "
        f"{100 * padding.wasted_link_bytes:.1f} % more bytes on the busiest link than an even cut"
    )
    launches = [(entry.name, str(entry.grid), str(entry.block), entry.does) for entry in explanation.launches]
    table("launches", ("kernel", "workgroups", "threads", "does"), launches, left=("does",))
    paths = [
        (c.plan.label, str(c.plan.tile), f"{c.expected_us:.1f}", f"{c.pessimistic_us:.1f}", f"{c.optimistic_us:.1f}")
        for c in choice.best
    ]
    times = ("predicted us", "pessimistic", "optimistic")
    table("best plan of each mode; choices take the pessimistic column", ("path", "tile", *times), paths)
    refused = [(refusal.path, refusal.reason) for refusal in choice.refused]
    table("not taken", ("path", "reason"), refused, left=("reason",))
    _show_outlook(explanation, times)


def _show_outlook(explanation: Explanation, times: tuple[str, str, str]) -> None:
    rows = []
    for entry in explanation.outlook:
        label = entry.plan.label if entry.offered else f"{entry.plan.label} (not offered)"
        us = (f"{entry.expected_us:.1f}", f"{entry.pessimistic_us:.1f}", f"{entry.optimistic_us:.1f}")
        rows.append((entry.wire.value, label, *us, ", ".join(entry.assumes)))
    if rows:
        title = "what wires and tails would bring; fp8 wires are lossy"
        table(title, ("wire", "path", *times, "assumes"), rows, left=("path", "assumes"))
    assumed = [
        (c.name, f"{c.value:g}", f"{c.pessimistic:g}", f"{c.optimistic:g}", c.unit, f"{c.meaning}; {c.source}")
        for c in explanation.assumed
    ]
    if assumed:
        columns = ("constant", "taken", "at worst", "at best", "unit", "meaning; why this range")
        table("what nobody measured", columns, assumed, left=("unit", "meaning; why this range"))


def _show_sweep(rows: Sequence[SweepRow], layer: Layer) -> None:
    lines = []
    for row in rows:
        split = min(us for name, us in row.modes if not name.startswith("fused"))
        best = min(us for _, us in row.modes)
        bar = "#" * round(BAR * best / split)
        lines.append((str(row.m), row.chosen, f"{row.predicted_us:.1f}", f"{split:.1f}", f"{best / split:.3f}", bar))
    columns = ("M", "path", "predicted us", "best split us", "ratio", "against split")
    table("over M, all predicted", columns, lines, left=("path", "against split"))
    for m, mode in crossovers(rows):
        line(f"from M={m} on: {mode}" if layer.world > 1 else f"M={m}: {mode}")
