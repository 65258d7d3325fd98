# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""LLVM's assembler takes the texts of the probes: it reads inline assembly for HSACO, and prints it unread as ISA."""

from __future__ import annotations

from pathlib import Path

import pytest

from mori_gemm_ar.compile.backend import compile_kernel
from mori_gemm_ar.compile.build import _launcher, _placeholders
from mori_gemm_ar.hwcheck.forms import listed_forms
from mori_gemm_ar.hwcheck.probes import probe_of, probes_of
from mori_gemm_ar.kernels.hwcheck.assembly_text import assembly_kernel
from mori_gemm_ar.layout.hwcheck import AssemblyConfig

# What LLVM calls to link an object that it has assembled: here it only hands the object on.
LINKER = """#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in
    -o) out="$2"; shift;;
    -*) ;;
    *) object="$1";;
  esac
  shift
done
cp "$object" "$out"
"""


@pytest.fixture(scope="module")
def linker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("linker") / "ld.lld"
    path.write_text(LINKER)
    path.chmod(0o755)
    return path


def complaints(config: AssemblyConfig, linker: Path, capfd: pytest.CaptureFixture[str]) -> list[str]:
    """What the assembler says against a text: on stderr, and the object is empty."""
    kernel = assembly_kernel(config)
    capfd.readouterr()
    compiled = compile_kernel(_launcher(kernel), *_placeholders(kernel), linker=linker)
    found = [line for line in capfd.readouterr().err.splitlines() if "error:" in line]
    assert compiled.hsaco is not None and compiled.hsaco.startswith(b"\x7fELF") == (not found)
    return found


def test_one_form_of_each_kind(linker: Path, capfd: pytest.CaptureFixture[str]) -> None:
    names = (
        "v_pk_add_f32",
        "ds_read_b128",
        "s_load_dwordx4",
        "buffer_store_byte",
        "global_atomic_inc",
        "v_div_scale_f32",
    )
    forms = {form.mnemonic: form for form in listed_forms()}
    assert complaints(probe_of([forms[name] for name in names]).config, linker, capfd) == []


@pytest.mark.slow
def test_every_listed_form(linker: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for probe in probes_of(listed_forms()):
        assert complaints(probe.config, linker, capfd) == [], probe.config.text


@pytest.mark.parametrize("text", ["v_bogus_b32 v16, v17\n", "v_pk_add_f32 v[17:18], v[20:21], v[22:23]\n"])
def test_a_wrong_text_is_noticed(text: str, linker: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert len(complaints(AssemblyConfig("wrong", text, "~{v16}"), linker, capfd)) == 1
