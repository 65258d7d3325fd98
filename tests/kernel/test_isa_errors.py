# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""ISA text that is cut, foreign, or holds what the emulator does not know raises `IsaError`, and nothing else."""

from __future__ import annotations

import random
import re

import pytest

from mori_gemm_ar.compile.store import default_store
from mori_gemm_ar.emulator import translate
from mori_gemm_ar.errors import IsaError
from mori_gemm_ar.isa import parse_isa
from mori_gemm_ar.layout import AllReduceConfig, DType, Stage
from tests.kernel.isa_builder import isa_text

BODY = """
    s_load_dwordx2 s[2:3], s[0:1], 0x0
    v_lshlrev_b32_e32 v1, 2, v0
    s_cmp_eq_u32 s2, 0
    s_cbranch_scc1 .LBB0_1
    s_waitcnt lgkmcnt(0)
    global_store_dword v1, v0, s[2:3]
.LBB0_1:
    s_endpgm
"""
TEXT = isa_text(BODY, lds=64)


def accept(text: str) -> None:
    """Parse and translate all kernels."""
    for kernel in parse_isa(text).kernels.values():
        translate(kernel)


def require_refused(text: str) -> str:
    with pytest.raises(IsaError) as caught:
        accept(text)
    return str(caught.value)


def test_the_text_itself_is_accepted() -> None:
    """Negative control of everything below."""
    accept(TEXT)
    kernel = parse_isa(TEXT).kernel("tiny")
    assert [i.name for i in kernel.instructions][-1] == "s_endpgm" and kernel.lds_bytes == 64


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("s_frobnicate s0", "instruction 's_frobnicate' is not known to the emulator"),
        ("v_frobnicate_b32_e64 v1, v2, v3, v4", "instruction 'v_frobnicate_b32' is not known to the emulator"),
        ("v_add_u32_e32 v0, v1, v2 frob", "modifier 'frob' is not known"),
        ("v_add_u32_e32 v0, v1, v2 sc0", "modifier 'sc0' is not modelled for this instruction"),
        ("v_mov_b32_e32 v1, v2 row_shr:1", "modifier 'row_shr' is not modelled"),
        ("v_add_f32_e64 v1, v2, v3 op_sel:[1,0,0]", "modifier 'op_sel' is not modelled"),
        ("s_mov_b32 s4, s5 clamp", "modifier 'clamp' is not modelled"),
        ("s_nop 0 sc0", "modifier 'sc0' is not modelled"),
        ("s_sleep 1 nt", "modifier 'nt' is not modelled"),
        ("ds_read_b32 v1, v0 gds", "modifier 'gds' is not modelled"),
        ("global_load_dword v1, v0, s[2:3] lds", "modifier 'lds' is not modelled"),
        ("buffer_load_dword v1, v0, s[4:7], 0 offen tfe", "modifier 'tfe' is not modelled"),
        ("buffer_load_dword v1, v0, s[4:7], 0 idxen", "structured buffers are not modelled"),
        ("v_add_u32_e32 v256, v1, v2", "v256 must lie within v0..v255"),
        ("s_mov_b32 s128, 0", "s128 must lie within s0..s127"),
        ("s_mov_b64 s[3:4], 0", "must be even-aligned"),
        ("s_mov_b64 s[4:3], 0", "must name a rising register range"),
        ("v_add_u32_e32 v0, x1, v2", "operand 'x1' is not known"),
        ("v_add_u32_e32 s0, v1, v2", "must be a vector destination"),
        ("v_lshlrev_b32_e32 v1, 2", "operands are not those of 'v_lshlrev_b32'"),
        ("global_load_dword v1, v0", "operands are not those of 'global_load_dword'"),
        ("global_load_dwordx2 v1, v0, s[2:3]", "must be 2 vector registers"),
        ("s_waitcnt frobcnt(0)", "wait counter frobcnt"),
        ("s_cbranch_scc1 .LBB9_9", "branches to '.LBB9_9', which is not defined"),
        ("s_cbranch_cdbgsys .LBB0_1", "this branch is not modelled"),
    ],
)
def test_an_instruction_that_is_not_known(line: str, message: str) -> None:
    """The error names the line, its text and what is wrong with it."""
    text = TEXT.replace("\tv_lshlrev_b32_e32 v1, 2, v0\n", f"\t{line}\n")
    found = require_refused(text)
    assert message in found
    assert line in found or ".LBB9_9" in found


@pytest.mark.parametrize("line", ["\t.frobnicate 3", "\t.amdhsb_kernel tiny", "\t.macro x", "\t.byte 1"])
@pytest.mark.parametrize("at", ["\t.text\n", "\ts_endpgm\n"], ids=["head", "body"])
def test_a_directive_that_is_not_known(line: str, at: str) -> None:
    assert f"directive {line.split()[0]!r} is not known" in require_refused(TEXT.replace(at, f"{line}\n{at}", 1))


def test_another_target() -> None:
    for target in ("gfx942", "gfx1201", "gfx90a"):
        text = TEXT.replace("gfx950", target)
        assert "must end in gfx950; rebuild the code object for gfx950" in require_refused(text)


def test_control_that_runs_off_the_end() -> None:
    assert "runs off its end after line" in require_refused(TEXT.replace("\ts_endpgm\n", "\ts_nop 0\n"))


def test_another_kernel_name() -> None:
    with pytest.raises(IsaError, match=re.escape("kernel='other' must be one of ['tiny']")):
        parse_isa(TEXT).kernel("other")


@pytest.mark.parametrize(
    "text", ["", "\n\n", "hello", "\x7fELF\x02\x01\x01\x00", "{}", "\tret\n", "; only a comment\n"]
)
def test_what_is_not_isa_text(text: str) -> None:
    require_refused(text)


def text_of(which: str) -> str:
    return TEXT if which == "tiny" else default_store().get(AllReduceConfig(2, DType.BF16, Stage.TWO)).isa


@pytest.mark.parametrize("which", ["tiny", "all_reduce"])
def test_truncated_after_any_line(which: str) -> None:
    """However much of the end is missing, it is noticed."""
    lines = text_of(which).splitlines(keepends=True)
    end = max(n for n, line in enumerate(lines) if ".end_amdgpu_metadata" in line)
    accept("".join(lines[: end + 1]))
    step = max(1, end // 60)
    for count in [*range(0, end, step), end]:
        require_refused("".join(lines[:count]))


@pytest.mark.parametrize("which", ["tiny", "all_reduce"])
def test_damaged_text_never_raises_anything_else(which: str) -> None:
    """Lines lost, doubled or scrambled: accepted or refused with `IsaError`, no other exception."""
    original = text_of(which).splitlines()
    damage = random.Random(5)
    refused = 0
    for _ in range(150 if which == "tiny" else 50):
        lines = list(original)
        at = damage.randrange(len(lines))
        kind = damage.randrange(4)
        if kind == 0:
            del lines[at]
        elif kind == 1:
            lines.insert(at, damage.choice(original))
        elif kind == 2:
            lines[at] = lines[at][: damage.randrange(len(lines[at]) + 1)]
        else:
            characters = list(lines[at] + " ")
            characters[damage.randrange(len(characters))] = damage.choice("?z9[]:,.")
            lines[at] = "".join(characters)
        try:
            accept("\n".join(lines))
        except IsaError:
            refused += 1
    assert refused > 10
