# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What a kernel uses: registers, scratch, LDS, and whether it kept addresses in scalar registers."""

from __future__ import annotations

from collections.abc import Iterator

from mori_gemm_ar.audit.findings import Finding, at
from mori_gemm_ar.audit.registers import union
from mori_gemm_ar.audit.rules.polling import deciding, exits_of
from mori_gemm_ar.audit.subject import Subject

_WIDE = 16  # bytes of a lane: what streams data


def no_spills(subject: Subject) -> Iterator[Finding]:
    """No register was spilled and no private memory is used (lessons L17 and P19)."""
    metadata = subject.kernel.metadata
    for field in ("vgpr_spill_count", "sgpr_spill_count"):
        count = metadata.get(field, 0)
        if count:
            yield Finding(0, field, f"{field}={count} must be 0; lower the register pressure")
    if subject.kernel.scratch_bytes:
        yield Finding(0, "scratch", f"scratch bytes={subject.kernel.scratch_bytes} of a lane must be 0")
    for index, op in enumerate(subject.ops):
        if op.access is not None and op.access.space == "scratch":
            yield at(subject.code[index], "uses private memory")


def register_ceiling(subject: Subject) -> Iterator[Finding]:
    """Registers and LDS stay within what the kernel declares, so that its blocks fit beside others."""
    contract, metadata = subject.contract, subject.kernel.metadata
    vgprs = metadata.get("vgpr_count", 0)
    if contract.max_vgpr is not None and vgprs > contract.max_vgpr:
        yield Finding(0, "vgpr_count", f"vgpr_count={vgprs} must be at most {contract.max_vgpr}")
    sgprs = metadata.get("sgpr_count", 0)
    if contract.max_sgpr is not None and sgprs > contract.max_sgpr:
        yield Finding(0, "sgpr_count", f"sgpr_count={sgprs} must be at most {contract.max_sgpr}")
    if contract.lds_bytes is not None and subject.kernel.lds_bytes != contract.lds_bytes:
        yield Finding(0, "lds", f"LDS bytes={subject.kernel.lds_bytes} must be {contract.lds_bytes}, as declared")
    if contract.waves is not None:
        threads = metadata.get("max_flat_workgroup_size", 0)
        if threads != 64 * contract.waves:
            yield Finding(
                0, "workgroup", f"threads={threads} of a workgroup must be {64 * contract.waves}, as declared"
            )


def no_waterfall(subject: Subject) -> Iterator[Finding]:
    """No loop over the lanes' distinct addresses stands around a 16-byte access (lesson P4).

    Such a loop reads an address from the first lane, runs the access for the lanes that agree with it, and goes on
    until no lane is left.
    """
    for loop in subject.flow.loops:
        indices = subject.flow.indices(loop.blocks)
        first_lane = [n for n in indices if subject.ops[n].name == "v_readfirstlane_b32"]
        wide = [
            n for n in indices if (a := subject.ops[n].access) is not None and a.space != "lds" and a.nbytes >= _WIDE
        ]
        if not first_lane or not wide:
            continue
        firsts = union(subject.ops[n].writes for n in first_lane)
        addressed = [n for n in wide if subject.ops[n].reads & firsts]
        narrows = any(subject.ops[n].name.endswith("saveexec_b64") for n in indices)
        if not addressed or not narrows:
            continue
        slice_ = deciding(subject, loop, exits_of(subject, loop))
        if any(n in slice_ for n in first_lane):
            for index in addressed:
                yield at(
                    subject.code[index], "a loop runs this once for each distinct address; make the address uniform"
                )
