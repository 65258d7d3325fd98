# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Jobs of ranks that arm the SGLang plugin: a fault on one rank at each step, and what all of them end with."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist

import mori_gemm_ar.op as fused_op
from mori_gemm_ar.errors import CollectiveError, RendezvousError
from mori_gemm_ar.integrations import torch_ops
from mori_gemm_ar.integrations.sglang import construct
from mori_gemm_ar.integrations.sglang.journal import logger
from mori_gemm_ar.runtime import ProcessWorld, World, select
from tests.ranks.nursery import Rank
from tests.ranks.process_jobs import held
from tests.ranks.sglang_standins import SETTINGS, StandinServer, call, is_armed, model_of, relative_error, rows

WHO = 2  # the rank where things go wrong
LATE_S = 1.0  # how long the others wait for a rank that does not come


class Injected(OSError):
    """What a step fails with."""


class ProcessServer(StandinServer):
    """Over the default group."""

    def group(self, timeout_s: float) -> World:
        """As of SGLang's group."""
        return ProcessWorld.from_group(None, timeout_s=timeout_s)


Scenario = tuple[str, Callable[[Any, StandinServer], Any]]


def _raising(*_: Any, **__: Any) -> Any:
    raise Injected("boom")


def _fails(owner: Any, name: str) -> Callable[[Any, StandinServer], Any]:
    return lambda model, server: mock.patch.object(owner, name, _raising)


def _sets(change: Callable[[Any, StandinServer], None]) -> Callable[[Any, StandinServer], Any]:
    def apply(model: Any, server: StandinServer) -> Any:
        change(model, server)
        return nullcontext()

    return apply


def _wo_b(model: Any) -> Any:
    return model.layers[0].wo_b


# What befalls rank WHO, and a part of the reason that every rank logs.
FAULTS: dict[str, tuple[str, Callable[[Any, StandinServer], Any]]] = {
    "refusal": ("take part: rank 2: tp_size=9", _sets(lambda m, s: setattr(s, "reason", "tp_size=9"))),
    "max_rows": ("take part: rank 2: Injected: boom", _fails(ProcessServer, "max_rows")),
    "too few rows": ("take part: rank 2: max_m=24 must be at least min_m=25", _sets(lambda m, s: None)),
    "device": (
        "take part: rank 2: device='rocm' must be able to run here",
        lambda m, s: mock.patch.object(select, "probe", return_value=select.Offers(gpus=("gfx942",))),
    ),
    "version": ("the version of SGLang is '0.5.23' on rank 0, ", _sets(lambda m, s: setattr(s, "version", "0.6"))),
    "host": ("the host is ", lambda m, s: mock.patch.object(construct.socket, "gethostname", return_value="elsewhere")),
    "rows": ("max_m is 24 on rank 0, 24 on rank 1, 16 on rank 2", _sets(lambda m, s: None)),
    "environment": ("the environment is Settings(", _sets(lambda m, s: None)),
    "no layer": ("look at the layers: rank 2: the model must have", _sets(lambda m, s: delattr(m, "layers"))),
    "look": ("look at the layers: rank 2: Injected: boom", _fails(construct, "named_layers")),
    "a layer's flag": (
        "no layer can be fused; rank 2: nothing tells the order of its weight",
        _sets(lambda m, s: setattr(_wo_b(m), "aiter_bpreshuffled", False)),
    ),
    "a layer's shape": (
        "no layer can be fused; ranks hold different shapes",
        _sets(lambda m, s: vars(_wo_b(m)).update(keep_plain_weight_layout=True, aiter_bpreshuffled=False)),
    ),
    "supports": ("rank 2: Injected: boom", _fails(fused_op.GemmAllReduceOp, "supports")),
    "window": ("rank 2: Injected: boom", _fails(fused_op.GemmAllReduceOp, "window_bytes_for")),
    "memory": ("boom", lambda m, s: mock.patch("mori_gemm_ar.runtime.shared_memory.mmap.mmap", _raising)),
    "freeze": ("warm up: rank 2: Injected: boom", _fails(fused_op.GemmAllReduceOp, "freeze")),
    "register": ("register: rank 2: Injected: boom", _fails(torch_ops, "register_op")),
}


# What is set otherwise on rank WHO.
CHANGES: dict[str, dict[str, Any]] = {
    "max_rows": {"max_m": None},
    "too few rows": {"min_m": 25},
    "device": {"device": "rocm"},
    "rows": {"max_m": 16},
    "environment": {"mode": "split-lsa"},
}


