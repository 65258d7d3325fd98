# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What stands beside the product: other libraries, as far as they are installed. Timed on GPUs only."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from mori_gemm_ar.hwcheck.hardware import Rank
from mori_gemm_ar.hwcheck.report import Verdict
from mori_gemm_ar.hwcheck.section import Log

_ROWS, _COLUMNS = 4096, 7168
_OTHERS = ("aiter", "mori.ops.gemm_ar")


def baselines(rank: Rank, log: Log) -> None:
    """torch's all-reduce over RCCL is timed; of the others it is noted whether they could be. Collective."""
    for name in _OTHERS:
        there = _importable(name)
        detail = "importable; `benchmark/` times it" if there else "not importable"
        log.add(f"baseline {name}", Verdict.NOTE if there else Verdict.NOT_RUN, detail)
    if rank.timer is None or rank.timer.predicted:
        log.add("baseline torch all-reduce", Verdict.NOT_RUN, "no GPU")
    elif not _rccl():
        log.add("baseline torch all-reduce", Verdict.NOT_RUN, "the default group is not RCCL's; init it with 'nccl'")
    else:
        us = _torch_us(rank)
        shape = f"[{_ROWS}, {_COLUMNS}] bf16"
        log.add("baseline torch all-reduce", Verdict.NOTE, f"{us:.1f} us for {shape}", time_us=us, shape=shape)


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # of a parent package
        return False


def _rccl() -> bool:
    import torch.distributed as dist

    return dist.is_initialized() and "nccl" in str(dist.get_backend())


def _torch_us(rank: Rank) -> float:
    import torch.distributed as dist

    assert rank.timer is not None
    x = torch.ones(_ROWS, _COLUMNS, dtype=torch.bfloat16, device=rank.target.torch_device)
    action: Callable[[], Any] = lambda: dist.all_reduce(x)  # noqa: E731
    action()
    times = []
    for _ in range(rank.settings.effort.samples):
        rank.world.exchange("meet", None)
        own = rank.timer.time_us(action)
        times.append(max(float(str(one)) for one in rank.world.exchange("time", own)))
    return median(times)
