# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The torch operators: names, schemas, and compiled graphs that keep every launch and give the eager result."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from benchmark.operator_overhead import MAX_OVERHEAD_US, operator_overhead_us
from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.errors import ClosedError, ConfigError
from mori_gemm_ar.gemm import quantize_1x128
from mori_gemm_ar.integrations import torch_ops
from mori_gemm_ar.op import GemmAllReduceOp, Tuning
from mori_gemm_ar.runtime import LocalWorld, RankContext
from tests.ranks.worlds import BF16, require_bits

WORLD = 2
NO_COMPILER = not any(shutil.which(name) for name in ("g++", "c++", "clang++"))
BACKENDS = (
    None,
    "eager",
    "aot_eager",
    pytest.param("inductor", marks=pytest.mark.skipif(NO_COMPILER, reason="inductor needs a C++ compiler")),
)


@contextmanager
def registered(ctx: RankContext, op: Any) -> Iterator[tuple[Any, str, list[int]]]:
    """The op, its name, and how often it was called."""
    calls, kind = [0], type(op)

    class Counting(kind):  # type: ignore[misc, valid-type]
        def __call__(self, *arguments: Any, **options: Any) -> Any:
            calls[0] += 1
            return super().__call__(*arguments, **options)

    op.__class__ = Counting
    name = torch_ops.register_op(f"{kind.__name__} of rank {ctx.rank}", op)
    try:
        yield op, name, calls
    finally:
        torch_ops.unregister_op(name)


@contextmanager
def named(ctx: RankContext) -> Iterator[tuple[AllReduceOp, str, list[int]]]:
    """An all-reduce that is registered."""
    with AllReduceOp.create(ctx, 1 << 14, device="emulated", dtypes=(BF16,)) as op, registered(ctx, op) as found:
        yield found


def compiled(function: Callable[..., Any], backend: str | None) -> Callable[..., Any]:
    """The function itself for None; no graph break is allowed otherwise. No graph of another run is taken from disk."""
    if backend is None:
        return function
    options = {"fx_graph_cache": False} if backend == "inductor" else None
    return torch.compile(function, backend=backend, fullgraph=True, options=options)


@pytest.fixture(autouse=True)
def _no_compiled_code() -> Iterator[None]:
    yield
    torch.compiler.reset()


# ---- all_reduce ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("backend", BACKENDS)
def test_torch_op_keeps_every_launch(backend: str | None) -> None:
    """Equal calls, one whose result nobody reads, one in place: right sums, and as many launches as calls."""

    def body(ctx: RankContext) -> None:
        with named(ctx) as (_, name, launches):

            def layers(x: torch.Tensor) -> torch.Tensor:
                first = torch_ops.all_reduce(x, op_name=name)
                again = torch_ops.all_reduce(x, op_name=name)
                torch_ops.all_reduce(first, op_name=name)
                third = torch_ops.all_reduce(first + again, op_name=name)
                return torch_ops.all_reduce(third, op_name=name, out=third) + first

            run = compiled(layers, backend)
            for value in (1.0, 3.0):
                launches[0] = 0
                x = torch.full((3, 8), value + ctx.rank, dtype=BF16)
                total = 2 * value + 1
                require_bits(run(x), torch.full_like(x, 4 * WORLD * total + total), backend=backend, value=value)
                assert launches[0] == 5, f"backend={backend}, rank={ctx.rank}"

    LocalWorld(WORLD).run(body)


def test_torch_op_is_correctly_declared() -> None:
    """`opcheck`: schema, autograd registration, fake tensors, dynamic shapes."""

    def body(ctx: RankContext) -> None:
        with named(ctx) as (op, name, _):
            x = torch.full((3, 8), 1.0 + ctx.rank, dtype=BF16)
            for out in (torch.empty_like(x), op.buffer((3, 8), BF16)):
                torch.library.opcheck(torch.ops.mori_gemm_ar.all_reduce.default, (x, out, name))

    LocalWorld(WORLD).run(body)


def test_torch_op_schemas() -> None:
    assert str(torch.ops.mori_gemm_ar.all_reduce.default._schema) == (
        "mori_gemm_ar::all_reduce(Tensor x, Tensor(a!) out, str op_name) -> ()"
    )
    assert str(torch.ops.mori_gemm_ar.gemm_all_reduce.default._schema) == (
        "mori_gemm_ar::gemm_all_reduce("
        "Tensor a, Tensor b, Tensor a_scale, Tensor b_scale, Tensor(a!) out, str op_name) -> ()"
    )


