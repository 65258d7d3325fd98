# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""A GPU node without GPUs, for the rocm target: a HIP library that logs, a `mori.cco` with its rules, CPU tensors.

What is launched is handed to the emulator, so an op on the rocm target computes, and its self-test means something.
"""

from __future__ import annotations

import ctypes
import dataclasses
import shutil
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from mori_gemm_ar.compile.hsaco import hsaco_digest
from mori_gemm_ar.compile.store import CodeForm, CodeObject, default_store
from mori_gemm_ar.runtime import Launch, LocalWorld, Pipeline, RankContext
from mori_gemm_ar.runtime.emulated import EmulatedTarget
from mori_gemm_ar.runtime.hip import Hip
from mori_gemm_ar.runtime.rocm import RocmTarget
from tests.unit.fake_cco import FakeCco, Flat

SOURCE = Path(__file__).with_name("fake_hip.c")
STREAMS = 16  # distance of two streams of one rank


# --- code ---


class StandInStore:
    """Real ISA text beside a stand-in for the HSACO, which takes no linker to make."""

    def get(self, config: Any, form: CodeForm = CodeForm.ISA) -> CodeObject:
        code = default_store().get(config)
        if form is CodeForm.ISA:
            return code
        # An ELF header that says where the file ends, then the name.
        name = config.key.encode()
        hsaco = struct.pack("<4s36xQ10xHHH", b"\x7fELF", 64 + len(name), 0, 0, 0) + name
        manifest = code.manifest | {"hsaco_sha256": hsaco_digest(hsaco)}
        return dataclasses.replace(code, hsaco=hsaco, manifest=manifest)


# --- HIP ---

_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint), ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
)
_WAIT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


@dataclass(frozen=True)
class Launched:
    """One launch, as a target gave it to the device."""

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: bytes

    @staticmethod
    def of(launch: Launch) -> Launched:
        return Launched(launch.code.kernel, launch.grid, launch.block, launch.arguments)


def rank_of(stream: int) -> int:
    return (stream - 1) % STREAMS


@cache
def compiled_library() -> bytes:
    """The fake library, compiled once; skips the test where there is no compiler."""
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        pytest.skip("needs a C compiler (cc, gcc or clang) for the fake libamdhip64.so")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "libamdhip64.so")
        command = [compiler, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(path), str(SOURCE)]
        subprocess.run(command, check=True, timeout=60)
        return path.read_bytes()


class FakeHip:
    """A freshly loaded fake library, its binding, and the switches of the fake."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "libamdhip64.so")  # a file of its own is a library, and a state, of its own
        Path(self.path).write_bytes(compiled_library())
        self.raw = ctypes.CDLL(self.path)
        self.raw.fake_log.restype = ctypes.c_char_p
        self.raw.fake_next_host.argtypes = (ctypes.c_void_p,)
        self.hip = Hip(self.path)
        self._callbacks: list[Any] = []
        self.errors: list[Exception] = []

    @property
    def log(self) -> list[str]:
        return self.raw.fake_log().decode().splitlines()

    def clear(self) -> None:
        self.raw.fake_clear()

    def fail(self, call: str, code: int = 2) -> None:
        """Let the next call of this name fail."""
        self.raw.fake_fail(call.encode(), code)

    def launches(self, rank: int) -> list[Launched]:
        """What was launched on a rank's streams, in order."""
        found = []
        for line in self.log:
            word, *rest = line.split()
            if word == "launch" and rank_of(int(rest[4], 16)) == rank:
                grid, block = (tuple(map(int, part.split(","))) for part in rest[1:3])
                found.append(Launched(rest[0], grid, block, bytes.fromhex(rest[5])))
        return found

    def run_with(self, launch: Callable[[str, Any, Any, bytes, int], None], wait: Callable[[int], None]) -> None:
        """Hand launches and waits to Python; an error there becomes an error of the call, and is kept."""

        def guarded(action: Callable[[], None]) -> int:
            try:
                action()
            except Exception as error:
                self.errors.append(error)
                return 999
            return 0

        def on_launch(kernel: bytes, shape: Any, address: int, nbytes: int, stream: int) -> int:
            arguments = ctypes.string_at(address, nbytes)
            return guarded(lambda: launch(kernel.decode(), tuple(shape[:3]), tuple(shape[3:6]), arguments, stream or 0))

        self._callbacks = [_LAUNCH(on_launch), _WAIT(lambda stream: guarded(lambda: wait(stream or 0)))]
        self.raw.fake_on_launch(self._callbacks[0])
        self.raw.fake_on_wait(self._callbacks[1])


