# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The litmus tests: one for each row of the scope table, and for each thing that the proof takes for granted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from mori_gemm_ar.layout.hwcheck import (
    MAX_COPIES,
    Arrival,
    BufferingConfig,
    CopiesConfig,
    EngineConfig,
    MessageConfig,
    Path,
    Scope,
)

LENGTH = 1 << 16  # bytes of the first put of an engine test


class Side(Enum):
    """Whose memory holds what is handed over."""

    WRITER = "writer"
    READER = "reader"


@dataclass(frozen=True, slots=True)
class Litmus:
    """One test. `model`: what orders the reader's load behind the write; `forbids_old`: whether that is enough."""

    name: str
    config: Any
    model: str
    forbids_old: bool
    across: bool = True  # between two GPUs
    data: Side = Side.READER
    second_queue: int = 0  # of the second put

    @property
    def engine(self) -> bool:
        """Whether a copy engine takes part."""
        return isinstance(self.config, EngineConfig)

    @property
    def helper(self) -> bool:
        """Whether another workgroup releases for the writer."""
        return isinstance(self.config, MessageConfig) and not self.config.own_release


RELEASE_ALONE = "release alone, read by loads of system scope"
ACQUIRE_ALONE = "acquire alone, written by stores of system scope"
_AGENT, _SYSTEM, _NONE = Scope.AGENT, Scope.SYSTEM, Scope.NONE


def _boundary(allowed: int, read: int) -> Litmus:
    """Copies are read that the wait has to cover, or one more than it has to."""
    model = f"a barrier that leaves {allowed} of {MAX_COPIES} copies to LDS under way, reading {read}"
    name = f"L6 boundary: {allowed} under way, {read} read"
    return Litmus(name, CopiesConfig(allowed, read), model, read <= MAX_COPIES - allowed, across=False)


COPIES_TESTS = (_boundary(MAX_COPIES - 4, 4), _boundary(MAX_COPIES - 3, 4), _boundary(0, MAX_COPIES))

LOCAL_TESTS = (
    Litmus(
        "scope: data between workgroups of one GPU, agent", MessageConfig(_AGENT, _AGENT),
        "release and acquire at agent scope", True, across=False,
    ),
    Litmus(
        "message passing without a release, one GPU", MessageConfig(_NONE, _AGENT),
        "an acquire at agent scope alone", False, across=False,
    ),
    Litmus(
        "message passing without an acquire, one GPU", MessageConfig(_AGENT, _NONE),
        "a release at agent scope alone", False, across=False,
    ),
)  # fmt: skip

PAIR_TESTS = (
    Litmus(
        "scope: stores to a peer, system", MessageConfig(_SYSTEM, _SYSTEM),
        "release and acquire at system scope", True,
    ),
    Litmus(
        "scope: loads from a peer, system", MessageConfig(_SYSTEM, _SYSTEM),
        "release and acquire at system scope", True, data=Side.WRITER,
    ),
    Litmus(
        "scope: agent release of stores to a peer", MessageConfig(_AGENT, _SYSTEM),
        "a release at agent scope", False,
    ),
    Litmus(
        "scope: agent acquire of what a peer wrote", MessageConfig(_SYSTEM, _AGENT),
        "an acquire at agent scope", False,
    ),
    Litmus(
        "release by another workgroup", MessageConfig(_SYSTEM, _SYSTEM, own_release=False),
        "a release by a workgroup that did not write", False,
    ),
    Litmus(
        RELEASE_ALONE, MessageConfig(_SYSTEM, _NONE, path=Path.READ_DIRECT),
        "a release at system scope, loads of system scope", True,
    ),
    Litmus(
        ACQUIRE_ALONE, MessageConfig(_NONE, _SYSTEM, path=Path.WRITE_DIRECT),
        "stores of system scope, an acquire at system scope", True,
    ),
    Litmus("stale line", MessageConfig(_SYSTEM, _NONE), "a release at system scope, no acquire", False),
    Litmus("store buffering with a wait", BufferingConfig(True), "a wait for the own store before the load", True),
    Litmus("store buffering without a wait", BufferingConfig(False), "program order alone", False),
)  # fmt: skip

ENGINE_TESTS = (
    Litmus(
        "scope: data that an engine reads, agent", EngineConfig(True, Arrival.DRAIN, _SYSTEM),
        "a release at agent scope before the put, a drain after it, an acquire at system scope", True,
    ),
    Litmus(
        "engine reads a dirty line", EngineConfig(False, Arrival.DRAIN, _SYSTEM),
        "no release before the put", False,
    ),
    Litmus(
        "scope: what an engine wrote, without an acquire", EngineConfig(True, Arrival.DRAIN, _NONE),
        "no acquire of what an engine wrote", False,
    ),
    Litmus(
        "trailing atomic", EngineConfig(True, Arrival.SIGNAL, _SYSTEM),
        "an atomic of the engine behind the copy", True,
    ),
    Litmus(
        "copy after copy in one queue", EngineConfig(True, Arrival.NONE, _SYSTEM, 2),
        "two copies of one queue, nothing between", False,
    ),
    Litmus(
        "copy after copy in one queue, drained between", EngineConfig(True, Arrival.DRAIN, _SYSTEM, 2),
        "a drain between two copies of one queue", True,
    ),
    Litmus(
        "two queues to one peer", EngineConfig(True, Arrival.NONE, _SYSTEM, 2),
        "two copies on two queues, nothing between", False, second_queue=1,
    ),
    Litmus(
        "two queues to one peer, drained between", EngineConfig(True, Arrival.DRAIN, _SYSTEM, 2),
        "a drain of the first queue before the second one's put", True, second_queue=1,
    ),
)  # fmt: skip