def test_torch_op_takes_any_rows_without_compiling_again() -> None:
    def body(ctx: RankContext) -> None:
        with named(ctx) as (_, name, launches):
            graphs = []

            def count(graph: Any, _: Any) -> Any:
                graphs.append(graph)
                return graph.forward

            run = torch.compile(
                lambda x: torch_ops.all_reduce(x, op_name=name), backend=count, fullgraph=True, dynamic=True
            )
            for rows in (2, 3, 17):
                x = torch.full((rows, 8), 1.0 + ctx.rank, dtype=BF16)
                require_bits(run(x), torch.full_like(x, 3), rows=rows)
            assert len(graphs) == 1 and launches[0] == 3

    LocalWorld(WORLD).run(body)


# ---- gemm_all_reduce -------------------------------------------------------------------------------------------------
SIDE = 128  # N and K, so that one layer's output is the next one's input
Operands = tuple[torch.Tensor, torch.Tensor]


@contextmanager
def fused(ctx: RankContext) -> Iterator[tuple[GemmAllReduceOp, str, list[int], Operands]]:
    """A registered fused op with one output, and a weight of the rank."""
    op = GemmAllReduceOp.create(
        ctx, n=SIDE, k=SIDE, m_max=32, quant="blockscale", b_layout="row", device="emulated", tuning=Tuning(outputs=1)
    )
    weight = torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(ctx.rank)).to(torch.float8_e4m3fn)
    with op, registered(ctx, op) as (_, name, calls):
        yield op, name, calls, (weight, torch.full((1, 1), 2.0**-4))


@pytest.mark.parametrize("backend", BACKENDS)
def test_torch_op_of_two_fused_layers(backend: str | None) -> None:
    """A toy model whose results lie in new tensors, and in the window: the bits of direct calls, each launched."""

    def body(ctx: RankContext) -> None:
        with fused(ctx) as (op, name, calls, (b, b_scale)):

            def layers(a: torch.Tensor, a_scale: torch.Tensor, window: torch.Tensor) -> tuple[torch.Tensor, ...]:
                first = torch_ops.gemm_all_reduce(a, b, a_scale, b_scale, op_name=name)
                second = torch_ops.gemm_all_reduce(a, b, a_scale * 2, b_scale, op_name=name)
                used = torch_ops.gemm_all_reduce(a, b, a_scale, b_scale, op_name=name, out=window) * 0.5
                last = torch_ops.gemm_all_reduce(a, b, a_scale * 2, b_scale, op_name=name, out=window)
                return second - first * 0.5, last - used

            x = torch.randn(19, SIDE, generator=torch.Generator().manual_seed(7 + ctx.rank)).bfloat16()
            a, a_scale = quantize_1x128(x)
            first, second = op(a, b, a_scale, b_scale).clone(), op(a, b, a_scale * 2, b_scale).clone()
            calls[0] = 0
            for number, result in enumerate(compiled(layers, backend)(a, a_scale, op.output(19))):
                require_bits(result, second - first * 0.5, backend=backend, rank=ctx.rank, number=number)
            assert calls[0] == 4 and bool((first != 0).any()), f"backend={backend}, rank={ctx.rank}"

    LocalWorld(WORLD).run(body)


def test_torch_op_of_a_fused_layer_is_correctly_declared() -> None:
    """`opcheck`, with every form in which the block scale of A may come; it does not compare fp8 operands itself."""
    checks = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")

    def body(ctx: RankContext) -> None:
        with fused(ctx) as (op, name, _, (b, b_scale)):
            a, a_scale = quantize_1x128(torch.randn(5, SIDE, generator=torch.Generator().manual_seed(3)).bfloat16())
            kept = [tensor.clone() for tensor in (a, b, a_scale, b_scale)]
            for scale in (a_scale, a_scale.flatten(), a_scale.t()):
                for out in (torch.zeros(5, SIDE, dtype=BF16), op.output(5).zero_()):
                    operator = torch.ops.mori_gemm_ar.gemm_all_reduce.default
                    torch.library.opcheck(operator, (a, b, scale, b_scale, out, name), test_utils=checks)
                    operator(a, b, scale, b_scale, out, name)
                    assert bool((out != 0).any())
            for was, now in zip(kept, (a, b, a_scale, b_scale), strict=True):
                assert torch.equal(was.view(torch.uint8), now.view(torch.uint8))

    LocalWorld(WORLD).run(body)


