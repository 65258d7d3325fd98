# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Processes that know of each other: who a rank is, and whether it still lives."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_DEAD_STATES = "ZX"  # a killed process stays a zombie until its parent asks


def _stat(pid: int) -> tuple[str, int] | None:
    """(state, start time in clock ticks since boot), or None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return fields[0], int(fields[19])


@cache
def _host() -> str:
    """What two processes share when their process numbers mean the same: kernel and process namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process, told from a later one with the same number by its start time."""

    pid: int
    started: int
    host: str

    @classmethod
    def mine(cls) -> ProcessId:
        """The calling process."""
        pid = os.getpid()
        stat = _stat(pid)
        assert stat is not None
        return cls(pid, stat[1], _host())

    def alive(self) -> bool:
        """Whether it still runs; a process that cannot be looked at counts as alive."""
        if self.host != _host():
            return True
        try:
            stat = _stat(self.pid)
        except OSError:
            return True
        return stat is not None and stat[0] not in _DEAD_STATES and stat[1] == self.started
