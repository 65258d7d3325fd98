# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The constants file of a machine: every number with its unit, source, line and confidence.

A file is accepted whole or refused with the field and the unit that were expected. `Constants.at(case)` gives the
plain numbers that the formulas take.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.model.terms import Case
from mori_gemm_ar.model.values import Values

SCHEMA = "mori_gemm_ar.machine"
VERSION = 1
SHIPPED = Path(__file__).with_name("mi355x.json")
_CITATION = re.compile(r"[\w.]+:\d+")
WAY_OUT = "use the file that comes with the library, or write a new one with `model fit --json`"


class Confidence(Enum):
    """Where a number comes from, best first."""

    FITTED = "fitted"  # least squares over rows of role fit
    MEASURED = "measured"  # one reading, taken over
    PUBLISHED = "published"  # an author's rounded statement
    ASSUMED = "assumed"  # nobody measured it: has a pessimistic and an optimistic value


@dataclass(frozen=True, slots=True)
class Constant:
    """One number. `pessimistic` and `optimistic` are there exactly when it was never measured.

    `lines` cite "source:line", the source as the file's `sources` name it.
    """

    name: str
    value: float
    unit: str
    source: str
    lines: tuple[str, ...]
    confidence: Confidence
    meaning: str
    pessimistic: float | None = None
    optimistic: float | None = None

    def __post_init__(self) -> None:
        reason = reason_not_constant(self)
        if reason is not None:
            raise ConfigError(reason)

    def at(self, case: Case) -> float:
        """The number for a case; a measured one has a single value."""
        chosen: float | None = getattr(self, case.value)
        return self.value if chosen is None else chosen


@dataclass(frozen=True, slots=True)
class Override:
    """A measured best plan for a bucket of shapes: rows low..high of one layer. Beats the formula's choice."""

    m_low: int
    m_high: int
    n: int
    k: int
    world: int
    quant: str
    wire: str
    mode: str
    chunks: int
    tile_m: int
    tile_n: int


@dataclass(frozen=True, slots=True)
class Constants:
    """A whole file. Equal files have equal fingerprints, so ranks can vote on them."""

    machine: str
    isa: str
    sources: tuple[tuple[str, str], ...]
    constants: tuple[Constant, ...]
    overrides: tuple[Override, ...] = ()

    def at(self, case: Case) -> Values:
        """All numbers of a case."""
        return Values(**{constant.name: constant.at(case) for constant in self.constants})

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content, equal on every rank and in every process."""
        return hashlib.sha256(dump(self).encode()).hexdigest()

    @property
    def unmeasured(self) -> tuple[Constant, ...]:
        """The constants that choices take pessimistically."""
        return tuple(constant for constant in self.constants if constant.confidence is Confidence.ASSUMED)

    def with_values(
        self,
        values: Mapping[str, float],
        source: str,
        lines: Mapping[str, tuple[str, ...]],
        confidence: Confidence = Confidence.FITTED,
    ) -> Constants:
        """Copy with new values. They are no longer assumed, so their pessimistic and optimistic cases go away."""
        changed = tuple(
            replace(
                constant,
                value=values[constant.name],
                source=source,
                lines=lines.get(constant.name, ()),
                confidence=confidence,
                pessimistic=None,
                optimistic=None,
            )
            if constant.name in values
            else constant
            for constant in self.constants
        )
        return replace(self, constants=changed)


def reason_not_constant(constant: Constant) -> str | None:
    """The fields of Constant, against the unit and the range that the formulas expect."""
    spec = {field.name: field.metadata for field in fields(Values)}.get(constant.name)
    if spec is None:
        return f"constants.{constant.name} must be one of {', '.join(f.name for f in fields(Values))}; {WAY_OUT}"
    unit, where = spec["unit"], f"constants.{constant.name}"
    if constant.unit != unit:
        return f"{where}.unit={constant.unit!r} must be {unit!r}; convert the value and name its unit"
    for name in ("value", "pessimistic", "optimistic"):
        value = getattr(constant, name)
        if value is None and name != "value":
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return f"{where}.{name}={value!r} must be a finite number in {unit}; {WAY_OUT}"
        if not spec["low"] <= value <= spec["high"]:
            return f"{where}.{name}={value} must be {spec['low']} to {spec['high']} {unit}; {WAY_OUT}"
    assumed = constant.confidence is Confidence.ASSUMED
    for name in ("pessimistic", "optimistic"):
        if assumed != (getattr(constant, name) is not None):
            need = f"a number in {unit}" if assumed else "left out"
            return f"{where}.{name}={getattr(constant, name)!r} must be {need} for {constant.confidence}; {WAY_OUT}"
    if assumed:
        ends = sorted((constant.at(Case.PESSIMISTIC), constant.at(Case.OPTIMISTIC)))
        if not ends[0] <= constant.value <= ends[1]:
            return f"{where}.value={constant.value} must lie between its two cases, {ends[0]} to {ends[1]} {unit}"
    return None


def load(path: Path | str | None = None) -> Constants:
    """Read and check a constants file; the shipped one without a path. ConfigError names the field and its unit."""
    file = SHIPPED if path is None else Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"machine={str(file)!r} must be a readable constants file ({error}); {WAY_OUT}") from None
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"machine={str(file)!r} must be JSON ({error}); {WAY_OUT}") from None
    return parse(document)


def parse(document: object) -> Constants:
    """Check a decoded constants file."""
    top = _object("file", document)
    for name, want in (("schema", SCHEMA), ("version", VERSION)):
        if top.get(name) != want:
            raise ConfigError(f"{name}={top.get(name)!r} must be {want!r}; {WAY_OUT}")
    entries = _object("constants", top.get("constants"))
    wanted = {field.name: field.metadata["unit"] for field in fields(Values)}
    missing = [name for name in wanted if name not in entries]
    if missing:
        raise ConfigError(f"constants.{missing[0]} must be there, a number in {wanted[missing[0]]}; {WAY_OUT}")
    return Constants(
        machine=_text("machine", top.get("machine")),
        isa=_text("isa", top.get("isa")),
        sources=tuple(
            (key, _text(f"sources.{key}", text)) for key, text in _object("sources", top.get("sources")).items()
        ),
        constants=tuple(_constant(name, entry) for name, entry in entries.items()),
        overrides=tuple(_override(i, entry) for i, entry in enumerate(_list("overrides", top.get("overrides")))),
    )


def dump(constants: Constants) -> str:
    """The file's text; `parse` of it gives an equal object."""
    entries = {}
    for constant in constants.constants:
        entry: dict[str, Any] = {"value": constant.value, "unit": constant.unit}
        if constant.confidence is Confidence.ASSUMED:
            entry |= {"pessimistic": constant.pessimistic, "optimistic": constant.optimistic}
        entry |= {
            "source": constant.source,
            "lines": list(constant.lines),
            "confidence": constant.confidence.value,
            "meaning": constant.meaning,
        }
        entries[constant.name] = entry
    head = {"schema": SCHEMA, "version": VERSION, "machine": constants.machine, "isa": constants.isa}
    overrides = [{f.name: getattr(entry, f.name) for f in fields(Override)} for entry in constants.overrides]
    document = {**head, "sources": dict(constants.sources), "constants": entries, "overrides": overrides}
    lines = [f" {json.dumps(key)}: {_inline(value)}" for key, value in document.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _inline(value: Any) -> str:
    """One line for each constant, so that a changed number is a changed line."""
    if isinstance(value, dict) and value:
        return "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items()) + "\n }"
    return json.dumps(value)


