# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Bad input: one clear error on every rank that names argument, value, rule and way out; nothing allocated or hung."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest
import torch

from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.ar.options import Options
from mori_gemm_ar.errors import ClosedError, CollectiveSetupError, ConcurrentUseError, ConfigError
from mori_gemm_ar.layout import Stage
from mori_gemm_ar.runtime import RankContext
from tests.ranks.worlds import BF16, FP16, FP32, errors, require_all, run

ADVICE = "give the bytes of the largest payload of one call"
CREATE: list[tuple[dict[str, Any], str]] = [
    *(({"max_bytes": n}, f"max_bytes={n} must be one of 1..4294967040; {ADVICE}") for n in (0, -1, 2**32)),
    *(({"max_bytes": n}, f"max_bytes={n!r} must be an int, one of 1..4294967040; {ADVICE}") for n in (True, 1.5, "64")),
    *(
        ({"device": d}, f"device={d!r} must be 'auto' or 'emulated' in a LocalWorld; use torchrun for 'rocm'")
        for d in ("rocm", "cuda", "")
    ),
    *(
        ({"timeout_s": t}, f"timeout_s={t!r} must be a number of seconds above 0 and up to 86400")
        for t in (0, -1, float("nan"), float("inf"), True, "5", 86401)
    ),
    *(({"stage": s}, f"stage={s!r} must be Stage.ONE, Stage.TWO or None") for s in (1, "two", 0, False)),
    *(
        ({"dtypes": d}, "must be a choice of ['torch.bfloat16', 'torch.float16', 'torch.float32']")
        for d in ((), (torch.int32,))
    ),
]


@pytest.mark.parametrize(("change", "text"), CREATE, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_bad_arguments_of_create(change: dict[str, Any], text: str) -> None:
    """The same error on every rank; nothing stays, and the next create works."""

    def body(ctx: RankContext) -> None:
        arguments = {"max_bytes": 256, "dtypes": (BF16,), **change}
        with pytest.raises(ConfigError) as caught:
            AllReduceOp.create(ctx, **arguments)
        assert text in str(caught.value)
        ctx.barrier()
        assert len(ctx.node.regions) == 0
        with AllReduceOp.create(ctx, 256, dtypes=(BF16,)) as op:
            require_all(op(torch.full((8,), ctx.rank + 1.0, dtype=BF16)), 3)

    assert errors(2, body) == [None, None]


def test_bad_argument_on_one_rank_names_it_on_the_others() -> None:
    def body(ctx: RankContext) -> str:
        kind = ConfigError if ctx.rank == 1 else CollectiveSetupError
        with pytest.raises(kind) as caught:
            AllReduceOp.create(ctx, 0 if ctx.rank == 1 else 256, dtypes=(BF16,))
        ctx.barrier()
        assert len(ctx.node.regions) == 0
        return str(caught.value)

    first, own, last = run(3, body)
    assert own.startswith("max_bytes=0 must be one of")
    assert first == last == f"rank 1 failed at step 'check arguments': ConfigError: {own}"


@pytest.mark.parametrize(
    "different",
    [{"max_bytes": 512}, {"stage": Stage.ONE}, {"dtypes": (BF16, FP32)}],
    ids=["max_bytes", "stage", "dtypes"],
)
def test_ranks_that_disagree_about_the_op(different: dict[str, Any]) -> None:
    """Found before anything is allocated, with the value of each rank."""

    def body(ctx: RankContext) -> str:
        arguments = {"max_bytes": 256, "stage": None, "dtypes": (BF16,), **(different if ctx.rank == 2 else {})}
        with pytest.raises(ConfigError) as caught:
            AllReduceOp.create(ctx, **arguments)
        ctx.barrier()
        assert len(ctx.node.regions) == 0
        return str(caught.value)

    texts = run(3, body)
    assert len(set(texts)) == 1
    assert texts[0].startswith(
        "max_bytes, stage, dtypes, transport, queues, wire and cco_device must be equal on all ranks; "
        "got rank 0: (256, None, "
    )
    assert all(f"rank {rank}: " in texts[0] for rank in range(3))


# --- calls ---


def sparse() -> torch.Tensor:
    return torch.eye(4).to(BF16).to_sparse()


INPUTS: list[tuple[Any, str]] = [
    ([1.0, 2.0], "x=list must be a torch.Tensor"),
    (None, "x=NoneType must be a torch.Tensor"),
    (torch.ones(4, dtype=torch.int32), "x.dtype=torch.int32 must be one of bfloat16, float16, float32; cast it first"),
    (
        torch.ones(4, dtype=torch.float64),
        "x.dtype=torch.float64 must be one of bfloat16, float16, float32; cast it first",
    ),
    (torch.ones(4, dtype=FP16), "x.dtype=torch.float16 must be among the dtypes given to create()"),
    (
        torch.ones(4, dtype=BF16, device="meta"),
        "x.device=meta must be cpu, where this op runs; move the tensor first",
    ),
    (sparse(), "x.layout=torch.sparse_coo must be torch.strided; call x.to_dense() first"),
    (
        torch.ones(129, dtype=BF16),
        "nbytes=258 must be at most max_bytes=256; create the op with max_bytes=258 or split the tensor",
    ),
]


def usable(op: AllReduceOp) -> None:
    """The op still gives the right sum."""
    require_all(op(torch.full((100,), op.rank + 1.0, dtype=BF16)), 3, rank=op.rank)


@pytest.mark.parametrize(("x", "text"), INPUTS, ids=[text.split(" must")[0] for _, text in INPUTS])
def test_bad_input(x: Any, text: str) -> None:
    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 256, dtypes=(BF16, FP32)) as op:
            instructions = ctx.node.instructions
            ctx.barrier()
            for _ in range(2):
                with pytest.raises(ConfigError) as caught:
                    op(x)
                assert str(caught.value) == text
            ctx.barrier()
            assert ctx.node.instructions == instructions and len(ctx.node.regions) == 2
            ctx.barrier()
            usable(op)

    assert errors(2, body) == [None, None]


