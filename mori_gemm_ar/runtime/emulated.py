# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The emulated target: launches go to an emulated node, memory is this process's own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mori_gemm_ar.compile.store import CodeForm
from mori_gemm_ar.emulator import TICKS_PER_SECOND, KernelLaunch, MemoryRegion, Node
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.runtime.group import agree
from mori_gemm_ar.runtime.launch import Code, Launch, Pipeline, kernel_of, places_of
from mori_gemm_ar.runtime.resource import Resource
from mori_gemm_ar.runtime.symmetric import Backing, Communicator

if TYPE_CHECKING:
    import torch

DEFAULT_TIMEOUT_S = 300.0  # emulated kernels are slow, not stuck


class Host(Protocol):
    """What the emulated target needs of the world it lives in."""

    node: Node
    rank: int
    size: int

    @property
    def backing(self) -> Backing:
        """Where its symmetric memory comes from."""

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Let others run until `condition()` holds."""

    def exchange(self, step: str, value: object) -> list[object]:
        """One value from every rank."""

    def give_up(self, reason: str) -> None:
        """Tell ranks that wait for this one in a kernel that it will not come."""

    def absent(self) -> dict[int, str]:
        """Ranks known to be gone, and what became of them."""


class EmulatedRecording:
    """Pipelines recorded on one target."""

    def __init__(self, target: EmulatedTarget) -> None:
        self._target = target
        self.pipelines: list[Pipeline] = []
        self.finished = False

    @property
    def launches(self) -> tuple[Launch, ...]:
        """All recorded launches in order."""
        return tuple(launch for pipeline in self.pipelines for launch in pipeline.launches)

    def replay(self) -> None:
        """Run the recorded launches and wait for them; the caller keeps the tensors alive."""
        if not self.finished:
            raise ConfigError("recording must be finished before replay; leave its `with` block first")
        for pipeline in self.pipelines:
            self._target.submit(pipeline)
        self._target.settle()


class WindowRecord(Resource):
    """The error record in the window's control region; it goes away with the window."""

    def __init__(self, address: int, nbytes: int) -> None:
        super().__init__()
        self.address, self._nbytes = address, nbytes
        self._status = ctypes.c_uint32.from_address(address)

    def written(self) -> bool:
        """Whether a kernel has failed."""
        return self._status.value != 0

    def read(self) -> bytes:
        """The bytes."""
        return ctypes.string_at(self.address, self._nbytes)

    def _release(self) -> None:
        pass


class PreparedPipeline:
    """A pipeline that is copied with the operands of each run."""

    def __init__(self, target: EmulatedTarget, pipeline: Pipeline) -> None:
        self._target, self._pipeline, self._places = target, pipeline, places_of(pipeline)

    def run(self, addresses: Sequence[int]) -> None:
        """Submit it with these operands."""
        pipeline = self._pipeline
        arguments = [bytearray(launch.arguments) for launch in pipeline.launches]
        for place in self._places:
            arguments[place.launch][place.offset : place.offset + 8] = addresses[place.operand].to_bytes(8, "little")
        launches = zip(pipeline.launches, arguments, strict=True)
        buffers = zip(pipeline.buffers, addresses, strict=True)
        self._target.submit(
            Pipeline(
                pipeline.name,
                tuple(replace(launch, arguments=bytes(own)) for launch, own in launches),
                tuple(replace(buffer, address=address) for buffer, address in buffers),
            )
        )


