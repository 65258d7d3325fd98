# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Section 3: times, from which the constants of the time model are read anew and compared with the shipped ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from mori_gemm_ar.errors import CollectiveError, ConfigError, MoriGemmArError
from mori_gemm_ar.hwcheck import readings, rows
from mori_gemm_ar.hwcheck.hardware import Rank
from mori_gemm_ar.hwcheck.launching import CheckWindow
from mori_gemm_ar.hwcheck.readings import UNITS, Bench, Reading
from mori_gemm_ar.hwcheck.report import Verdict
from mori_gemm_ar.hwcheck.section import Log
from mori_gemm_ar.layout.gemm_terms import Recipe
from mori_gemm_ar.layout.sdma import Transport
from mori_gemm_ar.model import Constants, choose, fit, load
from mori_gemm_ar.model.calibrate import StageResult
from mori_gemm_ar.model.constants import Confidence, Constant
from mori_gemm_ar.model.results import readings_of, records_of
from mori_gemm_ar.model.terms import Case, Layer, Quant

TOLERANCE = 0.05  # of a constant that was fitted: runs of one layer differ by 2 %, and a constant takes more of it
# Layers whose predictions show what new constants change: M, N, K, ranks.
_SHOWN = ((16384, 7168, 2048, 8), (4096, 7168, 2048, 8), (1024, 7168, 2048, 8), (16384, 5120, 2048, 4))

Group = Callable[[Bench], Iterator[Any]]


def microbenchmarks(rank: Rank, log: Log) -> None:
    """All groups that this number of ranks allows, then the verdicts. Collective."""
    if rank.timer is None:
        log.add("times", Verdict.NOT_RUN, "emulated processes have no clock; run without torchrun for a stand-in's")
        return
    effort = rank.settings.effort
    largest = max(*effort.put_bytes, max(effort.sum_bytes) * max(2, rank.size))
    nbytes = 2 * largest + readings.RESULT_BYTES
    with CheckWindow.create(rank.world, rank.target, nbytes, queues=2 if rank.size > 1 else 0) as window:
        bench = Bench(rank, rank.timer, window)
        for name, group in _reading_groups(rank, window):
            _take(rank, log, name, partial(_readings, bench, group))
    for name, group in _row_groups(rank):
        _take(rank, log, name, partial(_rows, Bench(rank, rank.timer), group))
    if rank.rank == 0:
        _derive(rank, log)
        judge_constants(log)


def _derive(rank: Rank, log: Log) -> None:
    """What follows from readings and rows together."""
    direct = {name: value for name, (value, _) in readings_of(log.rows).items()}
    values = replace(load().at(Case.EXPECTED), **direct)
    one = readings.sdma_call_reading(values, log.rows, rank.size)
    if one is not None and {"sdma_phase_us", "sdma_rate_gbs"} <= direct.keys():
        row = _reading_row(one)
        log.rows.append(row | rows.common(rank) | {"device": rows.device_of(rank), "group": "all-reduce by sdma"})


def _reading_groups(rank: Rank, window: CheckWindow) -> Iterator[tuple[str, Group]]:
    yield "graphs", readings.graph_readings
    yield "releases", readings.release_readings
    yield "local sums", readings.sum_readings
    yield "conversions", readings.convert_readings
    if rank.size > 1:
        yield "loads from peers", readings.pull_readings
        if window.queues is not None and window.engine_fault is None:
            yield "puts", readings.put_readings
        else:
            yield "puts", partial(_no_engines, str(window.engine_fault))


def _row_groups(rank: Rank) -> Iterator[tuple[str, Group]]:
    if rank.size > 1:
        for transport in Transport:
            yield f"all-reduce by {transport.value}", partial(rows.all_reduce_rows, transport=transport)
    for recipe in Recipe if rank.settings.effort.few_gemms else (Recipe.BLOCKSCALE,):
        yield f"gemm {recipe.value}", partial(rows.gemm_rows, recipe=recipe)


def _no_engines(fault: str, bench: Bench) -> Iterator[Any]:
    raise ConfigError(f"queues=None must be there to time puts: {fault}")


def _take(rank: Rank, log: Log, name: str, group: Callable[[], list[dict[str, Any]]]) -> None:
    """One group within the time; its rows go into the report. Collective."""
    if any(rank.world.exchange("time", rank.budget.left < 0)):
        log.out_of_time(name)
        return
    try:
        found = group()
    except MoriGemmArError as error:
        # What was moved wrongly is an answer; what could not be launched is none.
        verdict = Verdict.REFUTED if isinstance(error, CollectiveError) else Verdict.FAILED
        log.add(f"measure {name}", verdict, f"{type(error).__name__}: {error}")
        return
    log.rows.extend(row | rows.common(rank) | {"device": rows.device_of(rank), "group": name} for row in found)
    wrong = [row for row in found if not row["validated"]]
    log.judge(f"measure {name}", f"wrong result: {wrong[0]}" if wrong else None, f"{len(found)} rows")


