# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""amd-mori's device code for `mori.cco` as LLVM bitcode: where it is, and which one it is.

The wheel holds it as C++, which its own `find_cco_bitcode` compiles with hipcc when asked for the first time. A file
that was made elsewhere is named by MORI_CCO_BC, which mori reads too. Standard library only, and mori where it is.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

from mori_gemm_ar.errors import ConfigError, MissingDependencyError
from mori_gemm_ar.layout.copy_queue import PUT_SYMBOL
from mori_gemm_ar.layout.sdma import DIGEST_DIGITS

BITCODE_VARIABLE = "MORI_CCO_BC"
CODE_OBJECT_VERSION = 6  # what FlyDSL links
_WAY_OUT = (
    f"install amd-mori where hipcc is, or set {BITCODE_VARIABLE} to a libmori_cco_device.bc for gfx950 that was made "
    f"with BUILD_CCO_SDMA=1; or use cco_device='own', which needs none"
)


def find_bitcode() -> Path:
    """The bitcode of this process: $MORI_CCO_BC, else what mori finds or compiles.

    Raises MissingDependencyError where there is none, or it has no put by copy engine.
    """
    named = os.environ.get(BITCODE_VARIABLE)
    path = Path(named).absolute() if named else _ask_mori()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise MissingDependencyError(f"bitcode={path} must be a readable file ({error}); {_WAY_OUT}") from error
    if PUT_SYMBOL.encode() not in data:
        raise MissingDependencyError(f"bitcode={path} must define {PUT_SYMBOL}, but does not; {_WAY_OUT}")
    return path


def digest_of(path: Path) -> str:
    """Which bitcode a file is, as `SdmaConfig.bitcode` says it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:DIGEST_DIGITS]


def bitcode_of(digest: str) -> Path:
    """The file that a config was made for. Raises ConfigError when this process has another one by now."""
    path = find_bitcode()
    if digest_of(path) != digest:
        raise ConfigError(
            f"bitcode={path} must have a SHA-256 that starts with {digest}, but it is {digest_of(path)}...; "
            f"leave the file and {BITCODE_VARIABLE} as they are while an op is created"
        )
    return path


@cache
def _ask_mori() -> Path:
    """mori's own search, which may run hipcc."""
    name = "libmori_cco_device.bc"
    try:
        from mori.cco.device.bitcode import find_cco_bitcode
    except (ImportError, OSError) as error:
        raise MissingDependencyError(f"{name} must be found, but amd-mori is not here ({error}); {_WAY_OUT}") from error
    try:
        return Path(find_cco_bitcode(cov=CODE_OBJECT_VERSION))
    except OSError as error:
        reason = str(error).partition("\n")[0]
        raise MissingDependencyError(f"{name} must be found, but amd-mori says: {reason}; {_WAY_OUT}") from error
