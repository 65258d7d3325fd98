# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The wire formats: torch statement against float64 arithmetic, edges, sizes and places."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mori_gemm_ar.ar.wire_format import dequantize_wire, quantize_wire
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import MAX_BYTES, Wire, WireSlice, WireSplit, allreduce_window
from mori_gemm_ar.layout.wire import slice_capacity
from mori_gemm_ar.layout.wire_terms import GROUP

quick = settings(max_examples=150, deadline=None, database=None)
MX = (Wire.FP8, Wire.FP8_BOTH)
LOSSY = (*MX, Wire.FP8_ROW)
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
# Every e4m3 value from 0 to 448, by its definition.
E4M3 = sorted(
    {m / 8 * 2.0**-6 for m in range(8)}
    | {(1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8) if (e, m) != (15, 7)}
)


def nearest(value: float) -> float:
    """The e4m3 value nearest to a magnitude of at most 448; of two, the one whose code is even."""
    best = min(abs(value - code) for code in E4M3)
    near = [i for i, code in enumerate(E4M3) if abs(value - code) == best]
    return E4M3[next((i for i in near if i % 2 == 0), near[0])]


def exponent_of(largest: float) -> int:
    """ceil(log2(largest / 448)), at least -127, by search."""
    return next(e for e in range(-127, 128) if largest <= 448 * 2.0**e)


def mx_statement(group: list[float]) -> tuple[int, list[float]]:
    """(e8m0 code, values after the wire) in float64: all products here are exact."""
    exponent = exponent_of(max(map(abs, group)))
    values = [math.copysign(nearest(abs(x) * 2.0**-exponent) * 2.0**exponent, x) for x in group]
    return exponent + 127, values


def single(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).to(torch.float32)


@quick
@given(st.lists(floats, min_size=1, max_size=GROUP), st.integers(-130, 20))
def test_a_group_against_its_statement_in_float64(values: list[float], shift: int) -> None:
    """Anything, and anything brought near 2^shift, so that small groups meet too."""
    top = max(map(abs, values)) or 1.0
    for group in (values, [math.ldexp(x / top, shift) for x in values]):
        x = single(group)
        data = quantize_wire(x)
        code, expected = mx_statement(x.tolist())
        assert data[WireSlice(Wire.FP8, len(x)).scales_offset] == code
        got = dequantize_wire(data, x.shape, torch.float32)
        assert torch.equal(got, single(expected)) and torch.equal(got.signbit(), x.signbit())


@quick
@given(st.lists(floats, min_size=16, max_size=16), st.integers(-20, 20))
def test_a_row_within_its_statement_in_float64(values: list[float], shift: int) -> None:
    """Within half a step of the format plus what three fp32 roundings may add."""
    top = max(map(abs, values)) or 1.0
    x = single([math.ldexp(v / top, shift) for v in values]).view(1, 16)
    got = dequantize_wire(quantize_wire(x, Wire.FP8_ROW), x.shape, torch.float32, Wire.FP8_ROW)
    scale = float(x.abs().max()) / 448
    for value, result in zip(x.flatten().tolist(), got.flatten().tolist(), strict=True):
        allowed = max(abs(value) / 16, scale * 2.0**-10) * (1 + 2.0**-20)
        assert abs(result - value) <= allowed, (value, result)


