# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The GEMM on one GPU."""

from __future__ import annotations

import torch

from mori_gemm_ar.compile.store import CodeObject, default_store
from mori_gemm_ar.gemm.arguments import Contract, member_of
from mori_gemm_ar.gemm.launches import blank_rows, blank_weight, quantize, quantizer_of, run_kernel
from mori_gemm_ar.layout import MI355X, BLayout, GemmProblem, QuantizeConfig, Recipe, gemm_candidates, select_gemm
from mori_gemm_ar.layout.gemm import AnyGemmConfig
from mori_gemm_ar.runtime import Target, World
from mori_gemm_ar.runtime.alone import AloneWorld


class GemmOp:
    """C[M, N] bf16 = scale * A[M, K] B[N, K]^T of e4m3fn operands, any M >= 0.

    `op(a, b, a_scale, b_scale, out=None)`: `Recipe` has the scales' meaning, shapes and dtypes; `b` is in the order
    that create() was told, its shape [N, K] either way. BLOCKSCALE also takes a_scale flat, and as [M, K/128] with
    strides (1, M). Operands are contiguous and 16-byte aligned (scales 4), on the op's device. Returns `out`, a new
    contiguous tensor when None; rows past M of no tensor are read or written. When the call returns (on a GPU: in
    stream order) the caller may overwrite all operands. Nothing is compiled or allocated by a call besides `out`.
    Errors: `ConfigError` before anything is launched.
    """

    def __init__(self, target: Target, recipe: Recipe, n: int, k: int, b_layout: BLayout) -> None:
        self.target, self.recipe, self.n, self.k, self.b_layout = target, recipe, n, k, b_layout
        self._contract = Contract(recipe, n, k, target.torch_device)
        self._codes: dict[AnyGemmConfig | QuantizeConfig, CodeObject] = {}

    @classmethod
    def create(
        cls,
        world: World | None = None,
        *,
        n: int,
        k: int,
        quant: str | Recipe,
        b_layout: str | BLayout,
        device: str = "auto",
    ) -> GemmOp:
        """Not collective. n, k: shape of B, n a multiple of 16, k of 128. quant: "ptpc", "blockscale" or "mxfp8".
        b_layout: "row" or "preshuffled"; nothing in a tensor tells which it is. world: where the device comes from,
        by default a rank of its own. Compiles or loads every kernel that some M may need. Errors: `ConfigError`,
        `MissingDependencyError`, `CompileError`.
        """
        recipe, order = member_of("quant", quant, Recipe), member_of("b_layout", b_layout, BLayout)
        GemmProblem(0, n, k, recipe)
        op = cls((world or AloneWorld()).target(device), recipe, n, k, order)
        store = default_store()
        for config in (*gemm_candidates(recipe, n, k, order), *quantizer_of(recipe, k)):
            op._codes[config] = store.get(config, op.target.code_form)
            op.target.load(op._codes[config])
        return op

    # ---- use -------------------------------------------------------------------------------------------------
    def __call__(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        a_scale: torch.Tensor,
        b_scale: torch.Tensor,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Multiply; see the class."""
        m = self._contract.check(a, b, a_scale, b_scale)
        config = self.plan(m)
        operands = (a, b, a_scale, b_scale)
        if out is None:
            out = torch.empty(m, self.n, dtype=torch.bfloat16, device=a.device)
        else:
            self._contract.check_out(out, m, operands)
        if m:
            named = dict(zip(("a", "b", "c", "a_scale", "b_scale"), (a, b, out, a_scale, b_scale), strict=True))
            self._launch(config, named, m)
        return out

    def quantize(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """bf16 [M, K] to (a, a_scale) for this op; see `gemm.launches.quantize`."""
        return quantize(self.target, self._codes, self._contract, x)

    def plan(self, m: int) -> AnyGemmConfig:
        """The kernel that a call with m rows runs."""
        return select_gemm(GemmProblem(m, self.n, self.k, self.recipe), self.b_layout, MI355X)

    def warmup(self) -> None:
        """Run every kernel of the op once, on data of its own, so that no later call pays for a first launch."""
        b, b_scale = blank_weight(self._contract)
        a, a_scale = blank_rows(self._contract, 1)
        for config in self._codes:
            if not isinstance(config, QuantizeConfig):
                c = torch.empty(1, self.n, dtype=torch.bfloat16, device=b.device)
                self._launch(config, {"a": a, "b": b, "c": c, "a_scale": a_scale, "b_scale": b_scale}, 1)
            else:
                self.quantize(torch.zeros(1, self.k, dtype=torch.bfloat16, device=b.device))
        self.target.settle()

    def _launch(self, config: AnyGemmConfig, tensors: dict[str, torch.Tensor], m: int) -> None:
        run_kernel(self.target, self._codes[config], config, tensors, m)
