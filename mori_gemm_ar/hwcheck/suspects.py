# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""From refuted checks to what is probably wrong, in one line each. A guess: the checks themselves are the facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mori_gemm_ar.hwcheck.litmus_tests import ACQUIRE_ALONE, ENGINE_TESTS, LOCAL_TESTS, RELEASE_ALONE
from mori_gemm_ar.hwcheck.report import Report
from mori_gemm_ar.hwcheck.settings import SectionName

_LOCAL = LOCAL_TESTS[0].name
_ENGINES = frozenset(test.name for test in ENGINE_TESTS if test.forbids_old)


def suspects(report: Report) -> list[str]:
    """What the refuted checks have in common."""
    refuted = {name: [c for s, c in report.refuted if s.name == name.value] for name in SectionName}
    found: list[str] = []
    for name, guess in _GUESSES.items():
        found += guess({check.name for check in refuted[name]})
    return found


def _semantics(names: set[str]) -> Iterator[str]:
    instructions = sorted(name for name in names if not name.startswith("kernel "))
    if instructions:
        yield f"instructions differ from the emulator's: {', '.join(instructions)}"
    elif names:
        yield "whole kernels differ though every instruction alone agrees: hazards, waits or memory order inside them"


def _litmus(names: set[str]) -> Iterator[str]:
    if RELEASE_ALONE in names:
        reach = "writebacks do not reach memory" if _LOCAL in names else "writebacks of system scope do not reach peers"
        yield f"{reach} (buffer_wbl2)"
    if ACQUIRE_ALONE in names:
        yield "old lines stay in the caches after an acquire (buffer_inv)"
    if names & _ENGINES and not names & {RELEASE_ALONE, ACQUIRE_ALONE}:
        yield "copy engines read old memory, or announce copies that have not landed"
    if any(name.startswith("L6") for name in names):
        yield "copies to LDS land later than their wait count says"


def _constants(names: set[str]) -> Iterator[str]:
    moved = sorted(name.removeprefix("measure ") for name in names if name.startswith("measure "))
    if moved:
        yield f"timed work that gave wrong bytes: {', '.join(moved)}"
    constants = sorted(name.removeprefix("constant ") for name in names if name.startswith("constant "))
    if constants:
        yield f"constants of the time model: {', '.join(constants)}"


def _product(names: set[str]) -> Iterator[str]:
    if names:
        yield f"modes that do not work here: {', '.join(sorted(names))}"


_GUESSES: dict[SectionName, Callable[[set[str]], Iterator[str]]] = {
    SectionName.SEMANTICS: _semantics,
    SectionName.LITMUS: _litmus,
    SectionName.MICROBENCHMARKS: _constants,
    SectionName.PRODUCT: _product,
}
