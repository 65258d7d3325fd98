# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""House rules that a machine can check. Each check has a made-up source that must fail it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "mori_gemm_ar"

HEADER = ("SPDX-License-Identifier: MIT", "Copyright (c) 2026 mori_gemm_ar contributors")
COMMENT = {".py": "# ", ".toml": "# ", ".txt": "# ", ".ll": "; "}
# Files outside the suffix walk that carry the header too.
HEADED_EXTRAS = ("Makefile", ".ci/run", ".ci/sglang", ".gitignore")

SOFT_LINES = 400
HARD_LINES = 600
# path -> why it may pass SOFT_LINES; never HARD_LINES.
LONG_FILES: dict[str, str] = {}

KERNEL_FUNCTION_LINES = 150
FUNCTION_LINES = 100

Check = Callable[[str, str], list[str]]


@dataclass(frozen=True)
class Area:
    """What one part of the package may import. `lazy_*` holds only inside functions and TYPE_CHECKING blocks."""

    own: frozenset[str] = frozenset()
    third: frozenset[str] = frozenset()
    lazy_own: frozenset[str] = frozenset()
    lazy_third: frozenset[str] = frozenset()


def area(own: str = "", third: str = "", lazy_own: str = "", lazy_third: str = "") -> Area:
    """Build an Area from words."""
    return Area(*(frozenset(words.split()) for words in (own, third, lazy_own, lazy_third)))


# The arrows of the architecture: an area sees what stands left of it. Only compile.build and compile.backend
# reach kernels and FlyDSL, and others reach those two on demand, so a server with stored code needs no compiler.
AREAS = {
    "": area(lazy_own="errors layout runtime ar op"),
    "errors": area(),
    "layout": area("errors"),
    "layout.copy_queue": area(),
    "isa": area("errors"),
    "kernels": area("errors layout isa", "flydsl"),
    "compile": area("errors compile.store compile.hsaco", lazy_own="compile.build compile.backend"),
    "compile.hsaco": area("errors isa"),
    "compile.store": area("errors isa compile.hsaco", lazy_own="compile.build"),
    "compile.mori_bitcode": area("errors layout", lazy_third="mori"),
    "compile.backend": area("errors compile.hsaco", "flydsl"),
    "compile.build": area(
        "errors layout isa kernels audit compile.store compile.backend compile.hsaco compile.mori_bitcode",
        "flydsl torch",
    ),
    "emulator": area("errors isa layout.copy_queue", "numpy"),
    "audit": area("errors isa"),
    "runtime": area(
        "errors layout isa emulator compile.store compile.mori_bitcode", "numpy torch", "compile compile.build", "mori"
    ),
    "model": area("errors layout", "numpy"),
    "ar": area("errors layout compile.store compile.mori_bitcode runtime", "numpy torch", "compile compile.build"),
    "gemm": area("errors layout compile.store runtime", "torch", "compile compile.build"),
    "plan_rules": area("errors layout model", lazy_own="plan"),
    "plan": area("errors layout model plan_rules"),
    "op": area("errors layout compile.store runtime ar gemm model plan", "numpy torch", "compile compile.build"),
    "proof": area(
        "errors layout isa audit compile compile.store emulator runtime ar gemm op plan",
        "numpy torch",
        "compile.build",
    ),
    "integrations": area("errors layout ar gemm op plan", "torch", "runtime", "vllm sglang"),
    "commands": area(
        "errors layout model",
        "typer rich",
        "isa audit compile compile.store compile.hsaco emulator runtime ar plan op proof",
        "matplotlib",
    ),
    "cli": area("errors commands", "typer rich"),
    "__main__": area(lazy_own="cli"),
}


@dataclass
class Problems:
    """Collects `path:line: text`."""

    path: str
    found: list[str] = field(default_factory=list)

    def add(self, line: int, text: str) -> None:
        self.found.append(f"{self.path}:{line}: {text}")


def check_header(path: str, source: str) -> list[str]:
    """The two SPDX lines open the file, below a `#!` line at most."""
    lines = source.splitlines()
    if lines and lines[0].startswith("#!"):
        lines = lines[1:]
    prefix = COMMENT.get(Path(path).suffix, "# ")
    want = [prefix + text for text in HEADER]
    return [] if lines[:2] == want else [f"{path}:1: must open with {want}"]


