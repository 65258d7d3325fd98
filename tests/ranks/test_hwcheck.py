# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""hwcheck on the stand-in: an honest one is confirmed, and each deliberate fault is found and named."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mori_gemm_ar.cli import app
from mori_gemm_ar.hwcheck import families, litmus, micro, product, readings, semantics
from mori_gemm_ar.hwcheck.alterations import parse_alteration
from mori_gemm_ar.hwcheck.forms import listed_forms
from mori_gemm_ar.hwcheck.litmus_tests import ACQUIRE_ALONE, ENGINE_TESTS, LOCAL_TESTS, PAIR_TESTS, RELEASE_ALONE
from mori_gemm_ar.hwcheck.report import Outcome, Report, Verdict, reason_not_report
from mori_gemm_ar.hwcheck.run import hwcheck
from mori_gemm_ar.hwcheck.settings import TINY, SectionName, Settings
from mori_gemm_ar.layout.gemm_terms import BLayout, Recipe
from mori_gemm_ar.layout.sdma import Transport
from mori_gemm_ar.model import load

RANKS = 2
CHOSEN = (RELEASE_ALONE, ACQUIRE_ALONE, "trailing atomic", "copy after copy in one queue, drained between")


def run(section: SectionName, *alterations: str, out: Path | None = None) -> Report:
    settings = Settings(RANKS, 5.0, TINY, 0, tuple(map(parse_alteration, alterations)), (section,))
    return hwcheck(settings, out=out)


def refuted(report: Report) -> set[str]:
    return {check.name for _, check in report.refuted}


# --- litmus ---


