# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Section 4: the ops as users call them. Self-test, every mode verified at a few shapes, and times if there are any.

`PRODUCTS` is the list of what is tried; a new op takes one line there and one function.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.errors import CompileError, ConfigError, MissingDependencyError, MoriGemmArError
from mori_gemm_ar.gemm import GemmOp
from mori_gemm_ar.hwcheck import rows
from mori_gemm_ar.hwcheck.baselines import baselines
from mori_gemm_ar.hwcheck.hardware import Rank
from mori_gemm_ar.hwcheck.readings import Bench
from mori_gemm_ar.hwcheck.report import Verdict
from mori_gemm_ar.hwcheck.section import Log, first_of
from mori_gemm_ar.layout.gemm import a_scale_shape, b_scale_shape
from mori_gemm_ar.layout.gemm_terms import BLayout, Recipe, Tile
from mori_gemm_ar.layout.sdma import Transport
from mori_gemm_ar.layout.terms import Stage
from mori_gemm_ar.op import GemmAllReduceOp, Mode, Tail, Tuning

_LAYERS = (Mode.SPLIT_LSA, Mode.SPLIT_SDMA, Mode.FUSED_SDMA, Mode.FUSED_LSA)
_SHAPES = ((1,), (12345,), (64, 1024), (3, 7168))
_GEMM_ROWS = (1, 33, 200)
_N, _K = 512, 256
_LARGEST = 1 << 18  # bytes of a verified call
_TIMED_ROWS = (64, 512, 4096, 16384)


@dataclass(frozen=True, slots=True)
class Product:
    """One mode of an op. `run` verifies it and returns its RESULT_JSON rows; it raises, or says what was wrong.

    Collective. `ranks`: the fewest that it makes sense on. `run` is None where nothing drives the op of `module` yet.
    """

    name: str
    run: Callable[[Rank], tuple[str | None, list[dict[str, Any]]]] | None
    ranks: int = 1
    module: str = ""

    @property
    def reason_not_built(self) -> str | None:
        """Why this version cannot try it."""
        if self.module and not _there(self.module):
            return f"{self.module} is not part of this version"
        return None if self.run is not None else f"nothing in PRODUCTS drives {self.module}"


def _there(module: str) -> bool:
    """Whether a module has a source; a folder left behind by another version has none."""
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None


def product(rank: Rank, log: Log) -> None:
    """Every product, then the baselines that can be imported. Collective."""
    for one in PRODUCTS:
        if any(rank.world.exchange("time", rank.budget.left < 0)):
            log.out_of_time(one.name)
            return
        reason = one.reason_not_built
        if reason is not None:
            log.add(one.name, Verdict.NOT_BUILT, reason)
        elif rank.size < one.ranks:
            log.add(one.name, Verdict.NOT_RUN, f"needs {one.ranks} ranks")
        else:
            _try(rank, log, one)
    baselines(rank, log)


def _try(rank: Rank, log: Log, one: Product) -> None:
    wrong: str | None = None
    unanswered: str | None = None
    found: list[dict[str, Any]] = []
    assert one.run is not None
    try:
        wrong, found = one.run(rank)
    except (ConfigError, MissingDependencyError, CompileError) as error:
        unanswered = f"{type(error).__name__}: {error}"
    except MoriGemmArError as error:
        wrong = f"{type(error).__name__}: {error}"
    wrong = first_of(rank, one.name, wrong)
    unanswered = first_of(rank, f"{one.name}, no answer", unanswered)
    if wrong is None and unanswered is not None:
        log.add(one.name, Verdict.FAILED, unanswered)
        return
    log.judge(one.name, wrong, "verified", results=found)
    log.rows.extend(row | rows.common(rank) | {"device": rows.device_of(rank), "group": one.name} for row in found)


# --- all-reduce ---


def _all_reduce(rank: Rank, transport: Transport, stage: Stage | None) -> tuple[str | None, list[dict[str, Any]]]:
    """Integers, whose sum has one right value in every format; new ones in every call."""
    timed = rank.timer is not None and not rank.timer.predicted
    largest = max(_TIMED_ROWS) * rows.COLUMNS * 2 if timed else _LARGEST
    with AllReduceOp.create(rank.world, max_bytes=largest, stage=stage, transport=transport) as op:
        op.self_test()
        generator = torch.Generator().manual_seed(rank.settings.seed)
        for dtype in op.dtypes:
            for shape in _SHAPES:
                wrong = _one_sum(rank, op, torch.randint(-8, 9, (rank.size, *shape), generator=generator), dtype)
                if wrong is not None:
                    return f"{dtype} {shape}: {wrong}", []
        return None, _timed(rank, op, transport, stage) if timed else []


