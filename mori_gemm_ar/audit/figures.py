# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The figures of a kernel: resources, and what its main loops execute in each step."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mori_gemm_ar.audit.contract import KernelContract
from mori_gemm_ar.audit.cycles import cycles_of
from mori_gemm_ar.audit.findings import AuditReport
from mori_gemm_ar.audit.operations import Kind, decode
from mori_gemm_ar.audit.subject import Subject
from mori_gemm_ar.isa import Instruction, Kernel

CLASSES = (
    "mfma", "valu", "ds_read", "ds_write", "global_to_lds", "vmem_load", "vmem_store", "smem", "waits", "barriers",
    "scalar",
)  # fmt: skip
PIPES = ("mfma", "valu", "lds", "memory")
_PACK = 16  # bytes of a lane: what a loop that streams data moves at least

_BY_KIND = {
    Kind.LOAD: "vmem_load",
    Kind.ATOMIC: "vmem_load",
    Kind.STORE: "vmem_store",
    Kind.COPY: "global_to_lds",
    Kind.SCALAR_LOAD: "smem",
    Kind.CLOCK: "smem",
    Kind.LDS_READ: "ds_read",
    Kind.EXCHANGE: "ds_read",
    Kind.LDS_WRITE: "ds_write",
    Kind.WRITEBACK: "scalar",
    Kind.INVALIDATE: "scalar",
}


@dataclass(frozen=True, slots=True)
class Step:
    """What one wave executes in one step of a main loop. `cycles` are static estimates (audit.cycles)."""

    line: int  # where the loop starts
    unit: str  # "K step" of 128, "iteration" of a matrix loop, or "pack iteration"
    per_iteration: float  # steps of one iteration
    instructions: float
    classes: dict[str, float]
    cycles: dict[str, float]


@dataclass(frozen=True, slots=True)
class Figures:
    """The report of one kernel. Its fields are fixed in docs/audit.md."""

    name: str
    vgpr: int
    sgpr: int
    vgpr_spills: int
    scratch_bytes: int
    lds_bytes: int
    instructions: int
    per_k_step: tuple[Step, ...]
    rules: dict[str, list[str]]  # rule -> its findings, as text

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def class_of(i: Instruction, kind: Kind | None) -> str:
    """The class of an instruction, one of CLASSES."""
    if i.name.startswith(("v_mfma", "v_smfmac")):
        return "mfma"
    if i.name.startswith("v_"):
        return "valu"
    if kind is not None:
        return _BY_KIND[kind]
    return {"s_waitcnt": "waits", "s_barrier": "barriers"}.get(i.name, "scalar")


def text_counts(kernel: Kernel) -> dict[str, int]:
    """Instructions of a whole text by class, as published figures count them."""
    counts = dict.fromkeys(CLASSES, 0)
    for i in kernel.instructions:
        counts[class_of(i, decode(i).kind)] += 1
    return counts


def figures_of(kernel: Kernel, contract: KernelContract, report: AuditReport) -> Figures:
    """Resources, main loops and rules of a kernel."""
    metadata = kernel.metadata
    return Figures(
        name=kernel.name,
        vgpr=metadata.get("vgpr_count", 0),
        sgpr=metadata.get("sgpr_count", 0),
        vgpr_spills=metadata.get("vgpr_spill_count", 0),
        scratch_bytes=kernel.scratch_bytes,
        lds_bytes=kernel.lds_bytes,
        instructions=len(kernel.instructions),
        per_k_step=tuple(steps_of(Subject(kernel, contract))),
        rules={rule.name: [str(finding) for finding in rule.findings] for rule in report.rules},
    )


def steps_of(subject: Subject) -> list[Step]:
    """Main loops: the innermost ones that hold matrix operations; else those that move 16 bytes per lane and access.

    A matrix kernel without such a loop is one straight run of steps if its contract says how many operations a step
    has. Both sides of a branch inside a loop count.
    """
    steps = []
    matrix = {n for n, i in enumerate(subject.code) if i.name.startswith("v_mfma")}
    wide = {
        n for n, op in enumerate(subject.ops) if op.access is not None and _streams(op.access.space, op.access.nbytes)
    }
    per_step = subject.contract.mfma_per_k_step
    wanted = matrix or wide
    inner: list[frozenset[int]] = []
    for loop in subject.flow.loops:
        indices = subject.flow.indices(loop.blocks)
        if not wanted.intersection(indices) or any(blocks < loop.blocks for blocks in inner):
            continue
        inner.append(loop.blocks)
        many = len(matrix.intersection(indices))
        if not matrix:
            steps.append(_step(subject, indices, "pack iteration", 1.0))
        elif per_step:
            steps.append(_step(subject, indices, "K step", many / per_step))
        else:
            steps.append(_step(subject, indices, "iteration", 1.0))
    if matrix and not steps and per_step:
        run = list(range(min(matrix), max(matrix) + 1))
        steps.append(_step(subject, run, "K step", len(matrix) / per_step))
    return sorted(steps, key=lambda step: step.line)


def _streams(space: str, nbytes: int) -> bool:
    return space in ("global", "buffer", "flat") and nbytes >= _PACK


def _step(subject: Subject, indices: list[int], unit: str, per_iteration: float) -> Step:
    counts = dict.fromkeys(CLASSES, 0)
    for index in indices:
        counts[class_of(subject.code[index], subject.ops[index].kind)] += 1
    cycles = [0, 0, 0, 0]
    for index in indices:
        for pipe, cost in enumerate(cycles_of(subject.code[index], subject.ops[index])):
            cycles[pipe] += cost
    return Step(
        line=subject.line(indices[0]),
        unit=unit,
        per_iteration=per_iteration,
        instructions=round(len(indices) / per_iteration, 2),
        classes={name: round(count / per_iteration, 2) for name, count in counts.items()},
        cycles={pipe: round(count / per_iteration, 2) for pipe, count in zip(PIPES, cycles, strict=True)},
    )
