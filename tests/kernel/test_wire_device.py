# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The device's quantiser and widener, bit by bit as `ar.wire_format` states them, for each pattern of lanes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from mori_gemm_ar.ar.wire_format import dequantize_wire, quantize_wire
from mori_gemm_ar.compile.store import CodeObject
from mori_gemm_ar.layout import Wire
from tests.kernel.harness import run_kernel
from tests.kernel.wire_kernels import ROW, THREADS, build_elements, build_runs

CASES = [
    pytest.param(lambda: build_runs(Wire.FP8), Wire.FP8, 8 * THREADS, id="quads"),
    pytest.param(build_elements, Wire.FP8, THREADS, id="half waves"),
    pytest.param(lambda: build_runs(Wire.FP8_ROW), Wire.FP8_ROW, ROW, id="waves"),
]
each_pattern = pytest.mark.parametrize(("build", "wire", "per_block"), CASES)


def check(code: CodeObject, wire: Wire, per_block: int, x: torch.Tensor) -> None:
    """Run over fp32 x, whole blocks, and compare the wire slice and what it stands for."""
    rows = x.view(-1, ROW)
    expected = quantize_wire(rows, wire)
    data, back = torch.zeros_like(expected), torch.zeros_like(x)
    tensors = {"x": x, "slice": data, "back": back}
    run_kernel(code, (x.numel() // per_block, 1, 1), (THREADS, 1, 1), (x, data, back, x.numel()), tensors)
    wrong = (data != expected).nonzero()
    assert not len(wrong), f"byte {int(wrong[0])}: got {int(data[wrong[0]])}, expected {int(expected[wrong[0]])}"
    want = dequantize_wire(expected, rows.shape, torch.float32, wire).flatten()
    wrong = (back.view(torch.int32) != want.view(torch.int32)).nonzero()
    assert not len(wrong), f"element {int(wrong[0])}: got {float(back[wrong[0]])}, expected {float(want[wrong[0]])}"


@each_pattern
def test_random_bits(build: Callable[[], CodeObject], wire: Wire, per_block: int) -> None:
    """Any fp32 bits; then one size in each row, so that most are finite, with NaN and infinity here and there."""
    generator = torch.Generator().manual_seed(3)
    bits = torch.randint(-(2**31), 2**31, (16 * ROW,), generator=generator).int()
    size = torch.randint(-140, 100, (64, 1), generator=generator)
    rows = torch.ldexp(torch.randn(64, ROW, generator=generator), size)
    rows[5, 100], rows[9, 3], rows[9, 40], rows[20, 511] = math.nan, math.inf, -math.nan, -math.inf
    rows[30], rows[31, :32], rows[32] = 0.0, -0.0, 1e-41
    code = build()
    for x in (bits.view(torch.float32), rows.flatten()):
        check(code, wire, per_block, x)


@each_pattern
def test_every_largest_magnitude_of_bf16(build: Callable[[], CodeObject], wire: Wire, per_block: int) -> None:
    """Each as the largest of its group or row, beside values that round every way."""
    largest = torch.arange(0x7F80, dtype=torch.int32)[:: 16 if wire.per_row else 1].to(torch.int16)
    share = torch.linspace(-1, 1, ROW if wire.per_row else 32)
    x = largest.view(torch.bfloat16).float()[:, None] * share
    x[:, 3], x[:, 17] = 0.0, 0.53125 * x[:, 0]
    if wire.per_row:
        x = x[: len(x) // 2 * 2]
    check(build(), wire, per_block, x.flatten()[: x.numel() // ROW * ROW].contiguous())
