# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Static checks on gfx950 machine code: what can be known of a kernel's order without running it.

`audit_kernel` holds one kernel against its contract. Standard library only.
"""

from __future__ import annotations

from mori_gemm_ar.audit.contract import KernelContract, Poll, Posts, Publish, Spelling, undeclared
from mori_gemm_ar.audit.contracts import contract_named, contract_of
from mori_gemm_ar.audit.engine import audit_kernel, audit_text, verdict
from mori_gemm_ar.audit.figures import Figures, Step, figures_of
from mori_gemm_ar.audit.findings import AuditReport, Finding, RuleResult
from mori_gemm_ar.audit.policies import Policy
from mori_gemm_ar.audit.rules import RULES

__all__ = [
    "RULES",
    "AuditReport",
    "Figures",
    "Finding",
    "KernelContract",
    "Policy",
    "Poll",
    "Posts",
    "Publish",
    "RuleResult",
    "Spelling",
    "Step",
    "audit_kernel",
    "audit_text",
    "contract_named",
    "contract_of",
    "figures_of",
    "undeclared",
    "verdict",
]
