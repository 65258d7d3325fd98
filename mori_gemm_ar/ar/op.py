# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The all-reduce op: owns a window and the kernels of its transports, and checks that they move data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from mori_gemm_ar.ar import wire as wires
from mori_gemm_ar.ar.arguments import TORCH_DTYPES, Operands, Span, check_input, check_output, dtype_of, prepare
from mori_gemm_ar.ar.call import Call
from mori_gemm_ar.ar.collective import CollectiveOp
from mori_gemm_ar.ar.lsa import lsa_pipeline
from mori_gemm_ar.ar.options import Options, checked_timeout
from mori_gemm_ar.ar.plan import CallPlan, plan_call
from mori_gemm_ar.ar.sdma import in_window, sdma_pipeline
from mori_gemm_ar.ar.self_test import SelfTest
from mori_gemm_ar.ar.transport import CopyEngines, reconcile_engines
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import MI355X, AllReduceProblem, DType, Stage, Wire, rules
from mori_gemm_ar.layout.sdma import Transport, select_transport
from mori_gemm_ar.layout.terms import MAX_NUMEL
from mori_gemm_ar.runtime import Target, World, agree, connect, require_equal

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_PIPELINES = {Transport.LSA: lsa_pipeline, Transport.SDMA: sdma_pipeline}