def _one_sum(rank: Rank, op: AllReduceOp, inputs: torch.Tensor, dtype: torch.dtype) -> str | None:
    x = inputs[rank.rank].to(dtype).to(op.target.torch_device)
    right = inputs.sum(dim=0).to(dtype)
    for way in ("new tensor", "in place"):
        total = op(x) if way == "new tensor" else op(x, out=x)
        op.check()
        wrong = (total.cpu() != right).nonzero()
        if len(wrong):
            at = tuple(int(n) for n in wrong[0])
            return f"{way}, element {at} is {total.cpu()[at].item()}, not {right[at].item()}; {len(wrong)} are wrong"
    return None


def _timed(rank: Rank, op: AllReduceOp, transport: Transport, stage: Stage | None) -> list[dict[str, Any]]:
    assert rank.timer is not None
    chosen = [m for m in _TIMED_ROWS if stage is not Stage.ONE or m <= rows.ONE_STAGE_ROWS]
    bench = Bench(rank, rank.timer)
    return [rows.all_reduce_row(bench, op, m, transport, stage) for m in chosen]


# --- GEMM ---


def _gemm(rank: Rank, recipe: Recipe) -> tuple[str | None, list[dict[str, Any]]]:
    """Small integers and scales of one: the product is exact. On the stand-in rank 0 does it for all."""
    if rank.together and rank.rank:
        return None, []
    op = GemmOp.create(rank.world, n=_N, k=_K, quant=recipe, b_layout=BLayout.ROW)
    device = op.target.torch_device
    generator = torch.Generator().manual_seed(rank.settings.seed)
    scale, one = (torch.uint8, 127) if recipe is Recipe.MXFP8 else (torch.float32, 1)
    for m in _GEMM_ROWS:
        a, b = (torch.randint(-2, 3, (n, _K), generator=generator).float() for n in (m, _N))
        shapes = a_scale_shape(recipe, m, _K), b_scale_shape(recipe, _N, _K)
        scales = [torch.full(shape, one, dtype=scale, device=device) for shape in shapes]
        product = op(*(x.to(torch.float8_e4m3fn).to(device) for x in (a, b)), *scales)
        op.target.synchronize()
        wrong = (product.cpu() != (a @ b.T).bfloat16()).nonzero()
        if len(wrong):
            return f"m={m}: element {wrong[0].tolist()} and {len(wrong) - 1} others are wrong", []
    return None, []


# --- GEMM and all-reduce ---


def _layer(rank: Rank, mode: Mode, tail: Tail = Tail.PHASED) -> tuple[str | None, list[dict[str, Any]]]:
    """Small integers and scales of one: every rank's product is exact, and so is their sum in fp32."""
    least = rank.size * Tile.M128_N256.m
    shape: dict[str, Any] = {"n": _N, "k": _K, "m_max": least + 40, "quant": Recipe.BLOCKSCALE, "b_layout": BLayout.ROW}
    with GemmAllReduceOp.create(rank.world, **shape, mode=mode, tuning=Tuning(tail=tail)) as op:
        op.self_test()
        device = op.target.torch_device
        generator = torch.Generator().manual_seed(rank.settings.seed)
        for m in (least + 40, 5, least):
            factors = [[torch.randint(-2, 3, (n, _K), generator=generator) for n in (m, _N)] for _ in range(rank.size)]
            products = [(a.float() @ b.float().T).bfloat16().float() for a, b in factors]
            right = sum(products[1:], products[0]).bfloat16()
            a, b = (x.float().to(torch.float8_e4m3fn).to(device) for x in factors[rank.rank])
            shapes = a_scale_shape(Recipe.BLOCKSCALE, m, _K), b_scale_shape(Recipe.BLOCKSCALE, _N, _K)
            result = op(a, b, *(torch.ones(shape, device=device) for shape in shapes))
            op.check()
            wrong = (result.cpu() != right).nonzero()
            if len(wrong):
                return f"m={m}, {op.plan(m).label}: element {wrong[0].tolist()} and {len(wrong) - 1} others", []
    return None, []


PRODUCTS: tuple[Product, ...] = (
    *(
        Product(
            f"all-reduce lsa, stage {stage.name.lower()}", partial(_all_reduce, transport=Transport.LSA, stage=stage)
        )
        for stage in Stage
    ),
    Product("all-reduce sdma", partial(_all_reduce, transport=Transport.SDMA, stage=None), ranks=2),
    *(Product(f"gemm {recipe.value}", partial(_gemm, recipe=recipe)) for recipe in Recipe),
    *(Product(f"gemm and all-reduce, {mode.value}", partial(_layer, mode=mode), ranks=2) for mode in _LAYERS),
    Product(
        "gemm and all-reduce, fused-sdma streamed", partial(_layer, mode=Mode.FUSED_SDMA, tail=Tail.STREAMED), ranks=2
    ),
)
