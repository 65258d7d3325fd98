# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""`GemmAllReduceOp.create` succeeds on every rank or raises on every rank: steps that fail, ranks that disagree, copy
engines and kernels with faults; and what comes after it compiles nothing."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from mori_gemm_ar.ar import collective
from mori_gemm_ar.compile import build
from mori_gemm_ar.compile.store import CodeObject, CodeStore, default_store
from mori_gemm_ar.emulator import EVERYWHERE, EngineFaults, EngineSettings
from mori_gemm_ar.errors import CollectiveError, CollectiveSetupError, ConfigError, MoriGemmArError
from mori_gemm_ar.layout import BLayout, Recipe, Tile
from mori_gemm_ar.layout.fused_window import FusedWindow
from mori_gemm_ar.layout.gemm import GemmConfig
from mori_gemm_ar.op import GemmAllReduceOp, Mode
from mori_gemm_ar.op import op as op_module
from mori_gemm_ar.runtime import Communicator, LocalWorld, RankContext, emulated, symmetric
from tests.ranks.layers import FUSED_LSA, FUSED_SDMA, FUSED_SDMA_PULLED, SPLIT_LSA, K, N, Way, create, layer
from tests.ranks.test_create_faults import failing, rank_of_thread
from tests.ranks.worlds import now, require_bits, run

WORLD = 2
TIMEOUT_S = 2


def attempt(ctx: RankContext, way: Way = FUSED_SDMA, **more: Any) -> MoriGemmArError:
    """A create that fails, and what is left of it once every rank has heard: no memory, engine or queue."""
    start = now(ctx)
    with pytest.raises(MoriGemmArError) as caught:
        create(ctx, way, more.pop("m_max", 300), timeout_s=TIMEOUT_S, **more)
    assert now(ctx) - start < 4 * TIMEOUT_S
    ctx.barrier()
    assert len(ctx.node.regions) == 0
    assert not symmetric._SHARED.get(ctx.node.regions)
    assert ctx.node.engines.report() == [] and not ctx.node.engines._engines
    ctx.barrier()
    return caught.value


def works(ctx: RankContext, way: Way = FUSED_SDMA) -> None:
    """The next create and its first call."""
    with create(ctx, way, 300) as op:
        data = layer(ctx.size, 257, 1)
        require_bits(op(*data.of(ctx.rank)), data.expected(), rank=ctx.rank)


# --- steps that fail ---

# Step, object and name of the function that fails there.
STEPS: dict[str, tuple[str, Any, str]] = {
    "spec": ("check arguments", op_module, "layer_spec"),
    "target": ("check arguments", RankContext, "target"),
    "store": ("load kernels", CodeStore, "get"),
    "parse": ("load kernels", emulated, "kernel_of"),
    "window_map": ("lay out the window", FusedWindow, "map"),
    "unique_id": ("name the communicator", Communicator, "get_unique_id"),
    "init": ("reserve symmetric memory", Communicator, "init"),
    "mapping": ("reserve symmetric memory", symmetric.FlatMemory, "__init__"),
    "alloc_mem": ("allocate the window", Communicator, "alloc_mem"),
    "register_window": ("allocate the window", Communicator, "register_window"),
    "create_dev_comm": ("allocate the window", Communicator, "create_dev_comm"),
    "clear": ("clear the control region", GemmAllReduceOp, "_start_epoch"),
    "prepare": ("prepare the self-test", op_module.LayerSelfTest, "prepare"),
    "submit": ("self-test", GemmAllReduceOp, "_run_test"),
    "product": ("self-test of the product", op_module.LayerSelfTest, "_check_product"),
    "scatter": ("self-test of the scatter", op_module.LayerSelfTest, "_check_scatter"),
    "result": ("self-test of the result", op_module.LayerSelfTest, "_check_result"),
}
ONE_FOR_ALL = ("unique_id", "mapping")  # whichever rank comes first