def _readings(bench: Bench, group: Group) -> list[dict[str, Any]]:
    return [_reading_row(one) for one in group(bench)]


def _reading_row(one: Reading) -> dict[str, Any]:
    """A row that names a constant; a value that cannot be one is not validated."""
    return {
        "constant": one.constant, "value": one.value, "unit": UNITS[one.constant], "validated": one.value >= 0,
        "spread": [one.low, one.high], "samples": one.samples, "how": one.how,
    }  # fmt: skip


def _rows(bench: Bench, group: Group) -> list[dict[str, Any]]:
    return list(group(bench))


# --- verdicts ---


def new_constants(found: list[dict[str, Any]]) -> tuple[dict[str, float], tuple[StageResult, ...], Constants]:
    """(new values by name, stages of the fit, constants with the readings): what `model fit --from` makes of rows."""
    shipped = load()
    direct = {name: value for name, (value, _) in readings_of(found).items()}
    base = shipped.with_values(direct, "hwcheck", {}, Confidence.MEASURED)
    records = records_of(found, base)
    _, results = fit(base, records)
    values = dict(direct)
    for result in results:
        for name, value in zip(result.stage.constants, result.after, strict=True):
            if name not in result.undetermined:
                values[name] = value
    return values, results, base


def judge_constants(log: Log) -> None:
    """One check for each constant of the model."""
    values, _, _ = new_constants(log.rows)
    spreads = {row["constant"]: row["spread"] for row in log.rows if "constant" in row}
    for constant in load().constants:
        if constant.name not in values:
            log.add(f"constant {constant.name}", Verdict.NOT_RUN, _why_not(constant), value=constant.value)
            continue
        verdict, detail = judge_constant(constant, values[constant.name])
        data = {"value": values[constant.name], "unit": constant.unit, "shipped": constant.value}
        data["spread"] = spreads.get(constant.name)
        log.add(f"constant {constant.name}", verdict, detail, **data)


def judge_constant(constant: Constant, value: float) -> tuple[Verdict, str]:
    """Whether a new value is what the shipped file says, or thought possible where nobody had measured it."""
    shown = f"{value:.5g} {constant.unit}"
    if constant.confidence is Confidence.ASSUMED:
        assert constant.pessimistic is not None and constant.optimistic is not None
        low, high = sorted((constant.pessimistic, constant.optimistic))
        inside = low - 1e-9 - abs(low) * TOLERANCE <= value <= high + abs(high) * TOLERANCE + 1e-9
        text = f"{shown}; assumed {constant.value:.5g}, thought possible {low:.5g} to {high:.5g}"
        return (Verdict.NEW if inside else Verdict.REFUTED), text
    change = value / constant.value - 1.0 if constant.value else float(value != 0)
    text = f"{shown}; shipped {constant.value:.5g}, {100 * change:+.1f} %"
    return (Verdict.CONFIRMED if abs(change) <= TOLERANCE else Verdict.REFUTED), text


_REASONS: Mapping[str, str] = {
    "few_links_ratio": "needs eight ranks: below that every measured rate has it inside",
    "tile_256x128_share": "another tile of the GEMM; `benchmark/bench_gemm.py` times it",
    "tile_128x256_share": "another tile of the GEMM; `benchmark/bench_gemm.py` times it",
    "wave_short_store_us": "no kernel that ships stores two bytes at a time",
    "rccl_ar_us": "a baseline; `benchmark/bench_ar.py --baseline` times it",
    "rccl_ar_rate_gbs": "a baseline; `benchmark/bench_ar.py --baseline` times it",
    "aiter_ar_us": "a baseline; `benchmark/bench_ar.py --baseline` times it",
    "aiter_ar_rate_gbs": "a baseline; `benchmark/bench_ar.py --baseline` times it",
    "barrier_us": "no kernel that ships is a barrier alone",
}


def _why_not(constant: Constant) -> str:
    return _REASONS.get(constant.name, "belongs to the fused op, or no row of this run tells it apart")


def effect_of(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Predicted times of some layers before and after, in microseconds; empty without new values."""
    values, _, base = new_constants(found) if found else ({}, (), load())
    if not values:
        return []
    new = base.with_values(values, "hwcheck", {}, Confidence.MEASURED)
    shown = []
    for m, n, k, world in _SHOWN:
        layer = Layer(m, n, k, world, Quant.BLOCKSCALE)
        before, after = (choose(constants, layer).chosen for constants in (load(), new))
        shown.append(
            {
                "m": m, "n": n, "k": k, "world": world, "quant": layer.quant.value, "predicted": True,
                "before_us": before.expected_us, "before_mode": before.plan.mode.value,
                "after_us": after.expected_us, "after_mode": after.plan.mode.value,
            }
        )  # fmt: skip
    return shown
