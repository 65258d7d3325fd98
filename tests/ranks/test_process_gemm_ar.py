# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The fused op with a process for each rank."""

from __future__ import annotations

import re
import time

from tests.ranks.layers import MAIN_WAYS
from tests.ranks.processes import Launcher


def test_every_way(launcher: Launcher) -> None:
    assert launcher.run("layers", 2) == [[way.mode.value for way in MAIN_WAYS]] * 2


def test_a_sub_group_first_then_all(launcher: Launcher) -> None:
    first, second, third = launcher.run("layers_of_groups", 3)
    assert first == second == {"01": True, "012": True}
    assert third == {"012": True}


def test_a_rank_that_is_killed_in_mid_call(launcher: Launcher) -> None:
    """The other names it long before the budget of 60 s, and ends by itself."""
    with launcher.start("layers_until_failure", 2) as launch:
        for rank in range(2):
            launch.wait_for(f"called {rank}")
        time.sleep(0.2)
        launch.kill(1)
        outcome = launch.outcome(0, 40)
        assert outcome.code == 3 and "Traceback" not in outcome.stderr, outcome
        text = (launch.folder / "error 0").read_text()
        assert re.search(rf"CollectiveTimeout: rank 1 has died \(process {launch.pids[1]}\); rank 0 stood at ", text)
        assert float(text.split()[0]) < 10, text


def test_an_op_that_nobody_closes(launcher: Launcher) -> None:
    """Exit code 0 and nothing on stderr, which `run` asks for."""
    assert launcher.run("layers_left_open", 2) == [True, True]


def test_code_in_the_peers_style(launcher: Launcher) -> None:
    assert launcher.run("as_the_peer", 2) == [(rank, 2, 512) for rank in range(2)]
