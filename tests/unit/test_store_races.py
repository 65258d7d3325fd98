# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Processes and threads that want the same entry at once, die while they build it, or never let go of it."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import shutil
import signal
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mori_gemm_ar.compile.store import CodeForm, CodeObject, CodeStore, isa_digest
from tests.unit.store_fakes import Builder, FakeConfig, LoggingBuilder, fake_build, one_cache_warning

SPAWN = multiprocessing.get_context("spawn")
PROCESSES = 8
ROUNDS = 20
CONFIG = FakeConfig()


def race(root: Path, log: Path, barrier, results) -> None:
    warnings.simplefilter("error")
    for round_ in range(ROUNDS):
        barrier.wait(60)
        code = CodeStore(root, LoggingBuilder(log)).get(FakeConfig(f"round_{round_}"))
        results.put((round_, isa_digest(code.isa)))


def test_eight_cold_processes_build_once(tmp_path: Path) -> None:
    log, barrier, results = tmp_path / "log", SPAWN.Barrier(PROCESSES), SPAWN.Queue()
    arguments = (tmp_path / "cache", log, barrier, results)
    processes = [SPAWN.Process(target=race, args=arguments) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    seen = [results.get(timeout=120) for _ in range(PROCESSES * ROUNDS)]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    assert sorted(log.read_text().split()) == sorted(f"round_{round_}" for round_ in range(ROUNDS))
    assert len(set(seen)) == ROUNDS
    assert not list((tmp_path / "cache").glob("*.tmp"))


def test_threads_of_one_process_build_once(tmp_path: Path) -> None:
    builder = Builder(seconds=0.05)
    store = CodeStore(tmp_path, builder)
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda _: store.get(CONFIG), range(8)))
    assert builder.calls == [CONFIG.key]
    assert all(code is codes[0] for code in codes)


class BuilderThatHangs:
    def __init__(self, started: Path) -> None:
        self.started = started

    def __call__(self, config: FakeConfig, form: CodeForm = CodeForm.ISA) -> CodeObject:
        self.started.touch()
        time.sleep(300)
        return fake_build(config, form)


def get_and_hang(root: Path, started: Path) -> None:
    CodeStore(root, BuilderThatHangs(started)).get(CONFIG)


def test_a_builder_that_is_killed_blocks_nobody(tmp_path: Path) -> None:
    started = tmp_path / "started"
    victim = SPAWN.Process(target=get_and_hang, args=(tmp_path / "cache", started))
    victim.start()
    deadline = time.monotonic() + 60
    while not started.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(victim.pid, signal.SIGKILL)
    victim.join(60)
    begin = time.monotonic()
    assert CodeStore(tmp_path / "cache", fake_build).get(CONFIG) == fake_build(CONFIG)
    assert time.monotonic() - begin < 5


def test_a_lock_that_is_never_freed_blocks_no_longer_than_the_timeout(tmp_path: Path) -> None:
    store = CodeStore(tmp_path, fake_build, lock_timeout_s=0.3)
    lock = store.path(CONFIG).with_suffix(".lock")
    with lock.open("ab") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        begin = time.monotonic()
        with one_cache_warning(str(lock), "was not free within 0.3 s"):
            store.get(CONFIG)
        assert 0.3 <= time.monotonic() - begin < 3
    assert store.path(CONFIG).exists()


def test_leftovers_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    store = CodeStore(tmp_path, fake_build)
    leftover = tmp_path / f"{store.path(CONFIG).name}.x1y2.tmp"
    leftover.write_bytes(b"half")
    store.get(CONFIG)
    assert not leftover.exists()


def test_deleting_the_cache_of_a_running_job_is_harmless(tmp_path: Path) -> None:
    root, builder = tmp_path / "cache", Builder()
    store = CodeStore(root, builder)
    store.get(CONFIG)
    shutil.rmtree(root)
    store.get(CONFIG)
    store.get(FakeConfig("another"))
    assert builder.calls == [CONFIG.key, "another"]
    assert len(store.entries()) == 1


def repair(root: Path, barrier, results) -> None:
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        barrier.wait(60)
        CodeStore(root, fake_build).get(CONFIG)
    results.put(len(record))


def test_of_many_processes_one_warns_about_a_damaged_entry(tmp_path: Path) -> None:
    CodeStore(tmp_path, fake_build).get(CONFIG)
    CodeStore(tmp_path).path(CONFIG).write_bytes(b"damaged")
    barrier, results = SPAWN.Barrier(4), SPAWN.Queue()
    processes = [SPAWN.Process(target=repair, args=(tmp_path, barrier, results)) for _ in range(4)]
    for process in processes:
        process.start()
    assert sum(results.get(timeout=60) for _ in processes) == 1
    for process in processes:
        process.join(60)
