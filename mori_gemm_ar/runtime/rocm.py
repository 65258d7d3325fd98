# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The rocm target: HIP launches on torch's current stream, symmetric memory by `mori.cco`.

While torch captures a graph, `submit` only launches: modules are loaded and memory is allocated at creation.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mori_gemm_ar.compile.mori_bitcode import find_bitcode
from mori_gemm_ar.compile.store import CodeForm, CodeObject
from mori_gemm_ar.emulator import TICKS_PER_SECOND
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.isa.text import TARGET
from mori_gemm_ar.runtime import cco
from mori_gemm_ar.runtime.group import Group, agree
from mori_gemm_ar.runtime.hip import Hip, PreparedLaunches, open_hip
from mori_gemm_ar.runtime.launch import Code, Pipeline, Place, places_of
from mori_gemm_ar.runtime.resource import Resource

if TYPE_CHECKING:
    import torch

DEFAULT_TIMEOUT_S = 30.0
_SINGLE, _PAIR = struct.Struct("<Q").pack_into, struct.Struct("<QQ").pack_into  # addresses of operands


class Gpu(Protocol):
    """What the target needs of torch, about one device."""

    index: int
    torch_device: str

    def guard(self) -> AbstractContextManager[Any]:
        """Make the device current for the calling thread."""

    def is_current(self) -> bool:
        """Whether it is."""

    def stream(self) -> int:
        """Handle of torch's current stream on the device."""

    def capturing(self) -> bool:
        """Whether that stream is being captured into a graph."""

    def capture(self) -> AbstractContextManager[Any]:
        """Capture what is queued meanwhile; yields a graph with `replay()`."""

    def tensor(self, address: int, nbytes: int) -> torch.Tensor:
        """Device memory as a uint8 tensor, which does not own it."""


class TorchGpu:
    """A device of torch: the current one, or the one with this index."""

    def __init__(self, index: int | None = None) -> None:
        import torch

        self._cuda = torch.cuda  # ROCm builds of torch keep the name
        self.index: int = torch.cuda.current_device() if index is None else index
        self.torch_device = f"cuda:{self.index}"

    def guard(self) -> AbstractContextManager[Any]:
        """Make the device current for the calling thread."""
        return self._cuda.device(self.index)

    def is_current(self) -> bool:
        """Whether the device is current for the calling thread."""
        return bool(self._cuda.current_device() == self.index)

    def stream(self) -> int:
        """Handle of torch's current stream on the device."""
        return int(self._cuda.current_stream(self.index).cuda_stream)

    def capturing(self) -> bool:
        """Whether that stream is being captured into a graph."""
        return self._cuda.is_current_stream_capturing()

    @contextmanager
    def capture(self) -> Iterator[Any]:
        """Capture what is queued meanwhile into a torch graph."""
        graph = self._cuda.CUDAGraph()
        with self._cuda.graph(graph):
            yield graph

    def tensor(self, address: int, nbytes: int) -> torch.Tensor:
        """Device memory as a uint8 tensor, which does not own it."""
        import torch

        return torch.as_tensor(_DeviceBytes(address, nbytes), device=self.torch_device)


class _DeviceBytes:
    """Device memory as torch reads it; see the CUDA array interface, version 2."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 2,
        }


class PinnedRecord(Resource):
    """An error record in pinned host memory: a failed kernel's words are read without waiting for the device."""

    def __init__(self, hip: Hip, nbytes: int) -> None:
        super().__init__()
        self._hip, self._nbytes = hip, nbytes
        self._host, self.address = hip.allocate_host(nbytes)
        ctypes.memset(self._host, 0, nbytes)
        self._status = ctypes.c_uint32.from_address(self._host)

    def written(self) -> bool:
        """Whether a kernel has failed."""
        return self._status.value != 0

    def read(self) -> bytes:
        """The bytes as they are now."""
        self.require_open()
        return ctypes.string_at(self._host, self._nbytes)

    def _release(self) -> None:
        self._hip.free_host(self._host)


