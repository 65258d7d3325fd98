# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""One rank's part of the layer benchmark: create, verify every call with its products, time, and say what ran."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from benchmark.all_reduce_rank import timed as timed_call
from benchmark.layer_cases import Case, ModeChoice, even_slices, operands, overwrite
from benchmark.layer_check import Part, Verdict, check, digest, failure_of, summary
from benchmark.layer_phases import (
    Clock,
    HipClock,
    Timing,
    kernels_of,
    phase_names,
    pipeline_of,
    predicted,
    predicted_gemm,
    single_launches,
    timed,
)
from mori_gemm_ar.errors import CollectiveError
from mori_gemm_ar.layout import GemmConfig, Wire
from mori_gemm_ar.model import Mode

if TYPE_CHECKING:
    import torch

    from mori_gemm_ar.gemm import GemmOp
    from mori_gemm_ar.op import GemmAllReduceOp
    from mori_gemm_ar.runtime import World

Step = Callable[[], None]
BYTES = 2  # of an element of C
GRAPH_STAT = "p50 over samples of the slowest rank, graph replay"  # of time_us


def measure(world: World, case: Case, mode: ModeChoice, on_call: Step = lambda: None) -> dict[str, Any]:
    """Collective: the measured fields of a row, equal on all ranks.

    The first `warmup` calls only verify; the others verify and are timed, unless a check failed before. `on_call`
    runs on rank 0 after each call.
    """
    return _measure_gemm(world, case, on_call) if mode is ModeChoice.GEMM_ONLY else _measure(world, case, mode, on_call)


# ---- with all ranks ------------------------------------------------------------------------------------------


def _measure(world: World, case: Case, mode: ModeChoice, on_call: Step) -> dict[str, Any]:
    from mori_gemm_ar.op import GemmAllReduceOp

    with GemmAllReduceOp.create(
        world, n=case.n, k=case.k, m_max=case.m_max, quant=case.quant, b_layout=case.b_layout, mode=mode.value,
        wire=case.wire, timeout_s=case.timeout_s, tuning=case.tuning(mode),
    ) as op:  # fmt: skip
        plan, wire = op.plan(case.m), case.wire if world.size > 1 else Wire.EXACT
        calls: list[list[Verdict]] = []
        for call in range(case.warmup + case.calls):
            calls.append(_exchanged(world, _one_call(world, op, case, call, wire)))
            if world.rank == 0:
                on_call()
            if failure_of(case, calls[-1], wire, sums=True):
                break
        fields = summary(case, calls, wire, sums=True)
        stored = operands(case, 0, world.rank).stored(case.b_layout)
        kernels = kernels_of(plan, pipeline_of(op, case.m, stored))
        measured = _gpu_times(world, op, case, calls) if _on_gpu(op, case, fields) else {}
        return {
            **fields,
            "device": op.target.name,
            **_cpu_times(op.target.name, case, calls, fields["validated"]),
            **measured,
            "predicted": predicted(op.spec, plan),
            "resolved": {**_resolved(world, op, case), "launches": len(kernels), "kernels": kernels},
        }


def _on_gpu(op: GemmAllReduceOp | GemmOp, case: Case, fields: dict[str, Any]) -> bool:
    """Whether there is something to time."""
    return op.target.name == "rocm" and fields["validated"] and case.m > 0


def _exchanged(world: World, verdict: Verdict) -> list[Verdict]:
    return cast("list[Verdict]", world.exchange("verdict", verdict))


def _one_call(world: World, op: GemmAllReduceOp, case: Case, call: int, wire: Wire) -> Verdict:
    """New operands, one timed call, operands overwritten at once, then the check."""
    own = tuple(x.to(op.target.torch_device) for x in operands(case, call, world.rank).stored(case.b_layout))
    world.exchange("start", None)
    result, seconds, us = timed_call(own[0].device, lambda: op(*own))
    overwrite(own)
    op.check()
    part = _part(world, op, case, result.cpu())
    where = f"call {call}, rank {world.rank} of {world.size}, {op.plan(case.m).label}, {case}"
    return check(case, call, part, result.cpu(), wire, where, seconds, us)


