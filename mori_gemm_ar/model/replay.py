# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What the model says about a published row: one predictor for every kind of reading, used by fit and check alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout.terms import Stage
from mori_gemm_ar.model import costs
from mori_gemm_ar.model.costs import Leg
from mori_gemm_ar.model.modes import Plan, Prediction, predict
from mori_gemm_ar.model.records import CHUNK_MAJOR, Record
from mori_gemm_ar.model.terms import K_BLOCK, Layer, Mode, Quant, Tile, Transport, Wire, member
from mori_gemm_ar.model.tiles import TILES, Order, TileGrid, waves
from mori_gemm_ar.model.values import Values


def predict_record(v: Values, record: Record) -> float:
    """Predicted microseconds of a row that is not excluded."""
    predictors: dict[str, Callable[[Values, Record], float]] = {
        "end_to_end": _whole,
        "kernel": _kernel,
        "call": lambda v, r: _gemm(v, r) + v.graph_call_us,
        "intercept": lambda v, r: _gemm_at(v, r, k=0) + v.graph_one_us,
        "slope": lambda v, r: (_gemm_at(v, r, k=1024) - _gemm_at(v, r, k=0)) / 8,
        "graph": lambda v, r: v.graph_layer_us,
        "release": _release,
        "saving": _saving,
        "store": lambda v, r: v.wave_short_store_us * _waves(v, r),
    }
    if record.what not in predictors:
        raise ConfigError(f"rows.{record.id}.what={record.what!r} must be one of {', '.join(predictors)}")
    return predictors[record.what](v, record)


def _shape(record: Record) -> tuple[int, int, int]:
    if record.m is None or record.n is None or record.world is None:
        raise ConfigError(f"rows.{record.id} must give m, n and world; exclude a row without a shape")
    return record.m, record.n, record.world


def record_layer(record: Record) -> Layer:
    """The layer of a row; a transfer that names no GEMM gets the smallest K, which its phases do not read."""
    m, n, world = _shape(record)
    wire = Wire.FP8_GATHER if (record.wire or "").startswith("fp8") else Wire.BF16
    return Layer(m, n, record.k or K_BLOCK, world, member("quant", record.quant or Quant.PTPC.value, Quant), wire)


def record_tile(record: Record) -> Tile:
    """The tile of a row; the recipe's native one when the source does not tell."""
    if record.block_m and record.block_n:
        return Tile(record.block_m, record.block_n)
    return TILES[record_layer(record).quant][0]


def record_plan(record: Record) -> Plan:
    """The plan of a row."""
    mode = member("mode", record.mode, Mode)
    pulled = record.wire is not None and record.wire.startswith("fp8") and not record.wire.endswith("sdma")
    return Plan(
        mode,
        record_tile(record),
        chunks=(record.chunks or 1) if mode is Mode.FUSED_SDMA else 1,
        gather=Transport.LSA if pulled else Transport.SDMA,
        stripe=_stripe(record) if mode is Mode.FUSED_LSA else None,
        order=Order.LINEAR if "linear" in (record.variant or "") and mode is not Mode.GEMM_ONLY else Order.ROTATED,
    )


def _stripe(record: Record) -> int | None:
    return None if record.n_stripe in (None, CHUNK_MAJOR) else record.n_stripe


def _short(record: Record) -> bool:
    return "short" in (record.c_store or "")


def _prediction(v: Values, record: Record) -> Prediction:
    return predict(v, record_layer(record), record_plan(record), _short(record))


def _whole(v: Values, record: Record) -> float:
    m, n, world = _shape(record)
    stage = Stage.ONE if "1-stage" in (record.variant or "") else Stage.TWO
    allreduces = {
        "lsa-ar": lambda: costs.lsa_allreduce_us(v, m, n, world, stage),
        "sdma-ar": lambda: costs.sdma_allreduce_us(v, m, n, world),
        "aiter-ar": lambda: costs.aiter_allreduce_us(v, m, n, world),
    }
    if record.mode in allreduces:
        return allreduces[record.mode]()
    return _prediction(v, record).total_us


def _gemm(v: Values, record: Record) -> float:
    return costs.gemm_us(v, record_layer(record), record_tile(record), _short(record))


def _gemm_at(v: Values, record: Record, k: int) -> float:
    """The GEMM kernel at a K of its own, also at none."""
    layer, tile = record_layer(record), record_tile(record)
    wave = costs.wave_us(v, layer.quant, tile, k, _short(record))
    return v.gemm_base_us + _waves(v, record) * wave


def _waves(v: Values, record: Record) -> float:
    return waves(TileGrid.of(record_layer(record), record_tile(record)).tiles, v.wave_partial_share)


def _saving(v: Values, record: Record) -> float:
    """What the row's wire saves against bf16 pushed by copy engines."""
    narrow = _prediction(v, record)
    layer, plan = record_layer(record), record_plan(record)
    wide = predict(v, replace(layer, wire=Wire.BF16), replace(plan, gather=Transport.SDMA))
    return wide.total_us - narrow.total_us


def _kernel(v: Values, record: Record) -> float:
    """One kernel of a run."""
    m, n, world = _shape(record)
    if record.phase == "nccl-ar":
        return costs.rccl_allreduce_us(v, m, n, world)
    if record.mode in ("gemm-only", "split-sdma") and record.phase == "gemm":
        return _gemm(v, record)
    layer = record_layer(record)
    rows = m // world
    single: dict[str | None, Callable[[], float]] = {
        "scatter": lambda: costs.push_us(v, world, costs.leg_bytes(layer, rows, Leg.SCATTER)),
        "gather": lambda: costs.push_us(v, world, costs.leg_bytes(layer, rows, Leg.GATHER)),
        "reduce": lambda: costs.reduce_us(v, layer, rows),
        "quantize": lambda: costs.quantize_us(v, layer, rows),
        "dequantize": lambda: costs.dequantize_us(v, layer, rows * (world - 1)),
        # A pulled gather is two kernels in a trace: the barrier, then the loads.
        "pull": lambda: costs.pull_us(v, world, costs.leg_bytes(layer, rows, Leg.GATHER)) - v.barrier_us,
    }
    if record.phase in single:
        return single[record.phase]()
    if record.phase == "barrier" and record.mode == "fused-sdma":
        return v.barrier_us
    if record.phase == "gemm" and record.mode == "fused-sdma":
        return costs.fused_gemm_us(v, layer, record_tile(record), _short(record))
    prediction = _prediction(v, record)
    if record.phase == "sum":
        return prediction.total_us - prediction.overhead_us
    found = [phase.us for phase in prediction.phases if phase.name == record.phase]
    if not found:
        raise ConfigError(f"rows.{record.id}.phase={record.phase!r} must be a phase of {record.mode}")
    return found[0]


def _release(v: Values, record: Record) -> float:
    scope, count = (record.variant or "").split()
    return costs.releases_us(v, int(count), system=scope == "system")
