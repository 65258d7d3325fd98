# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""FlyDSL as a compiler to gfx950 code, with no ROCm and no GPU: ISA text, and HSACO where there is a linker.

The only file that reaches below FlyDSL's documented surface: the backend class to derive from, the compiled module's
text, and the pass that turns a module into code. FlyDSL chooses backend and architecture by environment variables,
which belong to the whole process.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flydsl
import flydsl.compiler as flyc
from flydsl._mlir import ir
from flydsl._mlir.passmanager import PassManager
from flydsl.compiler.backends.rocm import RocmBackend

from mori_gemm_ar.compile.hsaco import make_toolkit
from mori_gemm_ar.errors import CompileError

ARCH = "gfx950"
BACKEND = "rocm_lowered"
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


_PINNED = "install the FlyDSL version that the extra [compile] pins"


class RocmLoweredBackend(RocmBackend):
    """FlyDSL's ROCm pipeline up to the module that code is generated from."""

    def pipeline_fragments(self, *, compile_hints: dict) -> list[str]:
        fragments = super().pipeline_fragments(compile_hints=compile_hints)
        if not fragments[-1].startswith("gpu-module-to-binary{"):
            raise CompileError(
                f"the last pass of FlyDSL {FLYDSL_VERSION}, {fragments[-1]!r}, must be gpu-module-to-binary; {_PINNED}"
            )
        return fragments[:-1]


@dataclass(frozen=True, slots=True)
class Compiled:
    """Code of one kernel in one or two forms, generated from the same module."""

    isa: str
    hsaco: bytes | None


def compile_kernel(
    launch: Any, *arguments: Any, waves_per_simd: int | None = None, linker: Path | None = None
) -> Compiled:
    """Code of the kernel that `launch`, a @flyc.jit host stub, starts; HSACO too when there is a linker.

    One of the arguments has to be a placeholder, such as a null pointer, or FlyDSL would launch the kernel.
    Thread-safe; other users of FlyDSL in this process see our environment variables while a kernel compiles.
    """
    with _lock, _environment():
        _register()
        hints = {} if waves_per_simd is None else {"waves_per_eu": waves_per_simd}
        module = _lowered(flyc.compile[hints](launch, *arguments))
        isa = _generate(module, "isa", "assembly").decode()
        hsaco = None
        if linker is not None:
            with tempfile.TemporaryDirectory(prefix="mori_gemm_ar-") as folder:
                toolkit = make_toolkit(Path(folder), linker)
                hsaco = _generate(module, "bin", "bin", toolkit)
        return Compiled(isa, hsaco)


def _register() -> None:
    global _registered
    if not _registered:
        flyc.register_backend(BACKEND, RocmLoweredBackend)
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


def _lowered(compiled: Any) -> str:
    """The text of the compiled module."""
    module = getattr(getattr(compiled, "_keepalive", None), "ir", None)
    if not isinstance(module, str) or module.count("gpu.module @") != 1:
        raise CompileError(f"FlyDSL {FLYDSL_VERSION} must return the text of one module with one GPU module; {_PINNED}")
    return module


def _generate(module: str, form: str, attribute: str, toolkit: Path | None = None) -> bytes:
    """Run the pass that FlyDSL would run last. LLVM assembles the very text that `isa` gives, then calls the linker."""
    tools = "" if toolkit is None else f' toolkit="{toolkit}"'
    with ir.Context():
        parsed = ir.Module.parse(module)
        try:
            PassManager.parse(f"builtin.module(gpu-module-to-binary{{format={form}{tools}}})").run(parsed.operation)
        except ir.MLIRError as error:
            # The rest of the message is the whole module.
            reason = next((line for line in str(error).splitlines() if "error:" in line), str(error)[:200])
            raise CompileError(f"form={form} must be generated, but LLVM says: {reason.strip()}") from None
        return _payload(parsed.operation.get_asm(), attribute)


def _payload(module: str, attribute: str) -> bytes:
    """The one string attribute of this name in a module, with MLIR's escapes resolved."""
    texts = re.findall(rf'\b{attribute} = "((?:[^"\\]|\\.)*)"', module)
    if len(texts) != 1:
        raise CompileError(
            f"FlyDSL {FLYDSL_VERSION} must return one module with one {attribute} text, not {len(texts)}; {_PINNED}"
        )
    return re.sub(r"\\([0-9A-Fa-f]{2}|.)", _unescape, texts[0]).encode("latin-1")


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code, 16)) if len(code) == 2 else code
