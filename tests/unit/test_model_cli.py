# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The command line of the time model: what it prints, what it writes, how it ends."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import mori_gemm_ar
from mori_gemm_ar.cli import app
from mori_gemm_ar.model import Case, load
from mori_gemm_ar.model.constants import SHIPPED
from tests.unit.model_samples import ALTERED, altered, own_rows, write_log

ROOT = Path(mori_gemm_ar.__file__).parents[1]
LAYER = ["--m", "16384", "--n", "7168", "--k", "2048", "--world", "8", "--quant", "blockscale"]
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def spoilt(folder: Path, name: str, **fields: Any) -> str:
    """A constants file with one entry changed."""
    document = json.loads(SHIPPED.read_text(encoding="utf-8"))
    document["constants"][name].update(fields)
    file = folder / "machine.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    return str(file)


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Any]]:
    file = tmp_path_factory.mktemp("check") / "check.json"
    result = run("model", "check", "--json", str(file))
    return result, json.loads(file.read_text(encoding="utf-8"))


def test_check_prints_every_row_and_passes(checked: tuple[Any, dict[str, Any]]) -> None:
    result, document = checked
    assert result.exit_code == 0, result.output
    assert "predicted us" in result.output
    assert "leave one shape out" in result.output
    assert document["passed"]
    assert {row["role"] for row in document["rows"]} == {"fit", "held_out", "external"}
    assert result.output.count("pr662:") >= sum(row["source"].startswith("pr662:") for row in document["rows"])
    for gate in document["gates"]:
        assert gate["mean_absolute_error_percent"] <= gate["limit_percent"]
    # Every row carries what it needs to be judged.
    for row in document["rows"]:
        error = 100 * (row["predicted_us"] / row["measured_us"] - 1)
        assert row["error_percent"] == pytest.approx(error, abs=0.6), row


def test_check_marks_the_racy_row(checked: tuple[Any, dict[str, Any]]) -> None:
    assert "RACY" in checked[0].output


def test_check_with_a_corrupt_constant_exits_1(tmp_path: Path) -> None:
    result = run("model", "check", "--machine", spoilt(tmp_path, "sdma_rate_gbs", value=50.0))
    assert result.exit_code == 1
    assert "FAIL" in result.output


@pytest.mark.parametrize("command", [("model", "check"), ("model", "fit"), ("explain", *LAYER)])
def test_a_broken_constants_file_exits_2_with_field_and_unit(tmp_path: Path, command: tuple[str, ...]) -> None:
    result = run(*command, "--machine", spoilt(tmp_path, "barrier_us", unit="ms"))
    assert result.exit_code == 2
    assert "constants.barrier_us.unit='ms' must be 'us'" in result.output
    missing = run(*command, "--machine", str(tmp_path / "none.json"))
    assert missing.exit_code == 2
    assert "must be a readable constants file" in missing.output


def test_fit_writes_what_is_shipped(tmp_path: Path) -> None:
    file = tmp_path / "fitted.json"
    result = run("model", "fit", "--json", str(file))
    assert result.exit_code == 0, result.output
    assert "degrees of freedom" in result.output
    again, shipped = load(file).at(Case.EXPECTED), load().at(Case.EXPECTED)
    for stage_constant in ALTERED:
        assert getattr(again, stage_constant) == pytest.approx(getattr(shipped, stage_constant), rel=1e-4)


def test_fit_from_own_rows_makes_a_machine_of_its_own(tmp_path: Path) -> None:
    reading = {
        "constant": "stream_signal_us",
        "value": 1.25,
        "unit": "us",
        "validated": True,
        "device": "AMD Instinct MI355X",
    }
    write_log(tmp_path, [*own_rows(altered()), reading, {"mode": "split-sdma", "validated": False}])
    file = tmp_path / "mine.json"
    result = run("model", "fit", "--from", str(tmp_path), "--json", str(file))
    assert result.exit_code == 0, result.output
    assert "not validated: never calibrates" in result.output
    mine = load(file)
    assert mine.machine == "MI355X, own readings"
    for name, factor in ALTERED.items():
        want = getattr(load().at(Case.EXPECTED), name) * factor
        assert getattr(mine.at(Case.EXPECTED), name) == pytest.approx(want, rel=0.02), name
    # A reading is no longer assumed: all cases agree.
    assert {mine.at(case).stream_signal_us for case in Case} == {1.25}
    explained = run("explain", *LAYER, "--machine", str(file))
    assert explained.exit_code == 0, explained.output
    checked = run("model", "check", "--from", str(tmp_path), "--machine", str(file))
    assert checked.exit_code == 0, checked.output
    assert "results:1" in checked.output


def test_fit_from_a_place_without_usable_rows_exits_2(tmp_path: Path) -> None:
    write_log(tmp_path, [{"mode": "split-sdma", "validated": True, "device": "emulated", "time_us": None}])
    result = run("model", "fit", "--from", str(tmp_path))
    assert result.exit_code == 2
    assert "must hold validated rows timed on a GPU" in result.output
    bad = {"constant": "barrier_us", "value": 1.0, "unit": "ms", "validated": True, "device": "GPU"}
    write_log(tmp_path, [bad])
    assert "constant=barrier_us.unit='ms' must be 'us'" in run("model", "fit", "--from", str(tmp_path)).output
    write_log(tmp_path, [{**bad, "constant": "speed"}])
    assert "constant='speed' must be one of" in run("model", "fit", "--from", str(tmp_path)).output


