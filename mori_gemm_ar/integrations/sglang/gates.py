# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Whether one call is fused, decided from facts that are the same on every rank of the group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from mori_gemm_ar.integrations.sglang.layers import Shape
from mori_gemm_ar.integrations.sglang.settings import Settings


@dataclass(frozen=True, slots=True)
class Forward:
    """What the server says about the forward pass that a call belongs to."""

    sequence_parallel: bool = False  # a reduce-scatter follows instead of a sum
    reduce_skipped: bool = False  # a later step reduces
    capturing: bool = False  # inside graph capture, or warming up for one: both have to allocate alike


@dataclass(frozen=True, slots=True)
class Site:
    """What the caller of a layer asks for besides the product."""

    deferred: bool = False  # the caller reduces later
    own_output: bool = False  # the caller says where to write
    other_reduce: bool = False  # the caller's pass may reduce in another number format


def reason_not_fused(
    layer: Any, x: object, shape: Shape, max_m: int, settings: Settings, forward: Forward, site: Site
) -> str | None:
    """Why the server's own path takes this call, or None. Not a text that changes from call to call."""
    return _reason_not_reduced_here(layer, settings, forward, site) or _reason_not_input(x, shape, max_m, settings)


def _reason_not_reduced_here(layer: Any, settings: Settings, forward: Forward, site: Site) -> str | None:
    if site.deferred:
        return "the caller defers the sum"
    if site.own_output:
        return "the caller says where to write"
    if site.other_reduce:
        return "the pass may reduce in another number format"
    if forward.sequence_parallel:
        return "sequence parallelism is active"
    if forward.reduce_skipped:
        return "a later step reduces"
    if getattr(layer, "use_decode_attn_tp", False):
        return "use_decode_attn_tp is set"
    if not layer.reduce_results:
        return "reduce_results was switched off"
    if forward.capturing and not settings.capture:
        return "graph capture"
    return None


def _reason_not_input(x: object, shape: Shape, max_m: int, settings: Settings) -> str | None:
    if not isinstance(x, torch.Tensor):
        return "the input is not a plain tensor"
    if x.dtype is not torch.bfloat16:
        return "the input is not bf16"
    if x.ndim != 2 or x.shape[1] != shape.k:
        return "the input is not [M, K]"
    if x.shape[0] < 1:
        return "the input has no rows"
    if x.shape[0] < settings.min_m:
        return "fewer rows than min_m"
    if x.shape[0] > max_m:
        return "more rows than the window has room for"
    return None
