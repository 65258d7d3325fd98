# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The all-reduce benchmark over each transport and wire: equal bits where they must be, gates that notice both ways."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from benchmark.all_reduce_cases import Case, data, reference, rounding_limit, wire_gate
from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.ar.wire_format import dequantize_wire, quantize_wire
from mori_gemm_ar.layout import DType, Stage, Wire
from tests.ranks.test_bench_ar import QUICK, invoke, strict

LOSSY = [wire for wire in Wire if wire.lossy]
MANY = ("--m", 8, "--n", 1024)  # enough elements for a gate on both sides
SDMA = ("sdma_scatter_w{}_bf16", "sdma_reduce_w{}_bf16", "sdma_gather_w{}_bf16")


def row_of(*options: object) -> dict[str, Any]:
    code, stdout, stderr = invoke(*options)
    assert code == 0, stdout + stderr
    return strict(stdout)


# --- transports ---


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_copy_engines_give_the_bits_of_load_and_store(ranks: int) -> None:
    """A ragged size, new data in every call; the row names the kernels of the transport that ran."""
    options = ("--local-world", ranks, "--m", 7, "--n", 515, *QUICK)
    engines = row_of(*options, "--backend", "sdma", "--queues", 2)
    plain = row_of(*options, "--backend", "lsa", "--queues", 2)
    assert engines["rel_l2"] == plain["rel_l2"] == 0.0
    assert engines["digest"] == plain["digest"] is not None
    assert engines["requested"]["backend"] == engines["resolved"]["backend"] == "sdma"
    assert engines["requested"]["queues"] == engines["resolved"]["queues"] == 2
    assert engines["resolved"]["kernels"] == [name.format(ranks) for name in SDMA]
    assert (plain["resolved"]["backend"], plain["resolved"]["queues"]) == ("lsa", 0), "the flag is not in force"
    assert plain["requested"]["queues"] == 2
    assert plain["resolved"]["kernels"] == [plain["resolved"]["kernel"]]


@pytest.mark.parametrize("options", [("--in-place",), ("--zero-copy", "--dtype", "fp32"), ("--n", 0)])
def test_copy_engines_and_places(options: tuple[object, ...]) -> None:
    row = row_of("--local-world", 2, "--m", 5, "--n", 7, "--backend", "sdma", *options, *QUICK)
    assert (row["validated"], row["resolved"]["backend"]) == (True, "sdma")


def test_a_world_of_one_needs_no_engine_and_says_so() -> None:
    row = row_of("--local-world", 1, "--m", 5, "--n", 7, "--backend", "sdma", *QUICK)
    assert (row["requested"]["backend"], row["resolved"]["backend"]) == ("sdma", "lsa")


def test_digests_tell_seeds_apart_and_repeat() -> None:
    options = ("--local-world", 2, "--m", 5, "--n", 7, *QUICK)
    digests = [row_of(*options, "--seed", seed)["digest"] for seed in (3, 3, 4)]
    assert digests[0] == digests[1] != digests[2]


# --- wires ---


class Wires:
    """An op with a lossy wire for a library whose `create` has none: what `quantize_wire` and its inverse say.

    `legs`: how often the wire's error is made; 0 is a wire that is not in force.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, legs: int = 1) -> None:
        self.legs, self.plain, self.make, plan = legs, AllReduceOp.__call__, AllReduceOp.create, AllReduceOp.plan
        monkeypatch.setattr(AllReduceOp, "__call__", lambda op, x, out=None: self.call(op, x, out))
        monkeypatch.setattr(AllReduceOp, "create", self.create)
        monkeypatch.setattr(AllReduceOp, "plan", lambda op, *shape, columns=None, **place: plan(op, *shape, **place))

    def create(self, world: Any, max_bytes: int, *, wire: str = "exact", **options: Any) -> AllReduceOp:
        op = self.make(world, max_bytes, **options)
        op.wire = Wire.parse(wire) if world.size > 1 else Wire.EXACT  # type: ignore[attr-defined]
        return op

    def call(self, op: AllReduceOp, x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        wire = op.wire  # type: ignore[attr-defined]
        if wire.both and self.legs:
            x = through(x, wire)
        result = self.plain(op, x, out)
        if wire.lossy:
            result += self.legs * (through(result, wire) - result)
        return result


def through(x: torch.Tensor, wire: Wire) -> torch.Tensor:
    return dequantize_wire(quantize_wire(x, wire), x.shape, x.dtype, wire)


def with_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's own wires, where it has them."""
    if "wire" not in inspect.signature(AllReduceOp.create).parameters:
        Wires(monkeypatch)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("wire", LOSSY)