class PreparedPipeline:
    """Launches whose arguments stand ready but for the addresses of operands."""

    def __init__(self, target: RocmTarget, launches: PreparedLaunches, places: Sequence[Place]) -> None:
        self._target, self.launches = target, launches
        self.gpu, self._queue = target.gpu, launches.run
        self._single, self._pairs = [], []
        rest = list(places)
        while rest:
            place = rest.pop(0)
            written = (launches.arguments[place.launch], place.offset, place.operand)
            if rest and rest[0] == Place(place.launch, place.offset + 8, place.operand + 1):
                rest.pop(0)
                self._pairs.append(written)
            else:
                self._single.append(written)

    def run(self, addresses: Sequence[int]) -> None:
        """Queue it with these operands."""
        for arguments, offset, operand in self._pairs:
            _PAIR(arguments, offset, addresses[operand], addresses[operand + 1])
        for arguments, offset, operand in self._single:
            _SINGLE(arguments, offset, addresses[operand])
        gpu = self.gpu
        # Nearly always: the device is current and the stream that of the last call.
        if gpu.is_current() and (stream := gpu.stream()) == self._target.last_stream:
            self._queue(stream)
        else:
            self._target.run(self.launches)


class RocmRecording:
    """A captured graph. The caller keeps tensors alive, and orders replays with other calls of the op."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self.finished = False

    def replay(self) -> None:
        """Queue the captured launches on torch's current stream."""
        if not self.finished:
            raise ConfigError("recording must be finished before replay; leave its `with` block first")
        self._graph.replay()


