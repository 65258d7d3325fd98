# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What docs/rocm.md shows is run: its program under torchrun, its commands against the command line."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "rocm.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_program_runs_under_torchrun(tmp_path: Path) -> None:
    (program,) = blocks("python")
    path = tmp_path / "program.py"
    path.write_text(program)
    # torchrun starts ranks with unbuffered output, whose texts and newlines mix in one pipe: a file for each.
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--redirects=3"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    run = subprocess.run(
        [*command, f"--log-dir={tmp_path}", str(path)], env=environment, capture_output=True, text=True, timeout=240
    )
    outputs = {log.parent.name: log.read_text() for log in tmp_path.rglob("stdout.log")}
    assert run.returncode == 0, run.stderr + "".join(log.read_text() for log in tmp_path.rglob("stderr.log"))
    assert outputs == {rank: f"rank {rank} on emulated: 3.0\n" for rank in ("0", "1")}


@pytest.mark.parametrize("line", [line for block in blocks("sh") for line in block.replace("\\\n", " ").splitlines()])
def test_the_commands_know_their_options(line: str) -> None:
    from mori_gemm_ar.cli import app

    words = shlex.split(line)
    start = words.index("mori_gemm_ar")
    command, *arguments = words[start + 1 :]
    function = next(entry.callback for entry in app.registered_commands if entry.name == command)
    parameters = {f"--{name.replace('_', '-')}" for name in function.__annotations__}
    assert {word for word in arguments if word.startswith("--")} <= parameters
