# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What the scripts share: provenance, the RESULT_JSON line, tables and progress on stderr."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

import mori_gemm_ar

ROOT = Path(__file__).resolve().parents[1]
PREFIX = "RESULT_JSON "
_FILE_COLUMNS = 110  # of a table that goes to a file or a pipe
_GIT_TIMEOUT_S = 10.0  # a status of a small tree takes milliseconds; a network file system may hang


def versions() -> dict[str, str | None]:
    """Versions of everything that can move a result; None for what is not installed."""
    found: dict[str, str | None] = {"mori_gemm_ar": mori_gemm_ar.__version__}
    for name in ("flydsl", "torch", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    found["python"] = platform.python_version()
    return found


def git_commit() -> str | None:
    """Commit of this checkout, with `-dirty` behind it when tracked files differ; None where there is no commit."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        run = subprocess.run(command, text=True, capture_output=True, timeout=_GIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.strip() or None if run.returncode == 0 else None


def print_result(row: Mapping[str, Any]) -> None:
    """One line of strict JSON on stdout: NaN or infinity in a row is an error."""
    print(PREFIX + json.dumps(row, allow_nan=False), flush=True)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A readable table on stderr. Columns after the first align right when there are more than two."""
    table = Table(title=Text(title), title_justify="left", show_header=any(columns))
    for position, column in enumerate(columns):
        table.add_column(Text(column), justify="right" if position and len(columns) > 2 else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(stderr=True, width=None if sys.stderr.isatty() else _FILE_COLUMNS).print(table)


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr if that is a terminal. Yields a function that counts one step."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)
