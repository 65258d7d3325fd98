# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What sub-commands share: tables, files, and errors as one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mori_gemm_ar.errors import ConfigError, MissingDependencyError

FILE_COLUMNS = 160  # width of a table that goes to a file or a pipe


def console() -> Console:
    """The terminal, or a wide plain page."""
    return Console(width=None if sys.stdout.isatty() else FILE_COLUMNS)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str] = ()) -> None:
    """Print a table. The first column and those named in `left` align left, numbers right."""
    page = Table(title=Text(title), title_justify="left")
    for position, column in enumerate(columns):
        page.add_column(Text(column), justify="left" if position == 0 or column in left else "right", overflow="fold")
    for row in rows:
        page.add_row(*(Text(cell) for cell in row))
    console().print(page)


def line(text: str) -> None:
    """Print a line as it is."""
    console().print(Text(text))


def write_text(path: Path, text: str) -> None:
    """Write a file; ConfigError when that fails."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"file={str(path)!r} must be writable ({error}); name another one") from None


def write_json(path: Path, document: Any) -> None:
    """Write strict JSON."""
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


@contextmanager
def errors_as_exit() -> Iterator[None]:
    """A broken argument, file or installation ends the command with one line and exit 2."""
    try:
        yield
    except (ConfigError, MissingDependencyError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