class RocmTarget:
    """One rank's gfx950. Calls run in the order in which they were made, also from different streams.

    `hip`, `cco_module` and `gpu` are what the machine offers; see `rocm_target`.
    """

    name = "rocm"
    default_timeout_s = DEFAULT_TIMEOUT_S
    ticks_per_second = TICKS_PER_SECOND
    code_form = CodeForm.HSACO
    records_copies = True

    def __init__(self, group: Group, hip: Hip, cco_module: Any, gpu: Gpu) -> None:
        arch = hip.arch(gpu.index)
        if arch.partition(":")[0] != TARGET:
            raise ConfigError(f"device={gpu.torch_device} must be a {TARGET}, but is {arch}; choose another device")
        self.torch_device = gpu.torch_device
        self._group, self._hip, self._cco, self.gpu = group, hip, cco_module, gpu
        self._functions: dict[str, int] = {}
        self._event = 0
        self.last_stream: int | None = None  # of the last call outside a capture

    @property
    def recording(self) -> bool:
        """Whether torch is capturing a graph."""
        return self.gpu.capturing()

    # --- creation ---

    def communicator(self, per_rank_bytes: int) -> cco.CcoCommunicator:
        """Collective: a communicator of the group's own, whose ranks are numbered as the group's."""
        group = self._group
        own = agree(group, "name the communicator", lambda: cco.unique_id_bytes(self._cco) if group.rank == 0 else b"")
        token = group.exchange("communicator", own)[0]
        joined: list[cco.CcoCommunicator] = []

        def join() -> None:
            assert isinstance(token, bytes)
            guard = self.gpu.guard
            size, rank, read = group.size, group.rank, self._hip.read
            joined.append(cco.CcoCommunicator(self._cco, size, rank, token, per_rank_bytes, guard, read))
            with guard():
                self._event = self._hip.create_event()
            joined[0].also(partial(self._hip.destroy_event, self._event))

        try:
            agree(group, "reserve symmetric memory", join)
        except BaseException:
            for communicator in joined:
                communicator.destroy()
            raise
        return joined[0]

    def load(self, code: Code) -> None:
        """Load the module on this device."""
        if not isinstance(code, CodeObject) or code.hsaco is None:
            raise ConfigError(f"code={code.key} must hold an HSACO to run on a GPU; get it with CodeForm.HSACO")
        digest = str(code.manifest["hsaco_sha256"])
        with self.gpu.guard():
            self._functions[code.key] = self._hip.function(self.gpu.index, digest, code.hsaco, code.kernel)

    def error_record(self, own: int, nbytes: int) -> PinnedRecord:
        """An error record in pinned host memory; the window's place for one stays unused."""
        with self.gpu.guard():
            return PinnedRecord(self._hip, nbytes)

    # --- work ---

    def submit(self, pipeline: Pipeline) -> None:
        """Queue all launches on torch's current stream. Their order there satisfies every `after`."""
        functions = [self._function(launch.code) for launch in pipeline.launches]
        with self.gpu.guard():
            stream = self.gpu.stream()
            if not self.gpu.capturing():
                self._keep_order(stream)
            for function, launch in zip(functions, pipeline.launches, strict=True):
                self._hip.launch(function, launch.grid, launch.block, launch.arguments, stream, launch.name)

    def prepare(self, pipeline: Pipeline) -> PreparedPipeline:
        """A pipeline with stand-ins for operands, converted for HIP once."""
        launches = self._hip.prepare()
        for launch in pipeline.launches:
            launches.add(self._function(launch.code), launch.grid, launch.block, launch.arguments, launch.name)
        return PreparedPipeline(self, launches, places_of(pipeline))

    def run(self, launches: PreparedLaunches) -> None:
        """Queue prepared launches on torch's current stream."""
        gpu = self.gpu
        if not gpu.is_current():
            with gpu.guard():
                self.run(launches)
            return
        stream = gpu.stream()
        if stream != self.last_stream and not gpu.capturing():
            self._keep_order(stream)
        launches.run(stream)

    def _function(self, code: Code) -> int:
        if code.key not in self._functions:
            raise ConfigError(f"code={code.key} must be loaded before it is launched; call load() when creating the op")
        return self._functions[code.key]

    def _keep_order(self, stream: int) -> None:
        """Two calls that overlap would count the same epoch, so a new stream waits for the last one."""
        if self.last_stream is not None and stream != self.last_stream:
            self._hip.follow(self._event, self.last_stream, stream)
        self.last_stream = stream

    def mori_bitcode(self) -> Path:
        """amd-mori's device code; see `compile.mori_bitcode`, which may compile it."""
        return find_bitcode()

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Queue a copy of device memory on torch's current stream, in the order of calls."""
        with self.gpu.guard():
            if not self.gpu.capturing():
                self._keep_order(self.gpu.stream())
            self.gpu.tensor(target, nbytes).copy_(self.gpu.tensor(source, nbytes))

    def settle(self) -> None:
        """Nothing: the stream orders what the caller queues next."""

    def synchronize(self) -> None:
        """Wait for everything on the device, replays on any stream included."""
        with self.gpu.guard():
            self._hip.synchronize()

    def give_up(self, reason: str) -> None:
        """Nothing: peers that wait for this rank in a kernel stop when their budget is spent."""

    def absent(self) -> dict[int, str]:
        """Nobody: a GPU tells nothing about its peers' processes."""
        return {}

    # --- memory ---

    def fill(self, address: int, nbytes: int, value: int) -> None:
        """Set bytes of device memory, and wait for it."""
        with self.gpu.guard():
            self._hip.fill(address, value, nbytes, self.gpu.stream())

    def read(self, address: int, nbytes: int) -> bytes:
        """Copy of device memory."""
        with self.gpu.guard():
            return self._hip.read(address, nbytes)

    def write(self, address: int, data: bytes) -> None:
        """Copy to device memory."""
        with self.gpu.guard():
            self._hip.write(address, data)

    def tensor_memory(self, address: int, nbytes: int) -> torch.Tensor:
        """Window memory as a tensor that does not keep it: it ends with the op."""
        return self.gpu.tensor(address, nbytes)

    @contextmanager
    def record(self) -> Iterator[RocmRecording]:
        """Capture a torch graph: launches, copies and whatever else the block queues."""
        if self.recording:
            raise ConfigError("recording must not be nested; finish the first one")
        with self.gpu.guard(), self.gpu.capture() as graph:
            recording = RocmRecording(graph)
            yield recording
        recording.finished = True


def rocm_target(group: Group) -> RocmTarget:
    """The rocm target on torch's current device. `select.choose_device` says beforehand whether there is one."""
    import mori.cco

    return RocmTarget(group, open_hip(), mori.cco, TorchGpu())
