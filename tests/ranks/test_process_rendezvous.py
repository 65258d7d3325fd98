# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Exchanges over a key-value store: bounded, decided alike on all ranks, and whole again after a failure."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d

import mori_gemm_ar
from mori_gemm_ar.errors import ConfigError, RendezvousError
from mori_gemm_ar.runtime import LocalWorld, ProcessWorld, connect, torch_store
from mori_gemm_ar.runtime.peers import ProcessId
from mori_gemm_ar.runtime.rendezvous import StoreRendezvous

Body = Callable[[StoreRendezvous], Any]


def run(size: int, body: Body, store: Any = None) -> list[Any]:
    """The results, or errors, of `body` on ranks that are threads."""
    found: list[Any] = [None] * size
    shared = store or dist.HashStore()

    def rank(number: int) -> None:
        try:
            found[number] = body(StoreRendezvous(lambda: shared, number, size))
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return found


@pytest.mark.parametrize("kind", ["hash", "file", "tcp"])
def test_values_in_rank_order(kind: str, tmp_path: Path) -> None:
    stores: dict[str, Callable[[], Any]] = {
        "hash": dist.HashStore,
        "file": lambda: dist.FileStore(str(tmp_path / "store"), -1),
        "tcp": lambda: dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False),
    }

    def body(rendezvous: StoreRendezvous) -> list[list[object]]:
        return [rendezvous.exchange(f"step {n}", (n, rendezvous.rank, b"\x00\xff"), 30) for n in range(5)]

    for found in run(3, body, stores[kind]()):
        assert found == [[(n, rank, b"\x00\xff") for rank in range(3)] for n in range(5)]


def test_keys_do_not_pile_up() -> None:
    store = dist.HashStore()

    def body(rendezvous: StoreRendezvous) -> None:
        for number in range(50):
            rendezvous.exchange("step", number, 30)

    run(4, body, store)
    assert store.num_keys() <= 2 * (4 + 1)  # of the last two exchanges: values and verdict


def test_missing_ranks_are_named_on_all_ranks() -> None:
    def body(rendezvous: StoreRendezvous) -> str:
        rendezvous.exchange("first", None, 30)
        if rendezvous.rank in (1, 3):
            return "absent"
        with pytest.raises(RendezvousError) as caught:
            rendezvous.exchange("second", None, 0.3)
        return str(caught.value)

    first, _, second, _ = run(4, body)
    assert first == second
    assert first.startswith("ranks 1, 3 did not come to step 'second' within 0.3 s; all ranks of a group must make the")


def test_a_late_rank_hears_that_it_was_late_and_the_next_exchange_works() -> None:
    def body(rendezvous: StoreRendezvous) -> tuple[str, list[object]]:
        if rendezvous.rank == 2:
            time.sleep(0.5)
        with pytest.raises(RendezvousError) as caught:
            rendezvous.exchange("join", None, 0.2)
        return str(caught.value), rendezvous.exchange("again", rendezvous.rank, 30)

    found = run(3, body)
    reason = "rank 2 did not come to step 'join' within 0.2 s; "
    assert found[0][0] == found[1][0] and found[0][0].startswith(reason)
    assert found[2][0].startswith(f"rank 2 came too late to 'join': {reason}")
    assert [values for _, values in found] == [[0, 1, 2]] * 3


def test_a_rank_that_missed_attempts_altogether_catches_up() -> None:
    """It fails once, and then meets the others wherever they are by now."""

    def body(rendezvous: StoreRendezvous) -> int:
        if rendezvous.rank == 1:
            time.sleep(0.7)
        for failures in range(10):
            try:
                assert rendezvous.exchange("join", rendezvous.rank, 0.3 if rendezvous.rank == 0 else 30) == [0, 1]
                return failures
            except RendezvousError:
                continue
        raise AssertionError("never met")

    failures = run(2, body)
    assert failures[0] >= 2
    assert failures[1] == 1


def test_ranks_at_different_steps() -> None:
    def body(rendezvous: StoreRendezvous) -> list[object]:
        with pytest.raises(RendezvousError) as caught:
            rendezvous.exchange("left" if rendezvous.rank == 1 else "right", None, 30)
        assert str(caught.value) == (
            "ranks must make the same calls in the same order, but are at: "
            "rank 0 at 'right', rank 1 at 'left', rank 2 at 'right'"
        )
        return rendezvous.exchange("together", rendezvous.rank, 30)

    assert run(3, body) == [[0, 1, 2]] * 3


def test_all_ranks_decide_alike_however_close_it_is() -> None:
    """The last rank arrives about when the others lose patience: all have the values, or none."""

    def body(rendezvous: StoreRendezvous) -> list[bool]:
        dice = random.Random(rendezvous.rank)
        met = []
        for number in range(25):
            if rendezvous.rank == 2:
                # In time and far too late now and then, so that both are seen on a busy machine too.
                time.sleep({0: 0, 1: 0.15}.get(number % 6, 0.02 + dice.uniform(-0.006, 0.006)))
            try:
                rendezvous.exchange("close", None, 0.02)
                met.append(True)
            except RendezvousError:
                met.append(False)
            rendezvous.exchange("line up", None, 30)
        return met

    found = run(3, body)
    assert found[0] == found[1] == found[2]
    assert set(found[0]) == {True, False}


