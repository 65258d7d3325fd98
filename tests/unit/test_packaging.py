# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The wheel holds the whole package, and `make` explains itself before it installs anything."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import mori_gemm_ar

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = (".py", ".ll", ".json", ".txt", ".typed")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy, without the network."""
    tree = tmp_path_factory.mktemp("wheel")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "mori_gemm_ar", tree / "mori_gemm_ar", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(tree / "out"), "."]
    run = subprocess.run(command, cwd=tree, text=True, capture_output=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return next((tree / "out").glob("*.whl"))


def test_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    package = {p.relative_to(ROOT).as_posix() for p in (ROOT / "mori_gemm_ar").rglob("*") if p.suffix in SHIPPED}
    assert "mori_gemm_ar/py.typed" in package
    names = set(zipfile.ZipFile(wheel).namelist())
    assert package == {name for name in names if name.startswith("mori_gemm_ar/")}


def test_wheel_metadata(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    metadata = archive.read(next(n for n in archive.namelist() if n.endswith("/METADATA"))).decode()
    assert f"\nVersion: {mori_gemm_ar.__version__}\n" in metadata
    required = {line.split(": ")[1] for line in metadata.splitlines() if line.startswith("Requires-Dist")}
    assert {r for r in required if "extra ==" not in r} == {"torch>=2.6", "numpy"}
    assert 'flydsl==0.5.0; extra == "compile"' in required
    assert not [r for r in required if "mori" in r and 'extra == "rocm"' not in r], "ROCm stays out of [dev]"


def test_wheel_is_a_plugin_of_sglang(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    points = archive.read(next(n for n in archive.namelist() if n.endswith("/entry_points.txt"))).decode()
    assert points.split() == ["[sglang.srt.plugins]", "mori_gemm_ar", "=", "mori_gemm_ar.integrations.sglang:register"]


def make(*words: str) -> subprocess.CompletedProcess[str]:
    """Run make as a user would, untouched by a make that runs this test."""
    program = shutil.which("make")
    if program is None:
        pytest.skip("make is not installed")
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")}
    return subprocess.run([program, *words], cwd=ROOT, env=env, text=True, capture_output=True, timeout=60)


def test_make_refuses_a_missing_python(tmp_path: Path) -> None:
    run = make("setup", "PYTHON=no-such-python", f"VENV={tmp_path}/env")
    assert run.returncode
    assert "PYTHON=no-such-python must be" in run.stderr


def test_make_refuses_an_old_python(tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    fake = "import sys, collections; sys.version_info = collections.namedtuple('V', 'major minor micro')(3, 9, 18)\n"
    # Runs the code that make passes, under a version that it must refuse.
    old.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{fake}exec(sys.argv.pop(1))" "$2" "$3" "$4"\n')
    old.chmod(0o755)
    run = make("setup", f"PYTHON={old}", f"VENV={tmp_path}/env")
    assert run.returncode
    assert "must be Python 3.10 to 3.13 (it is 3.9)" in run.stderr
    assert not (tmp_path / "env").exists()


def test_make_keeps_a_folder_that_is_no_environment(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("mine")
    run = make("setup", f"VENV={tmp_path}")
    assert run.returncode
    assert "must be a virtual environment or a new folder" in run.stderr
    assert (tmp_path / "data").read_text() == "mine"