def test_explain_prints_path_phases_and_what_is_assumed(tmp_path: Path) -> None:
    file = tmp_path / "explain.json"
    result = run("explain", *LAYER, "--json", str(file))
    assert result.exit_code == 0, result.output
    for text in (
        "path: fused-sdma, 8 chunks",
        "predicted us",
        "launches",
        "not taken",
        "what nobody measured",
        "held out",
    ):
        assert text in result.output
    document = json.loads(file.read_text(encoding="utf-8"))
    assert document["path"]["mode"] == "fused-sdma"
    assert "sweep" not in document


def test_no_time_is_printed_without_the_word() -> None:
    """Each table that shows a time says predicted in its title or in the column."""
    output = run("explain", *LAYER, "--sweep").output
    titles = re.findall(r"^(?![│┃┏┡└├]).*$", output, re.MULTILINE)
    tables = [part for part in re.split(r"(?=^┏)", output, flags=re.MULTILINE) if "us" in part.split("┡")[0]]
    assert titles
    assert len(tables) >= 3
    assert all("predicted" in table.split("┡")[0] for table in tables)


def test_sweep_prints_the_crossover(tmp_path: Path) -> None:
    file = tmp_path / "sweep.json"
    result = run("explain", *LAYER, "--sweep", "--json", str(file))
    assert result.exit_code == 0, result.output
    assert "from M=1 on: split-lsa" in result.output
    assert re.search(r"from M=\d+ on: fused-sdma", result.output)
    rows = json.loads(file.read_text(encoding="utf-8"))["sweep"]
    assert rows[-1]["m"] == 16384
    assert all("predicted_us" in row for row in rows)
    assert run("explain", *LAYER, "--plot", str(tmp_path / "x.png")).exit_code == 2


def test_a_timeline_opens_in_perfetto(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    result = run("explain", *LAYER, "--timeline", str(file))
    assert result.exit_code == 0, result.output
    trace = json.loads(file.read_text(encoding="utf-8"))
    events = trace["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}
    bars = [event for event in events if event["ph"] == "X"]
    assert sum(bar["name"].startswith("scatter") for bar in bars) == 7 * 8
    assert all(bar["args"] == {"predicted": True} and bar["dur"] >= 0 for bar in bars)
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert len(names) == 1
    assert names[0].startswith("predicted")
    tracks = {event["tid"] for event in events if event["name"] == "thread_name"}
    assert {bar["tid"] for bar in bars} <= tracks


@pytest.mark.skipif(not HAS_MATPLOTLIB, reason="matplotlib is not installed")
def test_pictures_are_written(tmp_path: Path) -> None:
    timeline, sweep, rows = (tmp_path / name for name in ("timeline.png", "sweep.png", "rows.png"))
    assert run("explain", *LAYER, "--timeline", str(timeline), "--sweep", "--plot", str(sweep)).exit_code == 0
    assert run("model", "fit", "--plot", str(rows)).exit_code == 0
    for file in (timeline, sweep, rows):
        assert file.read_bytes().startswith(b"\x89PNG"), file
    assert run("explain", *LAYER, "--timeline", str(tmp_path / "x.doc")).exit_code == 2


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--world", "9", "world=9 must be one of 1..8"),
        ("--k", "100", "k=100 must be one of 128.."),
        ("--n", "7170", "n=7170 must be a multiple of 16"),
        ("--m", "-1", "m=-1 must be one of 0.."),
        ("--quant", "int4", "int4"),
    ],
)
def test_a_layer_that_cannot_be_exits_2(option: str, value: str, message: str) -> None:
    words = [*LAYER]
    words[words.index(option) + 1] = value
    result = run("explain", *words)
    assert result.exit_code == 2
    assert message in result.output


BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "MODULE":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
from mori_gemm_ar.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_a_missing_extra_is_named(module: str) -> None:
    command = [sys.executable, "-c", BLOCKED.replace("MODULE", module)]
    result = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=60)
    assert result.returncode == 2
    assert f"{module} must be installed for the command line; pip install 'mori_gemm_ar[cli]'" in result.stderr


def test_the_module_runs() -> None:
    command = [sys.executable, "-m", "mori_gemm_ar", "--help"]
    result = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "explain" in result.stdout
    assert "model" in result.stdout


LOADED = "import sys, {}; print(*{{name.partition('.')[0] for name in sys.modules}})"


@pytest.mark.parametrize("module", ["mori_gemm_ar.cli", "mori_gemm_ar.model"])
def test_neither_torch_nor_flydsl_is_loaded(module: str) -> None:
    command = [sys.executable, "-c", LOADED.format(module)]
    result = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert not set(result.stdout.split()) & {"torch", "numpy", "flydsl", "matplotlib", "mori"}
