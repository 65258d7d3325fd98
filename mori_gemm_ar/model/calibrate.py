# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Calibration: which constants come from which rows, stage by stage, and the fit itself.

A stage fits its constants to its rows with everything before it fixed, least squares of relative errors. Only rows of
role fit enter. Later stages never move earlier constants, so an end-to-end time cannot bend a GEMM's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from mori_gemm_ar.model.constants import Constants
from mori_gemm_ar.model.leastsq import solve
from mori_gemm_ar.model.records import Record, Role
from mori_gemm_ar.model.replay import predict_record
from mori_gemm_ar.model.terms import Case
from mori_gemm_ar.model.values import Values

DIGITS = 5  # significant digits of a fitted constant; readings have three or four


@dataclass(frozen=True, slots=True)
class Stage:
    """Constants, and the rows that determine them."""

    name: str
    constants: tuple[str, ...]
    takes: Callable[[Record], bool]


@dataclass(frozen=True, slots=True)
class StageResult:
    """Outcome of a stage: its rows, its new values, and the constants that its rows could not tell."""

    stage: Stage
    rows: tuple[Record, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    undetermined: tuple[str, ...]

    @property
    def freedom(self) -> int:
        """Rows less fitted constants."""
        return len(self.rows) - (len(self.stage.constants) - len(self.undetermined))


def _gemm(record: Record) -> bool:
    return record.mode in ("gemm-only", "split-sdma") and (record.phase == "gemm" or record.mode == "gemm-only")


def _narrow(record: Record) -> bool:
    return (record.wire or "bf16") not in ("bf16", "bf16/sdma")


def _fused_gemm(record: Record) -> bool:
    return record.mode == "fused-sdma" and record.what == "kernel" and record.phase == "gemm"


def _layer(record: Record) -> bool:
    """Whole layers on copy engines and a bf16 wire."""
    return record.what == "end_to_end" and record.mode in ("split-sdma", "fused-sdma") and not _narrow(record)


STAGES = (
    Stage(
        "GEMM, plain and fused",
        (
            "gemm_base_us",
            "graph_one_us",
            "wave_k_ptpc_us",
            "wave_partial_share",
            "wave_fixed_us",
            "wave_k_blockscale_us",
            "wave_short_store_us",
            "wave_fixed_mxfp8_us",
            "wave_k_mxfp8_us",
            "tile_256x128_share",
            "epilogue_us",
            "epilogue_tile_us",
        ),
        lambda r: _gemm(r) or _fused_gemm(r) or r.what == "store",
    ),
    Stage(
        "copy engines and local reduce",
        ("sdma_phase_us", "sdma_rate_gbs", "reduce_base_us", "reduce_rate_tbs", "sdma_ar_us"),
        lambda r: (
            (r.series == "phase" and r.phase in ("scatter", "gather", "reduce") and not _narrow(r))
            or (r.mode == "sdma-ar" and r.what == "end_to_end")
        ),
    ),
    # The published figure stands until a user's own rows tell.
    Stage("further puts", ("sdma_put_us",), lambda r: r.source == "results" and r.phase == "drain"),
    Stage("layer graph", ("graph_layer_us",), lambda r: r.what == "graph" or _layer(r)),
    Stage(
        "load/store all-reduce",
        ("lsa_base_us", "lsa_rate_gbs", "lsa_skew_us"),
        lambda r: r.mode == "lsa-ar" and "1-stage" not in (r.variant or ""),
    ),
    Stage(
        "load/store all-reduce, one stage",
        ("lsa_one_stage_us",),
        lambda r: r.mode == "lsa-ar" and "1-stage" in (r.variant or ""),
    ),
    Stage("aiter all-reduce", ("aiter_ar_us", "aiter_ar_rate_gbs"), lambda r: r.mode == "aiter-ar"),
    Stage("RCCL all-reduce", ("rccl_ar_rate_gbs",), lambda r: r.phase == "nccl-ar"),
    Stage(
        "conversions and barrier",
        ("convert_rate_tbs", "barrier_us"),
        lambda r: r.phase in ("quantize", "dequantize") or (r.phase == "barrier" and r.mode == "fused-sdma"),
    ),
    Stage(
        "pulled gather",
        ("pull_base_us",),
        lambda r: r.what == "saving" or (r.source == "results" and r.phase == "pull"),
    ),
    Stage(
        "peer stores",
        ("peer_store_tile_us", "rank_skew_share"),
        lambda r: r.mode == "fused-lsa" and r.what in ("kernel", "end_to_end"),
    ),
    Stage("agent releases", ("release_agent_us",), lambda r: r.what == "release" and "agent" in (r.variant or "")),
    Stage("system releases", ("release_system_us",), lambda r: r.what == "release" and "system" in (r.variant or "")),
)


def relative_error(values: Values, record: Record) -> float:
    """(predicted - measured) / measured."""
    return predict_record(values, record) / record.value - 1.0


Memo = dict[tuple[Values, str, tuple[str, ...]], StageResult]


def fit(
    constants: Constants, rows: Iterable[Record], stages: Sequence[Stage] = STAGES, memo: Memo | None = None
) -> tuple[Values, tuple[StageResult, ...]]:
    """Fit all stages to the rows of role fit; a stage without rows keeps its values.

    `memo` lets fits of nearly the same rows share the stages that they have in common.
    """
    memo = {} if memo is None else memo
    values = constants.at(Case.EXPECTED)
    usable = [row for row in rows if row.role is Role.FIT]
    results = []
    for stage in stages:
        taken = tuple(row for row in usable if stage.takes(row))
        if taken:
            key = (values, stage.name, tuple(row.id for row in taken))
            if key not in memo:
                memo[key] = _fit_stage(values, stage, taken)
            results.append(memo[key])
            values = replace(values, **dict(zip(stage.constants, memo[key].after, strict=True)))
    return values, tuple(results)


def _fit_stage(values: Values, stage: Stage, rows: tuple[Record, ...]) -> StageResult:
    def residuals(parameters: Sequence[float]) -> list[float]:
        moved = replace(values, **dict(zip(stage.constants, parameters, strict=True)))
        return [relative_error(moved, row) for row in rows]

    before = tuple(float(getattr(values, name)) for name in stage.constants)
    solution = solve(residuals, before)
    after = tuple(rounded(value) for value in solution.values)
    lost = tuple(stage.constants[i] for i in solution.undetermined)
    return StageResult(stage, rows, before, after, lost)


def rounded(value: float) -> float:
    """The value as files keep it."""
    return float(f"{value:.{DIGITS}g}")


def fitted_constants(constants: Constants, results: Iterable[StageResult], how: str) -> Constants:
    """A constants file with the fitted values and the lines of the rows behind each of them."""
    values: dict[str, float] = {}
    lines: dict[str, tuple[str, ...]] = {}
    for result in results:
        for name, value in zip(result.stage.constants, result.after, strict=True):
            if name not in result.undetermined:
                values[name] = value
                cited = sorted({(row.source, row.line) for row in result.rows})
                lines[name] = tuple(f"{source}:{line}" for source, line in cited)
    return constants.with_values(values, how, lines)
