# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What an all-reduce op does about its wire: kernels, arguments of a call, and the measurement of what is lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mori_gemm_ar.ar.arguments import TORCH_DTYPES, Operands
from mori_gemm_ar.ar.wire_format import dequantize_wire, quantize_wire
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import (
    AllReduceConfig,
    DType,
    Stage,
    WindowMap,
    Wire,
    rules,
)
from mori_gemm_ar.layout.wire_rules import reason_not_wire_dtype, reason_not_wire_stage
from mori_gemm_ar.layout.wire_terms import ROW_UNIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mori_gemm_ar.ar.op import AllReduceOp

_SAMPLED_ROWS = 64
_GAUSSIAN_COLUMNS = 1024


@dataclass(frozen=True, slots=True)
class WireError:
    """What a wire loses: relative L2 distance of the sum from the fp32 sum of the same inputs, over sampled rows.

    Both roundings are in it: that of the wire and the one to the tensor's type. Equal on all ranks.
    """

    relative_l2: float
    wire: Wire
    rows: int  # sampled, evenly spaced
    columns: int  # of each of them
    of_rows: int  # that the call had
    data: str  # "given", or "gaussian": normal deviates, other ones on each rank

    def __float__(self) -> float:
        return self.relative_l2

    def __str__(self) -> str:
        return (
            f"relL2 {self.relative_l2:.3e} with wire={self.wire.value!r}, {self.rows} of {self.of_rows} rows of "
            f"{self.columns}, {self.data} data"
        )


# --- creation ---


def dtypes_of(wire: Wire, dtypes: Sequence[torch.dtype] | None) -> tuple[torch.dtype, ...]:
    """The types that an op reduces: those given, or all that the wire carries. Raises `ConfigError`."""
    if dtypes is None:
        return tuple(d for d, code in TORCH_DTYPES.items() if reason_not_wire_dtype(code, wire) is None)
    for dtype in dtypes:
        if dtype in TORCH_DTYPES:
            rules.require(reason_not_wire_dtype(TORCH_DTYPES[dtype], wire))
    return tuple(dtypes)


def effective(wire: Wire, world: int, stage: Stage | None) -> Wire:
    """The wire that an op uses: nothing crosses a link in a world of one. Raises `ConfigError`."""
    rules.require(reason_not_wire_stage(stage, wire))
    return wire if world > 1 else Wire.EXACT


def configs_of(world: int, dtypes: Sequence[torch.dtype], wire: Wire) -> tuple[AllReduceConfig, ...]:
    """Everything that an op may launch. A lossy one has an exact kernel too, to measure itself with."""
    codes = [TORCH_DTYPES[dtype] for dtype in dtypes]
    if not wire.lossy:
        return tuple(AllReduceConfig(world, code, stage) for code in codes for stage in Stage)
    lossy = [AllReduceConfig(world, code, Stage.TWO, wire=wire) for code in codes]
    return (*lossy, measuring_config(world))


def measuring_config(world: int) -> AllReduceConfig:
    """The exact kernel that an op with a lossy wire measures itself with, whatever its transport."""
    return AllReduceConfig(world, DType.FP32, Stage.ONE)


def through(total: torch.Tensor, wire: Wire) -> torch.Tensor:
    """An exact result as the gather leg delivers it."""
    return dequantize_wire(quantize_wire(total, wire), total.shape, total.dtype, wire) if wire.lossy else total


def sum_through(inputs: Sequence[torch.Tensor], wire: Wire) -> torch.Tensor:
    """What an all-reduce of contiguous tensors of the ranks, in order, gives on every rank, bit for bit."""
    return through(owners_sum(inputs, wire), wire)


def owners_sum(inputs: Sequence[torch.Tensor], wire: Wire) -> torch.Tensor:
    """The sum as the owners of its slices have it, before it is sent."""
    partials = [through(x, wire).float() if wire.both else x.float() for x in inputs]
    total = partials[0]
    for partial in partials[1:]:
        total = total + partial
    return total.to(inputs[0].dtype)


# --- calls ---


def columns_of(wire: Wire, tensor: torch.Tensor) -> int | None:
    """Elements of a row, where the wire has rows."""
    return (tensor.shape[-1] if tensor.ndim else 1) if wire.per_row else None


def reduced_region(window: WindowMap) -> str:
    """Name of the region that holds the own slice of the sum."""
    return "quantized" if "quantized" in window.names else "reduced"


def wire_arguments(window: WindowMap, config: AllReduceConfig, numel: int, columns: int | None) -> tuple[int, ...]:
    """Arguments that follow those of the exact kernel."""
    if not config.wire.lossy:
        return ()
    partials = window.offset("partials") if config.wire.both else 0
    return (partials, numel // columns if columns else 0, columns or 0)


# --- measurement ---


def measure(op: AllReduceOp, x: torch.Tensor | None) -> WireError:
    """See `AllReduceOp.wire_error`."""
    if op.target.recording:
        raise ConfigError("op.wire_error() must not be called while recording; it reads results")
    data = "given"
    if x is None:
        x, data = _gaussian(op), "gaussian"
    rows = x.reshape(-1, x.shape[-1]) if x.ndim and x.numel() else x.reshape(1, -1)
    if not op.wire.lossy:
        return WireError(0.0, op.wire, 0, rows.shape[1], rows.shape[0], data)
    columns = min(rows.shape[1], op.max_bytes // 4)
    count = min(_SAMPLED_ROWS, rows.shape[0], max(op.max_bytes // (4 * max(columns, 1)), 1))
    picks = torch.arange(count, device=x.device) * rows.shape[0] // count
    sample = rows[picks, :columns].float()
    result = op(x).reshape(rows.shape)[picks, :columns].double()
    exact = _exact_sum(op, sample).double()
    length = float(exact.norm())
    error = float((result - exact).norm()) / length if length else 0.0
    return WireError(error, op.wire, count, columns, rows.shape[0], data)


def _exact_sum(op: AllReduceOp, x: torch.Tensor) -> torch.Tensor:
    """fp32 sum of a contiguous fp32 tensor, whatever the op's wire."""
    op._enter()
    try:
        out = torch.empty_like(x)
        op._run(Operands(x, out, None), DType.FP32, exact=True)
        op.target.settle()
        op._raise_failure()
        return out
    finally:
        op._busy.release()


def _gaussian(op: AllReduceOp) -> torch.Tensor:
    dtype = op.dtypes[0]
    generator = torch.Generator().manual_seed(1 + op.rank)
    columns = min(_GAUSSIAN_COLUMNS, op.max_bytes // 4 // ROW_UNIT * ROW_UNIT) or op.max_bytes // 4
    rows = min(_SAMPLED_ROWS, op.max_bytes // (4 * columns)) if columns else 0
    return torch.randn(rows, max(columns, 1), generator=generator).to(dtype).to(op.target.torch_device)
