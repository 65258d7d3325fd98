# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""A kernel that tells where each workgroup of a fused GEMM stands, and one emulated GPU with the windows of all ranks.

Annotations of @fx.struct and @flyc.kernel are read as types, so this file does not postpone their evaluation.
"""

import ctypes
import functools

import flydsl.compiler as flyc
import flydsl.expr as fx
import torch

from mori_gemm_ar.compile.build import build_kernel
from mori_gemm_ar.compile.store import CodeObject, default_store
from mori_gemm_ar.emulator import Node
from mori_gemm_ar.kernels.device.memory import ElementArray
from mori_gemm_ar.kernels.gemm.place import OrderedPlace
from mori_gemm_ar.kernels.kernel import DeviceKernel
from mori_gemm_ar.layout.copy_queue import UNIT_BYTES, Copy, decode
from mori_gemm_ar.layout.fused import FusedConfig, FusedGrid
from mori_gemm_ar.layout.fused_window import FUSED_CONTROL, FusedWindow
from tests.kernel.gemm_data import Operands
from tests.kernel.harness import run_kernel

WAVE = 64
BUDGET = 1_000_000_000
FILL = 0x5A  # bytes of windows that nobody has written
PLACE = ("dest", "band", "row", "column", "rows", "columns")
CHUNK = ("number", "row", "rows", "bands")
WORDS = len(PLACE) + len(CHUNK)


@fx.struct
class PlaceArguments:
    """What `OrderedPlace` reads, and where each workgroup stores WORDS words."""

    m: fx.Uint32
    rank: fx.Uint32
    slice_rows: fx.Uint32
    bands: fx.Uint32
    short_chunks: fx.Uint32
    few: fx.Uint32
    by_few: fx.Uint32
    by_more: fx.Uint32
    out: fx.Int64


@functools.cache
def build_place(config: FusedConfig) -> CodeObject:
    """Stores PLACE, and CHUNK where there are chunks."""

    def kernel(arguments: PlaceArguments):
        place = OrderedPlace(config, arguments)
        values = [getattr(place, name) for name in PLACE]
        if fx.const_expr(config.stripe is None):
            chunk = place.chunk_of_dest()
            values = values + [getattr(chunk, name) for name in CHUNK]
        out = ElementArray(fx.Uint32, arguments.out + fx.Int64(fx.Uint32(fx.block_idx.x) * (4 * WORDS)), 4)
        for number, value in enumerate(values):
            out.store(fx.Int32(number), fx.Uint32(value))

    name = f"place_{config.key}"
    return build_kernel(
        DeviceKernel(name, flyc.kernel(kernel, name=name, known_block_size=[WAVE, 1, 1]), PlaceArguments, WAVE), name
    )


def places(grid: FusedGrid, rank: int) -> list[dict[str, int]]:
    """What each workgroup of a rank says."""
    out = torch.zeros(grid.blocks, WORDS, dtype=torch.int32)
    values = (grid.m, rank, *grid.arguments(), out)
    run_kernel(build_place(grid.config), (grid.blocks, 1, 1), (WAVE, 1, 1), values, {"out": out})
    names = [*PLACE, *(f"chunk_{name}" for name in CHUNK)]
    return [dict(zip(names, row, strict=True)) for row in out.tolist()]


class OneGpu:
    """The windows of all ranks in the memory of one emulated GPU, which runs one rank's kernel."""

    def __init__(self, config: FusedConfig, m_max: int, queues: int = 1, node: Node | None = None) -> None:
        self.config, self.node = config, node or Node(1)
        self.map = FusedWindow(config.world, config.gemm.n, m_max).map()
        self.windows = torch.full((config.world, self.map.nbytes), FILL, dtype=torch.uint8)
        self.windows[:, : FUSED_CONTROL.nbytes] = 0
        self.queues = self.node.engines.open(0, config.world, queues)
        self.error = torch.zeros(64, dtype=torch.int32)
        self._kept: list[Operands] = []  # the node knows their memory for ever

    @property
    def slot(self) -> int:
        return self.map.region("landing").nbytes // self.config.world

    def run(self, grid: FusedGrid, rank: int, operands: Operands, claim: int = 0) -> None:
        """One launch, and what its engines do."""
        self._kept.append(operands)
        own = self.windows[rank]
        own[self.map.offset("claim")] = claim
        values = (
            operands.a, operands.b, own[self.map.offset("input") :], operands.a_scale, operands.b_scale, grid.m,
            self.windows, self.map.nbytes, rank, *grid.arguments(), self.map.offset("landing"), self.slot, 7,
            self.queues.per_peer, self.queues.table, BUDGET, self.error,
        )  # fmt: skip
        tensors = {name: getattr(operands, name) for name in ("a", "b", "a_scale", "b_scale")}
        tensors |= {"windows": self.windows, "error": self.error}
        code = default_store().get(self.config)
        run_kernel(code, (grid.blocks, 1, 1), (512, 1, 1), values, tensors, self.node)
        self.node.engines.settle()

    def landing(self, owner: int, rank: int) -> torch.Tensor:
        """What a rank has sent to an owner: its slot, as bytes."""
        start = self.map.offset("landing") + self.slot * rank
        return self.windows[owner, start : start + self.slot]

    def rows(self, memory: torch.Tensor, count: int) -> torch.Tensor:
        """The first rows of C that lie in some bytes."""
        n = self.config.gemm.n
        return memory[: count * n * 2].view(torch.bfloat16).view(count, n)

    def input(self, rank: int) -> torch.Tensor:
        """The own product, as bytes."""
        region = self.map.region("input")
        return self.windows[rank, region.offset : region.end]

    def counters(self, rank: int) -> torch.Tensor:
        """Arrivals of all chunks."""
        return self.windows[rank, FUSED_CONTROL.tile_arrivals : FUSED_CONTROL.meet_epoch].view(torch.int32)

    def copies(self, dest: int) -> list[Copy]:
        """The copies in the rings to a peer."""
        found = []
        for queue in range(dest * self.queues.per_peer, (dest + 1) * self.queues.per_peer):
            ring = self.queues.engines[queue].addresses.ring
            for place in range(64):
                packet = decode(tuple((ctypes.c_uint32 * 8).from_address(ring + UNIT_BYTES * place)))
                if isinstance(packet, Copy):
                    found.append(packet)
        return found
