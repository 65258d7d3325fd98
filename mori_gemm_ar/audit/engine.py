# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""All rules on one kernel."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from mori_gemm_ar.audit.contract import KernelContract
from mori_gemm_ar.audit.contracts import contract_named, contract_of
from mori_gemm_ar.audit.findings import AuditReport, RuleResult
from mori_gemm_ar.audit.rules import RULES, Rule
from mori_gemm_ar.audit.subject import Subject
from mori_gemm_ar.errors import IsaError
from mori_gemm_ar.isa import Kernel, parse_isa

# Expressions are shared objects and compared by identity: two audits at a time could each make one of their own.
_lock = threading.RLock()


def audit_kernel(kernel: Kernel, contract: KernelContract, rules: Sequence[Rule] = RULES) -> AuditReport:
    """Hold a kernel against its contract and the rules that need none.

    Findings come in the order of the text. Raises `IsaError` for an instruction that the audit does not know.
    """
    results = []
    with _lock:
        subject = Subject(kernel, contract)
        for rule in rules:
            findings = tuple(sorted(set(rule(subject)), key=lambda f: (f.line, f.why)))
            results.append(RuleResult(rule.__name__, not findings, findings))
    return AuditReport(kernel.name, tuple(results))


def audit_text(isa: str, config: Any, rules: Sequence[Rule] = RULES) -> AuditReport:
    """`audit_kernel` for the text of a configuration's kernel."""
    return audit_kernel(parse_isa(isa).kernel(config.kernel_name), contract_of(config), rules)


def verdict(isa: str, kernel: str) -> dict[str, Any]:
    """What goes into a code object's manifest: `verdict` pass or fail, the result of each rule, the findings as text.

    The contract is found by the kernel's name; `declared` says whether there was one. A text that the audit cannot
    judge has the verdict None and a reason.
    """
    contract = contract_named(kernel)
    try:
        report = audit_kernel(parse_isa(isa).kernel(kernel), contract)
    except IsaError as error:
        return {"verdict": None, "reason": str(error)}
    return {
        "verdict": "pass" if report.ok else "fail",
        "declared": contract.declared,
        "rules": {result.name: result.ok for result in report.rules},
        "findings": report.lines(),
    }
