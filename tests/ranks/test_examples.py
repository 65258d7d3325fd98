# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Every example runs as its docstring says, from a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SAYS = {
    "compiled_layers.py": r"^compiled and eager results are equal bit by bit$",
    "fused_layer.py": r"^relative error on 4 ranks: \d\.\de-02$",
    "torchrun_layer.py": r"rank 1 of 2 on (emulated|rocm): sum of the result -?\d+\.\d{3}",
}


def test_every_example_is_known() -> None:
    assert [path.name for path in EXAMPLES] == sorted(SAYS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    command = re.search(rf"^ *(.*)examples/{path.name}$", path.read_text(encoding="utf-8"), flags=re.M)
    assert command is not None, "the docstring says how it is run"
    program, *options = command[1].split()
    start = {"python": [sys.executable], "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone"]}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [*start[program], *options, str(path)],
        cwd=tmp_path,
        env=environment,
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(SAYS[path.name], run.stdout, flags=re.M), run.stdout
