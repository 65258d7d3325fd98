# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What hwcheck does to a GPU, through the rocm target and a HIP that logs: probes, litmus tests and timed loads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mori_gemm_ar.compile.store import CodeForm
from mori_gemm_ar.hwcheck import launching, litmus
from mori_gemm_ar.hwcheck.forms import listed_forms
from mori_gemm_ar.hwcheck.hardware import Rank
from mori_gemm_ar.hwcheck.launching import CheckWindow
from mori_gemm_ar.hwcheck.litmus_tests import ENGINE_TESTS, LOCAL_TESTS, PAIR_TESTS
from mori_gemm_ar.hwcheck.probes import probe_of
from mori_gemm_ar.hwcheck.readings import Bench, release_readings
from mori_gemm_ar.hwcheck.report import Section, Verdict
from mori_gemm_ar.hwcheck.section import Log
from mori_gemm_ar.hwcheck.semantics import compare
from mori_gemm_ar.hwcheck.settings import TINY, Budget, Settings
from mori_gemm_ar.hwcheck.timer import EventTimer
from mori_gemm_ar.hwcheck.values import inputs_of
from mori_gemm_ar.runtime import RankContext
from mori_gemm_ar.runtime.alone import AloneWorld
from tests.unit.rocm_fakes import FakeNode, RocmWorld, StandInStore, run
from tests.unit.test_hwcheck_timer import FakeCuda


@pytest.fixture(autouse=True)
def stand_in_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "default_store", StandInStore)
    monkeypatch.setenv("MORI_ENABLE_SDMA", "1")


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path, 2)


def rank_of(world: RocmWorld) -> Rank:
    target = world.target()
    assert target.code_form is CodeForm.HSACO
    timer = EventTimer(target, FakeCuda())
    return Rank(world, target, timer, Settings(2, 1.0, TINY), Budget.start(60.0), weak=True, together=False)  # type: ignore[arg-type]


def test_litmus_tests_and_loads(node: FakeNode) -> None:
    chosen = (LOCAL_TESTS[0], PAIR_TESTS[0], ENGINE_TESTS[0])

    def body(context: RankContext, world: RocmWorld) -> tuple[list[Verdict], int]:
        rank, log = rank_of(world), Log(Section("litmus"))
        with CheckWindow.create(world, rank.target, litmus._WINDOW, queues=2) as window:
            for test in chosen:
                litmus._run(rank, log, window, test)
            bench = Bench(rank, rank.timer, window)
            readings = list(release_readings(bench))
        return [check.verdict for check in log.section.checks], len(readings)

    assert run(node, body) == [([Verdict.CONFIRMED] * 3, 2)] * 2
    launched = [one.kernel for rank in range(2) for one in node.fake.launches(rank)]
    assert launched.count("message_system_system") == 2 * TINY.launches
    assert "load_releases_system_w8" in launched


def test_a_probe_reaches_the_gpu_as_hsaco(node: FakeNode) -> None:
    form = next(form for form in listed_forms() if form.mnemonic == "v_max_u32")

    def body(context: RankContext, world: RocmWorld) -> int:
        probe, rng = probe_of([form]), np.random.default_rng(0)
        reference = AloneWorld().target("emulated")
        return len(compare(world.target(), reference, probe, inputs_of(probe, 2, rng), rng))

    assert run(node, body, size=1) == [0]
    assert len(node.fake.launches(0)) == 1
