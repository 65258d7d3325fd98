# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""A user's own readings: RESULT_JSON rows of benchmark runs, turned into records that a fit accepts.

A row calibrates when it was validated, timed on a GPU and carries its shape. Every other row is kept with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.model.constants import Constants
from mori_gemm_ar.model.records import WIDE_STORE, Record, Role
from mori_gemm_ar.model.replay import predict_record
from mori_gemm_ar.model.terms import Case

PREFIX = "RESULT_JSON "
_TILE = re.compile(r"(\d+)x(\d+)")
SUFFIXES = (".json", ".jsonl", ".log", ".txt", ".out")
EMULATED = "emulated"
EXACT = "exact"  # wire of an all-reduce that sends the elements themselves
ALLREDUCE = "all_reduce"  # `benchmark` of an all-reduce row; every row but this and the next is a layer and has a mode
BASELINE = "all_reduce_baseline"  # the same of another library; calibrates nothing but what the model knows of it


def read_results(path: Path | str) -> list[dict[str, Any]]:
    """Rows of one file, or of all files below a folder in the order of their names."""
    root = Path(path)
    if root.is_dir():
        files = sorted(file for file in root.rglob("*") if file.suffix in SUFFIXES and file.is_file())
    else:
        files = [root]
    rows: list[dict[str, Any]] = []
    for file in files:
        try:
            rows.extend(_rows_of(file.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"from={str(file)!r} must be a readable text file ({error})") from None
    if not rows:
        raise ConfigError(
            f"from={str(path)!r} must hold RESULT_JSON rows; keep a benchmark's output in *.log or *.json"
        )
    return rows


def _rows_of(text: str) -> Iterator[dict[str, Any]]:
    """RESULT_JSON lines of a log; else a JSON object, a list of them, or one with a list `results`."""
    lines = [line for line in text.splitlines() if line.startswith(PREFIX)]
    try:
        if lines:
            found: Any = [json.loads(line[len(PREFIX) :]) for line in lines]
        else:
            found = json.loads(text)
    except json.JSONDecodeError:
        return
    if isinstance(found, dict):
        found = found.get("results", [found])
    yield from (row for row in found if isinstance(row, dict))


def records_of(rows: Iterable[Mapping[str, Any]], constants: Constants) -> tuple[Record, ...]:
    """Records of RESULT_JSON rows: the whole time, then each phase. ConfigError if they mix states of the software."""
    rows = [row for row in rows if "constant" not in row]
    states = sorted({state_of(row) for row in rows if _reason(row) is None})
    if len(states) > 1:
        raise ConfigError(f"software={states[1]} must equal {states[0]} of the rows before; fit each state apart")
    records: list[Record] = []
    for index, row in enumerate(rows):
        for record in _records(index + 1, row):
            records.append(_predictable(record, constants))
    return tuple(records)


def readings_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, tuple[float, str]]:
    """Constants that a microbenchmark read directly: name -> (value, unit), validated rows of a GPU only."""
    found = {}
    for row in rows:
        if "constant" in row and row.get("validated") is True and row.get("device") != EMULATED:
            found[str(row["constant"])] = (_number(row.get("value")), str(row.get("unit")))
    return found


def state_of(row: Mapping[str, Any]) -> str:
    """What must agree between rows that are compared: commit and versions, or what the row calls its software."""
    parts = [row.get("software"), row.get("git_commit"), row.get("versions")]
    return json.dumps([part for part in parts if part is not None], sort_keys=True)


def _reason(row: Mapping[str, Any]) -> str | None:
    """Why a row cannot calibrate."""
    if row.get("validated") is not True:
        return "not validated: never calibrates"
    if row.get("device") == EMULATED or row.get("time_us") is None:
        return "no time of a GPU"
    if row.get("benchmark") == ALLREDUCE and wire_of(row) not in (None, "bf16"):
        return f"no formula: an all-reduce with wire={wire_of(row)!r}"
    return None if _number(row["time_us"]) > 0 else f"time_us={row['time_us']!r} is no time"


def _records(index: int, row: Mapping[str, Any]) -> Iterator[Record]:
    resolved = _resolved(row)
    reason = _reason(row)
    common: dict[str, Any] = dict.fromkeys(field.name for field in fields(Record))
    common |= {
        "source": "results",
        "line": index,
        "unit": "us",
        "kind": "measured",
        "mode": _mode(row, resolved),
        "m": row.get("m"),
        "n": row.get("n"),
        "k": row.get("k"),
        "world": row.get("world_size", row.get("world")),
        "quant": row.get("quant"),
        "wire": _wire(row, resolved),
        "c_store": WIDE_STORE,
        "chunks": resolved.get("chunks", row.get("chunks")),
        "n_stripe": resolved.get("stripe", row.get("stripe")),
        "variant": "1-stage" if resolved.get("stage") == 1 else None,
        "correct": row.get("validated"),
        "state": state_of(row),
        "stat": row.get("stat"),
        "role": Role.EXCLUDED if reason else Role.FIT,
        "reason": reason,
    }
    tile = _TILE.fullmatch(str(resolved.get("tile", row.get("tile"))))
    if tile:
        common["block_m"], common["block_n"] = int(tile[1]), int(tile[2])
    series = "all-reduce" if common["mode"].endswith("-ar") else "gemm" if common["mode"] == "gemm-only" else "layer"
    whole = {"id": f"row-{index:04d}", "what": "end_to_end", "value": _number(row.get("time_us")), "series": series}
    yield Record(**{**common, **whole})
    phases = row.get("phases_us")
    for name, us in phases.items() if isinstance(phases, Mapping) else ():
        if _number(us) > 0:
            phase = {"id": f"row-{index:04d}-{name}", "what": "kernel", "phase": name, "value": _number(us)}
            yield Record(**{**common, **phase, "series": "phase"})


def _number(value: object) -> float:
    """The value, or 0 for what is no number; such a row is excluded before it is used."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _resolved(row: Mapping[str, Any]) -> Mapping[str, Any]:
    resolved = row.get("resolved")
    return resolved if isinstance(resolved, Mapping) else {}


def transport_of(row: Mapping[str, Any]) -> str:
    """What moved the bytes of an all-reduce row, or whose all-reduce it was."""
    resolved = _resolved(row)
    return str(resolved.get("backend", resolved.get("transport", row.get("backend", "lsa"))))


def wire_of(row: Mapping[str, Any]) -> str | None:
    """What crossed the links; None where that was the elements themselves, or the row does not tell."""
    wire = _resolved(row).get("wire", row.get("wire"))
    return None if wire == EXACT else wire


def _mode(row: Mapping[str, Any], resolved: Mapping[str, Any]) -> str:
    if row.get("benchmark") in (ALLREDUCE, BASELINE):
        return f"{transport_of(row)}-ar"
    return str(resolved.get("mode", row.get("mode")))


def _wire(row: Mapping[str, Any], resolved: Mapping[str, Any]) -> str | None:
    """The wire as records spell it: fp8 with the transport of the gather behind it."""
    wire = wire_of(row)
    if wire in (None, "bf16"):
        return wire
    return f"fp8/{resolved.get('gather', row.get('gather', 'lsa'))}"


def _predictable(record: Record, constants: Constants) -> Record:
    """Exclude a row that the model has no formula for, with the reason."""
    if record.role is Role.EXCLUDED:
        return record
    try:
        predict_record(constants.at(Case.EXPECTED), record)
    except ConfigError as error:
        changed = {field.name: getattr(record, field.name) for field in fields(Record)}
        return Record(**{**changed, "role": Role.EXCLUDED, "reason": f"no formula: {error}"})
    return record
