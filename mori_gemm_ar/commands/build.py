# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""`build`: an ahead-of-time store of code objects, with a manifest."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from mori_gemm_ar.commands.show import errors_as_exit, line, table
from mori_gemm_ar.errors import CompileError
from mori_gemm_ar.layout import AllReduceConfig, DType, Stage
from mori_gemm_ar.layout.terms import MAX_WORLD


class Op(str, Enum):
    """What the kernels are for."""

    ALLREDUCE = "allreduce"


class ElementType(str, Enum):
    """Labels of `DType`, as the command line takes them."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


def build(
    out: Annotated[Path, typer.Option(help="Directory of the store.")],
    op: Annotated[Op, typer.Option(help="What to build kernels for.")] = Op.ALLREDUCE,
    world: Annotated[
        list[int] | None, typer.Option(min=1, max=MAX_WORLD, help="Number of ranks, repeatable; all by default.")
    ] = None,
    dtype: Annotated[list[ElementType] | None, typer.Option(help="Element type, repeatable; all by default.")] = None,
    linker: Annotated[str | None, typer.Option(help="Linker for HSACO; by default ROCm's or the system's LLD.")] = None,
    isa_only: Annotated[bool, typer.Option("--isa-only", help="Text for the emulated target only; no linker.")] = False,
) -> None:
    """Compile kernels for gfx950 into a directory that loads without FlyDSL.

    Point MORI_GEMM_AR_CACHE to it. Entries that are there already are kept. Exit 1 when a kernel does not compile.
    """
    with errors_as_exit():
        from mori_gemm_ar.compile.ahead import build_store
        from mori_gemm_ar.compile.store import CodeForm, CodeObject

        configs = configs_of(op, world, [DType.from_label(label.value) for label in dtype or ElementType])
        rows: list[list[str]] = []

        def report(code: CodeObject) -> None:
            print(f"{len(rows) + 1}/{len(configs)} {code.kernel}", file=sys.stderr)
            rows.append(_row(code))

        try:
            manifest = build_store(out, configs, CodeForm.ISA if isa_only else CodeForm.HSACO, linker, report)
        except CompileError as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(1) from None
        table("Kernels", ("kernel", "instructions", "VGPRs", "ISA", "HSACO", "HSACO bytes", "audit"), rows)
        line(f"{len(rows)} kernels in {out}, described in {manifest}")


def configs_of(op: Op, worlds: list[int] | None, dtypes: list[DType]) -> list[AllReduceConfig]:
    """Every config that an op of these ranks and types may launch."""
    assert op is Op.ALLREDUCE
    sizes = dict.fromkeys(worlds or range(1, MAX_WORLD + 1))
    return [AllReduceConfig(size, dtype, stage) for size in sizes for dtype in dict.fromkeys(dtypes) for stage in Stage]


def _row(code: Any) -> list[str]:
    manifest = code.manifest
    resources, audit = manifest["resources"], manifest["audit"]
    verdict = "none" if audit["verdict"] is None else str(audit["verdict"])
    return [
        code.kernel,
        str(resources["instructions"]),
        str(resources["vgpr"]),
        manifest["isa_sha256"][:12],
        manifest.get("hsaco_sha256", "-")[:12],
        str(manifest.get("hsaco_bytes", "-")),
        verdict,
    ]
