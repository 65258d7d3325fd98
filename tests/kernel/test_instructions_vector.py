# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Vector instructions against Python integers, floats and fractions."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest

from mori_gemm_ar.emulator import translate
from mori_gemm_ar.errors import IsaError
from tests.kernel import table_float, table_integer
from tests.kernel.instruction_check import check
from tests.kernel.instruction_values import choose, decode, divide, encode, exact
from tests.kernel.instructions import LANES, State, assemble, execute

COVERED = {"v_nop", *(row.name for row in table_float.DIVISION_ROWS)}
U32 = np.uint32


@pytest.mark.parametrize("row", [*table_integer.ROWS, *table_integer.COMPARE_ROWS], ids=lambda row: row.name)
def test_integer(row):
    for form in row.forms:
        check(row, form)


@pytest.mark.parametrize("row", [*table_float.ROWS, *table_float.COMPARE_ROWS], ids=lambda row: row.name)
def test_float(row):
    for form in row.forms:
        check(row, form)


def float_bits(values: list) -> np.ndarray:
    """float32 bits of exact numbers, rounded once; 0xffffffff stands for a NaN."""
    bits = [encode("f32", value) for value in values]
    return np.array([0xFFFFFFFF if b is None else b for b in bits], U32).reshape(-1, LANES)


def assert_same_floats(got: np.ndarray, want: np.ndarray) -> None:
    """Equal bits, any NaN for a NaN."""
    same = (got == want) | ((want == 0xFFFFFFFF) & np.isnan(got.view(np.float32)))
    assert same.all(), [(hex(got[tuple(at)]), hex(want[tuple(at)]), at) for at in np.argwhere(~same)[:3].tolist()]


