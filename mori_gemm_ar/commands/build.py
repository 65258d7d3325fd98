# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""`build`: an ahead-of-time store of code objects, with a manifest."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from mori_gemm_ar.commands.show import errors_as_exit, line, table
from mori_gemm_ar.errors import CompileError, ConfigError
from mori_gemm_ar.layout import AllReduceConfig, DType, QuantizeConfig, Stage
from mori_gemm_ar.layout.gemm_terms import SMALL_RECIPES
from mori_gemm_ar.layout.terms import MAX_WORLD


class Op(str, Enum):
    """What the kernels are for."""

    ALLREDUCE = "allreduce"
    GEMM_ALLREDUCE = "gemm-allreduce"


class ElementType(str, Enum):
    """Labels of `DType`, as the command line takes them."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


@dataclass(frozen=True, slots=True)
class LayerOptions:
    """Arguments of `GemmAllReduceOp.create` that its kernels depend on; None is one that was not given."""

    n: int | None = None
    k: int | None = None
    m_max: int | None = None
    quant: str | None = None
    b_layout: str | None = None
    mode: str = "auto"
    wire: str = "exact"


def build(
    out: Annotated[Path, typer.Option(help="Directory of the store.")],
    op: Annotated[Op, typer.Option(help="What to build kernels for.")] = Op.ALLREDUCE,
    world: Annotated[
        list[int] | None, typer.Option(min=1, max=MAX_WORLD, help="Number of ranks, repeatable; all by default.")
    ] = None,
    dtype: Annotated[list[ElementType] | None, typer.Option(help="Element type, repeatable; all by default.")] = None,
    n: Annotated[int | None, typer.Option(help="gemm-allreduce: columns of C.")] = None,
    k: Annotated[int | None, typer.Option(help="gemm-allreduce: length of the sum on each rank.")] = None,
    m_max: Annotated[int | None, typer.Option(help="gemm-allreduce: rows that the op is created for.")] = None,
    quant: Annotated[str | None, typer.Option(help="gemm-allreduce: ptpc, blockscale or mxfp8.")] = None,
    b_layout: Annotated[str | None, typer.Option(help="gemm-allreduce: row or preshuffled.")] = None,
    mode: Annotated[str, typer.Option(help="gemm-allreduce: auto, or the mode that create() is given.")] = "auto",
    wire: Annotated[str, typer.Option(help="gemm-allreduce: exact, fp8 or fp8-both.")] = "exact",
    linker: Annotated[str | None, typer.Option(help="Linker for HSACO; by default ROCm's or the system's LLD.")] = None,
    isa_only: Annotated[bool, typer.Option("--isa-only", help="Text for the emulated target only; no linker.")] = False,
) -> None:
    """Compile kernels for gfx950 into a directory that loads without FlyDSL.

    Point MORI_GEMM_AR_CACHE to it. Entries that are there already are kept. Exit 1 when a kernel does not compile.
    """
    with errors_as_exit():
        from mori_gemm_ar.compile.ahead import build_store
        from mori_gemm_ar.compile.store import CodeForm, CodeObject

        layer = LayerOptions(n, k, m_max, quant, b_layout, mode, wire)
        configs = configs_of(op, world, [DType.from_label(label.value) for label in dtype or ElementType], layer)
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


def configs_of(
    op: Op, worlds: list[int] | None, dtypes: list[DType], layer: LayerOptions = LayerOptions()
) -> Sequence[Any]:
    """Every config that an op of these ranks, and of these types or this layer, may launch."""
    sizes = dict.fromkeys(worlds or range(1, MAX_WORLD + 1))
    if op is Op.GEMM_ALLREDUCE:
        return list(dict.fromkeys(config for size in sizes for config in layer_configs(size, layer)))
    if layer != LayerOptions():
        given = next(field.name for field in fields(layer) if getattr(layer, field.name) != field.default)
        raise ConfigError(f"{given} must be left out for op={op.value!r}; it belongs to {Op.GEMM_ALLREDUCE.value!r}")
    return [AllReduceConfig(size, dtype, stage) for size in sizes for dtype in dict.fromkeys(dtypes) for stage in Stage]


def layer_configs(world: int, layer: LayerOptions) -> Sequence[Any]:
    """What `GemmAllReduceOp.create` loads on so many ranks."""
    from mori_gemm_ar.op.options import layer_spec
    from mori_gemm_ar.plan import Tuning

    for field in fields(layer):
        if getattr(layer, field.name) is None:
            raise ConfigError(f"{field.name} must be given for op={Op.GEMM_ALLREDUCE.value!r}; see create()")
    spec = layer_spec(world, **{field.name: getattr(layer, field.name) for field in fields(layer)}, tuning=Tuning())
    quantisers = [QuantizeConfig(spec.recipe, spec.k)] if spec.recipe in SMALL_RECIPES else []
    return [*spec.kernels(), *quantisers]


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
