# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""`create` over processes succeeds on every rank or raises on every rank, and gives back all that it took."""

from __future__ import annotations

import pytest

from tests.ranks.process_setup_jobs import FAULTS, FIRST_RANK_ONLY, NOT_FIRST_RANK
from tests.ranks.processes import Launcher

RANKS = 3


def test_every_step_may_fail_on_one_rank_and_on_all(launcher: Launcher) -> None:
    """The error that was injected arrives everywhere; nothing stays, and the create after it works (in the job)."""
    ranks = launcher.run("faults", RANKS)
    for fault, (_, name) in FAULTS.items():
        original = f"{name} was made to fail"
        one = 0 if fault in FIRST_RANK_ONLY else RANKS - 1
        for who in ("one", "all"):
            hit = set(range(RANKS)) if who == "all" else {one}
            if fault in FIRST_RANK_ONLY:
                hit = {0}
            if fault in NOT_FIRST_RANK:
                hit -= {0}
            for rank, found in enumerate(ranks):
                kind, text, held = found[fault, who]
                where = f"{fault} on {who}, rank {rank}: {kind}: {text}"
                assert kind in ("CollectiveSetupError", "ConfigError"), where
                assert original in text or (fault == "fallocate" and "must be available" in text), where
                if rank not in hit:
                    assert text.startswith(f"rank {min(hit)} failed at step "), where
                assert held["seconds"] < 10, where  # ranks that wait in a kernel are told, whatever their budget
                before = found["before", ""][2]
                assert (held["memfds"], held["windows"], held["descriptors"]) == (0, 0, before["descriptors"]), where


def test_late_and_missing_ranks(launcher: Launcher) -> None:
    found = launcher.run("late", 3)
    reason = "rank 1 did not come to step 'join the group' within 1 s; "
    assert found[0] == found[2]
    assert found[0][0].startswith(f"RendezvousError: {reason}")
    assert found[1][0].startswith(f"RendezvousError: rank 1 came too late to 'join the group': {reason}")
    assert [texts[1] for texts in found] == ["6.0"] * 3


def test_a_window_above_the_memory_limit(launcher: Launcher) -> None:
    first, second = launcher.run("too_large", 2, {"max_bytes": 1 << 20, "limit": 1 << 20})
    assert first.startswith("ConfigError: window=")
    assert first.endswith(
        "bytes must be at most 1048576, the limit; lower max_bytes, start fewer ranks, or free memory"
    )
    assert second == f"CollectiveSetupError: rank 0 failed at step 'name the communicator': {first}"


def test_a_file_size_limit(launcher: Launcher) -> None:
    first, second = launcher.run("too_large", 2, {"max_bytes": 1 << 24}, limits={"RLIMIT_FSIZE": 1 << 24})
    assert "the system says: File too large (RLIMIT_FSIZE; see ulimit -f)" in first
    assert second == f"CollectiveSetupError: rank 0 failed at step 'name the communicator': {first}"


def test_a_forked_child_is_not_the_rank(launcher: Launcher) -> None:
    for text in launcher.run("in_a_forked_child", 2):
        assert text.startswith("ConfigError: process=")
        assert text.endswith("where this world was made; a forked child makes its own")


def test_a_rank_that_fails_shows_in_the_outcome(launcher: Launcher) -> None:
    """Control: a launch whose ranks fail does not pass."""
    with pytest.raises(AssertionError, match="rank 0: value=None, error=KeyError"):
        launcher.run("too_large", 1)
