# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What happens to jobs of processes in the field: sub-groups, deaths, kills, full disks, careless endings."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.ranks.processes import Launch, Launcher

# --- sub-groups ---


def test_a_sub_group_first_then_all(launcher: Launcher) -> None:
    """Every rank contributes 2^rank, calls interleave, and a rank outside the group hears so."""
    zero, one, two = launcher.run("subgroup_first", 3)
    assert zero == one == {"01": 3.0, "012": 7.0}
    assert two.pop("outside").startswith("group must contain the caller, but rank 2 of the default group is not in it")
    assert two == {"012": 7.0}


def test_several_groups_at_once(launcher: Launcher) -> None:
    """Disjoint and overlapping groups, all alive; an order of ranks other than the sorted one, where torch keeps it."""
    found = launcher.run("many_groups", 4)
    for rank, sums in enumerate(found):
        expected = {"0123": 15.0, **({"02": 5.0} if rank in (0, 2) else {"13": 10.0, "31": 10.0})}
        places = {"0123": rank, **({"02": rank // 2} if rank in (0, 2) else {"13": rank // 2, "31": rank // 2})}
        if "31 unsorted" in sums:
            expected["31 unsorted"], places["31 unsorted"] = 10.0, 0 if rank == 3 else 1
        assert sums == {**expected, **{f"place in {name}": place for name, place in places.items()}}


# --- ranks that die, stop or are slow ---


def errors_of(launch: Launch, ranks: tuple[int, ...], timeout_s: float) -> list[str]:
    """What ranks wrote down before they ended by themselves, with exit code 3."""
    for rank in ranks:
        outcome = launch.outcome(rank, timeout_s)
        assert outcome.code == 3 and "Traceback" not in outcome.stderr, outcome  # torch itself logs a lost store
    return [(launch.folder / f"error {rank}").read_text() for rank in ranks]


def test_a_rank_that_is_killed_between_calls(launcher: Launcher) -> None:
    with launcher.start("ten_calls", 3, {"fate": "killed", "timeout_s": 60}) as launch:
        launch.wait_for("reached")
        time.sleep(0.3)
        launch.kill(1)
        killed = time.monotonic()
        texts = errors_of(launch, (0, 2), 20)
        assert time.monotonic() - killed < 10  # reported early: the budget of 60 s did not have to run out
        for text in texts:
            assert re.search(rf"CollectiveTimeout: rank 1 has died \(process {launch.pids[1]}\); rank [02] stood", text)
            assert "at the entry barrier (all inputs are there), block 0, call 7, and waited for rank 1" in text


@pytest.mark.parametrize(("victim", "seed"), [(1, 0), (0, 1)], ids=["a rank", "the rank with the store"])
def test_a_rank_that_is_killed_in_mid_call(victim: int, seed: int, launcher: Launcher) -> None:
    with launcher.start("until_failure", 3) as launch:
        for rank in range(3):
            launch.wait_for(f"called {rank}")
        time.sleep(random.Random(seed).uniform(0, 0.3))
        launch.kill(victim)
        others = tuple(rank for rank in range(3) if rank != victim)
        for text in errors_of(launch, others, 20):
            assert f"rank {victim} has died (process {launch.pids[victim]})" in text
            assert float(text.split()[0]) < 10


@pytest.mark.parametrize("kills", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_a_rank_that_is_killed_in_mid_create(kills: int, launcher: Launcher) -> None:
    """Wherever it stood, the others name it and end by themselves; rank 0 takes the store with it."""
    dice = random.Random(kills)
    for number in range(kills):
        victim = number % 3
        with launcher.start("create_until_failure", 3) as launch:
            for rank in range(3):
                launch.wait_for(f"called {rank}")
            time.sleep(dice.uniform(0, 0.2))
            launch.kill(victim)
            others = tuple(rank for rank in range(3) if rank != victim)
            for text in errors_of(launch, others, 20):
                assert f"rank {victim} " in text and f"process {launch.pids[victim]})" in text
                assert float(text.split()[0]) < 10


def test_a_rank_that_raises(launcher: Launcher) -> None:
    """It ends in good order, so the others find out by their budget."""
    with launcher.start("ten_calls", 3, {"fate": "raises"}) as launch:
        for text in errors_of(launch, (0, 2), 30):
            assert "waited 5 s for rank 1 at the entry barrier" in text
            assert 4.5 < float(text.split()[0]) < 12
        failed = launch.outcome(1)
        assert (failed.code, repr(failed.error)) == (1, "RuntimeError('boom')")


def test_a_rank_that_is_stopped(launcher: Launcher) -> None:
    """Its process lives and does nothing: the budget of 5 s decides."""
    with launcher.start("ten_calls", 3, {"fate": "stopped"}) as launch:
        launch.wait_for("reached")
        launch.kill(1, how=signal.SIGSTOP)
        for text in errors_of(launch, (0, 2), 30):
            assert "waited 5 s for rank 1 at the entry barrier" in text
            assert 4.5 < float(text.split()[0]) < 12
        launch.kill(1, how=signal.SIGCONT)
        launch.mark("go on")
        (text,) = errors_of(launch, (1,), 30)
        assert "gave up (CollectiveTimeout: " in text


def test_a_slow_rank_is_waited_for(launcher: Launcher) -> None:
    for sums, seconds, error in launcher.run("ten_calls", 3, {"fate": "slow"}):
        assert (sums, error) == ([6.0] * 10, "")
        assert seconds < 5


def test_a_rank_whose_emulator_works_is_not_late(launcher: Launcher) -> None:
    assert launcher.run("five_seconds_late", 3, {"busy": True}) == ["6.0"] * 3


def test_a_rank_that_does_nothing_is_late(launcher: Launcher) -> None:
    """Control: the budget of the test above is in force."""
    first, late, third = launcher.run("five_seconds_late", 3, {"busy": False})
    assert "waited 2 s for rank 1 at the entry barrier" in first
    assert "waited 2 s for rank 1 at the entry barrier" in third
    assert "gave up (CollectiveTimeout: rank " in late


# --- kills that leave nothing ---


def memfd_inodes(pids: list[int]) -> set[int]:
    """Shared memory that these processes hold."""
    found = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            if "memfd:mori_gemm_ar" in os.readlink(entry):
                found.add(entry.stat().st_ino)
    return found


def holders(inodes: set[int]) -> list[int]:
    """Processes that hold one of these, as a descriptor or a mapping."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            mapped = {int(line.split()[4]) for line in (process / "maps").read_text().splitlines() if "memfd:" in line}
            opened = {entry.stat().st_ino for entry in (process / "fd").iterdir() if "memfd:" in os.readlink(entry)}
        except OSError:
            continue
        if (mapped | opened) & inodes:
            found.append(int(process.name))
    return found


def age_of_last_call(launch: Launch) -> int:
    return (launch.folder / "called 0").stat().st_mtime_ns


def test_five_killed_jobs_leave_nothing_and_disturb_nobody(launcher: Launcher) -> None:
    shm = sorted(os.listdir("/dev/shm"))
    with launcher.start("endless", 2) as neighbour:
        neighbour.wait_for("called 0")
        for _ in range(5):
            with launcher.start("endless", 4) as launch:
                for rank in range(4):
                    launch.wait_for(f"called {rank}")
                inodes = memfd_inodes(launch.pids)
                assert len(inodes) == 1
                assert sorted(holders(inodes)) == sorted(launch.pids)
                launch.kill(*range(4))
                assert [outcome.code for outcome in launch.outcomes()] == [-signal.SIGKILL] * 4
            assert not holders(inodes)
            assert not any(Path(f"/proc/{pid}").exists() for pid in launch.pids)
            before = age_of_last_call(neighbour)
            deadline = time.monotonic() + 20
            while age_of_last_call(neighbour) == before:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        assert launcher.run("once", 4) == [10.0] * 4
        assert not any(neighbour.ended(rank) for rank in range(2))
    assert sorted(os.listdir("/dev/shm")) == shm


FILL_SHM = """
mount -t tmpfs -o size=32k none /dev/shm || exit 77
dd if=/dev/zero of=/dev/shm/full bs=4k count=100 2>/dev/null
exec "$@"
"""


def test_a_full_dev_shm_does_not_matter() -> None:
    """In a mount namespace of its own, so that no other process sees the full one."""
    unshare = ("unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)))
    probe = ("sh", "-c", "mount -t tmpfs -o size=32k none /dev/shm")
    if shutil.which("unshare") is None or subprocess.run([*unshare, *probe], capture_output=True).returncode:
        pytest.skip("this user may not mount a file system in a namespace of its own")
    full = Launcher(prefix=(*unshare, "sh", "-c", FILL_SHM, "sh"))
    try:
        seen = Path(f"/proc/{full.pid}/root/dev/shm")
        with pytest.raises(OSError, match="No space left on device"):
            (seen / "more").write_bytes(bytes(4096))
        assert full.run("once", 4) == [10.0] * 4
    finally:
        full.close()


# --- careless endings ---


@pytest.mark.parametrize("ranks", [2, 4])
def test_an_early_close_and_a_second_one(ranks: int, launcher: Launcher) -> None:
    expected = sum(rank + 10 for rank in range(ranks))
    assert launcher.run("early_close", ranks) == [float(expected)] * ranks


def test_no_close(launcher: Launcher) -> None:
    """The interpreter ends with an open op: code 0 and nothing on stderr, which `run` checks."""
    for holds in launcher.run("no_close", 2):
        assert holds["windows"] == 1


@pytest.mark.parametrize("close", [True, False])
def test_the_group_is_destroyed_first(close: bool, launcher: Launcher) -> None:
    assert launcher.run("group_first", 2, {"close": close}) == [3.0, 3.0]


def test_an_exception_in_a_with_block(launcher: Launcher) -> None:
    first, second = launcher.run("raise_in_with", 2)
    assert first == "ValueError: boom"
    assert second.startswith("CollectiveTimeout: rank 0 gave up (ValueError: boom); rank 1 stood at the entry barrier")


def require_flat(found: list[dict[str, int]], during: dict[str, int]) -> None:
    """Counts do not grow after the first few rounds."""
    settled, last = found[len(found) // 3], found[-1]
    assert (during["memfds"], during["windows"]) == (2, 1)  # ours and the mapping's
    assert (last["memfds"], last["windows"]) == (0, 0)
    assert last["descriptors"] == settled["descriptors"]
    assert last["mappings"] <= settled["mappings"] + 3
    assert last["rss_kib"] <= settled["rss_kib"] + 4096


@pytest.mark.parametrize("count", [15, pytest.param(200, marks=pytest.mark.slow)])
def test_many_ops_one_after_the_other(count: int, launcher: Launcher) -> None:
    with launcher.start("cycles", 2, {"count": count}) as launch:
        for found, during in launch.results(600):
            require_flat(found, during)


def test_keys_in_the_store_do_not_pile_up(launcher: Launcher) -> None:
    for counts in launcher.run("keys", 3):
        assert max(counts) <= 10


# --- many calls ---


@pytest.mark.parametrize("count", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_eight_ranks_with_random_delays_and_sizes(count: int, launcher: Launcher) -> None:
    with launcher.start("calls", 8, {"count": count, "seed": count}) as launch:
        assert launch.results(900) == [0] * 8


# --- caches ---


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    path.write_bytes({"empty": b"", "half": data[: len(data) // 2], "noise": random.Random(0).randbytes(999)}[how])


def cold(launcher: Launcher, cache: Path) -> list[str]:
    """Eight ranks that start together with this cache get the right sum; returns what they warned of."""
    found = launcher.run("cold", 8, environment={"MORI_GEMM_AR_CACHE": str(cache)})
    assert [total for total, _ in found] == [36.0] * 8
    return [text for _, texts in found for text in texts]


def test_eight_cold_ranks_and_a_damaged_cache(launcher: Launcher, tmp_path: Path) -> None:
    """An entry is built once, and a damaged one is rebuilt once, with one warning in all."""
    assert cold(launcher, tmp_path) == []
    entries = sorted(tmp_path.glob("*.isa"))
    assert len(entries) == 2
    good = {path: path.read_bytes() for path in entries}
    for path, how in zip(entries, ("half", "noise"), strict=True):
        damage(path, how)
    warned = cold(launcher, tmp_path)
    assert len(warned) == 2, warned
    assert all("is rebuilt: it is" in text for text in warned)
    assert {path: path.read_bytes() for path in entries} == good
    assert cold(launcher, tmp_path) == []


@pytest.mark.slow
def test_twenty_cold_starts_and_every_damage(launcher: Launcher, tmp_path: Path) -> None:
    for number in range(20):
        cache = tmp_path / str(number)
        assert cold(launcher, cache) == []
        for path in cache.glob("*.isa"):
            for how in ("empty", "half", "noise") if number == 0 else ():
                damage(path, how)
                warned = cold(launcher, cache)
                assert len(warned) == 1, (path, how, warned)
