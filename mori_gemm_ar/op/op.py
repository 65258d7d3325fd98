# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The fused op: owns a window and a plan for each M, and checks every path before it is used."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from mori_gemm_ar.ar.collective import CollectiveOp
from mori_gemm_ar.ar.options import checked_timeout
from mori_gemm_ar.ar.transport import reconcile_engines
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.gemm.arguments import Contract
from mori_gemm_ar.gemm.launches import quantize, quantizer_of
from mori_gemm_ar.layout import BLayout, Recipe, Wire, rules
from mori_gemm_ar.layout.fused_window import FUSED_CONTROL
from mori_gemm_ar.layout.sdma import Transport
from mori_gemm_ar.model import Explanation, Mode, explain, load_records
from mori_gemm_ar.op.launches import LayerCall, LayerLaunches
from mori_gemm_ar.op.options import AUTO, Support, layer_spec
from mori_gemm_ar.op.self_test import LayerSelfTest, Operands, paths
from mori_gemm_ar.plan import LayerPlan, LayerSpec, Tuning, constants, model_layer, plan_layer
from mori_gemm_ar.runtime import Buffer, Target, World, agree, connect, require_equal

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_C_BYTES = 2


class GemmAllReduceOp(CollectiveOp):
    """C[M, N] bf16 = sum over ranks of scale * A[M, K] B[N, K]^T, bitwise identical on every rank; 0 <= M <= m_max.

    `op(a, b, a_scale, b_scale, out=None)`: operands as for `GemmOp`, contiguous e4m3fn; every rank its own K. Each
    rank's product is rounded to bf16; products are added in fp32 in rank order 0..W-1 and rounded once. All modes give
    the same bits with wire "exact". Returns `out`, or a view of the window that the next eager call leaves alone and
    the one after it overwrites; `output(m)` is what the next call would return. When a call returns (on a GPU: in
    stream order) the caller may overwrite operands. All ranks make the same calls in the same order. A replay of a
    recorded call writes the output that it wrote when recorded.

    An op belongs to the thread that created it; `bind()` hands it on. After a failed collective it refuses work.
    """

    control_bytes = FUSED_CONTROL.nbytes

    def __init__(self, world: World, target: Target, spec: LayerSpec, timeout_s: float) -> None:
        super().__init__(world, target, timeout_s)
        self.spec = spec
        self.n, self.k, self.m_max = spec.n, spec.k, spec.m_max
        self._contract = Contract(spec.recipe, spec.n, spec.k, target.torch_device)
        self._engines = False
        self._next = 0  # output of the next call
        self._plans: dict[int, LayerPlan] = {}
        self._frozen = False
        self._launches: LayerLaunches | None = None

    # ---- creation --------------------------------------------------------------------------------------------
    @classmethod
    def create(
        cls,
        world: World | ProcessGroup | None,
        *,
        n: int,
        k: int,
        m_max: int,
        quant: str | Recipe,
        b_layout: str | BLayout,
        mode: str | Mode | None = AUTO,
        wire: str | Wire = Wire.EXACT,
        timeout_s: float | None = None,
        device: str = "auto",
        tuning: Tuning = Tuning(),  # noqa: B008  frozen
    ) -> GemmAllReduceOp:
        """Collective: succeeds on every rank, or raises on every rank and leaves nothing behind.

        world: as for `AllReduceOp.create`. n, k: B's shape on each rank, n a multiple of 16, k of 128. m_max: rows that
        the window is laid out for. quant, b_layout: as for `GemmOp.create`. mode: "auto" chooses for each M by the time
        model at the pessimistic value of what is unmeasured; "split-lsa", "split-sdma", "fused-sdma", "fused-lsa".
        Below one band of tiles for each rank a fused mode runs split-lsa. wire: "exact", "fp8" or "fp8-both", see
        `Wire`; n a multiple of 32 then. timeout_s: budget of each device wait. tuning: see `Tuning`.
        Compiles or loads every kernel that some M needs, allocates the window and tests every path. Errors:
        `ConfigError`, `CollectiveSetupError` naming rank and step, `CollectiveError` of the self-test.
        """
        world = connect(world)
        asked = (n, k, m_max, quant, b_layout, mode, wire, tuning)
        op: GemmAllReduceOp | None = None
        try:
            op = agree(world, "check arguments", lambda: cls._checked(world, device, timeout_s, asked))
            require_equal(world, "compare arguments", "n, k, m_max, quant, b_layout, mode, wire, tuning", str(op.spec))
            require_equal(world, "compare devices", "device", op.target.name)
            agree(world, "load kernels", op._load_kernels)
            spec = op.spec
            fault = op._open_window(spec.window().map, spec.tuning.queues if spec.wants_engines else 0)
            op._engines = spec.wants_engines and op._reconcile(fault)
            op._launches = LayerLaunches(spec, op._require_window(), op._codes)
            agree(world, "clear the control region", lambda: op._start_epoch(0))
            op._self_test()
        except BaseException:
            if op is not None:
                op._abandon()
            raise
        return op

    @classmethod
    def _checked(cls, world: World, device: str, timeout_s: object, asked: tuple) -> GemmAllReduceOp:
        spec = layer_spec(world.size, *asked)
        target = world.target(device)
        return cls(world, target, spec, checked_timeout(timeout_s, target.default_timeout_s))

    def _load_kernels(self) -> None:
        self._load((*self.spec.kernels(), *quantizer_of(self.spec.recipe, self.k)))

    def _reconcile(self, fault: str | None) -> bool:
        mode = self.spec.mode
        asked = None if mode is None else Transport.SDMA
        return reconcile_engines(self._world, asked, fault, f"mode={mode.value if mode else AUTO!r}", "'split-lsa'")

    @staticmethod
    def supports(
        world_size: int,
        *,
        n: int,
        k: int,
        m_max: int,
        quant: str | Recipe,
        b_layout: str | BLayout,
        mode: str | Mode | None = AUTO,
        wire: str | Wire = Wire.EXACT,
        tuning: Tuning = Tuning(),  # noqa: B008  frozen
    ) -> Support:
        """Whether `create` would accept these arguments, and if not, why. Neither collective nor bound to a device."""
        try:
            layer_spec(world_size, n, k, m_max, quant, b_layout, mode, wire, tuning)
        except ConfigError as error:
            return Support(False, str(error))
        return Support(True)

    @staticmethod
    def window_bytes_for(
        world_size: int,
        *,
        n: int,
        k: int,
        m_max: int,
        quant: str | Recipe,
        b_layout: str | BLayout = BLayout.ROW,
        mode: str | Mode | None = AUTO,
        wire: str | Wire = Wire.EXACT,
        tuning: Tuning = Tuning(),  # noqa: B008  frozen
    ) -> int:
        """Bytes of each rank's window. Errors: `ConfigError`."""
        return layer_spec(world_size, n, k, m_max, quant, b_layout, mode, wire, tuning).window().map().nbytes

    # ---- self-test -------------------------------------------------------------------------------------------
    def self_test(self) -> None:
        """Collective: known operands through every path that some M uses; overwrites all outputs.

        Runs in `create` too. Raises `CollectiveError` or `CollectiveSetupError` on every rank, naming leg and cause;
        the op is of no use then.
        """
        self._enter()
        try:
            agree(self._world, "finish earlier calls", self.target.synchronize)
            self._self_test()
        finally:
            self._busy.release()

    def _self_test(self) -> None:
        for plan in paths(self.spec, engines=self._engines):
            test = LayerSelfTest(self.spec, plan, self._require_window(), self.target, self._run_test)
            agree(self._world, "prepare the self-test", test.prepare)
            for step, check in test.steps():
                agree(self._world, step, partial(self._tested, check))

    def _run_test(self, plan: LayerPlan, operands: Operands) -> torch.Tensor:
        out = self._view(self._next, plan.m)
        self._submit(plan, (operands.a, operands.b, operands.a_scale, operands.b_scale), out.data_ptr(), ())
        self.target.synchronize()
        self._raise_failure()
        return out

    # ---- use -------------------------------------------------------------------------------------------------
    def __call__(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        a_scale: torch.Tensor,
        b_scale: torch.Tensor,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Multiply and sum over ranks; see the class. Errors: `ConfigError`, `CollectiveError`, `ClosedError`."""
        self._enter()
        try:
            m = self._contract.check(a, b, a_scale, b_scale)
            plan = self.plan(m)
            result = self._view(self._next, m)
            operands = (a, b, a_scale, b_scale)
            foreign: tuple[Buffer, ...] = ()
            if out is not None and out.data_ptr() != result.data_ptr():
                self._check_out(out, m, operands)
                foreign = (Buffer("out", out.data_ptr(), out.numel() * _C_BYTES),)
                result = out
            elif out is not None:
                self._contract.check_out(out, m, operands)
                result = out
            self._submit(plan, operands, result.data_ptr(), foreign)
            self._next = (self._next + 1) % self.spec.tuning.outputs
            self.target.settle()
            if not self.target.recording:
                self._raise_failure()
            return result
        finally:
            self._busy.release()

    def _submit(
        self, plan: LayerPlan, operands: tuple[torch.Tensor, ...], destination: int, foreign: tuple[Buffer, ...]
    ) -> None:
        assert self._launches is not None, "create() made it"
        a, b, a_scale, b_scale = (tensor.data_ptr() for tensor in operands)
        names = ("a", "b", "a_scale", "b_scale")
        buffers = tuple(
            Buffer(name, tensor.data_ptr(), tensor.numel() * tensor.element_size())
            for name, tensor in zip(names, operands, strict=True)
        )
        call = LayerCall(a, b, a_scale, b_scale, destination, self._next, self._budget, (*buffers, *foreign))
        self.target.submit(self._launches.pipeline(plan, call))

    def _check_out(self, out: torch.Tensor, m: int, operands: tuple[torch.Tensor, ...]) -> None:
        self._contract.check_out(out, m, operands)
        window = self._require_window()
        start, end = out.data_ptr(), out.data_ptr() + out.numel() * _C_BYTES
        if start < window.address + window.map.nbytes and window.address < end:
            raise ConfigError("out must be op.output(m) or memory outside the window; leave it out to get op.output(m)")

    def output(self, m: int) -> torch.Tensor:
        """bf16 [m, N]: the part of the window that the next call writes. As `out`, nothing has to be copied there.

        The op's until `close` (an emulated op keeps the memory alive).
        """
        self.require_open()
        rules.require(rules.reason_not_m(m, self.m_max))
        return self._view(self._next, m)

    def _view(self, slot: int, m: int) -> torch.Tensor:
        if m == 0:
            return torch.empty(0, self.n, dtype=torch.bfloat16, device=self.target.torch_device)
        memory = self.target.tensor_memory(self._require_window().at(f"output{slot}"), m * self.n * _C_BYTES)
        return memory.view(torch.bfloat16).view(m, self.n)

    def quantize(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """bf16 [M, K] to (a, a_scale) for this op, on the device; see `gemm.launches.quantize`. Not for PTPC."""
        self._enter()
        try:
            return quantize(self.target, self._codes, self._contract, x)
        finally:
            self._busy.release()

    def plan(self, m: int) -> LayerPlan:
        """How a call with m rows runs."""
        plan = self._plans.get(m)
        if plan is None:
            plan = self._plans[m] = plan_layer(self.spec, m, engines=self._engines)
        return plan

    def explain(self, m: int) -> Explanation:
        """Why the model runs m rows as it does, with predicted times. Errors: `ConfigError`."""
        return explain(constants(), load_records(), model_layer(self.spec, m))

    def warmup(self) -> None:
        """Collective: run every path once on data of its own, so that no later call pays for a first launch."""
        self.self_test()

    def freeze(self) -> None:
        """From now on nothing may be compiled; a call that needed it would raise. Nothing does after `create`."""
        self._frozen = True

    @property
    def wire(self) -> Wire:
        """What crosses the links."""
        return self.spec.wire