@pytest.mark.parametrize("who", ["one rank", "all ranks"])
@pytest.mark.parametrize("fault", STEPS)
def test_a_step_that_fails(fault: str, who: str) -> None:
    """The error that was injected arrives on every rank, all is given back, and the next create works."""
    step, owner, name = STEPS[fault]
    injected = OSError("injected")
    ranks = {0, 1} if who == "all ranks" or fault in ONE_FOR_ALL else {1}
    breaking = failing(owner, name, ranks, injected)

    def body(ctx: RankContext) -> MoriGemmArError:
        ctx.barrier()
        if ctx.rank == 0:
            breaking.__enter__()
        ctx.barrier()
        error = attempt(ctx)
        if ctx.rank == 0:
            breaking.__exit__(None, None, None)
        ctx.barrier()
        return error

    found = run(WORLD, body)
    hit = {rank for rank, error in enumerate(found) if error.__cause__ is injected}
    assert hit == ranks or (hit and fault in ONE_FOR_ALL)
    for rank, error in enumerate(found):
        assert isinstance(error, CollectiveSetupError)
        failed = rank if rank in hit else min(hit)
        assert str(error).startswith(f"rank {failed} failed at step {step!r}: OSError: injected"), str(error)


def test_the_next_create_works_and_without_a_fault_nothing_fails() -> None:
    """Negative control too: what expects an error must not find one by itself."""

    def body(ctx: RankContext) -> None:
        for name in ("alloc_mem", "create_dev_comm"):
            breaking = failing(Communicator, name, {1}, OSError("injected"))
            ctx.barrier()
            if ctx.rank == 0:
                breaking.__enter__()
            ctx.barrier()
            attempt(ctx)
            if ctx.rank == 0:
                breaking.__exit__(None, None, None)
            ctx.barrier()
            works(ctx)

    run(WORLD, body)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        run(WORLD, attempt)


# --- ranks that disagree ---

OTHER: dict[str, dict[str, Any]] = {
    "n": {"n": N + 16},
    "k": {"k": 2 * K},
    "m_max": {"m_max": 301},
    "quant": {"quant": "ptpc"},
    "b_layout": {"b_layout": "preshuffled"},
    "mode": {"mode": "fused-lsa"},
    "wire": {"wire": "fp8"},
    "gather": {"tuning": FUSED_SDMA_PULLED.tuning()},
    "chunks": {"tuning": FUSED_SDMA.tuning(chunks=2)},
    "stripe": {"tuning": FUSED_SDMA.tuning(stripe=1)},
    "tile": {"tuning": dataclasses.replace(FUSED_SDMA.tuning(), tile=Tile.M256_N128)},
    "queues": {"tuning": FUSED_SDMA.tuning(queues=2)},
    "outputs": {"tuning": FUSED_SDMA.tuning(outputs=1)},
    "batch_invariant": {"tuning": FUSED_SDMA.tuning(batch_invariant=True)},
}


@pytest.mark.parametrize("name", OTHER)
def test_a_rank_with_another_argument(name: str) -> None:
    """All ranks hear which rank differs, and all specs, before anything is loaded or allocated."""
    usual = {
        "n": N, "k": K, "m_max": 300, "quant": "blockscale", "b_layout": "row",
        "mode": "fused-sdma", "wire": "exact", "tuning": FUSED_SDMA.tuning(),
    }  # fmt: skip

    def body(ctx: RankContext) -> str:
        asked = {**usual, **(OTHER[name] if ctx.rank == 2 else {})}
        with pytest.raises(MoriGemmArError) as caught:
            GemmAllReduceOp.create(ctx, device="emulated", **asked)
        assert len(ctx.node.regions) == 0
        return str(caught.value)

    for text in run(3, body):
        assert "n, k, m_max, quant, b_layout, mode, wire, tuning" in text and "rank 2" in text, text
        assert text.count("LayerSpec(") == 3, text


# --- copy engines with faults ---

