# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Timed and verified calls of what ships, as RESULT_JSON rows that `model fit` takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch

from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.hwcheck.hardware import Rank
from mori_gemm_ar.hwcheck.launching import launch_of, loaded, submit
from mori_gemm_ar.hwcheck.readings import Bench
from mori_gemm_ar.layout.gemm import GemmConfig, a_scale_shape, b_scale_shape
from mori_gemm_ar.layout.gemm_terms import BLayout, Recipe, Tile
from mori_gemm_ar.layout.sdma import Transport
from mori_gemm_ar.layout.terms import Stage

COLUMNS = 7168  # of the all-reduces: the hidden size that published figures are for
# The tile that the model's wave times stand for.
NATIVE = {Recipe.PTPC: Tile.M256_N256, Recipe.BLOCKSCALE: Tile.M128_N256, Recipe.MXFP8: Tile.M256_N256}
ONE_STAGE_ROWS = 512  # above it no call has one stage

Row = dict[str, Any]


def common(rank: Rank) -> Row:
    """What all rows of a run say about it."""
    return {"software": "hwcheck", "predicted": _predicted(rank)}


def _predicted(rank: Rank) -> bool:
    return rank.timer is None or rank.timer.predicted


def device_of(rank: Rank) -> str:
    """How rows name the device: times of a stand-in are predicted, and say so."""
    return "stand-in" if _predicted(rank) else rank.target.name


# --- all-reduces ---


def all_reduce_rows(bench: Bench, transport: Transport) -> Iterator[Row]:
    """[rows, 7168] bf16 as graph replays, each checked against the exact sum. Collective."""
    rank = bench.rank
    rows = bench.effort.all_reduce_rows
    stages: tuple[Stage | None, ...] = tuple(Stage) if transport is Transport.LSA else (None,)
    for stage in stages:
        chosen = [m for m in rows if stage is not Stage.ONE or m <= ONE_STAGE_ROWS]
        with AllReduceOp.create(
            rank.world, max_bytes=max(chosen) * COLUMNS * 2, stage=stage, dtypes=(torch.bfloat16,), transport=transport
        ) as op:
            for m in chosen:
                yield all_reduce_row(bench, op, m, transport, stage)


def all_reduce_row(bench: Bench, op: AllReduceOp, m: int, transport: Transport, stage: Stage | None) -> Row:
    """One shape: verified, then timed as a graph. Collective."""
    rank = bench.rank
    x = op.buffer((m, COLUMNS), torch.bfloat16)
    right = float(sum(range(1, rank.size + 1)))
    x.fill_(rank.rank + 1)
    out = torch.zeros_like(x)
    op(x, out=out)
    op.check()
    wrong = int((out != right).sum())
    validated = not any(rank.world.exchange("validated", wrong))
    with op.target.record() as recording:
        op(x, out=out)
    times = bench.times(recording.replay, graph=True)
    op.check()
    resolved = {"backend": transport.value, "stage": None if stage is None else 1 if stage is Stage.ONE else 2}
    return {
        "benchmark": "all_reduce", "m": m, "n": COLUMNS, "world_size": rank.size, "validated": validated,
        "time_us": median(times), "spread_us": [min(times), max(times)], "resolved": resolved,
    }  # fmt: skip


# --- GEMMs ---


def gemm_rows(bench: Bench, recipe: Recipe) -> Iterator[Row]:
    """The native tile of a recipe on numbers of tiles and K, on rank 0; its kernel alone and as a graph."""
    tile = NATIVE[recipe]
    effort = bench.effort
    for tiles, k in effort.gemms if recipe is Recipe.BLOCKSCALE else effort.few_gemms:
        high = next(n for n in range(int(tiles**0.5), 0, -1) if tiles % n == 0)
        row = _gemm_row(bench, recipe, tile, (tile.m * high, tile.n * (tiles // high), k))
        if row is not None:
            yield row


def _gemm_row(bench: Bench, recipe: Recipe, tile: Tile, shape: tuple[int, int, int]) -> Row | None:
    rank = bench.rank
    run, check = (None, None) if rank.rank else _gemm(rank, recipe, tile, shape)
    action: Callable[[], object] = run or (lambda: None)
    kernel = bench.times(action, everyone=False, heavy=True)
    replay: Callable[[], object] = action
    if run is not None:
        with rank.target.record() as recording:
            run()
        replay = recording.replay
    graph = bench.times(replay, everyone=False, graph=True, heavy=True)
    if check is None:
        return None
    m, n, k = shape
    return {
        "mode": "gemm-only", "m": m, "n": n, "k": k, "world_size": 1, "quant": recipe.value, "validated": check(),
        "time_us": median(graph), "spread_us": [min(graph), max(graph)], "phases_us": {"gemm": median(kernel)},
        "resolved": {"mode": "gemm-only", "tile": f"{tile.m}x{tile.n}"},
    }  # fmt: skip


def _gemm(
    rank: Rank, recipe: Recipe, tile: Tile, shape: tuple[int, int, int]
) -> tuple[Callable[[], object], Callable[[], bool]]:
    """A launch of the kernel, and whether its product was exact."""
    m, n, k = shape
    target = rank.target
    generator = torch.Generator().manual_seed(m * n + k)
    a, b = (torch.randint(-2, 3, (rows, k), generator=generator).float() for rows in (m, n))
    scale = torch.uint8 if recipe is Recipe.MXFP8 else torch.float32
    one = 127 if recipe is Recipe.MXFP8 else 1
    tensors = {
        "a": a.to(torch.float8_e4m3fn), "b": b.to(torch.float8_e4m3fn),
        "c": torch.empty(m, n, dtype=torch.bfloat16),
        "a_scale": torch.full(a_scale_shape(recipe, m, k), one, dtype=scale),
        "b_scale": torch.full(b_scale_shape(recipe, n, k), one, dtype=scale),
    }  # fmt: skip
    tensors = {name: tensor.to(target.torch_device) for name, tensor in tensors.items()}
    config = GemmConfig(recipe, n, k, tile, BLayout.ROW)
    arguments = {name: tensor.data_ptr() for name, tensor in tensors.items()} | {"m": m}
    launch = launch_of(loaded(target, config), arguments, config.blocks(m))

    def exact() -> bool:
        target.synchronize()
        # On the device: integers are exact in fp32, and a CPU would take minutes for the largest ones.
        right = a.to(target.torch_device) @ b.to(target.torch_device).T
        return bool((tensors["c"] == right.bfloat16()).all())

    return lambda: submit(target, [launch], tensors), exact
