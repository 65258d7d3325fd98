# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What each kernel declares, so that the rules hold no numbers of their own.

A contract is found by the type of a configuration or by the name of a kernel. `undeclared()` fits any text: what it
leaves open is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mori_gemm_ar.audit.contract import (
    AGENT_LOOK,
    ARRIVAL,
    BESIDE_GEMM,
    CLAIM,
    DRAIN_POLL,
    DRAIN_SCOPED,
    MAX_SGPR,
    POLL,
    PUT_SCOPED,
    PUT_STORES,
    RECORD,
    SIGNAL,
    SIGNAL_STORES,
    KernelContract,
    Poll,
    Posts,
    Publish,
    Spelling,
    counted,
    undeclared,
)
from mori_gemm_ar.audit.gemm_contracts import (
    FUSED_NAME,
    GEMM_NAME,
    QUANTIZE_NAME,
    SMALL_NAME,
    fused_named,
    fused_of,
    gemm_named,
    gemm_of,
    quantize_contract,
    small_gemm_contract,
)
from mori_gemm_ar.audit.policies import Policy
from mori_gemm_ar.errors import IsaError

# ---- all-reduce ---------------------------------------------------------------------------------------------------

_ELEMENT_STORE = {2: "global_store_short", 4: "global_store_dword"}


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
    common: dict[str, Any] = {"waves": threads // 64, "max_vgpr": BESIDE_GEMM, "max_sgpr": MAX_SGPR}
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
        publishes=(Publish(SIGNAL, release=Policy.SYSTEM),),
        polls=(Poll(POLL, acquire=Policy.SYSTEM),),
        scoped=counted(
            (SIGNAL, 1), (POLL, 1), (CLAIM, 1), *RECORD,
            (Spelling("buffer_wbl2", Policy.SYSTEM), 1), (Spelling("buffer_inv", Policy.SYSTEM), 1),
        ),
        stores=counted(*data, (epoch, 1), (SIGNAL, 1), *RECORD),
        peer_row=f"LSA all-reduce {stages}-stage" if default and world == 8 and element_bytes == 2 else "",
    )  # fmt: skip


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

_FLAG_POLLS = (Poll(DRAIN_POLL, acquire=Policy.SYSTEM, count=2),)  # the drain, then the peers' flags
# Beside put and drain: the flag and its wait, the claim and the record of two failures, whether an earlier kernel of
# the call has failed, and the epoch.
_EXCHANGE_SCOPED = (
    *PUT_SCOPED, *DRAIN_SCOPED, (SIGNAL, 1), (POLL, 1), (CLAIM, 2), *RECORD, *RECORD, (AGENT_LOOK, 2),
)  # fmt: skip
_EXCHANGE_STORES = (*PUT_STORES, (SIGNAL, 1), *RECORD, *RECORD)


