# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What each kernel declares, so that the rules hold no numbers of their own.

A contract is found by the type of a configuration or by the name of a kernel. `undeclared()` fits any text: what it
leaves open is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mori_gemm_ar.audit.policies import Policy
from mori_gemm_ar.errors import IsaError

MAX_SGPR = 102  # what a wave can have; the count of the metadata adds vcc and traps
MAX_VGPR = 512  # architectural and accumulation registers together, at one wave per SIMD


@dataclass(frozen=True, slots=True)
class Spelling:
    """A memory instruction as it has to be written: mnemonic and cache policy."""

    name: str
    policy: Policy = Policy.PLAIN

    def __str__(self) -> str:
        return f"{self.name} {self.policy.value}".strip()


@dataclass(frozen=True, slots=True)
class Publish:
    """An instruction that tells others of data: a flag or an electing counter. `release`: what must come before it.

    None: it tells of what engines have copied or earlier kernels wrote; the kernel has no stores of its own to release.
    """

    access: Spelling
    release: Policy | None
    count: int = 1


@dataclass(frozen=True, slots=True)
class Poll:
    """A wait loop: the load it repeats, and the invalidate that must follow before anything is read."""

    access: Spelling
    acquire: Policy
    count: int = 1


@dataclass(frozen=True, slots=True)
class Posts:
    """Work for copy engines: at how many places, and what must be released before.

    None: the kernel posts only what earlier kernels wrote, and they have released it by ending.
    """

    count: int
    release: Policy | None = Policy.SC1


