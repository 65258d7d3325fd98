# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The copy-engine all-reduce: transports, compile key, slices, window and the choice between transports."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from mori_gemm_ar.layout import copy_queue
from mori_gemm_ar.layout.allreduce import DEFAULT_THREADS, allreduce_window
from mori_gemm_ar.layout.dtypes import DType
from mori_gemm_ar.layout.geometry import LaunchGeometry, capped_geometry
from mori_gemm_ar.layout.machine import Machine
from mori_gemm_ar.layout.problem import AllReduceProblem
from mori_gemm_ar.layout.rules import (
    reason_not_dtype,
    reason_not_int,
    reason_not_member,
    reason_not_rank,
    reason_not_threads,
    reason_not_world,
    require,
)
from mori_gemm_ar.layout.terms import PACK_BYTES, REGION_ALIGN, WAVE_LANES, MemoryClass, ceil_div, round_up
from mori_gemm_ar.layout.window import RegionSpec, WindowMap
from mori_gemm_ar.layout.wire import WireSplit, slice_capacity
from mori_gemm_ar.layout.wire_rules import reason_not_carried, reason_not_wire, reason_not_wire_dtype
from mori_gemm_ar.layout.wire_terms import GROUP, ROW_UNIT, Wire

MAX_QUEUES = 8  # to each peer: one lane of a wave serves each queue of each rank
PUSH_THREADS = WAVE_LANES  # one wave drives all queues
PROBE_PACKS = 5  # of each queue in a self-test
DIGEST_DIGITS = 12  # of the SHA-256 of a bitcode file, in a compile key
PROBE_TAIL = 3  # elements after its last whole pack; with a lossy wire, what its last group lacks


def reason_not_queues(queues: object) -> str | None:
    """Copy-engine queues to each peer."""
    return reason_not_int("queues", queues, 1, MAX_QUEUES, "one queue for each peer is the safe choice")


def reason_not_slice_bytes(part: int, world: int, nbytes: int) -> str | None:
    """Bytes of a full slice that a caller decides about: whole packs, and enough for all."""
    if part % PACK_BYTES == 0 and part * world >= nbytes:
        return None
    return f"part={part} must be a multiple of {PACK_BYTES} and at least {nbytes} / {world}; take whole rows of N"


def reason_not_bitcode(bitcode: object) -> str | None:
    """Which amd-mori bitcode submits, as a compile key has it."""
    if isinstance(bitcode, str) and re.fullmatch(f"(?:[0-9a-f]{{{DIGEST_DIGITS}}})?", bitcode):
        return None
    return f"bitcode={bitcode!r} must be '' or the first {DIGEST_DIGITS} hexadecimal digits of a file's SHA-256"


class Transport(Enum):
    """How bytes reach a peer."""

    LSA = "lsa"  # loads and stores of the compute units
    SDMA = "sdma"  # copy engines


class CcoDevice(Enum):
    """Whose device code gives work to the copy engines."""

    OWN = "own"  # ours: every wait ends, any device memory may be sent
    MORI = "mori"  # amd-mori's put, linked from its bitcode: rocm only, sends window memory only


class SdmaPhase(Enum):
    """The kernels of a call, in order."""

    SCATTER = "scatter"  # quantise if the wire says so, push each peer's slice to it, and wait for all peers' pushes
    REDUCE = "reduce"  # sum the own slice, push it to all peers, and wait for theirs
    GATHER = "gather"  # copy the gathered slices to the caller


