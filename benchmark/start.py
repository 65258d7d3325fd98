# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""How the ranks of a benchmark start: all in one process, or one each by torchrun; and how a bad argument ends it."""

from __future__ import annotations

import os
import sys

import typer

from mori_gemm_ar.errors import ConfigError


def _started_ranks() -> int | None:
    """Number of processes of which torchrun started this one; None outside it."""
    variables = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in variables) else None


def require_one_start(local_world: int | None, script: str, example: int) -> None:
    """Raise `ConfigError` unless ranks start in exactly one way; `example`: ranks in the advice."""
    ranks = _started_ranks()
    if local_world is None and ranks is None:
        raise ConfigError(
            f"--local-world must be given, e.g. --local-world {example}; or start one process per rank: "
            f"torchrun --nproc-per-node={example} -- benchmark/{script}.py ..."
        )
    if local_world is not None and ranks is not None:
        raise ConfigError(f"--local-world must be left out where torchrun starts the {ranks} ranks")


def refused(script: str, error: ConfigError) -> typer.Exit:
    """What to raise for a bad argument; the first rank says why."""
    if os.environ.get("RANK", "0") == "0":
        print(f"{script}: {error}", file=sys.stderr)
    return typer.Exit(2)
