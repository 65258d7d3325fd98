# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Proof by mutation: every part of a protocol is shown to be needed, and the whole to be enough."""

from mori_gemm_ar.proof.mutants import Mutant, Operator, mutants_of
from mori_gemm_ar.proof.pipelines import PIPELINES, Pipeline, pipeline_named
from mori_gemm_ar.proof.runner import Catcher, Verdict, prove, run_clean, try_mutant

__all__ = [
    "PIPELINES",
    "Catcher",
    "Mutant",
    "Operator",
    "Pipeline",
    "Verdict",
    "mutants_of",
    "pipeline_named",
    "prove",
    "run_clean",
    "try_mutant",
]
