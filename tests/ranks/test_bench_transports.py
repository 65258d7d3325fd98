# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The all-reduce benchmark over each transport and wire: equal bits where they must be, gates that notice both ways."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmark import all_reduce_rank
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
    """An exact op in place of a lossy one, which loses `legs` times what the format loses; 0: it is not in force."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wire: Wire, legs: int) -> None:
        self.wire, self.legs, self.plain, self.make = wire, legs, AllReduceOp.__call__, AllReduceOp.create
        monkeypatch.setattr(AllReduceOp, "__call__", lambda op, x, out=None: self.call(op, x, out))
        monkeypatch.setattr(AllReduceOp, "create", self.create)
        monkeypatch.setattr(all_reduce_rank, "_wire", lambda op: wire)

    def create(self, world: Any, max_bytes: int, *, wire: str, **options: Any) -> AllReduceOp:
        assert wire == self.wire.value
        return self.make(world, max_bytes, **options)

    def call(self, op: AllReduceOp, x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        if self.wire.both and self.legs:
            x = through(x, self.wire)
        result = self.plain(op, x, out)
        return result.add_(self.legs * (through(result, self.wire) - result))


def through(x: torch.Tensor, wire: Wire) -> torch.Tensor:
    return dequantize_wire(quantize_wire(x, wire), x.shape, x.dtype, wire)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("backend", ["lsa", "sdma"])
@pytest.mark.parametrize("wire", LOSSY)
def test_lossy_wires(wire: Wire, backend: str, ranks: int) -> None:
    row = row_of("--local-world", ranks, *MANY, "--backend", backend, "--wire", wire.value, *QUICK)
    least, largest = (3.0e-2, 4.2e-2) if wire.both else (2.0e-2, 2.8e-2)
    assert least <= row["rel_l2"] <= largest
    assert row["bitwise_equal_across_ranks"] is True
    assert row["requested"]["wire"] == row["resolved"]["wire"] == wire.value
    assert row["resolved"]["backend"] == backend
    if backend == "sdma":
        assert row["resolved"]["kernels"] == [f"{name.format(ranks)}_{wire.label}" for name in SDMA]


@pytest.mark.parametrize("wire", LOSSY)
def test_both_transports_lose_the_same_bits(wire: Wire) -> None:
    options = ("--local-world", 4, "--m", 9, "--n", 528, "--wire", wire.value, *QUICK)
    rows = [row_of(*options, "--backend", backend) for backend in ("lsa", "sdma")]
    assert rows[0]["digest"] == rows[1]["digest"] is not None


def test_a_wire_in_a_world_of_one_is_exact() -> None:
    row = row_of("--local-world", 1, *MANY, "--backend", "lsa", "--wire", "fp8", *QUICK)
    assert (row["requested"]["wire"], row["resolved"]["wire"], row["rel_l2"]) == ("fp8", "exact", 0.0)


@pytest.mark.parametrize("backend", ["lsa", "sdma"])
def test_few_elements_have_no_lower_bound(backend: str) -> None:
    for seed in range(3):
        options = ("--local-world", 2, "--m", 1, "--n", 16, "--backend", backend, "--seed", seed, *QUICK)
        assert row_of(*options, "--wire", "fp8-both")["validated"] is True


@pytest.mark.parametrize("legs", [0, 3])
@pytest.mark.parametrize("wire", LOSSY)
def test_gates_notice_both_ways(monkeypatch: pytest.MonkeyPatch, wire: Wire, legs: int) -> None:
    """Controls: a wire that is not in force, and one that loses more than its format."""
    Wires(monkeypatch, wire, legs)
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
