# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""All-reduces of others on the data of our own: torch's group, and aiter's custom all-reduce. One row for each.

A row is `measured`, `declined` with the reason why it could not run, or `failed`. Ranks agree on it through the world
of the op, whose meetings go over torch's key-value store, so a baseline that fails on one rank does not hang another.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from benchmark.all_reduce_cases import Case, Verdict, close_verdict, data, reference, rounding_limit
from benchmark.all_reduce_rank import failures, slowest, summary, timed
from benchmark.report import print_table
from mori_gemm_ar.errors import MoriGemmArError

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

    from mori_gemm_ar.runtime import World

NAME = "all_reduce_baseline"
TIMEOUT_S = 120.0  # of a collective of torch's group: a lost peer must not cost its default of half an hour
AITER_MODULE = "aiter.dist.device_communicators.custom_all_reduce"
AITER_BYTES = 1 << 24  # least capacity of aiter's buffers; it needs room for its own header


class Outcome(str, Enum):
    """How a baseline ended."""

    MEASURED = "measured"  # every call verified, then timed
    DECLINED = "declined"  # did not run, for a reason that the row names
    FAILED = "failed"  # ran, and gave a wrong sum or an error


class Declined(Exception):
    """A baseline does not run here; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Running:
    """A baseline that has started. `reduce` may work in place; it returns the sum."""

    device: torch.device
    reduce: Callable[[torch.Tensor], torch.Tensor]
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Baseline:
    """How a baseline runs. `require` raises `Declined` and waits for nobody; `start` is collective."""

    require: Callable[[], None]
    start: Callable[[Case], Running]


# --- what runs ---


def own_gpu() -> torch.device | None:
    """This rank's AMD GPU, if every local rank has one."""
    import torch

    local, ranks = (int(os.environ.get(name, 0)) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    if torch.version.hip is None or not torch.cuda.is_available() or torch.cuda.device_count() < max(ranks, 1):
        return None
    return torch.device("cuda", local)


def torch_backend() -> str:
    """Backend of torch's group: RCCL, which torch calls nccl, where each rank has a GPU, else gloo on the CPU."""
    return "gloo" if own_gpu() is None else "nccl"


def _new_group(backend: str) -> ProcessGroup:
    # A group of its own: a gloo collective that fails takes its group with it.
    import torch.distributed as dist

    return dist.new_group(backend=backend, timeout=timedelta(seconds=TIMEOUT_S))


def start_torch(case: Case) -> Running:
    """torch.distributed.all_reduce."""
    import torch
    import torch.distributed as dist

    group = _new_group(torch_backend())

    def reduce(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x, group=group)
        return x

    return Running(own_gpu() or torch.device("cpu"), reduce, lambda: dist.destroy_process_group(group))


def require_aiter() -> None:
    """Raise `Declined` where aiter cannot run; importing it compiles, so that is not tried without need."""
    if find_spec("aiter") is None:
        raise Declined("aiter is not importable; install it on a machine with ROCm and a gfx950")
    if own_gpu() is None:
        raise Declined("aiter needs torch's ROCm build and an AMD GPU for each rank")


def start_aiter(case: Case) -> Running:
    """aiter's CustomAllreduce, as its public source has it: it attaches to a group that is not RCCL's."""
    import importlib

    device = own_gpu()
    assert device is not None, "require_aiter went before"
    try:
        kind = importlib.import_module(AITER_MODULE).CustomAllreduce
    except (ImportError, AttributeError) as error:
        raise Declined(f"aiter must offer {AITER_MODULE}.CustomAllreduce; {error}") from error
    try:
        own = kind(_new_group("gloo"), device, max_size=max(case.max_bytes, AITER_BYTES))
    except TypeError as error:
        raise Declined(f"aiter's CustomAllreduce must take (group, device, max_size); {error}") from error
    if own.disabled:
        raise Declined("aiter's CustomAllreduce is disabled here; its log says why (it takes 2, 4, 6 or 8 ranks)")

    def reduce(x: torch.Tensor) -> torch.Tensor:
        result = own.custom_all_reduce(x)
        if result is None:
            raise Declined(f"aiter's CustomAllreduce does not take {case.max_bytes} bytes; it leaves them to RCCL")
        return result

    return Running(device, reduce, own.close)


def require_torch() -> None:
    """Raise `Declined` where torch's group cannot sum."""
    import torch.distributed as dist

    backend = torch_backend()
    if not (dist.is_nccl_available() if backend == "nccl" else dist.is_gloo_available()):
        raise Declined(f"torch must be built with {backend}")


BASELINES = {"torch": Baseline(require_torch, start_torch), "aiter": Baseline(require_aiter, start_aiter)}


# --- one baseline ---


def _tried(world: World, step: str, work: Callable[[], Any]) -> Any:
    """Collective: a result on all ranks, or `Declined` or `MoriGemmArError` on all ranks with the first one's text."""
    result: Any = None
    problem: tuple[Outcome, str] | None = None
    try:
        result = work()
    except Declined as reason:
        problem = (Outcome.DECLINED, str(reason))
    except Exception as error:  # a third party's; every rank has to hear of it
        problem = (Outcome.FAILED, f"{type(error).__name__}: {error}")
    all_ranks = cast("list[tuple[Outcome, str] | None]", world.exchange(step, problem))
    found = [(rank, *one) for rank, one in enumerate(all_ranks) if one is not None]
    if not found:
        return result
    rank, kind, text = found[0]
    text = text if len(found) == world.size else f"rank {rank}: {text}"
    raise Declined(text) if kind is Outcome.DECLINED else MoriGemmArError(text)


def _timed(running: Running, x: torch.Tensor) -> tuple[torch.Tensor, float, float | None]:
    return timed(running.device, lambda: running.reduce(x))


def _calls(world: World, case: Case, running: Running) -> list[list[Verdict]]:
    """Every call verified against the fp32 sum, within what rounding each addition costs."""
    calls: list[list[Verdict]] = []
    for call in range(case.warmup + case.calls):
        x = data(case, call, world.rank).to(running.device)
        world.exchange("start", None)
        result, seconds, us = _tried(world, "all-reduce of others", partial(_timed, running, x))
        expected = reference(case, call, world.size)
        gate = (0.0, rounding_limit(case, expected, world.size))
        where = f"call {call}, rank {world.rank} of {world.size}, {case.dtype.label} [{case.m}, {case.n}]"
        verdict = close_verdict(result.cpu(), expected, gate, where, seconds, us)
        calls.append(cast("list[Verdict]", world.exchange("verdict", verdict)))
        if failures(calls[-1], alike=False):
            break
    return calls


def _measured(world: World, case: Case, baseline: Baseline) -> dict[str, Any]:
    """Collective: the fields of a row, equal on all ranks."""
    running: Running | None = None
    try:
        # First what waits for nobody: a rank that declines must not leave others in a collective.
        _tried(world, "what others need", baseline.require)
        running = _tried(world, "start of others", lambda: baseline.start(case))
        calls = _calls(world, case, running)
        wall = slowest(case, calls, "seconds", alike=False)
        on_gpu = slowest(case, calls, "time_us", alike=False)
        found = summary(calls, alike=False)
        return {
            **found,
            "outcome": Outcome.MEASURED if found["validated"] else Outcome.FAILED,
            "device": str(running.device),
            "time_us": statistics.median(on_gpu) if on_gpu else None,
            "wall_s": statistics.median(wall) if wall else None,
            "wall_best_s": min(wall, default=None),
        }
    except Declined as reason:
        return {"outcome": Outcome.DECLINED, "reason": str(reason)}
    except MoriGemmArError as error:
        return {"outcome": Outcome.FAILED, "validated": False, "failure": str(error)}
    finally:
        if running is not None:
            running.close()


# --- rows ---

# Fields that only a run can fill.
_RUN = (
    "outcome",
    "reason",
    "validated",
    "failure",
    "rel_l2",
    "bitwise_equal_across_ranks",
    "digest",
    "calls_verified",
    "device",
    "time_us",
    "wall_s",
    "wall_best_s",
)


def _row(name: str, world_size: int, case: Case, fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "benchmark": NAME,
        "backend": torch_backend() if name == "torch" else name,
        **dict.fromkeys(_RUN),
        **fields,
        "outcome": fields["outcome"].value,
        **case.origin(world_size),
    }


def measured_rows(world: World, case: Case) -> list[dict[str, Any]]:
    """Collective: one row for each baseline, equal on all ranks."""
    return [_row(name, world.size, case, _measured(world, case, baseline)) for name, baseline in BASELINES.items()]


def declined_rows(world_size: int, case: Case, reason: str) -> list[dict[str, Any]]:
    """Rows of baselines none of which can run."""
    fields = {"outcome": Outcome.DECLINED, "reason": reason}
    return [_row(name, world_size, case, fields) for name in BASELINES]


def any_failed(rows: list[dict[str, Any]]) -> bool:
    """Whether a baseline ran and went wrong; one that declined did not."""
    return any(row["outcome"] == Outcome.FAILED.value for row in rows)


def show(rows: list[dict[str, Any]]) -> None:
    """The rows as a table on stderr; nothing where there are none."""
    if not rows:
        return
    lines = []
    for row in rows:
        text = row["reason"] or row["failure"]
        if row["outcome"] == Outcome.MEASURED.value:
            text = f"relative L2 {row['rel_l2']:.2e}, {row['device']}, median {row['wall_s'] * 1e3:.2f} ms of the host"
        lines.append((row["backend"], row["outcome"], text))
    print_table("baselines, on the same data", ("", "", ""), lines)
