# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Our calls into `mori.cco` against the source of amd-mori 1.2.4: every call, parameter, attribute and structure."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from mori_gemm_ar.runtime import cco
from tests.unit import fake_cco
from tests.unit.mori_source import MoriSource, wheel

PACKAGE = Path(cco.__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The sources in the wheel, which is downloaded once for each user."""
    return MoriSource.texts(wheel(tmp_path_factory))


@pytest.fixture(scope="module")
def mori(texts: dict[str, str]) -> MoriSource:
    return MoriSource(**texts)


def faults(source: MoriSource) -> list[str]:
    """All disagreements with our table."""
    found = [f"mori.cco exports no {name}" for name in cco.EXPORTS if name not in source.exports]
    for call in cco.CALLS:
        found += source.faults_of_call(call.owner, call.name, call.parameters)
    for field in cco.FIELDS:
        found += source.faults_of_field(field.owner, field.name, field.owner == "CCODevCommRequirements")
    for structure, members in cco.STRUCTURES.items():
        have = source.members(structure)
        if have[: len(members)] != list(members):
            found.append(f"{structure} starts with {have[: len(members)]} instead of {list(members)}")
    for packet, fields in cco.PACKETS.items():
        if source.fields(packet) != list(fields):
            found.append(f"{packet} has fields {source.fields(packet)} instead of {list(fields)}")
    for name, value in cco.CONSTANTS.items():
        if source.constant(name) != value:
            found.append(f"{name} is {source.constant(name)} instead of {value}")
    return found + [f"the header no longer says: {text}" for text in cco.STATEMENTS if text not in source.comments]


def test_all_that_we_call_exists(mori: MoriSource) -> None:
    assert faults(mori) == []


def test_the_parser_sees_the_interface(mori: MoriSource) -> None:
    """An empty reading would agree with everything that asks for nothing."""
    assert {"Communicator", "AllocatedMemory", "RegisteredWindow", "DevCommHandle", "UniqueId"} <= mori.classes.keys()
    assert {"alloc_mem", "register_window", "create_dev_comm", "destroy"} <= mori.classes[
        "Communicator"
    ].functions.keys()
    assert len(mori.members("ccoDevComm")) >= 15
    # The queue structures of the copy engines, for kernels that will read them.
    assert [name for _, name in mori.members("ccoSdmaQueueDeviceHandle")]
    assert ("uint64_t*", "signalBuf") in mori.members("ccoSdmaContext")


def changed(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text, f"the source no longer has {old!r}"
        return text.replace(old, new)

    return change


# What changes in communicator.py, __init__.py, cco.pyx or cco.hpp, and the fault that has to be reported.
CHANGES: dict[str, tuple[str, Callable[[str], str], str]] = {
    "renamed parameter": (
        "python",
        changed("per_rank_vmm: int", "vmm_bytes: int"),
        "init has no parameter per_rank_vmm",
    ),
    "further parameter": (
        "python",
        changed("def alloc_mem(self, size: int", "def alloc_mem(self, align, size: int"),
        "needs align",
    ),
    "renamed function": (
        "python",
        changed("def create_dev_comm", "def make_dev_comm"),
        "create_dev_comm does not exist",
    ),
    "no property": (
        "python",
        changed("    @property\n    def flat_base", "    def flat_base"),
        "flat_base is not readable",
    ),
    "renamed id": ("python", changed("def from_bytes(b:", "def from_bytes(data:"), "from_bytes has no parameter b"),
    "no export": ("exports", changed("    GDA_CONNECTION_NONE,\n", ""), "exports no GDA_CONNECTION_NONE"),
    "no setter": (
        "cython",
        changed("@sdma_queue_count.setter", "@sdma_queues.setter"),
        "sdma_queue_count is not writable",
    ),
    "other order": (
        "header",
        changed("  void* flatBase;\n  size_t perRankSize;\n", "  size_t perRankSize;\n  void* flatBase;\n"),
        "ccoDevComm starts",
    ),
    "other queue": (
        "header",
        changed("  HSAuint64* rptr;\n  HSAuint64* wptr;\n", "  HSAuint64* wptr;\n  HSAuint64* rptr;\n"),
        "ccoSdmaQueueDeviceHandle starts",
    ),
    "other ring": ("header", changed("QUEUE_SIZE = 256 * 1024", "QUEUE_SIZE = 512 * 1024"), "QUEUE_SIZE is 524288"),
    "other packet": (
        "header",
        changed("unsigned int count : 30;", "unsigned int count : 22;"),
        "COPY_LINEAR has fields",
    ),
    "other type": ("header", changed("  uint32_t stride4G;", "  uint64_t stride4G;"), "ccoWindowDevice starts"),
    "other version": ("header", changed("CCO_API_VERSION = 1", "CCO_API_VERSION = 2"), "CCO_API_VERSION is 2"),
    "other layout": ("header", changed("(perRankSize is 4GB-aligned)", ""), "no longer says: perRankSize >> 32"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_interface_is_noticed(texts: dict[str, str], name: str) -> None:
    part, change, fault = CHANGES[name]
    found = faults(MoriSource(**texts | {part: change(texts[part])}))
    assert any(fault in text for text in found), found


# --- the table is all there is ---


def test_mori_is_imported_in_one_place() -> None:
    importing = [
        path.relative_to(PACKAGE).as_posix()
        for path in sorted(PACKAGE.rglob("*.py"))
        if re.search(r"^\s*(import|from) mori\b", path.read_text(), re.MULTILINE)
    ]
    assert importing == ["compile/mori_bitcode.py", "runtime/rocm.py"]
    # And it goes nowhere but into the target, which hands it to cco.py.
    assert re.findall(r"mori\.cco\b(?!`)[^\n]*", (PACKAGE / "runtime" / "rocm.py").read_text()) == [
        "mori.cco",
        "mori.cco, TorchGpu())",
    ]


def test_the_module_is_used_by_its_listed_names_only() -> None:
    text = (PACKAGE / "runtime" / "cco.py").read_text()
    assert set(re.findall(r"\b(?:module|_module|cco)\.([A-Za-z_]\w*)", text)) <= {*cco.EXPORTS, "hpp"}
    calls = {value for value in vars(cco).values() if isinstance(value, cco.Call)}
    fields = {value for value in vars(cco).values() if isinstance(value, cco.Field)}
    assert calls == set(cco.CALLS)
    assert fields == set(cco.FIELDS)


def test_the_stand_in_of_the_other_tests_has_the_same_interface() -> None:
    """So a call that the stand-in accepts is one that amd-mori accepts."""
    source = Path(fake_cco.__file__).read_text()
    classes = {node.name: node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)}
    functions = {node.name: node.args for node in classes["Communicator"].body if isinstance(node, ast.FunctionDef)}
    for call in cco.CALLS:
        if call.owner == "Communicator":
            names = [argument.arg for argument in functions[call.name].args if argument.arg not in ("self", "cls")]
            assert tuple(names) == call.parameters
