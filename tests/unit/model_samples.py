# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Layers, plans and RESULT_JSON rows that several tests of the time model draw from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from mori_gemm_ar.model import (
    Case,
    Layer,
    Mode,
    Plan,
    Quant,
    Tail,
    Tile,
    Transport,
    Values,
    Wire,
    costs,
    load,
    predict,
    reason_not_plan,
)
from mori_gemm_ar.model.modes import default_plan
from mori_gemm_ar.model.tiles import TILES

V = load().at(Case.EXPECTED)

# The layer that the accuracy figures speak of.
PUBLISHED = Layer(16384, 7168, 2048, 8, Quant.BLOCKSCALE)

layers = st.builds(
    Layer,
    m=st.one_of(st.integers(0, 700), st.integers(0, 40_000)),
    n=st.integers(1, 72).map(lambda i: 128 * i),
    k=st.integers(1, 32).map(lambda i: 128 * i),
    world=st.integers(1, 8),
    quant=st.sampled_from(Quant),
    wire=st.sampled_from(Wire),
)


@st.composite
def planned(draw: st.DrawFn) -> tuple[Layer, Plan]:
    """A layer and a plan that can run it."""
    layer = draw(layers)
    plan = Plan(
        draw(st.sampled_from(Mode)),
        draw(st.sampled_from(TILES[layer.quant])),
        chunks=draw(st.sampled_from((1, 2, 3, 8, 16))),
        gather=draw(st.sampled_from(Transport)),
        tail=draw(st.sampled_from(Tail)),
        stripe=draw(st.sampled_from((None, 1, 2))),
    )
    if reason_not_plan(layer, plan) is not None:
        mode = Mode.GEMM_ONLY if layer.world == 1 else Mode.SPLIT_SDMA
        plan = Plan(mode, plan.tile, gather=plan.gather)
    return layer, plan


# --- a benchmark on another machine ---

ALTERED = {
    "gemm_base_us": 1.4,
    "wave_k_blockscale_us": 0.8,
    "wave_fixed_us": 1.5,
    "graph_one_us": 0.7,
    "epilogue_us": 1.6,
    "epilogue_tile_us": 0.5,
    "sdma_rate_gbs": 1.1,
    "sdma_phase_us": 0.8,
    "sdma_put_us": 0.6,
    "reduce_rate_tbs": 0.9,
    "sdma_ar_us": 1.7,
    "graph_layer_us": 1.5,
    "lsa_base_us": 1.2,
    "lsa_rate_gbs": 0.9,
    "convert_rate_tbs": 0.9,
    "barrier_us": 1.3,
    "pull_base_us": 0.7,
    "peer_store_tile_us": 1.4,
    "rank_skew_share": 2.0,
}
SOFTWARE = {"git_commit": "abc", "versions": {"mori_gemm_ar": "0.1.0"}}


def altered() -> Values:
    """A machine that differs from the shipped one."""
    return replace(V, **{name: getattr(V, name) * factor for name, factor in ALTERED.items()})


def own_rows(v: Values) -> Iterator[dict[str, Any]]:
    """RESULT_JSON rows as a benchmark on that machine would print them."""
    for m, n, k in ((1024, 7168, 2048), (4096, 7168, 1024), (4096, 4096, 4096), (8192, 7168, 2048), (16384, 7168, 512)):
        yield row(v, Layer(m, n, k, 1, Quant.BLOCKSCALE), Plan(Mode.GEMM_ONLY, Tile(128, 256)))
    for m in (64, 512, 1024, 2048, 8192):
        base = {"benchmark": "all_reduce", "m": m, "n": 7168, "world_size": 8, "dtype": "bf16"}
        lsa = costs.lsa_allreduce_us(v, m, 7168, 8)
        yield {**good(), **base, "time_us": lsa, "resolved": {"transport": "lsa", "stage": 2}}
        sdma = costs.sdma_allreduce_us(v, m, 7168, 8)
        yield {**good(), **base, "time_us": sdma, "resolved": {"transport": "sdma"}}
    for m in (4096, 8192, 16384):
        for k in (1024, 2048):
            layer = Layer(m, 7168, k, 8, Quant.BLOCKSCALE)
            yield row(v, layer, default_plan(Mode.SPLIT_SDMA, Tile(128, 256)))
            yield row(v, layer, default_plan(Mode.FUSED_LSA, Tile(128, 256)))
            for chunks in (1, 4, 8):
                yield row(v, layer, Plan(Mode.FUSED_SDMA, Tile(128, 256), chunks))
        narrow = Layer(m, 7168, 2048, 8, Quant.BLOCKSCALE, Wire.FP8_GATHER)
        yield row(v, narrow, Plan(Mode.FUSED_SDMA, Tile(128, 256), 8, Transport.LSA))
        yield row(v, narrow, Plan(Mode.FUSED_SDMA, Tile(128, 256), 8, Transport.SDMA))


def good() -> dict[str, Any]:
    return {"validated": True, "device": "AMD Instinct MI355X", **SOFTWARE}


def row(v: Values, layer: Layer, plan: Plan) -> dict[str, Any]:
    prediction = predict(v, layer, plan)
    phases = {phase.name: phase.us for phase in prediction.phases}
    if "pull" in phases:
        # A trace shows two kernels: the barrier, then the loads.
        phases |= {"barrier": v.barrier_us, "pull": phases["pull"] - v.barrier_us}
    return {
        **good(),
        "mode": plan.mode.value,
        "m": layer.m,
        "n": layer.n,
        "k": layer.k,
        "world_size": layer.world,
        "quant": layer.quant.value,
        "time_us": prediction.total_us,
        "phases_us": phases,
        "resolved": {
            "tile": str(plan.tile),
            "chunks": plan.chunks,
            "stripe": plan.stripe,
            "wire": "bf16" if layer.wire is Wire.BF16 else "fp8",
            "gather": plan.gather.value,
        },
    }


def write_log(folder: Path, rows: list[dict[str, Any]]) -> None:
    lines = ["warming up", *(f"RESULT_JSON {json.dumps(entry)}" for entry in rows), "done"]
    (folder / "bench.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
