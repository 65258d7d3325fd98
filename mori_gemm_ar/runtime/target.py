# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What a target offers to an op: memory, launches, recording. Above this interface nobody asks which target runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from mori_gemm_ar.runtime.launch import Pipeline
from mori_gemm_ar.runtime.symmetric import Communicator


class Recording(Protocol):
    """A recorded launch sequence. Argument bytes are fixed at recording; memory is read anew at each replay."""

    def replay(self) -> None:
        """Run the recorded launches again, in order."""


class Target(Protocol):
    """One rank's device."""

    name: str
    torch_device: str
    default_timeout_s: float
    ticks_per_second: int
    # Whether host copies made while recording are part of the recording.
    records_copies: bool

    @property
    def recording(self) -> bool:
        """Whether launches are being recorded instead of run."""

    def communicator(self, per_rank_bytes: int) -> Communicator:
        """Collective: symmetric memory of the ranks of this target's group."""

    def submit(self, pipeline: Pipeline) -> None:
        """Queue the launches of a pipeline behind earlier ones, or record them."""

    def settle(self) -> None:
        """Make results visible to the caller the way its tensors expect (a CPU tensor: wait; a GPU tensor: nothing)."""

    def synchronize(self) -> None:
        """Wait until everything queued has run."""

    def fill(self, address: int, nbytes: int, value: int) -> None:
        """Set bytes of this rank's memory."""

    def read(self, address: int, nbytes: int) -> bytes:
        """Bytes of this rank's memory, after `synchronize`."""

    def write(self, address: int, data: bytes) -> None:
        """Write bytes to this rank's memory."""

    def tensor_memory(self, address: int, nbytes: int) -> memoryview:
        """Memory of this rank's window for a tensor that keeps it alive."""

    @contextmanager
    def record(self) -> Iterator[Recording]:
        """Record launches instead of running them."""