@dataclass(frozen=True, slots=True)
class SdmaConfig:
    """Compile key of one phase. Rank, size, queues and addresses are arguments.

    bitcode: the start of the SHA-256 of the amd-mori bitcode that is linked to submit; "" for our own code.
    """

    world: int
    dtype: DType
    phase: SdmaPhase
    threads: int = DEFAULT_THREADS
    wire: Wire = Wire.EXACT
    bitcode: str = ""

    def __post_init__(self) -> None:
        require(
            reason_not_world(self.world)
            or reason_not_dtype(self.dtype)
            or reason_not_member("phase", self.phase, SdmaPhase, "name a kernel of the copy-engine all-reduce")
            or reason_not_threads(self.threads)
            or reason_not_carried(self.world, self.dtype, self.wire)
            or reason_not_bitcode(self.bitcode)
        )

    @property
    def key(self) -> str:
        """Stable, unique for each config, and a legal symbol; the threads that ship and the exact wire are left out."""
        key = f"sdma_{self.phase.value}_w{self.world}_{self.dtype.label}"
        if self.threads != phase_threads(self.phase, self.wire):
            key += f"_t{self.threads}"
        if self.wire.lossy:
            key += f"_{self.wire.label}"
        return f"{key}_mori_{self.bitcode}" if self.bitcode else key

    @property
    def kernel_name(self) -> str:
        return self.key


def only_pushes(phase: SdmaPhase, wire: Wire) -> bool:
    """Whether a phase only drives queues, so that one wave is enough for it."""
    return phase is SdmaPhase.SCATTER and not wire.both


def phase_threads(phase: SdmaPhase, wire: Wire = Wire.EXACT) -> int:
    """Threads of a block that ship: one wave pushes, eight waves work."""
    return PUSH_THREADS if only_pushes(phase, wire) else DEFAULT_THREADS


def sdma_config(world: int, dtype: DType, phase: SdmaPhase, wire: Wire = Wire.EXACT, bitcode: str = "") -> SdmaConfig:
    """The config that ships. Gather submits nothing, so it is the same whoever does."""
    submitter = "" if phase is SdmaPhase.GATHER else bitcode
    return SdmaConfig(world, dtype, phase, phase_threads(phase, wire), wire, submitter)


def queue_pieces(run: range, queues: int) -> tuple[range, ...]:
    """What each queue carries of a run of bytes: runs of whole packs, the last ones short or empty."""
    piece = ceil_div(ceil_div(len(run), PACK_BYTES), queues) * PACK_BYTES
    cuts = [min(run.start + piece * q, run.stop) for q in range(queues + 1)]
    return tuple(range(cuts[q], cuts[q + 1]) for q in range(queues))


@dataclass(frozen=True, slots=True)
class ByteSlices:
    """Rank r owns bytes [r * part, (r + 1) * part) of `total`: whole packs, and the last rank what follows them."""

    world: int
    part: int
    total: int

    @classmethod
    def of(cls, problem: AllReduceProblem, slice_elements: int | None = None) -> ByteSlices:
        """As even as whole packs allow, or full slices of as many elements."""
        part = ceil_div(problem.packs, problem.world) * PACK_BYTES
        if slice_elements is not None:
            require(reason_not_slice_bytes(slice_elements * problem.dtype.nbytes, problem.world, problem.nbytes))
            part = slice_elements * problem.dtype.nbytes
        return cls(problem.world, part, problem.nbytes)

    def slice(self, rank: int) -> range:
        """Bytes of a rank; may be empty."""
        require(reason_not_rank(rank, self.world))
        packed = self.total // PACK_BYTES * PACK_BYTES
        start, end = min(rank * self.part, packed), min((rank + 1) * self.part, packed)
        return range(start, self.total if rank == self.world - 1 else end)

    def pieces(self, rank: int, queues: int) -> tuple[range, ...]:
        """What each queue carries of a slice."""
        return queue_pieces(self.slice(rank), queues)


def sdma_geometry(
    problem: AllReduceProblem,
    config: SdmaConfig,
    machine: Machine,
    columns: int | None = None,
    slice_elements: int | None = None,
) -> LaunchGeometry:
    """Grid of a phase, equal on all ranks: one wave to push, all compute units to move local memory.

    With a lossy wire `WireSplit.lanes` work on each slice. columns: elements of a row, where the wire scales rows.
    slice_elements: of a full slice, if not as even as possible.
    """
    if config.wire.lossy:
        items = WireSplit(problem.world, problem.numel, config.wire, columns, slice_elements).lanes
    elif config.phase is SdmaPhase.GATHER:
        items = problem.packs
    else:
        items = ByteSlices.of(problem, slice_elements).part // PACK_BYTES
    if only_pushes(config.phase, config.wire):
        return LaunchGeometry(1, config.threads)
    return capped_geometry(items, config.threads, MemoryClass.LOCAL, machine)


