# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""How memory is accessed: cache policies, store widths, atomics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mori_gemm_ar.audit.contract import Spelling
from mori_gemm_ar.audit.findings import Finding, at
from mori_gemm_ar.audit.flow import open_sets
from mori_gemm_ar.audit.operations import Access, Kind
from mori_gemm_ar.audit.policies import Policy
from mori_gemm_ar.audit.subject import Subject

_FENCES = (Kind.WRITEBACK, Kind.INVALIDATE)


def cache_policy(subject: Subject) -> Iterator[Finding]:
    """The accesses that are not plain are those declared, as often as declared (lesson L2).

    Numbers of other generations compile to nothing here, so what counts is the text.
    """
    for index, op in enumerate(subject.ops):
        if op.kind in _FENCES and op.access is not None and not op.access.policy.scoped:
            yield at(
                subject.code[index], f"a {op.access.kind.value} must name a scope: sc1 (agent) or sc0 sc1 (system)"
            )
    if subject.contract.scoped is not None:
        yield from _as_declared(subject, subject.contract.scoped, lambda access: access.policy is not Policy.PLAIN)


def store_widths(subject: Subject) -> Iterator[Finding]:
    """The stores to global memory are those declared: mnemonics, and how many of each (lesson L36)."""
    if subject.contract.stores is not None:
        yield from _as_declared(subject, subject.contract.stores, lambda access: access.kind is Kind.STORE)


def _as_declared(
    subject: Subject, declared: tuple[tuple[Spelling, int], ...], counts: Callable[[Access], bool]
) -> Iterator[Finding]:
    places: dict[Spelling, list[int]] = {spelling: [] for spelling, _ in declared}
    for index, op in enumerate(subject.ops):
        if op.access is not None and counts(op.access):
            spelling = subject.spelling(index)
            if spelling in places:
                places[spelling].append(index)
            else:
                yield at(subject.code[index], f"{spelling} is not among what the kernel declares")
    for spelling, count in declared:
        found = places[spelling]
        if len(found) != count:
            lines = ", ".join(str(subject.line(n)) for n in found) or "none"
            yield Finding(0, str(spelling), f"the text must hold {count} of them, not {len(found)}; lines: {lines}")


def peer_atomics(subject: Subject) -> Iterator[Finding]:
    """No atomic has sc1: a read-modify-write of peer memory is not atomic over the links."""
    for index, op in enumerate(subject.ops):
        if op.kind is Kind.ATOMIC and op.access is not None and op.access.policy.scoped:
            yield at(subject.code[index], "an atomic with sc1 may read, modify and write another GPU's memory")


def store_order(subject: Subject) -> Iterator[Finding]:
    """System-scope stores that are told apart only by order, such as an error record, wait for each other.

    Between two such stores on one path stands s_waitcnt vmcnt(0): the status word, written last, arrives last.
    """
    publishes = {publish.access for publish in subject.contract.publishes}
    ordered = {s for s, _ in subject.contract.scoped or () if "_store_" in s.name and s.policy.scoped} - publishes
    ops = subject.ops
    members = {n for n, op in enumerate(ops) if op.kind is Kind.STORE and subject.spelling(n) in ordered}
    for post in subject.posts:  # doorbell_order looks at those
        members -= set(subject.flow.indices(post.blocks))
    if not members:
        return

    def step(open_: frozenset[int], index: int) -> frozenset[int]:
        if ops[index].wait_vm == 0:
            return frozenset()
        return frozenset({index}) if index in members else open_

    for index, open_ in open_sets(subject.flow, step):
        if open_ and index in members:
            lines = ", ".join(str(subject.line(n)) for n in sorted(open_))
            yield at(subject.code[index], f"comes before s_waitcnt vmcnt(0) for the store of line {lines}")
