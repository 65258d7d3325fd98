# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Arming: every rank of the group has the same layers fused afterwards, or none has any.

Runs once, after the weights are there and before the server sizes its cache, so that the window is taken into account.
"""

from __future__ import annotations

import socket
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import mori_gemm_ar
from mori_gemm_ar.errors import MoriGemmArError
from mori_gemm_ar.integrations import torch_ops
from mori_gemm_ar.integrations.sglang.adapter import Adapter, ArmedLayer, FusedOp
from mori_gemm_ar.integrations.sglang.journal import Journal, logger
from mori_gemm_ar.integrations.sglang.layers import Shape, named_layers, shape_or_reason
from mori_gemm_ar.integrations.sglang.server import Server
from mori_gemm_ar.integrations.sglang.settings import ATTRIBUTE, Settings
from mori_gemm_ar.integrations.sglang.votes import Refused, vote, vote_equal

if TYPE_CHECKING:
    from mori_gemm_ar.runtime import World

MIB = 1 << 20
OUTPUTS = 2  # results that are alive at once: a layer's, and that of the layer before it
_NAMES_SHOWN = 4


def arm(model: Any, server: Server, settings: Settings, refusal: str | None = None) -> Adapter | None:
    """Collective over the server's tensor-parallel group: arm the layers that can be fused on all ranks.

    refusal: why this rank cannot take part; it says so in the first vote. Returns None, with a WARNING that names rank
    and reason, when anything fails anywhere; nothing is left behind then and nobody waits longer than
    `settings.vote_s` for a rank that does not come. Whatever a step raises on a rank counts as its reason.
    """
    journal = Journal(server.rank, settings.histogram)
    adapter: Adapter | None = None
    try:
        group = server.group(settings.vote_s)
        adapter = Adapter(server, group, settings, journal)
        max_m = vote(group, "take part", partial(_take_part, server, settings, refusal))
        vote_equal(group, "compare ranks", _facts(server, settings, max_m))
        versions = mori_gemm_ar.__version__, server.version, settings.device, len(server.ranks)
        journal.say("mori_gemm_ar %s with SGLang %s on target %s, %d ranks", *versions)
        layers = _choose_layers(group, model, server, settings, journal)
        for shape in sorted({shape for _, _, shape in layers}):
            _open(adapter, shape, max_m)
        vote(group, "warm up", partial(_warm_up, adapter))
        vote(group, "register", partial(_register, adapter))
        # The last meeting: whoever comes out of it knows that everybody did.
        group.exchange("arm", None)
    except MoriGemmArError as error:
        if adapter is not None:
            _close_quietly(adapter)
        logger.warning("off on all ranks, SGLang runs as it is: %s", error)
        return None
    _mark(adapter, layers)
    journal.say("armed on %d layers: %s", len(layers), _shown([name for name, _, _ in layers]))
    return adapter


# ---- steps -------------------------------------------------------------------------------------------------------
def _take_part(server: Server, settings: Settings, refusal: str | None) -> int:
    """This rank's own reasons; returns the rows that the window gets."""
    reason = refusal or server.refusal() or _device_refusal(settings)
    if reason is not None:
        raise Refused(reason)
    rows = settings.max_m or server.max_rows()
    if rows < settings.min_m:
        raise Refused(f"max_m={rows} must be at least min_m={settings.min_m}")
    return rows


def _device_refusal(settings: Settings) -> str | None:
    """A server is never slowed down by emulation that nobody asked for."""
    from mori_gemm_ar.runtime.select import DeviceKind, choose_device

    if settings.device == DeviceKind.EMULATED.value:
        return None
    try:
        choose_device(settings.device)
    except MoriGemmArError as error:
        return str(error)
    return None


def _facts(server: Server, settings: Settings, max_m: int) -> dict[str, object]:
    return {
        "the version of mori_gemm_ar": mori_gemm_ar.__version__,
        "the version of SGLang": server.version,
        "the host": socket.gethostname(),
        "the group": server.ranks,
        "max_m": max_m,
        "the environment": settings,
    }


Layers = list[tuple[str, Any, Shape]]