def check_length(path: str, source: str) -> list[str]:
    """No file above the hard cap; above the soft cap only with a reason in LONG_FILES."""
    count = len(source.splitlines())
    cap = HARD_LINES if path in LONG_FILES else SOFT_LINES
    return [f"{path}:1: lines={count} must be <= {cap}; split it by task"] if count > cap else []


def check_functions(path: str, source: str) -> list[str]:
    """No function above the cap of its folder."""
    cap = KERNEL_FUNCTION_LINES if path.startswith(f"{PACKAGE}/kernels/") else FUNCTION_LINES
    problems = Problems(path)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = node.end_lineno - node.lineno + 1
            if count > cap:
                problems.add(node.lineno, f"{node.name}: lines={count} must be <= {cap}; compose it of smaller parts")
    return problems.found


def check_docstrings(path: str, source: str) -> list[str]:
    """A public module-level function or class of the package states its contract."""
    problems = Problems(path)
    for node in ast.parse(source).body:
        public = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_"
        if public and not ast.get_docstring(node):
            problems.add(node.lineno, f"{node.name} must have a docstring; state its contract")
    return problems.found


def is_type_checking(node: ast.AST) -> bool:
    """Whether the node is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def module_of(path: str) -> tuple[str, bool]:
    """Dotted name below the package ('' = the package itself), and whether the file is an `__init__`."""
    parts = list(Path(path).with_suffix("").parts)[1:]
    init = parts[-1] == "__init__"
    return ".".join(parts[:-1] if init else parts), init


def names_imported(node: ast.AST, package: list[str]) -> list[str]:
    """Absolute dotted names that this one statement or call imports, `from a import b` as a.b."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else []
        return [".".join([*base, *([node.module] if node.module else []), alias.name]) for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        if ast.unparse(node.func) in ("importlib.import_module", "import_module", "__import__"):
            return [str(node.args[0].value)]
    return []


def imports(path: str, source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield (line, absolute dotted name, lazy) of every import of the file."""
    module, init = module_of(path)
    package = [PACKAGE, *(module.split(".") if module else [])]
    package = package if init else package[:-1]
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    pending: list[tuple[ast.AST, bool]] = [(ast.parse(source), False)]
    while pending:
        node, lazy = pending.pop()
        for name in names_imported(node, package):
            yield node.lineno, name, lazy
        lazy = lazy or isinstance(node, functions) or is_type_checking(node)
        pending.extend((child, lazy) for child in ast.iter_child_nodes(node))


def area_of(module: str) -> str | None:
    """The longest row of AREAS that the dotted name (below the package) lies in, None when no row holds it."""
    parts = module.split(".") if module else []
    for end in range(len(parts), 0, -1):
        if ".".join(parts[:end]) in AREAS:
            return ".".join(parts[:end])
    return None if parts else ""


def check_imports(path: str, source: str) -> list[str]:
    """Imports follow the arrows of AREAS."""
    home = area_of(module_of(path)[0])
    if home is None:
        return [f"{path}:1: the file lies in no row of AREAS; add a row that says what it may import"]
    rule, problems = AREAS[home], Problems(path)
    for line, name, lazy in imports(path, source):
        top, _, below = name.partition(".")
        if top == PACKAGE:
            target = area_of(below)
            allowed = rule.own | (rule.lazy_own if lazy else frozenset())
            # `from mori_gemm_ar import __version__` names no area and reaches only the light root.
            right = target in allowed or target in ("", None, home)
            # Who sees the whole of layout sees its parts, which have rows for those who see no more than them.
            right |= target is not None and target.startswith("layout.") and "layout" in allowed | {home}
        else:
            allowed = rule.third | (rule.lazy_third if lazy else frozenset())
            right = top in allowed or top in sys.stdlib_module_names
        if not right:
            problems.add(line, f"{home or PACKAGE} imports {name}; it may import {sorted(allowed)}")
    return problems.found


CHECKS: tuple[tuple[Check, tuple[str, ...]], ...] = (
    (check_header, (".py", ".ll", ".toml", ".txt")),
    (check_length, (".py", ".ll")),
    (check_functions, (".py",)),
)
PACKAGE_CHECKS: tuple[Check, ...] = (check_docstrings, check_imports)


def sources(*suffixes: str) -> Iterator[tuple[str, str]]:
    """Yield (path from the root, text) of our own files."""
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(d for d in folders if d[0] != "." and d not in ("build", "dist", "__pycache__"))
        for file in sorted(files):
            path = Path(folder, file)
            if path.suffix in suffixes and not folder.endswith(".egg-info"):
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("check", "suffixes"), CHECKS, ids=lambda v: getattr(v, "__name__", ""))
def test_every_file(check: Check, suffixes: tuple[str, ...]) -> None:
    files = list(sources(*suffixes))
    assert any(path == "tests/unit/test_house.py" for path, _ in files)
    problems = [problem for path, source in files for problem in check(path, source)]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("path", HEADED_EXTRAS)
def test_header_of_files_without_suffix(path: str) -> None:
    assert not check_header(path, (ROOT / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize("check", PACKAGE_CHECKS)
def test_every_module_of_the_package(check: Check) -> None:
    files = [(path, source) for path, source in sources(".py") if path.startswith(f"{PACKAGE}/")]
    assert len(files) > 1
    problems = [problem for path, source in files for problem in check(path, source)]
    assert not problems, "\n".join(problems)


def test_long_files_exist_and_are_long() -> None:
    for path in LONG_FILES:
        assert len((ROOT / path).read_text(encoding="utf-8").splitlines()) > SOFT_LINES, f"{path} needs no exception"


def test_area_rows_name_areas() -> None:
    named = {name for rule in AREAS.values() for name in rule.own | rule.lazy_own}
    assert named <= AREAS.keys()


# A source that each check accepts, then sources that it must refuse: the checks are no empty loops.
GOOD_HEADER = "# SPDX-License-Identifier: MIT\n# Copyright (c) 2026 mori_gemm_ar contributors\n"
LONG_FUNCTION = "def run():\n" + "    pass\n" * 100
BAD = [
    (check_header, "a.py", "import os\n"),
    (check_header, "a.py", GOOD_HEADER.replace("2026", "2025")),
    (check_header, "a.py", '"""Doc."""\n' + GOOD_HEADER),
    (check_header, "a.ll", GOOD_HEADER),
    (check_length, "a.py", "\n" * (SOFT_LINES + 1)),
    (check_functions, "mori_gemm_ar/runtime/a.py", LONG_FUNCTION),
    (check_functions, "tests/a.py", "class A:\n" + LONG_FUNCTION.replace("def", " def").replace("    p", "     p")),
    (check_functions, "mori_gemm_ar/kernels/a.py", LONG_FUNCTION + "    pass\n" * 50),
    (check_docstrings, "mori_gemm_ar/a.py", "def run():\n    pass\n"),
    (check_docstrings, "mori_gemm_ar/a.py", "class Run:\n    size = 1\n"),
    (check_imports, "mori_gemm_ar/layout/a.py", "import numpy\n"),
    (check_imports, "mori_gemm_ar/layout/a.py", "def f():\n    import torch\n"),
    (check_imports, "mori_gemm_ar/layout/a.py", "from mori_gemm_ar.isa import parse_isa\n"),
    (check_imports, "mori_gemm_ar/layout/a.py", "from ..runtime.launch import Launch\n"),
    (check_imports, "mori_gemm_ar/layout/__init__.py", "from .. import runtime\n"),
    (check_imports, "mori_gemm_ar/isa/a.py", "from mori_gemm_ar import layout\n"),
    (check_imports, "mori_gemm_ar/isa/a.py", "import importlib\nimportlib.import_module('numpy')\n"),
    (check_imports, "mori_gemm_ar/emulator/a.py", "import torch\n"),
    (check_imports, "mori_gemm_ar/emulator/a.py", "import mori_gemm_ar.layout.window\n"),
    (check_imports, "mori_gemm_ar/compile/store.py", "from mori_gemm_ar.compile import build\n"),
    (check_imports, "mori_gemm_ar/compile/store.py", "def f():\n    import numpy\n"),
    (check_imports, "mori_gemm_ar/compile/__init__.py", "from mori_gemm_ar.compile.build import build\n"),
    (check_imports, "mori_gemm_ar/kernels/device/a.py", "import torch\n"),
    (check_imports, "mori_gemm_ar/kernels/a.py", "from mori_gemm_ar.compile import store\n"),
    (check_imports, "mori_gemm_ar/runtime/a.py", "def f():\n    import flydsl\n"),
    (check_imports, "mori_gemm_ar/runtime/a.py", "import mori.cco\n"),
    (check_imports, "mori_gemm_ar/runtime/a.py", "from mori_gemm_ar.compile.build import build\n"),
    (check_imports, "mori_gemm_ar/runtime/a.py", "import typing\nif typing.TYPE_CHECKING:\n    import rich\n"),
    (check_imports, "mori_gemm_ar/ar/a.py", "def f():\n    from mori_gemm_ar.kernels import allreduce\n"),
    (check_imports, "mori_gemm_ar/ar/a.py", "from mori_gemm_ar.emulator import Machine\n"),
    (check_imports, "mori_gemm_ar/__init__.py", "import torch\n"),
    (check_imports, "mori_gemm_ar/newroom/a.py", "import os\n"),
]
GOOD = [
    (check_header, "a.py", GOOD_HEADER),
    (check_header, "run", "#!/bin/sh\n" + GOOD_HEADER),
    (check_header, "a.ll", GOOD_HEADER.replace("#", ";")),
    (check_length, "a.py", "\n" * SOFT_LINES),
    (check_functions, "mori_gemm_ar/kernels/a.py", LONG_FUNCTION),
    (check_docstrings, "mori_gemm_ar/a.py", "def _run():\n    pass\n"),
    (check_imports, "mori_gemm_ar/layout/a.py", "import math\nfrom ..errors import E\nfrom . import rules\n"),
    (check_imports, "mori_gemm_ar/kernels/device/a.py", "import flydsl.expr\nfrom ...layout import machine\n"),
    (check_imports, "mori_gemm_ar/compile/__init__.py", "def f():\n    from mori_gemm_ar.compile.build import build\n"),
    (check_imports, "mori_gemm_ar/emulator/a.py", "from mori_gemm_ar.layout.copy_queue import Copy\n"),
    (check_imports, "mori_gemm_ar/runtime/a.py", "from mori_gemm_ar.layout import copy_queue\n"),
    (check_imports, "mori_gemm_ar/runtime/a.py", "import torch\ndef f():\n    import mori.cco\n"),
    (check_imports, "mori_gemm_ar/ar/a.py", "def f():\n    from mori_gemm_ar.compile.build import build\n"),
]


@pytest.mark.parametrize(("check", "path", "source"), BAD)
def test_check_refuses(check: Check, path: str, source: str) -> None:
    assert len(check(path, source)) == 1


@pytest.mark.parametrize(("check", "path", "source"), GOOD)
def test_check_accepts(check: Check, path: str, source: str) -> None:
    assert check(path, source) == []


HEAVY = ("torch", "numpy", "flydsl", "typer", "rich", "mori")
LIGHT_IMPORTS = [
    (PACKAGE, HEAVY),
    (f"{PACKAGE}.errors", HEAVY),
    (f"{PACKAGE}.layout", HEAVY),
    (f"{PACKAGE}.isa", HEAVY),
    (f"{PACKAGE}.compile.store", HEAVY),
    (f"{PACKAGE}.emulator", ("torch", "flydsl", "typer", "rich", "mori")),
    (f"{PACKAGE}.runtime", ("flydsl", "typer", "rich", "mori")),
    (f"{PACKAGE}.ar", ("flydsl", "typer", "rich", "mori")),
]


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after the statement."""
    code = f"import sys; {statement}; print(*{{m.partition('.')[0] for m in sys.modules}})"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


@pytest.mark.parametrize(("module", "forbidden"), LIGHT_IMPORTS)
def test_import_stays_light(module: str, forbidden: tuple[str, ...]) -> None:
    assert not loaded_by(f"import {module}") & set(forbidden)


def test_import_stays_light_would_notice() -> None:
    assert "numpy" in loaded_by("import numpy")


def test_openblas_has_one_thread() -> None:
    """tests/conftest.py ran before NumPy was loaded."""
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"


def test_docs_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    links = {link for link in re.findall(r"\]\(([^)#]+)", index) if "://" not in link}
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")} - {"index.md"}
    assert pages <= links
    assert not [link for link in links if not (ROOT / "docs" / link).exists()]
