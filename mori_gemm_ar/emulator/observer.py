# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What a node tells whoever watches its kernels. The default watches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mori_gemm_ar.emulator.group import Group

if TYPE_CHECKING:
    from mori_gemm_ar.emulator.node import Dispatch, KernelLaunch, Node
    from mori_gemm_ar.emulator.pool import Pool
    from mori_gemm_ar.emulator.races.engine import EngineAgent


class Observer:
    """Events of one node. `group` is what generated code calls; `waits`: it wants to hear of `s_waitcnt` too."""

    group: type[Group] = Group
    waits = False

    def engine(self, name: str, gpu: int) -> EngineAgent | None:
        """Whom a copy engine of a GPU tells of its accesses."""
        return None

    def attach(self, node: Node) -> None:
        """The node exists, and has run nothing yet."""

    def release(self) -> None:
        """The node forgets all kernels."""

    def submitted(self, gpu: int, launch: KernelLaunch, idle: bool) -> None:
        """The host hands a kernel to a GPU, which is idle or not."""

    def begin_dispatch(self, dispatch: Dispatch) -> None:
        """A kernel starts."""

    def end_dispatch(self, dispatch: Dispatch) -> None:
        """A kernel has ended."""

    def gpu_idle(self, gpu: int) -> None:
        """All work of a GPU has ended."""

    def hosts_met(self) -> None:
        """The host threads of all ranks have met, or one thread has waited for all GPUs."""

    def begin_workgroup(self, pool: Pool, slot: int, dispatch: Dispatch, number: int) -> None:
        """A workgroup is placed."""

    def end_workgroup(self, pool: Pool, slot: int) -> None:
        """All waves of a workgroup have ended."""

    def joined(self, pool: Pool, slots: Sequence[int]) -> None:
        """All waves of these workgroups are at a barrier and go on."""
