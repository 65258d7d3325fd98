# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What can be proved: a pipeline of one or more kernels with the scenarios that exercise it.

Kinds of pipelines stand in modules of their own; `registry` lists them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from mori_gemm_ar.compile.store import CodeObject, default_store
from mori_gemm_ar.emulator import Node
from mori_gemm_ar.emulator.adversary import Adversary
from mori_gemm_ar.emulator.node import DEFAULT_RESIDENCY
from mori_gemm_ar.emulator.races import RaceDetector
from mori_gemm_ar.emulator.weak import WeakMemory

# Picks the code object that a rank runs: (rank, name of the kernel in its pipeline, shipped code).
Codes = Callable[[int, str, CodeObject], CodeObject]


class WrongResult(AssertionError):
    """A result differs from the reference."""


@dataclass(frozen=True, slots=True)
class ProvedKernel:
    """One kernel of a pipeline. `name` is short and unique there; `config` is what the audit holds it against.

    since: line from which it is mutated, where another pipeline proves what comes before.
    """

    name: str
    code: CodeObject
    config: Any
    since: int = 1

    @classmethod
    def shipped(cls, name: str, config: Any) -> ProvedKernel:
        """The kernel that the store has for a configuration."""
        return cls(name, default_store().get(config), config)


class Pipeline(Protocol):
    """Kernels that are proved together. Frozen and cheap to make: worker processes find it by name."""

    def __hash__(self) -> int:
        """Of its configuration."""

    @property
    def name(self) -> str:
        """Unique among all pipelines."""

    @property
    def world(self) -> int:
        """Ranks; each may run other code."""

    def kernels(self) -> tuple[ProvedKernel, ...]:
        """All kernels; each is mutated alone."""

    def exercise(self, seed: int, codes: Codes, adversary: Adversary | None = ...) -> None:
        """Run the scenarios with the code objects that `codes` picks.

        Raises `WrongResult` or the error of the library. Without an adversary named, the one that finds most here;
        None is functional mode.
        """


def watched_node(
    gpus: int, seed: int, adversary: Adversary | None, *, races: bool, residency: int = DEFAULT_RESIDENCY
) -> Node:
    """A node to prove something on: weak memory, or functional without an adversary; with the race detector or not.

    residency: workgroups of a kernel that a GPU holds at a time.
    """
    memory = None if adversary is None else WeakMemory(seed, adversary)
    return Node(gpus, residency=residency, memory=memory, races=RaceDetector() if races else None)


def kernel_named(pipeline: Pipeline, name: str) -> ProvedKernel:
    """The kernel of that name in a pipeline; KeyError for another name."""
    return {kernel.name: kernel for kernel in pipeline.kernels()}[name]


def original(rank: int, kernel: str, code: CodeObject) -> CodeObject:
    """Every rank runs the shipped code."""
    return code


def mutated(kernel: str, isa: str, ranks: frozenset[int]) -> Codes:
    """The given ranks run other ISA text for one kernel."""

    def pick(rank: int, name: str, code: CodeObject) -> CodeObject:
        return replace(code, isa=isa) if name == kernel and rank in ranks else code

    return pick