OWN = r"rank 1 waited 2 s for its own copy engine to rank 0 at the (scatter|gather) .*: the engine is dead, stuck"
LEG = r"self-test of fused-sdma, \d chunks, gather \w+, (scatter|gather) leg from rank 1 to rank 0: "
WRONG = LEG + r"\d+ of \d+ elements are wrong, the first at row \d+, column \d+: 0\.0 instead of"
NO_DATA = LEG + "no byte arrived: copy engines do nothing where mori was built or started without"
SWITCHES = {
    "absent": r"mode='fused-sdma' must have copy engines on all ranks, but .*rank 1: queue \d of rank 1 to peer 0 is "
    r"absent.*; use mode='split-lsa'",
    "no_data": NO_DATA,
    "dead": OWN,
    "stalled": OWN,
    "late": OWN,
    "torn": WRONG,
    "lost": OWN,
}
each_pushed_way = pytest.mark.parametrize("way", [FUSED_SDMA, FUSED_SDMA_PULLED], ids=str)


def failing_engines(switch: str, where: Any, way: Way, **tuning: Any) -> list[MoriGemmArError]:
    """What `create` raises on each rank; `late` begins after the budget."""
    faults = EngineFaults(**{switch: where}, late_ticks=3 * TIMEOUT_S * 100_000_000)
    world = LocalWorld(WORLD, engines=EngineSettings(faults=faults))
    return world.run(lambda ctx: attempt(ctx, way, tuning=tuning, m_max=2 * 256))


@each_pushed_way
@pytest.mark.parametrize("switch", SWITCHES)
def test_engines_with_a_fault(switch: str, way: Way) -> None:
    """All ranks raise, with leg and cause of what each has met or heard of; nothing stays."""
    wanted = SWITCHES[switch].replace("rank 1", r"rank \d").replace("rank 0", r"rank \d").replace("peer 0", r"peer \d")
    for error in failing_engines(switch, EVERYWHERE, way):
        assert re.search(wanted, str(error)), str(error)
        assert isinstance(error, ConfigError if switch == "absent" else CollectiveError)


@each_pushed_way
@pytest.mark.parametrize("switch", SWITCHES)
def test_one_queue_with_a_fault(switch: str, way: Way) -> None:
    """The second of two, from rank 1 to rank 0 alone: all ranks hear of this leg."""
    # A queue that carries a part of a leg shows as a part that is missing.
    wanted = f"{NO_DATA}|{WRONG}" if switch == "no_data" else SWITCHES[switch]
    for error in failing_engines(switch, ((1, 0, 1),), way, queues=2):
        assert re.search(wanted, str(error)), str(error)


def test_a_mode_without_engines_does_not_need_them() -> None:
    """Where `create` has refused a mode that does."""
    engines = EngineSettings(faults=EngineFaults(absent=EVERYWHERE))

    def body(ctx: RankContext) -> None:
        assert "must have copy engines on all ranks" in str(attempt(ctx))
        for way in (SPLIT_LSA, FUSED_LSA):
            works(ctx, way)

    LocalWorld(WORLD, engines=engines).run(body)


# --- kernels that are not what they should be ---


class Tampered:
    """A store one of whose kernels ends before it has done anything, on some ranks."""

    def __init__(self, prefix: str, ranks: set[int]) -> None:
        self._prefix, self._ranks, self._store = prefix, ranks, default_store()
        self.hit = 0

    def get(self, config: Any, *form: Any) -> CodeObject:
        code = self._store.get(config, *form)
        if not config.key.startswith(self._prefix) or rank_of_thread() not in self._ranks:
            return code
        self.hit += 1
        entry = re.search(rf"^{re.escape(code.kernel)}:.*$", code.isa, re.MULTILINE)
        assert entry is not None
        return dataclasses.replace(code, isa=f"{code.isa[: entry.end()]}\n\ts_endpgm{code.isa[entry.end() :]}")


