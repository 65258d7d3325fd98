# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""A process that imports everything once and forks ranks on demand, each of which then ends like any interpreter.

Orders come as JSON lines on stdin: {"job", "size", "folder", "arguments", "environment", "limits"}. A rank's process
number, output, result and exit status are files in the folder. When stdin ends, so do the ranks that still live.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pickle
import resource
import select
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch.distributed as dist

_POLL_S = 0.02
_MEET_S = 120.0


@dataclass
class Rank:
    """What a job gets."""

    rank: int
    size: int
    folder: Path
    arguments: dict[str, Any] = field(default_factory=dict)

    def store(self) -> dist.Store:
        """A client of the store that rank 0 serves."""
        port = self.folder / "port"
        if self.rank == 0:
            server = dist.TCPStore("127.0.0.1", 0, self.size, True, wait_for_workers=False)
            write(port, str(server.port))
            return server
        self.wait_for("port")
        return dist.TCPStore("127.0.0.1", int(port.read_text()), self.size, False, wait_for_workers=False)

    def init(self) -> None:
        """The default group."""
        dist.init_process_group(
            "gloo", store=self.store(), rank=self.rank, world_size=self.size, timeout=timedelta(seconds=_MEET_S)
        )

    def outlive(self) -> None:
        """Let rank 0, which serves the store, end last."""
        self.mark(f"done {self.rank}")
        for peer in range(self.size if self.rank == 0 else 0):
            self.wait_for(f"done {peer}")

    def mark(self, name: str) -> None:
        """Tell the test and the other ranks."""
        write(self.folder / name, "")

    def wait_for(self, name: str) -> None:
        """Until somebody marks that."""
        deadline = time.monotonic() + _MEET_S
        while not (self.folder / name).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(name)
            time.sleep(0.002)


def write(path: Path, data: str | bytes) -> None:
    """At once: readers see nothing or all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data.encode() if isinstance(data, str) else data)
    temporary.replace(path)


def run_rank(modules: list[str], order: dict[str, Any], number: int) -> int:
    """The life of a rank; returns its exit code."""
    rank = Rank(number, order["size"], Path(order["folder"]), order["arguments"])
    for stream, name in ((1, "out"), (2, "err")):
        descriptor = os.open(rank.folder / f"{number}.{name}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, stream)
        os.close(descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(order["environment"])
    for name, value in order["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, resource.RLIM_INFINITY))
    job = next(vars(sys.modules[name])[order["job"]] for name in modules if order["job"] in vars(sys.modules[name]))
    try:
        result, code = job(rank), 0
    except SystemExit:
        raise
    except BaseException as error:
        traceback.print_exc()
        result, code = error, 1
    try:
        data = pickle.dumps(result)
    except Exception:
        data = pickle.dumps(RuntimeError(repr(result)))
    write(rank.folder / f"{number}.result", data)
    return code


def serve(modules: list[str]) -> int | None:
    """Fork ranks until stdin ends. Returns only in a rank, with its exit code."""
    for module in modules:
        importlib.import_module(module)
    # Without it every rank's last garbage collection writes to, and so copies, all that was imported.
    gc.collect()
    gc.freeze()
    children: dict[int, Path] = {}
    print("ready", flush=True)
    buffer = b""
    while True:
        readable, _, _ = select.select([0], [], [], _POLL_S)
        if readable:
            data = os.read(0, 65536)
            if not data:
                break
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                for number in range(order["size"]):
                    pid = os.fork()
                    if pid == 0:
                        return run_rank(modules, order, number)
                    children[pid] = Path(order["folder"], f"{number}.exit")
                    write(Path(order["folder"], f"{number}.pid"), str(pid))
        reap(children)
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while children:
        reap(children)
        time.sleep(_POLL_S)
    return None


def reap(children: dict[int, Path]) -> None:
    """Note how ranks ended."""
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with contextlib.suppress(FileNotFoundError):  # the test has cleaned up
                write(children[pid], str(os.waitstatus_to_exitcode(status)))
            del children[pid]


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:]))