@pytest.fixture
def few_tests(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """One test on one GPU, and those that tell faults apart; of copies to LDS where they are what is tested."""
    if "lds-copy" not in request.node.name and "honest" not in request.node.name:
        monkeypatch.setattr(litmus, "COPIES_TESTS", ())
    monkeypatch.setattr(litmus, "LOCAL_TESTS", LOCAL_TESTS[:1])
    for name, tests in (("PAIR_TESTS", PAIR_TESTS), ("ENGINE_TESTS", ENGINE_TESTS)):
        monkeypatch.setattr(litmus, name, tuple(test for test in tests if test.name in CHOSEN))


@pytest.mark.usefixtures("few_tests")
def test_an_honest_memory_is_confirmed() -> None:
    report = run(SectionName.LITMUS)
    assert report.outcome is Outcome.CONFIRMED
    assert report.suspects == []
    histograms = {check.name: check.data["histogram"] for _, check in report.checks}
    assert len(histograms) == 8
    assert all(sum(histogram.values()) for histogram in histograms.values())
    # The model allows what lies one copy beyond the boundary, and its memory does it.
    assert histograms["L6 boundary: 5 under way, 4 read"]["old"] > 0


@pytest.mark.usefixtures("few_tests")
@pytest.mark.parametrize(
    ("fault", "suspect"),
    [
        ("writeback", "writebacks do not reach memory (buffer_wbl2)"),
        ("writeback-scope", "writebacks of system scope do not reach peers (buffer_wbl2)"),
        ("invalidate", "old lines stay in the caches after an acquire (buffer_inv)"),
        ("engine-stale", "copy engines read old memory, or announce copies that have not landed"),
        ("engine-order", "copy engines read old memory, or announce copies that have not landed"),
        ("lds-copy", "copies to LDS land later than their wait count says"),
    ],
)
def test_a_fault_of_memory_or_engines_is_named(fault: str, suspect: str) -> None:
    report = run(SectionName.LITMUS, fault)
    assert report.outcome is Outcome.REFUTED
    assert report.suspects == [suspect]


# --- semantics ---


@pytest.fixture
def few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dozen instructions, a GEMM and an all-reduce."""
    some = ("v_max_u32", "v_pk_add_f32", "s_lshl_b32", "v_mul_hi_u32")
    monkeypatch.setattr(semantics, "listed_forms", lambda: tuple(f for f in listed_forms() if f.mnemonic in some))
    gemm = families._GemmTest(Recipe.PTPC, BLayout.ROW, 5)
    monkeypatch.setattr(families, "_gemms", lambda: iter([("gemm", gemm)]))
    sums = list(families._all_reduces(type("Two", (), {"size": 2})))  # type: ignore[arg-type]
    monkeypatch.setattr(families, "_all_reduces", lambda rank: iter(sums[:1]))


@pytest.mark.usefixtures("few_kernels")
def test_honest_instructions_are_confirmed() -> None:
    report = run(SectionName.SEMANTICS)
    assert report.outcome is Outcome.CONFIRMED
    assert len(list(report.checks)) == 6
    coverage = report.sections[0].data["coverage"]
    assert coverage["probed"] == ["s_lshl_b32", "v_max_u32", "v_mul_hi_u32", "v_pk_add_f32"]
    assert coverage["not reached"] == []


@pytest.mark.usefixtures("few_kernels")
def test_an_altered_instruction_is_named() -> None:
    report = run(SectionName.SEMANTICS, "mnemonic:v_mul_hi_u32=v_mul_lo_u32")
    assert report.outcome is Outcome.REFUTED
    assert "v_mul_hi_u32" in refuted(report)
    assert report.suspects == ["instructions differ from the emulator's: v_mul_hi_u32"]
    detail = next(check.detail for _, check in report.refuted if check.name == "v_mul_hi_u32")
    assert "on the hardware and" in detail and "operands there" in detail and "v20=0x" in detail


# --- microbenchmarks ---

ALTERED = {
    "sdma_rate_gbs": 50.0, "sdma_phase_us": 21.0, "sdma_put_us": 9.0, "put_hidden_share": 0.4, "sdma_ar_us": 9.5,
    "release_agent_us": 0.03, "release_system_us": 0.04, "reduce_rate_tbs": 5.0, "reduce_base_us": 4.0,
    "convert_rate_tbs": 4.0, "graph_one_us": 14.0, "graph_layer_us": 9.0, "graph_call_us": 2.0, "lsa_base_us": 33.0,
    "lsa_one_stage_us": 29.0, "pull_base_us": 26.0,
}  # fmt: skip


def test_altered_constants_are_named_and_fitted_again(tmp_path: Path) -> None:
    out, machine = tmp_path / "report.json", tmp_path / "machine.json"
    report = run(SectionName.MICROBENCHMARKS, *(f"constant:{name}={value}" for name, value in ALTERED.items()), out=out)
    assert report.outcome is Outcome.REFUTED
    verdicts = {check.name: check.verdict for _, check in report.checks}
    assert all(verdicts[f"constant {name}"] in (Verdict.REFUTED, Verdict.NEW) for name in ALTERED)
    assert verdicts["constant put_hidden_share"] is Verdict.NEW  # nobody has measured it: any share is possible
    assert refuted(report) == {f"constant {name}" for name in ALTERED} - {"constant put_hidden_share"}
    assert report.effect and all(one["predicted"] for one in report.effect)
    assert {row["device"] for row in report.results} == {"stand-in"}
    assert all(row["predicted"] and row["validated"] for row in report.results)

    done = CliRunner().invoke(app, ["model", "fit", "--from", str(out), "--json", str(machine)])
    assert done.exit_code == 0, done.output
    assert "their times are predicted" in done.output
    fitted = {constant.name: constant.value for constant in load(machine).constants}
    for name, value in ALTERED.items():
        assert fitted[name] == pytest.approx(value, rel=0.02), name
    for constant in load().constants:
        if constant.name not in ALTERED:
            assert fitted[constant.name] == pytest.approx(constant.value, rel=0.02), constant.name


def test_times_of_wrong_bytes_are_no_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro, "_reading_groups", lambda rank, window: iter([("puts", readings.put_readings)]))
    monkeypatch.setattr(micro, "_row_groups", lambda rank: iter(()))
    report = run(SectionName.MICROBENCHMARKS, "torn")
    assert refuted(report) == {"measure puts"}
    assert report.suspects == ["timed work that gave wrong bytes: puts"]
    assert report.results == [] and report.effect == []


# --- product ---

FUSED = "gemm and all-reduce, fused-sdma"


def test_a_mode_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    few = [one for one in product.PRODUCTS if one.name in ("all-reduce sdma", "gemm ptpc", FUSED)]
    few.append(product.Product("an op of another version", None, module="mori_gemm_ar.nowhere"))
    monkeypatch.setattr(product, "PRODUCTS", tuple(few))
    monkeypatch.setattr(product, "_SHAPES", ((33,),))
    monkeypatch.setattr(product, "_GEMM_ROWS", (5,))
    report = run(SectionName.PRODUCT)
    assert report.outcome is Outcome.CONFIRMED
    verdicts = {check.name: check.verdict for _, check in report.checks}
    assert verdicts["all-reduce sdma"] is Verdict.CONFIRMED
    assert verdicts[FUSED] is Verdict.CONFIRMED
    assert verdicts["an op of another version"] is Verdict.NOT_BUILT

    report = run(SectionName.PRODUCT, "torn")
    assert refuted(report) == {"all-reduce sdma", FUSED}
    assert report.suspects == [f"modes that do not work here: all-reduce sdma, {FUSED}"]
    assert Transport.SDMA.value in report.suspects[0]


# --- the command ---


def invoke(*arguments: str) -> int:
    return CliRunner().invoke(app, ["hwcheck", "--effort", "tiny", *arguments]).exit_code


@pytest.mark.usefixtures("few_tests")
def test_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(litmus, "ENGINE_TESTS", ())
    out = tmp_path / "report.json"
    common = ("--section", "litmus", "--out", str(out))
    assert invoke(*common) == 0
    document = json.loads(out.read_text())
    assert reason_not_report(document) is None and document["outcome"] == "confirmed"
    assert document["hardware"]["times_are_predicted"] is True
    assert invoke(*common, "--alter", "invalidate") == 1
    assert json.loads(out.read_text())["settings"]["alterations"] == ["invalidate"]
    assert invoke(*common, "--alter", "nonsense") == 2
    assert invoke(*common, "--minutes", "0") == 2


def test_a_run_out_of_time_is_incomplete_and_its_report_valid(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    assert invoke("--minutes", "1e-6", "--out", str(out)) == 3
    document = json.loads(out.read_text())
    assert reason_not_report(document) is None
    assert {section["status"] for section in document["sections"]} == {"partial"}
    assert all("out of time" in section["reason"] for section in document["sections"])
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.slow
@pytest.mark.parametrize("effort", ["tiny", "stand-in"])
def test_the_whole_run(effort: str, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    done = CliRunner().invoke(app, ["hwcheck", "--world", "2", "--effort", effort, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert {section["status"] for section in json.loads(out.read_text())["sections"]} == {"complete"}


@pytest.mark.slow
def test_a_process_for_each_rank(tmp_path: Path) -> None:
    import subprocess

    out = tmp_path / "report.json"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "mori_gemm_ar", "hwcheck",
        "--effort", "tiny", "--section", "litmus", "--out", str(out),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    document = json.loads(out.read_text())
    assert document["hardware"]["kind"] == "emulated processes" and document["settings"]["world"] == 2