@contextmanager
def logged() -> Iterator[list[str]]:
    """Messages of the plugin."""
    texts: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    handler = Keep()
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield texts
    finally:
        logger.removeHandler(handler)


def sglang_faults(rank: Rank) -> dict[str, tuple[bool, list[str], float]]:
    """Every fault on one rank after the other, in one group: (whether this rank is armed, what it logged, seconds)."""
    rank.init()
    ended: dict[str, tuple[bool, list[str], float]] = {}
    group = ProcessWorld.from_group(None)
    before: dict[str, Any] = {}
    for name, (_, fault) in FAULTS.items():
        model, server, settings = model_of(group), ProcessServer(group), SETTINGS
        if rank.rank == WHO:
            settings = replace(settings, **CHANGES.get(name, {}))
        started = time.monotonic()
        with logged() as texts:
            if rank.rank == WHO:
                with fault(model, server):
                    adapter = construct.arm(model, server, settings)
            else:
                adapter = construct.arm(model, server, settings)
        armed = adapter is not None or bool(is_armed(model)) or any(torch_ops.registered_ops().values())
        ended[name] = armed, texts, time.monotonic() - started
        now = {kind: held()[kind] for kind in ("memfds", "windows")}
        before = before or now
        assert now == before, f"{name}: holds {now}, held {before}"
    return ended


def sglang_missing(rank: Rank) -> dict[str, Any]:
    """A rank comes when the others have given up; one leaves before the last vote; then all come and all fuse, until a
    call fails on one of them.
    """
    rank.init()
    result: dict[str, Any] = {}
    group = ProcessWorld.from_group(None)
    model, server = model_of(group), ProcessServer(group)
    with logged() as texts:
        for peer in range(rank.size if rank.rank == WHO else 0):
            if peer != WHO:
                rank.wait_for(f"gave up {peer}")
        started = time.monotonic()
        assert construct.arm(model, server, replace(SETTINGS, vote_s=LATE_S)) is None
        result["no hook"] = (is_armed(model), list(texts), time.monotonic() - started)
    rank.mark(f"gave up {rank.rank}")
    for peer in range(rank.size):
        rank.wait_for(f"gave up {peer}")
    with logged() as texts:
        group = _LeavesBeforeTheLastVote(rank.rank == WHO)
        server = ProcessServer(ProcessWorld.from_group(None))
        server.group = group.open  # type: ignore[method-assign]
        started = time.monotonic()
        assert construct.arm(model, server, replace(SETTINGS, vote_s=LATE_S)) is None
        result["left"] = (is_armed(model), list(texts), time.monotonic() - started)
    rank.mark(f"second {rank.rank}")
    for peer in range(rank.size):
        rank.wait_for(f"second {peer}")
    if rank.rank == WHO:  # it learns that it missed a meeting, and is in step again
        with pytest.raises(RendezvousError, match="came too late"):
            ProcessWorld.from_group(None)
    adapter = construct.arm(model, ProcessServer(ProcessWorld.from_group(None)), SETTINGS)
    assert adapter is not None
    x, layer = rows(6, 0, rank.rank), model.layers[0].wo_b
    out = call(layer, x)
    assert out is not None
    layer.group = ProcessWorld.from_group(None)
    result["good"] = relative_error(out, layer(x)[0])
    started = time.monotonic()
    if rank.rank == WHO:
        with mock.patch.object(fused_op.GemmAllReduceOp, "quantize", _raising), pytest.raises(Injected, match="boom"):
            call(layer, x)
    else:
        with pytest.raises(CollectiveError, match=rf"rank {WHO} gave up \(Injected: boom\)"):
            call(layer, x)
    result["fault in a call"] = time.monotonic() - started
    adapter.close()
    dist.destroy_process_group()
    return result


class _LeavesBeforeTheLastVote:
    """A group whose rank WHO does not come to the last exchange."""

    def __init__(self, leaves: bool) -> None:
        self._leaves = leaves

    def open(self, timeout_s: float) -> World:
        """The group."""
        world = ProcessWorld.from_group(None, timeout_s=timeout_s)
        exchange = world.exchange

        def until_the_last(step: str, value: object, *rest: Any) -> list[object]:
            if step == "arm" and self._leaves:
                raise RendezvousError("this rank leaves")
            return exchange(step, value, *rest)

        world.exchange = until_the_last  # type: ignore[method-assign]
        return world
