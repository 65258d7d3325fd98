# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The proof of the fused op, in small: what is mutated, clean seeds, and parts of the synchronisation left out."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from mori_gemm_ar.compile.store import default_store
from mori_gemm_ar.layout import GemmConfig, Wire
from mori_gemm_ar.layout.fused import FusedConfig
from mori_gemm_ar.layout.sdma import Transport
from mori_gemm_ar.op import Mode, Tail
from mori_gemm_ar.plan import plan_layer
from mori_gemm_ar.proof import Catcher, Mutant, Operator, mutants_of, mutated, pipeline_named, run_clean
from mori_gemm_ar.proof.copies import COPIES
from mori_gemm_ar.proof.gemm import GEMMS, TILE_K
from mori_gemm_ar.proof.layers import BANDS, GEMM, LAYERS, RESIDENCY, TILE, LayerPipeline, first_store
from mori_gemm_ar.proof.pipelines import kernel_named
from mori_gemm_ar.proof.registry import FEW_SEEDS
from mori_gemm_ar.proof.runner import observe

_NAMED = {pipeline.name: pipeline for pipeline in LAYERS}
STREAM, BANDED = (_NAMED[f"fused-sdma-2-{tail}-w2"] for tail in ("streamed", "fp8-both"))
PUT, STORE = (_NAMED[f"fused-{push}-pulled-w2"] for push in ("sdma-2", "lsa"))
_SYNCHRONISES = re.compile(r"\s*(s_barrier|ds_\w+|v_mfma\w+|buffer_load\w+(?=.*\blds\b)|s_waitcnt.*vmcnt\(\d+\))")


def mutants(pipeline: LayerPipeline, kernel: str, operator: Operator) -> list[Mutant]:
    found = [m for m in mutants_of(kernel_named(pipeline, kernel)) if m.operator is operator]
    assert found, f"{kernel} of {pipeline.name} has no {operator.value}"
    return found


# --- what is mutated ---


def test_every_kernel_is_mutated_by_some_pipeline() -> None:
    """Those of a pushed tail are the kernels of the all-reduce by copy engines."""
    proved = {kernel.config for pipeline in LAYERS for kernel in pipeline.kernels()}
    proved |= {config for pipeline in COPIES for config in pipeline.configs().values()}
    for pipeline in LAYERS:
        for config in pipeline.configs().values():
            if isinstance(config, FusedConfig) and config.columns > 1:
                continue  # of another width of C, which only stores and counts more
            assert config in proved, f"{config.key} of {pipeline.name} is mutated nowhere"


@pytest.mark.parametrize(
    ("name", "mutated_there"),
    [
        ("fused-sdma-2-streamed-w2", (GEMM, "sum", "end")),
        ("fused-sdma-2-streamed-w3", (GEMM, "sum", "end")),
        ("fused-sdma-2-streamed-w8", (GEMM, "sum", "end")),
        ("fused-sdma-2-streamed-queues-w2", ()),
        ("fused-sdma-2-fp8-both-w2", (GEMM, BANDS, "gather")),
        ("fused-sdma-2-fp8-both-w3", (GEMM, BANDS)),
    ],
)
def test_streamed_chunks_and_quantised_bands_are_proved_too(name: str, mutated_there: tuple[str, ...]) -> None:
    """Each of the calls takes that path, and its GEMM is the one that signals or quantises."""
    pipeline = _NAMED[name]
    kernels = {kernel.name: kernel.config for kernel in pipeline.kernels()}
    assert tuple(kernels) == mutated_there
    streamed = pipeline.tail is Tail.STREAMED
    for m in pipeline.sizes():
        plan = plan_layer(pipeline.spec, m)
        assert (plan.mode, plan.tail) == (Mode.FUSED_SDMA, Tail.STREAMED if streamed else Tail.PHASED)
        assert plan.fused is not None and plan.fused == kernels.get(GEMM, plan.fused)
        assert (plan.fused.signals, plan.fused.wire.both) == (streamed, not streamed)


def test_no_kernel_is_mutated_twice() -> None:
    configs = [kernel.config for pipeline in LAYERS for kernel in pipeline.kernels()]
    assert len(configs) == len(set(configs))


def skeleton(config: Any) -> list[str]:
    """What orders accesses up to the first store of C; an LDS access or MFMA by its mnemonic, a wait as it stands."""
    code = default_store().get(config)
    lines = code.isa.splitlines()[: first_store(code) - 1]
    return [" ".join(match[1].split()) for line in lines if (match := _SYNCHRONISES.match(line))]


