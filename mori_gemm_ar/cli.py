# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The command line: one sub-command for each module of `commands`, nothing else."""

from __future__ import annotations

import typer

from mori_gemm_ar.commands import audit, build, doctor, explain, hwcheck, model, prove

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Fused fp8 GEMM and all-reduce for MI355X.",
)
app.add_typer(model.app, name="model")
app.command("explain")(explain.explain)
app.command("build")(build.build)
app.command("audit")(audit.audit)
app.command("doctor")(doctor.doctor)
app.command("prove")(prove.prove)
app.command("hwcheck")(hwcheck.hwcheck)
