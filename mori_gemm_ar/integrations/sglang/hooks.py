# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What is hooked in SGLang, made for version 0.5.23: names and parameters are compared before anything is registered.

`HookRegistry.apply_hooks` only logs a target that it cannot patch, so each hook is looked for again before ranks vote.
"""

from __future__ import annotations

import atexit
import inspect
import os
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.integrations.sglang.journal import logger
from mori_gemm_ar.integrations.sglang.settings import ATTRIBUTE, Seam, Settings

PINNED = "0.5.23"
_MODEL = "sglang.srt.models.deepseek_v4"


@dataclass(slots=True)
class Plugin:
    """What this process has registered and armed."""

    settings: Settings
    refusal: str | None = None  # why this rank cannot take part
    hooks: dict[str, Callable[..., Any]] = field(default_factory=dict)
    adapter: Any = None


ACTIVE: list[Plugin] = []  # none, or the one of this process


# ---- hooks ---------------------------------------------------------------------------------------------------
def _project_wo_b(original: Any, attention: Any, o: Any, defer_all_reduce: bool = False) -> Any:
    """AROUND: `wo_b` of DeepSeek V4."""
    armed = _armed(attention.wo_b)
    if armed is not None:
        out = armed.call(o.flatten(1) if isinstance(o, torch.Tensor) else o, _site(deferred=bool(defer_all_reduce)))
        if out is not None:
            return out
    return original(attention, o, defer_all_reduce)


def _linear_forward(
    original: Any,
    layer: Any,
    input_: Any,
    skip_all_reduce: bool = False,
    forward_batch: Any = None,
    output_tensor: Any = None,
) -> Any:
    """AROUND: any `RowParallelLinear`."""
    armed = _armed(layer)
    if armed is not None:
        site = _site(
            deferred=bool(skip_all_reduce),
            own_output=output_tensor is not None,
            other_reduce=forward_batch is not None,
        )
        out = armed.call(input_, site)
        if out is not None:
            return out, None
    return original(layer, input_, skip_all_reduce, forward_batch, output_tensor)


def _weights_processed(_result: Any, _method: Any, layer: Any, *_: Any, **__: Any) -> None:
    """AFTER: an armed layer whose weight became something else must not be fused again."""
    armed = layer.__dict__.get(ATTRIBUTE)
    if armed is not None:
        armed.weights_processed(armed.adapter.server.ranks)


def _model_loaded(_result: Any, runner: Any) -> None:
    """AFTER: weights are there, the cache is not sized yet. All ranks of a group come here at about the same time."""
    if getattr(runner, "is_draft_worker", False) or not ACTIVE:
        return
    from mori_gemm_ar.integrations.sglang.server import SglangServer

    try:
        server = SglangServer(runner)
    except Exception as error:  # without a group there is no vote; the other ranks miss this one
        logger.warning("off, SGLang must be as in %s: %s: %s", PINNED, type(error).__name__, error)
        return
    arm_active(runner.model, server)


def _armed(layer: Any) -> Any:
    """The layer's `ArmedLayer`; None under a tracer, which takes the server's own path."""
    return None if torch.compiler.is_compiling() else layer.__dict__.get(ATTRIBUTE)


def _site(**asked: bool) -> Any:
    from mori_gemm_ar.integrations.sglang.gates import Site

    return Site(**asked)


# ---- where they go ---------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Target:
    """A method of SGLang, its parameters, and what goes there."""

    path: str
    parameters: tuple[str, ...]
    hook: Callable[..., Any]
    around: bool


_SEAMS = {
    Seam.ATTENTION: Target(
        f"{_MODEL}.MQALayer._project_wo_b", ("self", "o", "defer_all_reduce"), _project_wo_b, around=True
    ),
    Seam.LINEAR: Target(
        "sglang.srt.layers.linear.RowParallelLinear.forward",
        ("self", "input_", "skip_all_reduce", "forward_batch", "output_tensor"),
        _linear_forward,
        around=True,
    ),
}
WEIGHTS = Target(
    "sglang.srt.layers.quantization.fp8.Fp8LinearMethod.process_weights_after_loading",
    ("self", "layer"),
    _weights_processed,
    around=False,
)
LOADED = Target("sglang.srt.model_executor.model_runner.ModelRunner.load_model", ("self",), _model_loaded, around=False)


def targets(seam: Seam) -> tuple[Target, ...]:
    """What is hooked; the method that arms comes last."""
    return _SEAMS[seam], WEIGHTS, LOADED


def reason_moved(target: Target) -> str | None:
    """Why a target is not what this plugin was made for, or None. Imports the target's module."""
    try:
        method = pkgutil.resolve_name(target.path)
        found = tuple(inspect.signature(method).parameters)
    except Exception as error:  # importing a server's modules may raise anything
        return f"{target.path} must exist as in SGLang {PINNED}: {type(error).__name__}: {error}"
    if found != target.parameters:
        return f"{target.path} must take {target.parameters} as in SGLang {PINNED}, it takes {found}"
    return None


def reason_not_hooked(target: Target) -> str | None:
    """Why the hook is not in the chain of wrappers that a target has become, or None."""
    method = pkgutil.resolve_name(target.path)
    while method is not None:
        cells = getattr(method, "__closure__", None) or ()
        if any(cell.cell_contents is target.hook for cell in cells):
            return None
        method = getattr(method, "__wrapped__", None)
    return f"the hook of {target.path} must be installed; see what SGLang logged about it"


# ---- life ----------------------------------------------------------------------------------------------------
def install(environment: dict[str, str] | None = None) -> None:
    """Register the hooks, before SGLang applies them. A rank that cannot says so when the ranks vote."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    plugin = Plugin(Settings())
    try:
        plugin.settings = Settings.from_environment(os.environ if environment is None else environment)
    except ConfigError as error:
        plugin.refusal = str(error)
    wanted = targets(plugin.settings.seam)
    moved = [reason for reason in map(reason_moved, wanted) if reason is not None]
    if moved:
        plugin.refusal = plugin.refusal or "; ".join(moved)
        logger.warning("off, SGLang runs as it is: %s", plugin.refusal)
    ACTIVE[:] = [plugin]
    for target in wanted if not moved else (LOADED,) if reason_moved(LOADED) is None else ():
        HookRegistry.register(target.path, target.hook, HookType.AROUND if target.around else HookType.AFTER)
    atexit.register(_report)


def arm_active(model: Any, server: Any) -> Any:
    """Collective: arm `model` with this process's settings; returns the adapter, None when it stays off."""
    from mori_gemm_ar.integrations.sglang.construct import arm

    plugin = ACTIVE[0]
    if plugin.adapter is not None:  # the server loads another model in place of the first
        plugin.adapter.close()
    refusal = plugin.refusal
    if refusal is None:
        refusal = next(filter(None, map(reason_not_hooked, targets(plugin.settings.seam))), None)
    plugin.adapter = arm(model, server, plugin.settings, refusal)
    return plugin.adapter


def close_active() -> None:
    """Collective: disarm and give back what this process has armed; the hooks stay and do nothing."""
    if ACTIVE and ACTIVE[0].adapter is not None:
        ACTIVE[0].adapter.close()
        ACTIVE[0].adapter = None


def _report() -> None:
    """At exit: what was fused. Nothing is closed here, closing is collective and peers may be gone."""
    if ACTIVE and ACTIVE[0].adapter is not None:
        ACTIVE[0].adapter.journal.say("%s", ACTIVE[0].adapter.journal.summary())
