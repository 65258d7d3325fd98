# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What a target offers to an op: memory, launches, recording. Above this interface nobody asks which target runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mori_gemm_ar.compile.store import CodeForm
from mori_gemm_ar.runtime.group import Group
from mori_gemm_ar.runtime.launch import Code, Pipeline, Prepared

if TYPE_CHECKING:
    import torch


class Recording(Protocol):
    """A recorded launch sequence. Argument bytes are fixed at recording; memory is read anew at each replay."""

    def replay(self) -> None:
        """Run the recorded launches again, in order."""


class Closable(Protocol):
    """Something acquired; `close` may be called any number of times."""

    def close(self) -> None:
        """Give it back."""


class Memory(Closable, Protocol):
    """Symmetric memory of one rank."""

    @property
    def ptr(self) -> int:
        """Address on this rank's device."""


@dataclass(frozen=True, slots=True)
class CopyQueues:
    """Queues of this rank's copy engines, as kernels find them.

    `table` is the device address of u64[world * per_peer], addresses of queue handles (layout.copy_queue); queue q to a
    peer has index peer * per_peer + q. The own rank's entries copy within its GPU on the emulated target;
    elsewhere they may be 0, so a kernel copies to itself without them.
    """

    table: int
    per_peer: int
    world: int


class DeviceComm(Closable, Protocol):
    """Facts about the flat address range and the copy engines."""

    @property
    def copy_queues(self) -> CopyQueues | None:
        """The queues that were asked for; None where there are none."""

    @property
    def copy_engine_fault(self) -> str | None:
        """Why there are no queues although some were asked for."""

    @property
    def per_rank_size(self) -> int:
        """Bytes between two ranks' memory."""

    def put_records(self, window: Closable, own: int) -> bytes:
        """What mori's device code takes for each queue (layout.copy_queue.RECORD_WORDS), on a target that has it.

        own: address of this rank's window.
        """


class SymmetricMemory(Protocol):
    """Memory at the same offset of every rank's part of one flat address range. Every method is collective."""

    def alloc_mem(self, size: int) -> Memory:
        """Memory of this rank."""

    def register_window(self, ptr: int, size: int, parts: tuple[tuple[int, int, str], ...] = ()) -> Closable:
        """Let all ranks' kernels reach it. `parts` are (offset, bytes, name) of its regions, for reports."""

    def create_dev_comm(self, queues: int = 0) -> DeviceComm:
        """The facts, and `queues` copy-engine queues to each peer. Ranks may fare differently: compare before use."""

    def destroy(self) -> None:
        """Leave, after everything else was closed."""


class ErrorRecord(Closable, Protocol):
    """Words that a failing kernel writes and the host reads at any time."""

    @property
    def address(self) -> int:
        """What kernels get."""

    def written(self) -> bool:
        """Whether the first word, which a failing kernel writes last, is there; cheap, without waiting."""

    def read(self) -> bytes:
        """The bytes, without waiting for the device."""


class Target(Protocol):
    """One rank's device."""

    name: str
    torch_device: str
    default_timeout_s: float
    ticks_per_second: int
    # Which form of a code object it runs.
    code_form: CodeForm
    # Whether host copies made while recording are part of the recording.
    records_copies: bool

    @property
    def recording(self) -> bool:
        """Whether launches are being recorded instead of run."""

    def communicator(self, per_rank_bytes: int) -> SymmetricMemory:
        """Collective: symmetric memory of the ranks of this target's group."""

    def load(self, code: Code) -> None:
        """Make a code object ready, so that `submit` does nothing but launch."""

    def error_record(self, own: int, nbytes: int) -> ErrorRecord:
        """A cleared error record; `own` is the address that the window keeps free for one."""

    def submit(self, pipeline: Pipeline) -> None:
        """Queue the launches of a pipeline behind earlier ones, or record them."""

    def prepare(self, pipeline: Pipeline) -> Prepared:
        """A pipeline to be run often: its buffers are stand-ins (see `launch.places_of`), given anew at each run."""

    def mori_bitcode(self) -> Path:
        """amd-mori's device code, to link. `ConfigError` on a target whose queues are not mori's."""

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Queue a copy within this rank's memory behind earlier calls."""

    def settle(self) -> None:
        """Make results visible to the caller the way its tensors expect (a CPU tensor: wait; a GPU tensor: nothing)."""

    def synchronize(self) -> None:
        """Wait until everything queued has run."""

    def give_up(self, reason: str) -> None:
        """Tell ranks that wait for this one in a kernel that it will not come, where that is possible."""

    def absent(self) -> dict[int, str]:
        """Ranks known to be gone, and what became of them."""

    def fill(self, address: int, nbytes: int, value: int) -> None:
        """Set bytes of this rank's memory."""

    def read(self, address: int, nbytes: int) -> bytes:
        """Bytes of this rank's memory, after `synchronize`."""

    def write(self, address: int, data: bytes) -> None:
        """Write bytes to this rank's memory."""

    def tensor_memory(self, address: int, nbytes: int) -> torch.Tensor:
        """Bytes of this rank's window as a one-dimensional uint8 tensor."""

    @contextmanager
    def record(self) -> Iterator[Recording]:
        """Record launches instead of running them."""


class World(Group, Protocol):
    """A group of ranks with devices: a `ProcessWorld`, or a `RankContext` of a `LocalWorld`."""

    def target(self, device: str = "auto") -> Target:
        """A device of the caller."""