@pytest.mark.parametrize("push", Transport)
def test_before_the_first_store_a_fused_gemm_is_the_gemm_that_its_own_family_proves(push: Transport) -> None:
    ours = PUT.gemm
    (proved,) = (
        pipeline.config
        for pipeline in GEMMS
        if isinstance(pipeline.config, GemmConfig)
        and (pipeline.config.recipe, pipeline.config.tile) == (ours.recipe, TILE)
        and pipeline.config.b_layout is ours.b_layout
    )
    alone = GemmConfig(proved.recipe, ours.n, TILE_K, TILE, proved.b_layout)
    fused = [FusedConfig(alone, 2, push, None if push is Transport.SDMA else 1)]
    if push is Transport.SDMA:
        fused += [replace(fused[0], signals=True), replace(fused[0], wire=Wire.FP8_BOTH)]
    for config in fused:
        assert skeleton(config) == skeleton(alone), config.key
    assert len([line for line in skeleton(alone) if line == "s_barrier"]) > 4


@pytest.mark.parametrize("pipeline", [PUT, STORE], ids=lambda p: p.name)
def test_of_a_fused_gemm_what_follows_the_first_store_is_mutated(pipeline: LayerPipeline) -> None:
    kernel = kernel_named(pipeline, GEMM)
    assert "_store_" in kernel.code.isa.splitlines()[kernel.since - 1]
    lines = {mutant.line for mutant in mutants_of(kernel)}
    assert min(lines) > kernel.since
    assert {Operator.DROP_BARRIER, Operator.DROP_WRITEBACK} <= {mutant.operator for mutant in mutants_of(kernel)}


def test_a_gpu_holds_less_than_half_of_a_grid_of_nine_workgroups() -> None:
    for pipeline in LAYERS:
        world, first = pipeline.world, pipeline.sizes()[0]
        tiles = -(-first // TILE.m) * -(-pipeline.n // TILE.n)
        assert tiles >= 9 > 2 * RESIDENCY
        assert first % TILE.m
        assert -(-first // world) > TILE.m


# --- runs ---


@pytest.mark.parametrize("pipeline", [p.name for p in LAYERS if p.world == 2 and p.name not in FEW_SEEDS])
def test_the_shipped_code_is_clean(pipeline: str) -> None:
    assert run_clean(pipeline_named(pipeline), seed=201) is None


@pytest.mark.parametrize("pipeline", [STREAM, BANDED], ids=lambda p: p.name)
def test_a_streamed_chunk_and_a_quantised_band_have_no_race(pipeline: LayerPipeline) -> None:
    assert run_clean(pipeline, seed=3) is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", [16, 19])
@pytest.mark.parametrize("pipeline", [p.name for p in LAYERS])
def test_the_shipped_code_has_no_race(pipeline: str, seed: int) -> None:
    assert run_clean(pipeline_named(pipeline), seed) is None


@pytest.mark.parametrize(
    ("pipeline", "kernel", "operator"),
    [
        (PUT, GEMM, Operator.DROP_BARRIER),
        (PUT, GEMM, Operator.DROP_WRITEBACK),
        (PUT, GEMM, Operator.RELEASE_ONCE),
        (PUT, GEMM, Operator.SKIP_TURN),
        (PUT, "sum", Operator.DROP_WRITEBACK),
        (PUT, "sum", Operator.WEAKEN_WRITEBACK),
        (PUT, "sum", Operator.RELEASE_ONCE),
        (PUT, "sum", Operator.DROP_INVALIDATE),
        (PUT, "pull", Operator.DROP_INVALIDATE),
        (STORE, GEMM, Operator.DROP_BARRIER),
        (STORE, GEMM, Operator.DROP_WRITEBACK),
        (STORE, GEMM, Operator.WEAKEN_WRITEBACK),
        (STORE, GEMM, Operator.RELEASE_ONCE),
    ],
    ids=lambda value: getattr(value, "value", None) or getattr(value, "name", value),
)
def test_a_part_left_out_is_noticed(pipeline: LayerPipeline, kernel: str, operator: Operator) -> None:
    for mutant in mutants(pipeline, kernel, operator):
        codes = mutated(kernel, mutant.isa, frozenset(range(pipeline.world)))
        ends = (observe(pipeline, seed, codes) for seed in (0, 3, 1, 2))
        assert next((end[0] for end in ends if end), None) in (Catcher.RACE, Catcher.NUMERICS, Catcher.WATCHDOG)
