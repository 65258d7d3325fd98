# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""`doctor`: what this machine offers, which target would run, and how to get what is missing."""

from __future__ import annotations

import json as json_format
import os
import platform
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from mori_gemm_ar import __version__
from mori_gemm_ar.commands.show import line, table
from mori_gemm_ar.errors import MoriGemmArError

_GIB = 1 << 30
_MEMORY_GIB = 2.0  # an 8-rank emulated run with torch in every process fits into it


class State(str, Enum):
    """What a line means."""

    GOOD = "good"
    NOTE = "note"  # missing or unusual, and not needed here
    LACK = "lack"  # keeps the target from running


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    name: str
    value: str
    state: State = State.GOOD
    way_out: str = ""


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """What this machine offers, which target device="auto" would take, and what is missing. Exit 1 when none runs."""
    target, findings = examine()
    works = not any(finding.state is State.LACK for finding in findings)
    if json:
        document = {"target": target, "works": works, "findings": [asdict(finding) for finding in findings]}
        print(json_format.dumps(document, indent=1))
    else:
        rows = [[f.name, f.value, f.state.value, f.way_out] for f in findings]
        columns = ("what", "found", "state", "how to get it")
        table("This machine", columns, rows, left=columns)
        line(f"device='auto' runs {target or 'nothing'} here" + ("" if works else "; see the lines marked 'lack'"))
    raise typer.Exit(0 if works else 1)


def examine() -> tuple[str | None, list[Finding]]:
    """(target that "auto" takes or None, findings)."""
    target, chosen = _target()
    return target, [chosen, *_versions(), *_rocm(target == "rocm"), *_code(target), *_machine()]


def _found(name: str, value: str | None, way_out: str, needed: bool = False) -> Finding:
    """Something that is there, or how to get it."""
    if value:
        return Finding(name, value)
    return Finding(name, "none", State.LACK if needed else State.NOTE, way_out)


def _target() -> tuple[str | None, Finding]:
    try:
        from mori_gemm_ar.runtime.select import choose_device

        kind = choose_device().value
    except (MoriGemmArError, ImportError) as error:
        text, _, way_out = str(error).partition("; ")
        return None, Finding("target", text, State.LACK, way_out or "pip install mori_gemm_ar")
    return kind, Finding("target", kind)


def _versions() -> Iterator[Finding]:
    yield Finding("python", platform.python_version())
    yield Finding("mori_gemm_ar", __version__)
    for package in ("numpy", "torch"):
        yield _found(package, _version(package), f"pip install {package}", needed=True)
    yield _found("flydsl", _version("flydsl"), "pip install 'mori_gemm_ar[compile]'")


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _rocm(needed: bool) -> Iterator[Finding]:
    """GPUs and ROCm. Where there is no GPU to use, nothing of it is a lack."""
    from mori_gemm_ar.runtime.select import Offers, lacks_of_rocm, probe

    offers = _attempt(probe)
    if not isinstance(offers, Offers):
        return
    counts = Counter(offers.gpus)
    gpus = ", ".join(f"{number} x {name}" for name, number in counts.items())
    yield _found("AMD GPUs", gpus, "the rocm target runs on MI355X")
    yield _found("torch for HIP", offers.torch_hip, "install torch from the ROCm wheel index of pytorch.org")
    yield _found("amd-mori", offers.mori, "pip install 'mori_gemm_ar[rocm]'")
    for lack in lacks_of_rocm(offers) if offers.gpus else ():
        yield Finding("rocm target", lack.what, State.LACK if offers.wanted else State.NOTE, lack.way_out)
    info = Path(os.environ.get("ROCM_PATH", "/opt/rocm"), ".info", "version")
    rocm = info.read_text(encoding="utf-8").strip() if info.is_file() else None
    yield _found("ROCm", rocm, "install ROCm, or set ROCM_PATH to where it is")
    hip = _attempt(_hip)
    if isinstance(hip, list):
        yield Finding("HIP runtime", ", ".join(hip))
    else:
        yield _found("HIP runtime", None, str(hip).rpartition("; ")[2], needed)


def _hip() -> list[str]:
    from mori_gemm_ar.runtime.hip import open_hip

    hip = open_hip()
    devices = Counter(hip.arch(index) for index in range(hip.device_count()))
    return [hip.version(), *(f"{number} x {name}" for name, number in devices.items())]


def _code(target: str | None) -> Iterator[Finding]:
    """Whether kernels can be compiled or loaded."""
    from mori_gemm_ar.compile.hsaco import find_linker, linker_version
    from mori_gemm_ar.compile.store import CACHE_VARIABLE, CodeForm, default_store

    form = CodeForm.HSACO if target == "rocm" else CodeForm.ISA
    linker = _attempt(find_linker)
    has_linker = isinstance(linker, Path)
    yield _found("linker", linker_version(linker) if isinstance(linker, Path) else None, str(linker).partition("; ")[2])
    store = default_store()
    held = [code for code in store.held() if code.has(form)]
    kind = "ahead-of-time store" if store.ahead_of_time else "cache"
    yield Finding("code objects", f"{len(held)} {form.value} of this version's sources, {kind}")
    yield _cache_folder(store.root, CACHE_VARIABLE)
    if not held and (_version("flydsl") is None or (form is CodeForm.HSACO and not has_linker)):
        way_out = (
            f"install flydsl and a linker, or set {CACHE_VARIABLE} to a store made by python -m mori_gemm_ar build"
        )
        yield Finding("kernels", "can neither be compiled nor loaded", State.LACK, way_out)


def _cache_folder(root: Path | None, variable: str) -> Finding:
    if root is None:
        return Finding("cache", "in memory: no home directory is known", State.NOTE, f"set {variable} to a directory")
    existing = next(path for path in (root, *root.parents) if path.exists())
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return Finding("cache", f"{root} (writable)")
    return Finding(
        "cache", f"{root} cannot be written: every process compiles for itself", State.NOTE,
        f"set {variable} to another directory",
    )  # fmt: skip


def _machine() -> Iterator[Finding]:
    from mori_gemm_ar.runtime.memory_limits import memory_limits

    cores = len(os.sched_getaffinity(0))
    yield Finding("CPU cores", str(cores))
    for limit in memory_limits():
        enough = limit.free >= _MEMORY_GIB * _GIB
        way_out = "" if enough else f"emulated worlds of 8 processes want {_MEMORY_GIB:g} GiB; use fewer ranks"
        state = State.GOOD if enough else State.NOTE
        yield Finding("free memory", f"{limit.free / _GIB:.1f} GiB, {limit.name}", state, way_out)
    for name, number in (("file size limit", resource.RLIMIT_FSIZE), ("address space limit", resource.RLIMIT_AS)):
        soft, _ = resource.getrlimit(number)
        if soft != resource.RLIM_INFINITY:
            yield Finding(name, f"{soft / _GIB:.1f} GiB", State.NOTE, "ulimit raises it")


def _attempt(action: Callable[[], object]) -> object:
    """Its result, or why there is none."""
    try:
        return action()
    except (MoriGemmArError, ImportError) as error:
        return str(error)
