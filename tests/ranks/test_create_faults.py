# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""`create` succeeds on every rank or raises on every rank, whatever step fails, and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from mori_gemm_ar.ar import AllReduceOp, collective, options
from mori_gemm_ar.compile.store import CodeObject, CodeStore, default_store
from mori_gemm_ar.errors import (
    CollectiveError,
    CollectiveSetupError,
    CollectiveTimeout,
    ConfigError,
    IsaError,
    MoriGemmArError,
    RendezvousError,
)
from mori_gemm_ar.runtime import Communicator, RankContext, emulated, symmetric
from tests.ranks.worlds import BF16, errors, require_all, run

WORLD = 3
# Step, object and name of the function that fails there, and what ranks see whose peer failed in mid-step.
FAULTS: dict[str, tuple[str, Any, str, type[Exception]]] = {
    "target": ("check arguments", RankContext, "target", CollectiveSetupError),
    "store": ("load kernels", CodeStore, "get", CollectiveSetupError),
    "parse": ("load kernels", emulated, "kernel_of", CollectiveSetupError),
    "window_map": ("lay out the window", options, "allreduce_window", CollectiveSetupError),
    "unique_id": ("name the communicator", Communicator, "get_unique_id", CollectiveSetupError),
    "init": ("reserve symmetric memory", Communicator, "init", CollectiveSetupError),
    "mapping": ("reserve symmetric memory", symmetric.FlatMemory, "__init__", CollectiveSetupError),
    "alloc_mem": ("allocate the window", Communicator, "alloc_mem", CollectiveSetupError),
    "register_window": ("allocate the window", Communicator, "register_window", CollectiveSetupError),
    "create_dev_comm": ("allocate the window", Communicator, "create_dev_comm", CollectiveSetupError),
    "clear": ("clear the control region", collective.CollectiveOp, "_start_epoch", CollectiveSetupError),
    "submit": ("self-test", emulated.EmulatedTarget, "submit", CollectiveSetupError),
    "record": ("self-test", collective.CollectiveOp, "_raise_failure", CollectiveSetupError),
}
# One rank does these for all of them.
ANY_RANK = ("unique_id", "mapping")


def rank_of_thread() -> int:
    return int(threading.current_thread().name.removeprefix("rank "))


@contextmanager
def failing(owner: Any, name: str, ranks: set[int], error: Exception) -> Iterator[None]:
    """Replace a function by one that raises on these ranks."""
    original = owner.__dict__[name]

    def broken(*args: Any, **options: Any) -> Any:
        if rank_of_thread() in ranks:
            raise error
        return (original.__get__(None, owner) if isinstance(original, classmethod) else original)(*args, **options)

    if isinstance(original, classmethod):
        wrapped: Any = classmethod(lambda cls, *args, **options: broken(*args, **options))
    else:
        wrapped = broken
    setattr(owner, name, wrapped)
    try:
        yield
    finally:
        setattr(owner, name, original)


def attempt(ctx: RankContext) -> MoriGemmArError:
    """A create that fails, and what is left of it once every rank has heard."""
    with pytest.raises(MoriGemmArError) as caught:
        AllReduceOp.create(ctx, 1 << 10, timeout_s=2, dtypes=(BF16,))
    ctx.barrier()
    assert len(ctx.node.regions) == 0
    assert not symmetric._SHARED.get(ctx.node.regions)
    ctx.barrier()
    return caught.value


def works(ctx: RankContext) -> None:
    """The next create and its first call."""
    with AllReduceOp.create(ctx, 1 << 10, dtypes=(BF16,)) as op:
        require_all(op(torch.full((100,), ctx.rank + 1.0, dtype=BF16)), 6, rank=ctx.rank)


