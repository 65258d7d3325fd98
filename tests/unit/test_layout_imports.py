# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The layout package is arithmetic: it loads with the standard library alone, and offers what it lists."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mori_gemm_ar
from mori_gemm_ar import layout

IMPORT_ALONE = """
import sys
sys.path.insert(0, sys.argv[1])
import mori_gemm_ar.layout
roots = {name.partition(".")[0] for name in sys.modules}
print(*sorted(roots - set(sys.stdlib_module_names) - {"mori_gemm_ar", "__main__"}))
"""


def test_it_loads_with_the_standard_library_alone() -> None:
    root = Path(mori_gemm_ar.__file__).parents[1]
    # -I -S: no site packages, no PYTHONPATH, no .pth files.
    command = [sys.executable, "-I", "-S", "-c", IMPORT_ALONE, str(root)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


def test_every_listed_name_exists_once() -> None:
    assert len(set(layout.__all__)) == len(layout.__all__)
    assert all(hasattr(layout, name) for name in layout.__all__)
