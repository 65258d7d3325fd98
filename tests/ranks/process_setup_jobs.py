# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Further jobs of ranks: faults in `create`, cold caches, the benchmark, and read-modify-writes."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from mori_gemm_ar.ar import AllReduceOp, options
from mori_gemm_ar.ar.collective import CollectiveOp
from mori_gemm_ar.compile.store import CodeStore
from mori_gemm_ar.emulator import MemoryRegion
from mori_gemm_ar.errors import MoriGemmArError
from mori_gemm_ar.runtime import Communicator, ProcessWorld, emulated, shared_memory
from mori_gemm_ar.runtime.memory_limits import MemoryLimit
from tests.kernel.isa_builder import submit, tiny
from tests.ranks.nursery import Rank
from tests.ranks.process_jobs import KIB, create, full, held
from tests.ranks.worlds import BF16, require_all

# --- faults ---


class Injected(OSError):
    """What a step fails with."""


FAULTS: dict[str, tuple[Any, str]] = {
    "target": (ProcessWorld, "target"),
    "store": (CodeStore, "get"),
    "parse": (emulated, "kernel_of"),
    "window_map": (options, "allreduce_window"),
    "limits": (shared_memory, "reason_not_available"),
    "memfd": (shared_memory.os, "memfd_create"),
    "fallocate": (shared_memory.os, "posix_fallocate"),
    "handle": (shared_memory.Segment, "handle"),
    "open": (shared_memory.Segment, "open"),
    "mmap": (shared_memory.mmap, "mmap"),
    "join": (shared_memory.ProcessBacking, "join"),
    "board": (shared_memory.Board, "__init__"),
    "alloc_mem": (Communicator, "alloc_mem"),
    "register_window": (Communicator, "register_window"),
    "create_dev_comm": (Communicator, "create_dev_comm"),
    "error_record": (emulated.EmulatedTarget, "error_record"),
    "clear": (CollectiveOp, "_start_epoch"),
    "submit": (emulated.EmulatedTarget, "submit"),
    "synchronize": (emulated.EmulatedTarget, "synchronize"),
    "record": (CollectiveOp, "_raise_failure"),
}
FIRST_RANK_ONLY = ("limits", "memfd", "fallocate", "handle")
NOT_FIRST_RANK = ("open",)


@contextmanager
def failing(owner: Any, name: str) -> Iterator[None]:
    """Replace a function by one that raises."""

    def broken(*args: Any, **options: Any) -> Any:
        raise Injected(f"{name} was made to fail")

    original: Any = owner.__dict__[name]
    setattr(owner, name, broken)
    try:
        yield
    finally:
        setattr(owner, name, original)


