# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The fused op: owns a window and a plan for each M, and checks every path before it is used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from mori_gemm_ar.ar.codes import LoadedCodes
from mori_gemm_ar.ar.collective import CollectiveOp
from mori_gemm_ar.ar.options import checked_timeout
from mori_gemm_ar.ar.transport import reconcile_engines
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.gemm.arguments import Contract
from mori_gemm_ar.gemm.launches import SCALE_DTYPES, blank_rows, blank_weight, quantize, quantizer_of
from mori_gemm_ar.layout import BLayout, Recipe, Wire, rules, signal_word
from mori_gemm_ar.layout.fused_rules import MAX_CHUNKS
from mori_gemm_ar.layout.fused_window import FUSED_CONTROL
from mori_gemm_ar.layout.sdma import Transport
from mori_gemm_ar.layout.terms import MAX_BLOCKS, MAX_WORLD
from mori_gemm_ar.model import Explanation, Mode, explain, load_records
from mori_gemm_ar.op.launches import LayerLaunches
from mori_gemm_ar.op.options import AUTO, Support, layer_spec
from mori_gemm_ar.op.self_test import LayerSelfTest, Operands, paths
from mori_gemm_ar.op.usual import usual_operands
from mori_gemm_ar.op.warm import warm_rows
from mori_gemm_ar.plan import LayerPlan, LayerSpec, Tuning, constants, model_layer, plan_layer
from mori_gemm_ar.runtime import ErrorRecord, Target, World, agree, connect, require_equal

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# How to run a kind of call, and the output that it writes.
Ready = tuple[Callable[[Sequence[int]], None], torch.Tensor]
_C_BYTES = 2
_KEPT = 4096  # kinds of calls that are kept ready, a few KB each


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
        self._codes = self._loaded = LoadedCodes(target)
        self._launches: LayerLaunches | None = None
        self._error: ErrorRecord  # the window's
        self._usual = usual_operands(self._contract)
        self._after = [(slot + 1) % spec.tuning.outputs for slot in range(spec.tuning.outputs)]
        self._ready: dict[tuple[int, int, bool], Ready] = {}  # by m, output, and whether the result goes elsewhere

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
            window = op._require_window()
            op._launches, op._error = LayerLaunches(spec, window, op._codes), window.error
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

    def _start_epoch(self, epoch: int) -> None:
        super()._start_epoch(epoch)
        if epoch:
            count, chunks = epoch.to_bytes(4, "little"), MAX_WORLD * MAX_CHUNKS
            flag, landed = signal_word(epoch, 0).to_bytes(8, "little"), epoch.to_bytes(8, "little")
            for region, data in (
                ("meet_epoch", count), ("pull_epochs", count * MAX_BLOCKS), ("chunk_calls", count * chunks),
                ("meet_flags", flag * MAX_WORLD), ("pull", flag * (MAX_BLOCKS * MAX_WORLD)),
                ("chunk_landed", landed * chunks), ("chunk_summed", landed * chunks),
            ):  # fmt: skip
                self.target.write(self._require_window().at(region), data)

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
        self._test_again()

    def _self_test(self) -> None:
        for plan in paths(self.spec, engines=self._engines):
            test = LayerSelfTest(self.spec, plan, self._require_window(), self.target, self._run_test)
            agree(self._world, "prepare the self-test", test.prepare)
            for step, check in test.steps():
                agree(self._world, step, partial(self._tested, check))

    def _run_test(self, plan: LayerPlan, operands: Operands) -> torch.Tensor:
        assert self._launches is not None, "create() made it"
        tensors = (operands.a, operands.b, operands.a_scale, operands.b_scale)
        sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
        out = self._view(self._next, plan.m)
        template = self._launches.template(plan, self._next, self._budget, sizes, foreign=False)
        self.target.prepare(template).run([tensor.data_ptr() for tensor in tensors])
        self.target.synchronize()
        self._raise_failure()
        return out

    def _release(self) -> None:
        self._ready.clear()  # views would keep an emulated window mapped
        super()._release()

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
            m, addresses = self._usual(a, b, a_scale, b_scale) or self._checked_operands(a, b, a_scale, b_scale)
            slot, target = self._next, self.target
            foreign = False
            if out is not None:
                operands = (a, b, a_scale, b_scale)
                foreign = self._is_foreign(out, m, operands)
                if foreign:
                    addresses = (*addresses, out.data_ptr())
            ready = self._ready.get((m, slot, foreign))
            if ready is None:
                ready = self._prepare(m, slot, (a, b, a_scale, b_scale), foreign=foreign)
            run, view = ready
            run(addresses)
            self._next = self._after[slot]
            target.settle()
            if self._error.written() and not target.recording:
                self._raise_failure()
            # A view of its own: the caller may change what it is shown as.
            return view.detach() if out is None else out
        finally:
            self._busy.release()

    def _checked_operands(self, *operands: torch.Tensor) -> tuple[int, tuple[int, ...]]:
        """(M, addresses) of operands in a form that is seldom used, or `ConfigError`."""
        m = self._contract.check(*operands)
        return m, tuple(tensor.data_ptr() for tensor in operands)

    def _prepare(self, m: int, slot: int, operands: tuple[torch.Tensor, ...], *, foreign: bool) -> Ready:
        """Launches and output of calls of this kind, kept for later ones."""
        assert self._launches is not None, "create() made it"
        sizes = [tensor.numel() * tensor.element_size() for tensor in operands]
        if foreign:
            sizes.append(m * self.n * _C_BYTES)
        template = self._launches.template(self.plan(m), slot, self._budget, sizes, foreign=foreign)
        if len(self._ready) >= _KEPT:
            self._ready.clear()
        ready = self._ready[m, slot, foreign] = self.target.prepare(template).run, self._view(slot, m)
        return ready

    def _is_foreign(self, out: torch.Tensor, m: int, operands: tuple[torch.Tensor, ...]) -> bool:
        """Whether `out` is memory of the caller's; `ConfigError` unless it can take the result."""
        self._contract.check_out(out, m, operands)
        window = self._require_window()
        start, end = out.data_ptr(), out.data_ptr() + out.numel() * _C_BYTES
        if m == 0 or start == window.at(f"output{self._next}"):
            return False
        if start < window.address + window.map.nbytes and window.address < end:
            raise ConfigError("out must be op.output(m) or memory outside the window; leave it out to get op.output(m)")
        return True

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
        """Collective: launch every kernel once on data of its own, so that no later call pays for a first launch.

        Overwrites all outputs. Raises as `self_test` and calls do.
        """
        self.self_test()
        b, b_scale = blank_weight(self._contract)
        for m in warm_rows(self.spec):
            a, a_scale = blank_rows(self._contract, m)
            # Results elsewhere take the kernels that copy, too.
            self(a, b, a_scale, b_scale, torch.empty(m, self.n, dtype=torch.bfloat16, device=b.device))
        if self.spec.recipe in SCALE_DTYPES:
            self.quantize(torch.zeros(1, self.k, dtype=torch.bfloat16, device=b.device))
        agree(self._world, "finish the warm-up", self.target.synchronize)

    def freeze(self) -> None:
        """From now on nothing is compiled or loaded: a call that needed it would raise `ConfigError`."""
        self.require_open()
        self._loaded.freeze()

    @property
    def wire(self) -> Wire:
        """What crosses the links."""
        return self.spec.wire