class CpuGpu:
    """In place of torch's GPU: CPU tensors are device memory, and the stream is whatever the test says."""

    def __init__(self, rank: int) -> None:
        self.index, self.torch_device = 0, "cpu"
        self.current = rank + 1
        self.replays = self.guards = 0
        self._capturing = False

    @contextmanager
    def guard(self) -> Iterator[None]:
        self.guards += 1
        try:
            yield
        finally:
            self.guards -= 1

    def is_current(self) -> bool:
        return self.guards > 0

    def stream(self) -> int:
        return self.current

    def capturing(self) -> bool:
        return self._capturing

    @contextmanager
    def capture(self) -> Iterator[Any]:
        self._capturing = True
        try:
            yield self
        finally:
            self._capturing = False

    def replay(self) -> None:
        self.replays += 1

    def tensor(self, address: int, nbytes: int) -> torch.Tensor:
        return torch.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype=torch.uint8)


# --- a world of ranks on it ---


class EmulatedRocmTarget(RocmTarget):
    """The rocm target, telling the emulator beside it what the emulator has to know: code, and who owns memory."""

    def __init__(self, context: RankContext, fake: FakeHip, cco: FakeCco, gpu: CpuGpu) -> None:
        super().__init__(context, fake.hip, cco, gpu)
        self.fake, self.cco, self.gpu = fake, cco, gpu
        self.emulated = EmulatedTarget(context)
        self.codes: dict[str, Any] = {}
        self.buffers: tuple[Any, ...] = ()
        self.submitted: list[Launched] = []

    def load(self, code: Any) -> None:
        super().load(code)
        self.codes[code.kernel] = code

    def error_record(self, own: int, nbytes: int) -> Any:
        self.fake.raw.fake_next_host(own)
        return super().error_record(own, nbytes)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self.emulated.synchronize()  # a CPU tensor has no stream that would keep the order
        super().copy(target, source, nbytes)

    def submit(self, pipeline: Pipeline) -> None:
        self.buffers = pipeline.buffers
        super().submit(pipeline)

    def execute(self, kernel: str, grid: Any, block: Any, arguments: bytes) -> None:
        launch = Launch(self.codes[kernel], grid, block, arguments, kernel)
        self.emulated.submit(Pipeline(kernel, (launch,), self.buffers))


class RocmWorld:
    """One rank of a `LocalWorld` whose device is the fake GPU: what `AllReduceOp.create` takes."""

    def __init__(
        self, context: RankContext, node: FakeNode, target: type[EmulatedRocmTarget] = EmulatedRocmTarget
    ) -> None:
        self._context, self._node, self._target = context, node, target
        self.rank, self.size, self.exchange = context.rank, context.size, context.exchange
        self.log: list[str] = []
        self.targets: list[EmulatedRocmTarget] = []

    def target(self, device: str = "auto") -> EmulatedRocmTarget:
        faults, gpu = self._node.faults.get(self.rank, {}), CpuGpu(self.rank)
        node = self._context.node
        cco = FakeCco(self._node.flat, node.regions, self.log, faults, lambda: gpu.guards > 0, node.engines)
        target = self._target(self._context, self._node.fake, cco, gpu)
        self._node.targets[self.rank] = target
        self.targets.append(target)
        return target


class FakeNode:
    """The parts that all ranks share. Streams of rank r are r + 1, r + 17, ..., so that a launch tells whose it is."""

    def __init__(self, folder: Path, nranks: int) -> None:
        self.flat, self.fake = Flat(nranks), FakeHip(folder)
        self.targets: dict[int, EmulatedRocmTarget] = {}
        self.faults: dict[int, dict[str, Exception]] = {}
        self.fake.run_with(self._launch, self._wait)

    def _launch(self, kernel: str, grid: Any, block: Any, arguments: bytes, stream: int) -> None:
        self.targets[rank_of(stream)].execute(kernel, grid, block, arguments)

    def _wait(self, stream: int) -> None:
        # Waiting for the device names no stream; only the caller has a right to wait for its own rank.
        target = self.targets[rank_of(stream)] if stream else self._mine()
        target.emulated.synchronize()

    def _mine(self) -> EmulatedRocmTarget:
        return self.targets[int(threading.current_thread().name.split()[1].rstrip(","))]


def run(node: FakeNode, body: Callable[[RankContext, RocmWorld], Any], size: int = 2, **arguments: Any) -> list[Any]:
    """Results of `body` on all ranks."""
    return LocalWorld(size).run(lambda context: body(context, RocmWorld(context, node, **arguments)))
