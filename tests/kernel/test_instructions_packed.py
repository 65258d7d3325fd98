# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""16-bit and packed instructions against Python numbers, conversions against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.kernel.instruction_check import check
from tests.kernel.instruction_values import choose
from tests.kernel.instructions import LANES, State, execute
from tests.kernel.table_packed import ROWS

HALVES = np.arange(1 << 16, dtype=np.uint32).reshape(-1, LANES)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_packed(row):
    for form in row.forms:
        check(row, form)


def converted(text: str, first: np.ndarray, second: np.ndarray | None = None) -> np.ndarray:
    """v12 after a conversion of v1, and of v5 where there are two."""
    state = State.random(np.random.default_rng(1), len(first), vector=13)
    state.v[1] = first
    if second is not None:
        state.v[5] = second
    return execute(text, state).v[12]


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal bits, any NaN for a NaN."""
    kind = {2: torch.int16, 4: torch.int32}[want.element_size()]
    equal = (got.view(kind) == want.view(kind)) | (got.isnan() & want.isnan())
    assert equal.all(), torch.nonzero(~equal)[0]


def floats(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    bits = choose(rng, "f32", (512, LANES)).astype(np.uint32)
    ties = rng.integers(0, 1 << 32, (512, LANES), np.uint64).astype(np.uint32)
    # Half way between two bfloat16 (lower half 0x8000) or two float16 (lower 13 bits 0x1000), and next to it.
    ties = np.concatenate([ties[:256] & 0xFFFF0000 | 0x8000, ties[256:] & 0xFFFFE000 | 0x1000])
    return np.concatenate([bits, ties + rng.integers(0, 3, ties.shape).astype(np.uint32) - 1]).astype(np.uint32)


def as_torch(bits: np.ndarray, kind: torch.dtype) -> torch.Tensor:
    narrow = bits.astype(np.uint16) if kind.itemsize == 2 else np.ascontiguousarray(bits)
    return torch.from_numpy(narrow).view(kind)


def test_every_half_to_float():
    same(
        as_torch(converted("v_cvt_f32_f16_e32 v12, v1", HALVES), torch.float32), as_torch(HALVES, torch.float16).float()
    )


def test_every_bfloat_to_float():
    want = as_torch(HALVES, torch.bfloat16).float()
    same(as_torch(converted("v_cvt_f32_bf16_e32 v12, v1", HALVES), torch.float32), want)


def test_float_to_half():
    got = converted("v_cvt_f16_f32_e32 v12, v1", floats(1))
    assert (got >> 16 == 0).all()
    same(as_torch(got, torch.float16), as_torch(floats(1), torch.float32).half())


@pytest.mark.parametrize(("name", "kind"), [("v_cvt_pk_bf16_f32", torch.bfloat16), ("v_cvt_pk_f16_f32", torch.float16)])
def test_two_floats_to_a_pair(name, kind):
    first, second = floats(2), floats(3)
    got = converted(f"{name} v12, v1, v5", first, second)
    same(as_torch(got & 0xFFFF, kind), as_torch(first, torch.float32).to(kind))
    same(as_torch(got >> 16, kind), as_torch(second, torch.float32).to(kind))


def test_two_floats_to_e4m3():
    """What rounds past 448 becomes a NaN here, whatever torch makes of it."""
    first, second = floats(4), floats(5)
    state = State.random(np.random.default_rng(1), len(first), vector=13)
    state.v[1], state.v[5] = first, second
    got = execute("v_cvt_pk_fp8_f32 v12, v1, v5", state).v[12]
    assert (got >> 16 == state.v[12] >> 16).all()
    for shift, source in ((0, first), (8, second)):
        values = as_torch(source, torch.float32)
        want = values.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        in_range = (values.abs() <= 464).numpy()
        np.testing.assert_array_equal((got >> shift & 0xFF)[in_range], want[in_range])
        assert ((got >> shift & 0x7F)[~in_range] == 0x7F).all()