_SYSTEM_INV = (Spelling("buffer_inv", Policy.SYSTEM), 1)  # what peers' engines wrote
_HAND_OVER_SCOPED = (
    (ARRIVAL, 1), (Spelling("buffer_wbl2", Policy.SYSTEM), 1), (Spelling("buffer_inv", Policy.SC1), 1),
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
        "waves": threads // 64, "max_vgpr": BESIDE_GEMM, "max_sgpr": MAX_SGPR, "lds_bytes": 0,
    }  # fmt: skip
    data = _sdma_data(phase, element_bytes, wire, world)
    if phase == "gather":
        return KernelContract(name, **common, releases=0, polls=(), posts=Posts(0), scoped=(_SYSTEM_INV,), stores=data)
    if not data:  # it only pushes
        return KernelContract(
            name,
            **common,
            releases=0,
            publishes=(Publish(SIGNAL, release=None),),
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
        publishes=(Publish(ARRIVAL, release=Policy.SYSTEM), Publish(SIGNAL, release=Policy.SYSTEM)),
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


# ---- the pulled tail -----------------------------------------------------------------------------------------------

_EPOCH = (Spelling("global_store_dword", Policy.SC1), 1)


def pull_contract(name: str, phase: str, push: str, world: int, wire: str = "") -> KernelContract:
    """A kernel of the tail that pulls."""
    common: dict[str, Any] = {"max_vgpr": BESIDE_GEMM, "max_sgpr": MAX_SGPR}
    if phase == "meet":
        return _meet_contract(name, push, common)
    common["waves"] = _DEFAULT_THREADS // 64
    fences = [(Spelling(f"buffer_{fence}", Policy.SYSTEM), 1) for fence in ("wbl2", "inv")]
    bounded = [Spelling(f"buffer_store_{width}") for width in ("dwordx4", "dwordx2", "byte")]
    if phase == "sum":
        data = [(bounded[1], 1), (bounded[2], 1)] if wire else [(Spelling("global_store_dwordx4"), 1)]
        return KernelContract(
            name, **common, lds_bytes=0, releases=1, ends=Policy.SYSTEM, polls=(), posts=Posts(0),
            scoped=counted(*fences), stores=counted(*data),
        )  # fmt: skip
    return KernelContract(
        name,
        **common,
        lds_bytes=4,
        releases=1,
        publishes=(Publish(SIGNAL, release=Policy.SYSTEM),),
        polls=(Poll(POLL, acquire=Policy.SYSTEM),),
        posts=Posts(0),
        scoped=counted((AGENT_LOOK, 1), (SIGNAL, 1), (POLL, 1), (CLAIM, 1), *RECORD, *fences),
        stores=counted((bounded[0], world), (Spelling("global_store_dword"), 1), (SIGNAL, 1), *RECORD),
    )


def _meet_contract(name: str, push: str, common: dict[str, Any]) -> KernelContract:
    """Ranks meet; where engines push, what the GEMM has not put is put first, and the queues are drained."""
    common |= {"waves": 1, "lds_bytes": 0, "releases": 0, "publishes": (Publish(SIGNAL, release=None),)}
    if push == "sdma":
        return KernelContract(
            name, **common, polls=_FLAG_POLLS, posts=Posts(1, None),
            scoped=counted(*_EXCHANGE_SCOPED, _EPOCH), stores=counted(*_EXCHANGE_STORES, _EPOCH),
        )  # fmt: skip
    stores = (SIGNAL, 1), *RECORD, _EPOCH
    return KernelContract(
        name, **common, polls=(Poll(POLL, acquire=Policy.SYSTEM),), posts=Posts(0),
        scoped=counted((AGENT_LOOK, 2), (POLL, 1), (CLAIM, 1), *stores), stores=counted(*stores),
    )  # fmt: skip


def _pull_of(config: Any) -> KernelContract:
    wire = config.wire.label if config.wire.lossy else ""
    return pull_contract(config.kernel_name, config.phase.value, config.push.value, config.world, wire)


_PULL_NAME = re.compile(r"^tail_(?:(meet)_w([2-8])_(sdma|lsa)|(sum|pull)_w([2-8])(_fp8)?)$")


def _pull_named(match: re.Match[str]) -> KernelContract:
    wire = (match[6] or "").removeprefix("_")
    return pull_contract(match[0], match[1] or match[4], match[3] or "", int(match[2] or match[5]), wire)


# ---- the streamed tail, and the reduce of bands --------------------------------------------------------------------


def stream_contract(name: str, phase: str) -> KernelContract:
    """A kernel of the streamed tail. Chunks are counted by engines, and a wave polls their counts as it polls flags."""
    acquire = (Spelling("buffer_inv", Policy.SYSTEM), 1)
    if phase == "end":
        # Queues, flags of two kinds and chunks, each with a record; whether the call has failed, its epoch, a count.
        records = (*RECORD, *RECORD, *RECORD, *RECORD)
        scoped = (*DRAIN_SCOPED, (SIGNAL, 1), (POLL, 2), (CLAIM, 4), (AGENT_LOOK, 3), acquire, _EPOCH, *records)
        return KernelContract(
            name, waves=1, max_sgpr=MAX_SGPR, max_vgpr=BESIDE_GEMM, lds_bytes=0, releases=0,
            publishes=(Publish(SIGNAL, release=None),), polls=(Poll(POLL, acquire=Policy.SYSTEM, count=3),),
            posts=Posts(0), scoped=counted(*scoped),
            stores=counted((SIGNAL, 1), (Spelling("global_store_dword"), 1), _EPOCH, *records),
        )  # fmt: skip
    posted = (*PUT_SCOPED, *_HAND_OVER_SCOPED, (POLL, 1), (CLAIM, 2), (AGENT_LOOK, 5), acquire, *RECORD, *RECORD)
    return KernelContract(
        name, waves=_DEFAULT_THREADS // 64, max_sgpr=MAX_SGPR, max_vgpr=2 * BESIDE_GEMM, lds_bytes=4, releases=1,
        publishes=(Publish(ARRIVAL, release=Policy.SYSTEM),), polls=(Poll(POLL, acquire=Policy.SYSTEM),),
        posts=Posts(1, Policy.SYSTEM), scoped=counted(*posted),
        stores=counted((Spelling("global_store_dwordx4"), 1), *PUT_STORES, *SIGNAL_STORES, *RECORD, *RECORD),
    )  # fmt: skip


def bands_contract(name: str) -> KernelContract:
    """The reduce of a GEMM that quantises: that of both legs in fp8 without a short group."""
    like = sdma_contract(name, "reduce", 2, _DEFAULT_THREADS, wire="fp8both")
    short_group = Spelling("global_store_byte")
    assert like.stores is not None
    return replace(like, stores=tuple(row for row in like.stores if row[0] != short_group))


_STREAM_NAME = re.compile(r"^tail_stream_(sum|end)_w[2-8]$")
_BANDS_NAME = re.compile(r"^tail_bands_w[2-8]$")


# ---- registry -----------------------------------------------------------------------------------------------------

# By the name of a configuration's type: the audit sees ISA only and imports none of them.
_BY_TYPE: dict[str, Callable[[Any], KernelContract]] = {
    "AllReduceConfig": _all_reduce_of,
    "SdmaConfig": _sdma_of,
    "PullConfig": _pull_of,
    "StreamConfig": lambda c: stream_contract(c.kernel_name, c.phase.value),
    "BandsConfig": lambda c: bands_contract(c.kernel_name),
    "GemmConfig": gemm_of,
    "FusedConfig": fused_of,
    "SmallGemmConfig": lambda c: small_gemm_contract(c.kernel_name, c.rows.value),
    "QuantizeConfig": lambda c: quantize_contract(c.kernel_name, c.recipe.value),
}
_BY_NAME: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], KernelContract | None]], ...] = (
    (_ALL_REDUCE_NAME, _all_reduce_named),
    (_SDMA_NAME, _sdma_named),
    (_PULL_NAME, _pull_named),
    (_STREAM_NAME, lambda m: stream_contract(m[0], m[1])),
    (_BANDS_NAME, lambda m: bands_contract(m[0])),
    (GEMM_NAME, gemm_named),
    (FUSED_NAME, fused_named),
    (SMALL_NAME, lambda m: small_gemm_contract(m[0], int(m[1]))),
    (QUANTIZE_NAME, lambda m: quantize_contract(m[0], m[1])),
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
            return make(match) or undeclared(kernel)
    return undeclared(kernel)
