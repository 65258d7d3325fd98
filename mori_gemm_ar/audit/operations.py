# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What an instruction means to the audit: registers, memory access, wait counters.

Counters of gfx950: vmcnt counts vector memory loads, stores and atomics, which finish in order, and L2 writebacks;
lgkmcnt counts LDS operations, which finish in order among themselves, and scalar loads and clock reads, which do not.
FLAT accesses count in both and may finish out of order. expcnt counts exports only, which compute kernels have none of.
A writeback is waited for by vmcnt(0), but never counted on to make a count larger: not all tools agree that it does.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from mori_gemm_ar.audit.policies import Policy, policy_of
from mori_gemm_ar.audit.registers import CACHE, LDS, VMEM, is_lds_copy, reads_writes
from mori_gemm_ar.errors import IsaError
from mori_gemm_ar.isa import Instruction
from mori_gemm_ar.isa.cfg import is_branch


class Kind(enum.Enum):
    """What a memory instruction does."""

    LOAD = "load"  # memory to registers
    STORE = "store"
    ATOMIC = "atomic"
    COPY = "copy"  # memory to LDS, past the registers
    SCALAR_LOAD = "scalar load"
    CLOCK = "clock"
    LDS_READ = "ds_read"
    LDS_WRITE = "ds_write"
    EXCHANGE = "exchange"  # between lanes, through the LDS hardware but not its memory
    WRITEBACK = "writeback"
    INVALIDATE = "invalidate"


@dataclass(frozen=True, slots=True)
class Access:
    """One memory access; `nbytes` counts a lane's bytes, 0 where there are none."""

    kind: Kind
    space: str  # "global", "buffer", "flat", "scratch", "lds", "scalar", "cache"
    nbytes: int
    policy: Policy


class Op:
    """One decoded instruction. Register sets are ints (see audit.registers)."""

    __slots__ = (
        "access", "barrier", "branch", "ends", "flat", "kind", "lds", "loads", "name", "reads", "smem", "vm",
        "wait_lgkm", "wait_vm", "writes",
    )  # fmt: skip

    def __init__(self, i: Instruction) -> None:
        self.name = i.name
        self.reads, self.writes = reads_writes(i)
        self.access = _access(i)
        self.kind = kind = None if self.access is None else self.access.kind
        # The value arrives when a counter says so. Exchanges between lanes count as LDS operations.
        self.loads = self.writes if kind not in (None, Kind.WRITEBACK, Kind.INVALIDATE) else 0
        self.flat = i.name.startswith("flat_")
        self.vm = VMEM.match(i.name) is not None and not self.flat
        self.lds = kind in (Kind.LDS_READ, Kind.LDS_WRITE, Kind.EXCHANGE)
        self.smem = kind in (Kind.SCALAR_LOAD, Kind.CLOCK)
        self.barrier = i.name == "s_barrier"
        self.branch = is_branch(i)
        self.ends = i.name in ("s_endpgm", "s_endpgm_saved")
        self.wait_vm, self.wait_lgkm = _waits(i)


_CACHE: dict[str, Op] = {}
_CACHE_LIMIT = 200_000


def decode(i: Instruction) -> Op:
    """The operation of an instruction; equal texts share one."""
    op = _CACHE.get(i.text)
    if op is None:
        if len(_CACHE) >= _CACHE_LIMIT:
            _CACHE.clear()
        op = _CACHE[i.text] = Op(i)
    return op


# ---- accesses -----------------------------------------------------------------------------------------------------

_WIDTHS = (
    (re.compile(r"(dwordx4|b128)"), 16),
    (re.compile(r"(dwordx3|b96)"), 12),
    (re.compile(r"(dwordx2|_x2$|b64|pk_add_f64|add_f64)"), 8),
    (re.compile(r"(byte|_[ui]8|_b8)"), 1),
    (re.compile(r"(short|_[ui]16|_b16)"), 2),
)


def _width(name: str) -> int:
    name = re.sub(r"_tr_b\d+$", "", name)
    twice = 2 if re.match(r"ds_(read|write)2", name) else 1
    for pattern, nbytes in _WIDTHS:
        if pattern.search(name):
            return twice * nbytes
    return twice * 4


def _scalar_width(name: str) -> int:
    match = re.search(r"dword(?:x(\d+))?$", name)
    return 4 * int(match[1] or 1) if match else 8


def _access(i: Instruction) -> Access | None:
    name = i.name
    if name in CACHE:
        kind = Kind.WRITEBACK if name == "buffer_wbl2" else Kind.INVALIDATE
        return Access(kind, "cache", 0, policy_of(i))
    if VMEM.match(name):
        space, action = name.split("_")[:2]
        kind = Kind.COPY if is_lds_copy(i) else Kind(action)
        return Access(kind, space, _width(name), policy_of(i))
    if LDS.match(name):
        if name.startswith(("ds_bpermute", "ds_permute", "ds_swizzle")):
            kind = Kind.EXCHANGE
        else:
            kind = Kind.LDS_READ if name.startswith("ds_read") else Kind.LDS_WRITE
        return Access(kind, "lds", _width(name), Policy.PLAIN)
    if name.startswith(("s_load_dword", "s_buffer_load_dword")):
        return Access(Kind.SCALAR_LOAD, "scalar", _scalar_width(name), Policy.PLAIN)
    if name in ("s_memtime", "s_memrealtime"):
        return Access(Kind.CLOCK, "scalar", 8, Policy.PLAIN)
    return None


# ---- waits --------------------------------------------------------------------------------------------------------

_WAIT = re.compile(r"^(vmcnt|lgkmcnt|expcnt)\((\d+)\)$")
VM_LIMIT, LGKM_LIMIT = 63, 15  # the largest counts that a wait can name; they wait for nothing


def _waits(i: Instruction) -> tuple[int | None, int | None]:
    """(vmcnt, lgkmcnt) operand of a wait; None where it does not wait for that counter."""
    if i.name != "s_waitcnt":
        return None, None
    counts: dict[str, int] = {}
    for operand in i.operands:
        word = str(operand)
        match = _WAIT.match(word)
        if match:
            counts[match[1]] = int(match[2])
        elif word.isdigit() or word.startswith("0x"):
            bits = int(word, 0)
            counts["vmcnt"] = bits & 15 | bits >> 10 & 48
            counts["lgkmcnt"] = bits >> 8 & 15
        else:
            raise IsaError(f"{i}: wait {word!r} must name vmcnt, lgkmcnt or expcnt")
    vm, lgkm = counts.get("vmcnt", VM_LIMIT), counts.get("lgkmcnt", LGKM_LIMIT)
    return (None if vm >= VM_LIMIT else vm), (None if lgkm >= LGKM_LIMIT else lgkm)
