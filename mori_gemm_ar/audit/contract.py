# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Terms in which kernels declare what the rules hold them against."""

from __future__ import annotations

from dataclasses import dataclass

from mori_gemm_ar.audit.policies import Policy
from mori_gemm_ar.errors import IsaError

MAX_SGPR = 102  # what a wave can have; the count of the metadata adds vcc and traps
BESIDE_GEMM = 64  # vector registers that a block may have to fit beside one of a GEMM
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
    acquire: of a counter whose last arriver acts for all: the invalidate that must follow before it does anything.
    """

    access: Spelling
    release: Policy | None
    count: int = 1
    acquire: Policy | None = None


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
    ends: Policy | None = None  # what must be released when it ends, because the next kernel tells others of it
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


# ---- spellings that several kernels share ----

SIGNAL = Spelling("global_store_dwordx2", Policy.SYSTEM)
POLL = Spelling("global_load_dwordx2", Policy.SYSTEM)
CLAIM = Spelling("global_atomic_cmpswap", Policy.SC0)
# The error record: last word, then four words, then four with the status.
RECORD = ((Spelling("global_store_dword", Policy.SYSTEM), 1), (Spelling("global_store_dwordx4", Policy.SYSTEM), 2))
AGENT_LOOK = Spelling("global_load_dword", Policy.SC1)
ARRIVAL = Spelling("global_atomic_inc", Policy.SC0)


def counted(*rows: tuple[Spelling, int]) -> tuple[tuple[Spelling, int], ...]:
    """Rows with equal spellings added up."""
    counts: dict[Spelling, int] = {}
    for spelling, count in rows:
        counts[spelling] = counts.get(spelling, 0) + count
    return tuple(counts.items())


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
