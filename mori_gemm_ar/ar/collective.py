# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What all collective ops share: a window, the error record, one thread at a time, and an end on every path."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from mori_gemm_ar.ar.call import Codes, OpWindow
from mori_gemm_ar.ar.failures import failure_of
from mori_gemm_ar.ar.sdma import describe_queues
from mori_gemm_ar.compile.store import default_store
from mori_gemm_ar.errors import CollectiveError, ConcurrentUseError, ConfigError
from mori_gemm_ar.layout import WindowMap, signal_word
from mori_gemm_ar.layout.allreduce import CONTROL, ERROR_WORDS
from mori_gemm_ar.layout.terms import MAX_BLOCKS, MAX_WORLD
from mori_gemm_ar.runtime import Resource, Rollback, SymmetricMemory, Target, World, agree


class CollectiveOp(Resource):
    """A collective op of one rank.

    An op belongs to the thread that created it; `bind()` hands it to the calling thread. After a failed collective it
    refuses work. `__exit__` closes; waiting peers are told of an error that is on its way.
    """

    control_bytes = CONTROL.nbytes

    def __init__(self, world: World, target: Target, timeout_s: float) -> None:
        super().__init__()
        self.rank, self.world_size = world.rank, world.size
        self.timeout_s, self.target = timeout_s, target
        self._world = world
        self._rollback = Rollback()
        self._codes: Codes = {}
        self._window: OpWindow | None = None
        self._owner = threading.get_ident()
        self._failure: CollectiveError | None = None
        self._busy = threading.Lock()
        self._bitcode = ""  # whose code gives work to copy engines: ours

    # ---- creation --------------------------------------------------------------------------------------------
    def _load(self, configs: Iterable[Any]) -> None:
        """The code objects of these configs, ready to be launched."""
        store = default_store()
        for config in configs:
            code = self._codes[config] = store.get(config, self.target.code_form)
            self.target.load(code)

    def _open_window(self, layout: Callable[[], WindowMap], queues: int) -> str | None:
        """Collective: the op's window, and `queues` copy-engine queues to each peer.

        Returns why this rank has no copy engines, if it should have some.
        """
        window = agree(self._world, "lay out the window", layout)
        communicator = self.target.communicator(window.nbytes)
        self._rollback.add(communicator.destroy)
        return agree(self._world, "allocate the window", lambda: self._allocate(window, communicator, queues))

    def _abandon(self) -> None:
        """Give back what a failed creation has acquired; the error that made it fail goes on."""
        self._closed = True
        self._rollback.run(quiet=True)

    def _allocate(self, window: WindowMap, communicator: SymmetricMemory, queues: int) -> str | None:
        """Memory, window and `queues` copy-engine queues to each peer; returns why there are no copy engines."""
        memory = communicator.alloc_mem(window.nbytes)
        self._rollback.add(memory.close)
        registered = communicator.register_window(
            memory.ptr, window.nbytes, tuple((r.offset, r.nbytes, r.name) for r in window.regions)
        )
        self._rollback.add(registered.close)
        device_comm = communicator.create_dev_comm(queues)
        self._rollback.add(device_comm.close)
        error = self.target.error_record(memory.ptr + window.offset("error"), 4 * ERROR_WORDS)
        self._rollback.add(error.close)
        stride = device_comm.per_rank_size
        base = memory.ptr - self.rank * stride
        self._window = OpWindow(
            window, self.rank, memory.ptr, base, stride, error, device_comm.copy_queues, self._bitcode
        )
        describe_queues(self._window, self.target, device_comm, registered)
        return device_comm.copy_engine_fault

    def _start_epoch(self, epoch: int) -> None:
        """Clear the control region and let the call counters start at `epoch` (other than 0 for tests only)."""
        window = self._require_window()
        self.target.fill(window.address, self.control_bytes, 0)
        if epoch:
            self.target.write(window.at("epochs"), epoch.to_bytes(4, "little") * MAX_BLOCKS)
            slots = signal_word(epoch, 0).to_bytes(8, "little") * (MAX_BLOCKS * MAX_WORLD)
            for region in ("entry", "exit"):
                self.target.write(window.at(region), slots)
            self.target.write(window.at("copy_epoch"), epoch.to_bytes(4, "little"))
            self.target.write(window.at("copy_flags"), slots[: 8 * 2 * MAX_WORLD])

    @property
    def _budget(self) -> int:
        """Ticks of each wait."""
        return int(self.timeout_s * self.target.ticks_per_second)

    def _self_test(self) -> None:
        """Collective: what `create` tests before the op may be used."""
        raise NotImplementedError

    def _test_again(self) -> None:
        """The self-test on an op that is in use."""
        self._enter()
        try:
            agree(self._world, "finish earlier calls", self.target.synchronize)
            self._self_test()
        finally:
            self._busy.release()

    def _tested(self, check: Callable[[], None]) -> None:
        """One part of the self-test; peers that wait for a rank where it fails are told."""
        try:
            check()
        except BaseException as error:
            self.target.give_up(f"{type(error).__name__}: {error}")
            raise

    # ---- use -------------------------------------------------------------------------------------------------
    def check(self) -> None:
        """Wait for everything submitted and raise the failure of a collective, if there is one."""
        self.require_open()
        self.target.synchronize()
        self._raise_failure()

    def bind(self) -> None:
        """Hand the op to the calling thread. All ranks have to do it at the same point of their call sequence."""
        self.require_open()
        self._owner = threading.get_ident()

    def _enter(self) -> None:
        if self._closed:
            self.require_open()
        if not self._busy.acquire(False):
            raise ConcurrentUseError("op must not be called while another thread is in it; give each thread its own op")
        if self._owner == threading.get_ident() and self._failure is None:
            return
        self._busy.release()
        if self._failure is not None:
            raise self._failure
        raise ConcurrentUseError("op belongs to another thread; call bind() on all ranks, or create one op per thread")

    def _require_window(self) -> OpWindow:
        if self._window is None:
            raise ConfigError("op must be made by create()")
        return self._window

    def _raise_failure(self) -> None:
        if self._failure is None:
            self._failure = self._read_failure()
        if self._failure is not None:
            raise self._failure

    def _read_failure(self) -> CollectiveError | None:
        """A failure makes the op useless on all ranks, so those that still wait are told."""
        error = self._require_window().error
        failure = failure_of(error.read(), self.timeout_s, self.target.absent()) if error.written() else None
        if failure is not None:
            self.target.give_up(f"{type(failure).__name__}: {failure}")
        return failure

    # ---- end -------------------------------------------------------------------------------------------------
    def _release(self) -> None:
        """Wait for submitted work, give everything back, then raise a failure nobody has seen yet."""
        seen = self._failure is not None
        unseen: CollectiveError | None = None
        try:
            if not self.target.recording:
                self.target.synchronize()
                unseen = None if seen else self._read_failure()
        finally:
            self._rollback.run()
        if unseen is not None:
            self._failure = unseen
            raise unseen

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; an error that is already on its way wins over one that closing finds, and waiting peers are told."""
        if error is not None and not self.closed:
            self.target.give_up(f"{type(error).__name__}: {error}")
        try:
            self.close()
        except Exception:
            if error is None:
                raise
