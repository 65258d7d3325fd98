# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Memory that processes share: refused before it hurts, nameless, locked where it must be, gone when it should."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from mori_gemm_ar.emulator import RegionTable
from mori_gemm_ar.errors import CollectiveSetupError, ConfigError
from mori_gemm_ar.runtime import shared_memory
from mori_gemm_ar.runtime.memory_limits import MemoryLimit, memory_limits, reason_not_available
from mori_gemm_ar.runtime.peers import ProcessId
from mori_gemm_ar.runtime.shared_memory import ProcessBacking, Segment
from tests.ranks.process_setup_jobs import ADDITIONS
from tests.ranks.processes import Launcher

MIB = 1 << 20

# --- limits ---

V2_MOUNT = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory"


def machine(root: Path, files: dict[str, object]) -> Path:
    """A made-up file tree."""
    for name, text in {"proc/meminfo": "MemTotal: 100000 kB\nMemAvailable:   65536 kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def free(root: Path) -> dict[str, int]:
    return {limit.name: limit.free for limit in memory_limits(root)}


def test_the_machine(tmp_path: Path) -> None:
    assert free(machine(tmp_path, {})) == {"MemAvailable of /proc/meminfo": 64 * MIB}
    text = reason_not_available("window", 64 * MIB + 1, "buy some", tmp_path)
    assert text == f"window={64 * MIB + 1} bytes must be at most {64 * MIB}, MemAvailable of /proc/meminfo; buy some"
    assert reason_not_available("window", 64 * MIB, "", tmp_path) is None


def test_version_2_with_its_ancestors(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user/job",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/user/job/memory.max": "max",
            "sys/fs/cgroup/user/job/memory.current": "0",
            "sys/fs/cgroup/user/memory.max": 32 * MIB,
            "sys/fs/cgroup/user/memory.current": 12 * MIB,
            "sys/fs/cgroup/user/memory.stat": f"anon 5\nfile 7\ninactive_file {2 * MIB}",
        },
    )
    name = f"what is left of memory.max={32 * MIB} in /sys/fs/cgroup/user"
    assert free(root)[name] == 22 * MIB
    text = reason_not_available("window", 23 * MIB, "ask for more", root)
    assert text == f"window={23 * MIB} bytes must be at most {22 * MIB}, {name}; ask for more"


def test_version_1(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": "9:name=systemd:/\n4:memory:/job\n0::/",
            "proc/self/mountinfo": f"{V1_MOUNT}\n{V2_MOUNT.replace('/sys/fs/cgroup', '/sys/fs/cgroup/unified')}",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": 16 * MIB,
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": 15 * MIB,
            "sys/fs/cgroup/memory/job/memory.stat": f"inactive_file 1\ntotal_inactive_file {3 * MIB}",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": 40 * MIB,
        },
    )
    assert free(root) == {
        "MemAvailable of /proc/meminfo": 64 * MIB,
        f"what is left of memory.limit_in_bytes={16 * MIB} in /sys/fs/cgroup/memory/job": 4 * MIB,
    }


@pytest.mark.parametrize("own", ["/", "/../other", "/docker/abc", "/docker/abc/inner"])
def test_a_container_that_sees_only_its_own_part(own: str, tmp_path: Path) -> None:
    """The mount shows /docker/abc of the host's hierarchy, and the process's path may be that of another root."""
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": f"0::{own}",
            "proc/self/mountinfo": V2_MOUNT.replace("0:26 / ", "0:26 /docker/abc "),
            "sys/fs/cgroup/memory.max": 8 * MIB,
            "sys/fs/cgroup/memory.current": MIB,
        },
    )
    assert free(root)[f"what is left of memory.max={8 * MIB} in /sys/fs/cgroup"] == 7 * MIB


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    assert reason_not_available("window", 1 << 50, "", tmp_path) is None


def test_this_machine_has_limits() -> None:
    assert min(limit.free for limit in memory_limits()) > 0
    assert reason_not_available("window", 1 << 59, "") is not None


# --- segments ---


def backing() -> ProcessBacking:
    return ProcessBacking(RegionTable(), [ProcessId.mine()] * 2)