def _part(world: World, op: GemmAllReduceOp, case: Case, result: torch.Tensor) -> Part:
    """The rows that this rank checks, with all ranks' products of them, as the GEMM of this call left them."""
    plan, ranks = op.plan(case.m), tuple(range(world.size))
    world.exchange("called", None)  # behind it every rank's call is over, and no rank waits for one that failed
    if plan.mode is Mode.FUSED_LSA:
        start = min(plan.slice_rows * world.rank, case.m)
        rows = range(start, min(start + plan.slice_rows, case.m))
        slots = op._require_window().map.region("landing").nbytes // world.size
        products = [_held(op, "landing", slots * rank, len(rows)) for rank in ranks]
        return Part(rows, ranks, products, result[rows.start : rows.stop])
    slices = even_slices(case.m, world.size)
    rows = slices[world.rank]
    if plan.fused is not None and plan.fused.wire.both:
        return Part(rows, ranks, None, result[rows.start : rows.stop])  # products are narrow before they are stored
    own = result if plan.mode is Mode.GEMM_ONLY else _held(op, "input", 0, case.m)
    return Part(rows, ranks, _slices_of_all(world, own, slices), result[rows.start : rows.stop])


def _held(op: GemmAllReduceOp, region: str, start: int, rows: int) -> torch.Tensor:
    """bf16 [rows, N] from a region of this rank's window."""
    import torch

    if not rows:
        return torch.empty(0, op.n, dtype=torch.bfloat16)
    data = bytearray(op.target.read(op._require_window().at(region) + start, rows * op.n * BYTES))
    return torch.frombuffer(data, dtype=torch.bfloat16).view(rows, op.n)


def _slices_of_all(world: World, own: torch.Tensor, slices: Sequence[range]) -> list[torch.Tensor]:
    """Collective: this rank's slice of every rank's tensor."""
    import torch

    from mori_gemm_ar.runtime import ProcessWorld

    mine = slices[world.rank]
    if not isinstance(world, ProcessWorld):
        all_ranks = cast("list[torch.Tensor]", world.exchange("products", own))
        return [product[mine.start : mine.stop] for product in all_ranks]
    import torch.distributed as dist

    found = [torch.empty(len(mine), own.shape[1], dtype=own.dtype) for _ in slices]
    for rank, rows in enumerate(slices):
        part = own[rows.start : rows.stop].contiguous().view(torch.uint8)
        if len(rows):
            dist.gather(part, [x.view(torch.uint8) for x in found] if rank == world.rank else None, dst=rank)
    return found


def _cpu_times(device: str, case: Case, calls: list[list[Verdict]], valid: bool) -> dict[str, Any]:
    """What a call took on this CPU, slowest rank; a GPU's calls have no such time."""
    wall = [max(v.seconds for v in verdicts) for verdicts in calls[case.warmup :]]
    shown = wall if valid and device == "emulated" else []
    return {
        "emulated_wall_s": statistics.median(shown) if shown else None,
        "emulated_wall_best_s": min(shown, default=None),
    }


def _gpu_times(world: World, op: GemmAllReduceOp, case: Case, calls: list[list[Verdict]]) -> dict[str, Any]:
    """Collective: columns of HIP events on the operands of call 0, whose result each way of calling must repeat."""
    own = tuple(x.to(op.target.torch_device) for x in operands(case, 0, world.rank).stored(case.b_layout))
    clock, expected = HipClock(), calls[0][0].digest
    with op.target.record() as recording:
        recorded = op(*own)
    separate, steps = op.output(case.m), single_launches(op, case.m, own)
    columns = {
        "eager": timed_and_checked(world, op, clock, [lambda: op(*own)], lambda: op.output(case.m), expected),
        "graph": timed_and_checked(world, op, clock, [recording.replay], lambda: recorded, expected),
        "phases": timed_and_checked(world, op, clock, steps, lambda: separate, expected),
    }
    graph = columns["graph"].column()
    return {
        "time_us": graph["p50"],
        "stat": GRAPH_STAT,
        "eager_us": columns["eager"].column(),
        "graph_us": graph,
        "phases_us": columns["phases"].steps(phase_names(op.plan(case.m), len(steps))),
        "critical_rank": columns["graph"].critical_rank,
    }


