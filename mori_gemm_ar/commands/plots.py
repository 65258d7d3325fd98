# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Pictures of predictions. matplotlib is loaded when one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mori_gemm_ar.errors import ConfigError, MissingDependencyError
from mori_gemm_ar.model.accuracy import Row
from mori_gemm_ar.model.explanation import SweepRow
from mori_gemm_ar.model.stream import Span, track_order

DPI = 130
ROLE_COLOURS = {"fit": "tab:gray", "held_out": "tab:blue", "external": "tab:orange"}
SPAN_COLOURS = {
    "gemm": "tab:green",
    "scatter": "tab:blue",
    "gather": "tab:orange",
    "pull": "tab:orange",
    "reduce": "tab:red",
    "all-reduce": "tab:blue",
}


def _figure(path: Path, width: float, height: float) -> tuple[Any, Any]:
    """(figure, axes) of a picture file; MissingDependencyError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise MissingDependencyError(
            f"matplotlib must be installed for {path.name!r}; pip install 'mori_gemm_ar[plot]', or write .json"
        ) from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path, dpi=DPI)
    except (OSError, ValueError) as error:
        raise ConfigError(f"plot={str(path)!r} must be a writable .png, .svg or .pdf ({error})") from None


def plot_rows(path: Path, rows: Sequence[Row]) -> None:
    """Relative error of every row over its measured time, a colour for each role."""
    figure, axes = _figure(path, 9, 5)
    for role, colour in ROLE_COLOURS.items():
        members = [row for row in rows if row.record.role.value == role]
        times, errors = [row.record.value for row in members], [100 * row.error for row in members]
        axes.scatter(times, errors, s=14, color=colour, label=f"{role} ({len(members)})")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(xscale="log", xlabel="measured, us", ylabel="predicted over measured, %", title="time model, MI355X")
    axes.legend()
    _save(figure, path)


def plot_timeline(path: Path, spans: Sequence[Span], title: str) -> None:
    """Bars of GEMM, links and local work over predicted time."""
    tracks = track_order(list(spans))
    figure, axes = _figure(path, 11, 1.5 + 0.3 * len(tracks))
    for span in spans:
        colour = next((c for name, c in SPAN_COLOURS.items() if span.name.startswith(name)), "tab:gray")
        bar = {"color": colour, "edgecolor": "white", "linewidth": 0.5}
        axes.barh(tracks[span.track], span.end - span.start, left=span.start, **bar)
    axes.set_yticks(list(tracks.values()), list(tracks))
    axes.invert_yaxis()
    axes.set(xlabel="predicted, us", title=title)
    _save(figure, path)


def plot_sweep(path: Path, rows: Sequence[SweepRow], title: str) -> None:
    """Predicted time of each mode over M, relative to the fastest split layer."""
    figure, axes = _figure(path, 9, 5)
    names = sorted({name for row in rows for name, _ in row.modes})
    split = {row.m: min(us for name, us in row.modes if not name.startswith("fused")) for row in rows}
    for name in names:
        points = [(row.m, us / split[row.m]) for row in rows for other, us in row.modes if other == name]
        axes.plot([m for m, _ in points], [ratio for _, ratio in points], marker=".", label=name)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set(xscale="log", xlabel="M", ylabel="predicted time over the best split layer", title=title)
    axes.legend()
    _save(figure, path)