def every_bf16() -> torch.Tensor:
    return torch.arange(0x7F80, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def test_no_finite_group_or_row_meets_a_nan() -> None:
    """The saturation guard, for every largest magnitude that bf16 has, alone and beside values of all sizes."""
    largest = every_bf16().float()
    x = torch.stack([largest * f for f in (1, -1, 0.5, 0.9375, 1e-3, -1e-6, 0, 1)] * 4, dim=1).contiguous()
    for wire in LOSSY:
        data = quantize_wire(x, wire)
        assert not bool(((data[: x.numel()] & 0x7F) == 0x7F).any())
        back = dequantize_wire(data, x.shape, torch.float64, wire)
        # The largest itself rounds by at most a sixteenth, and past the end of fp32 only above 1.9375 * 2^127.
        low = largest < 1.9375 * 2.0**127
        normal = low & (largest >= 2.0**-110)
        ratio = back[normal, 0] / largest[normal].double()
        assert bool(torch.isfinite(back[low]).all()) and float((ratio - 1).abs().max()) <= 1 / 16


def test_the_exponent_is_the_smallest_that_fits() -> None:
    """For every bf16: not above 448 after scaling, and above it with one less."""
    largest = every_bf16().float()
    x = torch.zeros(len(largest), GROUP)
    x[:, 7] = largest
    codes = quantize_wire(x)[x.numel() :][: len(largest)].long()
    scaled = largest.double() * torch.pow(2.0, (127 - codes).double())
    assert float(scaled.max()) <= 448
    assert bool((scaled[codes > 0] * 2 > 448).all())
    assert codes[0] == 0


@pytest.mark.parametrize("wire", LOSSY, ids=lambda wire: wire.name)
@pytest.mark.parametrize("poison", [math.nan, -math.nan, math.inf, -math.inf])
def test_nan_and_infinity_stay_in_their_unit(wire: Wire, poison: float) -> None:
    x = torch.randn(4, 2 * GROUP, generator=torch.Generator().manual_seed(1))
    clean = dequantize_wire(quantize_wire(x, wire), x.shape, torch.bfloat16, wire)
    x[2, GROUP + 5] = poison
    data = quantize_wire(x, wire)
    back = dequantize_wire(data, x.shape, torch.bfloat16, wire)
    unit = 2 * GROUP if wire.per_row else GROUP
    hit = torch.zeros(x.numel(), dtype=torch.bool)
    first = (2 * 2 * GROUP + GROUP + 5) // unit * unit
    hit[first : first + unit] = True
    assert torch.equal(torch.isnan(back).flatten(), hit)
    assert torch.equal(back.flatten()[~hit], clean.flatten()[~hit])
    assert bool((data[: x.numel()][hit] == 0x7F).all())


def test_zeros_and_subnormal_groups() -> None:
    x = torch.zeros(64)
    assert not bool(quantize_wire(x).any())
    assert not bool(
        dequantize_wire(quantize_wire(x[:32].view(2, 16), "fp8-row"), (2, 16), torch.float32, "fp8-row").any()
    )
    x[33], x[40] = 2.0**-127 * 448, 2.0**-136
    back = dequantize_wire(quantize_wire(x), x.shape, torch.float32)
    assert torch.equal(back, x)
    x[33], x[40] = 0.0, 2.0**-138
    assert float(dequantize_wire(quantize_wire(x), x.shape, torch.float32).abs().max()) == 0.0


def test_groups_follow_the_flattened_tensor_and_the_last_may_be_short() -> None:
    x = torch.randn(5, 9, generator=torch.Generator().manual_seed(2))
    data = quantize_wire(x)
    assert len(data) == 48 + 16 and not bool(data[45:48].any()) and not bool(data[50:].any())
    assert torch.equal(data, quantize_wire(x.flatten()))
    padded = torch.cat([x.flatten(), torch.zeros(19)])
    assert torch.equal(quantize_wire(padded)[:45], data[:45])
    assert torch.equal(quantize_wire(padded)[64:66], data[48:50])


# --- sizes and places ---


@quick
@given(st.integers(0, 10**7), st.integers(1, 8), st.sampled_from(MX))
def test_slices_of_groups_partition_the_tensor(numel: int, world: int, wire: Wire) -> None:
    split = WireSplit(world, numel, wire)
    slices = [split.slice(rank) for rank in range(world)]
    assert [slices[0].start, slices[-1].stop] == [0, numel] and sum(map(len, slices)) == numel
    assert all(own.start % GROUP == 0 or own.start == numel for own in slices)
    assert all(len(own) <= split.part for own in slices) and split.part % GROUP == 0
    layout = split.slice_layout
    assert layout.scales * GROUP == split.part and layout.nbytes % 16 == layout.scales_offset % 16 == 0


@quick
@given(st.integers(0, 3000), st.integers(1, 300), st.integers(1, 8))
def test_slices_of_rows_partition_the_tensor(rows: int, units: int, world: int) -> None:
    columns = 16 * units
    split = WireSplit(world, rows * columns, Wire.FP8_ROW, columns)
    assert sum(len(split.slice(rank)) for rank in range(world)) == rows * columns
    assert all(split.slice(rank).start % columns == 0 for rank in range(world))
    assert split.slice_layout.scales * columns == split.part


@quick
@given(st.integers(2, MAX_BYTES), st.integers(2, 8), st.sampled_from(LOSSY), st.data())
def test_the_window_has_room_for_every_call(max_bytes: int, world: int, wire: Wire, data: st.DataObject) -> None:
    """Of any size up to the capacity, and with any rows."""
    window = allreduce_window(max_bytes, world, wire)
    columns = 16 * data.draw(st.integers(1, 4096)) if wire.per_row else None
    most = max_bytes // 2 // (columns or 1)
    numel = data.draw(st.integers(0, most)) * (columns or 1)
    layout = WireSplit(world, numel, wire, columns).slice_layout
    assert layout.nbytes <= window.region("quantized").nbytes
    if wire.both:
        assert world * layout.nbytes + 48 <= window.region("partials").nbytes
    smaller = data.draw(st.integers(1, max_bytes))
    assert slice_capacity(wire, smaller, world) <= slice_capacity(wire, max_bytes, world)


def test_the_exact_window_is_what_it_was() -> None:
    assert allreduce_window(10_000, 4) == allreduce_window(10_000, 4, Wire.EXACT)
    assert allreduce_window(10_000, 4).names[-2:] == ("input", "reduced")
    assert allreduce_window(1 << 20, 8, Wire.FP8).nbytes < allreduce_window(1 << 20, 8).nbytes


# --- names ---


def test_a_wire_is_named_exactly() -> None:
    assert [Wire.parse(wire.value) for wire in Wire] == list(Wire) == [Wire.parse(wire) for wire in Wire]
    for wrong in ("FP8", "fp8 ", "", None, 1, True, "mxfp8"):
        with pytest.raises(ConfigError, match="must be one of 'exact', 'fp8', 'fp8-both', 'fp8-row'"):
            Wire.parse(wrong)


def test_refused_formats_say_what_is_right() -> None:
    x = torch.zeros(4, 24)
    with pytest.raises(ConfigError, match="columns=24 must be a multiple of 16 for wire='fp8-row'"):
        quantize_wire(x, "fp8-row")
    with pytest.raises(ConfigError, match="wire='exact' must be a lossy one"):
        quantize_wire(x, "exact")
    with pytest.raises(ConfigError, match=r"must be uint8 \[112\] for shape=\(4, 24\)"):
        dequantize_wire(quantize_wire(x)[1:], (4, 24), torch.bfloat16)
