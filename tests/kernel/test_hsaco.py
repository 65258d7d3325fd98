# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""HSACO: linked from the module that the ISA text comes from, loadable in form, kept beside the text, and checked."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from mori_gemm_ar.compile import hsaco as hsaco_module
from mori_gemm_ar.compile.build import build
from mori_gemm_ar.compile.hsaco import find_linker, hsaco_digest, linkers, read_hsaco, require_same_code
from mori_gemm_ar.compile.store import CodeForm, CodeObject, CodeStore
from mori_gemm_ar.errors import CompileError, MissingDependencyError
from mori_gemm_ar.isa import Kernel, parse_isa
from mori_gemm_ar.layout import AllReduceConfig, DType, Stage
from tests.unit.rocm_fakes import FakeHip
from tests.unit.store_fakes import FakeConfig, one_cache_warning

CONFIG = AllReduceConfig(4, DType.BF16, Stage.TWO)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def linker() -> Path:
    try:
        return find_linker()
    except MissingDependencyError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def code(linker: Path) -> CodeObject:
    return build(CONFIG, CodeForm.HSACO, linker=linker)


@pytest.fixture(scope="module")
def kernel(code: CodeObject) -> Kernel:
    return parse_isa(code.isa).kernel(code.kernel)


# --- what is made ---


def test_text_and_hsaco_belong_together(code: CodeObject, kernel: Kernel) -> None:
    plain = build(CONFIG)
    assert code.isa == plain.isa
    assert plain.hsaco is None
    assert not plain.has(CodeForm.HSACO)
    assert code.has(CodeForm.HSACO)
    assert code.has(CodeForm.ISA)
    assert code.manifest["hsaco_sha256"] == hsaco_digest(code.hsaco)
    assert code.manifest["hsaco_bytes"] == len(code.hsaco)
    assert "LLD" in code.manifest["linker"]
    found = read_hsaco(code.hsaco, code.kernel)
    assert (found.lds_bytes, found.scratch_bytes, found.kernarg_bytes) == (4, 0, 80)
    assert found.vgprs >= code.manifest["resources"]["vgpr"] > found.vgprs - 8
    assert 4 * len(kernel.instructions) <= found.code_bytes <= 12 * len(kernel.instructions)


def test_it_is_the_same_each_time(code: CodeObject, linker: Path) -> None:
    assert build(CONFIG, CodeForm.HSACO, linker=linker) == code
    assert str(ROOT).encode() not in code.hsaco


def test_readelf_agrees(code: CodeObject, tmp_path: Path) -> None:
    readelf = shutil.which("readelf") or pytest.skip("needs readelf (binutils)")
    path = tmp_path / "code.hsaco"
    path.write_bytes(code.hsaco)
    text = subprocess.run(
        [readelf, "--wide", "--file-header", "--dyn-syms", "--program-headers", str(path)],
        capture_output=True, text=True, check=True, env={"LC_ALL": "C"},
    ).stdout  # fmt: skip
    assert re.search(r"Type: +DYN", text)
    assert re.search(r"Machine: +AMD GPU", text)
    assert re.search(r"OS/ABI: +AMD HSA", text)
    assert re.search(r"Flags: +0x54f", text)
    found = read_hsaco(code.hsaco, code.kernel)
    assert re.search(rf" {found.code_bytes} FUNC +GLOBAL PROTECTED +\d+ {code.kernel}$", text, re.MULTILINE)
    assert re.search(rf" 64 OBJECT +GLOBAL \w+ +\d+ {code.kernel}\.kd$", text, re.MULTILINE)
    assert len(re.findall(r"^ +LOAD .* R E ", text, re.MULTILINE)) == 1


def test_a_loader_gets_the_whole_file(code: CodeObject, tmp_path: Path) -> None:
    """The fake HIP library reads an image up to the end of its section table, as a loader would."""
    fake = FakeHip(tmp_path)
    fake.hip.function(0, code.manifest["hsaco_sha256"], code.hsaco, code.kernel)
    digest = 0xCBF29CE484222325
    for byte in code.hsaco:
        digest = (digest ^ byte) * 0x100000001B3 % 2**64
    assert fake.log[-2:] == [f"module {len(code.hsaco)} {digest:016x}", f"function {code.kernel}"]


# --- what is refused ---


def field(offset: int, form: str, value: int):
    def change(data: bytes) -> bytes:
        size = struct.calcsize(form)
        return data[:offset] + struct.pack(form, value) + data[offset + size :]

    return change


