# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The fused GEMM on one emulated GPU: which tile each workgroup takes, what leaves, and that nothing else does."""

from __future__ import annotations

import pytest
import torch

from mori_gemm_ar.compile.store import default_store
from mori_gemm_ar.emulator import Node
from mori_gemm_ar.emulator.races.detector import RaceDetector
from mori_gemm_ar.emulator.weak import WeakMemory
from mori_gemm_ar.layout import MI355X, BLayout, GemmConfig, Recipe, Tile
from mori_gemm_ar.layout.fused import FusedConfig, FusedGrid
from mori_gemm_ar.layout.sdma import Transport
from tests.kernel.fused_kernels import FILL, OneGpu, places
from tests.kernel.gemm_data import Operands, check, random_operands
from tests.kernel.harness import run_kernel

N, K = 384, 256  # two columns of tiles, the second one half as wide


def fused(
    world: int, push: Transport, recipe: Recipe = Recipe.PTPC, tile: Tile = Tile.M128_N256, n: int = N, stripe: int = 1
) -> FusedConfig:
    gemm = GemmConfig(recipe, n, K, tile, BLayout.ROW)
    return FusedConfig(gemm, world, push, stripe if push is Transport.LSA else None)


# --- order ---

ORDERS = [
    (fused(2, Transport.SDMA), 2 * 128 * 13, 8),
    (fused(8, Transport.SDMA), 8 * 128 * 5 - 77, 3),  # an odd number of tiles past one round of workgroups
    (fused(3, Transport.SDMA, n=256 * 7), 3 * 128 * 13 + 1, 4),
    (fused(7, Transport.SDMA, tile=Tile.M256_N128, n=640), 7 * 256 * 9, 64),
    (fused(2, Transport.LSA, n=256 * 7, stripe=2), 2 * 128 * 9, 1),
    (fused(8, Transport.LSA, n=256 * 5, stripe=3), 8 * 128 * 2 + 5, 1),
    (fused(5, Transport.LSA, n=256 * 4, stripe=4), 5 * 128 * 3, 1),
]  # fmt: skip


@pytest.mark.parametrize(("config", "m", "chunks"), ORDERS, ids=lambda value: getattr(value, "key", str(value)))
def test_the_device_takes_tiles_in_the_order_of_the_grid(config: FusedConfig, m: int, chunks: int) -> None:
    """Which XCDs a workgroup goes to is MI355X's; a kernel of one wave that stores where it stands."""
    grid, tile = FusedGrid(config, m, chunks), config.gemm.tile
    for rank in {0, config.world - 1}:
        for block, place in enumerate(places(grid, rank)):
            dest, band, column = grid.tile(grid.number_of_block(block, MI355X), rank)
            row = dest * grid.slices.slice_rows + band * tile.m
            said = tuple(place[name] for name in ("dest", "band", "row", "column"))
            assert said == (dest, band, row, column * tile.n), f"block {block}"
            if row >= m:
                continue
            assert place["rows"] == min(m - row, tile.m)
            assert place["columns"] == min(config.gemm.n - column * tile.n, tile.n)
            if config.stripe is None:
                chunk = grid.table.chunk_of(band)
                rows = grid.rows(dest, chunk)
                told = tuple(place[f"chunk_{name}"] for name in ("number", "row", "rows"))
                assert told == (chunk, rows.start, len(rows)), f"block {block}"
                assert place["chunk_bands"] * config.columns == grid.arrivals(dest, chunk)


# --- what leaves ---


def product_of(config: GemmConfig, operands: Operands, m: int) -> torch.Tensor:
    """The plain kernel's result."""
    out = torch.zeros(m, config.n, dtype=torch.bfloat16)
    tensors = {"a": operands.a, "b": operands.b, "c": out, "a_scale": operands.a_scale, "b_scale": operands.b_scale}
    code = default_store().get(config)
    run_kernel(code, (config.blocks(m), 1, 1), (512, 1, 1), (*tensors.values(), m), tensors)
    return out


