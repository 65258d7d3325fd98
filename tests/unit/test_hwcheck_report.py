# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The report of hwcheck: outcomes, files that are whole whenever they are read, and what stands behind a verdict."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.hwcheck.alterations import Fault, parse_alteration
from mori_gemm_ar.hwcheck.litmus import judge
from mori_gemm_ar.hwcheck.litmus_tests import ACQUIRE_ALONE, ENGINE_TESTS, LOCAL_TESTS, PAIR_TESTS, RELEASE_ALONE
from mori_gemm_ar.hwcheck.machine import machine_facts
from mori_gemm_ar.hwcheck.micro import judge_constant
from mori_gemm_ar.hwcheck.report import (
    Check,
    Outcome,
    Report,
    Section,
    Status,
    Verdict,
    reason_not_report,
    write_document,
)
from mori_gemm_ar.hwcheck.section import Log
from mori_gemm_ar.hwcheck.settings import TINY, Budget, SectionName, Settings
from mori_gemm_ar.hwcheck.suspects import suspects
from mori_gemm_ar.model import load


def report_of(*sections: Section) -> Report:
    facts = {"kind": "stand-in", "clock": "model", "times_are_predicted": True}
    return Report(facts, {}, {}, {}, list(sections))


def section_of(*verdicts: Verdict, status: Status = Status.COMPLETE, name: str = "litmus") -> Section:
    return Section(name, status, checks=[Check(f"check {n}", verdict) for n, verdict in enumerate(verdicts)])


@pytest.mark.parametrize(
    ("sections", "outcome"),
    [
        ([section_of(Verdict.CONFIRMED, Verdict.NOTE, Verdict.NEW, Verdict.NOT_BUILT)], Outcome.CONFIRMED),
        ([section_of(Verdict.CONFIRMED), section_of(Verdict.REFUTED)], Outcome.REFUTED),
        ([section_of(Verdict.CONFIRMED, status=Status.PARTIAL)], Outcome.INCOMPLETE),
        ([section_of(Verdict.REFUTED, status=Status.FAILED)], Outcome.REFUTED),
        ([section_of(), section_of(status=Status.PENDING)], Outcome.INCOMPLETE),
    ],
)
def test_outcome(sections: list[Section], outcome: Outcome) -> None:
    assert report_of(*sections).outcome is outcome


def test_a_report_of_a_run_that_has_hardly_begun_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    report_of(Section("semantics"), Section("litmus")).write(path)
    document = json.loads(path.read_text())
    assert reason_not_report(document) is None
    assert [section["status"] for section in document["sections"]] == ["pending", "pending"]
    assert document["outcome"] == "incomplete"


