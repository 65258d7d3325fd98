# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The load/store all-reduce: compile key, stage choice, window, signal words and error record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from mori_gemm_ar.layout.dtypes import DType
from mori_gemm_ar.layout.machine import Machine
from mori_gemm_ar.layout.problem import AllReduceProblem
from mori_gemm_ar.layout.rules import (
    reason_not_config,
    reason_not_dtype,
    reason_not_max_bytes,
    reason_not_member,
    reason_not_numel,
    reason_not_slot,
    reason_not_stage,
    reason_not_tag,
    reason_not_u32,
    reason_not_world,
    require,
)
from mori_gemm_ar.layout.terms import MAX_BLOCKS, MAX_WORLD, REGION_ALIGN, Gather, RegionKind, Stage, round_up
from mori_gemm_ar.layout.window import Region, RegionSpec, WindowMap, payload_layout
from mori_gemm_ar.layout.wire import wire_regions
from mori_gemm_ar.layout.wire_rules import reason_not_columns, reason_not_wire, reason_not_wire_config
from mori_gemm_ar.layout.wire_terms import Wire

DEFAULT_THREADS = 512  # eight waves: two for each SIMD of a compute unit
EPOCH_BYTES = 4
SLOT_BYTES = 8  # one signal word
ERROR_WORDS = 16
PAYLOAD_SLACK = 256  # bytes: a gather reads whole parts, up to MAX_WORLD - 1 packs past the last one


class Phase(IntEnum):
    """What a kernel waits for; the value goes into the error record."""

    ENTRY = 0  # all inputs are staged
    MIDDLE = 1  # all slices are reduced and nobody reads an input any more (two-stage)
    LEAVE = 2  # nobody reads an input any more (one-stage)
    SCATTER_PUT = 3  # the own slices are with their owners (copy engines)
    SCATTER = 4  # all ranks' slices are here
    GATHER_PUT = 5  # the own sums are with all ranks
    GATHER = 6  # all ranks' sums are here
    PULL = 7  # all ranks' sums may be loaded (GEMM with all-reduce)


class ErrorWord(IntEnum):
    """Index of a 32-bit word in the error record. STATUS is written last."""

    STATUS = 0
    PHASE = 1
    RANK = 2
    PEER = 3
    BLOCK = 4
    EXPECTED_EPOCH = 5
    SEEN_EPOCH = 6
    EXPECTED_TAG = 7
    SEEN_TAG = 8


class ErrorStatus(IntEnum):
    """First word of the error record."""

    NONE = 0
    TIMEOUT = 1  # the peer's word did not come within the budget
    MISMATCH = 2  # the peer is at the same epoch of another call


@dataclass(frozen=True, slots=True)
class AllReduceConfig:
    """How to reduce: the compile key. Rank, size and addresses are arguments, so one kernel serves them all."""

    world: int
    dtype: DType
    stage: Stage
    threads: int = DEFAULT_THREADS
    gather: Gather = Gather.INTERLEAVED
    wire: Wire = Wire.EXACT

    def __post_init__(self) -> None:
        require(
            reason_not_config(self.world, self.dtype, self.stage, self.threads, self.gather)
            or reason_not_wire_config(self.world, self.dtype, self.stage, self.gather, self.wire)
        )

    @property
    def key(self) -> str:
        """Stable, unique for each config, and a legal symbol; defaults are left out."""
        key = f"lsa_allreduce_w{self.world}_{self.dtype.label}_{self.stage.value}stage"
        if self.threads != DEFAULT_THREADS:
            key += f"_t{self.threads}"
        if self.gather is not Gather.INTERLEAVED:
            key += f"_{self.gather.value}"
        if self.wire.lossy:
            key += f"_{self.wire.label}"
        return key

    @property
    def kernel_name(self) -> str:
        return self.key


