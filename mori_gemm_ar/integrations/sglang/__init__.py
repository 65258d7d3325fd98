# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Plugin of SGLang: a row-parallel layer's fp8 GEMM and its all-reduce as one op. Off unless MORI_GEMM_AR_WO_B=1.

SGLang loads every installed plugin in each of its processes, so importing this imports the standard library only.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.integrations.sglang.settings import ATTRIBUTE, switched_on

if TYPE_CHECKING:
    import torch


def register() -> None:
    """Entry point of the group `sglang.srt.plugins`. Does nothing unless MORI_GEMM_AR_WO_B=1.

    Registers hooks only; what is fused is decided by a vote of all ranks once the model is loaded. See docs/sglang.md.
    """
    try:
        if not switched_on(os.environ):
            return
    except ConfigError as error:
        logging.getLogger("mori_gemm_ar.sglang").warning("off, SGLang runs as it is: %s", error)
        return
    from mori_gemm_ar.integrations.sglang.hooks import install

    install()


def try_fused(layer: Any, x: Any) -> torch.Tensor | None:
    """Sum over all ranks of `x` [M, K] bf16 times an armed layer's weight, or None: take your own path then.

    For code that calls a `RowParallelLinear` itself: `out = try_fused(layer, x)`, and `layer(x)` when it is None. None
    is decided alike on all ranks and before anything is launched; what is raised is not to be caught. The result lies
    in the op's window and is overwritten by the call after the next one of the same shape: clone what lives longer, or
    set MORI_GEMM_AR_WO_B_COPY=1.
    """
    armed = layer.__dict__.get(ATTRIBUTE)
    if armed is None:
        return None
    from mori_gemm_ar.integrations.sglang.gates import Site

    return armed.call(x, Site())


def arm(model: Any, runner: Any = None) -> bool:
    """Collective over SGLang's tensor-parallel group: arm the layers of `model`; False when all stay split.

    For servers that load models without `ModelRunner.load_model`, where the plugin does it. Needs `register` before.
    """
    from mori_gemm_ar.integrations.sglang import hooks
    from mori_gemm_ar.integrations.sglang.server import SglangServer

    return bool(hooks.ACTIVE) and hooks.arm_active(model, SglangServer(runner)) is not None


def counters() -> dict[str, Any]:
    """Calls of this process: fused, split, reasons, and both by rows; empty when nothing is armed."""
    from mori_gemm_ar.integrations.sglang import hooks

    adapter = hooks.ACTIVE[0].adapter if hooks.ACTIVE else None
    return {} if adapter is None else adapter.journal.counters()


def teardown() -> None:
    """Collective: disarm all layers, close the ops, give back the window. The server goes on with its own path."""
    from mori_gemm_ar.integrations.sglang import hooks

    hooks.close_active()
