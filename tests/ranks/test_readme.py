# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The README says what is true: its Python runs, and its first commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, flags=re.M | re.S)


def test_readme_has_python() -> None:
    assert BLOCKS


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_readme_python_runs(block: str, tmp_path: Path) -> None:
    """As a user would: a script of its own, elsewhere, with the package installed."""
    script = tmp_path / "quick_start.py"
    script.write_text(block, encoding="utf-8")
    run = subprocess.run([sys.executable, str(script)], cwd=tmp_path, text=True, capture_output=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr


def test_readme_opens_with_the_two_commands() -> None:
    first = re.search(r"^```[a-z]*\n(.*?)^```", README, flags=re.M | re.S)
    assert first is not None
    assert [line.split("#")[0].strip() for line in first.group(1).splitlines()] == ["make demo", "make test"]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M)
    assert {"demo", "test", "lint"} <= set(targets)
