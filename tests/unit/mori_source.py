# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What the sources inside an amd-mori wheel declare: Python by `ast`, Cython and C++ by their few regular lines."""

from __future__ import annotations

import ast
import fcntl
import math
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

# The device code of mori.cco and what says where its bitcode is, below the package.
DEVICE_PARTS = {
    "table": "cco/device/ops.py",
    "lookup": "cco/device/bitcode.py",
    "wrapper": "_jit-sources/src/cco/device/cco_device_wrapper.cpp",
    "header": "_jit-sources/include/mori/cco/cco.hpp",
}
# Path below the package for each source.
PARTS = {
    "python": "cco/communicator.py",
    "exports": "cco/__init__.py",
    "cython": "cco/cco.pyx",
    "header": "_jit-sources/include/mori/cco/cco.hpp",
}


VERSION = "1.2.4"
WHEEL = f"amd_mori-{VERSION}-cp312-cp312-manylinux_2_39_x86_64.whl"
DOWNLOAD = (
    "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--retries=1", "--timeout=30",
    "--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--platform", "manylinux_2_39_x86_64",
    f"amd-mori=={VERSION}",
)  # fmt: skip


def cache_folder() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "mori_gemm_ar-tests"


def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, which is downloaded once for each user; skips the test where it cannot be had."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = tmp_path_factory.mktemp("wheel")
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes download it once
        found = folder / WHEEL
        if not found.exists():
            command = [sys.executable, *DOWNLOAD, "--dest", str(folder)]
            try:
                run = subprocess.run(command, capture_output=True, text=True, timeout=300)
                reason = run.stderr.strip().splitlines()[-1:] if run.returncode else []
            except (OSError, subprocess.TimeoutExpired) as error:
                reason = [str(error)]
            if not found.exists():
                pytest.skip(f"the wheel of amd-mori {VERSION} cannot be had: {''.join(reason)}")
    return found


def parts_of(wheel: Path, parts: dict[str, str]) -> dict[str, str]:
    """Texts of files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {part: archive.read(f"mori/{name}").decode() for part, name in parts.items()}


@dataclass
class Class:
    """A class: its bases, its functions with their parameters, and attributes that can be read or written."""

    bases: tuple[str, ...] = ()
    functions: dict[str, ast.arguments] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)  # functions that take self or cls
    readable: set[str] = field(default_factory=set)
    writable: set[str] = field(default_factory=set)


class MoriSource:
    """The host API of `mori.cco` in one wheel."""

    def __init__(self, python: str, exports: str, cython: str, header: str) -> None:
        # Names that both have are those of the Python layer.
        self.classes = _cython_classes(cython) | _python_classes(python)
        self.exports = {
            alias.asname or alias.name
            for node in ast.parse(exports).body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        self.header = header

    @staticmethod
    def texts(wheel: Path) -> dict[str, str]:
        """The sources in a wheel, as this class takes them."""
        return parts_of(wheel, PARTS)

    def family(self, name: str) -> list[Class]:
        """A class and its bases, as far as the sources have them."""
        if name not in self.classes:
            return []
        found = self.classes[name]
        return [found, *(member for base in found.bases for member in self.family(base.rpartition(".")[2]))]

    def faults_of_call(self, owner: str, name: str, given: tuple[str, ...]) -> list[str]:
        """Why calling `owner.name` with these parameters by name would fail; without an owner, `name` is a class."""
        if not owner:
            owner, name = name, "__init__"
        for member in self.family(owner):
            if name in member.functions:
                return _faults(f"{owner}.{name}", member.functions[name], name in member.bound, given)
        if name == "__init__" and self.family(owner) and not given:
            return []  # object's
        return [f"{owner}.{name} does not exist"]

    def faults_of_field(self, owner: str, name: str, write: bool) -> list[str]:
        """Why an attribute cannot be read, or written."""
        kind = "writable" if write else "readable"
        if any(name in getattr(member, kind) for member in self.family(owner)):
            return []
        return [f"{owner}.{name} is not {kind}"]

    # --- C++ ---

    def members(self, structure: str) -> list[tuple[str, str]]:
        """(type, name) of a structure's members, in order; functions and nested types are left out."""
        match = re.search(rf"^struct (?:alignas\(\d+\) )?{structure} \{{\n(.*?)^\}};", self.header, re.M | re.S)
        if match is None:
            return []
        body = re.sub(r"//[^\n]*", "", match[1])
        declarations = re.findall(r"^  ([\w:<>]+(?:\s*\*+)?)\s+(\w+)(?:\{[^}]*\})?;", body, re.MULTILINE)
        return [(kind.replace(" ", ""), name) for kind, name in declarations]

    def constant(self, name: str) -> int | None:
        """Value of a constant or enumerator."""
        match = re.search(rf"\b{name} = ((?:0x[0-9A-Fa-f]+|\d+)(?: \* \d+)*)", self.header)
        return math.prod(int(factor, 0) for factor in match[1].split(" * ")) if match else None

    def fields(self, packet: str) -> list[tuple[str, int]]:
        """(name, bits) of a packet's bit fields, in order over all its unions."""
        match = re.search(rf"^typedef struct {packet}_TAG \{{\n(.*?)^\}}", self.header, re.M | re.S)
        found = re.findall(r"^\s+unsigned int (\w+) : (\d+);", match[1], re.MULTILINE) if match else []
        return [(name, int(bits)) for name, bits in found]

    @property
    def comments(self) -> str:
        """All comments as one text."""
        return " ".join(re.findall(r"//\s*([^\n]*)", self.header))


def _faults(what: str, arguments: ast.arguments, bound: bool, given: tuple[str, ...]) -> list[str]:
    names = [argument.arg for argument in arguments.args][bound:]
    required = names[: len(names) - len(arguments.defaults)]
    names += [argument.arg for argument in arguments.kwonlyargs]
    required += [
        argument.arg
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    ]
    unknown = [name for name in given if name not in names]
    missing = [name for name in required if name not in given]
    return [f"{what} has no parameter {name}" for name in unknown] + [f"{what} needs {name}" for name in missing]


def _python_classes(source: str) -> dict[str, Class]:
    classes = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            found = classes[node.name] = Class(tuple(ast.unparse(base) for base in node.bases))
            for member in node.body:
                if not isinstance(member, ast.FunctionDef):
                    continue
                decorators = {ast.unparse(decorator) for decorator in member.decorator_list}
                if "property" in decorators:
                    found.readable.add(member.name)
                    continue
                found.functions[member.name] = member.args
                if "staticmethod" not in decorators:
                    found.bound.add(member.name)
    return classes


def _cython_classes(source: str) -> dict[str, Class]:
    classes = {}
    for name, body in re.findall(r"^cdef class (\w+):\n((?:    .*\n|\n)+)", source, re.MULTILINE):
        found = classes[name] = Class()
        found.readable = set(re.findall(r"^    @property\n    def (\w+)\(self\)", body, re.MULTILINE))
        found.writable = set(re.findall(r"^    @(\w+)\.setter$", body, re.MULTILINE))
        for member, parameters in re.findall(r"^    def (\w+)\((.*)\):", body, re.MULTILINE):
            if member not in found.readable:
                found.functions[member] = ast.parse(f"def f({parameters}): pass").body[0].args  # type: ignore[attr-defined]
                found.bound.add(member)
    return classes
