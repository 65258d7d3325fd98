# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Whether a layer's call is right: the products of all ranks, their sum bit by bit, and its distance from fp64.

Each rank checks the rows of one slice for all ranks' products; equal digests of the whole result carry that to all.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmark.all_reduce_cases import lossy_gate
from benchmark.gemm_check import FEW, MAX_REL_L2, deviation, half_ulp, product_bound, relative
from benchmark.layer_cases import Case, operands
from mori_gemm_ar.layout import DType, Wire

if TYPE_CHECKING:
    import torch

GATE = 3.0e-3  # of an exact wire; 2.35e-3 is what rounding each of eight products and their sum gives


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one rank saw of one call. `products`: of each rank whose product it checked, squares as in Deviation."""

    failure: str | None
    in_order: bool | None  # whether the sum has the bits of the products added in rank order; None where none must
    digest: str  # of the whole result
    product_bits: int | None  # of the products checked here, in any partition the same when combined by xor
    products: tuple[tuple[float, float], ...]
    total: tuple[float, float]
    worst_product_tile: float
    worst_tile: float
    of_bound: float
    rows: int
    seconds: float
    time_us: float | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one slice: products of `ranks` there, and the result's rows.

    products None: nobody holds them as such. result None: nothing is summed.
    """

    rows: range
    ranks: tuple[int, ...]
    products: Sequence[torch.Tensor] | None
    result: torch.Tensor | None


