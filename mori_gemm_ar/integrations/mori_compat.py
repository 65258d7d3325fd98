# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The fused op behind the interface of `mori.ops.gemm_ar`, so that code written for it changes its import only.

Names, parameters, defaults and call order are those of amd-mori 1.2.4; docs/compat.md lists what differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.gemm import pack_a_exponents
from mori_gemm_ar.gemm import preshuffle_b as _preshuffle_b
from mori_gemm_ar.integrations.mori_operands import MoriOperands
from mori_gemm_ar.layout import BLayout, Recipe, Tile, Wire, rules
from mori_gemm_ar.layout.sdma import Transport
from mori_gemm_ar.layout.terms import MAX_WORLD, round_up
from mori_gemm_ar.op import GemmAllReduceOp as _Op
from mori_gemm_ar.op import Mode, Tuning

if TYPE_CHECKING:
    from mori_gemm_ar.runtime import World

DEFAULT_BLOCK_M = 128
DEFAULT_BLOCK_N = 256
SCALE_BLOCK_K = 128  # elements of K that share a block scale of A
_BLOCK_M = {"blockscale": DEFAULT_BLOCK_M, "mxfp8": 256}
_WIRES = {"bf16": Wire.EXACT, "fp8": Wire.FP8}
_ANY_K = 128  # a window does not depend on K


def padded_m(m: int, world_size: int, block_m: int = DEFAULT_BLOCK_M) -> int:
    """`m` rounded up to whole bands of `block_m` rows for each rank. Calls take any m; this keeps buffers valid."""
    rules.require(rules.reason_not_int("world_size", world_size, 1, MAX_WORLD, "it is the size of the group"))
    rules.require(rules.reason_not_int("block_m", block_m, 1, 2**20, "it is the height of a tile"))
    return round_up(m, world_size * block_m)


def preshuffle_b(w: torch.Tensor) -> torch.Tensor:
    """B [N, K] of one-byte elements in the order that the op takes; a new tensor. Raises `ConfigError`."""
    return _preshuffle_b(w)


def preshuffle_a_scale(exps: torch.Tensor) -> torch.Tensor:
    """Exponents [M, K/32] as the flat int32 tensor that the op takes for quant="mxfp8". Raises `ConfigError`."""
    return pack_a_exponents(exps.to(torch.uint8)).view(-1).view(torch.int32)


def supports(
    m: int,
    n: int,
    k: int,
    world_size: int,
    *,
    block_m: int | None = None,
    block_n: int = DEFAULT_BLOCK_N,
    gather_dtype: str = "bf16",
    gather_transport: str = "lsa",
    quant: str = "blockscale",
) -> bool:
    """Whether an op for up to `m` rows of this shape can be made; not whether it is fast."""
    try:
        recipe, tuning, wire = _choices(block_m, block_n, 1, gather_dtype, gather_transport, quant)
        rules.require(rules.reason_not_int("m", m, 1, 2**31, "the largest M of the op"))
        m_max = padded_m(m, world_size, _block_m(block_m, quant))
    except ConfigError:
        return False
    return _Op.supports(
        world_size, n=n, k=k, m_max=m_max, quant=recipe, b_layout=BLayout.PRESHUFFLED, mode=Mode.FUSED_SDMA, wire=wire,
        tuning=tuning,
    ).ok  # fmt: skip


def _block_m(block_m: int | None, quant: str) -> int:
    if quant not in _BLOCK_M:
        raise ConfigError(f"quant={quant!r} must be one of {', '.join(map(repr, _BLOCK_M))}")
    return _BLOCK_M[quant] if block_m is None else block_m


