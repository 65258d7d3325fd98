# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Which transport is in force: as asked for, or an error or warning on all ranks, and always told truthfully."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.ar import op as op_module
from mori_gemm_ar.ar import transport as transport_module
from mori_gemm_ar.emulator import EVERYWHERE, EngineFaults, EngineSettings
from mori_gemm_ar.errors import ConfigError, TransportWarning
from mori_gemm_ar.layout import MI355X, AllReduceConfig, Stage
from mori_gemm_ar.layout.sdma import SdmaConfig, Transport
from mori_gemm_ar.runtime import LocalWorld, RankContext
from tests.ranks.worlds import BF16, errors, fresh, reference, require_all, require_bits, run

SMALL, LARGE = 1000, 4096  # elements of bf16
LIMIT = 2 * LARGE  # bytes from which engines are chosen here


@pytest.fixture(autouse=True)
def engines_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = dataclasses.replace(MI355X, copy_bytes=LIMIT)
    monkeypatch.setattr(op_module, "MI355X", machine)
    monkeypatch.setattr(transport_module, "MI355X", machine)


def world(size: int, absent: Any = ()) -> LocalWorld:
    return LocalWorld(size, engines=EngineSettings(faults=EngineFaults(absent=absent)))


def used(op: AllReduceOp) -> list[Transport]:
    """By a small and a large call."""
    return [op.plan(numel, BF16).transport for numel in (SMALL, LARGE)]


def reduces(ctx: RankContext, op: AllReduceOp, numel: int) -> None:
    """A call, bit by bit, with the names of the kernels that ran."""
    inputs = [fresh(numel, BF16, numel, rank) for rank in range(ctx.size)]
    with op.target.record() as recording:
        y = op(inputs[ctx.rank])
    recording.replay()
    require_bits(y, reference(inputs), numel=numel, rank=ctx.rank)
    ran = {launch.name.split("_")[0] for launch in recording.launches}
    assert ran == {op.plan(numel, BF16).transport.value}


# --- with engines ---


def test_auto_chooses_by_size() -> None:
    """The plan, the op's transports and what runs agree; the bits are those of either transport alone."""

    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, LIMIT, dtypes=(BF16,)) as op:
            assert op.transports == (Transport.LSA, Transport.SDMA)
            assert used(op) == [Transport.LSA, Transport.SDMA]
            assert op.plan(LARGE - 1, BF16).transport is Transport.LSA
            assert isinstance(op.plan(SMALL, BF16).config, AllReduceConfig)
            assert isinstance(op.plan(LARGE, BF16).config, SdmaConfig)
            for numel in (SMALL, LARGE, 7, LARGE - 1, LARGE):
                reduces(ctx, op, numel)
            x = fresh(LARGE, BF16, 1, ctx.rank)
            by_engine = op(x)
            for transport in ("lsa", "sdma"):
                with AllReduceOp.create(ctx, LIMIT, transport=transport, dtypes=(BF16,)) as one:
                    require_bits(one(x), by_engine, transport=transport, rank=ctx.rank)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(3, body)


@pytest.mark.parametrize("transport", [*Transport, "lsa", "sdma"])
def test_what_is_asked_for_is_in_force(transport: Transport | str) -> None:
    kind = Transport(transport)

    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, LIMIT, transport=transport, dtypes=(BF16,)) as op:
            assert op.transports == (kind,)
            assert used(op) == [kind, kind]
            for numel in (0, SMALL, LARGE):
                reduces(ctx, op, numel)

    run(2, body)


