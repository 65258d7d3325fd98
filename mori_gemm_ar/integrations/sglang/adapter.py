# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Armed layers and their calls. Once a call is to be fused there is no way back: peers already count on this rank."""

from __future__ import annotations

import threading
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from mori_gemm_ar.errors import CollectiveMismatch, ConfigError
from mori_gemm_ar.integrations import torch_ops
from mori_gemm_ar.integrations.sglang.gates import Site, reason_not_fused
from mori_gemm_ar.integrations.sglang.journal import Journal, logger
from mori_gemm_ar.integrations.sglang.layers import Shape, operands, shape_or_reason
from mori_gemm_ar.integrations.sglang.server import Server
from mori_gemm_ar.integrations.sglang.settings import ATTRIBUTE, Settings

if TYPE_CHECKING:
    from mori_gemm_ar.runtime import World

# relL2 of fused to split: both quantise alike up to rounding, and a lossy wire adds 2.5e-2 (docs/wire.md).
EXACT_LIMIT, LOSSY_LIMIT = 1e-2, 6e-2


@dataclass(slots=True)
class FusedOp:
    """One op and the layers that share it."""

    shape: Shape
    op: Any
    name: str  # for the torch operator
    thread: int = field(default_factory=threading.get_ident)

    def run(self, layer: Any, x: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks of x times the layer's weight, in the window."""
        here = threading.get_ident()
        if here != self.thread:  # the server made the op in one thread and serves in another, on all ranks
            self.op.bind()
            self.thread = here
        try:
            weight, scale = operands(layer)
            rows, row_scale = self.op.quantize(x if x.is_contiguous() else x.contiguous())
            out = self.op.output(x.shape[0])
            torch.ops.mori_gemm_ar.gemm_all_reduce(rows, weight, row_scale, scale, out, self.name)
        except BaseException as error:  # peers may be waiting for this call already
            self.op.target.give_up(f"{type(error).__name__}: {error}")
            raise
        return out


class Adapter:
    """What one rank has armed. Made by `construct.arm`."""

    def __init__(self, server: Server, group: World, settings: Settings, journal: Journal) -> None:
        self.server, self.group, self.settings, self.journal = server, group, settings, journal
        self.ops: list[FusedOp] = []
        self.layers: list[ArmedLayer] = []
        self.off: str | None = None  # why everything is split from now on, the same on all ranks
        self.splitting = False  # inside the split path of a comparison
        self.calls = 0

    def max_m(self, fused: FusedOp) -> int:
        """Rows that an op's window has room for."""
        return int(fused.op.m_max)

    def close(self) -> None:
        """Disarm all layers and give everything back; collective, at the same point of all ranks' calls."""
        for armed in self.layers:
            armed.layer.__dict__.pop(ATTRIBUTE, None)
        self.layers.clear()
        while self.ops:
            fused = self.ops.pop()
            if fused.name in torch_ops.registered_ops()[torch_ops.Kind.GEMM_ALL_REDUCE.value]:
                torch_ops.unregister_op(fused.name)
            fused.op.close()


class ArmedLayer:
    """One layer whose calls may be fused."""

    def __init__(self, adapter: Adapter, name: str, layer: Any, fused: FusedOp) -> None:
        self.adapter, self.name, self.layer, self.fused = adapter, name, layer, fused
        self.changed: str | None = None
        self.calls = 0

    def call(self, x: Any, site: Site) -> torch.Tensor | None:
        """The sum, or None when the server's own path is to take this call, on every rank alike.

        Raises what the op raises; it is never answered by the split path, since peers are already waiting.
        """
        adapter = self.adapter
        if adapter.splitting or torch.compiler.is_compiling():
            return None
        reason = adapter.off or reason_not_fused(
            self.layer,
            x,
            self.fused.shape,
            adapter.max_m(self.fused),
            adapter.settings,
            adapter.server.forward(),
            site,
        )
        rows = int(x.shape[0]) if isinstance(x, torch.Tensor) and x.ndim else 0
        if adapter.settings.agree:
            self._agree(rows, reason)
        if reason is not None:
            adapter.journal.call_split(rows, reason)
            return None
        if self.changed is not None:
            raise ConfigError(f"weight of {self.name} must stay as it was armed: {self.changed}; restart the server")
        out = self.fused.run(self.layer, x)
        adapter.journal.call_fused(rows)
        self.calls += 1
        if adapter.settings.check and self.calls % adapter.settings.check == 0:
            out = self._check(x, out)
        return out.clone() if adapter.settings.copy else out

    def weights_processed(self, ranks: tuple[int, ...]) -> None:
        """Note whether the weight still is what was armed, after the server has processed weights again."""
        now = shape_or_reason(self.layer, ranks)
        self.changed = None if now == self.fused.shape else f"it is now {now}"

    # ---- debugging -----------------------------------------------------------------------------------------------
    def _agree(self, rows: int, reason: str | None) -> None:
        """Raise `CollectiveMismatch` on every rank unless all make the same call and decide it alike."""
        adapter = self.adapter
        adapter.calls += 1
        mine = (adapter.calls, self.name, rows, reason or "fused")
        everyone = adapter.group.exchange("compare a call", mine)
        if any(other != mine for other in everyone):
            listing = "; ".join(f"rank {rank}: {other}" for rank, other in enumerate(everyone))
            raise CollectiveMismatch(f"call, layer, rows and decision must be equal on all ranks: {listing}")

    def _check(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Compare with the split path on all ranks; one that is off switches all of them to it, from this call on."""
        adapter = self.adapter
        fused = out.clone()
        adapter.splitting = True
        try:
            split, _ = self.layer(x)
        finally:
            adapter.splitting = False
        error, largest = _difference(fused, split)
        limit = EXACT_LIMIT if adapter.settings.wire == "exact" else LOSSY_LIMIT
        mine = (error, largest, zlib.crc32(fused.cpu().view(torch.int16).numpy().tobytes()))
        everyone: list[Any] = adapter.group.exchange("compare with the split path", mine)
        adapter.journal.checked(max(other[0] for other in everyone))
        listing = ", ".join(f"rank {r}: relL2 {e:.3e}, max|diff| {d:.3e}" for r, (e, d, _) in enumerate(everyone))
        wrong = not all(other[0] <= limit for other in everyone)  # NaN is wrong too
        if wrong or len({other[2] for other in everyone}) > 1:
            cause = f"relL2 must be at most {limit:g}" if wrong else "ranks hold different bits"
            adapter.off = f"a comparison failed in {self.name}"
            logger.error("all layers are split from now on: %s, %d rows: %s; %s", self.name, x.shape[0], cause, listing)
            return split
        adapter.journal.say("checked %s, call %d, %d rows: %s", self.name, self.calls, x.shape[0], listing)
        return out


def _difference(fused: torch.Tensor, split: torch.Tensor) -> tuple[float, float]:
    """Relative L2 and largest magnitude of the difference; the norm of zeros counts as one."""
    difference = fused.double() - split.double()
    norm = float(split.double().norm())
    return float(difference.norm()) / (norm or 1.0), float(difference.abs().max())
