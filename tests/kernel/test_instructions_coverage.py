# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""No instruction of the emulator is without a test, no row without a run, and the comparison itself can fail."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from mori_gemm_ar.emulator import translate
from mori_gemm_ar.emulator.emit import HANDLERS
from tests.kernel.instruction_check import check
from tests.kernel.instruction_rows import Row
from tests.kernel.instruction_values import OPEN
from tests.kernel.instructions import State, execute

assert translate, "imported for the handlers"
# A module that holds instruction tests names what it executes: rows as test parameters, other mnemonics in COVERED.
NAMES = sorted(
    path.stem
    for path in Path(__file__).parent.glob("test_instructions_*.py")
    if path.stem not in ("test_instructions_coverage", "test_instructions_pcode")  # the second needs Python 3.11
)
CONTROL_FLOW = {"s_barrier", "s_sleep"}  # not handlers: the pool looks at how a segment ends


def executed_rows(module: ModuleType) -> list[Row]:
    """Rows that are parameters of a test of the module."""
    found = []
    for name, test in vars(module).items():
        for mark in getattr(test, "pytestmark", ()) if name.startswith("test_") else ():
            if mark.name == "parametrize":
                found += [value for value in mark.args[1] if isinstance(value, Row)]
    return found


def covered() -> set[str]:
    """Mnemonics that some test executes."""
    modules = [import_module(f"tests.kernel.{name}") for name in NAMES]
    rows = {row.name for module in modules for row in executed_rows(module)}
    return rows.union(*(getattr(module, "COVERED", set()) for module in modules))


def without_a_test(handlers: Iterable[str]) -> list[str]:
    return sorted(set(handlers) - covered())


def test_every_handler_has_a_test():
    assert without_a_test(HANDLERS) == []


def test_every_tested_name_has_a_handler():
    assert sorted(covered() - set(HANDLERS) - CONTROL_FLOW) == []


def test_a_new_handler_would_be_missed():
    assert without_a_test([*HANDLERS, "v_made_up_b32"]) == ["v_made_up_b32"]


@pytest.mark.parametrize("name", ["table_scalar", "table_integer", "table_float", "table_packed"])
def test_every_row_is_run(name):
    """A table that no test takes up would be an empty promise."""
    table = import_module(f"tests.kernel.{name}")
    run = {id(row) for module in NAMES for row in executed_rows(import_module(f"tests.kernel.{module}"))}
    lists = [value for value in vars(table).values() if isinstance(value, list) and value and isinstance(value[0], Row)]
    idle = {row.name for rows in lists for row in rows if id(row) not in run}
    division = {row.name for row in getattr(table, "DIVISION_ROWS", ())}  # run as one sequence, and by the pseudocode
    assert idle - division == set()


ADD = ("_e32 v12, v1, v5",)


@pytest.mark.parametrize(
    "row",
    [
        Row("v_add_u32", "u32", "u32 u32", lambda a, b: a + b + 1, ADD),
        Row("v_add_u32", "u32", "u32 u32", lambda a, b: min(a + b, 0xFFFFFFFF), ADD),
        Row("v_add_f32", "f32", "f32 f32", lambda a, b: (a + b) * (1 + 2.0**-23), ADD),
        Row("v_add_f32", "f32", "f32 f32", lambda a, b: 1.0 if a != a else a + b, ADD),
        Row("v_cmp_lt_u32", "mask", "u32 u32", lambda a, b: a <= b, ("_e32 vcc, v1, v5",)),
        Row("s_add_u32", "u32 scc", "u32 u32", lambda a, b: (a + b, False), (" s20, s3, s5",)),
    ],
    ids=lambda row: f"{row.name} {row.results}",
)
def test_a_wrong_reference_is_noticed(row):
    with pytest.raises(AssertionError, match=f"{row.name}.*differences, first"):
        check(row, row.forms[0])


def test_one_ulp_more_than_allowed_is_noticed():
    for ulps, reference in ((1, lambda a: 1 / a), (0, lambda a: (1 / a) * (1 + 2.0**-22))):
        row = Row(
            "v_rcp_f32", "f32", "f32", lambda a, f=reference: f(a) if 1 <= abs(a) < 2 else OPEN, ("_e32 v12, v1",), ulps
        )
        if ulps:
            check(row, row.forms[0])
        else:
            with pytest.raises(AssertionError):
                check(row, row.forms[0])


def test_a_stray_write_is_noticed():
    before = State.random(np.random.default_rng(0), 2)
    after = execute("v_mov_b32_e32 v3, v1\ns_mov_b32 s9, 0", before)
    want = before.copy()
    want.v[3] = before.v[1]
    assert all(line.startswith("s[9, ") for line in want.differences(after))
