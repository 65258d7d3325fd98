# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Work for copy engines: what they read is in memory, and so is the packet, before the doorbell rings."""

from __future__ import annotations

from collections.abc import Iterator

from mori_gemm_ar.audit.findings import Finding, at
from mori_gemm_ar.audit.flow import open_sets
from mori_gemm_ar.audit.operations import Kind
from mori_gemm_ar.audit.policies import Policy
from mori_gemm_ar.audit.rules.publication import release_states, unreleased
from mori_gemm_ar.audit.subject import Subject


def doorbell_order(subject: Subject) -> Iterator[Finding]:
    """Source released, packet, vmcnt(0), write pointer, doorbell, vmcnt(0), turn passed on (lessons L10, L13, L16)."""
    posts, declared = subject.posts, subject.contract.posts
    if declared is not None and len(posts) != declared.count:
        text = f"the text must post to copy engines at {declared.count} places, not {len(posts)}"
        yield Finding(0, "doorbell", text)
    if not posts:
        return
    yield from _packets(subject)
    yield from _turns(subject)
    if declared is None or declared.release is None:
        return
    doorbells = {post.doorbell for post in posts}
    for index, state in release_states(subject):
        if index in doorbells and (why := unreleased(state, declared.release)):
            yield at(subject.code[index], why)


def _packets(subject: Subject) -> Iterator[Finding]:
    """The ring's stores have left the wave when the engine may hear of them."""
    telling = {n for post in subject.posts for n in (post.pointer, post.doorbell)}

    def step(open_: frozenset[int], index: int) -> frozenset[int]:
        if index in subject.ring_stores:
            return open_ | {index}
        return frozenset() if subject.ops[index].wait_vm == 0 else open_

    for index, open_ in open_sets(subject.flow, step):
        if open_ and index in telling:
            lines = ", ".join(str(subject.line(n)) for n in sorted(open_))
            yield at(subject.code[index], f"comes before s_waitcnt vmcnt(0) for the packets stored at line {lines}")


def _turns(subject: Subject) -> Iterator[Finding]:
    """Who sees the turn passed on may ring at once, and must not be overtaken by this doorbell."""
    doorbells = {post.doorbell for post in subject.posts}
    blocks = frozenset().union(*(post.blocks for post in subject.posts))

    def step(open_: frozenset[int], index: int) -> frozenset[int]:
        if index in doorbells:
            return open_ | {index}
        return frozenset() if subject.ops[index].wait_vm == 0 else open_

    for index, open_ in open_sets(subject.flow, step):
        access = subject.ops[index].access
        if not open_ or access is None or subject.flow.block_of[index] not in blocks:
            continue
        if access.kind is Kind.STORE and access.policy is Policy.SC1:
            lines = ", ".join(str(subject.line(n)) for n in sorted(open_))
            yield at(
                subject.code[index], f"passes the turn on before s_waitcnt vmcnt(0) for the doorbell at line {lines}"
            )