def _constant(name: str, entry: object) -> Constant:
    row = _object(f"constants.{name}", entry)
    where = f"constants.{name}"
    known = {"value", "unit", "source", "lines", "confidence", "meaning", "pessimistic", "optimistic"}
    _no_more(where, row, known)
    labels = [confidence.value for confidence in Confidence]
    if row.get("confidence") not in labels:
        raise ConfigError(f"{where}.confidence={row.get('confidence')!r} must be one of {', '.join(labels)}; {WAY_OUT}")
    lines = _list(f"{where}.lines", row.get("lines"))
    if not all(isinstance(line, str) and _CITATION.fullmatch(line) for line in lines):
        raise ConfigError(f"{where}.lines={lines!r:.60} must be a list like ['readme:604']; {WAY_OUT}")
    return Constant(
        name=name,
        value=row.get("value"),  # type: ignore[arg-type]  # checked by Constant, which names the unit
        unit=row.get("unit"),  # type: ignore[arg-type]
        source=_text(f"{where}.source", row.get("source")),
        lines=tuple(lines),
        confidence=Confidence(row["confidence"]),
        meaning=_text(f"{where}.meaning", row.get("meaning")),
        pessimistic=row.get("pessimistic"),
        optimistic=row.get("optimistic"),
    )


def _override(index: int, entry: object) -> Override:
    row, where = _object(f"overrides.{index}", entry), f"overrides.{index}"
    _no_more(where, row, {field.name for field in fields(Override)})
    for field in fields(Override):
        kind: type = str if field.name in ("quant", "wire", "mode") else int
        value = row.get(field.name)
        if isinstance(value, bool) or not isinstance(value, kind):
            raise ConfigError(f"{where}.{field.name}={value!r} must be of type {kind.__name__}; {WAY_OUT}")
    return Override(**row)


def _no_more(where: str, row: Mapping[str, Any], known: Iterable[str]) -> None:
    extra = sorted(row.keys() - set(known))
    if extra:
        raise ConfigError(f"{where}.{extra[0]} must not be there; known fields are {', '.join(sorted(known))}")


def _object(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{name}={value!r:.60} must be a JSON object; {WAY_OUT}")
    return value


def _list(name: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{name}={value!r:.60} must be a JSON list; {WAY_OUT}")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name}={value!r:.60} must be a non-empty text; {WAY_OUT}")
    return value
