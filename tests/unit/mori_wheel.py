# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The wheel of amd-mori whose sources our calls and our constructor in its style are compared with."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

VERSION = "1.2.4"
WHEEL = f"amd_mori-{VERSION}-cp312-cp312-manylinux_2_39_x86_64.whl"
DOWNLOAD = (
    "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--retries=1", "--timeout=30",
    "--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--platform", "manylinux_2_39_x86_64",
    f"amd-mori=={VERSION}",
)  # fmt: skip


def cache_folder() -> Path:
    """Of this user."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "mori_gemm_ar-tests"


def wheel_or_skip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, which is downloaded once for each user; skips the test where it cannot be had."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = tmp_path_factory.mktemp("wheel")
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes download it once
        wheel = folder / WHEEL
        if not wheel.exists():
            command = [sys.executable, *DOWNLOAD, "--dest", str(folder)]
            try:
                run = subprocess.run(command, capture_output=True, text=True, timeout=300)
                reason = run.stderr.strip().splitlines()[-1:] if run.returncode else []
            except (OSError, subprocess.TimeoutExpired) as error:
                reason = [str(error)]
            if not wheel.exists():
                pytest.skip(f"the wheel of amd-mori {VERSION} cannot be had: {''.join(reason)}")
    return wheel
