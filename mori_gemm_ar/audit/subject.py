# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What the rules look at: a kernel with its contract and the analyses that several rules share, each made once."""

from __future__ import annotations

from functools import cached_property

from mori_gemm_ar.audit.contract import KernelContract, Spelling
from mori_gemm_ar.audit.flow import Flow
from mori_gemm_ar.audit.lockstep import WaveGraph
from mori_gemm_ar.audit.operations import Op, decode
from mori_gemm_ar.audit.posting import Post, find_posts
from mori_gemm_ar.audit.timeline import Timeline, Track
from mori_gemm_ar.audit.uniform import Uniformity, Way
from mori_gemm_ar.audit.values import LANES
from mori_gemm_ar.isa import Instruction, Kernel


class Subject:
    """One kernel under audit."""

    def __init__(self, kernel: Kernel, contract: KernelContract) -> None:
        self.kernel, self.contract = kernel, contract
        self.code: tuple[Instruction, ...] = kernel.instructions
        self.ops: list[Op] = [decode(i) for i in kernel.instructions]

    @cached_property
    def waves(self) -> int:
        """Waves of a workgroup, as declared, or as large as the text allows."""
        return self.contract.waves or max(1, self.kernel.metadata.get("max_flat_workgroup_size", LANES) // LANES)

    @cached_property
    def flow(self) -> Flow:
        """Blocks, dominators and loops."""
        return Flow(self.kernel)

    @cached_property
    def uniformity(self) -> Uniformity:
        """What is known of the branches."""
        return Uniformity(self.flow, self.ops, self.waves)

    @cached_property
    def wave_classes(self) -> dict[int, tuple[int, ...]]:
        """Waves that take the same known ways, by their first one."""
        known = [d.taken for d in self.uniformity.decisions.values() if d.way is Way.KNOWN]
        classes: dict[tuple[bool, ...], list[int]] = {}
        for wave in range(self.waves):
            classes.setdefault(tuple(taken[wave] for taken in known), []).append(wave)
        return {waves[0]: tuple(waves) for waves in classes.values()}

    @cached_property
    def graphs(self) -> dict[int, WaveGraph]:
        """What each class of waves can walk, by its first wave."""
        return {w: WaveGraph(self.flow, self.ops, self.uniformity.decisions, w) for w in self.wave_classes}

    @cached_property
    def timeline(self) -> Timeline:
        """The workgroup walked barrier by barrier."""
        return Timeline(self.flow, self.ops, self.waves)

    @cached_property
    def walks(self) -> list[list[Track]]:
        """What all waves do to LDS on each walk."""
        return list(self.timeline.walks())

    @cached_property
    def publishing(self) -> list[int]:
        """Instructions that are declared to publish; a doorbell tells an engine and has a rule of its own."""
        wanted = {publish.access for publish in self.contract.publishes}
        own = {n for post in self.posts for n in (post.pointer, post.doorbell)}
        found = [n for n, op in enumerate(self.ops) if op.access is not None and self.spelling(n) in wanted]
        return [n for n in found if n not in own]

    @cached_property
    def posts(self) -> list[Post]:
        """Where it gives work to copy engines."""
        return find_posts(self.flow, self.ops)

    @cached_property
    def ring_stores(self) -> frozenset[int]:
        """Stores to the rings of copy engines."""
        return frozenset().union(*(post.ring for post in self.posts))

    def spelling(self, index: int) -> Spelling:
        """Mnemonic and policy of a memory instruction."""
        access = self.ops[index].access
        assert access is not None
        return Spelling(self.ops[index].name, access.policy)

    def line(self, index: int) -> int:
        """Line of an instruction in the text."""
        return self.code[index].line