def select_stage(problem: AllReduceProblem, machine: Machine, in_place_in_window: bool = False) -> Stage:
    """The faster stage whose protocol fits the call; a pure function, so all ranks agree.

    With every link busy, one stage puts S bytes on each link and two stages put 2 S / W. Two win when the saved
    S (1 - 2 / W) takes longer than the second stage costs; at W <= 2 nothing is saved.
    """
    if in_place_in_window:
        return Stage.TWO
    saved = problem.nbytes * (problem.world - 2)
    cost = machine.stage_ns * machine.link_bytes_per_ns * problem.world
    return Stage.TWO if saved > cost else Stage.ONE


def select_config(
    problem: AllReduceProblem,
    machine: Machine,
    stage: Stage | None = None,
    in_place_in_window: bool = False,
    wire: Wire = Wire.EXACT,
) -> AllReduceConfig:
    """The config for a call; a stage that the caller forces must fit the call.

    A lossy wire always takes two stages, so that the bits of an element do not depend on the size of the call. In a
    world of one nothing is sent and nothing is lost.
    """
    require(reason_not_wire(wire))
    if problem.world == 1:
        wire = Wire.EXACT
    if stage is None:
        stage = Stage.TWO if wire.lossy else select_stage(problem, machine, in_place_in_window)
    require(reason_not_stage(stage, in_place_in_window))
    return AllReduceConfig(problem.world, problem.dtype, stage, wire=wire)


# --- window ---


def _control_regions() -> tuple[Region, ...]:
    signals = SLOT_BYTES * MAX_BLOCKS * MAX_WORLD
    sizes = (
        ("epochs", EPOCH_BYTES * MAX_BLOCKS),  # u32 [block], advanced by the block itself, never reset
        ("entry", signals),  # u64 [block][peer]
        ("exit", signals),  # for both closing phases, so that every call writes every slot that it may read
        ("claim", 4),  # u32, zero = free; the first failing block takes it
        ("error", 4 * ERROR_WORDS),
        ("copy_epoch", EPOCH_BYTES),  # u32, calls by copy engine, advanced when one is over, never reset
        ("copy_arrivals", 4),  # u32, blocks that have reduced; wraps by itself
        ("copy_flags", SLOT_BYTES * MAX_WORLD * 2),  # u64 [scatter, gather][peer]
    )
    return control_regions(sizes, 0)


def control_regions(sizes: Sequence[tuple[str, int]], start: int) -> tuple[Region, ...]:
    """Control regions of these (name, bytes) in order, from byte `start` on."""
    regions = []
    cursor = start
    for name, nbytes in sizes:
        regions.append(Region(name, RegionKind.CONTROL, cursor, nbytes))
        cursor = round_up(cursor + nbytes, REGION_ALIGN)
    return tuple(regions)


CONTROL_REGIONS = _control_regions()


@dataclass(frozen=True, slots=True)
class AllReduceControl:
    """Byte offsets of the control regions: constants, whatever the capacity or M. `CONTROL` is the only instance."""

    epochs: int
    entry: int
    exit: int
    claim: int
    error: int
    copy_epoch: int
    copy_arrivals: int
    copy_flags: int
    nbytes: int

    def epoch(self, block: int) -> int:
        """Offset of a block's u32 call counter."""
        require(reason_not_slot(block, 0))
        return self.epochs + EPOCH_BYTES * block

    def slot(self, phase: Phase, block: int, peer: int) -> int:
        """Offset of the u64 word that `peer` writes for `block`."""
        require(reason_not_member("phase", phase, Phase, "name the barrier") or reason_not_slot(block, peer))
        base = self.entry if phase is Phase.ENTRY else self.exit
        return base + SLOT_BYTES * (block * MAX_WORLD + peer)

    def copy_flag(self, phase: Phase, peer: int) -> int:
        """Offset of the u64 word that `peer` writes when its part of a call by copy engine has landed here."""
        require(reason_not_slot(0, peer))
        return self.copy_flags + SLOT_BYTES * (MAX_WORLD * (phase is Phase.GATHER) + peer)


CONTROL = AllReduceControl(
    **{region.name: region.offset for region in CONTROL_REGIONS},
    nbytes=round_up(CONTROL_REGIONS[-1].end, REGION_ALIGN),
)


