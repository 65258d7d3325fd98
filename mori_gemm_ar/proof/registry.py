# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Every pipeline that is proved, by name. A new kind adds its tuple here."""

from __future__ import annotations

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.proof.all_reduce import ALL_REDUCES
from mori_gemm_ar.proof.copies import COPIES
from mori_gemm_ar.proof.pipelines import Pipeline

PIPELINES: tuple[Pipeline, ...] = (*ALL_REDUCES, *COPIES)


def pipeline_named(name: str) -> Pipeline:
    """The pipeline called `name`."""
    for pipeline in PIPELINES:
        if pipeline.name == name:
            return pipeline
    raise ConfigError(f"pipeline={name!r} must be one of {[p.name for p in PIPELINES]}")