@dataclass(frozen=True, slots=True)
class KernelContract:
    """Declarations of one kernel. None means that the kernel declares nothing there, and nothing is checked."""

    name: str
    declared: bool = True  # False: nobody wrote a contract for it
    waves: int | None = None  # in a workgroup
    max_vgpr: int | None = None
    max_sgpr: int | None = None
    lds_bytes: int | None = None
    releases: int | None = None  # L2 writebacks in the text; one wave of a block executes one between two barriers
    publishes: tuple[Publish, ...] = ()
    polls: tuple[Poll, ...] | None = None
    posts: Posts | None = None
    # Every access that is not plain, with its number in the text.
    scoped: tuple[tuple[Spelling, int], ...] | None = None
    stores: tuple[tuple[Spelling, int], ...] | None = None  # every store to global memory
    mfma_per_k_step: int | None = None  # of one wave
    peer_row: str = ""  # the row of the published kernel that does the same

    def __post_init__(self) -> None:
        for name in ("waves", "max_vgpr", "max_sgpr", "mfma_per_k_step"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise IsaError(f"{name}={value} must be at least 1; use None to declare nothing")


def undeclared(name: str) -> KernelContract:
    """The contract of a kernel that declares nothing."""
    return KernelContract(name, declared=False)


# ---- copy engines: what one put, the signal of one and one drain add to `scoped` and `stores` of a kernel ----------

_DWORDS = {policy: Spelling("global_store_dwordx2", policy) for policy in (Policy.SC1, Policy.SYSTEM)}
_LOOKS = {policy: Spelling("global_load_dwordx2", policy) for policy in (Policy.SC1, Policy.SYSTEM)}
# Write pointer, turn and last seen read pointer; the doorbell.
_TELLS = ((_DWORDS[Policy.SC1], 3), (_DWORDS[Policy.SYSTEM], 1))
# The reservation; the last seen read pointer and the turn, twice; the read pointer.
PUT_SCOPED = (
    (Spelling("global_atomic_add_x2", Policy.SC0), 1), (_LOOKS[Policy.SC1], 3), (_LOOKS[Policy.SYSTEM], 1), *_TELLS,
)  # fmt: skip
PUT_STORES = ((Spelling("global_store_dwordx4"), 2), *_TELLS)
SIGNAL_STORES = ((Spelling("global_store_dwordx4"), 2),)  # beside those of its put
DRAIN_SCOPED = ((_LOOKS[Policy.SC1], 1), (_LOOKS[Policy.SYSTEM], 1))
DRAIN_POLL = _LOOKS[Policy.SYSTEM]


# ---- all-reduce ---------------------------------------------------------------------------------------------------

_ELEMENT_STORE = {2: "global_store_short", 4: "global_store_dword"}
_SIGNAL = Spelling("global_store_dwordx2", Policy.SYSTEM)
_POLL = Spelling("global_load_dwordx2", Policy.SYSTEM)
_CLAIM = Spelling("global_atomic_cmpswap", Policy.SC0)
# The error record: last word, then four words, then four with the status.
_RECORD = ((Spelling("global_store_dword", Policy.SYSTEM), 1), (Spelling("global_store_dwordx4", Policy.SYSTEM), 2))
_BESIDE_GEMM = 64  # vector registers that a block may have to fit beside one of a GEMM


def _wire_stores(wire: str, world: int) -> list[tuple[Spelling, int]]:
    """Stores of data where fp8 is on the wire. Runs and their scales; the gather's packs and, if exact, the staging's;
    the tail's elements."""
    pack, run, byte = (Spelling(f"buffer_store_{width}") for width in ("dwordx4", "dwordx2", "byte"))
    short = Spelling("global_store_short")
    if wire == "fp8row":
        sums = [(Spelling(f"global_store_{width}"), 1) for width in ("dwordx4", "dwordx2", "dword")]
        return [(pack, 2 * world), *sums]
    if wire == "fp8both":
        return [(pack, world), (run, world + 1), (byte, world + 1), (short, 1), (Spelling("global_store_byte"), 2)]
    return [(pack, 2 * world), (run, 1), (byte, 1), (short, 2)]


def all_reduce_contract(
    name: str, world: int, element_bytes: int, stages: int, threads: int, *, default: bool, wire: str = ""
) -> KernelContract:
    """The load/store all-reduce. `default`: the compile key has defaults only, so that a published row fits it."""
    element, pack = Spelling(_ELEMENT_STORE[element_bytes]), Spelling("global_store_dwordx4")
    common: dict[str, Any] = {"waves": threads // 64, "max_vgpr": _BESIDE_GEMM, "max_sgpr": MAX_SGPR}
    if world == 1:
        return KernelContract(
            name, **common, lds_bytes=0, releases=0, polls=(), scoped=(), stores=counted((pack, 1), (element, 1))
        )
    bounded = Spelling("buffer_store_dwordx4")
    # One stage: staging and sums. Two: sums; staging and gather are bounded, one store for each slice.
    packs = [(pack, 2)] if stages == 1 else [(pack, 1), (bounded, 2 * world)]
    data = _wire_stores(wire, world) if wire else [*packs, (element, 2)]
    epoch = Spelling("global_store_dword")
    return KernelContract(
        name,
        **common,
        lds_bytes=4,
        releases=1,
        publishes=(Publish(_SIGNAL, release=Policy.SYSTEM),),
        polls=(Poll(_POLL, acquire=Policy.SYSTEM),),
        scoped=counted(
            (_SIGNAL, 1), (_POLL, 1), (_CLAIM, 1), *_RECORD,
            (Spelling("buffer_wbl2", Policy.SYSTEM), 1), (Spelling("buffer_inv", Policy.SYSTEM), 1),
        ),
        stores=counted(*data, (epoch, 1), (_SIGNAL, 1), *_RECORD),
        peer_row=f"LSA all-reduce {stages}-stage" if default and world == 8 and element_bytes == 2 else "",
    )  # fmt: skip


def counted(*rows: tuple[Spelling, int]) -> tuple[tuple[Spelling, int], ...]:
    """Rows with equal spellings added up."""
    counts: dict[Spelling, int] = {}
    for spelling, count in rows:
        counts[spelling] = counts.get(spelling, 0) + count
    return tuple(counts.items())


def _all_reduce_of(config: Any) -> KernelContract:
    wire = config.wire.label if config.wire.lossy else ""
    default = config.threads == _DEFAULT_THREADS and config.gather.value == "interleaved" and not wire
    sizes = config.world, config.dtype.nbytes, config.stage.value, config.threads
    return all_reduce_contract(config.kernel_name, *sizes, default=default, wire=wire)


_DEFAULT_THREADS = 512
_ALL_REDUCE_NAME = re.compile(
    r"^lsa_allreduce_w([1-8])_(bf16|fp16|fp32)_([12])stage(?:_t(\d+))?(_sequential|_fp8\w*)?$"
)


def _all_reduce_named(match: re.Match[str]) -> KernelContract:
    threads = int(match[4] or _DEFAULT_THREADS)
    default = match[4] is None and match[5] is None
    sizes = int(match[1]), 4 if match[2] == "fp32" else 2, int(match[3]), threads
    wire = (match[5] or "").removeprefix("_").removeprefix("sequential")
    return all_reduce_contract(match[0], *sizes, default=default, wire=wire)


# ---- all-reduce by copy engines -------------------------------------------------------------------------------------

_EPOCH_LOOK = Spelling("global_load_dword", Policy.SC1)
_FLAG_POLLS = (Poll(DRAIN_POLL, acquire=Policy.SYSTEM, count=2),)  # the drain, then the peers' flags
# Beside put and drain: the flag and its wait, the claim and the record of two failures, whether an earlier kernel of
# the call has failed, and the epoch.
_EXCHANGE_SCOPED = (
    *PUT_SCOPED, *DRAIN_SCOPED, (_SIGNAL, 1), (_POLL, 1), (_CLAIM, 2), *_RECORD, *_RECORD, (_EPOCH_LOOK, 2),
)  # fmt: skip
_EXCHANGE_STORES = (*PUT_STORES, (_SIGNAL, 1), *_RECORD, *_RECORD)


_SYSTEM_INV = (Spelling("buffer_inv", Policy.SYSTEM), 1)  # what peers' engines wrote
_ARRIVAL = Spelling("global_atomic_inc", Policy.SC0)
_HAND_OVER_SCOPED = (
    (_ARRIVAL, 1), (Spelling("buffer_wbl2", Policy.SYSTEM), 1), (Spelling("buffer_inv", Policy.SC1), 1),
)  # fmt: skip


def _sdma_data(phase: str, element_bytes: int, wire: str, world: int) -> tuple[tuple[Spelling, int], ...]:
    """Stores of data. Packs and single elements; on a lossy wire runs, their scales, and the short group's two bytes;
    of rows kept packs, runs and scales; a gather's packs are bounded, one for each slice."""
    pack, element = Spelling("global_store_dwordx4"), Spelling(_ELEMENT_STORE[element_bytes])
    bounded, run, byte = (Spelling(f"buffer_store_{width}") for width in ("dwordx4", "dwordx2", "byte"))
    short_group = (Spelling("global_store_byte"), 2)
    if phase == "scatter":
        return ((run, world), (byte, world), short_group) if wire == "fp8both" else ()
    if not wire:
        return (pack, 1), (element, 1)
    if phase == "gather":
        return ((bounded, world),) if wire == "fp8row" else ((bounded, world), (element, 1))
    if wire == "fp8row":
        return (pack, 1), (Spelling("global_store_dwordx2"), 1), (Spelling("global_store_dword"), 1)
    return (run, 1), (byte, 1), short_group


def sdma_contract(
    name: str, phase: str, element_bytes: int, threads: int, world: int = 2, wire: str = ""
) -> KernelContract:
    """A kernel of the copy-engine all-reduce between two ranks or more."""
    common: dict[str, Any] = {
        "waves": threads // 64, "max_vgpr": _BESIDE_GEMM, "max_sgpr": MAX_SGPR, "lds_bytes": 0,
    }  # fmt: skip
    data = _sdma_data(phase, element_bytes, wire, world)
    if phase == "gather":
        return KernelContract(name, **common, releases=0, polls=(), posts=Posts(0), scoped=(_SYSTEM_INV,), stores=data)
    if not data:  # it only pushes
        return KernelContract(
            name,
            **common,
            releases=0,
            publishes=(Publish(_SIGNAL, release=None),),
            polls=_FLAG_POLLS,
            posts=Posts(1, None),
            scoped=counted(*_EXCHANGE_SCOPED),
            stores=counted(*_EXCHANGE_STORES),
        )
    epoch = ((Spelling("global_store_dword", Policy.SC1), 1),) if phase == "reduce" else ()
    acquire = (_SYSTEM_INV,) if phase == "reduce" else ()
    return KernelContract(
        name,
        **common,
        releases=1,
        publishes=(Publish(_ARRIVAL, release=Policy.SYSTEM), Publish(_SIGNAL, release=Policy.SYSTEM)),
        polls=_FLAG_POLLS,
        posts=Posts(1, Policy.SYSTEM),
        scoped=counted(*_EXCHANGE_SCOPED, *_HAND_OVER_SCOPED, *acquire, *epoch),
        stores=counted(*_EXCHANGE_STORES, *data, *epoch),
    )


def _sdma_of(config: Any) -> KernelContract:
    if config.bitcode:  # amd-mori's code submits, and declares nothing to us
        return undeclared(config.kernel_name)
    wire = config.wire.label if config.wire.lossy else ""
    return sdma_contract(
        config.kernel_name, config.phase.value, config.dtype.nbytes, config.threads, config.world, wire
    )


_SDMA_NAME = re.compile(r"^sdma_(scatter|reduce|gather)_w([2-8])_(bf16|fp16|fp32)(?:_t(\d+))?(?:_(fp8(?:both|row)?))?$")


def _sdma_named(match: re.Match[str]) -> KernelContract:
    phase, wire = match[1], match[5] or ""
    pushes = phase == "scatter" and wire != "fp8both"
    threads = int(match[4] or (64 if pushes else _DEFAULT_THREADS))
    return sdma_contract(match[0], phase, 4 if match[3] == "fp32" else 2, threads, int(match[2]), wire)


# ---- GEMM ---------------------------------------------------------------------------------------------------------

_GEMM_WAVES = 8
_BESIDE_REDUCE = 192  # vector registers of two GEMM waves that leave room for waves of 64 on a SIMD: 2 x 192 + 128
_ALL_VGPRS = 256  # at two waves per SIMD
_PACK_STORE = Spelling("buffer_store_dwordx4")
_LOCAL: dict[str, Any] = {"releases": 0, "polls": (), "scoped": (), "max_sgpr": MAX_SGPR}  # nobody else waits for it
_PEER_TILES = {
    ("blockscale", 128, 256): "GEMM blockscale 128x256",
    ("ptpc", 128, 256): "GEMM ptpc 128x256",
    ("ptpc", 256, 256): "GEMM ptpc 256x256",
    ("mxfp8", 256, 256): "GEMM mxfp8 256x256",
    ("mxfp8", 256, 128): "GEMM mxfp8 256x128 (narrow)",
}


def gemm_contract(name: str, recipe: str, rows: int, columns: int) -> KernelContract:
    """The tiled GEMM: C leaves in packs of 16 bytes, each thread storing its share of a tile of bf16."""
    tiles = rows * columns // 256 // _GEMM_WAVES  # of 16 x 16, for each wave: one matrix operation per 128 of K
    return KernelContract(
        name,
        waves=_GEMM_WAVES,
        max_vgpr=_ALL_VGPRS if rows == columns else _BESIDE_REDUCE,
        stores=((_PACK_STORE, rows * columns * 2 // (_GEMM_WAVES * 64 * 16)),),
        mfma_per_k_step=tiles,
        peer_row=_PEER_TILES.get((recipe, rows, columns), ""),
        **_LOCAL,
    )


def small_gemm_contract(name: str, rows: int) -> KernelContract:
    """The GEMM for few rows: eight waves share K, each holding all rows of 16 columns."""
    return KernelContract(
        name, waves=_GEMM_WAVES, max_vgpr=128, stores=((_PACK_STORE, 1),), mfma_per_k_step=rows // 16, **_LOCAL
    )


def quantize_contract(name: str, recipe: str) -> KernelContract:
    """The quantisers: 8 bytes of fp8 for each lane, and a scale of fp32 or E8M0."""
    scale = Spelling("buffer_store_byte" if recipe == "mxfp8" else "buffer_store_dword")
    stores = ((Spelling("buffer_store_dwordx2"), 1), (scale, 1))
    return KernelContract(name, waves=4, max_vgpr=_BESIDE_GEMM, stores=stores, lds_bytes=0, **_LOCAL)


_GEMM_NAME = re.compile(r"^gemm_(ptpc|blockscale|mxfp8)_(\d+)x(\d+)_n\d+_k\d+_\w+$")
_SMALL_NAME = re.compile(r"^gemm_small_\w+_m(\d+)_n\d+_k\d+_\w+$")
_QUANTIZE_NAME = re.compile(r"^quantize_(blockscale|mxfp8)_k\d+$")


# ---- registry -----------------------------------------------------------------------------------------------------

# By the name of a configuration's type: the audit sees ISA only and imports none of them.
_BY_TYPE: dict[str, Callable[[Any], KernelContract]] = {
    "AllReduceConfig": _all_reduce_of,
    "SdmaConfig": _sdma_of,
    "GemmConfig": lambda c: gemm_contract(c.kernel_name, c.recipe.value, c.tile.m, c.tile.n),
    "SmallGemmConfig": lambda c: small_gemm_contract(c.kernel_name, c.rows.value),
    "QuantizeConfig": lambda c: quantize_contract(c.kernel_name, c.recipe.value),
}
_BY_NAME: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], KernelContract]], ...] = (
    (_ALL_REDUCE_NAME, _all_reduce_named),
    (_SDMA_NAME, _sdma_named),
    (_GEMM_NAME, lambda m: gemm_contract(m[0], m[1], int(m[2]), int(m[3]))),
    (_SMALL_NAME, lambda m: small_gemm_contract(m[0], int(m[1]))),
    (_QUANTIZE_NAME, lambda m: quantize_contract(m[0], m[1])),
)


def contract_of(config: Any) -> KernelContract:
    """What the kernel of a configuration declares; `IsaError` for a type that has no contract."""
    make = _BY_TYPE.get(type(config).__name__)
    if make is None:
        raise IsaError(f"config={config!r} must be one of {', '.join(_BY_TYPE)}; write a contract for its kernel")
    return make(config)


def contract_named(kernel: str) -> KernelContract:
    """What a kernel of this name declares; nothing for a name that is not ours."""
    for pattern, make in _BY_NAME:
        match = pattern.match(kernel)
        if match:
            return make(match)
    return undeclared(kernel)