def test_a_segment_has_no_name_and_takes_its_pages_at_once() -> None:
    before, descriptors = os.listdir("/dev/shm"), len(os.listdir("/proc/self/fd"))
    segment = Segment.create(3 * MIB)
    assert os.readlink(f"/proc/self/fd/{segment.descriptor}") == "/memfd:mori_gemm_ar (deleted)"
    assert os.fstat(segment.descriptor).st_blocks * 512 == 3 * MIB
    assert os.get_inheritable(segment.descriptor) is False
    assert os.listdir("/dev/shm") == before
    other = Segment.open(segment.handle())
    segment.mapping[5] = 7
    assert other.mapping[5] == 7
    segment.close()
    segment.close()
    assert other.mapping[5] == 7  # for as long as somebody holds it
    other.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_refused_before_anything_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mori_gemm_ar.runtime.memory_limits.memory_limits", lambda root: [MemoryLimit("the cap", 99)])
    monkeypatch.setattr(os, "memfd_create", pytest.fail)
    with pytest.raises(ConfigError) as caught:
        Segment.create(100)
    assert str(caught.value) == (
        "window=100 bytes must be at most 99, the cap; lower max_bytes, start fewer ranks, or free memory"
    )


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM])
def test_refused_by_the_system(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(
        ConfigError, match=rf"window=100 bytes must be available, but the system says: {os.strerror(number)};"
    ):
        Segment.create(100)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_file_size_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))
    try:
        with pytest.raises(
            ConfigError, match=r"the system says: File too large \(RLIMIT_FSIZE; see ulimit -f\); lower max_b"
        ):
            Segment.create(MIB + 4096)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_handle_that_leads_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The descriptor was closed, or its number is another file's by now."""
    first = Segment.create(MIB)
    handle = first.handle()
    first.close()
    with pytest.raises(
        CollectiveSetupError, match=r"/proc/\d+/fd/\d+ must be readable, but the system says: No such file"
    ):
        Segment.open(handle)
    second = Segment.create(MIB)
    assert second.descriptor == handle.descriptor
    with pytest.raises(
        CollectiveSetupError, match=r"must be the memory that rank 0 shares; rank 0 has ended or closed"
    ):
        Segment.open(handle)
    second.close()


def test_ranks_on_different_machines() -> None:
    made = backing()
    token = made.name(2, 4096)
    other = type(token)(token.token.replace(ProcessId.mine().host.encode(), b"elsewhere"))
    with pytest.raises(ConfigError, match=r"ranks of an emulated group must share one machine and one container"):
        backing().join(2, 1, other, 4096)
    made.discard()


def test_machines_whose_stores_may_overtake_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    made = backing()
    token = made.name(2, 4096)
    monkeypatch.setattr(shared_memory.platform, "machine", lambda: "aarch64")
    with pytest.raises(ConfigError, match=r"machine='aarch64' must be x86-64, .*; use LocalWorld"):
        made.join(2, 0, token, 4096)
    made.discard()


def test_flat_layout_and_what_outlives_the_end() -> None:
    """Two ranks, as one process may hold them for a test: same offsets, own mapping, views that survive."""
    first, second = backing(), backing()
    token = first.name(2, MIB)
    memories: list[Any] = [first.join(2, 0, token, MIB), second.join(2, 1, token, MIB)]
    first.discard()
    for memory in memories:
        memory.announce(memory.base + memory.rank * MIB + 4096, 8192, ((0, 8192, "all"),))
    for held, memory in zip((first, second), memories, strict=True):
        for rank in (0, 1):
            region = held.regions.find(memory.base + rank * MIB + 4096, 8192)
            assert region is not None
            assert (region.home, region.name, region.symmetric) == (rank, f"window of rank {rank}", True)
    view = torch.frombuffer(memories[0].view(memories[0].base + 4096, 8), dtype=torch.uint8)
    memories[1].view(memories[1].base + 4096, 8)[:] = bytes(range(8))
    for memory in memories:
        memory.leave()
    assert view.tolist() == list(range(8))
    assert not len(first.regions) and not len(second.regions)
    assert not first.memories and not second.boards


# --- read-modify-writes ---


def test_two_processes_count_without_loss(launcher: Launcher) -> None:
    launches = 10
    assert launcher.run("count_up", 2, {"locked": True, "launches": launches}) == [2 * launches * ADDITIONS * 64] * 2


def test_without_the_lock_they_lose(launcher: Launcher) -> None:
    """Control: the counts of the test above are not right by luck."""
    for launches in (20, 100):
        total = launcher.run("count_up", 2, {"locked": False, "launches": launches})[0]
        assert total <= 2 * launches * ADDITIONS * 64
        if total < 2 * launches * ADDITIONS * 64:
            return
    pytest.fail("two processes never met; the machine is too idle or too busy for this control")


def test_a_killed_holder_gives_the_lock_back(launcher: Launcher) -> None:
    with launcher.start("die_with_the_lock", 2) as launch:
        killed, waiting = launch.outcomes()
    assert killed.code == -9
    assert waiting.error is None, waiting
    assert 0.1 < waiting.value < 20