class AllReduceOp(CollectiveOp):
    """Sum over all ranks, bitwise identical on every rank.

    `op(x, out=None)`: `x` is any tensor of bf16, fp16 or fp32 with up to `max_bytes` bytes on the op's device, with
    the same shape and dtype on all ranks; returns `out` (a new contiguous tensor when None, `x` itself for in place).
    Sums are fp32 in rank order 0..W-1 with one rounding; overflow gives infinity. When the call returns (on a GPU:
    in stream order) the caller may overwrite `x`. All ranks make the same calls in the same order, in place
    in the window (`out` is `buffer`) on all of them or on none.

    Two transports give the same bits: load and store (LSA), and copy engines (SDMA), which leave the compute units
    free. `transports` tells what this op uses, `plan` what a call does.

    An op belongs to the thread that created it; `bind()` hands it to the calling thread. After a failed
    collective (`CollectiveTimeout`, `CollectiveMismatch`) it refuses work. Use `create`, then `close` or `with`.
    """

    def __init__(self, world: World, target: Target, options: Options, timeout_s: float) -> None:
        super().__init__(world, target, timeout_s)
        self.max_bytes, self._options = options.max_bytes, options
        self._bitcode = options.bitcode
        self._engines = False  # whether copy engines serve this op

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
        dtypes: Sequence[torch.dtype] | None = None,
        transport: Transport | str = "auto",
        queues: int | CopyEngines = 1,
        wire: Wire | str = Wire.EXACT,
    ) -> AllReduceOp:
        """Collective: succeeds on every rank, or raises on every rank and leaves nothing behind.

        world: a `torch.distributed` group with one process per rank (None: the default group), a `ProcessWorld`, or the
        context that `LocalWorld.run` hands to a rank.
        max_bytes: largest call in bytes. device: "auto", "rocm" or "emulated". timeout_s: budget of each device wait
        (None: the target's default). stage: None chooses per call by size. dtypes: what will be reduced (None: all
        that the wire carries); their kernels are compiled or loaded here, and nothing is compiled later.
        transport: "lsa", "sdma" (an error where a rank has no copy engines), or "auto": copy engines for calls that
        are large enough, where all ranks have them; where one has none, load and store with a `TransportWarning`.
        A world of one only copies. queues: copy-engine queues to each peer; a slice is split over them; `CopyEngines`
        also says whose device code posts, `CopyEngines(queues=1, cco_device="mori")`, rocm only. wire: "exact",
        or what the links carry instead, with a loss: "fp8", "fp8-both" or "fp8-row", see `Wire`; always in two stages.
        Errors: `ConfigError` for bad arguments; `CollectiveSetupError` naming the rank and step that failed;
        `RendezvousError` naming a rank that does not come.
        """
        world = connect(world)
        op: AllReduceOp | None = None
        try:
            op = agree(
                world,
                "check arguments",
                lambda: cls._checked(world, device, timeout_s, (max_bytes, stage, dtypes, transport, queues, wire)),
            )
            require_equal(
                world,
                "compare arguments",
                "max_bytes, stage, dtypes, transport, queues, wire and cco_device",
                op._options.compared,
            )
            require_equal(world, "compare devices", "device", op.target.name)
            agree(world, "load kernels", lambda: op._load(op._options.configs()))
            fault = op._open_window(op._options.window, op._options.queues if op._options.wants_engines else 0)
            op._engines = op._options.wants_engines and reconcile_engines(world, op._options.transport, fault)
            agree(world, "clear the control region", lambda: op._start_epoch(0))
            op._self_test()
        except BaseException:
            if op is not None:
                op._abandon()
            raise
        return op

    @classmethod
    def _checked(cls, world: World, device: str, timeout_s: object, asked: tuple[Any, ...]) -> AllReduceOp:
        options = Options.checked(world.size, *asked)
        target = world.target(device)
        return cls(world, target, options.on(target), checked_timeout(timeout_s, target.default_timeout_s))

    def self_test(self) -> None:
        """Collective: move known data over every leg of every transport that this op uses, and check every element.

        Runs in `create` too. Raises `CollectiveError` or `CollectiveSetupError` on every rank, naming leg and cause;
        the op is of no use then.
        """
        self._test_again()

    def _self_test(self) -> None:
        for transport in self.transports:
            lsa: tuple[Stage | None, ...] = (Stage.TWO,) if self.wire.lossy else tuple(Stage)
            stages = lsa if transport is Transport.LSA else (None,)
            for stage in stages:
                test = self._test()
                agree(self._world, "prepare the self-test", test.prepare)
                for step, check in test.steps(transport, stage):
                    agree(self._world, step, partial(self._tested, check))

    def _test(self) -> SelfTest:
        dtype = self._options.dtypes[0]
        return SelfTest(
            self._require_window(),
            self.target,
            self.world_size,
            dtype,
            TORCH_DTYPES[dtype],
            self.max_bytes,
            self._budget,
            self._run_test,
            self.wire,
        )

    def _run_test(self, transport: Transport, call: Call) -> None:
        self._submit(transport, call)
        self.target.synchronize()
        self._raise_failure()

    # ---- use -------------------------------------------------------------------------------------------------
    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Sum `x` over all ranks; see the class. Errors: `ConfigError`, `CollectiveError`, `ClosedError`."""
        self._enter()
        try:
            dtype = check_input(x, self.max_bytes, self.target.torch_device)
            if x.dtype not in self.dtypes:
                raise ConfigError(f"x.dtype={x.dtype} must be among the dtypes given to create()")
            if out is not None:
                check_output(out, x)
            window = self._require_window()
            span = Span(window.address, window.map.nbytes)
            copies = self.target.records_copies or not self.target.recording
            operands = prepare(x, out, span, window.at("input"), copies=copies)
            self._run(operands, dtype)
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

    @property
    def transports(self) -> tuple[Transport, ...]:
        """Transports that calls of this op use; which one a call uses is in its `plan`."""
        if not self._engines:
            return (Transport.LSA,)
        return (Transport.SDMA,) if self._options.transport is Transport.SDMA else (Transport.LSA, Transport.SDMA)

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """What the op reduces."""
        return self._options.dtypes

    @property
    def wire(self) -> Wire:
        """What crosses the links; `Wire.EXACT` in a world of one, whatever `create` was asked for."""
        return self._options.wire

    def wire_error(self, x: torch.Tensor | None = None) -> wires.WireError:
        """Relative L2 of the sum of `x`, or of Gaussian data, to its fp32 sum, over sampled rows: what the wire loses.

        Collective, with `x` on all ranks or on none; two all-reduces. An exact wire loses nothing, and nothing is run.
        """
        return wires.measure(self, x)

    @property
    def queues(self) -> int:
        """Copy-engine queues to each peer."""
        return self._options.queues

    def _transport(self, problem: AllReduceProblem) -> Transport:
        if len(self.transports) == 1:
            return self.transports[0]
        return select_transport(problem, MI355X, self._engines)

    def plan(
        self, numel: int, dtype: torch.dtype, in_place_in_window: bool = False, columns: int | None = None
    ) -> CallPlan:
        """What a call of this size resolves to; `columns`: elements of a row, where the wire scales rows."""
        problem = AllReduceProblem(self.world_size, numel, dtype_of(dtype))
        return plan_call(self._options, problem, self._transport(problem), in_place_in_window, columns)

    # ---- parts of a call -------------------------------------------------------------------------------------
    def _run(self, operands: Operands, dtype: DType, *, exact: bool = False) -> None:
        """Submit one all-reduce of contiguous operands; `exact`: by load and store in one stage, whatever the wire."""
        problem = AllReduceProblem(self.world_size, operands.numel, dtype)
        wire, stage = (Wire.EXACT, Stage.ONE) if exact else (self.wire, self._options.stage)
        transport = Transport.LSA if exact else self._transport(problem)
        places = operands.source.data_ptr(), operands.destination.data_ptr()
        call = Call(problem, *places, self._budget, stage, wire, wires.columns_of(wire, operands.source))
        self._submit(transport, call)

    def _submit(self, transport: Transport, call: Call) -> None:
        window = self._require_window()
        if transport is Transport.SDMA:
            call = in_window(window, self.target, call)
        self.target.submit(_PIPELINES[transport](window, self._codes, call))


__all__ = ["AllReduceOp", "CallPlan"]