@pytest.mark.parametrize(
    "options",
    [{"max_bytes": LIMIT - 1}, {"stage": Stage.TWO}, {"size": 1}, {"size": 1, "transport": "sdma"}],
    ids=["no call is large enough", "a stage is asked for", "a world of one", "a world of one by engine"],
)
def test_no_engines_where_no_call_uses_them(options: dict[str, Any]) -> None:
    """Nobody is warned: nothing is missing, even where there are none."""
    options = {"max_bytes": LIMIT, **options}
    size, max_bytes = options.pop("size", 2), options.pop("max_bytes")

    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, max_bytes, dtypes=(BF16,), **options) as op:
            assert op.transports == (Transport.LSA,)
            assert op.plan(max_bytes // 2, BF16).transport is Transport.LSA
            assert not ctx.node.engines._engines
            require_all(op(torch.full((100,), ctx.rank + 1.0, dtype=BF16)), size * (size + 1) // 2)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        world(size, EVERYWHERE).run(body)


# --- without ---

WHERE = {"one rank": ((1, None, None),), "one queue": ((2, 0, 0),), "all": EVERYWHERE}
FIRST = {"one rank": 1, "one queue": 2, "all": 0}  # rank that is named first


@pytest.mark.parametrize("where", WHERE)
def test_auto_falls_back_on_all_ranks_and_warns_once(where: str) -> None:
    def body(ctx: RankContext) -> None:
        with AllReduceOp.create(ctx, LIMIT, dtypes=(BF16,)) as op:
            assert op.transports == (Transport.LSA,)
            assert used(op) == [Transport.LSA, Transport.LSA]
            assert not op._engines
            for numel in (SMALL, LARGE):
                reduces(ctx, op, numel)
            op.self_test()

    with pytest.warns(TransportWarning) as caught:
        world(3, WHERE[where]).run(body)
    (warning,) = caught
    text, rank = str(warning.message), FIRST[where]
    assert text.startswith(f"transport='auto' resolves to 'lsa' for all calls: rank {rank}: queue 0 of rank {rank} ")
    assert "is absent" in text
    assert Path(warning.filename) == Path(__file__)  # who called create


@pytest.mark.parametrize("where", WHERE)
def test_engines_that_were_asked_for_are_an_error_on_all_ranks(where: str) -> None:
    """Case 28: (a) there are none, (b) one rank has none."""

    def body(ctx: RankContext) -> str:
        with pytest.raises(ConfigError) as caught:
            AllReduceOp.create(ctx, LIMIT, transport="sdma", dtypes=(BF16,))
        ctx.barrier()
        assert len(ctx.node.regions) == 0
        return str(caught.value)

    texts = world(3, WHERE[where]).run(body)
    assert len(set(texts)) == 1
    assert texts[0].startswith(f"transport='sdma' must have copy engines on all ranks, but rank {FIRST[where]}: ")
    assert texts[0].endswith("use transport='lsa'")


@pytest.mark.parametrize("name", ["sdmaa", "SDMA", "", "1", None, True])
def test_a_name_that_there_is_not(name: Any) -> None:
    """Case 28 (c), on all ranks or on one: every rank hears of it."""

    def everywhere(ctx: RankContext) -> None:
        AllReduceOp.create(ctx, LIMIT, transport=name, dtypes=(BF16,))

    def on_one(ctx: RankContext) -> None:
        AllReduceOp.create(ctx, LIMIT, transport=name if ctx.rank == 1 else "sdma", dtypes=(BF16,))

    wanted = f"transport={name!r} must be one of 'auto', 'lsa', 'sdma'"
    for error in errors(2, everywhere):
        assert isinstance(error, ConfigError) and str(error) == wanted
    own, other = errors(2, on_one)[::-1]
    assert isinstance(own, ConfigError) and str(own) == wanted
    assert wanted in str(other) and "rank 1 failed at step 'check arguments'" in str(other)


@pytest.mark.parametrize("option", [{"transport": ("sdma", "lsa")}, {"queues": (1, 2)}], ids=["transport", "queues"])
def test_ranks_that_ask_for_different_things(option: dict[str, tuple[Any, Any]]) -> None:
    def body(ctx: RankContext) -> None:
        mine = {"transport": "sdma", **{name: values[ctx.rank] for name, values in option.items()}}
        AllReduceOp.create(ctx, LIMIT, dtypes=(BF16,), **mine)

    for error in errors(2, body):
        assert isinstance(error, ConfigError)
        assert "transport, queues, wire and cco_device must be equal on all ranks; got rank 0: " in str(error)


@pytest.mark.parametrize("queues", [0, 9, True, "2", 1.0])
def test_numbers_of_queues_that_there_are_not(queues: Any) -> None:
    def body(ctx: RankContext) -> None:
        AllReduceOp.create(ctx, LIMIT, transport="sdma", queues=queues, dtypes=(BF16,))

    for error in errors(2, body):
        assert isinstance(error, ConfigError) and "queues=" in str(error) and "1..8" in str(error)


def test_a_stage_with_copy_engines_is_refused() -> None:
    def body(ctx: RankContext) -> None:
        AllReduceOp.create(ctx, LIMIT, transport="sdma", stage=Stage.ONE, dtypes=(BF16,))

    for error in errors(2, body):
        assert isinstance(error, ConfigError)
        assert "must be None with transport='sdma'" in str(error)