def _payload_bytes(max_bytes: int) -> int:
    """Bytes of a region that holds a whole payload."""
    return round_up(max_bytes, REGION_ALIGN) + PAYLOAD_SLACK


def allreduce_window(
    max_bytes: int, world: int, wire: Wire = Wire.EXACT, more: tuple[RegionSpec, ...] = ()
) -> WindowMap:
    """Control regions, then `input` and what follows it, for calls of up to `max_bytes`; see `wire_regions`.

    A lossy wire has no use for the exact one's `reduced`, of as many bytes as `input`. `more`: payload behind that.
    """
    require(reason_not_world(world) or reason_not_max_bytes(max_bytes) or reason_not_wire(wire))
    behind = wire_regions(wire, world) if wire.lossy else (RegionSpec("reduced", _payload_bytes),)
    specs = (RegionSpec("input", _payload_bytes), *behind, *more)
    payload = payload_layout(specs, capacity=max_bytes, start=CONTROL.nbytes)
    return WindowMap(CONTROL_REGIONS + payload.regions)


# --- signal words ---


_ROW_BITS = 14  # rows, and columns of a row, are known modulo 2^14
_ROW_CODE = 3  # no dtype has this code
_FLAT_WIRES = {2: Wire.FP8, 3: Wire.FP8_BOTH}  # where an exact call has stage - 1


@dataclass(frozen=True, slots=True)
class CallTag:
    """What a tag tells of a call; numel is known modulo 2^28 only, rows and columns modulo 2^14."""

    numel: int
    dtype: DType
    stage: Stage
    wire: Wire = Wire.EXACT
    columns: int | None = None


def call_tag(numel: int, dtype: DType, stage: Stage, wire: Wire = Wire.EXACT, columns: int | None = None) -> int:
    """The word that is equal on all ranks of one call, 32 bits.

    Exact: numel mod 2^28 | dtype code << 28 | (stage - 1) << 30. fp8 and fp8-both: the same with 2 and 3 for stage - 1.
    fp8-row: columns mod 2^14 | rows mod 2^14 << 14 | 3 << 28 | dtype code << 30.
    """
    require(
        reason_not_numel(numel)
        or reason_not_dtype(dtype)
        or reason_not_stage(stage, in_place_in_window=False)
        or reason_not_wire_config(2, dtype, stage, Gather.INTERLEAVED, wire)
        or reason_not_columns(wire, numel, columns)
    )
    if columns is not None:
        size = columns % 2**_ROW_BITS | (numel // columns) % 2**_ROW_BITS << _ROW_BITS
        return size | _ROW_CODE << 28 | dtype.code << 30
    high = next((code for code, flat in _FLAT_WIRES.items() if flat is wire), stage.value - 1)
    return numel % 2**28 | dtype.code << 28 | high << 30


def decode_tag(tag: int) -> CallTag:
    """What call_tag was given; ConfigError for a word that it never makes."""
    require(reason_not_tag(tag))
    size, low, high = tag % 2**28, tag >> 28 & 3, tag >> 30
    dtypes = {dtype.code: dtype for dtype in DType}
    if low == _ROW_CODE:
        columns = size % 2**_ROW_BITS
        return CallTag((size >> _ROW_BITS) * columns, dtypes[high], Stage.TWO, Wire.FP8_ROW, columns)
    if high in _FLAT_WIRES:
        return CallTag(size, dtypes[low], Stage.TWO, _FLAT_WIRES[high])
    return CallTag(size, dtypes[low], Stage(high + 1))


def signal_word(epoch: int, tag: int) -> int:
    """The u64 that a rank stores into its peers' slots: epoch << 32 | tag."""
    require(reason_not_u32("epoch", epoch) or reason_not_u32("tag", tag))
    return epoch << 32 | tag


def split_signal_word(word: int) -> tuple[int, int]:
    """(epoch, tag) of a slot's u64."""
    return word >> 32, word % 2**32


def error_words(words: Sequence[int]) -> dict[ErrorWord, int]:
    """The named words of an error record."""
    return {name: int(words[name]) for name in ErrorWord}
