# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Starts ranks as processes for a test, bounded in time, and leaves none behind. See `nursery`."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NURSERY = Path(__file__).with_name("nursery.py")
JOBS = (
    *(f"tests.ranks.process_{part}jobs" for part in ("", "setup_", "engine_", "layer_")),
    "tests.ranks.sglang_jobs",
)
TIMEOUT_S = 120.0
_START_S = 120.0
_POLL_S = 0.005


@dataclass(frozen=True)
class Outcome:
    """How a rank ended: its result or error, exit code (negative: killed by that signal) and what it printed."""

    value: Any
    error: BaseException | None
    code: int
    stderr: str

    def __repr__(self) -> str:
        return f"value={self.value!r}, error={self.error!r}, code={self.code}, stderr:\n{self.stderr}"


class Launch:
    """Ranks that run one job."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size
        self.pids = [int(self._await(folder / f"{rank}.pid", _START_S).read_text()) for rank in range(size)]

    def _await(self, path: Path, timeout_s: float) -> Path:
        deadline = time.monotonic() + timeout_s
        while not path.exists():
            if time.monotonic() > deadline:
                states = {pid: _state(pid) for pid in getattr(self, "pids", [])}
                raise TimeoutError(f"{path.name} did not come within {timeout_s} s; processes: {states}")
            time.sleep(_POLL_S)
        return path

    def wait_for(self, mark: str, timeout_s: float = TIMEOUT_S) -> None:
        """Until a rank marks that."""
        self._await(self.folder / mark, timeout_s)

    def mark(self, name: str) -> None:
        """Let ranks go on that wait for it."""
        (self.folder / name).touch()

    def ended(self, rank: int) -> bool:
        """Whether a rank has ended and was reaped."""
        return (self.folder / f"{rank}.exit").exists()

    def kill(self, *ranks: int, how: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to ranks that still live."""
        for rank in ranks:
            if not self.ended(rank):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pids[rank], how)

    def outcome(self, rank: int, timeout_s: float = TIMEOUT_S) -> Outcome:
        """Wait for a rank to end."""
        code = int(self._await(self.folder / f"{rank}.exit", timeout_s).read_text())
        value: Any = None
        result = self.folder / f"{rank}.result"
        if result.exists():
            value = pickle.loads(result.read_bytes())
        stderr = (self.folder / f"{rank}.err").read_text() if (self.folder / f"{rank}.err").exists() else ""
        error = value if isinstance(value, BaseException) else None
        return Outcome(None if error else value, error, code, stderr)

    def outcomes(self, timeout_s: float = TIMEOUT_S) -> list[Outcome]:
        """Wait for all ranks to end."""
        deadline = time.monotonic() + timeout_s
        return [self.outcome(rank, max(0.0, deadline - time.monotonic())) for rank in range(self.size)]

    def results(self, timeout_s: float = TIMEOUT_S) -> list[Any]:
        """The results of ranks all of which must end well: code 0, nothing on stderr."""
        outcomes = self.outcomes(timeout_s)
        for rank, outcome in enumerate(outcomes):
            assert outcome.code == 0 and outcome.error is None and not outcome.stderr, f"rank {rank}: {outcome}"
        return [outcome.value for outcome in outcomes]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


class Launcher:
    """Owns a nursery; `prefix` is what starts it."""

    def __init__(self, prefix: tuple[str, ...] = ()) -> None:
        command = [*prefix, sys.executable, str(NURSERY), *JOBS]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None and self._process.stdin is not None
        line = self._process.stdout.readline()
        assert line == "ready\n", f"the nursery did not start: {line!r}"

    @property
    def pid(self) -> int:
        """The nursery's process."""
        return self._process.pid

    @contextmanager
    def start(
        self,
        job: str,
        size: int,
        arguments: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        limits: dict[str, int] | None = None,
    ) -> Iterator[Launch]:
        """Ranks that run a function of the modules in JOBS; those that still live at the end are killed."""
        folder = Path(tempfile.mkdtemp(prefix="ranks-"))
        order = {
            "job": job,
            "size": size,
            "folder": str(folder),
            "arguments": arguments or {},
            "environment": environment or {},
            "limits": limits or {},
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        launch = Launch(folder, size)
        try:
            yield launch
        finally:
            launch.kill(*range(size))
            with contextlib.suppress(TimeoutError):
                launch.outcomes(30)
            shutil.rmtree(folder, ignore_errors=True)

    def run(self, job: str, size: int, arguments: dict[str, Any] | None = None, **options: Any) -> list[Any]:
        """Results of ranks that must end well."""
        with self.start(job, size, arguments, **options) as launch:
            return launch.results()

    def close(self) -> None:
        """End the nursery and all ranks."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
