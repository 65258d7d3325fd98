# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""One rank's part of the all-reduce benchmark: create, verify every call, time, and say what really ran."""

from __future__ import annotations

import hashlib
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

from benchmark.all_reduce_cases import Case, Verdict, close_verdict, data, exact_verdict, reference, wire_gate
from mori_gemm_ar.layout import Wire

if TYPE_CHECKING:
    import torch

    from mori_gemm_ar.ar.op import AllReduceOp, CallPlan, World

T = TypeVar("T")


def measure(world: World, case: Case, on_call: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Collective: the measured fields of the row, equal on all ranks.

    The first `warmup` calls only verify; the others verify and are timed, unless a check failed before. `on_call`
    runs on rank 0 after each call.
    """
    from mori_gemm_ar.ar import AllReduceOp

    calls: list[list[Verdict]] = []
    with AllReduceOp.create(world, case.max_bytes, **case.create_options) as op:
        plan = _plan(op, case)
        for call in range(case.warmup + case.calls):
            verdict = _one_call(world, op, case, call, _wire(op))
            calls.append(cast("list[Verdict]", world.exchange("verdict", verdict)))
            if world.rank == 0:
                on_call()
            if failures(calls[-1]):
                break
        return {**summary(calls), **_times(op, case, calls), "resolved": _resolution(world, op, case, plan)}


def _plan(op: AllReduceOp, case: Case) -> CallPlan:
    numel = case.m * case.n
    in_window = case.in_place and case.zero_copy and numel > 0
    return op.plan(numel, case.torch_dtype, in_window, case.n if _wire(op).per_row else None)


def _wire(op: AllReduceOp) -> Wire:
    """What crosses the links: an op may narrow what was asked for, as a world of one does."""
    return op.wire


def _one_call(world: World, op: AllReduceOp, case: Case, call: int, wire: Wire) -> Verdict:
    """New data, one timed call, the input overwritten at once, then the check."""
    import torch

    x = data(case, call, world.rank).to(op.target.torch_device)
    if case.zero_copy:
        x = op.buffer(x.shape, x.dtype).copy_(x)
    out = x if case.in_place else torch.full_like(x, math.nan)
    world.exchange("start", None)
    result, seconds, time_us = timed(x.device, lambda: op(x, out=out))
    if case.in_place:
        result = result.clone()
    x.fill_(math.nan)  # allowed by now: a peer that still reads x would show it
    op.check()
    expected = reference(case, call, world.size)
    where = f"call {call}, rank {world.rank} of {world.size}, {case}"
    if not wire.lossy:
        return exact_verdict(result.cpu(), expected, where, seconds, time_us)
    gate = wire_gate(case, wire, expected, world.size)
    return close_verdict(result.cpu(), expected, gate, where, seconds, time_us)


def timed(device: torch.device, work: Callable[[], T]) -> tuple[T, float, float | None]:
    """Result, seconds on the clock of this process, and microseconds between two events of a GPU's stream."""
    import torch

    if device.type == "cpu":
        started = time.perf_counter()
        return work(), time.perf_counter() - started, None
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    started = time.perf_counter()
    before.record()
    result = work()
    after.record()
    after.synchronize()
    return result, time.perf_counter() - started, before.elapsed_time(after) * 1e3


# --- all ranks' verdicts ---


def failures(verdicts: list[Verdict], alike: bool = True) -> list[str]:
    """What is wrong with one call; `alike`: whether all ranks must hold the same bits."""
    found = [v.failure for v in verdicts if v.failure is not None]
    if alike and not found and len({v.digest for v in verdicts}) > 1:
        found = ["ranks hold different bits"]
    return found


def summary(calls: list[list[Verdict]], alike: bool = True) -> dict[str, Any]:
    """Fields of a row that say whether its results are right. `digest`: of all calls' results, in order."""
    failed = failures(calls[-1], alike)
    rel_l2 = max((v.rel_l2 for verdicts in calls for v in verdicts), key=lambda r: (math.isnan(r), r))
    equal = all(len({v.digest for v in verdicts}) == 1 for verdicts in calls)
    results = "".join(verdicts[0].digest for verdicts in calls)
    return {
        "validated": not failed,
        "failure": failed[0] if failed else None,
        "rel_l2": rel_l2 if math.isfinite(rel_l2) else None,
        "bitwise_equal_across_ranks": equal,
        "digest": hashlib.sha256(results.encode()).hexdigest() if equal and not failed else None,
        "calls_verified": len(calls),
    }


def slowest(case: Case, calls: list[list[Verdict]], field: str, alike: bool = True) -> list[float]:
    """Of each timed call, the time of its slowest rank; none where a check failed, or a rank has no such time."""
    if failures(calls[-1], alike):
        return []

    def worst() -> Iterator[float]:
        for verdicts in calls[case.warmup :]:
            times = [getattr(v, field) for v in verdicts]
            if None not in times:
                yield max(times)

    return list(worst())


def _times(op: AllReduceOp, case: Case, calls: list[list[Verdict]]) -> dict[str, Any]:
    # A CPU's time is none of a GPU, and what the host waits for one is not the emulator's time.
    wall = slowest(case, calls, "seconds") if op.target.name == "emulated" else []
    on_gpu = slowest(case, calls, "time_us")
    return {
        "device": op.target.name,
        "time_us": statistics.median(on_gpu) if on_gpu else None,
        "emulated_wall_s": statistics.median(wall) if wall else None,
        "emulated_wall_best_s": min(wall, default=None),
    }


def _resolution(world: World, op: AllReduceOp, case: Case, plan: CallPlan) -> dict[str, Any]:
    from mori_gemm_ar.layout import AllReduceConfig
    from mori_gemm_ar.layout.sdma import SdmaPhase, Transport, sdma_config
    from mori_gemm_ar.runtime import ProcessWorld

    config, engines = plan.config, plan.transport is Transport.SDMA
    kernels = (
        [sdma_config(world.size, case.dtype, phase, op.wire).key for phase in SdmaPhase] if engines else [config.key]
    )
    return {
        "device": op.target.name,
        "ranks": "processes" if isinstance(world, ProcessWorld) else "threads",
        "kernel": config.key,
        "kernels": kernels,
        "backend": plan.transport.value,
        "queues": op.queues if engines else 0,
        "wire": _wire(op).value,
        "stage": config.stage.value if isinstance(config, AllReduceConfig) else 2,
        "gather": config.gather.value if isinstance(config, AllReduceConfig) else "copied",
        "threads": config.threads,
        "blocks": plan.blocks,
        "in_place": case.in_place,
        "zero_copy": case.zero_copy,
        "timeout_s": op.timeout_s,
    }