def test_lossy_wires(monkeypatch: pytest.MonkeyPatch, wire: Wire, ranks: int) -> None:
    with_wire(monkeypatch)
    row = row_of("--local-world", ranks, *MANY, "--backend", "lsa", "--wire", wire.value, *QUICK)
    least, largest = (3.0e-2, 4.2e-2) if wire.both else (2.0e-2, 2.8e-2)
    assert least <= row["rel_l2"] <= largest
    assert row["bitwise_equal_across_ranks"] is True
    assert row["requested"]["wire"] == row["resolved"]["wire"] == wire.value


def test_a_wire_in_a_world_of_one_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    with_wire(monkeypatch)
    row = row_of("--local-world", 1, *MANY, "--backend", "lsa", "--wire", "fp8", *QUICK)
    assert (row["requested"]["wire"], row["resolved"]["wire"], row["rel_l2"]) == ("fp8", "exact", 0.0)


def test_few_elements_have_no_lower_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    with_wire(monkeypatch)
    for seed in range(5):
        options = ("--local-world", 2, "--m", 1, "--n", 16, "--backend", "lsa", "--seed", seed, *QUICK)
        assert row_of(*options, "--wire", "fp8-both")["validated"] is True


@pytest.mark.skipif(
    "wire" in inspect.signature(AllReduceOp.create).parameters, reason="stands in for a library without wires"
)
@pytest.mark.parametrize("legs", [0, 3])
@pytest.mark.parametrize("wire", LOSSY)
def test_gates_notice_both_ways(monkeypatch: pytest.MonkeyPatch, wire: Wire, legs: int) -> None:
    """Controls: a wire that is not in force, and one that loses more than its format."""
    Wires(monkeypatch, legs)
    code, stdout, _ = invoke("--local-world", 2, *MANY, "--backend", "lsa", "--wire", wire.value, *QUICK)
    row = strict(stdout)
    assert (code, row["validated"], row["emulated_wall_s"], row["digest"]) == (1, False, None, None)
    assert "must be within" in row["failure"]
    assert (row["rel_l2"] < 1e-2) is (legs == 0)


# --- gates, without ranks ---


def roundings(case: Case, world: int) -> torch.Tensor:
    """The sum with every addition rounded, as a ring does."""
    total = data(case, 0, world - 1)
    for rank in reversed(range(world - 1)):
        total = total + data(case, 0, rank)
    return total


@pytest.mark.parametrize("dtype", list(DType)[:3])
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (5, 7), (8, 1024)])
def test_a_sum_rounded_at_every_step_passes(shape: tuple[int, int], dtype: DType) -> None:
    for seed in range(20):
        for world in (1, 2, 3, 8):
            case = Case(*shape, dtype, seed=seed)
            expected = reference(case, 0, world)
            error = expected.rel_l2(roundings(case, world).double() - expected.total.double())
            assert error <= rounding_limit(case, expected, world), f"{case}, {world} ranks"


def test_a_sum_that_lacks_a_rank_does_not() -> None:
    for shape in ((5, 7), (8, 1024)):
        case = Case(*shape, DType.BF16)
        expected = reference(case, 0, 8)
        error = expected.rel_l2(reference(case, 0, 7).total.double() - expected.total.double())
        assert error > 3 * rounding_limit(case, expected, 8)


@pytest.mark.parametrize("wire", LOSSY)
@pytest.mark.parametrize("shape", [(1, 16), (5, 16), (4, 1024)])
def test_what_the_formats_lose_lies_within(wire: Wire, shape: tuple[int, int]) -> None:
    for seed in range(10):
        case = Case(*shape, DType.BF16, stage=Stage.TWO, seed=seed)
        for world in (2, 8):
            expected = reference(case, 0, world)
            total = expected.total
            if wire.both:
                total = sum((through(case_data(case, rank), wire) for rank in range(world)), torch.zeros(shape))
            result = through(total, wire).bfloat16()
            least, largest = wire_gate(case, wire, expected, world)
            assert least <= expected.rel_l2(result.double() - expected.total.double()) <= largest, f"{case}, {world}"


def case_data(case: Case, rank: int) -> torch.Tensor:
    return data(case, 0, rank).float()