def faults(rank: Rank) -> dict[tuple[str, str], tuple[str, str, dict[str, Any]]]:
    """Every step fails, on one rank and on all; after each, what `create` raised and what is held, and a good one."""
    rank.init()
    world = ProcessWorld.from_group(timeout_s=60)
    found = {}
    with create(world) as op:
        op(full(1))  # so that what is made only once exists
    before = held()
    for fault, (owner, name) in FAULTS.items():
        one = 0 if fault in FIRST_RANK_ONLY else rank.size - 1
        for who in ("one", "all"):
            hit = who == "all" or rank.rank == one
            error: BaseException | None = None
            start = time.monotonic()
            try:
                if hit:
                    with failing(owner, name):
                        create(world, timeout_s=60).close()
                else:
                    create(world, timeout_s=60).close()
            except MoriGemmArError as caught:
                error = caught
            seconds = time.monotonic() - start
            after = held()
            world.barrier()
            found[fault, who] = (type(error).__name__, str(error), {"seconds": seconds, **after})
            with create(world, timeout_s=60) as op:
                require_all(op(full(rank.rank + 1)), rank.size * (rank.size + 1) // 2)
    found["before", ""] = ("", "", before)
    return found


def late(rank: Rank) -> list[str]:
    """Rank 1 comes late to a create, and misses another one; both fail everywhere, and the next ones work."""
    rank.init()
    texts = []

    def attempt() -> None:
        try:
            with AllReduceOp.create(ProcessWorld.from_group(timeout_s=1), KIB, dtypes=(BF16,)) as op:
                texts.append(str(float(op(full(rank.rank + 1))[0])))
        except MoriGemmArError as error:
            texts.append(f"{type(error).__name__}: {error}")

    if rank.rank == 1:
        rank.wait_for("failed 0")
        rank.wait_for("failed 2")
    attempt()
    rank.mark(f"failed {rank.rank}")
    rank.wait_for("failed 1")
    attempt()
    return texts


def too_large(rank: Rank) -> str:
    """A window that the machine refuses: `create` fails alike everywhere and takes nothing, and a smaller one works.

    `limit`: bytes of a memory limit, which is looked at before anything is taken; else the system's own refusal.
    """
    rank.init()
    limit = rank.arguments.get("limit")
    if limit is not None:
        shared_memory.reason_not_available.__globals__["memory_limits"] = lambda root: [MemoryLimit("the limit", limit)]
        taken = shared_memory.os.memfd_create
        shared_memory.os.memfd_create = lambda *_: rank.mark("taken")  # type: ignore[assignment]
    text = "no error"
    try:
        create(None, rank.arguments["max_bytes"])
    except MoriGemmArError as error:
        text = f"{type(error).__name__}: {error}"
    assert held()["memfds"] == held()["windows"] == 0
    assert not (rank.folder / "taken").exists()
    if limit is not None:
        shared_memory.os.memfd_create = taken
    with create(None, KIB) as op:
        require_all(op(full(rank.rank + 1)), rank.size * (rank.size + 1) // 2)
    return text


def in_a_forked_child(rank: Rank) -> str:
    """A fork of a rank is not that rank."""
    rank.init()
    op = create()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            op(full(1))
            text = "no error"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode())
        raise SystemExit(0)
    os.waitpid(pid, 0)
    text = os.read(reader, 4096).decode()
    require_all(op(full(rank.rank + 1)), 3)
    op.close()
    return text


# --- benchmark ---


def as_torchrun(rank: Rank) -> None:
    """Set the variables that torchrun sets."""
    os.environ |= {"RANK": str(rank.rank), "WORLD_SIZE": str(rank.size), "MASTER_ADDR": "127.0.0.1"}
    os.environ["MASTER_PORT"] = str(rank.arguments["port"])


def example(rank: Rank) -> float:
    """A program from the documentation; returns its sum."""
    as_torchrun(rank)
    names: dict[str, Any] = {}
    exec(compile(rank.arguments["source"], "example.py", "exec"), names)
    return float(names["total"][0, 0])


def bench(rank: Rank) -> None:
    """The benchmark's command line."""
    from typer.main import get_command

    from benchmark import bench_ar

    as_torchrun(rank)
    get_command(bench_ar.app)(rank.arguments["options"])


class FakeAiter:
    """What the benchmark uses of aiter's CustomAllreduce; `kind` says how it behaves."""

    kind, rank = "right", 0

    def __init__(self, group: Any, device: Any, max_size: int) -> None:
        if self.kind == "old":
            raise TypeError("unexpected keyword argument 'max_size'")
        self.group, self.disabled = group, self.kind == "disabled"

    def custom_all_reduce(self, x: torch.Tensor) -> torch.Tensor | None:
        import torch.distributed as dist

        if self.kind == "refuses":
            return None
        total = x.clone()
        dist.all_reduce(total, group=self.group)
        if self.kind == "raises" and self.rank == 1:
            raise RuntimeError("out of signals")
        return total + x if self.kind == "wrong" else total

    def close(self) -> None:
        """Nothing is held."""


def bench_with_aiter(rank: Rank) -> None:
    """The benchmark's command line where an aiter can be imported and each rank has what passes for a GPU."""
    from types import ModuleType

    from benchmark import all_reduce_baseline as baselines

    FakeAiter.kind, FakeAiter.rank = rank.arguments["kind"], rank.rank
    module = ModuleType(baselines.AITER_MODULE)
    if FakeAiter.kind != "moved":
        module.CustomAllreduce = FakeAiter  # type: ignore[attr-defined]
    sys.modules[baselines.AITER_MODULE] = module
    baselines.find_spec = lambda name: True  # type: ignore[assignment]
    baselines.own_gpu = lambda: torch.device("cpu")
    baselines.torch_backend = lambda: "gloo"
    bench(rank)


# --- cold caches ---


def cold(rank: Rank) -> tuple[float, list[str]]:
    """The first op of a process, all ranks at once."""
    rank.init()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rank.mark(f"ready {rank.rank}")
        for peer in range(rank.size):
            rank.wait_for(f"ready {peer}")
        with create(None, KIB) as op:
            total = float(op(full(rank.rank + 1))[0])
    return total, [str(w.message) for w in caught if "CacheWarning" in w.category.__name__]


# --- atomics ---

ADDITIONS = 20
ADD = (
    """
s_load_dwordx2 s[4:5], s[0:1], 0x0
s_waitcnt lgkmcnt(0)
v_mov_b32_e32 v1, 0
v_mov_b32_e32 v2, 1
"""
    + ADDITIONS * "global_atomic_add v1, v2, s[4:5] sc1\n"
    + "s_endpgm"
)


def count_up(rank: Rank) -> int:
    """`launches` times 20 instructions that add 1 from 64 lanes to one shared word, while the other ranks do so too."""
    world = ProcessWorld.from_store(rank.store(), rank.rank, rank.size)
    target: Any = world.target("emulated")
    communicator = target.communicator(4096)
    node, word = target._host.node, communicator.memory.base
    node.regions.add(MemoryRegion("counter", word, 8, None))
    if not rank.arguments["locked"]:
        node.memory.exclusive = lambda addresses: nullcontext()
    world.barrier()
    for _ in range(rank.arguments["launches"]):
        submit(node, tiny(ADD), [word], gpu=rank.rank)
    node.run()
    world.barrier()
    total = int.from_bytes(target.read(word, 4), "little")
    communicator.destroy()
    rank.outlive()
    return total


def die_with_the_lock(rank: Rank) -> float:
    """Rank 0 is killed while it holds the lock that rank 1 wants. Returns how long rank 1 waited."""
    world = ProcessWorld.from_store(rank.store(), rank.rank, rank.size)
    target: Any = world.target("emulated")
    memory = target.communicator(4096).memory
    if rank.rank == 0:
        with memory.locked(memory.base, memory.base + 7):
            rank.mark("locked")
            rank.wait_for("wanted")
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
    rank.wait_for("locked")
    with memory.locked(memory.base + 64, memory.base + 71):  # other bytes: no wait
        rank.mark("wanted")
    start = time.monotonic()
    with memory.locked(memory.base + 4, memory.base + 11):
        return time.monotonic() - start