# --- window ---


def landing_bytes(max_bytes: int, world: int, wire: Wire = Wire.EXACT) -> int:
    """Bytes of one rank's landing slot: its partial of the longest slice that any call has."""
    if wire.both:
        return gathered_bytes(max_bytes, world, wire)
    if wire.per_row:  # one row of everything
        return round_up(max_bytes, REGION_ALIGN)
    if wire.lossy:
        return round_up(WireSplit(world, max(max_bytes // 2, 1), wire).part * 2, REGION_ALIGN)
    return round_up(ceil_div(max_bytes, world) + 2 * PACK_BYTES, REGION_ALIGN)


def gathered_bytes(max_bytes: int, world: int, wire: Wire) -> int:
    """Bytes of one rank's slot for a wire slice."""
    return round_up(slice_capacity(wire, max_bytes, world), REGION_ALIGN)


def sdma_window(max_bytes: int, world: int, wire: Wire = Wire.EXACT, device: CcoDevice = CcoDevice.OWN) -> WindowMap:
    """Control regions and the payload of load and store, then a `landing` slot for each rank.

    A lossy wire has a `gathered` slot for each rank as well: a rank's sums, as a wire slice. amd-mori's device code has
    `records`, what it takes for each queue.
    """
    more = [RegionSpec("landing", lambda nbytes: landing_bytes(nbytes, world, wire) * world)]
    if wire.lossy:
        more.append(RegionSpec("gathered", lambda nbytes: gathered_bytes(nbytes, world, wire) * world))
    if device is CcoDevice.MORI:
        more.append(RegionSpec("records", lambda nbytes: copy_queue.RECORD_BYTES * MAX_QUEUES * world))
    return allreduce_window(max_bytes, world, wire, tuple(more))


# --- self-test ---


def probe_problem(world: int, queues: int, dtype: DType, wire: Wire = Wire.EXACT) -> AllReduceProblem:
    """What a self-test sends: every queue of every rank carries something, whatever size of call would use it.

    The tail takes the place of the last rank's last pack, or group, so that no slice has more packs than the others:
    otherwise some queues would carry twice as much and others nothing. Rows are of ROW_UNIT elements.
    """
    require(reason_not_world(world) or reason_not_queues(queues) or reason_not_wire(wire))
    packs = PROBE_PACKS * queues * world
    if wire.per_row:
        return AllReduceProblem(world, packs * ROW_UNIT, dtype)
    if wire.lossy:
        return AllReduceProblem(world, packs * GROUP - PROBE_TAIL, dtype)
    return AllReduceProblem(world, (packs - 1) * PACK_BYTES // dtype.nbytes + PROBE_TAIL, dtype)


def probe_bytes(world: int, queues: int, wire: Wire = Wire.EXACT) -> int:
    """Capacity that a window needs for a self-test of any type."""
    dtypes = (dtype for dtype in DType if reason_not_wire_dtype(dtype, wire) is None)
    return max(probe_problem(world, queues, dtype, wire).nbytes for dtype in dtypes)


def select_transport(problem: AllReduceProblem, machine: Machine, copy_engines: bool) -> Transport:
    """The transport for a call; a pure function, so all ranks agree.

    Copy engines from `machine.copy_bytes` on, for the compute units that they leave free. They are not faster: from
    there on published readings at 8 ranks have them 2 to 5 % slower than load and store, and further behind below.
    """
    if copy_engines and problem.world > 1 and problem.nbytes >= machine.copy_bytes:
        return Transport.SDMA
    return Transport.LSA
