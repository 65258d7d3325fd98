# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""No register is used before the load that brings its value is waited for."""

from __future__ import annotations

from collections.abc import Iterator

from mori_gemm_ar.audit.counters import Pending
from mori_gemm_ar.audit.findings import Finding, at
from mori_gemm_ar.audit.flow import states
from mori_gemm_ar.audit.registers import names_of
from mori_gemm_ar.audit.subject import Subject


def register_waits(subject: Subject) -> Iterator[Finding]:
    """Every register that is read, or written again, is covered by a wait for its load on all paths."""
    ops = subject.ops
    for index, pending in states(subject.flow, Pending(), lambda state, n: state.after(ops[n]), Pending.joined):
        op = ops[index]
        if op.reads & pending.everything:
            yield _finding(subject, index, op.reads & pending.everything, "reads")
        elif op.writes & pending.everything and (hit := pending.overwritten(op)):
            yield _finding(subject, index, hit, "writes")


def _finding(subject: Subject, index: int, registers: int, verb: str) -> Finding:
    loads = [i for i, op in zip(subject.code, subject.ops, strict=True) if op.loads & registers]
    sources = ", ".join(f"line {i.line} ({i.name})" for i in loads[:3])
    return at(subject.code[index], f"{verb} {names_of(registers)} on a path with no wait for its load: {sources}")
