# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What the caller of `GemmAllReduceOp` asks for, turned into a spec by the one path that all its entry points share."""

from __future__ import annotations

from dataclasses import dataclass

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.gemm.arguments import member_of
from mori_gemm_ar.layout import BLayout, Recipe, Wire
from mori_gemm_ar.model import Mode
from mori_gemm_ar.plan import LayerSpec, Tuning

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Support:
    """Whether an op can be created, and if not, why."""

    ok: bool
    reason: str | None = None

    def __bool__(self) -> bool:
        return self.ok


def layer_spec(
    world: int,
    n: int,
    k: int,
    m_max: int,
    quant: str | Recipe,
    b_layout: str | BLayout,
    mode: str | Mode | None,
    wire: str | Wire,
    tuning: Tuning,
) -> LayerSpec:
    """The spec, or `ConfigError` for the first argument that breaks a rule."""
    recipe, order = member_of("quant", quant, Recipe), member_of("b_layout", b_layout, BLayout)
    if not isinstance(tuning, Tuning):
        raise ConfigError(f"tuning={tuning!r} must be a Tuning; leave it out for the model's choice")
    asked = None if mode is None or mode == AUTO else member_of("mode", mode, Mode)
    return LayerSpec(world, n, k, m_max, recipe, order, Wire.parse(wire), asked, tuning)
