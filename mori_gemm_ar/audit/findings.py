# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What an audit says: findings, one result for each rule, one report for each kernel."""

from __future__ import annotations

from dataclasses import dataclass

from mori_gemm_ar.isa import Instruction


@dataclass(frozen=True, slots=True)
class Finding:
    """A place that breaks a rule. `line` counts the lines of the ISA text; 0 means the kernel as a whole."""

    line: int
    text: str
    why: str

    def __str__(self) -> str:
        place = f"line {self.line}: {self.text}" if self.line else self.text
        return f"{place}: {self.why}"


def at(instruction: Instruction, why: str) -> Finding:
    """A finding at one instruction."""
    return Finding(instruction.line, instruction.text, why)


@dataclass(frozen=True, slots=True)
class RuleResult:
    """One rule on one kernel."""

    name: str
    ok: bool
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditReport:
    """All rules on one kernel. `ok` holds when every rule does."""

    kernel: str
    rules: tuple[RuleResult, ...]

    @property
    def ok(self) -> bool:
        """Whether every rule holds."""
        return all(rule.ok for rule in self.rules)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the rules that do not hold."""
        return tuple(rule.name for rule in self.rules if not rule.ok)

    def lines(self) -> list[str]:
        """One line for each finding: rule, kernel, place, instruction, reason."""
        return [f"{rule.name}: {self.kernel}: {finding}" for rule in self.rules for finding in rule.findings]