def timed_and_checked(
    world: World,
    op: GemmAllReduceOp,
    clock: Clock,
    steps: Sequence[Callable[[], object]],
    output: Callable[[], torch.Tensor],
    expected: str,
) -> Timing:
    """Collective: time a way of calling, then make one such call more into a cleared `output()` and check its bits."""
    timing = timed(world, clock, steps)
    op.check()
    result = output()
    result.fill_(math.nan)
    op.check()
    world.exchange("cleared", None)  # peers write this rank's output
    for step in steps:
        step()
    op.check()
    if set(cast("list[str]", world.exchange("digest", digest(result.cpu())))) != {expected}:
        raise CollectiveError(
            "a timed way of calling gives other bits than the verified calls; its times are of no use"
        )
    return timing


def _resolved(world: World, op: GemmAllReduceOp, case: Case) -> dict[str, Any]:
    from mori_gemm_ar.runtime import ProcessWorld

    plan = op.plan(case.m)
    return {
        "ranks": "processes" if isinstance(world, ProcessWorld) else "threads",
        "mode": plan.mode.value,
        "path": plan.label,
        "why": plan.why or None,
        "tile": _tile(plan.gemm),
        "chunks": plan.chunks,
        "tail": plan.tail.value,
        "stripe": plan.fused.stripe if plan.fused is not None else None,
        "gather": plan.gather.value if plan.gather is not None else None,
        "wire": op.wire.value,
        "slice_rows": plan.slice_rows,
        "queues": op.spec.tuning.queues if op.spec.wants_engines else 0,
        "b_layout": op.spec.b_layout.value,
        "window_bytes": op._require_window().map.nbytes,
        "timeout_s": op.timeout_s,
    }


def _tile(config: Any) -> str | None:
    return f"{config.tile.m}x{config.tile.n}" if isinstance(config, GemmConfig) else None


# ---- each rank for itself ------------------------------------------------------------------------------------


def _measure_gemm(world: World, case: Case, on_call: Step) -> dict[str, Any]:
    """The product alone, on every rank at once."""
    from mori_gemm_ar.gemm import GemmOp
    from mori_gemm_ar.runtime import ProcessWorld

    op = GemmOp.create(world, n=case.n, k=case.k, quant=case.quant, b_layout=case.b_layout)
    calls: list[list[Verdict]] = []
    for call in range(case.warmup + case.calls):
        own = tuple(x.to(op.target.torch_device) for x in operands(case, call, world.rank).stored(case.b_layout))
        world.exchange("start", None)
        result, seconds, us = timed_call(own[0].device, partial(op, *own))
        overwrite(own)
        product = result.cpu()
        part = Part(range(case.m), (world.rank,), [product], None)
        where = f"call {call}, rank {world.rank} of {world.size}, gemm-only, {case}"
        calls.append(_exchanged(world, check(case, call, part, product, Wire.EXACT, where, seconds, us)))
        if world.rank == 0:
            on_call()
        if failure_of(case, calls[-1], Wire.EXACT, sums=False):
            break
    fields, config = summary(case, calls, Wire.EXACT, sums=False), op.plan(case.m)
    kernels = [{"phase": "gemm", "kernel": config.key, "blocks": config.blocks(case.m)}] if case.m else []
    measured: dict[str, Any] = {}
    if _on_gpu(op, case, fields):
        fixed = tuple(x.to(op.target.torch_device) for x in operands(case, 0, world.rank).stored(case.b_layout))
        eager = timed(world, HipClock(), [lambda: op(*fixed)])
        with op.target.record() as recording:
            op(*fixed)
        graph = timed(world, HipClock(), [recording.replay])
        measured = {
            "time_us": graph.column()["p50"],
            "stat": GRAPH_STAT,
            "eager_us": eager.column(),
            "graph_us": graph.column(),
            "critical_rank": graph.critical_rank,
        }
    return {
        **fields,
        "device": op.target.name,
        **_cpu_times(op.target.name, case, calls, fields["validated"]),
        **measured,
        "predicted": predicted_gemm(case.m, case.n, case.k, case.quant, config),
        "resolved": {
            "ranks": "processes" if isinstance(world, ProcessWorld) else "threads",
            "mode": Mode.GEMM_ONLY.value,
            "tile": _tile(config),
            "b_layout": case.b_layout.value,
            "window_bytes": 0,
            "launches": len(kernels),
            "kernels": kernels,
        },
    }