def digest(result: torch.Tensor) -> str:
    """Of a tensor's bytes."""
    import torch

    return hashlib.sha256(result.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def check(
    case: Case, call: int, part: Part, whole: torch.Tensor, wire: Wire, where: str, seconds: float, us: float | None
) -> Verdict:
    """One rank's verdict. `whole`: its result, or its product where nothing is summed."""
    import torch

    picks = case.sampled(part.rows, len(part.ranks))
    rows = picks + part.rows.start
    total = magnitude = slack = torch.zeros(len(rows), case.n, dtype=torch.float64)
    squares, worst, of_bound, failure, in_order = [], 0.0, 0.0, None, None
    for place, rank in enumerate(part.ranks):
        exact, absolute = operands(case, call, rank).product(rows)
        total, magnitude = total + exact, magnitude + absolute
        if part.products is None:
            squares.append((0.0, float(exact.square().sum())))
            continue
        product = part.products[place]
        seen = product[picks]
        found = deviation(seen, exact, product_bound(exact, absolute, case.k))
        if found.first is not None and failure is None:
            what = f"product of rank {rank}"
            failure = _located(where, what, found.wrong, found.first, rows, seen, exact)
        squares.append(found.squares)
        worst, of_bound = _largest(worst, found.worst_tile), _largest(of_bound, found.of_bound)
        slack = slack + half_ulp(seen)
    summed, worst_sum = (0.0, 0.0), 0.0
    if part.result is not None:
        seen = part.result[picks]
        # A lossy wire has no bound for an element; its gate is on the norm.
        bound = product_bound(total, magnitude, case.k) + slack if not wire.lossy else torch.full_like(total, math.inf)
        found = deviation(seen, total, bound)
        if not wire.lossy:
            disorder = _order_failure(part, where)
            in_order, failure = disorder is None, failure or disorder
        if found.first is not None and failure is None:
            failure = _located(where, "result", found.wrong, found.first, rows, seen, total)
        summed, worst_sum = found.squares, found.worst_tile
        of_bound = _largest(of_bound, found.of_bound)
    return Verdict(
        failure, in_order, digest(whole), _product_bits(part), tuple(squares), summed, worst, worst_sum, of_bound,
        len(rows), seconds, us,
    )  # fmt: skip


def _largest(one: float, other: float) -> float:
    """The larger one; NaN counts as the largest."""
    return max(one, other, key=lambda value: (math.isnan(value), value))


def _located(
    where: str, what: str, wrong: int, first: tuple[int, int], rows: torch.Tensor, seen: torch.Tensor, exact: Any
) -> str:
    row, column = int(rows[first[0]]), first[1]
    return (
        f"{where}: {what} at [{row}, {column}] is {seen[first].item()}, not {exact[first].item():.6g} within its "
        f"bound; {wrong} of {seen.numel()} elements are past it"
    )


def _order_failure(part: Part, where: str) -> str | None:
    """Bits of the result against the products added in fp32 in rank order and rounded once."""
    import torch

    assert part.result is not None and part.products is not None, "asked only where ranks sum what they hold"
    total = part.products[0].float()
    for product in part.products[1:]:
        total = total + product.float()
    expected = total.to(torch.bfloat16)
    wrong = torch.nonzero(part.result.view(torch.int16) != expected.view(torch.int16))
    if not len(wrong):
        return None
    row, column = (int(i) for i in wrong[0])
    return (
        f"{where}: result at [{row + part.rows.start}, {column}] is {part.result[row, column].item()}, and the "
        f"products in rank order give {expected[row, column].item()}; {len(wrong)} of {expected.numel()} differ"
    )


def _product_bits(part: Part) -> int | None:
    import torch

    if part.products is None:
        return None
    found = 0
    for rank, product in zip(part.ranks, part.products, strict=True):
        for row, data in zip(part.rows, product.contiguous().view(torch.uint8).numpy(), strict=True):
            key = hashlib.sha256(f"{rank} {row} ".encode() + data.tobytes()).digest()
            found ^= int.from_bytes(key[:16], "little")
    return found


# ---- all ranks' verdicts -------------------------------------------------------------------------------------


def failure_of(case: Case, verdicts: list[Verdict], wire: Wire, sums: bool) -> str | None:
    """What is wrong with one call, on all ranks together. `sums`: whether ranks hold one sum."""
    for verdict in verdicts:
        if verdict.failure is not None:
            return verdict.failure
    if sums and len({v.digest for v in verdicts}) > 1:
        return "ranks hold different bits"
    many = case.m * case.n >= FEW
    products = _products(verdicts, sums)
    for rank, squares in enumerate(products):
        if many and not relative(squares) <= MAX_REL_L2:
            return f"product of rank {rank}: rel_l2={relative(squares):.3e} must be at most {MAX_REL_L2:.1e}"
    total = _added(v.total for v in verdicts)
    if not sums or not (many or wire.lossy) or not case.m:
        return None
    least, largest = 0.0, GATE
    if wire.lossy:
        spread = sum(math.sqrt(reference) for _, reference in products) / math.sqrt(total[1])
        least, largest = lossy_gate(wire, case.m * case.n, DType.BF16, spread, len(verdicts))
    if not least <= relative(total) <= largest:
        return f"rel_l2={relative(total):.3e} must be within {least:.2e}..{largest:.2e} for wire={wire.value!r}"
    return None


def _products(verdicts: list[Verdict], sums: bool) -> list[tuple[float, float]]:
    """Squares of each rank's product: its own verdict's, or added over the slices."""
    if not sums:
        return [v.products[0] for v in verdicts]
    return [_added(slices) for slices in zip(*(v.products for v in verdicts), strict=True)]


def _added(squares: Any) -> tuple[float, float]:
    parts = list(squares)
    return sum(error for error, _ in parts), sum(reference for _, reference in parts)


def summary(case: Case, calls: list[list[Verdict]], wire: Wire, sums: bool) -> dict[str, Any]:
    """Fields of a row that say whether its results are right; errors are the largest of all calls."""
    failure = failure_of(case, calls[-1], wire, sums)
    equal = all(len({v.digest for v in verdicts}) == 1 for verdicts in calls) if sums else None
    products, results = hashlib.sha256(), hashlib.sha256()
    for verdicts in calls:
        bits = 0
        for verdict in verdicts:
            bits ^= verdict.product_bits or 0
        products.update(bits.to_bytes(16, "little"))
        results.update(verdicts[0].digest.encode())
    flat = [v for verdicts in calls for v in verdicts]
    held = all(v.product_bits is not None for v in flat)
    return {
        "validated": failure is None,
        "failure": failure,
        "rel_l2": _finite([relative(_added(v.total for v in verdicts)) for verdicts in calls]) if sums else None,
        "worst_tile_rel_l2": _finite([v.worst_tile for v in flat]) if sums else None,
        "gemm_rel_l2": _finite([relative(x) for verdicts in calls for x in _products(verdicts, sums)])
        if held
        else None,
        "gemm_worst_tile_rel_l2": _finite([v.worst_product_tile for v in flat]) if held else None,
        "largest_error_of_bound": _finite([v.of_bound for v in flat]) if held else None,
        "rows_compared_with_fp64": sum(v.rows for v in calls[-1]) if sums else calls[-1][0].rows,
        "bitwise_equal_across_ranks": equal,
        "bitwise_equal_to_rank_order": all(v.in_order for v in flat) if sums and not wire.lossy else None,
        "digest": results.hexdigest() if sums and equal and failure is None else None,
        "product_digest": products.hexdigest() if held and failure is None else None,
        "calls_verified": len(calls),
    }


def _finite(values: list[float]) -> float | None:
    """The largest; None, as JSON has no word for it, where that is infinite or NaN."""
    worst = max(values, key=lambda value: (math.isnan(value), value), default=0.0)
    return worst if math.isfinite(worst) else None
