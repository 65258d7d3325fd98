# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""SGLang plugin, four processes: whatever fails on one rank leaves all of them unfused, soon, and nothing behind."""

from __future__ import annotations

import pytest

from tests.ranks import sglang_jobs
from tests.ranks.processes import Launcher

WORLD = 4
SOON_S = 20.0  # far from the patience of 30 s that a rank which nobody told would show
TOLERANCE = 3e-3


def test_sglang_fault_on_one_rank_at_each_step(launcher: Launcher) -> None:
    """Every rank ends unfused and tells the reason of the failing rank."""
    outcomes = launcher.run("sglang_faults", WORLD)
    for name, (text, _) in sglang_jobs.FAULTS.items():
        for rank, outcome in enumerate(outcomes):
            armed, texts, seconds = outcome[name]
            assert not armed, f"fault={name}, rank={rank}"
            warnings = [t for t in texts if t.startswith("off on all ranks, SGLang runs as it is: ")]
            assert len(warnings) == 1 and text in warnings[0], f"fault={name}, rank={rank}: {texts}"
            assert seconds < SOON_S, f"fault={name}, rank={rank}: {seconds:.1f} s"


def test_sglang_rank_that_does_not_come(launcher: Launcher) -> None:
    """Its plugin is off or not hooked, or it leaves before the last vote; afterwards the same ranks can still arm.

    A call that then fails on one of them ends those of the others, which need not wait for their budget.
    """
    outcomes = launcher.run("sglang_missing", WORLD)
    for rank, outcome in enumerate(outcomes):
        armed, texts, seconds = outcome["no hook"]
        assert not armed and seconds < SOON_S
        wanted = "came too late to" if rank == sglang_jobs.WHO else f"rank {sglang_jobs.WHO} did not come to step"
        assert len(texts) == 1 and wanted in texts[0], f"rank={rank}: {texts}"
        armed, texts, seconds = outcome["left"]
        assert not armed and seconds < SOON_S
        wanted = "this rank leaves" if rank == sglang_jobs.WHO else f"rank {sglang_jobs.WHO} did not come to step 'arm'"
        assert wanted in texts[-1], f"rank={rank}: {texts}"
        assert outcome["good"] < TOLERANCE, f"rank={rank}"
        assert outcome["fault in a call"] < SOON_S, f"rank={rank}"


def test_sglang_fault_list_covers_every_meeting() -> None:
    """Each step at which ranks meet has a fault that strikes there."""
    texts = " ".join(text for text, _ in sglang_jobs.FAULTS.values())
    for step in ("take part", "look at the layers", "warm up", "register"):
        assert f"{step}: rank {sglang_jobs.WHO}" in texts
    with pytest.raises(sglang_jobs.Injected):
        sglang_jobs._raising()
