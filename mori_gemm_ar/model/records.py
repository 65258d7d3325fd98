# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Published readings: what was measured, in which state of the software, and what it may be used for.

Roles are part of the file and never change with the result: only `fit` rows calibrate. Excluded rows stay, with the
reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

from mori_gemm_ar.errors import ConfigError

SCHEMA = "mori_gemm_ar.measurements"
VERSION = 1
SHIPPED = Path(__file__).with_name("measurements.json")
WIDE_STORE = "swap_ab+permlane+lane_transpose"  # 16 bytes a lane, 64 contiguous bytes a row
CHUNK_MAJOR = 28  # n_stripe of a published row whose order walks a whole row of tiles


class Role(Enum):
    """What a row may be used for."""

    FIT = "fit"  # calibrates
    HELD_OUT = "held_out"  # same harness as the fit rows, never calibrates
    EXTERNAL = "external"  # a later harness, never calibrates
    EXCLUDED = "excluded"  # neither calibrates nor is predicted; `reason` says why


@dataclass(frozen=True, slots=True)
class Record:
    """One reading. `value` is exactly what the source shows; context that it does not repeat is that state's default.

    correct: True, False, "racy" (wrong now and then), None (not stated). series: the group in which it is reported.
    """

    id: str
    source: str
    line: int
    value: float
    unit: str
    kind: str
    what: str
    mode: str
    phase: str | None
    m: int | None
    n: int | None
    k: int | None
    world: int | None
    quant: str | None
    wire: str | None
    c_store: str | None
    chunks: int | None
    n_stripe: int | None
    block_m: int | None
    block_n: int | None
    fence: str | None
    variant: str | None
    correct: bool | str | None
    state: str | None
    stat: str | None
    note: str | None
    role: Role
    series: str | None
    reason: str | None

    @property
    def shape(self) -> tuple[int | None, int | None, int | None, int | None]:
        """What leave-one-shape-out leaves out."""
        return self.m, self.n, self.k, self.world

    @property
    def where(self) -> str:
        """Short citation."""
        return f"{self.source}:{self.line}"


@dataclass(frozen=True, slots=True)
class Records:
    """All rows of a file, with what its abbreviations mean."""

    sources: Mapping[str, str]
    states: Mapping[str, str]
    rows: tuple[Record, ...]

    def role(self, *roles: Role) -> tuple[Record, ...]:
        return tuple(row for row in self.rows if row.role in roles)

    def series(self, *names: str) -> tuple[Record, ...]:
        return tuple(row for row in self.rows if row.series in names)


def reason_not_record(record: Record) -> str | None:
    """What the file promises about each row."""
    where = f"rows.{record.id}"
    if record.role is Role.EXCLUDED and not record.reason:
        return f"{where}.reason={record.reason!r} must say why the row is excluded"
    if record.role is not Role.EXCLUDED and not record.series:
        return f"{where}.series={record.series!r} must name the group in which the row is reported"
    if record.role is Role.FIT and record.correct in (False, "racy"):
        return f"{where}.role=fit must not be given to a row with correct={record.correct!r}; hold it out or exclude it"
    if record.role is not Role.EXCLUDED and record.unit != "us":
        return f"{where}.unit={record.unit!r} must be 'us' for a row that is predicted"
    if record.role is not Role.EXCLUDED and not record.value > 0:
        return f"{where}.value={record.value!r} must be above 0 us"
    return None


def load_records(path: Path | str | None = None) -> Records:
    """Read and check a records file; the published ones without a path."""
    file = SHIPPED if path is None else Path(path)
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"records={str(file)!r} must be a readable JSON file ({error})") from None
    return parse_records(document)


def parse_records(document: Any) -> Records:
    """Check a decoded records file."""
    if not isinstance(document, dict) or (document.get("schema"), document.get("version")) != (SCHEMA, VERSION):
        raise ConfigError(f"schema must be {SCHEMA!r}, version {VERSION}; use the file that comes with the library")
    names = [field.name for field in fields(Record)]
    if document.get("columns") != names:
        raise ConfigError(f"columns={document.get('columns')!r} must be {names}")
    rows = []
    for values in document["rows"]:
        row = dict(zip(names, values, strict=True))
        try:
            row["role"] = Role(row["role"])
        except ValueError:
            roles = ", ".join(role.value for role in Role)
            raise ConfigError(f"rows.{row['id']}.role={row['role']!r} must be one of {roles}") from None
        record = Record(**row)
        reason = reason_not_record(record)
        if reason is not None:
            raise ConfigError(reason)
        rows.append(record)
    return Records(document["sources"], document["states"], tuple(rows))
