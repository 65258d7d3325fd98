# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Compile keys of the kernels that check a machine against the model: texts of assembly, litmus tests, small loads."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum

from mori_gemm_ar.layout.rules import reason_not_int, reason_not_member, require
from mori_gemm_ar.layout.terms import WAVE_LANES

HANDOVER_WORDS = WAVE_LANES  # 32-bit words that a litmus test hands over, one for each lane
# Outcomes of one iteration, as counters in this order in a result's first words.
OUTCOMES = ("current", "old", "late")
MAX_COPIES = 8  # copies to LDS that one test has under way


class Scope(Enum):
    """How far a release or an acquire reaches."""

    NONE = "none"
    AGENT = "agent"  # this GPU
    SYSTEM = "system"  # all GPUs and engines


class Arrival(Enum):
    """How the poster of a put knows that it has landed before it says so."""

    DRAIN = "drain"  # the queue's read pointer has passed it
    SIGNAL = "signal"  # the engine's atomic behind it has counted, and the reader polls that
    NONE = "none"  # the reader polls the second put's own bytes


@dataclass(frozen=True, slots=True)
class AssemblyConfig:
    """A kernel of one wave whose body is `text`, with three scalar pairs $0 to $2 and a vector $3.

    $0 and $1: addresses of this workgroup's input and output; $2: of its memory; $3: 4 * lane. `clobbers` are LLVM
    constraints of all registers that the text changes. `lds_bytes` from LDS address 0 on are its own.
    """

    name: str
    text: str
    clobbers: str
    lds_bytes: int = 0

    @property
    def key(self) -> str:
        """Name and hash of the content."""
        content = f"{self.text}\0{self.clobbers}\0{self.lds_bytes}"
        return f"assembly_{self.name}_{hashlib.sha256(content.encode()).hexdigest()[:12]}"

    @property
    def kernel_name(self) -> str:
        return self.key


class Path(Enum):
    """Which side's accesses to the words go through caches; the flag's never do."""

    CACHED = "cached"  # both
    READ_DIRECT = "read-direct"  # the reader's are of system scope, so the release alone has to do
    WRITE_DIRECT = "write-direct"  # the writer's are, so the acquire alone has to do


@dataclass(frozen=True, slots=True)
class MessageConfig:
    """Message passing: write 64 words, release, raise a flag; see the flag, acquire, read."""

    release: Scope
    acquire: Scope
    # Who writes back: the workgroup that wrote, or one beside it on behalf of all.
    own_release: bool = True
    path: Path = Path.CACHED

    @property
    def key(self) -> str:
        """Stable and unique for each config."""
        path = "" if self.path is Path.CACHED else f"_{self.path.value.replace('-', '_')}"
        return f"message_{self.release.value}_{self.acquire.value}{path}" + ("" if self.own_release else "_foreign")

    @property
    def kernel_name(self) -> str:
        return self.key


@dataclass(frozen=True, slots=True)
class BufferingConfig:
    """Store buffering: each side stores its word and reads the other's; `waits` for the store in between."""

    waits: bool

    @property
    def key(self) -> str:
        """Stable and unique for each config."""
        return f"buffering_{'wait' if self.waits else 'free'}"

    @property
    def kernel_name(self) -> str:
        return self.key


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Words handed over by a copy engine: written, released or not, put, told, acquired or not, read."""

    release: bool
    arrival: Arrival
    acquire: Scope
    puts: int = 1  # 2: a long put, then a short one whose landing is looked for

    def __post_init__(self) -> None:
        require(
            reason_not_int("puts", self.puts, 1, 2, "one, or two of which the second is watched")
            or reason_not_member("arrival", self.arrival, Arrival, "name how a put is known to have landed")
        )

    @property
    def key(self) -> str:
        """Stable and unique for each config."""
        release = "release" if self.release else "dirty"
        return f"engine_{release}_{self.arrival.value}_{self.acquire.value}_{self.puts}"

    @property
    def kernel_name(self) -> str:
        return self.key


@dataclass(frozen=True, slots=True)
class CopiesConfig:
    """Copies to LDS: `MAX_COPIES` are started, all but `allowed` of them waited for, then the first `read` are read."""

    allowed: int
    read: int

    def __post_init__(self) -> None:
        require(
            reason_not_int("allowed", self.allowed, 0, MAX_COPIES, "copies that may be under way")
            or reason_not_int("read", self.read, 1, MAX_COPIES, "copies that are looked at")
        )

    @property
    def key(self) -> str:
        """Stable and unique for each config."""
        return f"copies_{self.allowed}_{self.read}"

    @property
    def kernel_name(self) -> str:
        return self.key


class Load(Enum):
    """What a microbenchmark's kernel does."""

    NOTHING = "nothing"
    PUTS = "puts"  # one wave posts puts to each peer and drains
    RELEASES = "releases"  # every wave writes a word and releases
    SUM = "sum"  # local slices are summed into one
    PULL = "pull"  # every peer's bytes are loaded


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """A microbenchmark's kernel. `parts`: slices that SUM adds, ranks of PULL; 1 elsewhere."""

    load: Load
    scope: Scope = Scope.NONE
    waves: int = 1
    parts: int = 1

    def __post_init__(self) -> None:
        require(
            reason_not_member("load", self.load, Load, "name a load")
            or reason_not_int("waves", self.waves, 1, 16, "waves of a workgroup")
            or reason_not_int("parts", self.parts, 1, 8, "slices, at most one for each rank")
        )

    @property
    def key(self) -> str:
        """Stable and unique for each config."""
        scope = "" if self.scope is Scope.NONE else f"_{self.scope.value}"
        parts = "" if self.parts == 1 else f"_p{self.parts}"
        return f"load_{self.load.value}{scope}_w{self.waves}{parts}"

    @property
    def kernel_name(self) -> str:
        return self.key
