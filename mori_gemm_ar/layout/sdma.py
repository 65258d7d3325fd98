# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The copy-engine all-reduce: transports, compile key, slices, window and the choice between transports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mori_gemm_ar.layout.allreduce import CONTROL, CONTROL_REGIONS, DEFAULT_THREADS, payload_bytes
from mori_gemm_ar.layout.dtypes import DType
from mori_gemm_ar.layout.geometry import LaunchGeometry, capped_geometry
from mori_gemm_ar.layout.machine import Machine
from mori_gemm_ar.layout.problem import AllReduceProblem
from mori_gemm_ar.layout.rules import (
    reason_not_dtype,
    reason_not_int,
    reason_not_max_bytes,
    reason_not_member,
    reason_not_rank,
    reason_not_threads,
    reason_not_world,
    require,
)
from mori_gemm_ar.layout.terms import PACK_BYTES, REGION_ALIGN, WAVE_LANES, MemoryClass, ceil_div, round_up
from mori_gemm_ar.layout.window import RegionSpec, WindowMap, payload_layout

MAX_QUEUES = 8  # to each peer: one lane of a wave serves each queue of each rank
PUSH_THREADS = WAVE_LANES  # one wave drives all queues
PROBE_PACKS = 5  # of each queue in a self-test
PROBE_TAIL = 3  # elements after its last whole pack


def reason_not_queues(queues: object) -> str | None:
    """Copy-engine queues to each peer."""
    return reason_not_int("queues", queues, 1, MAX_QUEUES, "one queue for each peer is the safe choice")


class Transport(Enum):
    """How bytes reach a peer."""

    LSA = "lsa"  # loads and stores of the compute units
    SDMA = "sdma"  # copy engines


class SdmaPhase(Enum):
    """The kernels of a call, in order."""

    SCATTER = "scatter"  # push each peer's slice of the input to it, and wait for all peers' pushes
    REDUCE = "reduce"  # sum the own slice, push it to all peers, and wait for theirs
    GATHER = "gather"  # copy the gathered slices to the caller


@dataclass(frozen=True, slots=True)
class SdmaConfig:
    """Compile key of one phase. Rank, size, queues and addresses are arguments."""

    world: int
    dtype: DType
    phase: SdmaPhase
    threads: int = DEFAULT_THREADS

    def __post_init__(self) -> None:
        require(
            reason_not_world(self.world)
            or reason_not_dtype(self.dtype)
            or reason_not_member("phase", self.phase, SdmaPhase, "name a kernel of the copy-engine all-reduce")
            or reason_not_threads(self.threads)
        )

    @property
    def key(self) -> str:
        """Stable, unique for each config, and a legal symbol; the threads that ship are left out."""
        key = f"sdma_{self.phase.value}_w{self.world}_{self.dtype.label}"
        return key if self.threads == phase_threads(self.phase) else f"{key}_t{self.threads}"

    @property
    def kernel_name(self) -> str:
        return self.key


def phase_threads(phase: SdmaPhase) -> int:
    """Threads of a block that ship: one wave pushes, eight waves work."""
    return PUSH_THREADS if phase is SdmaPhase.SCATTER else DEFAULT_THREADS


def sdma_config(world: int, dtype: DType, phase: SdmaPhase) -> SdmaConfig:
    """The config that ships."""
    return SdmaConfig(world, dtype, phase, phase_threads(phase))


@dataclass(frozen=True, slots=True)
class ByteSlices:
    """Rank r owns bytes [r * part, (r + 1) * part) of `total`: whole packs, and the last rank what follows them."""

    world: int
    part: int
    total: int

    @classmethod
    def of(cls, problem: AllReduceProblem) -> ByteSlices:
        """As even as whole packs allow."""
        return cls(problem.world, ceil_div(problem.packs, problem.world) * PACK_BYTES, problem.nbytes)

    def slice(self, rank: int) -> range:
        """Bytes of a rank; may be empty."""
        require(reason_not_rank(rank, self.world))
        packed = self.total // PACK_BYTES * PACK_BYTES
        start, end = min(rank * self.part, packed), min((rank + 1) * self.part, packed)
        return range(start, self.total if rank == self.world - 1 else end)

    def pieces(self, rank: int, queues: int) -> tuple[range, ...]:
        """What each queue carries of a slice: runs of whole packs, the last ones short or empty."""
        own = self.slice(rank)
        piece = ceil_div(ceil_div(len(own), PACK_BYTES), queues) * PACK_BYTES
        cuts = [min(own.start + piece * q, own.stop) for q in range(queues + 1)]
        return tuple(range(cuts[q], cuts[q + 1]) for q in range(queues))


def sdma_geometry(problem: AllReduceProblem, config: SdmaConfig, machine: Machine) -> LaunchGeometry:
    """Grid of a phase, equal on all ranks: one wave to push, all compute units to move local memory."""
    if config.phase is SdmaPhase.SCATTER:
        return LaunchGeometry(1, config.threads)
    packs = problem.packs if config.phase is SdmaPhase.GATHER else ByteSlices.of(problem).part // PACK_BYTES
    return capped_geometry(packs, config.threads, MemoryClass.LOCAL, machine)


def landing_bytes(max_bytes: int, world: int) -> int:
    """Bytes of one rank's landing slot: its partial of the longest slice that any call has."""
    return round_up(ceil_div(max_bytes, world) + 2 * PACK_BYTES, REGION_ALIGN)


def sdma_window(max_bytes: int, world: int) -> WindowMap:
    """Control regions, `input` and `reduced` as for load and store, then a `landing` slot for each rank."""
    require(reason_not_world(world) or reason_not_max_bytes(max_bytes))
    specs = (
        RegionSpec("input", payload_bytes),
        RegionSpec("reduced", payload_bytes),
        RegionSpec("landing", lambda nbytes: landing_bytes(nbytes, world) * world),
    )
    payload = payload_layout(specs, capacity=max_bytes, start=CONTROL.nbytes)
    return WindowMap(CONTROL_REGIONS + payload.regions)


def probe_problem(world: int, queues: int, dtype: DType) -> AllReduceProblem:
    """What a self-test sends: every queue of every rank carries something, whatever size of call would use it.

    The tail takes the place of the last rank's last pack, so that no slice has more packs than the others: otherwise
    some queues would carry twice as much and others nothing.
    """
    require(reason_not_world(world) or reason_not_queues(queues))
    packs = PROBE_PACKS * queues * world - 1
    return AllReduceProblem(world, packs * PACK_BYTES // dtype.nbytes + PROBE_TAIL, dtype)


def probe_bytes(world: int, queues: int) -> int:
    """Capacity that a window needs for a self-test of any type."""
    return max(probe_problem(world, queues, dtype).nbytes for dtype in DType)


def select_transport(problem: AllReduceProblem, machine: Machine, copy_engines: bool) -> Transport:
    """The faster transport for a call; a pure function, so all ranks agree.

    Both move the same bytes over a link twice. The copy engines' rate is higher and their fixed cost as well, so they
    win from `machine.copy_bytes` on.
    """
    if copy_engines and problem.world > 1 and problem.nbytes >= machine.copy_bytes:
        return Transport.SDMA
    return Transport.LSA
