# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""All-reduce by load and store over symmetric windows (LSA), one and two stages."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from mori_gemm_ar.ar.arguments import TORCH_DTYPES, Operands, Span, check_input, check_output, dtype_of, prepare
from mori_gemm_ar.ar.failures import failure_of
from mori_gemm_ar.compile.store import CodeObject, default_store
from mori_gemm_ar.errors import CollectiveError, ConcurrentUseError, ConfigError
from mori_gemm_ar.layout import (
    MI355X,
    AllReduceConfig,
    AllReduceProblem,
    DType,
    Stage,
    WindowMap,
    allreduce_window,
    call_tag,
    lsa_geometry,
    rules,
    select_config,
    signal_word,
)
from mori_gemm_ar.layout.allreduce import CONTROL, ERROR_WORDS
from mori_gemm_ar.layout.terms import MAX_BLOCKS, MAX_NUMEL, MAX_WORLD
from mori_gemm_ar.runtime import (
    Buffer,
    ErrorRecord,
    Launch,
    Pipeline,
    Resource,
    Rollback,
    SymmetricMemory,
    Target,
    World,
    agree,
    connect,
    kernel_of,
    pack_arguments,
    require_equal,
)

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_MAX_TIMEOUT_S = 24 * 3600.0  # a budget of this many 100 MHz ticks is far from overflowing 64 bits


@dataclass(frozen=True, slots=True)
class CallPlan:
    """What one call resolved to."""

    config: AllReduceConfig
    blocks: int
    in_place_in_window: bool


@dataclass(slots=True)
class _Window:
    """The op's symmetric memory on this rank."""

    map: WindowMap
    address: int
    base: int
    stride: int
    error: ErrorRecord

    def at(self, region: str) -> int:
        """Address of a region of this rank's window."""
        return self.address + self.map.offset(region)


