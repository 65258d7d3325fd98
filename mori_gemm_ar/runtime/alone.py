# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""A world of one rank that needs no rendezvous, for ops that do not communicate."""

from __future__ import annotations

from collections.abc import Callable

from mori_gemm_ar.emulator import Node
from mori_gemm_ar.runtime.emulated import EmulatedTarget
from mori_gemm_ar.runtime.select import open_target
from mori_gemm_ar.runtime.symmetric import LocalBacking
from mori_gemm_ar.runtime.target import Target


class AloneWorld:
    """Rank 0 of 1. Emulated work runs on a node of its own, in the calling thread."""

    rank, size = 0, 1

    def __init__(self, node: Node | None = None) -> None:
        self.node = node or Node(1)
        self.backing = LocalBacking(self.node.regions)

    def target(self, device: str = "auto") -> Target:
        """The caller's device: "auto", "rocm" or "emulated"."""
        return open_target(self, device, lambda: EmulatedTarget(self))

    def exchange(self, step: str, value: object) -> list[object]:
        """The own value."""
        return [value]

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Run the node until `condition()` holds."""
        while not condition():
            self.node.step()

    def give_up(self, reason: str) -> None:
        """Nobody waits."""

    def absent(self) -> dict[int, str]:
        """Nobody is missing."""
        return {}
