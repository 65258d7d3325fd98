# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""`audit`: the static rules on all shipped kernels, or on ISA texts."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mori_gemm_ar.commands.shipped import shipped_configs
from mori_gemm_ar.commands.show import errors_as_exit, line, table, write_json
from mori_gemm_ar.errors import ConfigError, IsaError

if TYPE_CHECKING:
    from mori_gemm_ar.audit import AuditReport, Figures, KernelContract, Step
    from mori_gemm_ar.audit.published import PublishedRow
    from mori_gemm_ar.isa import Kernel

_FEW = 8  # kernels whose steps are all shown; of more, those that a published row stands beside
_STATIC = ("VGPR", "SGPR", "spills", "scratch B", "LDS B", "instructions", "MFMA", "waits", "barriers", "stores")
_SHORT = {"global_to_lds": "to LDS", "vmem_load": "load", "vmem_store": "store"}


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel with its verdict."""

    kernel: Kernel
    contract: KernelContract
    report: AuditReport
    figures: Figures


def audit(
    files: Annotated[list[Path] | None, typer.Argument(help="ISA texts; all shipped kernels without any.")] = None,
    kernel: Annotated[str, typer.Option(help="One kernel by name.")] = "",
    json: Annotated[Path | None, typer.Option("--json", help="Write the report of every kernel to this file.")] = None,
) -> None:
    """Check machine code against the static rules and print its figures.

    Exit 0 if all rules hold for all kernels, 1 if not, 2 for a file or name that is of no use. A finding names rule,
    kernel, line of the text, instruction and reason.
    """
    with errors_as_exit():
        rows = [_judge(*found) for found in (_texts(files, kernel) if files else _shipped(kernel))]
        if json is not None:
            write_json(json, [row.figures.to_dict() for row in rows])
    _show_kernels(rows)
    _show_steps(rows)
    findings = [text for row in rows for text in row.report.lines()]
    for text in findings:
        line(text)
    clean = sum(row.report.ok for row in rows)
    line(f"kernels {len(rows)}, clean {clean}, findings {len(findings)}")
    if clean < len(rows):
        raise typer.Exit(1)


def _judge(kernel: Kernel, contract: KernelContract) -> Row:
    from mori_gemm_ar.audit import audit_kernel, figures_of

    try:
        report = audit_kernel(kernel, contract)
        return Row(kernel, contract, report, figures_of(kernel, contract, report))
    except IsaError as error:
        raise ConfigError(f"kernel={kernel.name} must be auditable: {error}") from None


# ---- what is audited ----------------------------------------------------------------------------------------------


def _shipped(name: str) -> Iterator[tuple[Kernel, KernelContract]]:
    from mori_gemm_ar.audit import contract_of
    from mori_gemm_ar.compile.store import default_store
    from mori_gemm_ar.isa import parse_isa

    configs = {config.kernel_name: config for config in shipped_configs()}
    if name and name not in configs:
        near = difflib.get_close_matches(name, configs, n=3) or list(configs)[:3]
        raise ConfigError(f"kernel={name!r} must be a shipped kernel, such as {', '.join(near)}; or name a file")
    chosen = [configs[name]] if name else list(configs.values())
    for number, config in enumerate(chosen, start=1):
        if sys.stderr.isatty():
            print(f"\r\033[K{number}/{len(chosen)} {config.key}", end="", file=sys.stderr, flush=True)
        isa = default_store().get(config).isa
        yield parse_isa(isa).kernel(config.kernel_name), contract_of(config)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)


def _texts(files: list[Path], name: str) -> Iterator[tuple[Kernel, KernelContract]]:
    from mori_gemm_ar.audit import contract_named
    from mori_gemm_ar.isa import parse_isa

    found = False
    for file in files:
        try:
            kernels = parse_isa(file.read_text(encoding="utf-8")).kernels
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"file={str(file)!r} must be readable text ({error}); name another one") from None
        except IsaError as error:
            raise ConfigError(f"file={str(file)!r} must be ISA text for gfx950: {error}") from None
        for code in kernels.values():
            if name in ("", code.name):
                found = True
                yield code, contract_named(code.name)
    if not found:
        raise ConfigError(f"kernel={name!r} must be in one of the files; leave it out to see what they hold")


# ---- tables -------------------------------------------------------------------------------------------------------


def _show_kernels(rows: list[Row]) -> None:
    from mori_gemm_ar.audit.figures import text_counts
    from mori_gemm_ar.audit.published import PUBLISHED, SOURCE

    cells: list[tuple[str, ...]] = []
    for row in rows:
        counts, figures = text_counts(row.kernel), row.figures
        values = (
            figures.vgpr, figures.sgpr, figures.vgpr_spills, figures.scratch_bytes, figures.lds_bytes,
            figures.instructions, counts["mfma"], counts["waits"], counts["barriers"], counts["vmem_store"],
        )  # fmt: skip
        ruling = "clean" if row.report.ok else ", ".join(row.report.failed)
        ruling = ruling if row.contract.declared else f"{ruling} (no contract)"
        cells.append((row.kernel.name, *map(str, values), ruling))
        published = PUBLISHED.get(row.contract.peer_row)
        if published is not None:
            cells.append((f"  published: {row.contract.peer_row}", *_published_cells(published), ""))
    compared = any(row.contract.peer_row for row in rows)
    title = f"Kernels; published rows: {SOURCE}" if compared else "Kernels"
    table(title, ("kernel", *_STATIC, "rules"), cells, left=("rules",))


def _published_cells(row: PublishedRow) -> tuple[str, ...]:
    numbers = (
        row.vgpr, row.sgpr, row.vgpr_spills, row.scratch_bytes, row.lds_bytes, row.instructions, row.mfma, row.waits,
        row.barriers,
    )  # fmt: skip
    return (*map(str, numbers), row.stores)


def _show_steps(rows: list[Row]) -> None:
    from mori_gemm_ar.audit.figures import CLASSES, PIPES
    from mori_gemm_ar.audit.published import PUBLISHED

    columns = (
        "main loop",
        "step",
        "all",
        *(_SHORT.get(kind, kind) for kind in CLASSES),
        *(f"~{pipe}" for pipe in PIPES),
    )
    for row in rows:
        name, steps = row.contract.peer_row, row.figures.per_k_step
        if not steps or (len(rows) > _FEW and not name):
            continue
        cells = [_step_cells(step) for step in steps]
        published = PUBLISHED[name].step if name else None
        if published is not None:
            values = (str(getattr(published, kind, "-")) for kind in CLASSES)
            cells.append(("published", "K step", str(published.instructions), *values, *["-"] * len(PIPES)))
        title = f"{row.kernel.name}: executed instructions of one wave in a step, and estimated issue cycles (static)"
        table(title, columns, cells, left=("step",))


def _step_cells(step: Step) -> tuple[str, ...]:
    values = (step.instructions, *step.classes.values(), *step.cycles.values())
    return (f"line {step.line}", step.unit.removesuffix(" iteration"), *(f"{value:g}" for value in values))
