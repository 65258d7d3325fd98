# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""FlyDSL as a compiler to gfx950 ISA text, with no ROCm and no GPU.

The only file that reaches below FlyDSL's documented surface: the backend class to derive from, and the compiled
module's text. FlyDSL chooses backend and architecture by environment variables, which belong to the whole process.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import flydsl
import flydsl.compiler as flyc
from flydsl.compiler.backends.rocm import RocmBackend

from mori_gemm_ar.errors import CompileError

ARCH = "gfx950"
BACKEND = "rocm_isa"
FLYDSL_VERSION: str = flydsl.__version__

# All that decides what FlyDSL emits, or whether it emits anything; None removes the variable.
_ENVIRONMENT: dict[str, str | None] = {
    "FLYDSL_COMPILE_BACKEND": BACKEND,
    "FLYDSL_GPU_ARCH": ARCH,
    "ARCH": ARCH,
    "FLYDSL_COMPILE_OPT_LEVEL": None,
    "COMPILE_ONLY": None,
    "FLYDSL_DEBUG_ENABLE_DEBUG_INFO": None,
    "FLYDSL_KTRACE_ENABLE": None,
    "FLYDSL_RUNTIME_ENABLE_CACHE": "0",  # our store keys on more than FlyDSL's cache does
    "FLYDSL_RUNTIME_RUN_ONLY": None,
}
_EXTERNAL_LLVM = "FLYDSL_COMPILE_LLVM_DIR"
_lock = threading.RLock()
_registered = False


class RocmIsaBackend(RocmBackend):
    """FlyDSL's ROCm pipeline up to ISA text: no assembler and no linker."""

    def pipeline_fragments(self, *, compile_hints: dict) -> list[str]:
        fragments = super().pipeline_fragments(compile_hints=compile_hints)
        if not fragments[-1].startswith("gpu-module-to-binary{"):
            raise CompileError(
                f"the last pass of FlyDSL {FLYDSL_VERSION}, {fragments[-1]!r}, must be gpu-module-to-binary; "
                "install the FlyDSL version that the extra [compile] pins"
            )
        return [*fragments[:-1], "gpu-module-to-binary{format=isa}"]


def compile_isa(launch: Any, *arguments: Any, waves_per_simd: int | None = None) -> str:
    """ISA text of the kernel that `launch`, a @flyc.jit host stub, starts.

    One of the arguments has to be a placeholder, such as a null pointer, or FlyDSL would launch the kernel.
    Thread-safe; other users of FlyDSL in this process see our environment variables while a kernel compiles.
    """
    with _lock, _environment():
        _register()
        hints = {} if waves_per_simd is None else {"waves_per_eu": waves_per_simd}
        compiled = flyc.compile[hints](launch, *arguments)
        return _isa_text(compiled)


def _register() -> None:
    global _registered
    if not _registered:
        flyc.register_backend(BACKEND, RocmIsaBackend)
        _registered = True


@contextmanager
def _environment() -> Iterator[None]:
    if os.environ.get(_EXTERNAL_LLVM, "").strip():
        raise CompileError(
            f"{_EXTERNAL_LLVM}={os.environ[_EXTERNAL_LLVM]!r} must be unset: other code generators may drop the wait "
            f"between an L2 writeback and the flag that publishes it; unset {_EXTERNAL_LLVM}"
        )
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    try:
        _set_environment(_ENVIRONMENT)
        yield
    finally:
        _set_environment(before)


def _set_environment(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _isa_text(compiled: Any) -> str:
    """The one string attribute `assembly = "..."` of the compiled module, with MLIR's escapes resolved."""
    module = getattr(getattr(compiled, "_keepalive", None), "ir", None)
    texts = re.findall(r'\bassembly = "((?:[^"\\]|\\.)*)"', module) if isinstance(module, str) else []
    if len(texts) != 1:
        raise CompileError(
            f"FlyDSL {FLYDSL_VERSION} must return one module with one ISA text, not {len(texts)}; "
            "install the FlyDSL version that the extra [compile] pins"
        )
    return re.sub(r"\\([0-9A-Fa-f]{2}|.)", _unescape, texts[0])


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code, 16)) if len(code) == 2 else code
