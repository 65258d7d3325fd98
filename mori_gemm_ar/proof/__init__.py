# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Proof by mutation: every part of a protocol is shown to be needed, and the whole to be enough."""

from mori_gemm_ar.proof.mutants import Mutant, Operator, mutants_of, pipeline_mutants
from mori_gemm_ar.proof.pipelines import Pipeline, ProvedKernel, WrongResult, kernel_named, mutated, original
from mori_gemm_ar.proof.registry import FAMILIES, PIPELINES, Family, clean_seeds, pipeline_named, pipelines_named
from mori_gemm_ar.proof.runner import Catcher, Verdict, prove, run_clean, try_mutant

__all__ = [
    "FAMILIES",
    "PIPELINES",
    "Catcher",
    "Family",
    "Mutant",
    "Operator",
    "Pipeline",
    "ProvedKernel",
    "Verdict",
    "WrongResult",
    "clean_seeds",
    "kernel_named",
    "mutants_of",
    "mutated",
    "original",
    "pipeline_mutants",
    "pipeline_named",
    "pipelines_named",
    "prove",
    "run_clean",
    "try_mutant",
]
