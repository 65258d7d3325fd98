# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""All that the plugin takes from SGLang while it runs. The rest of it sees `Server` only, as the tests do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from mori_gemm_ar.integrations.sglang.gates import Forward

if TYPE_CHECKING:
    from mori_gemm_ar.runtime import World

MAX_WORLD = 8  # GPUs of a node


class Server(Protocol):
    """One rank of a server."""

    @property
    def version(self) -> str:
        """Of the server."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks of the tensor-parallel group, in its order."""

    @property
    def rank(self) -> int:
        """The own place in that group."""

    def group(self, timeout_s: float) -> World:
        """Collective over the tensor-parallel group: its ranks, or `RendezvousError` when one is late."""

    def refusal(self) -> str | None:
        """Why this rank's way of being parallel is not served, or None."""

    def max_rows(self) -> int:
        """Rows of the largest prefill."""

    def forward(self) -> Forward:
        """Of the pass that is running."""


class SglangServer:
    """SGLang 0.5.23, whose names stand here and in `hooks`."""

    def __init__(self, runner: Any = None) -> None:
        import sglang
        from sglang.srt.runtime_context import get_forward, get_parallel

        self.version = str(sglang.__version__)
        self._runner, self._parallel, self._forward = runner, get_parallel(), get_forward
        tp = self._parallel.tp_group
        self.ranks, self.rank, self._group = tuple(tp.ranks), int(tp.rank_in_group), tp.cpu_group
        self._is_capturing = _capture_query()

    def group(self, timeout_s: float) -> World:
        """Through the key-value store of the group, never by its collectives."""
        from mori_gemm_ar.runtime import ProcessWorld

        return ProcessWorld.from_group(self._group, timeout_s=timeout_s)

    def refusal(self) -> str | None:
        """Pipelines, data-parallel attention and context parallelism are not served."""
        parallel = self._parallel
        if not 2 <= len(self.ranks) <= MAX_WORLD:
            return f"tp_size={len(self.ranks)} must be 2 to {MAX_WORLD}"
        for name in ("pp_size", "attn_dp_size", "attn_cp_size"):
            if (getattr(parallel, name, None) or 1) != 1:
                return f"{name}={getattr(parallel, name)} must be 1"
        if getattr(self._runner, "startup_weight_load", None) is not None:
            return "weights must be loaded before the model is; switch the overlapped start-up load off"
        return None

    def max_rows(self) -> int:
        """Rows of the largest prefill buffer."""
        from sglang.srt.runtime_context import max_prefill_buffer_tokens

        return int(max_prefill_buffer_tokens())

    def forward(self) -> Forward:
        """Flags of the running pass."""
        flags = self._forward()
        return Forward(bool(flags.sp_active), bool(flags.mlp_reduce_scatter), self._is_capturing())


def _capture_query() -> Any:
    """SGLang's flag, which also covers its warm-up passes, and torch's."""
    import torch
    from sglang.srt.model_executor.runner_utils import capture_mode

    if not torch.cuda.is_available():
        return capture_mode.get_is_capture_mode
    return lambda: capture_mode.get_is_capture_mode() or torch.cuda.is_current_stream_capturing()
