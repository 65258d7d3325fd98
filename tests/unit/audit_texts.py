# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Hand-written ISA texts for tests of the audit."""

from __future__ import annotations

from mori_gemm_ar.audit import AuditReport, KernelContract, audit_kernel, undeclared
from mori_gemm_ar.isa import Kernel, parse_isa

_TEXT = """\
\t.amdgcn_target "amdgcn-amd-amdhsa-unknown-gfx950"
\t.text
\t.globl\t{name}
\t.type\t{name},@function
{name}:
{body}
.Lfunc_end0:
\t.size\t{name}, .Lfunc_end0-{name}
\t.amdhsa_kernel {name}
\t\t.amdhsa_group_segment_fixed_size {lds}
\t\t.amdhsa_private_segment_fixed_size {scratch}
\t\t.amdhsa_kernarg_size 16
\t\t.amdhsa_system_vgpr_workitem_id 0
\t.end_amdhsa_kernel
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
      - .offset:         0
        .size:           8
        .value_kind:     by_value
      - .offset:         8
        .size:           8
        .value_kind:     by_value
    .max_flat_workgroup_size: {threads}
    .name:           {name}
    .sgpr_count:     {sgpr}
    .sgpr_spill_count: {sgpr_spills}
    .vgpr_count:     {vgpr}
    .vgpr_spill_count: {vgpr_spills}
...
\t.end_amdgpu_metadata
"""
FIRST_LINE = 6  # of the body


def isa_text(body: str, name: str = "k", waves: int = 8, **resources: int) -> str:
    """A text whose line FIRST_LINE + n is line n of the body, which gets an s_endpgm unless it has one."""
    lines = [line.strip() for line in body.strip().splitlines()]
    if not any(line.startswith("s_endpgm") for line in lines):
        lines.append("s_endpgm")
    body = "\n".join(line if line.endswith(":") else f"\t{line}" for line in lines)
    values = {"lds": 0, "scratch": 0, "sgpr": 16, "vgpr": 16, "sgpr_spills": 0, "vgpr_spills": 0, **resources}
    return _TEXT.format(name=name, body=body, threads=64 * waves, **values)


def kernel_of(body: str, name: str = "k", waves: int = 8, **resources: int) -> Kernel:
    """The parsed kernel of a body."""
    return parse_isa(isa_text(body, name, waves, **resources)).kernel(name)


def audited(body: str, contract: KernelContract | None = None, waves: int = 8, **resources: int) -> AuditReport:
    """The report on a body."""
    return audit_kernel(kernel_of(body, waves=waves, **resources), contract or undeclared("k"))


def findings(report: AuditReport, rule: str) -> list[tuple[int, str]]:
    """(line, instruction) of a rule's findings; the rule and the kernel stand in each printed line too."""
    result = next(r for r in report.rules if r.name == rule)
    assert result.ok is not bool(result.findings)
    for finding, text in zip(result.findings, (t for t in report.lines() if t.startswith(f"{rule}: ")), strict=True):
        assert text.startswith(f"{rule}: {report.kernel}: ")
        assert finding.why and finding.text in text
    return [(finding.line, finding.text) for finding in result.findings]


def line_of(body: str, instruction: str, number: int = 1) -> int:
    """Line, in the text, of the n-th line of a body that starts with an instruction."""
    lines = [line.strip() for line in body.strip().splitlines()]
    places = [n for n, line in enumerate(lines) if line.startswith(instruction)]
    return FIRST_LINE + places[number - 1]


def caught(report: AuditReport, rule: str, body: str, instruction: str, number: int = 1) -> None:
    """The rule names exactly this instruction, with its line."""
    assert [line for line, _ in findings(report, rule)] == [line_of(body, instruction, number)], report.lines()
    assert findings(report, rule)[0][1].startswith(instruction)