X = torch.ones(4, 8, dtype=BF16)
OUTPUTS: list[tuple[Any, str]] = [
    ([0.0], "out=list must be a torch.Tensor or None"),
    (torch.zeros(8, 4, dtype=BF16), "out.shape=torch.Size([8, 4]) must equal x.shape=torch.Size([4, 8])"),
    (torch.zeros(32, dtype=BF16), "out.shape=torch.Size([32]) must equal x.shape=torch.Size([4, 8])"),
    (torch.zeros(4, 8), "out.dtype=torch.float32 must equal x.dtype=torch.bfloat16"),
    (torch.zeros(4, 8, dtype=BF16, device="meta"), "out.device=meta must equal x.device=cpu"),
    (
        torch.zeros(1, 8, dtype=BF16).expand(4, 8),
        "out.stride=(0, 1) must not be expanded; pass a tensor with memory of its own",
    ),
    (
        torch.zeros(4, 8, dtype=BF16, requires_grad=True),
        "out.requires_grad=True must be False; the sum is written outside autograd",
    ),
]


@pytest.mark.parametrize(("out", "text"), OUTPUTS, ids=[text.split(" must")[0] for _, text in OUTPUTS])
def test_bad_output(out: Any, text: str) -> None:
    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 256, dtypes=(BF16,)) as op:
            with pytest.raises(ConfigError) as caught:
                op(X, out=out)
            assert str(caught.value) == text
            usable(op)

    assert errors(2, body) == [None, None]


def test_bad_arguments_of_buffer_and_plan() -> None:
    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 256, dtypes=(BF16,)) as op:
            with pytest.raises(
                ConfigError, match=r"nbytes=260 must be at most max_bytes=256; create the op with max_b"
            ):
                op.buffer((13, 10), BF16)
            for method in (lambda: op.buffer((1,), torch.int8), lambda: op.plan(1, torch.int8)):
                with pytest.raises(
                    ConfigError, match=r"dtype=torch.int8 must be one of bfloat16, float16, float32; conv"
                ):
                    method()
            for shape in ((-1,), (-2, -2), (2.0,), (True,)):
                with pytest.raises(ConfigError, match=r"extent=.* must be .*; give the shape of a tensor"):
                    op.buffer(shape, BF16)
            with pytest.raises(ConfigError, match=r"numel=-1 must be one of"):
                op.plan(-1, BF16)
            usable(op)

    assert errors(2, body) == [None, None]


def test_gradients_do_not_flow_and_do_not_disturb() -> None:
    """An input that requires a gradient is read as data; the result is a new leaf."""

    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 256, dtypes=(BF16,)) as op:
            y = op(torch.full((8,), ctx.rank + 1.0, dtype=BF16, requires_grad=True))
            require_all(y, 3)
            assert not y.requires_grad

    run(2, body)


# --- closed ops and foreign threads ---


def test_a_closed_op() -> None:
    def body(ctx: RankContext) -> None:
        op = AllReduceOp.create(ctx, 256, dtypes=(BF16,))
        kept = op.buffer((8,), BF16).fill_(7)
        op.close()
        op.close()
        uses = (lambda: op(X), op.check, op.bind, lambda: op.buffer((1,), BF16), op.__enter__)
        for use in uses:
            with pytest.raises(ClosedError, match="AllReduceOp must be open; create a new one"):
                use()
        ctx.barrier()
        assert op.closed and len(ctx.node.regions) == 0
        require_all(kept, 7)  # an emulated op keeps the memory of its buffers alive

    assert errors(2, body) == [None, None]


def test_an_op_that_was_not_created() -> None:
    def body(ctx: RankContext) -> None:
        op = AllReduceOp(ctx, ctx.target(), Options.checked(1, 256, None, (torch.bfloat16,), "lsa", 1), 1.0)
        for use in (lambda: op(X), op.check):
            with pytest.raises(ConfigError, match="must be"):
                use()

    run(1, body)


def test_a_thread_that_is_not_of_the_world() -> None:
    """It is refused at once; waiting for it would stop the rank that everyone waits for."""

    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, 256, dtypes=(BF16,)) as op:
            seen: list[BaseException] = []

            def outside() -> None:
                for use in (lambda: op(X), ctx.barrier, lambda: ctx.sleep(1)):
                    try:
                        use()
                    except Exception as error:
                        seen.append(error)

            thread = threading.Thread(target=outside)
            thread.start()
            thread.join()
            assert [type(error) for error in seen] == [ConcurrentUseError, ConfigError, ConfigError]
            assert "thread must belong to the LocalWorld; start it with `context.spawn`" in str(seen[1])

    assert errors(1, body) == [None]


def test_every_message_has_a_rule_and_a_way_out() -> None:
    """Negative control of the tables above: a text without them does not pass for a house message."""
    house = re.compile(r"^[a-z_.]+=.+ must .+")
    assert all(house.match(text) for _, text in [*INPUTS, *OUTPUTS])
    assert not house.match("invalid argument")
