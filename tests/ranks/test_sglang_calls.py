# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""SGLang plugin: armed layers of a stand-in model against its split path, call by call."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mori_gemm_ar.errors import CollectiveMismatch, ConfigError
from mori_gemm_ar.integrations import torch_ops
from mori_gemm_ar.integrations.sglang import hooks, try_fused
from mori_gemm_ar.integrations.sglang.construct import arm
from mori_gemm_ar.integrations.sglang.gates import Forward
from mori_gemm_ar.integrations.sglang.settings import Settings
from mori_gemm_ar.runtime import LocalWorld, RankContext
from tests.ranks.sglang_standins import SETTINGS, StandinServer, call, is_armed, model_of, relative_error, rows

ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = 3e-3  # one rounding to bf16 per rank and one of the sum, as the split path


def armed(ctx: RankContext, settings: Settings = SETTINGS, quants: tuple[str, ...] = ("blockscale",)) -> Any:
    """Model, server and adapter of a rank; all layers are armed."""
    model, server = model_of(ctx, quants), StandinServer(ctx)
    adapter = arm(model, server, settings)
    assert adapter is not None
    return model, server, adapter


def test_sglang_fuses_layers_of_two_recipes(caplog: pytest.LogCaptureFixture) -> None:
    """Three layers on two ops; results are the split path's, and were made by the op, not by it."""
    caplog.set_level(logging.INFO, "mori_gemm_ar.sglang")
    quants = ("blockscale", "mxfp8", "blockscale")

    def body(ctx: RankContext) -> None:
        model, _, adapter = armed(ctx, quants=quants)
        assert len(adapter.ops) == 2 and is_armed(model) == [f"layers.{i}.wo_b" for i in range(3)]
        for count in (1, 24, 7):
            for index, attention in enumerate(model.layers):
                layer, x = attention.wo_b, rows(count, index, ctx.rank)
                out = try_fused(layer, x)
                assert out is not None and layer.splits == 0
                error = relative_error(out, layer(x)[0])
                assert error < TOLERANCE, f"layer={index}, rows={count}, rank={ctx.rank}: relL2 {error:.2e}"
                layer.splits = 0
        assert adapter.journal.counters()["rows_fused"] == {1: 3, 24: 3, 7: 3}
        names = torch_ops.registered_ops()["gemm_all_reduce"]
        assert sum(name.startswith(f"sglang/{ctx.rank}/") for name in names) == 2
        adapter.close()
        adapter.close()
        assert is_armed(model) == [] and try_fused(model.layers[0].wo_b, rows(1, 0, 0)) is None
        ctx.barrier()
        assert len(ctx.node.regions) == 0 and torch_ops.registered_ops()["gemm_all_reduce"] == ()

    LocalWorld(2).run(body)
    assert len([r for r in caplog.records if "armed on 3 layers: layers.0.wo_b, layers.1.wo_b" in r.message]) == 1
    windows = [r.message for r in caplog.records if "window of" in r.message]
    assert len(windows) == 2 and "rows 1 to 24, wire exact, mode auto" in windows[0] and "with one output" in windows[0]


def test_sglang_result_outlives_the_next_call_but_not_the_one_after() -> None:
    """Two outputs; with `copy` a result is the caller's own."""

    def body(ctx: RankContext) -> None:
        for copy in (False, True):
            model, _, adapter = armed(ctx, replace(SETTINGS, copy=copy))
            layer = model.layers[0].wo_b
            first = call(layer, rows(4, 1, ctx.rank))
            assert first is not None
            kept = first.clone()
            call(layer, rows(4, 2, ctx.rank))
            assert torch.equal(first, kept)
            call(layer, rows(4, 3, ctx.rank))
            assert torch.equal(first, kept) is copy
            adapter.close()

    LocalWorld(2).run(body)


DECLINES: list[tuple[str, str, Any]] = [
    ("the caller defers the sum", "site", {"deferred": True}),
    ("the caller says where to write", "site", {"own_output": True}),
    ("the pass may reduce in another number format", "site", {"other_reduce": True}),
    ("sequence parallelism is active", "flags", Forward(sequence_parallel=True)),
    ("a later step reduces", "flags", Forward(reduce_skipped=True)),
    ("graph capture", "flags", Forward(capturing=True)),
    ("use_decode_attn_tp is set", "layer", {"use_decode_attn_tp": True}),
    ("reduce_results was switched off", "layer", {"reduce_results": False}),
    ("the input is not a plain tensor", "x", (torch.ones(4, 128), torch.ones(4, 1))),
    ("the input is not bf16", "x", torch.ones(4, 128)),
    ("the input is not [M, K]", "x", torch.ones(4, 64).bfloat16()),
    ("the input is not [M, K]", "x", torch.ones(2, 2, 128).bfloat16()),
    ("the input has no rows", "x", torch.ones(0, 128).bfloat16()),
    ("fewer rows than min_m", "x", torch.ones(2, 128).bfloat16()),
    ("more rows than the window has room for", "x", torch.ones(25, 128).bfloat16()),
]