# ---- the negative control: a functional schema over the window ---------------------------------------------------
@contextmanager
def functional(ops: dict[str, AllReduceOp]) -> Iterator[Callable[[torch.Tensor, str], torch.Tensor]]:
    """An operator that says it returns a new tensor and returns the window."""
    library = torch.library.Library("mori_gemm_ar_control", "DEF")
    library.define("hidden(Tensor x, str op_name) -> Tensor")

    def hidden(x: torch.Tensor, op_name: str) -> torch.Tensor:
        buffer = ops[op_name].buffer(x.shape, x.dtype)
        return ops[op_name](buffer.copy_(x), out=buffer)

    library.impl("hidden", hidden, "CPU")
    torch.library.register_fake("mori_gemm_ar_control::hidden", lambda x, _: torch.empty_like(x), lib=library)
    yield torch.ops.mori_gemm_ar_control.hidden
    library._destroy()


@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
def test_torch_op_with_a_hidden_window_would_be_wrong(backend: str | None) -> None:
    """Both results are the second one's, although `opcheck` finds no fault."""
    ops: dict[str, AllReduceOp] = {}

    def body(ctx: RankContext) -> float:
        with named(ctx) as (op, name, _):
            ops[name] = op
            x = torch.full((3, 8), 1.0 + ctx.rank, dtype=BF16)
            torch.library.opcheck(torch.ops.mori_gemm_ar_control.hidden.default, (x, name))
            return float(compiled(lambda x: hidden(x, name) + hidden(x + 1, name), backend)(x)[0, 0])

    with functional(ops) as hidden:
        assert LocalWorld(WORLD).run(body) == [10.0, 10.0]  # 3 + 5 is right


@pytest.mark.skipif(NO_COMPILER, reason="inductor needs a C++ compiler")
def test_torch_op_with_a_hidden_window_may_go_wrong_only_when_compiled() -> None:
    """The first result is used before the second call overwrites it, until a compiler moves that use."""
    ops: dict[str, AllReduceOp] = {}

    def body(ctx: RankContext) -> list[float]:
        with named(ctx) as (op, name, _):
            ops[name] = op

            def layers(x: torch.Tensor) -> torch.Tensor:
                used = hidden(x, name) * 2
                return used + hidden(x + 1, name)

            x = torch.full((3, 8), 1.0 + ctx.rank, dtype=BF16)
            return [float(compiled(layers, backend)(x)[0, 0]) for backend in (None, "aot_eager", "inductor")]

    with functional(ops) as hidden:
        assert LocalWorld(WORLD).run(body) == [[11.0, 11.0, 15.0]] * WORLD


# ---- names -------------------------------------------------------------------------------------------------------
def test_torch_op_names() -> None:
    def body(ctx: RankContext) -> None:
        x = torch.ones(8, dtype=BF16)
        with AllReduceOp.create(ctx, 256, device="emulated", dtypes=(BF16,)) as op:
            assert torch_ops.register_op("a", op) == "a" == torch_ops.register_op("a", op)
            assert torch_ops.registered_ops()["all_reduce"] == ("a",)
            with AllReduceOp.create(ctx, 256, device="emulated", dtypes=(BF16,)) as other:
                with pytest.raises(ConfigError, match=r"name='a' must be free; unregister_op\('a'\) first"):
                    torch_ops.register_op("a", other)
            with pytest.raises(ConfigError, match=r"op_name='b' must be registered .* there are 'a' \(all_reduce\)"):
                torch_ops.all_reduce(x, op_name="b")
            with pytest.raises(ConfigError, match="op_name='a' must be registered for mori_gemm_ar::gemm_all_reduce"):
                torch_ops.gemm_all_reduce(*4 * (torch.ones(8, 8),), op_name="a")
        with pytest.raises(ClosedError, match="op_name='a' must be open"):
            torch_ops.all_reduce(x, op_name="a")
        with pytest.raises(ClosedError, match="AllReduceOp must be open"):
            torch_ops.register_op("c", op)
        with AllReduceOp.create(ctx, 256, device="emulated", dtypes=(BF16,)) as op:
            torch_ops.register_op("a", op)  # the former one is closed
            assert bool((torch_ops.all_reduce(x, op_name="a") == 1).all())
        torch_ops.unregister_op("a")
        with pytest.raises(ConfigError, match="name='a' must be registered; there is none, see register_op"):
            torch_ops.unregister_op("a")
        for bad in ("", None, 1):
            with pytest.raises(ConfigError, match="must be a text that is not empty"):
                torch_ops.register_op(bad, op)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="op=str must be an AllReduceOp or a GemmAllReduceOp; create one"):
            torch_ops.register_op("a", "op")

    LocalWorld(1).run(body)


def test_torch_op_costs_little_on_the_host() -> None:
    """Time of this machine's CPU, which is what dispatch costs; the best of many runs."""
    assert 0 < operator_overhead_us() < MAX_OVERHEAD_US
