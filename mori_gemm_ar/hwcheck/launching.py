# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Launches of the checking kernels, and the window that they share between ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mori_gemm_ar.compile.store import CodeObject, default_store
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.runtime import (
    Buffer,
    CopyQueues,
    Launch,
    Pipeline,
    Resource,
    Rollback,
    Target,
    World,
    agree,
    kernel_of,
    pack_arguments,
)


def loaded(target: Target, config: Any) -> CodeObject:
    """The code of a config, ready on the target."""
    code = default_store().get(config, target.code_form)
    target.load(code)
    return code


def launch_of(code: CodeObject, arguments: Mapping[str, int], blocks: int = 1) -> Launch:
    """A launch by argument names; all of them have to be given."""
    names = [slot["name"] for slot in code.manifest["arguments"]]
    if set(names) != set(arguments):
        raise ConfigError(f"arguments={sorted(arguments)} must be {sorted(names)}, as {code.kernel} takes them")
    packed = pack_arguments(kernel_of(code).args, [arguments[name] for name in names])
    threads = code.manifest["resources"]["threads"]
    return Launch(code, (blocks, 1, 1), (threads, 1, 1), packed, code.kernel)


def submit(target: Target, launches: Sequence[Launch], tensors: Mapping[str, torch.Tensor] | None = None) -> None:
    """Queue launches; `tensors` is what they touch outside of a window."""
    buffers = tuple(
        Buffer(name, one.data_ptr(), one.numel() * one.element_size()) for name, one in (tensors or {}).items()
    )
    target.submit(Pipeline(launches[0].name, tuple(launches), buffers))


class CheckWindow(Resource):
    """Memory at the same place of all ranks, and queues of their copy engines; made by `create`."""

    def __init__(self, world: World, target: Target, nbytes: int) -> None:
        super().__init__()
        self.rank, self.size, self.nbytes = world.rank, world.size, nbytes
        self.target = target
        self.address = self.stride = 0
        self.queues: CopyQueues | None = None
        self.engine_fault: str | None = None
        self._rollback = Rollback()

    @classmethod
    def create(cls, world: World, target: Target, nbytes: int, queues: int = 0) -> CheckWindow:
        """Collective: succeeds on every rank or raises on every rank and leaves nothing behind."""
        window = cls(world, target, nbytes)
        try:
            communicator = target.communicator(nbytes)
            window._rollback.add(communicator.destroy)

            def allocate() -> None:
                memory = communicator.alloc_mem(nbytes)
                window._rollback.add(memory.close)
                registered = communicator.register_window(memory.ptr, nbytes, ((0, nbytes, "check"),))
                window._rollback.add(registered.close)
                device = communicator.create_dev_comm(queues)
                window._rollback.add(device.close)
                window.address, window.stride = memory.ptr, device.per_rank_size
                window.queues, window.engine_fault = device.copy_queues, device.copy_engine_fault

            agree(world, "allocate the window of hwcheck", allocate)
            faults = world.exchange("compare engines", window.engine_fault)
            window.engine_fault = next((str(fault) for fault in faults if fault is not None), None)
            target.fill(window.address, nbytes, 0)
            world.exchange("window is clear", None)
        except BaseException:
            window._closed = True
            window._rollback.run(quiet=True)
            raise
        return window

    @property
    def base(self) -> int:
        """Address of rank 0's window."""
        return self.address - self.rank * self.stride

    def at(self, rank: int, offset: int = 0) -> int:
        """Address in a rank's window."""
        return self.base + rank * self.stride + offset

    def handle(self, peer: int, queue: int = 0) -> int:
        """Address of the handle of a queue to a peer."""
        if self.queues is None:
            raise ConfigError(f"queues=None must be there: {self.engine_fault}")
        at = self.queues.table + 8 * (peer * self.queues.per_peer + queue)
        return int.from_bytes(self.target.read(at, 8), "little")

    def words(self, offset: int, count: int) -> list[int]:
        """32-bit words of the own window, after `synchronize`."""
        data = self.target.read(self.address + offset, 4 * count)
        return [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]

    def _release(self) -> None:
        self.target.synchronize()
        self._rollback.run()
