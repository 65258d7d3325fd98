# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Analytic time of GEMM and all-reduce on MI355X, calibrated on published readings. Standard library only.

Every time that leaves this package is predicted, in microseconds.
"""

from __future__ import annotations

from mori_gemm_ar.model.accuracy import Report, check
from mori_gemm_ar.model.calibrate import fit, fitted_constants
from mori_gemm_ar.model.choice import Choice, choose
from mori_gemm_ar.model.constants import Constants, dump, load
from mori_gemm_ar.model.explanation import Explanation, explain, sweep
from mori_gemm_ar.model.modes import Plan, Prediction, predict, reason_not_plan, timeline
from mori_gemm_ar.model.records import Record, Records, Role, load_records
from mori_gemm_ar.model.terms import Case, Layer, Mode, Quant, Tail, Tile, Transport, Wire
from mori_gemm_ar.model.values import Values

__all__ = [
    "Case",
    "Choice",
    "Constants",
    "Explanation",
    "Layer",
    "Mode",
    "Plan",
    "Prediction",
    "Quant",
    "Record",
    "Records",
    "Report",
    "Role",
    "Tail",
    "Tile",
    "Transport",
    "Values",
    "Wire",
    "check",
    "choose",
    "dump",
    "explain",
    "fit",
    "fitted_constants",
    "load",
    "load_records",
    "predict",
    "reason_not_plan",
    "sweep",
    "timeline",
]