def test_sglang_declines_each_row_of_the_gates(caplog: pytest.LogCaptureFixture) -> None:
    """Each reason alone is enough, is counted, and is logged once; the next call is fused again."""
    caplog.set_level(logging.INFO, "mori_gemm_ar.sglang")

    def body(ctx: RankContext) -> None:
        model, server, adapter = armed(ctx, replace(SETTINGS, min_m=3))
        layer, good = model.layers[0].wo_b, rows(4, 0, ctx.rank)
        for round_ in range(2):
            for reason, what, value in DECLINES:
                site, x = {}, good
                if what == "site":
                    site = value
                elif what == "flags":
                    server.flags = value
                elif what == "layer":
                    vars(layer).update(value)
                else:
                    x = value
                assert call(layer, x, **site) is None, f"reason={reason}, round={round_}"
                server.flags, layer.use_decode_attn_tp, layer.reduce_results = Forward(), False, True
        assert call(layer, good) is not None
        counted = adapter.journal.counters()
        expected = {reason: 2 * sum(r == reason for r, _, _ in DECLINES) for reason, _, _ in DECLINES}
        assert counted["reasons"] == expected and counted["fused"] == 1 and counted["split"] == 2 * len(DECLINES)
        assert "1 calls fused, 30 split (the input is not [M, K]: 4" in adapter.journal.summary()
        adapter.close()

    LocalWorld(2).run(body)
    logged = [r.message for r in caplog.records if r.message.startswith("split from now on")]
    assert len(logged) == len({reason for reason, _, _ in DECLINES})


def test_sglang_capture_is_fused_when_asked_for() -> None:
    def body(ctx: RankContext) -> None:
        model, server, adapter = armed(ctx, replace(SETTINGS, capture=True))
        server.flags = Forward(capturing=True)
        assert call(model.layers[0].wo_b, rows(4, 0, ctx.rank)) is not None
        adapter.close()

    LocalWorld(2).run(body)


def test_sglang_raises_after_the_decision_to_fuse() -> None:
    """Whatever goes wrong then leaves as it is: the split path is not taken."""

    def body(ctx: RankContext) -> None:
        model, _, adapter = armed(ctx)
        layer = model.layers[0].wo_b
        layer.aiter_bpreshuffled = False
        hooks._weights_processed(None, None, layer)
        with pytest.raises(ConfigError, match=r"weight of layers\.0\.wo_b must stay as it was .* it is now nothing"):
            call(layer, rows(4, 0, ctx.rank))
        layer.aiter_bpreshuffled = True
        hooks._weights_processed(None, None, layer)
        assert call(layer, rows(4, 0, ctx.rank)) is not None

        def broken(*_: Any) -> Any:
            raise RuntimeError("boom")

        adapter.ops[0].op.quantize = broken
        with pytest.raises(RuntimeError, match="boom"):
            call(layer, rows(4, 0, ctx.rank))
        assert layer.splits == 0
        adapter.close()

    LocalWorld(2).run(body)


def test_sglang_serves_from_another_thread_than_the_one_that_loaded() -> None:
    def body(ctx: RankContext) -> None:
        model, _, adapter = armed(ctx)
        layer = model.layers[0].wo_b
        out = ctx.spawn(lambda: call(layer, rows(4, 0, ctx.rank))).join()
        assert relative_error(out, layer(rows(4, 0, ctx.rank))[0]) < TOLERANCE
        adapter.ops[0].op.bind()
        adapter.close()

    LocalWorld(2).run(body)


def arm_and_close(ctx: RankContext) -> None:
    """What a server does at its start and end."""
    armed(ctx)[2].close()