BROKEN = {
    "empty": (lambda data: b"", "unpack"),
    "text": (lambda data: b"\t.text\n" * 100, "not a 64-bit little-endian ELF"),
    "truncated": (lambda data: data[:1000], "unpack|exports no symbol"),
    "32 bits": (field(4, "<B", 1), "not a 64-bit"),
    "not linked": (field(16, "<H", 1), r"its type is 1, not 3 \(DYN\)"),
    "x86": (field(18, "<H", 62), "it is for machine 62"),
    "gfx942": (field(48, "<I", 0x54C), "flags 0x54c"),
    "older code object": (field(8, "<B", 3), "ABI 3, not code object version 6"),
    "no sections": (field(58, "<H", 0), "no section table"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_another_file_is_refused(code: CodeObject, name: str) -> None:
    change, reason = BROKEN[name]
    with pytest.raises(CompileError, match=rf"must be a shared object that a gfx950 can load, but .*({reason})"):
        read_hsaco(change(code.hsaco), code.kernel)


def test_another_kernel_is_refused(code: CodeObject, kernel: Kernel, linker: Path) -> None:
    require_same_code(code.hsaco, kernel)
    with pytest.raises(CompileError, match="exports no symbol other_kernel"):
        read_hsaco(code.hsaco, "other_kernel")
    descriptor = code.hsaco.index(struct.pack("<III", 4, 0, 80))
    for offset, name in ((0, "lds_bytes"), (4, "scratch_bytes"), (8, "kernarg_bytes"), (48, "vgprs")):
        changed = field(descriptor + offset, "<I", 77)(code.hsaco)
        with pytest.raises(CompileError, match=f"has {name}=.*, which must be .* as its ISA text says"):
            require_same_code(changed, kernel)
    with pytest.raises(CompileError, match="its descriptor enters at"):
        read_hsaco(field(descriptor + 16, "<Q", 64)(code.hsaco), code.kernel)


# --- linkers ---


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any linker; the folder is first on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    monkeypatch.delenv(hsaco_module.LINKER_VARIABLE, raising=False)
    monkeypatch.setattr(hsaco_module.importlib.util, "find_spec", lambda name: None)
    if any(str(path).startswith("/opt/rocm") for path in linkers()):
        pytest.skip("ROCm is installed here")
    return tmp_path


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    path.chmod(0o755)
    return path


def test_the_order_of_linkers(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingDependencyError, match=r"apt install lld-19\), or set MORI_GEMM_AR_LINKER"):
        find_linker()
    with pytest.raises(MissingDependencyError, match="linker='/none/ld' must be an executable file"):
        find_linker("/none/ld")
    for name in ("ld.lld-9", "ld.lld-19", "ld.lld-18", "ld.lld-x"):
        executable(bare / "bin" / name)
    assert find_linker().name == "ld.lld-19"
    assert find_linker() == (plain := executable(bare / "bin" / "ld.lld")) or find_linker() == plain
    rocm = executable(bare / "rocm" / "llvm" / "bin" / "ld.lld")
    assert find_linker() == rocm
    chosen = executable(bare / "mine")
    monkeypatch.setenv(hsaco_module.LINKER_VARIABLE, str(chosen))
    assert find_linker() == chosen
    assert find_linker(rocm) == rocm
    assert find_linker("ld.lld-18").name == "ld.lld-18"


def test_a_linker_that_fails_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    false = shutil.which("false")
    with pytest.raises(
        CompileError, match=rf"linker={false}: form=bin must be generated.*lld invocation failed"
    ) as caught:
        build(CONFIG, CodeForm.HSACO, linker=false)
    assert len(str(caught.value)) < 400  # not the whole module


def test_a_linker_that_does_not_link_is_noticed(tmp_path: Path) -> None:
    """It copies the object that it should link: `ld.lld -shared <object> -o <output>`."""
    script = executable(tmp_path / "copy")
    script.write_text('#!/bin/sh\ncp "$2" "$4"\n')
    with pytest.raises(CompileError, match=r"its type is 1, not 3 \(DYN\): it is not linked"):
        build(CONFIG, CodeForm.HSACO, linker=script)


# --- store ---


def test_an_entry_of_text_gets_its_hsaco_when_it_is_wanted(tmp_path: Path, code: CodeObject, linker: Path) -> None:
    store = CodeStore(tmp_path, lambda config, form: build(config, form, linker=linker))
    assert store.get(CONFIG).hsaco is None
    assert store.get(CONFIG, CodeForm.HSACO) == code
    assert store.get(CONFIG) == code
    again = CodeStore(tmp_path, lambda config, form: pytest.fail("it is there"))
    assert again.get(CONFIG, CodeForm.HSACO) == code
    assert again.held() == [code]
    path = store.path(CONFIG)
    assert path.with_suffix(".hsaco").read_bytes() == code.hsaco


@pytest.mark.parametrize(("damage", "reason"), [(lambda data: data[:-1], "damaged"), (None, "missing")])
def test_a_damaged_hsaco_is_rebuilt(tmp_path: Path, code: CodeObject, damage, reason: str) -> None:
    CodeStore(tmp_path, lambda config, form: code).get(CONFIG, CodeForm.HSACO)
    path = CodeStore(tmp_path).path(CONFIG).with_suffix(".hsaco")
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(code.hsaco))
    store = CodeStore(tmp_path, lambda config, form: code)
    with one_cache_warning(f"its HSACO is {reason}"):
        assert store.get(CONFIG, CodeForm.HSACO) == code
    assert path.read_bytes() == code.hsaco


def test_without_flydsl_a_missing_form_is_named(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['flydsl'] = None; sys.path.insert(0, sys.argv[1])\n"
        "from mori_gemm_ar.compile.store import CodeForm, CodeStore\n"
        "from mori_gemm_ar.layout import AllReduceConfig, DType, Stage\n"
        "try: CodeStore(sys.argv[2]).get(AllReduceConfig(4, DType.BF16, Stage.TWO), CodeForm.HSACO)\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    CodeStore(tmp_path).get(CONFIG)
    run = subprocess.run([sys.executable, "-c", script, str(ROOT), str(tmp_path)], capture_output=True, text=True)
    assert run.stdout.startswith(
        "MissingDependencyError config=lsa_allreduce_w4_bf16_2stage must be in the store as hsaco or be compiled"
    )
    assert FakeConfig().key not in run.stdout
