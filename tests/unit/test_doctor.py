# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""`python -m mori_gemm_ar doctor`: what it says on this machine and on others, without FlyDSL or mori."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mori_gemm_ar.commands import doctor
from mori_gemm_ar.commands.doctor import Finding, State, examine
from mori_gemm_ar.compile import store as store_module
from mori_gemm_ar.compile.hsaco import LINKER_VARIABLE
from mori_gemm_ar.errors import HipError
from mori_gemm_ar.runtime import select
from mori_gemm_ar.runtime.select import Offers

ROOT = Path(__file__).resolve().parents[2]
GPU = Offers(gpus=("gfx950",) * 8, torch_hip="7.1.25424", torch_gpus=8, mori="1.2.4")


class Machine:
    """Replaces what doctor looks at."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self._patch, self._packages = patch, {"flydsl": "0.5.0", "torch": "2.9.0", "numpy": "2.4.0"}
        patch.setattr(doctor, "_version", self._packages.get)
        patch.setenv("ROCM_PATH", str(folder / "rocm"))
        self.cache(folder / "cache")
        self.offers(Offers())
        self.linker(None)

    def cache(self, folder: Path) -> None:
        self._patch.setenv(store_module.CACHE_VARIABLE, str(folder))

    def offers(self, offers: Offers) -> None:
        self._patch.setattr(select, "probe", lambda root=None: offers)

    def package(self, name: str, version: str | None) -> None:
        self._packages[name] = version

    def linker(self, command: str | None) -> None:
        self._patch.setenv(LINKER_VARIABLE, command or "/none/ld.lld")

    def hip(self, answer: Any) -> None:
        def hip() -> list[str]:
            if isinstance(answer, Exception):
                raise answer
            return answer

        self._patch.setattr(doctor, "_hip", hip)

    def findings(self) -> tuple[str | None, dict[str, Finding]]:
        target, findings = examine()
        return target, {finding.name: finding for finding in findings}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return Machine(monkeypatch, tmp_path)


def lacks(findings: dict[str, Finding]) -> list[str]:
    return [name for name, finding in findings.items() if finding.state is State.LACK]


def test_a_laptop(machine: Machine) -> None:
    target, findings = machine.findings()
    assert target == "emulated"
    assert lacks(findings) == []
    assert findings["flydsl"].value == "0.5.0"
    assert findings["AMD GPUs"].state is findings["linker"].state is State.NOTE
    for finding in findings.values():  # whatever is missing comes with a way to get it
        assert finding.state is State.GOOD or finding.way_out, finding
    assert {"python", "torch", "numpy", "amd-mori", "ROCm", "HIP runtime", "cache", "free memory"} <= findings.keys()


def test_a_laptop_without_flydsl(machine: Machine) -> None:
    machine.package("flydsl", None)
    target, findings = machine.findings()
    assert target == "emulated"
    assert lacks(findings) == ["kernels"]
    assert "mori_gemm_ar[compile]" in findings["flydsl"].way_out


def test_an_mi355x(machine: Machine) -> None:
    machine.offers(GPU)
    machine.linker(sys.executable)
    machine.hip(["7.1.25424", "8 x gfx950:sramecc+:xnack-"])
    target, findings = machine.findings()
    assert target == "rocm"
    assert lacks(findings) == []
    assert findings["AMD GPUs"].value == "8 x gfx950"
    assert findings["HIP runtime"].value == "7.1.25424, 8 x gfx950:sramecc+:xnack-"
    assert "hsaco" in findings["code objects"].value


def test_an_mi355x_that_lacks_a_linker_and_hip(machine: Machine) -> None:
    machine.offers(GPU)
    machine.hip(HipError("hipInit failed with error 100: no ROCm-capable device is detected"))
    _, findings = machine.findings()
    assert lacks(findings) == ["HIP runtime", "kernels"]


def test_an_mi355x_without_amd_mori(machine: Machine) -> None:
    machine.offers(Offers(gpus=("gfx950",), torch_hip="7.1", torch_gpus=1))
    machine.hip(["7.1", "1 x gfx950"])
    target, findings = machine.findings()
    assert target is None
    assert lacks(findings) == ["target", "rocm target"]
    assert findings["rocm target"].way_out == "pip install 'mori_gemm_ar[rocm]'"


def test_a_cache_that_cannot_be_written(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    machine.cache(tmp_path / "file" / "cache")
    _, findings = machine.findings()
    assert findings["cache"].state is State.NOTE
    assert "cannot be written" in findings["cache"].value
    assert store_module.CACHE_VARIABLE in findings["cache"].way_out


# --- the command ---

BLOCKED = "import sys; sys.modules.update(flydsl=None, mori=None); import runpy; sys.argv[0:1] = ['mori_gemm_ar']; "
RUN = "runpy.run_module('mori_gemm_ar', run_name='__main__')"


def command(*arguments: str, code: str = BLOCKED + RUN, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, "doctor", *arguments],
        cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_the_command_prints_a_table(tmp_path: Path) -> None:
    run = command(MORI_GEMM_AR_CACHE=str(tmp_path))
    assert run.returncode == 0, run.stderr
    assert "This machine" in run.stdout
    assert run.stdout.rstrip().endswith("runs emulated here")
    assert run.stderr == ""


def test_the_command_prints_json(tmp_path: Path) -> None:
    run = command("--json", MORI_GEMM_AR_CACHE=str(tmp_path))
    document = json.loads(run.stdout)
    assert (document["target"], document["works"], run.returncode) == ("emulated", True, 0)
    assert {"name", "value", "state", "way_out"} == document["findings"][0].keys()


def test_the_exit_status_tells_that_nothing_runs(tmp_path: Path) -> None:
    hide = (
        "import importlib.metadata as m; found = m.version\n"
        "def version(name):\n"
        "    if name == 'flydsl': raise m.PackageNotFoundError(name)\n"
        "    return found(name)\n"
        "m.version = version\n"
    )
    run = command("--json", code=BLOCKED + "\n" + hide + RUN, MORI_GEMM_AR_CACHE=str(tmp_path))
    assert run.returncode == 1, run.stderr
    assert json.loads(run.stdout)["works"] is False