@pytest.mark.parametrize("scale", [0, -120, -140])
@pytest.mark.parametrize("nudge", [-1, 0, 1])
def test_fma_next_to_a_tie(nudge, scale):
    """a*b + c half way between two float32, and one unit of the tiny c away from it: a double would round twice.

    With `scale` the sums lie below the smallest normal number, where the spacing is fixed.
    """
    rng = np.random.default_rng(nudge + 7)
    a, b = (1 + rng.integers(1, 1 << 23, 4 * LANES) / 2.0**23 for _ in "ab")
    b = b * 2.0**scale
    c = []
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        product = Fraction(x) * Fraction(y)
        spacing = Fraction(2) ** max(product.numerator.bit_length() - product.denominator.bit_length() - 24, -149)
        tie = (product // spacing) * spacing + spacing / 2
        c.append(float(tie - product))
    state = State.random(rng, 4)
    state.v[1], state.v[5] = (n.astype(np.float32).view(U32).reshape(4, LANES) for n in (a, b))
    # What float32 cannot hold of c leaves the tie, and is as good a test.
    rounded = np.array(c, np.float32)
    stepped = np.where(rounded == 0, rounded, (rounded.view(U32) + U32(nudge & 0xFFFFFFFF)).view(np.float32))
    state.v[8] = stepped.view(U32).reshape(4, LANES)
    formula = exact(lambda x, y, z: x * y + z)
    numbers = [decode("f32", state.v[n].reshape(-1)) for n in (1, 5, 8)]
    want = float_bits([formula(*values) for values in zip(*numbers, strict=True)])
    assert_same_floats(execute("v_fma_f32 v12, v1, v5, v8", state).v[12], want)


@pytest.mark.parametrize("exponent", [0, 100, -100, -126])
@pytest.mark.parametrize("factor", [1, 5], ids=["first", "second"])
def test_fma_with_powers_of_two(factor, exponent):
    """A product that a shift of the exponent gives, unless it overflows (the sum need not) or gets too small."""
    rng = np.random.default_rng(exponent + 1000)
    state = State.random(rng, 4)
    size = (4, LANES)
    powers = np.exp2(rng.integers(-3, 4, size) + float(exponent))
    others = rng.standard_normal(size) * np.exp2(rng.integers(-3, 4, size) + (25.0 if exponent > 0 else 0.0))
    others[0, ::7], powers[1, ::9] = 0.0, -powers[1, ::9]
    with np.errstate(over="ignore"):
        addend = (-powers * others * (1 + rng.integers(-2, 3, size) / 4)).astype(np.float32)
    addend[~np.isfinite(addend)] = np.float32(-3e38)
    for place, values in ((factor, powers), (6 - factor, others), (8, addend)):
        state.v[place] = values.astype(np.float32).view(U32)
    numbers = [decode("f32", state.v[n].reshape(-1)) for n in (1, 5, 8)]
    formula = exact(lambda x, y, z: x * y + z)
    want = float_bits([formula(*values) for values in zip(*numbers, strict=True)])
    assert_same_floats(execute("v_fma_f32 v12, v1, v5, v8", state).v[12], want)


DIVISION = """
v_div_scale_f32 v12, s[0:1], v5, v5, v1
v_rcp_f32_e32 v13, v12
v_fma_f32 v14, -v12, v13, 1.0
v_fmac_f32_e32 v13, v14, v13
v_div_scale_f32 v14, vcc, v1, v5, v1
v_mul_f32_e32 v15, v14, v13
v_fma_f32 v16, -v12, v15, v14
v_fmac_f32_e32 v15, v16, v13
v_fma_f32 v14, -v12, v15, v14
v_div_fmas_f32 v14, v14, v13, v15
v_div_fixup_f32 v12, v14, v5, v1
"""


@pytest.mark.parametrize(("numerator", "denominator"), [("v1", "v5"), ("1.0", "v5"), ("s3", "v5"), ("v1", "s5")])
@pytest.mark.parametrize("seed", range(2))
def test_division_as_llvm_expands_it_is_exact(seed, numerator, denominator):
    """For every pair of numbers, also where quotient, numerator or denominator are subnormal or overflow."""
    rng = np.random.default_rng(seed)
    state = State.random(rng, 32)
    for register in (1, 5):
        state.v[register] = (
            choose(rng, "f32", (32, LANES)) if seed else rng.integers(0, 1 << 32, (32, LANES), np.uint64)
        )
    if numerator != "v1":
        state.v[1] = 0x3F800000 if numerator == "1.0" else state.s[3][:, None]
    if denominator == "s5":
        state.v[5] = state.s[5][:, None]
    a, b = (decode("f32", state.v[n].reshape(-1)) for n in (1, 5))
    quotients = []
    for x, y in zip(a, b, strict=True):
        special = x == 0 or y == 0 or not np.isfinite(x) or not np.isfinite(y)
        quotients.append(divide(x, y) if special else Fraction(x) / Fraction(y))
    text = re.sub(r"\bv1\b", numerator, re.sub(r"\bv5\b", denominator, DIVISION))
    got = execute(text, state).v[12]
    assert_same_floats(got, float_bits(quotients))


def test_vector_nop():
    before = State.random(np.random.default_rng(0), 2)
    assert before.differences(execute("v_nop", before)) == []


@pytest.mark.parametrize(
    "text",
    [
        "v_mul_f32_e64 v12, v1, v5 mul:2",  # ignored by the hardware while denormals are enabled
        "v_mad_u32_u24 v12, v1, v5, v8 clamp",
        "v_and_b32_e64 v12, -v1, v5",
        "v_add_u32_sdwa v12, v1, v5 dst_sel:WORD_1 dst_unused:UNUSED_SEXT src0_sel:DWORD src1_sel:DWORD",
        "v_add_co_u32_dpp v12, vcc, v1, v5 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf",
        "v_add_u16_e64 v12, v1, v5 op_sel:[1,0,0]",
        "v_pk_add_u16 v12, v1, v5 clamp",
        "v_lshlrev_b64 v[14:15], v1, s[3:4]",
        "v_cmpx_lt_u32_e32 vcc, v1, v5",
        "ds_swizzle_b32 v12, v1 offset:0xc020",
    ],
)
def test_refused(text):
    with pytest.raises(IsaError):
        execute(text, State.random(np.random.default_rng(0), 1))


@pytest.mark.parametrize(
    ("directive", "default"),
    [
        ("float_denorm_mode_32", 3),
        ("float_round_mode_32", 0),
        ("dx10_clamp", 1),
        ("ieee_mode", 1),
        ("fp16_overflow", 0),
    ],
)
def test_other_float_modes_are_refused(directive, default):
    translate(assemble("v_nop", directives=f"\t\t.amdhsa_{directive} {default}\n"))
    with pytest.raises(IsaError, match=directive):
        translate(assemble("v_nop", directives=f"\t\t.amdhsa_{directive} {1 - default % 2}\n"))
