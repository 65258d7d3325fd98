# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The report: what was asked of a machine, what it answered, and whether the model agrees. Standard library only.

One JSON document. It is written anew after each section, at once, so what a run leaves behind is valid however it
ended. `results` holds rows that `model fit --from` takes.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from mori_gemm_ar.errors import ConfigError

SCHEMA = "mori_gemm_ar.hwcheck"
VERSION = 1


class Verdict(Enum):
    """What a check found."""

    CONFIRMED = "confirmed"  # the machine does what the model says
    REFUTED = "refuted"  # it does something that the model rules out
    NEW = "new value"  # a number that nobody had measured, within what was thought possible
    NOTE = "note"  # seen and counted; the model allows all of it
    NOT_RUN = "not run"  # does not apply here; the detail says why
    NOT_BUILT = "not built"  # this version of the library has no such part
    FAILED = "failed"  # could not be found out; the detail says why


class Status(Enum):
    """How far a section came."""

    COMPLETE = "complete"
    PARTIAL = "partial"  # out of time, or a check failed to give an answer
    FAILED = "failed"  # an error ended it
    PENDING = "pending"  # not begun


class Outcome(Enum):
    """The report in one word, each with the command's exit status."""

    CONFIRMED = 0
    REFUTED = 1
    INCOMPLETE = 3  # 2 is for arguments


@dataclass(frozen=True, slots=True)
class Check:
    """One question and its answer. `data` is JSON: histograms, values, the first difference."""

    name: str
    verdict: Verdict
    detail: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON data."""
        return {"name": self.name, "verdict": self.verdict.value, "detail": self.detail, "data": dict(self.data)}


@dataclass(slots=True)
class Section:
    """What one part of the run found, in order."""

    name: str
    status: Status = Status.PENDING
    reason: str = ""
    seconds: float = 0.0
    checks: list[Check] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def add(self, check: Check) -> None:
        """Append a check."""
        self.checks.append(check)

    def to_dict(self) -> dict[str, Any]:
        """JSON data."""
        return {
            "name": self.name,
            "status": self.status.value,
            "reason": self.reason,
            "seconds": round(self.seconds, 3),
            "checks": [check.to_dict() for check in self.checks],
            "data": self.data,
        }


@dataclass(slots=True)
class Report:
    """The whole run."""

    hardware: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, Any]
    settings: dict[str, Any]
    sections: list[Section]
    results: list[dict[str, Any]] = field(default_factory=list)
    effect: list[dict[str, Any]] = field(default_factory=list)
    suspects: list[str] = field(default_factory=list)

    @property
    def checks(self) -> Iterator[tuple[Section, Check]]:
        """All checks, with their sections."""
        return ((section, check) for section in self.sections for check in section.checks)

    @property
    def refuted(self) -> list[tuple[Section, Check]]:
        """What the machine does otherwise than the model says."""
        return [(section, check) for section, check in self.checks if check.verdict is Verdict.REFUTED]

    @property
    def outcome(self) -> Outcome:
        """Refuted if anything is; else incomplete if any section is; else confirmed."""
        if self.refuted:
            return Outcome.REFUTED
        if any(section.status is not Status.COMPLETE for section in self.sections):
            return Outcome.INCOMPLETE
        return Outcome.CONFIRMED

    def to_dict(self) -> dict[str, Any]:
        """JSON data."""
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "outcome": self.outcome.name.lower(),
            "hardware": self.hardware,
            "machine": self.machine,
            "versions": self.versions,
            "settings": self.settings,
            "suspects": self.suspects,
            "sections": [section.to_dict() for section in self.sections],
            "effect": self.effect,
            "results": self.results,
        }

    def write(self, path: Path) -> None:
        """Replace the file at once. ConfigError when it cannot be written."""
        write_document(path, self.to_dict())


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Strict JSON; readers see the old file or the new one, never a part."""
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    except OSError as error:
        raise ConfigError(f"out={str(path)!r} must lie in a writable directory ({error}); name another one") from None
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def reason_not_report(document: object) -> str | None:
    """Whether a decoded file is a report of this version, as a reason against it."""
    way_out = "make one with `python -m mori_gemm_ar hwcheck --out FILE`"
    if not isinstance(document, dict):
        return f"report={type(document).__name__} must be a JSON object; {way_out}"
    for name, want in (("schema", SCHEMA), ("version", VERSION)):
        if document.get(name) != want:
            return f"report.{name}={document.get(name)!r} must be {want!r}; {way_out}"
    for name, kind in (("hardware", dict), ("machine", dict), ("sections", list), ("results", list)):
        if not isinstance(document.get(name), kind):
            return f"report.{name} must be a JSON {'object' if kind is dict else 'list'}; {way_out}"
    known = {verdict.value for verdict in Verdict}
    for section in document["sections"]:
        for check in section.get("checks", ()):
            if check.get("verdict") not in known:
                return f"report.sections.{section.get('name')}.verdict={check.get('verdict')!r} is unknown; {way_out}"
    return None


def count(checks: Iterable[Check], verdict: Verdict) -> int:
    """Checks with a verdict."""
    return sum(check.verdict is verdict for check in checks)