@pytest.mark.parametrize("change", [{"schema": "x"}, {"version": 2}, {"sections": None}, {"results": {}}])
def test_another_document_is_no_report(change: dict) -> None:
    assert reason_not_report(report_of().to_dict()) is None
    assert reason_not_report(report_of().to_dict() | change) is not None


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_document(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_document(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"out=.* must lie in a writable directory"):
        report_of().write(tmp_path / "nowhere" / "report.json")


# --- settings ---


def test_alterations() -> None:
    assert str(parse_alteration("writeback")) == "writeback"
    one = parse_alteration("mnemonic:v_max_u32=v_min_u32")
    assert (one.fault, one.name, one.value) == (Fault.MNEMONIC, "v_max_u32", "v_min_u32")
    assert parse_alteration("constant:sdma_rate_gbs=55").number == 55.0


@pytest.mark.parametrize(
    "text",
    ["", "nothing", "writeback:x", "mnemonic", "mnemonic:v_max_u32", "constant:sdma_rate_gbs", "constant:speed=1",
     "constant:sdma_rate_gbs=fast", "constant:sdma_rate_gbs=-1", "constant:sdma_rate_gbs=nan"],
)  # fmt: skip
def test_no_alteration(text: str) -> None:
    with pytest.raises(ConfigError, match="alter="):
        parse_alteration(text)


@pytest.mark.parametrize(("world", "minutes"), [(0, 1), (9, 1), (2, 0), (2, -1), (2, float("nan")), (2, 1e9)])
def test_no_settings(world: int, minutes: float) -> None:
    with pytest.raises(ConfigError, match=r"world=|minutes="):
        Settings(world, minutes, TINY)


def test_sections_share_the_time() -> None:
    assert sum(name.share for name in SectionName) == pytest.approx(1.0)
    now = [100.0]
    budget = Budget.start(5.0, lambda: now[0])
    now[0] += 4
    assert budget.left == 1.0
    now[0] += 2
    assert budget.left < 0


# --- verdicts ---


@pytest.mark.parametrize(
    ("forbids", "histogram", "verdict"),
    [
        (True, {"current": 9}, Verdict.CONFIRMED),
        (True, {"current": 9, "old": 1}, Verdict.REFUTED),
        (False, {"current": 9, "old": 1}, Verdict.NOTE),
        (False, {"current": 9, "late": 1}, Verdict.REFUTED),
    ],
)
def test_judging_a_histogram(forbids: bool, histogram: dict[str, int], verdict: Verdict) -> None:
    log = Log(Section("litmus"))
    judge(log, replace(PAIR_TESTS[0], forbids_old=forbids), Counter(histogram), 1)
    (check,) = log.section.checks
    assert check.verdict is verdict
    assert check.data["histogram"] == {"current": 9, "old": histogram.get("old", 0), "late": histogram.get("late", 0)}


def test_judging_a_constant() -> None:
    constants = {constant.name: constant for constant in load().constants}
    rate, ratio = constants["sdma_rate_gbs"], constants["few_links_ratio"]
    assert judge_constant(rate, rate.value * 1.04)[0] is Verdict.CONFIRMED
    assert judge_constant(rate, rate.value * 0.94)[0] is Verdict.REFUTED
    assert judge_constant(ratio, ratio.pessimistic)[0] is Verdict.NEW
    assert judge_constant(ratio, 1.3)[0] is Verdict.REFUTED


def test_tests_have_names_of_their_own() -> None:
    names = [test.name for test in (*LOCAL_TESTS, *PAIR_TESTS, *ENGINE_TESTS)]
    assert len(set(names)) == len(names)
    assert {RELEASE_ALONE, ACQUIRE_ALONE} < set(names)


@pytest.mark.parametrize(
    ("section", "name", "guess"),
    [
        ("litmus", RELEASE_ALONE, "writebacks of system scope do not reach peers"),
        ("litmus", ACQUIRE_ALONE, "old lines stay"),
        ("litmus", "trailing atomic", "copy engines"),
        ("litmus", "L6 boundary: 4 under way, 4 read", "copies to LDS"),
        ("semantics", "v_max_u32", "v_max_u32"),
        ("semantics", "kernel gemm ptpc row m=5", "whole kernels differ"),
        ("microbenchmarks", "constant sdma_rate_gbs", "sdma_rate_gbs"),
        ("product", "all-reduce sdma", "all-reduce sdma"),
    ],
)
def test_suspects(section: str, name: str, guess: str) -> None:
    found = suspects(report_of(Section(section, checks=[Check(name, Verdict.REFUTED)])))
    assert len(found) == 1 and guess in found[0]
    assert suspects(report_of(Section(section, checks=[Check(name, Verdict.CONFIRMED)]))) == []


# --- machine ---


def test_facts_of_a_machine(tmp_path: Path) -> None:
    card = tmp_path / "sys/class/drm/card1/device"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x1002\n")
    (card / "current_compute_partition").write_text("SPX\n")
    other = tmp_path / "sys/class/drm/card0/device"
    other.mkdir(parents=True)
    (other / "vendor").write_text("0x1a03\n")
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    (tmp_path / "sys/module/amdgpu/version").write_text("6.12.12\n")
    facts = machine_facts(tmp_path)
    assert facts["driver"] == "6.12.12"
    assert len(facts["gpus"]) == 1
    assert facts["gpus"][0]["compute_partition"] == "SPX"
    assert facts["gpus"][0]["memory_partition"] is None