def test_a_dead_process_is_not_waited_for() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stat = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    me = ProcessId.mine()
    other = ProcessId(child.pid, int(stat[19]), me.host)
    assert other.alive()
    assert not ProcessId(me.pid, me.started + 1, me.host).alive()  # the number was given to another process
    assert ProcessId(child.pid, 0, "another machine").alive()  # nothing is known of it
    store = dist.HashStore()
    rendezvous = StoreRendezvous(lambda: store, 0, 2)
    rendezvous.processes = (me, other)
    threading.Timer(0.3, child.kill).start()
    start = time.monotonic()
    with pytest.raises(RendezvousError, match=rf"rank 1 \(process {child.pid}\) ended before step 'meet'"):
        rendezvous.exchange("meet", None, 60)
    assert time.monotonic() - start < 10  # a zombie is dead, although nobody has asked for it yet
    child.wait()
    child.stdin.close()  # type: ignore[union-attr]


def test_patience_counts_from_the_last_progress() -> None:
    store = dist.HashStore()
    start = time.monotonic()

    def progress() -> int:
        return time.monotonic_ns() if time.monotonic() - start < 0.6 else 0

    with pytest.raises(RendezvousError, match="rank 1 did not come"):
        StoreRendezvous(lambda: store, 0, 2).exchange("meet", None, 0.2, progress)
    assert 0.6 <= time.monotonic() - start < 3


def test_a_store_that_is_gone() -> None:
    """The process that served it has ended."""
    code = (
        "import torch.distributed as d, sys\n"
        "s = d.TCPStore('127.0.0.1', 0, 1, True, wait_for_workers=False)\nprint(s.port, flush=True)\nsys.stdin.read()"
    )
    server = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None and server.stdin is not None
    store = dist.TCPStore("127.0.0.1", int(server.stdout.readline()), 1, False, wait_for_workers=False)
    threading.Timer(0.2, server.kill).start()
    with pytest.raises(RendezvousError, match=r"rank 0 cannot reach the store of its group at step 'meet' \("):
        StoreRendezvous(lambda: store, 0, 2).exchange("meet", None, 30)
    server.wait()
    server.stdin.close()
    server.stdout.close()


# --- torch.distributed ---


@pytest.fixture
def group():
    """The default group, of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    if dist.is_initialized():
        dist.destroy_process_group()


def test_the_private_name_is_where_we_look_for_it(group: Any) -> None:
    """Fails when torch moves it; then `runtime/torch_store.py` is the one file to change."""
    store = distributed_c10d._get_process_group_store(group)
    store.set("key", "value")
    assert store.get("key") == b"value"
    assert torch_store.GroupStore(group)().get("key") == b"value"
    package = Path(mori_gemm_ar.__file__).parent
    users = [path.name for path in package.rglob("*.py") if "distributed_c10d" in path.read_text(encoding="utf-8")]
    assert users == ["torch_store.py"]


def test_connect(group: Any) -> None:
    for given in (None, group):
        world = connect(given)
        assert isinstance(world, ProcessWorld)
        assert (world.rank, world.size) == (0, 1)
        assert world.exchange("alone", 5) == [5]
    assert connect(world) is world
    assert LocalWorld(2).run(lambda context: connect(context) is context) == [True, True]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("gloo", r"world='gloo' must be a torch.distributed group, None for the default group, a ProcessWorld, or"),
        (3, r"world=3 must be a torch.distributed group"),
        (dist.GroupMember.NON_GROUP_MEMBER, r"group must contain the caller, but rank 0 of the default group is not"),
    ],
)
def test_connect_refuses(group: Any, given: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        connect(given)


def test_without_a_default_group() -> None:
    with pytest.raises(ConfigError, match=r"group must belong to torch.distributed; call torch.distributed.init_proc"):
        connect(None)


def test_a_destroyed_group(group: Any) -> None:
    world = connect(group)
    dist.destroy_process_group()
    with pytest.raises(RendezvousError, match=r"the process group must not be destroyed while ranks still meet"):
        world.exchange("after", None)
    with pytest.raises(ConfigError, match=r"group must belong to torch.distributed"):
        connect(group)


@pytest.mark.parametrize("timeout_s", [0, -1, float("inf"), float("nan"), True, "5"])
def test_timeout_must_be_seconds(group: Any, timeout_s: Any) -> None:
    with pytest.raises(ConfigError, match=r"timeout_s=.* must be a number of seconds above 0"):
        ProcessWorld.from_group(timeout_s=timeout_s)
