# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What ranks do in the tests with processes: functions of a `nursery.Rank`, run in a process of their own each."""

from __future__ import annotations

import inspect
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.errors import ClosedError, ConfigError, MoriGemmArError
from mori_gemm_ar.runtime import ProcessWorld
from tests.ranks.nursery import Rank
from tests.ranks.worlds import BF16, FP16, FP32, fresh, reference, require_all, require_bits

KIB = 1 << 10
KEPT: list[AllReduceOp] = []  # until the interpreter ends


def full(value: float, numel: int = 64, dtype: torch.dtype = BF16) -> torch.Tensor:
    """A tensor of equal elements."""
    return torch.full((numel,), float(value), dtype=dtype)


def create(group: Any = None, max_bytes: int = 64 * KIB, **options: Any) -> AllReduceOp:
    """An op for bf16."""
    return AllReduceOp.create(group, max_bytes, dtypes=(BF16,), **options)


def held() -> dict[str, Any]:
    """What this process holds of what the library takes: descriptors, mappings, and files in /dev/shm."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    links = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{entry}"))
        except FileNotFoundError:  # that of the listing itself
            continue
    return {
        "descriptors": len(links),
        "memfds": sum("memfd:mori_gemm_ar" in link for link in links),
        "windows": sum("memfd:mori_gemm_ar" in line for line in maps),
        "mappings": len(maps),
        "rss_kib": int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]),
    }


# --- groups ---


def subgroup_first(rank: Rank) -> dict[str, float]:
    """{0, 1} and then {0, 1, 2}; rank 2 first tries a group that it is not in."""
    rank.init()
    sums: dict[str, float] = {}
    pair = dist.new_group([0, 1])
    if rank.rank == 2:
        try:
            create(pair)
        except ConfigError as error:
            sums["outside"] = str(error)  # type: ignore[assignment]
        small = None
    else:
        small = create(pair)
        sums["01"] = float(small(full(2**rank.rank))[0])
    whole = create(None)
    for call in range(3):  # interleaved
        sums["012"] = float(whole(full(2**rank.rank))[-1])
        if small is not None:
            sums["01"] = float(small(full(2**rank.rank + call))[7]) - 2 * call
    return sums


def many_groups(rank: Rank) -> dict[str, float]:
    """{0, 2} and {1, 3} at the same time, the whole world, and {3, 1} in both orders, all of them alive together."""
    rank.init()
    groups = {
        "02": dist.new_group([0, 2]),
        "13": dist.new_group([1, 3]),
        "0123": dist.group.WORLD,
        "31": dist.new_group([3, 1]),
    }
    if "sort_ranks" in inspect.signature(dist.new_group).parameters:
        groups["31 unsorted"] = dist.new_group([3, 1], sort_ranks=False)
    mine = {name: group for name, group in groups.items() if str(rank.rank) in name}
    ops = {name: create(group) for name, group in mine.items()}
    sums: dict[str, float] = {}
    for call in range(4):
        for name in sorted(ops, reverse=bool(call % 2)):
            total = ops[name](full(2**rank.rank + 16 * call, 100 + 1000 * call))
            sums[name] = float(total[-1]) - 16 * call * ops[name].world_size
            require_all(total, float(total[0]))
    for name, op in ops.items():
        sums[f"place in {name}"] = op.rank
    return sums


# --- calls ---


def calls(rank: Rank) -> int:
    """Random sizes, dtypes and delays, new data on every call, all ranks checked bitwise."""
    count, seed = rank.arguments["count"], rank.arguments["seed"]
    rank.init()
    limit = 6000
    with AllReduceOp.create(None, 4 * limit, dtypes=(BF16, FP16, FP32)) as op:
        same, mine = random.Random(seed), random.Random(1000 * seed + rank.rank)
        for call in range(count):
            numel = same.choice((0, 1, 7, 8, 100, 1000, 5003, limit))
            dtype = same.choice((BF16, FP16, FP32))
            late = same.randrange(rank.size)
            if mine.random() < 0.2 or late == rank.rank:
                time.sleep(mine.uniform(0, 0.02))
            inputs = [fresh(numel, dtype, seed, call, peer) for peer in range(rank.size)]
            x = inputs[rank.rank]
            y = op(x)
            x.fill_(torch.nan)
            inputs[rank.rank] = fresh(numel, dtype, seed, call, rank.rank)
            require_bits(y, reference(inputs), call=call, rank=rank.rank, numel=numel, dtype=dtype)
    return held()["windows"]


def ten_calls(rank: Rank) -> tuple[list[float], float, str]:
    """Case 13: `fate` befalls rank 1 before its fifth call. Returns sums, seconds of the last call, and the error."""
    fate = rank.arguments["fate"]
    rank.init()
    op = create(None, timeout_s=rank.arguments.get("timeout_s", 5))
    sums = []
    start = time.monotonic()
    try:
        for call in range(1, 11):
            if rank.rank == 1 and call == 5:
                rank.mark("reached")
                if fate == "killed":
                    time.sleep(60)
                elif fate == "raises":
                    raise RuntimeError("boom")
                elif fate == "slow":
                    time.sleep(3)
                elif fate == "stopped":
                    rank.wait_for("go on")
            start = time.monotonic()
            sums.append(float(op(full(rank.rank + 1))[0]))
    except MoriGemmArError as error:
        seconds = time.monotonic() - start
        op.close()
        rank.mark(f"failed {rank.rank}")
        raise SystemExit(write_error(rank, error, seconds)) from None
    return sums, time.monotonic() - start, ""


def write_error(rank: Rank, error: BaseException, seconds: float) -> int:
    """Leave an error where the test finds it; returns a non-zero exit code."""
    (rank.folder / f"error {rank.rank}").write_text(f"{seconds:.2f} {type(error).__name__}: {error}")
    return 3


def endless(rank: Rank) -> None:
    """Calls until killed."""
    rank.init()
    op = create(None, 256 * KIB)
    x = full(rank.rank + 1, 100_000)
    while True:
        require_all(op(x), rank.size * (rank.size + 1) // 2)
        rank.mark(f"called {rank.rank}")


def until_failure(rank: Rank) -> None:
    """Calls without a pause until one fails, which is written down; the exit code is 3 then."""
    rank.init()
    op = create(None, 256 * KIB, timeout_s=30)
    x = full(rank.rank + 1, 60_000)
    while True:
        start = time.monotonic()
        try:
            require_all(op(x), rank.size * (rank.size + 1) // 2)
        except MoriGemmArError as error:
            code = write_error(rank, error, time.monotonic() - start)
            break
        rank.mark(f"called {rank.rank}")
    raise SystemExit(code)


def five_seconds_late(rank: Rank) -> str:
    """Rank 1 comes later than the budget of two; in that time its emulator works for another op, or it sleeps."""
    rank.init()
    mine = [dist.new_group([peer]) for peer in range(rank.size)][rank.rank]
    op, alone = create(None, timeout_s=2), create(mine)
    until = time.monotonic() + (5 if rank.rank == 1 else 0)
    while time.monotonic() < until:
        if rank.arguments["busy"]:
            alone(full(1, 30_000))
        else:
            time.sleep(0.1)
    try:
        return str(float(op(full(rank.rank + 1))[0]))
    except MoriGemmArError as error:
        return f"{type(error).__name__}: {error}"


def create_until_failure(rank: Rank) -> None:
    """As `until_failure`, with a new op for every call."""
    rank.init()
    while True:
        start = time.monotonic()
        try:
            with create(None, KIB, timeout_s=30) as op:
                require_all(op(full(rank.rank + 1)), rank.size * (rank.size + 1) // 2)
        except MoriGemmArError as error:
            code = write_error(rank, error, time.monotonic() - start)
            break
        rank.mark(f"called {rank.rank}")
    raise SystemExit(code)


def once(rank: Rank) -> float:
    """One sum."""
    rank.init()
    with create(None, 256 * KIB) as op:
        return float(op(full(rank.rank + 1, 100_000))[-1])


# --- lifetimes ---


def early_close(rank: Rank) -> float:
    """Case 16 (a): rank 1 comes a second late to the last call; rank 0 closes as soon as its own call returns."""
    rank.init()
    op = create()
    for call in range(1, 11):
        if rank.rank == 1 and call == 10:
            time.sleep(1)
        total = float(op(full(rank.rank + call))[0])
        assert total == sum(r + call for r in range(rank.size))
    op.close()
    op.close()
    with pytest.raises(ClosedError):
        op(full(1))
    return total


def no_close(rank: Rank) -> dict[str, Any]:
    """Case 16 (d): the interpreter ends with an open op."""
    rank.init()
    op = create()
    KEPT.append(op)
    assert float(op(full(rank.rank + 1))[0]) == 3
    return held()


def group_first(rank: Rank) -> float:
    """Case 16 (e): the group is destroyed, and its op used and dropped after that."""
    rank.init()
    op = create()
    op(full(rank.rank + 1))
    dist.barrier()
    dist.destroy_process_group()
    total = float(op(full(rank.rank + 1))[0])
    if rank.arguments["close"]:
        op.close()
    return total


def raise_in_with(rank: Rank) -> str:
    """Case 16 (f): rank 0 leaves its `with` block by an error; the others hear of it, long before the budget ends."""
    rank.init()
    start = time.monotonic()
    try:
        with create(None, timeout_s=60) as op:
            require_all(op(full(rank.rank + 1)), 3)
            if rank.rank == 0:
                raise ValueError("boom")
            op(full(1))
    except (ValueError, MoriGemmArError) as error:
        assert time.monotonic() - start < 20
        return f"{type(error).__name__}: {error}"
    return "nothing"


def cycles(rank: Rank) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Case 16 (g): what the process holds after each round of create, call and close."""
    rank.init()
    found = []
    for number in range(rank.arguments["count"]):
        with create(None, timeout_s=60) as op:
            during = held()
            require_all(op(full(rank.rank + 1, 1000)), rank.size * (rank.size + 1) // 2)
            view = op.buffer((1000,), BF16) if number % 2 else None
        if view is not None:
            assert bool((view == rank.rank + 1).all() or view.numel())  # the memory outlives the op
        del view
        found.append(held())
    return found, during


def keys(rank: Rank) -> list[int]:
    """Keys in the store after each round."""
    store = rank.store()
    counts = []
    for _ in range(4):
        world = ProcessWorld.from_store(store, rank.rank, rank.size)
        with AllReduceOp.create(world, KIB, dtypes=(BF16,)) as op:
            op(full(1))
        world.barrier()
        counts.append(store.num_keys())
        world.barrier()
    rank.outlive()
    return counts