def _choices(
    block_m: int | None, block_n: int, queues: int, gather_dtype: str, gather_transport: str, quant: str
) -> tuple[Recipe, Tuning, Wire]:
    """The peer's words in ours, or `ConfigError` naming the first that has no meaning."""
    rows = _block_m(block_m, quant)
    tile = next((tile for tile in Tile if (tile.m, tile.n) == (rows, block_n)), None)
    if tile is None:
        legal = ", ".join(f"{tile.m} with {tile.n}" for tile in Tile)
        raise ConfigError(f"block_m={rows} with block_n={block_n} must be one of {legal}; leave both out")
    if gather_dtype not in _WIRES:
        raise ConfigError(f"gather_dtype={gather_dtype!r} must be one of {', '.join(map(repr, _WIRES))}")
    names = [transport.value for transport in Transport]
    if gather_transport not in names:
        raise ConfigError(f"gather_transport={gather_transport!r} must be one of {', '.join(map(repr, names))}")
    wire = _WIRES[gather_dtype]
    # Exact sums are pushed whatever is asked for, as there.
    gather = Transport(gather_transport) if wire.lossy else Transport.SDMA
    return Recipe(quant), Tuning(gather=gather, tile=tile, queues=queues, outputs=1), wire


class GemmAllReduceOp:
    """fp8 GEMM and sum over ranks with the peer's constructor and call; mode fused-sdma, B preshuffled.

    comm: a `mori.cco.Communicator` whose ranks are those of the default `torch.distributed` group, or what
    `mori_gemm_ar.op.GemmAllReduceOp.create` takes. Its memory is not used: the op makes a window of its own. Creating
    is collective: it succeeds on every rank or raises on every rank. `max_shapes` limits nothing. timeout_s: budget of
    each device wait. Errors are `ConfigError`, a ValueError, and `CollectiveError`, a RuntimeError.
    """

    def __init__(
        self,
        comm: Any,
        *,
        n: int,
        k: int,
        m_max: int,
        block_m: int | None = None,
        block_n: int = DEFAULT_BLOCK_N,
        sdma_queues: int = 1,
        gather_dtype: str = "bf16",
        gather_transport: str = "lsa",
        quant: str = "blockscale",
        max_shapes: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        from mori_gemm_ar.runtime import agree, connect

        # Of a communicator only its ranks are looked at.
        foreign = hasattr(comm, "nranks")
        world = connect(None if foreign else comm)

        def checked() -> tuple[Recipe, Tuning, Wire]:
            if foreign:
                rules.require(_reason_not_comm(comm, world))
            if max_shapes is not None:
                rules.require(rules.reason_not_int("max_shapes", max_shapes, 1, 2**31, "leave it out; any M is served"))
            rules.require(rules.reason_not_int("m_max", m_max, 1, 2**31, "it is the largest M"))
            return _choices(block_m, block_n, sdma_queues, gather_dtype, gather_transport, quant)

        # A rank that cannot read its arguments must not leave the others waiting in `create`.
        recipe, tuning, wire = agree(world, "check arguments", checked)
        self.comm, self.n, self.k, self.quant = comm, n, k, quant
        self.block_m, self.block_n, self.sdma_queues = _block_m(block_m, quant), block_n, sdma_queues
        self.gather_dtype, self.gather_transport = gather_dtype, gather_transport
        self.world_size: int = world.size
        self.m_max = self.padded_m(m_max)
        self._op = _Op.create(
            world, n=n, k=k, m_max=self.m_max, quant=recipe, b_layout=BLayout.PRESHUFFLED, mode=Mode.FUSED_SDMA,
            wire=wire, timeout_s=timeout_s, tuning=tuning,
        )  # fmt: skip
        self.rank = self._op.rank
        self.max_shapes = max_shapes or max(1, self.m_max // (self.world_size * self.block_m))
        self.window_bytes = self._op.spec.window().map().nbytes
        self._operands = MoriOperands(recipe, n, k)
        self._padding: torch.Tensor | None = None

    @staticmethod
    def window_bytes_for(
        world_size: int,
        *,
        m_max: int,
        n: int,
        block_m: int = DEFAULT_BLOCK_M,
        gather_dtype: str = "bf16",
        gather_transport: str = "lsa",
        max_shapes: int | None = None,
    ) -> int:
        """Bytes of the op's window on each rank. It lies in memory of the op's own, not in the communicator's."""
        quant = next((name for name, rows in _BLOCK_M.items() if rows == block_m), "blockscale")
        recipe, tuning, wire = _choices(block_m, DEFAULT_BLOCK_N, 1, gather_dtype, gather_transport, quant)
        return _Op.window_bytes_for(
            world_size, n=n, k=_ANY_K, m_max=padded_m(m_max, world_size, block_m), quant=recipe, mode=Mode.FUSED_SDMA,
            wire=wire, tuning=tuning,
        )  # fmt: skip

    def padded_m(self, m: int) -> int:
        """`m` rounded up to whole bands for each rank; a call takes `m` itself too."""
        return padded_m(m, self.world_size, self.block_m)

    def pad_rows(self, x: torch.Tensor, m_pad: int) -> torch.Tensor:
        """`x` [M, K] followed by zeros, [m_pad, K]: a buffer of the op's that the next `pad_rows` overwrites."""
        if x.ndim != 2 or m_pad < x.shape[0]:
            raise ConfigError(f"m_pad={m_pad} must be at least the rows of x={tuple(x.shape)}, which is [M, K]")
        kept, (rows, columns) = self._padding, x.shape
        alike = kept is not None and (kept.shape[1], kept.dtype, kept.device) == (columns, x.dtype, x.device)
        if kept is None or not alike or kept.shape[0] < m_pad:
            kept = self._padding = torch.zeros(m_pad, columns, dtype=x.dtype, device=x.device)
        kept[:rows].copy_(x)
        kept[rows:m_pad].zero_()
        return kept[:m_pad]

    def self_test(self, m: int | None = None) -> None:
        """Collective: known operands through every path of the op; `m` changes nothing. Raises `CollectiveError`."""
        if m is not None:
            rules.require(rules.reason_not_m(m, self.m_max))
        self._op.self_test()

    def __call__(
        self, a_fp8: torch.Tensor, b_preshuffled: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor
    ) -> torch.Tensor:
        """Multiply and sum: bf16 [M, N], the op's one output, which the next call overwrites; any M up to `m_max`.

        a_fp8 [M, K], b_preshuffled from `preshuffle_b`. blockscale: a_scale fp32, K block by K block, in any of the
        shapes that say so; b_scale fp32 [N/128, K/128]. mxfp8: a_scale from `preshuffle_a_scale`, b_scale int32 of the
        exponents [K/32, N/32], flat or not. Errors: `ConfigError`, `CollectiveError`, `ClosedError`.
        """
        recording = self._op.target.recording
        operands = self._operands.ours(a_fp8, b_preshuffled, a_scale, b_scale, recording=recording)
        return self._op(*operands)

    def close(self) -> None:
        """Give window and memory back, after what was submitted; any number of times. `comm` stays the caller's."""
        self._padding = None
        self._op.close()

    def __enter__(self) -> GemmAllReduceOp:
        return self

    def __exit__(self, *error: Any) -> None:
        self._op.__exit__(*error)


def _reason_not_comm(comm: Any, world: World) -> str | None:
    """A communicator has to have the ranks of the group that is asked about all else."""
    if (comm.nranks, comm.rank) == (world.size, world.rank):
        return None
    return (
        f"comm=rank {comm.rank} of {comm.nranks} must be the rank in the default group, which is {world.rank} of "
        f"{world.size}; pass the torch.distributed group of these ranks instead"
    )


__all__ = [
    "DEFAULT_BLOCK_M",
    "DEFAULT_BLOCK_N",
    "MAX_WORLD",
    "SCALE_BLOCK_K",
    "GemmAllReduceOp",
    "padded_m",
    "preshuffle_a_scale",
    "preshuffle_b",
    "supports",
]