def test_sglang_needs_no_compiler_once_the_kernels_are_there() -> None:
    """A fresh process that finds them in the store loads neither FlyDSL nor what only the command line needs."""
    LocalWorld(2).run(arm_and_close)
    code = (
        "import sys; from mori_gemm_ar.runtime import LocalWorld; from tests.ranks import test_sglang_calls as tests; "
        "LocalWorld(2).run(tests.arm_and_close); "
        "print(*{name.partition('.')[0] for name in sys.modules} & {'flydsl', 'typer', 'rich', 'mori', 'sglang'})"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, timeout=120)
    assert run.returncode == 0 and run.stdout == "\n", run.stdout + run.stderr


# ---- debugging -----------------------------------------------------------------------------------------------------
def test_sglang_check_compares_on_all_ranks_and_switches_off_together(caplog: pytest.LogCaptureFixture) -> None:
    """Every second call is compared; a weight that differs on one rank from what was armed is found on both."""
    caplog.set_level(logging.INFO, "mori_gemm_ar.sglang")

    def body(ctx: RankContext) -> None:
        model, _, adapter = armed(ctx, replace(SETTINGS, check=2))
        layer = model.layers[0].wo_b
        for index in range(4):
            assert call(layer, rows(5, index, ctx.rank)) is not None
        counted = adapter.journal.counters()
        assert layer.splits == 2 and counted["checks"] == 2 and counted["worst_check"] < TOLERANCE
        if ctx.rank == 1:
            layer.plain = layer.plain.flip(0)
        assert call(layer, rows(5, 4, ctx.rank)) is not None
        out, split = call(layer, rows(5, 5, ctx.rank)), layer(rows(5, 5, ctx.rank))[0]
        assert out is not None and torch.equal(out, split), "the call that found it returns the split result"
        assert call(layer, rows(5, 6, ctx.rank)) is None
        assert adapter.journal.counters()["reasons"] == {"a comparison failed in layers.0.wo_b": 1}
        adapter.close()

    LocalWorld(2).run(body)
    assert len([r for r in caplog.records if "checked layers.0.wo_b, call 2, 5 rows: rank 0: relL2" in r.message]) == 1
    errors = [r.message for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 2 and all("relL2 must be at most 0.01" in text and "rank 1: relL2" in text for text in errors)


def test_sglang_check_finds_ranks_that_hold_different_bits(caplog: pytest.LogCaptureFixture) -> None:
    def body(ctx: RankContext) -> None:
        model, _, adapter = armed(ctx, replace(SETTINGS, check=1))
        layer, fused = model.layers[0].wo_b, adapter.ops[0]
        run = fused.run

        def one_bit_off(layer: Any, x: torch.Tensor) -> torch.Tensor:
            out = run(layer, x)
            if ctx.rank == 1:
                out.view(torch.int16)[0, 0] ^= 1
            return out

        Tampered = type("Tampered", (), {"run": staticmethod(one_bit_off), "shape": fused.shape, "op": fused.op})
        adapter.layers[0].fused = Tampered
        call(layer, rows(5, 0, ctx.rank))
        assert call(layer, rows(5, 1, ctx.rank)) is None
        adapter.close()

    LocalWorld(2).run(body)
    assert sum("ranks hold different bits" in r.message for r in caplog.records) == 2


def test_sglang_agree_names_ranks_that_make_different_calls() -> None:
    """Rows, layer and decision; every rank raises instead of waiting for the other."""

    def body(ctx: RankContext) -> None:
        for deviation in ("rows", "layer", "decision"):
            model, server, adapter = armed(ctx, replace(SETTINGS, agree=True), ("blockscale", "blockscale"))
            first, second = (attention.wo_b for attention in model.layers)
            assert call(first, rows(4, 0, ctx.rank)) is not None
            count, layer = 4, first
            if ctx.rank == 1:
                count = 5 if deviation == "rows" else 4
                layer = second if deviation == "layer" else first
                server.flags = Forward(reduce_skipped=deviation == "decision")
            with pytest.raises(CollectiveMismatch, match=r"must be equal on all ranks: rank 0: .*fused.*; rank 1: "):
                call(layer, rows(count, 1, ctx.rank))
            adapter.close()

    LocalWorld(2).run(body)


def test_sglang_histogram(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mori_gemm_ar.sglang")

    def body(ctx: RankContext) -> None:
        model, _, adapter = armed(ctx, replace(SETTINGS, histogram=3))
        for count in (4, 25, 4, 4):
            call(model.layers[0].wo_b, rows(count, 0, ctx.rank))
        adapter.close()

    LocalWorld(2).run(body)
    shown = [r.message for r in caplog.records if r.message.startswith("after ")]
    assert shown == ["after 3 calls, fused: 4 rows: 2", "after 3 calls, split: 25 rows: 1"]