def bits(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.view(torch.int16)


def untouched(memory: torch.Tensor, nbytes: int) -> bool:
    """Whether nobody wrote behind the first bytes."""
    return bool((memory[nbytes:] == FILL).all())


def assert_sent(gpu: OneGpu, grid: FusedGrid, rank: int, product: torch.Tensor) -> None:
    """Every peer has its rows and nothing more; nothing is left in a counter."""
    config = gpu.config
    for owner in range(config.world):
        own = grid.slices.slice(owner)
        slot = gpu.landing(owner, rank)
        sends = owner != rank or config.push is Transport.LSA
        nbytes = len(own) * config.gemm.n * 2 if sends else 0
        if sends:
            assert torch.equal(bits(gpu.rows(slot, len(own))), bits(product[own.start : own.stop]))
        assert untouched(slot, nbytes), f"owner {owner}"
        for other in range(config.world):
            assert other == rank or untouched(gpu.landing(owner, other), 0)
    assert not gpu.counters(rank).any() and not gpu.error.any()
    if config.push is Transport.LSA:
        assert untouched(gpu.input(rank), 0)
    else:
        memory = gpu.input(rank)
        assert torch.equal(bits(gpu.rows(memory, grid.m)), bits(product))
        assert untouched(memory, grid.m * config.gemm.n * 2)


RAGGED = [2 * 128, 2 * 128 + 1, 3 * 128 - 1, 4 * 128 - 100]


@pytest.mark.parametrize("push", Transport, ids=lambda push: push.value)
@pytest.mark.parametrize("m", RAGGED)
def test_rows_past_m_are_never_written(push: Transport, m: int) -> None:
    config = fused(2, push)
    operands, grid, gpu = random_operands(Recipe.PTPC, m, N, K, m), FusedGrid(config, m, 2), OneGpu(config, 4 * 128)
    gpu.run(grid, 1, operands)
    product = product_of(config.gemm, operands, m)
    check(product, operands, K)
    assert_sent(gpu, grid, 1, product)


@pytest.mark.parametrize(
    ("recipe", "tile", "push"),
    [
        (Recipe.BLOCKSCALE, Tile.M256_N128, Transport.SDMA),
        (Recipe.MXFP8, Tile.M128_N256, Transport.LSA),
        (Recipe.PTPC, Tile.M256_N256, Transport.SDMA),
    ],
    ids=lambda value: getattr(value, "value", str(value)),
)
def test_every_recipe_stores_what_the_plain_kernel_stores(recipe: Recipe, tile: Tile, push: Transport) -> None:
    config = fused(3, push, recipe, tile)
    m = 3 * tile.m - 40
    operands, grid, gpu = random_operands(recipe, m, N, K, 5), FusedGrid(config, m, 1), OneGpu(config, m)
    gpu.run(grid, 2, operands)
    assert_sent(gpu, grid, 2, product_of(config.gemm, operands, m))


@pytest.mark.parametrize("queues", [1, 2])
@pytest.mark.parametrize(("world", "bands", "chunks"), [(2, 5, 3), (8, 1, 8)])
def test_a_chunk_is_put_once_and_whole(world: int, bands: int, chunks: int, queues: int) -> None:
    """Bytes on the wire are those of the chunk's rows, the last band's missing rows not among them."""
    config = fused(world, Transport.SDMA, n=128)
    m = world * bands * 128 - 71
    grid, gpu = FusedGrid(config, m, chunks), OneGpu(config, m, queues)
    operands = random_operands(Recipe.PTPC, m, 128, K, 3)
    gpu.run(grid, 0, operands)
    assert_sent(gpu, grid, 0, product_of(config.gemm, operands, m))
    assert not gpu.copies(0)
    for dest in range(1, world):
        rows = [grid.rows(dest, chunk) for chunk in range(grid.table.chunks)]
        wanted = sorted((run.start - grid.slices.slice(dest).start, len(run)) for run in rows if len(run))
        start, pitch = gpu.landing(dest, 0).data_ptr(), 2 * 128
        put = sorted(((copy.target - start) // pitch, copy.nbytes / pitch) for copy in gpu.copies(dest))
        assert put == wanted
        product = gpu.input(0).data_ptr()
        assert all((c.source - product) // pitch - grid.slices.slice(dest).start == (c.target - start) // pitch
                   for c in gpu.copies(dest))  # fmt: skip


def test_counters_serve_any_m_in_any_order() -> None:
    """One window, chunks of other sizes at each call, nothing reset in between."""
    config = fused(2, Transport.SDMA, n=128)
    gpu = OneGpu(config, 5 * 256)
    for seed, (m, chunks) in enumerate([(1280, 3), (256, 1), (1100, 64), (300, 2), (1280, 2)]):
        gpu.windows[:, gpu.map.offset("input") :] = FILL
        operands, grid = random_operands(Recipe.PTPC, m, 128, K, seed), FusedGrid(config, m, chunks)
        gpu.run(grid, 0, operands)
        assert_sent(gpu, grid, 0, product_of(config.gemm, operands, m))


def test_a_rank_that_has_failed_puts_nothing() -> None:
    config = fused(2, Transport.SDMA)
    m = 2 * 128
    gpu, operands = OneGpu(config, m), random_operands(Recipe.PTPC, m, N, K, 1)
    gpu.run(FusedGrid(config, m, 1), 0, operands, claim=1)
    assert untouched(gpu.landing(1, 0), 0) and not gpu.copies(1)
    assert not gpu.counters(0).any()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("push", Transport, ids=lambda push: push.value)
def test_weak_memory_and_races(push: Transport, seed: int) -> None:
    """Engines read what was released to memory; chunks of two bands, so that most tiles are not their chunk's last."""
    config, m = fused(2, push, n=128), 2 * 4 * 128 - 5
    gpu = OneGpu(config, m, node=Node(1, memory=WeakMemory(seed)) if seed else Node(1, races=RaceDetector()))
    operands, grid = random_operands(Recipe.PTPC, m, 128, K, 9), FusedGrid(config, m, 2)
    gpu.run(grid, 1, operands)
    product, own = product_of(config.gemm, operands, m), grid.slices.slice(0)
    assert torch.equal(bits(gpu.rows(gpu.landing(0, 1), len(own))), bits(product[own.start : own.stop]))
