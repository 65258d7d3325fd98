# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What the plugin tells: each thing once, by rank 0 of the group, and counters for programs."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

logger = logging.getLogger("mori_gemm_ar.sglang")
_BUCKETS_SHOWN = 12


class Journal:
    """Counters of one process. A first decline for each reason is logged, never a call."""

    def __init__(self, rank: int = 0, histogram: int = 0) -> None:
        self.rank = rank
        self._every = histogram
        self.fused: Counter[int] = Counter()  # calls by rows
        self.split: Counter[int] = Counter()
        self.reasons: Counter[str] = Counter()
        self.checks = 0
        self.worst_check = 0.0

    def say(self, text: str, *values: object) -> None:
        """One INFO line, from rank 0 only."""
        if self.rank == 0:
            logger.info(text, *values)

    def call_fused(self, rows: int) -> None:
        """Count a fused call."""
        self.fused[rows] += 1
        self._show()

    def call_split(self, rows: int, reason: str) -> None:
        """Count a call that the server's own path takes; `reason` without values that change from call to call."""
        self.split[rows] += 1
        self.reasons[reason] += 1
        if self.reasons[reason] == 1:
            self.say("split from now on, as often as that happens: %s (first at %d rows)", reason, rows)
        self._show()

    def checked(self, error: float) -> None:
        """Count a comparison with the split path."""
        self.checks += 1
        self.worst_check = max(self.worst_check, error)

    def counters(self) -> dict[str, Any]:
        """A copy of everything that was counted."""
        return {
            "fused": sum(self.fused.values()),
            "split": sum(self.split.values()),
            "reasons": dict(self.reasons),
            "rows_fused": dict(self.fused),
            "rows_split": dict(self.split),
            "checks": self.checks,
            "worst_check": self.worst_check,
        }

    def summary(self) -> str:
        """Counts in one line."""
        counted = self.counters()
        reasons = ", ".join(f"{reason}: {count}" for reason, count in self.reasons.most_common())
        return f"{counted['fused']} calls fused, {counted['split']} split" + (f" ({reasons})" if reasons else "")

    def _show(self) -> None:
        calls = sum(self.fused.values()) + sum(self.split.values()) if self._every else 0
        if self._every and calls % self._every == 0:
            for word, rows in (("fused", self.fused), ("split", self.split)):
                common = ", ".join(f"{m} rows: {count}" for m, count in rows.most_common(_BUCKETS_SHOWN))
                self.say("after %d calls, %s: %s", calls, word, common or "none")