KERNELS = [
    (FUSED_SDMA, "fused_sdma_"),
    (FUSED_SDMA, "sdma_reduce_"),
    (FUSED_SDMA, "sdma_scatter_"),  # the drain
    (FUSED_SDMA, "gemm_small_blockscale_m16"),
    (FUSED_SDMA_PULLED, "tail_sum_"),
    (FUSED_SDMA_PULLED, "tail_pull_"),
    (FUSED_LSA, "fused_lsa_"),
    (SPLIT_LSA, "lsa_allreduce_w2_bf16_1stage"),
]


@pytest.mark.parametrize(("way", "kernel"), KERNELS, ids=[f"{way}-{kernel}" for way, kernel in KERNELS])
def test_a_damaged_kernel_is_found(way: Way, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On rank 1 alone: every rank raises."""
    store = Tampered(kernel, {1})

    def body(ctx: RankContext) -> MoriGemmArError:
        monkeypatch.setattr(collective, "default_store", lambda: store)
        return attempt(ctx, way)

    for error in run(WORLD, body):
        assert isinstance(error, CollectiveError | CollectiveSetupError)
        assert "self-test" in str(error) or "waited 2 s for rank" in str(error), str(error)
    assert store.hit


# --- what comes after ---


def test_nothing_is_compiled_after_create(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store and compiler are gone once the op exists, and every M runs; frozen or not."""

    def gone(*_: Any) -> CodeObject:
        raise AssertionError("something asked for a code object after create")

    def body(ctx: RankContext) -> None:
        with create(ctx, FUSED_SDMA, 300) as op:
            ctx.barrier()
            monkeypatch.setattr(CodeStore, "get", gone)
            monkeypatch.setattr(build, "build", gone)
            for call, m in enumerate((300, 1, 17, 33, 100, 0)):
                if call == 3:
                    op.freeze()
                data = layer(WORLD, m, call)
                require_bits(op(*data.of(ctx.rank)), data.expected(), m=m, rank=ctx.rank)
            ctx.barrier()
            monkeypatch.undo()

    run(WORLD, body)


def test_a_frozen_op_refuses_what_it_would_have_to_compile() -> None:
    """Before, it would fetch it; the op goes on with what it has."""
    other = GemmConfig(Recipe.BLOCKSCALE, N, 4 * K, Tile.M128_N256, BLayout.ROW)

    def body(ctx: RankContext) -> None:
        with create(ctx, SPLIT_LSA, 8) as op:
            tile = GemmConfig(Recipe.BLOCKSCALE, N, K, Tile.M128_N256, op.spec.b_layout)
            del op._codes[tile]
            assert op._codes[tile].key and tile in op._codes
            op.freeze()
            with pytest.raises(
                ConfigError, match=rf"config={other.key} must be loaded before freeze\(\); create the op"
            ):
                op._codes[other]
            data = layer(WORLD, 8, 0)
            require_bits(op(*data.of(ctx.rank)), data.expected(), rank=ctx.rank)

    run(WORLD, body)


def test_a_mode_that_needs_engines_where_auto_does_not() -> None:
    """Without engines "auto" resolves to split-lsa with a warning, and `plan` says so."""
    engines = EngineSettings(faults=EngineFaults(absent=EVERYWHERE))

    def body(ctx: RankContext) -> None:
        auto = dataclasses.replace(FUSED_SDMA, mode=Mode.SPLIT_LSA)
        with GemmAllReduceOp.create(
            ctx, n=N, k=K, m_max=300, quant="blockscale", b_layout="row", device="emulated", tuning=auto.tuning()
        ) as op:
            assert {op.plan(m).mode for m in (1, 100, 256, 300)} == {Mode.SPLIT_LSA}
            data = layer(WORLD, 300, 2)
            require_bits(op(*data.of(ctx.rank)), data.expected(), rank=ctx.rank)

    with pytest.warns(UserWarning, match=r"mode='auto' resolves to 'split-lsa' for all calls: rank 0: queue"):
        LocalWorld(WORLD, engines=engines).run(body)
