# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What a section writes down while it runs, so that an error leaves behind what was found before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mori_gemm_ar.hwcheck.hardware import Rank
from mori_gemm_ar.hwcheck.report import Check, Section, Verdict


@dataclass(slots=True)
class Log:
    """The notes of one rank; rank 0's become the report's."""

    section: Section
    rows: list[dict[str, Any]] = field(default_factory=list)
    cut: str = ""  # why something was left out

    def add(self, name: str, verdict: Verdict, detail: str = "", **data: Any) -> None:
        """Write a check down."""
        self.section.add(Check(name, verdict, detail, data))

    def judge(self, name: str, wrong: str | None, detail: str = "", **data: Any) -> None:
        """A check that confirms unless something is wrong."""
        verdict = Verdict.CONFIRMED if wrong is None else Verdict.REFUTED
        self.add(name, verdict, detail if wrong is None else wrong, **data)

    def out_of_time(self, what: str) -> None:
        """The budget is spent; `what` was left out."""
        self.cut = self.cut or f"out of time before {what}; give more --minutes"


SectionWork = Callable[[Rank, Log], None]


def first_of(rank: Rank, step: str, wrong: str | None) -> str | None:
    """Collective: the first rank's complaint, or None when no rank has one."""
    answers = rank.world.exchange(step, wrong)
    for number, answer in enumerate(answers):
        if answer is not None:
            return str(answer) if len(answers) == 1 else f"rank {number}: {answer}"
    return None
