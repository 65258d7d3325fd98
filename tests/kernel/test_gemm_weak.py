# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The K loop under weak memory and the race detector: copies land as late as their waits allow, waves run far apart.

Every wait and barrier that hands LDS over is needed: without it the detector sees a race and, but for waits on LDS
reads, which the emulator does not delay, some seed gives a wrong product.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from mori_gemm_ar.compile.store import CodeObject, default_store
from mori_gemm_ar.emulator import Node
from mori_gemm_ar.emulator.adversary import Adversary
from mori_gemm_ar.emulator.races import RaceDetector
from mori_gemm_ar.emulator.weak import WeakMemory
from mori_gemm_ar.errors import RaceError
from mori_gemm_ar.gemm import preshuffle_b
from mori_gemm_ar.layout import BLayout, GemmConfig, Recipe, SmallGemmConfig, SmallRows, Tile
from mori_gemm_ar.layout.gemm import AnyGemmConfig
from tests.kernel.gemm_data import Operands, check, random_operands
from tests.kernel.harness import run_kernel

APART = Adversary(split=0.8, delay=0.4)  # within a workgroup, where the default parts workgroups
THREADS = 512
STEPS = {"odd": 384, "even": 512}

CONFIGS: list[AnyGemmConfig] = [
    GemmConfig(recipe, tile.n + 16, STEPS[parity], tile, b_layout)
    for (recipe, tile, b_layout), parity in zip(
        (
            combination
            for combination in itertools.product(Recipe, Tile, BLayout)
            if combination[:2] != (Recipe.BLOCKSCALE, Tile.M256_N256)
        ),
        itertools.cycle(STEPS),
        strict=False,
    )
] + [SmallGemmConfig(recipe, 48, 1280, SmallRows.M32, BLayout.ROW) for recipe in (Recipe.BLOCKSCALE, Recipe.MXFP8)]


def rows_of(config: AnyGemmConfig) -> int:
    """One full tile and a ragged one, or a ragged count of few rows."""
    return config.tile.m + 40 if isinstance(config, GemmConfig) else 21


def product(config: AnyGemmConfig, code: CodeObject, operands: Operands, node: Node) -> torch.Tensor:
    m = operands.a.shape[0]
    b = preshuffle_b(operands.b) if config.b_layout is BLayout.PRESHUFFLED else operands.b
    c = torch.full((m, config.n), float("nan"), dtype=torch.bfloat16)
    tensors = {"a": operands.a, "b": b, "c": c, "a_scale": operands.a_scale, "b_scale": operands.b_scale}
    run_kernel(code, (config.blocks(m), 1, 1), (THREADS, 1, 1), [*tensors.values(), m], tensors, node)
    return c


def weak_node(seed: int) -> Node:
    return Node(1, memory=WeakMemory(seed, APART))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.key)
def test_clean(config: AnyGemmConfig) -> None:
    code = default_store().get(config)
    for seed in range(3):  # 54 seeds over all configurations
        operands = random_operands(config.recipe, rows_of(config), config.n, config.k, seed)
        check(product(config, code, operands, weak_node(seed)), operands, config.k)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.key)
def test_no_race(config: AnyGemmConfig) -> None:
    operands = random_operands(config.recipe, rows_of(config), config.n, config.k, 1)
    product(config, default_store().get(config), operands, Node(1, races=RaceDetector()))


def mutants(isa: str) -> Iterator[tuple[str, str]]:
    """(name, ISA text): each wait count of a handover loosened by one and dropped, each handover's barrier dropped."""
    lines = isa.splitlines()
    for number, line in enumerate(lines):
        if "; handover" not in line:
            continue
        changed = {"no barrier": ""} if line.startswith("s_barrier") else {}
        for counter, count in re.findall(r"(vmcnt|lgkmcnt)\((\d+)\)", line):
            changed[f"loosen {counter}"] = line.replace(f"{counter}({count})", f"{counter}({int(count) + 1})")
            changed[f"drop {counter}"] = line.replace(f"{counter}({count})", "")
        for name, text in changed.items():
            yield f"{name}@{number + 1}", "\n".join([*lines[:number], text, *lines[number + 1 :]])


# Long enough that both steps of the loop hand something over: the last step of all has nothing left.
MUTATED: list[AnyGemmConfig] = [
    GemmConfig(Recipe.PTPC, 272, 640, Tile.M128_N256, BLayout.PRESHUFFLED),
    GemmConfig(Recipe.BLOCKSCALE, 272, 768, Tile.M128_N256, BLayout.ROW),
    GemmConfig(Recipe.MXFP8, 272, 640, Tile.M256_N256, BLayout.PRESHUFFLED),
    SmallGemmConfig(Recipe.BLOCKSCALE, 48, 1280, SmallRows.M32, BLayout.ROW),
]


@pytest.mark.parametrize("config", MUTATED, ids=lambda config: config.key)
def test_the_race_detector_sees_every_mutant(config: AnyGemmConfig) -> None:
    code, survivors = default_store().get(config), []
    operands = random_operands(config.recipe, rows_of(config), config.n, config.k, 1)
    for name, isa in mutants(code.isa):
        try:
            product(config, replace(code, isa=isa), operands, Node(1, races=RaceDetector()))
        except RaceError:
            continue
        survivors.append(name)
    assert not survivors


@pytest.mark.parametrize("config", MUTATED, ids=lambda config: config.key)
def test_every_mutant_gives_a_wrong_product(config: AnyGemmConfig) -> None:
    code, survivors = default_store().get(config), []
    for name, isa in mutants(code.isa):
        if "lgkmcnt" in name:
            continue
        mutant = replace(code, isa=isa)
        for seed in range(12):
            operands = random_operands(config.recipe, rows_of(config), config.n, config.k, seed)
            right = product(config, code, operands, Node(1))
            got = product(config, mutant, operands, weak_node(seed))
            if not torch.equal(right.view(torch.int16), got.view(torch.int16)):
                break
        else:
            survivors.append(name)
    assert not survivors