class EmulatedTarget:
    """One rank's GPU on the emulated node, with a stream of its own while it has work there."""

    name = "emulated"
    torch_device = "cpu"
    default_timeout_s = DEFAULT_TIMEOUT_S
    ticks_per_second = TICKS_PER_SECOND
    code_form = CodeForm.ISA
    records_copies = False

    def __init__(self, host: Host) -> None:
        self._host = host
        self._recording: EmulatedRecording | None = None
        self._communicator: Communicator | None = None
        self._stream = self._pending = 0

    @property
    def recording(self) -> bool:
        """Whether launches are being recorded instead of run."""
        return self._recording is not None

    def communicator(self, per_rank_bytes: int) -> Communicator:
        """Collective: flat memory of `per_rank_bytes` per rank."""
        host, backing = self._host, self._host.backing
        per_rank = -(-per_rank_bytes // 65536) * 65536
        try:
            own = agree(
                host, "name the communicator", lambda: backing.name(host.size, per_rank) if host.rank == 0 else None
            )
            unique = host.exchange("communicator", own)[0]

            def join() -> None:
                self._communicator = Communicator.init(
                    host.size,
                    host.rank,
                    unique,  # type: ignore[arg-type]
                    per_rank,
                    backing=backing,
                    meet=self._meet,
                    engines=host.node.engines,
                )

            agree(host, "reserve symmetric memory", join)
        except BaseException:
            if self._communicator is not None:
                self._communicator.destroy()
            backing.discard()
            raise
        assert self._communicator is not None
        return self._communicator

    def _meet(self) -> None:
        self._host.exchange("barrier", None)

    def load(self, code: Code) -> None:
        """Parse the text; it is translated when it first runs."""
        kernel_of(code)

    def error_record(self, own: int, nbytes: int) -> WindowRecord:
        """The place in the window, which is cleared with the control region."""
        return WindowRecord(own, nbytes)

    def submit(self, pipeline: Pipeline) -> None:
        """Queue a pipeline; its buffers are known memory until it has run."""
        if self._recording is not None:
            self._recording.pipelines.append(pipeline)
            return
        if not pipeline.launches:
            return
        node, rank = self._host.node, self._host.rank
        kernels = [kernel_of(launch.code) for launch in pipeline.launches]
        for kernel in kernels:  # what the emulator does not know is the caller's error, before anything is queued
            node.translate(kernel)
        regions = [MemoryRegion(f"{b.name} of rank {rank}", b.address, b.nbytes, rank) for b in pipeline.buffers]
        for region in regions:
            node.regions.add(region)
        if not self._pending:
            self._stream = node.free_stream(rank)
        last = len(kernels) - 1
        for position, (kernel, launch) in enumerate(zip(kernels, pipeline.launches, strict=True)):
            done = partial(self._done, regions if position == last else [])
            arguments = (launch.grid, launch.block, launch.arguments, launch.name, done)
            node.submit(rank, KernelLaunch(kernel, *arguments), self._stream)
        self._pending += len(kernels)

    def prepare(self, pipeline: Pipeline) -> PreparedPipeline:
        """A pipeline with stand-ins for operands."""
        return PreparedPipeline(self, pipeline)

    def _done(self, regions: list[MemoryRegion]) -> None:
        self._pending -= 1
        for region in regions:
            self._host.node.regions.remove(region)

    def synchronize(self) -> None:
        """Wait until this target's stream is drained."""
        self._host.wait("the stream to drain", lambda: self._pending == 0)

    def mori_bitcode(self) -> Path:
        """Refuses: what amd-mori's device code reads is made by amd-mori, on a GPU."""
        raise ConfigError(
            "cco_device='mori' must run on device='rocm', but the device is 'emulated', whose queues are not "
            "amd-mori's; use cco_device='own'"
        )

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy when earlier calls have ended."""
        if self.recording:
            raise ConfigError("copy() must not be called while recording; an emulated recording holds launches only")
        self.synchronize()
        ctypes.memmove(target, source, nbytes)

    def settle(self) -> None:
        """CPU tensors have no stream: wait, except while recording."""
        if self._recording is None:
            self.synchronize()

    def give_up(self, reason: str) -> None:
        """Tell ranks that wait for this one in a kernel that it will not come."""
        self._host.give_up(reason)

    def absent(self) -> dict[int, str]:
        """Ranks known to be gone, and what became of them."""
        return self._host.absent()

    def fill(self, address: int, nbytes: int, value: int) -> None:
        """Set bytes."""
        ctypes.memset(address, value, nbytes)

    def read(self, address: int, nbytes: int) -> bytes:
        """Copy of bytes."""
        return ctypes.string_at(address, nbytes)

    def write(self, address: int, data: bytes) -> None:
        """Write bytes."""
        ctypes.memmove(address, data, len(data))

    def tensor_memory(self, address: int, nbytes: int) -> torch.Tensor:
        """Window memory; stays valid as long as the tensor lives."""
        import torch

        if self._communicator is None:
            raise ConfigError("communicator must be created before its memory is viewed")
        return torch.frombuffer(self._communicator.memory.view(address, nbytes), dtype=torch.uint8)

    @contextmanager
    def record(self) -> Iterator[EmulatedRecording]:
        """Record launches instead of running them."""
        if self._recording is not None:
            raise ConfigError("recording must not be nested; finish the first one")
        self._recording = recording = EmulatedRecording(self)
        try:
            yield recording
        finally:
            self._recording = None
            recording.finished = True