def _choose_layers(group: World, model: Any, server: Server, settings: Settings, journal: Journal) -> Layers:
    """Layers with the same shape on all ranks; a reason on one rank leaves that layer split on all."""

    def look() -> dict[str, tuple[Any, Shape | str]]:
        found = {
            name: (layer, shape_or_reason(layer, server.ranks)) for name, layer in named_layers(model, settings.layers)
        }
        if not found:
            raise Refused(f"the model must have row-parallel layers named {' or '.join(settings.layers)}")
        return found

    mine = vote(group, "look at the layers", look)
    everyone: list[Any] = group.exchange("compare layers", {name: verdict for name, (_, verdict) in mine.items()})
    chosen: Layers = []
    reasons: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for verdicts in (mine, *everyone) for name in verdicts):
        verdicts = [verdicts.get(name, "it is missing") for verdicts in everyone]
        first = verdicts[0]
        if isinstance(first, Shape) and all(verdict == first for verdict in verdicts):
            chosen.append((name, mine[name][0], first))
            continue
        whys = [f"rank {rank}: {verdict}" for rank, verdict in enumerate(verdicts) if isinstance(verdict, str)]
        reasons.setdefault(whys[0] if whys else "ranks hold different shapes", []).append(name)
    for why, names in reasons.items():
        journal.say("%d layers stay split on all ranks, %s: %s", len(names), why, _shown(names))
    if not chosen:
        raise Refused(f"compare layers: no layer can be fused; {'; '.join(reasons)}")
    return chosen


def _open(adapter: Adapter, shape: Shape, max_m: int) -> None:
    """Collective: create the op of a shape; its window is logged before it is taken."""
    from mori_gemm_ar.op import GemmAllReduceOp, Tuning

    settings, world = adapter.settings, len(adapter.server.ranks)
    tuning = Tuning(outputs=OUTPUTS)
    full: dict[str, Any] = {
        "n": shape.n,
        "k": shape.k,
        "m_max": max_m,
        "quant": shape.quant,
        "b_layout": shape.b_layout,
        "mode": settings.mode,
        "wire": settings.wire,
        "tuning": tuning,
    }

    def check() -> tuple[int, int]:
        support = GemmAllReduceOp.supports(world, **full)
        if not support.ok:
            raise Refused(str(support.reason))
        single = {**full, "tuning": replace(tuning, outputs=1)}
        return GemmAllReduceOp.window_bytes_for(world, **full), GemmAllReduceOp.window_bytes_for(world, **single)

    both, single = vote(adapter.group, f"check support for {shape}", check)
    text = "%s, rows %d to %d, wire %s, mode %s: window of %.1f MiB on each rank (%.1f with one output), outside torch"
    adapter.journal.say(text, shape, settings.min_m, max_m, settings.wire, settings.mode, both / MIB, single / MIB)
    op = GemmAllReduceOp.create(adapter.group, device=settings.device, timeout_s=settings.timeout_s, **full)
    adapter.ops.append(FusedOp(shape, op, f"sglang/{adapter.server.rank}/{shape}"))


def _warm_up(adapter: Adapter) -> None:
    """What the self-test of `create` did not run yet."""
    for fused in adapter.ops:
        fused.op.quantize(torch.zeros(1, fused.shape.k, dtype=torch.bfloat16, device=fused.op.target.torch_device))
        fused.op.freeze()


def _register(adapter: Adapter) -> None:
    for fused in adapter.ops:
        torch_ops.register_op(fused.name, fused.op)


def _mark(adapter: Adapter, layers: Layers) -> None:
    ops = {fused.shape: fused for fused in adapter.ops}
    for name, layer, shape in layers:
        armed = ArmedLayer(adapter, name, layer, ops[shape])
        adapter.layers.append(armed)
        layer.__dict__[ATTRIBUTE] = armed


def _close_quietly(adapter: Adapter) -> None:
    """Give back what was opened; the error that led here is the one to tell."""
    try:
        adapter.close()
    except Exception as error:
        logger.warning("closing after a failed vote: %s", error)


def _shown(names: list[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
