# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The layer benchmark's checks on results made with torch: what is right passes, and each way to be wrong is named."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from benchmark.bench_gemm_ar import _compared, any_failed
from benchmark.gemm_check import deviation, half_ulp
from benchmark.layer_cases import Case, ModeChoice, chosen_modes, even_slices, operands, overwrite
from benchmark.layer_check import Part, Verdict, check, failure_of, summary
from mori_gemm_ar.ar.wire import sum_through
from mori_gemm_ar.layout import BLayout, Recipe, Wire

CASE = Case(80, 64, 256, Recipe.BLOCKSCALE, calls=1)
RANKS = 2


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors of this size gain nothing from threads, which wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def products(case: Case, call: int = 0) -> list[torch.Tensor]:
    rows = torch.arange(case.m)
    return [operands(case, call, rank).product(rows)[0].to(torch.bfloat16) for rank in range(RANKS)]


def verdicts(case: Case, made: list[torch.Tensor], result: torch.Tensor, wire: Wire = Wire.EXACT) -> list[Verdict]:
    """Of all ranks, each of which holds `result`."""
    found = []
    for rows in even_slices(case.m, RANKS):
        cut = slice(rows.start, rows.stop)
        part = Part(rows, tuple(range(RANKS)), [product[cut] for product in made], result[cut])
        found.append(check(case, 0, part, result, wire, "here", 0.0, None))
    return found


def in_order(made: list[torch.Tensor]) -> torch.Tensor:
    return sum_through(made, Wire.EXACT)


@pytest.mark.parametrize("quant", list(Recipe))
def test_right_results_pass(quant: Recipe) -> None:
    case = replace(CASE, quant=quant)
    made = products(case)
    found = verdicts(case, made, in_order(made))
    assert failure_of(case, found, Wire.EXACT, sums=True) is None
    row = summary(case, [found], Wire.EXACT, sums=True)
    assert row["validated"] and row["bitwise_equal_to_rank_order"] and row["bitwise_equal_across_ranks"]
    assert 1e-3 < row["gemm_rel_l2"] < 2.1e-3 < row["rel_l2"] < 3e-3
    assert row["rel_l2"] < row["worst_tile_rel_l2"] < 5e-3
    assert 0.9 < row["largest_error_of_bound"] <= 1.0
    assert row["rows_compared_with_fp64"] == case.m


def test_one_wrong_element_of_a_product_is_named() -> None:
    made = products(CASE)
    made[1][47, 5] *= 1.01
    failure = failure_of(CASE, verdicts(CASE, made, in_order(made)), Wire.EXACT, sums=True)
    assert failure is not None
    assert failure.startswith("here: product of rank 1 at [47, 5] is ")
    assert "1 of 2560 elements are past it" in failure


def test_products_that_are_all_a_little_off() -> None:
    made = [product * 1.01 for product in products(CASE)]
    failure = failure_of(CASE, verdicts(CASE, made, in_order(made)), Wire.EXACT, sums=True)
    assert failure is not None and "product of rank 0" in failure


def test_another_order_of_the_sum_is_noticed() -> None:
    """Values within every bound, and one bit off."""
    made = products(CASE)
    result = in_order(made)
    result.view(torch.int16)[70, 63] += 1
    found = verdicts(CASE, made, result)
    assert [v.in_order for v in found] == [True, False]
    failure = failure_of(CASE, found, Wire.EXACT, sums=True)
    assert failure is not None and "at [70, 63]" in failure and "1 of 2560 differ" in failure
    assert summary(CASE, [found], Wire.EXACT, sums=True)["bitwise_equal_to_rank_order"] is False


def test_a_nan_is_wrong_and_the_row_stays_json() -> None:
    made = products(CASE)
    made[0][0, 0] = math.nan
    found = verdicts(CASE, made, in_order(made))
    row = summary(CASE, [found], Wire.EXACT, sums=True)
    assert not row["validated"]
    assert "[0, 0] is nan" in row["failure"]
    assert row["rel_l2"] is None and row["worst_tile_rel_l2"] is None and row["digest"] is None


def test_ranks_that_differ() -> None:
    made = products(CASE)
    found = verdicts(CASE, made, in_order(made))
    found[1] = replace(found[1], digest="other")
    assert failure_of(CASE, found, Wire.EXACT, sums=True) == "ranks hold different bits"


@pytest.mark.parametrize("wire", [Wire.FP8, Wire.FP8_BOTH])
def test_a_lossy_wire_has_two_bounds(wire: Wire) -> None:
    """As lossy as it must be; an exact sum means that the wire is not in force."""
    made = products(CASE)
    lossy = verdicts(CASE, made, sum_through(made, wire), wire)
    assert failure_of(CASE, lossy, wire, sums=True) is None
    failure = failure_of(CASE, verdicts(CASE, made, in_order(made), wire), wire, sums=True)
    assert failure is not None and "must be within" in failure
    other = Wire.FP8 if wire.both else Wire.FP8_BOTH
    assert failure_of(CASE, verdicts(CASE, made, sum_through(made, other), wire), wire, sums=True) is not None


def test_few_elements_of_a_lossy_wire_have_an_upper_bound() -> None:
    case = replace(CASE, m=3, n=32)
    made = products(case)
    assert failure_of(case, verdicts(case, made, sum_through(made, Wire.FP8), Wire.FP8), Wire.FP8, sums=True) is None
    wrong = verdicts(case, made, in_order(made) * 1.5, Wire.FP8)
    assert "must be within" in str(failure_of(case, wrong, Wire.FP8, sums=True))


