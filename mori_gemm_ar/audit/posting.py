# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Where a kernel gives work to copy engines (kernels/device/sdma.ll), found by how the text must look.

A doorbell is a store of system scope right behind one of agent scope, the write pointer, of the same registers. The
loop around it is the post: its plain stores go to the ring, which no cache holds, and its waits are for the ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mori_gemm_ar.audit.flow import Flow
from mori_gemm_ar.audit.operations import Kind, Op
from mori_gemm_ar.audit.policies import Policy


@dataclass(frozen=True, slots=True)
class Post:
    """One post: its write pointer and doorbell, the blocks of its loop, and its stores to the ring."""

    pointer: int
    doorbell: int
    blocks: frozenset[int]
    ring: frozenset[int]


def find_posts(flow: Flow, ops: Sequence[Op]) -> list[Post]:
    """All posts, in program order."""
    posts = []
    for block in flow.blocks:
        pointer: int | None = None
        for index in range(block.start, block.end):
            access = ops[index].access
            if access is None or access.space == "lds":
                continue
            if pointer is not None and _rings(flow, ops, pointer, index):
                blocks = _innermost(flow, block.number)
                posts.append(Post(pointer, index, blocks, _plain_stores(flow, ops, blocks)))
            told = access.kind is Kind.STORE and access.policy is Policy.SC1
            pointer = index if told else None
    return posts


def _rings(flow: Flow, ops: Sequence[Op], pointer: int, index: int) -> bool:
    access = ops[index].access
    if access is None or access.kind is not Kind.STORE or access.policy is not Policy.SYSTEM:
        return False
    first, second = flow.kernel.instructions[pointer], flow.kernel.instructions[index]
    return first.name == second.name and first.operands[1] == second.operands[1]


def _innermost(flow: Flow, block: int) -> frozenset[int]:
    loops = [loop.blocks for loop in flow.loops if block in loop.blocks]
    return min(loops, key=len, default=frozenset())


def _plain_stores(flow: Flow, ops: Sequence[Op], blocks: frozenset[int]) -> frozenset[int]:
    found = set()
    for index in flow.indices(blocks):
        access = ops[index].access
        if access is not None and access.kind is Kind.STORE and not access.policy.scoped:
            found.add(index)
    return frozenset(found)
