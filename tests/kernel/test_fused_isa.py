# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What sending tiles costs a wave of the GEMM: executed instructions before the submit code, registers, the main loop.

A number here is a promise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest

from mori_gemm_ar.audit import contract_of
from mori_gemm_ar.audit.figures import steps_of
from mori_gemm_ar.audit.flow import Flow
from mori_gemm_ar.audit.operations import Kind
from mori_gemm_ar.audit.subject import Subject
from mori_gemm_ar.compile.store import default_store
from mori_gemm_ar.isa import parse_isa
from mori_gemm_ar.layout import BLayout, GemmConfig, Recipe, Tile
from mori_gemm_ar.layout.fused import FusedConfig
from mori_gemm_ar.layout.sdma import Transport

N, K = 7168, 2048
# Executed instructions that a wave of a fused kernel has more than one of the plain kernel: what finds the tile and its
# owner, and what counts the tile or releases it.
PROLOGUE, EPILOGUE = 48, 64
TILES = [(Recipe.BLOCKSCALE, Tile.M128_N256), (Recipe.PTPC, Tile.M256_N256), (Recipe.MXFP8, Tile.M256_N128)]


@dataclass(frozen=True)
class Path:
    """Executed instructions of one wave that has a tile, each loop taken once."""

    prologue: int  # up to the first copy to LDS
    epilogue: int  # behind the last store of C, up to the submit code or the end
    total: int


@cache
def subject_of(config: GemmConfig | FusedConfig) -> Subject:
    return Subject(parse_isa(default_store().get(config).isa).kernel(config.kernel_name), contract_of(config))


def path_of(config: GemmConfig | FusedConfig, wave: int) -> Path:
    """The longest path of a wave that leaves out the submit code."""
    subject = subject_of(config)
    first = next(w for w, waves in subject.wave_classes.items() if wave in waves)
    flow = subject.graphs[first].narrowed_flow()
    # The submit code follows the block that asks whether this rank has failed.
    asks = [n for n, i in enumerate(subject.code) if i.name == "global_load_dword" and i.has("sc1")]
    stops = {subject.flow.block_of[n] for n in asks[:1]}
    assert bool(stops) == bool(subject.posts)
    position = {block: n for n, block in enumerate(flow.order)}
    longest: dict[int, tuple[int, ...]] = {}
    for block in reversed(flow.order):
        ways = [] if block in stops else [s for s in flow.successors[block] if position[s] > position[block]]
        rest = max((longest[way] for way in ways), key=lambda path: size(flow, path), default=())
        longest[block] = (block, *rest)
    path = [n for block in longest[0] for n in range(flow.blocks[block].start, flow.blocks[block].end)]
    copy = next(at for at, n in enumerate(path) if subject.ops[n].kind is Kind.COPY)
    store = max(at for at, n in enumerate(path) if subject.ops[n].name == "buffer_store_dwordx4")
    return Path(copy, len(path) - store - 1, len(path))


def size(flow: Flow, path: tuple[int, ...]) -> int:
    return sum(flow.blocks[block].end - flow.blocks[block].start for block in path)


@pytest.mark.parametrize("push", Transport, ids=lambda push: push.value)
@pytest.mark.parametrize(("recipe", "tile"), TILES, ids=lambda value: getattr(value, "value", str(value)))
def test_what_sending_costs(recipe: Recipe, tile: Tile, push: Transport) -> None:
    gemm = GemmConfig(recipe, N, K, tile, BLayout.PRESHUFFLED)
    config = FusedConfig(gemm, 8, push, 2 if push is Transport.LSA else None)
    for wave in range(8):
        plain, fused = path_of(gemm, wave), path_of(config, wave)
        assert 0 < fused.prologue - plain.prologue <= PROLOGUE, f"wave {wave}"
        added = fused.epilogue - plain.epilogue
        assert 0 < added <= (EPILOGUE if wave == 0 and push is Transport.SDMA else 10), f"wave {wave}"
        # Nothing comes in between but what the scheduler moves there.
        assert fused.total - plain.total <= PROLOGUE + EPILOGUE + 8, f"wave {wave}"
    (step,), (plain_step,) = (steps_of(subject_of(either)) for either in (config, gemm))
    assert step.classes == plain_step.classes and step.unit == "K step"
    before, after = (default_store().get(either).manifest["resources"] for either in (gemm, config))
    assert after["vgpr"] <= before["vgpr"]
    assert after["vgpr_spills"] == after["sgpr_spills"] == after["scratch_bytes"] == 0