@pytest.mark.parametrize("ranks", [{0}, {1}, {0, 1, 2}], ids=["rank 0", "rank 1", "all ranks"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_step_that_fails(fault: str, ranks: set[int]) -> None:
    step, owner, name, seen_by_others = FAULTS[fault]
    injected = OSError("injected")
    if fault in ANY_RANK:
        ranks = {0, 1, 2}

    def body(ctx: RankContext) -> MoriGemmArError:
        ctx.barrier()
        if ctx.rank == 0:
            breaking.__enter__()
        ctx.barrier()
        error = attempt(ctx)
        if ctx.rank == 0:
            breaking.__exit__(None, None, None)
        ctx.barrier()
        works(ctx)
        return error

    breaking = failing(owner, name, ranks, injected)
    found = run(WORLD, body)
    hit = {rank for rank, error in enumerate(found) if error.__cause__ is injected}
    assert hit == ranks or (hit and fault in ANY_RANK)
    for rank, error in enumerate(found):
        if rank in hit:
            assert str(error) == f"rank {rank} failed at step {step!r}: OSError: injected"
            assert isinstance(error, CollectiveSetupError) and error.__cause__ is injected
        else:
            assert type(error) is seen_by_others
            if seen_by_others is CollectiveSetupError:
                assert str(error).startswith(f"rank {min(hit)} failed at step {step!r}: OSError: injected")
            else:
                assert f"rank {min(hit)} " in str(error)


def test_without_a_fault_the_same_procedure_succeeds() -> None:
    """Negative control: `attempt` expects an error and must not find one by itself."""
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        run(WORLD, attempt)


def test_a_wrong_sum_in_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers whose memory is not reached: the kernel runs, and its result is looked at."""
    submit = emulated.EmulatedTarget.submit

    def body(ctx: RankContext) -> MoriGemmArError:
        monkeypatch.setattr(emulated.EmulatedTarget, "submit", lambda target, pipeline: None)
        ctx.barrier()
        error = attempt(ctx)
        monkeypatch.setattr(emulated.EmulatedTarget, "submit", submit)
        ctx.barrier()
        works(ctx)
        return error

    for error in run(WORLD, body):
        assert isinstance(error, CollectiveError)
        text = "self-test of the 1-stage all-reduce by load and store gave 0.0 instead of -54.0 at element 0; peers'"
        assert text in str(error)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_rank(kind: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt itself arrives; the others learn that the rank has ended."""
    get = CodeStore.get

    def interrupted(store: CodeStore, *what: Any) -> CodeObject:
        if rank_of_thread() == 1:
            raise kind
        return get(store, *what)

    monkeypatch.setattr(CodeStore, "get", interrupted)
    regions: list[Any] = []

    def body(ctx: RankContext) -> None:
        regions.append(ctx.node.regions)
        AllReduceOp.create(ctx, 1 << 10, dtypes=(BF16,))

    first, second, third = errors(WORLD, body)
    assert isinstance(second, kind)
    for error in (first, third):
        assert isinstance(error, RendezvousError)
        assert "rank 1 ended before step 'load kernels'" in str(error)
    assert len(regions[0]) == 0


# --- code objects that are not ours ---

TEXTS: dict[str, tuple[Callable[[str], str], str]] = {
    "other_target": (lambda isa: isa.replace("gfx950", "gfx942"), r"target='.*gfx942' must end in gfx950; rebuild"),
    "truncated": (lambda isa: isa[: len(isa) // 2], r"ISA text must end with its metadata block; it is truncated"),
    "empty": (lambda isa: "", r"target='' must end in gfx950"),
    "x86": (lambda isa: "\t.text\nmain:\n\tmovl\t$0, %eax\n\tret\n", r"label 'main' stands outside a kernel"),
    "not_text": (lambda isa: "\x7fELF\x02\x01", r"line 1: .*stands outside a kernel"),
    "unknown_directive": (lambda isa: isa.replace("\t.text", "\t.txet", 1), r"directive '.txet' is not known"),
    "unknown_modifier": (
        lambda isa: re.sub(r"(global_load_dword .*)", r"\1 sc3", isa, count=1),
        r"line \d+: global_load_dword .* sc3: modifier 'sc3' is not known",
    ),
    "unknown_mnemonic": (
        lambda isa: isa.replace("s_endpgm", "s_frobnicate s0\n\ts_endpgm", 1),
        r"line \d+: s_frobnicate s0: instruction 's_frobnicate' is not known to the emulator",
    ),
}


class ForeignStore:
    """A store whose entries were tampered with, on some ranks."""

    def __init__(self, change: Callable[[str], str], ranks: set[int]) -> None:
        self._change, self._ranks, self._store = change, ranks, default_store()

    def get(self, *what: Any) -> CodeObject:
        code = self._store.get(*what)
        return dataclasses.replace(code, isa=self._change(code.isa)) if rank_of_thread() in self._ranks else code


@pytest.mark.parametrize("ranks", [{0, 1, 2}, {1}], ids=["all ranks", "rank 1"])
@pytest.mark.parametrize("name", TEXTS)
def test_foreign_code(name: str, ranks: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    change, message = TEXTS[name]

    def body(ctx: RankContext) -> MoriGemmArError:
        monkeypatch.setattr(collective, "default_store", lambda: ForeignStore(change, ranks))
        ctx.barrier()
        error = attempt(ctx)
        monkeypatch.setattr(collective, "default_store", default_store)
        ctx.barrier()
        works(ctx)
        return error

    for rank, error in enumerate(run(WORLD, body)):
        if rank in ranks:
            assert isinstance(error, IsaError)
            assert re.search(message, str(error)), error
        else:
            assert isinstance(error, CollectiveSetupError | CollectiveTimeout)
            assert "rank 1" in str(error)


def test_code_with_other_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    def drop_last_argument(isa: str) -> str:
        start = isa.rindex("      - .offset:")
        return isa[:start] + isa[isa.index("    .group_segment_fixed_size", start) :]

    def body(ctx: RankContext) -> MoriGemmArError:
        monkeypatch.setattr(collective, "default_store", lambda: ForeignStore(drop_last_argument, {0, 1, 2}))
        ctx.barrier()
        return attempt(ctx)

    for error in run(WORLD, body):
        assert isinstance(error, ConfigError)
        assert re.fullmatch(r"arguments=12 must be 11, as the code object says", str(error))
