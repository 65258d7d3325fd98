# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""A predicted timeline in the trace format that Perfetto and Chrome read."""

from __future__ import annotations

from typing import Any

from mori_gemm_ar.model.modes import Plan
from mori_gemm_ar.model.stream import Span, track_order
from mori_gemm_ar.model.terms import Layer


def perfetto(spans: list[Span], layer: Layer, plan: Plan) -> dict[str, Any]:
    """Trace events of one rank, one track for each link and each kind of local work; `ts` and `dur` in microseconds."""
    tracks = track_order(spans)
    shape = f"[{layer.m}, {layer.n}] K={layer.k}, {layer.world} ranks, {layer.quant.value}, {layer.wire.value} wire"
    title = f"predicted, no reading: {plan.label}, {shape}"
    events: list[dict[str, Any]] = [_name("process_name", 0, title)]
    events.extend(_name("thread_name", row, track) for track, row in tracks.items())
    events.extend(
        {
            "ph": "X",
            "pid": 0,
            "tid": tracks[span.track],
            "name": span.name,
            "ts": round(span.start, 3),
            "dur": round(span.end - span.start, 3),
            "args": {"predicted": True},
        }
        for span in spans
    )
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"predicted": "true", "title": title}}


def _name(kind: str, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 0, "tid": row, "name": kind, "args": {"name": name}}