def test_products_have_one_digest_however_they_are_cut() -> None:
    made = products(CASE)
    whole = [
        check(CASE, 0, Part(range(CASE.m), (rank,), [made[rank]], None), made[rank], Wire.EXACT, "", 0.0, None)
        for rank in range(RANKS)
    ]
    alone = summary(CASE, [whole], Wire.EXACT, sums=False)
    summed = summary(CASE, [verdicts(CASE, made, in_order(made))], Wire.EXACT, sums=True)
    assert alone["product_digest"] == summed["product_digest"]
    made[0].view(torch.int16)[3, 3] ^= 1
    other = summary(CASE, [verdicts(CASE, made, in_order(made))], Wire.EXACT, sums=True)
    assert other["validated"] is False or other["product_digest"] != summed["product_digest"]


def test_the_worst_tile_is_found() -> None:
    exact = torch.ones(20, 40, dtype=torch.float64)
    seen = exact.clone()
    seen[17, 33] = 3.0  # the last tile has 4 x 8 elements
    found = deviation(seen, exact, torch.full_like(exact, 0.5))
    assert found.worst_tile == pytest.approx(math.sqrt(4 / 32))
    assert (found.wrong, found.first, found.of_bound) == (1, (17, 33), 4.0)


def test_half_an_ulp_of_bf16() -> None:
    values = torch.tensor([1.0, 1.99, 2.0, -256.0])
    expected = [float(torch.finfo(torch.bfloat16).eps) * scale / 2 for scale in (1, 1, 2, 256)]
    assert half_ulp(values).tolist() == expected


def test_rows_for_fp64_are_whole_runs_and_evenly_spaced() -> None:
    case = replace(CASE, verify_rows=64)
    picked = case.sampled(range(100, 1100), 2).tolist()
    assert len(picked) == 32 and picked[:16] == list(range(16)) and picked[16] % 16 == 0 and picked[16] > 400
    assert replace(CASE, verify_rows=4096).sampled(range(0, 50), 2).tolist() == list(range(50))
    assert case.sampled(range(5, 5), 2).tolist() == []


@pytest.mark.parametrize("quant", list(Recipe))
def test_operands_are_copies_and_can_be_overwritten(quant: Recipe) -> None:
    case = replace(CASE, quant=quant)
    stored = operands(case, 0, 0).stored(BLayout.ROW)
    overwrite(stored)
    assert all(bool((x.view(torch.uint8) == 0xFF).all()) for x in stored)
    again = operands(case, 0, 0)
    assert bool(again.a.float().isfinite().all()) and bool(again.a_scale.isfinite().all())
    assert not torch.equal(again.a.view(torch.uint8), operands(case, 1, 0).a.view(torch.uint8))
    assert not torch.equal(again.b.view(torch.uint8), operands(case, 0, 1).b.view(torch.uint8))


def row(mode: str, tile: str = "128x256", **fields: object) -> dict:
    whole = {"mode": mode, "validated": True, "failure": None, "declined": None, "digest": "d", "product_digest": "p"}
    kind = {"requested": {"wire": "exact"}, "resolved": {"tile": tile}, "device": "emulated"}
    return {**whole, **kind, **fields}


def test_modes_that_differ_fail() -> None:
    rows = [
        row("fused-sdma"),
        row("gemm-only", digest=None),
        row("split-lsa"),
        row("fused-lsa", product_digest="other"),
    ]
    found = _compared(rows)
    assert [r["mode"] for r in found] == ["gemm-only", "split-lsa", "fused-sdma", "fused-lsa"]
    assert [r["validated"] for r in found] == [True, True, True, False]
    assert found[3]["failure"] == "its products have other bits than those of gemm-only"
    assert found[0]["equal_bits_as"] == ["split-lsa", "fused-sdma"] and found[3]["equal_bits_as"] == []
    assert any_failed(found)
    found = _compared([row("split-lsa"), row("fused-sdma", digest="other")])
    assert found[1]["failure"] == "its sums have other bits than those of split-lsa"


def test_the_widest_tile_is_compared_on_a_gpu_only() -> None:
    """The emulator's float32 sums depend on the shape of what a wave multiplies."""
    rows = [row("split-lsa"), row("fused-lsa", "256x256", product_digest="other", digest="other")]
    assert not any_failed(_compared([dict(r) for r in rows]))
    assert any_failed(_compared([{**r, "device": "rocm"} for r in rows]))
    same = [row("fused-sdma", "256x256"), row("fused-lsa", "256x256", digest="other")]
    assert any_failed(_compared(same))


def test_lossy_sums_may_differ_between_modes() -> None:
    lossy = {"requested": {"wire": "fp8"}}
    assert not any_failed(_compared([row("split-sdma", **lossy), row("fused-sdma", digest="other", **lossy)]))
    assert any_failed(_compared([row("split-sdma", **lossy), row("fused-sdma", product_digest="other", **lossy)]))


def test_what_counts_as_failed() -> None:
    assert not any_failed([row("split-lsa"), row("fused-sdma", validated=None, declined="wire")])
    assert any_failed([row("fused-sdma", validated=None, declined="wire")])
    assert any_failed([row("split-lsa", validated=False)])
    assert len(list(chosen_modes(ModeChoice.ALL))) == 5
    assert list(chosen_modes(ModeChoice.AUTO)) == [ModeChoice.AUTO]