class AllReduceOp(Resource):
    """Sum over all ranks, bitwise identical on every rank.

    `op(x, out=None)`: `x` is any tensor of bf16, fp16 or fp32 with up to `max_bytes` bytes on the op's device, with
    the same shape and dtype on all ranks; returns `out` (a new contiguous tensor when None, `x` itself for in place).
    Sums are fp32 in rank order 0..W-1 with one rounding; overflow gives infinity. When the call returns (on a GPU:
    in stream order) the caller may overwrite `x`. All ranks make the same calls in the same order, in place
    in the window (`out` is `buffer`) on all of them or on none.

    An op belongs to the thread that created it; `bind()` hands it to the calling thread. After a failed
    collective (`CollectiveTimeout`, `CollectiveMismatch`) it refuses work. Use `create`, then `close` or `with`.
    """

    def __init__(self, world: World, target: Target, max_bytes: int, timeout_s: float, stage: Stage | None) -> None:
        super().__init__()
        self.rank, self.world_size = world.rank, world.size
        self.max_bytes, self.timeout_s = max_bytes, timeout_s
        self.target = target
        self._stage = stage
        self._rollback = Rollback()
        self._codes: dict[AllReduceConfig, CodeObject] = {}
        self._window: _Window | None = None
        self._owner = threading.get_ident()
        self._failure: CollectiveError | None = None
        self._busy = threading.Lock()

    # ---- creation --------------------------------------------------------------------------------------------
    @classmethod
    def create(
        cls,
        world: World | ProcessGroup | None,
        max_bytes: int,
        *,
        device: str = "auto",
        timeout_s: float | None = None,
        stage: Stage | None = None,
        dtypes: Sequence[torch.dtype] = tuple(TORCH_DTYPES),
    ) -> AllReduceOp:
        """Collective: succeeds on every rank, or raises on every rank and leaves nothing behind.

        world: a `torch.distributed` group with one process per rank (None: the default group), a `ProcessWorld`, or the
        context that `LocalWorld.run` hands to a rank.
        max_bytes: largest call in bytes. device: "auto", "rocm" or "emulated". timeout_s: budget of each device wait
        (None: the target's default). stage: None chooses per call by size. dtypes: what will be reduced; their
        kernels are compiled or loaded here, and nothing is compiled later.
        Errors: `ConfigError` for bad arguments; `CollectiveSetupError` naming the rank and step that failed;
        `RendezvousError` naming a rank that does not come.
        """
        world, dtypes = connect(world), tuple(dtypes)
        op: AllReduceOp | None = None
        try:
            op = agree(
                world, "check arguments", lambda: cls._checked(world, max_bytes, device, timeout_s, stage, dtypes)
            )
            require_equal(
                world, "compare arguments", "max_bytes, stage and dtypes", (max_bytes, stage, tuple(map(str, dtypes)))
            )
            require_equal(world, "compare devices", "device", op.target.name)
            agree(world, "load kernels", lambda: op._load(dtypes))
            window = agree(world, "lay out the window", lambda: allreduce_window(max_bytes, world.size))
            communicator = op.target.communicator(window.nbytes)
            op._rollback.add(communicator.destroy)
            agree(world, "allocate the window", lambda: op._allocate(window, communicator))
            agree(world, "clear the control region", lambda: op._start_epoch(0))
            agree(world, "self-test", op._tested)
        except BaseException:
            if op is not None:
                op._closed = True
                op._rollback.run(quiet=True)
            raise
        return op

    @classmethod
    def _checked(
        cls,
        world: World,
        max_bytes: int,
        device: str,
        timeout_s: float | None,
        stage: Stage | None,
        dtypes: Sequence[torch.dtype],
    ) -> AllReduceOp:
        rules.require(rules.reason_not_world(world.size) or rules.reason_not_max_bytes(max_bytes))
        unknown = [d for d in dtypes if d not in TORCH_DTYPES]
        if unknown or not dtypes:
            raise ConfigError(f"dtypes={list(dtypes)} must be a choice of {[str(d) for d in TORCH_DTYPES]}")
        if stage is not None and not isinstance(stage, Stage):
            raise ConfigError(f"stage={stage!r} must be Stage.ONE, Stage.TWO or None")
        target = world.target(device)
        if timeout_s is None:
            timeout_s = target.default_timeout_s
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s <= _MAX_TIMEOUT_S:
            raise ConfigError(
                f"timeout_s={timeout_s!r} must be a number of seconds above 0 and up to {_MAX_TIMEOUT_S:g}"
            )
        return cls(world, target, max_bytes, float(timeout_s), stage)

    def _load(self, dtypes: Sequence[torch.dtype]) -> None:
        store = default_store()
        for dtype in dtypes:
            for stage in Stage:
                config = AllReduceConfig(self.world_size, TORCH_DTYPES[dtype], stage)
                code = self._codes[config] = store.get(config, self.target.code_form)
                kernel_of(code)
                self.target.load(code)

    def _allocate(self, window: WindowMap, communicator: SymmetricMemory) -> None:
        memory = communicator.alloc_mem(window.nbytes)
        self._rollback.add(memory.close)
        registered = communicator.register_window(
            memory.ptr, window.nbytes, tuple((r.offset, r.nbytes, r.name) for r in window.regions)
        )
        self._rollback.add(registered.close)
        device_comm = communicator.create_dev_comm()
        self._rollback.add(device_comm.close)
        error = self.target.error_record(memory.ptr + window.offset("error"), 4 * ERROR_WORDS)
        self._rollback.add(error.close)
        stride = device_comm.per_rank_size
        self._window = _Window(window, memory.ptr, memory.ptr - self.rank * stride, stride, error)

    def _start_epoch(self, epoch: int) -> None:
        """Clear the control region and let the call counters start at `epoch` (other than 0 for tests only)."""
        window = self._require_window()
        self.target.fill(window.address, CONTROL.nbytes, 0)
        if epoch:
            self.target.write(window.at("epochs"), epoch.to_bytes(4, "little") * MAX_BLOCKS)
            slots = signal_word(epoch, 0).to_bytes(8, "little") * (MAX_BLOCKS * MAX_WORLD)
            for region in ("entry", "exit"):
                self.target.write(window.at(region), slots)

    def _tested(self) -> None:
        """The self-test; peers that wait for a rank where it fails are told."""
        try:
            self._self_test()
        except BaseException as error:
            self.target.give_up(f"{type(error).__name__}: {error}")
            raise

    def _self_test(self) -> None:
        """Move data before anything relies on it: rank + 1 in, their sum out, after the landing zone was zeroed."""
        window = self._require_window()
        dtype = next(d for d, code in TORCH_DTYPES.items() if any(c.dtype is code for c in self._codes))
        numel = min(64 * self.world_size, self.max_bytes // dtype.itemsize)
        expected = self.world_size * (self.world_size + 1) // 2
        self.target.fill(window.at("reduced"), numel * dtype.itemsize, 0)
        for stage in Stage:
            x = torch.full((numel,), self.rank + 1, dtype=dtype, device=self.target.torch_device)
            out = torch.zeros_like(x)
            self._run(Operands(x, out, None), TORCH_DTYPES[dtype], stage)
            self.target.synchronize()
            self._raise_failure()
            if not bool((out == expected).all()):
                raise CollectiveError(
                    f"self-test of the {stage.value}-stage all-reduce gave {out[:4].tolist()} instead of {expected}; "
                    f"peers' memory is not reached"
                )

    # ---- use -------------------------------------------------------------------------------------------------
    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Sum `x` over all ranks; see the class. Errors: `ConfigError`, `CollectiveError`, `ClosedError`."""
        self._enter()
        try:
            dtype = check_input(x, self.max_bytes, self.target.torch_device)
            if AllReduceConfig(self.world_size, dtype, Stage.ONE) not in self._codes:
                raise ConfigError(f"x.dtype={x.dtype} must be among the dtypes given to create()")
            if out is not None:
                check_output(out, x)
            window = self._require_window()
            span = Span(window.address, window.map.nbytes)
            copies = self.target.records_copies or not self.target.recording
            operands = prepare(x, out, span, window.at("input"), copies=copies)
            self._run(operands, dtype, self._stage)
            self.target.settle()
            if operands.copy_to is not None:
                operands.copy_to.copy_(operands.destination)
            if not self.target.recording:
                self._raise_failure()
            if out is not None:
                return out
            return operands.destination
        finally:
            self._busy.release()

    def buffer(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor in the window: reducing it needs no staging copy. One buffer, always the same memory.

        Its contents are the caller's; its lifetime ends with `close` (an emulated op keeps the memory alive).
        """
        self.require_open()
        dtype_of(dtype)
        way_out = "give the shape of a tensor"
        for extent in shape:
            rules.require(rules.reason_not_int("extent", extent, 0, MAX_NUMEL, way_out))
        nbytes = math.prod(shape) * dtype.itemsize
        rules.require(rules.reason_not_fitting(nbytes, self.max_bytes))
        if nbytes == 0:
            return torch.empty(tuple(shape), dtype=dtype, device=self.target.torch_device)
        memory = self.target.tensor_memory(self._require_window().at("input"), nbytes)
        return memory.view(dtype).view(tuple(shape))

    def plan(self, numel: int, dtype: torch.dtype, in_place_in_window: bool = False) -> CallPlan:
        """What a call of this size resolves to."""
        problem = AllReduceProblem(self.world_size, numel, dtype_of(dtype))
        config = select_config(problem, MI355X, self._stage, in_place_in_window)
        return CallPlan(config, lsa_geometry(problem, config, MI355X).blocks, in_place_in_window)

    def check(self) -> None:
        """Wait for everything submitted and raise the failure of a collective, if there is one."""
        self.require_open()
        self.target.synchronize()
        self._raise_failure()

    def bind(self) -> None:
        """Hand the op to the calling thread. All ranks have to do it at the same point of their call sequence."""
        self.require_open()
        self._owner = threading.get_ident()

    # ---- parts of a call -------------------------------------------------------------------------------------
    def _enter(self) -> None:
        self.require_open()
        if not self._busy.acquire(blocking=False):
            raise ConcurrentUseError("op must not be called while another thread is in it; give each thread its own op")
        if self._owner == threading.get_ident() and self._failure is None:
            return
        self._busy.release()
        if self._failure is not None:
            raise self._failure
        raise ConcurrentUseError("op belongs to another thread; call bind() on all ranks, or create one op per thread")

    def _run(self, operands: Operands, dtype: DType, stage: Stage | None) -> None:
        """Submit one all-reduce of contiguous operands."""
        window = self._require_window()
        problem = AllReduceProblem(self.world_size, operands.numel, dtype)
        source, destination = operands.source.data_ptr(), operands.destination.data_ptr()
        in_window = destination == window.at("input") and operands.numel > 0
        config = select_config(problem, MI355X, stage, in_window)
        geometry = lsa_geometry(problem, config, MI355X)
        code = self._codes[config]
        values = (
            window.base,
            window.stride,
            self.rank,
            geometry.blocks,
            source,
            destination,
            operands.numel,
            call_tag(operands.numel, dtype, config.stage),
            window.map.offset("input"),
            window.map.offset("reduced"),
            int(self.timeout_s * self.target.ticks_per_second),
            window.error.address,
        )
        launch = Launch(
            code,
            (geometry.blocks, 1, 1),
            (geometry.threads, 1, 1),
            pack_arguments(kernel_of(code).args, values),
            config.key,
        )
        buffers = (Buffer("x", source, problem.nbytes), Buffer("out", destination, problem.nbytes))
        self.target.submit(Pipeline(config.key, (launch,), buffers))

    def _require_window(self) -> _Window:
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
        record = self._require_window().error.read()
        failure = failure_of(record, self.timeout_s, self.target.absent()) if any(record) else None
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


__all__ = ["AllReduceOp", "CallPlan"]
