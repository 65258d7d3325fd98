# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""How much memory may still be taken. Beyond it the kernel kills a process instead of refusing the allocation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_UNLIMITED = 1 << 60  # version 1 writes the highest page number for "no limit"


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Bytes that are still free under one limit, and its name."""

    name: str
    free: int


def memory_limits(root: Path = Path("/")) -> list[MemoryLimit]:
    """All limits that hold for this process: the machine's, and those of its control groups, versions 1 and 2."""
    limits = [MemoryLimit("MemAvailable of /proc/meminfo", _mem_available(root))]
    for folder, names in _groups(root):
        limit = _number(folder / names.limit)
        used = _number(folder / names.used)
        if limit is None or used is None or limit >= _UNLIMITED:
            continue
        # File pages that nobody used lately are given up before anything is refused.
        free = limit - used + (_entry(folder / "memory.stat", names.reclaimable) or 0)
        name = f"what is left of {names.limit}={limit} in /{folder.relative_to(root).as_posix()}"
        limits.append(MemoryLimit(name, max(0, free)))
    return limits


def reason_not_available(what: str, nbytes: int, way_out: str, root: Path = Path("/")) -> str | None:
    """Why `nbytes` bytes cannot be had, or None."""
    least = min(memory_limits(root), key=lambda limit: limit.free)
    if nbytes <= least.free:
        return None
    return f"{what}={nbytes} bytes must be at most {least.free}, {least.name}; {way_out}"


@dataclass(frozen=True, slots=True)
class _Names:
    limit: str
    used: str
    reclaimable: str


_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Names("memory.max", "memory.current", "inactive_file")


def _groups(root: Path) -> list[tuple[Path, _Names]]:
    """Folders of this process's memory groups, from its own up to the mount point."""
    own = _own_paths(root)
    found = []
    for names, mount_root, mount_point in _mounts(root):
        if names not in own:
            continue
        try:
            below = PurePosixPath(own[names]).relative_to(mount_root)
        except ValueError:  # a namespace shows the path of another root; the mount point is what we may see
            below = PurePosixPath()
        if ".." in below.parts:
            below = PurePosixPath()
        top = root / mount_point.lstrip("/")
        folder = top / below
        while True:
            found.append((folder, names))
            if folder == top:
                break
            folder = folder.parent
    return found


def _own_paths(root: Path) -> dict[_Names, str]:
    """Path of this process in the hierarchy of each version."""
    paths = {}
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            paths[_V2] = path
        elif "memory" in controllers.split(","):
            paths[_V1] = path
    return paths


def _mounts(root: Path) -> list[tuple[_Names, str, str]]:
    """(version, root of the mount in the hierarchy, mount point) of each mounted memory hierarchy."""
    found = []
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if kind[0] == "cgroup2":
            found.append((_V2, fields[3], fields[4]))
        elif kind[0] == "cgroup" and "memory" in kind[-1].split(","):
            found.append((_V1, fields[3], fields[4]))
    return found


def _mem_available(root: Path) -> int:
    kilobytes = _entry(root / "proc/meminfo", "MemAvailable:")
    return _UNLIMITED if kilobytes is None else 1024 * kilobytes


def _entry(path: Path, name: str) -> int | None:
    """The number behind a name."""
    for line in _lines(path):
        fields = line.split()
        if len(fields) > 1 and fields[0] == name:
            return int(fields[1])
    return None


def _number(path: Path) -> int | None:
    """The only number of a file; None where it says `max` or is missing."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
