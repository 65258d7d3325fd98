# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""MFMA against products in float64 of matrices that are gathered element by element with the documented layout.

The order and the rounding of the sums inside an MFMA are not documented: small integers must come out exact, other
numbers within an error bound of float32 accumulation.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from mori_gemm_ar.emulator import translate
from tests.kernel.instruction_check import partial_exec
from tests.kernel.instructions import EXEC, State, assemble, execute

WAVES = 2
VECTOR = 300  # v0-v255 and a0-a43


@dataclass(frozen=True)
class Shape:
    """M = N, K, element type."""

    m: int
    k: int
    element: str

    @property
    def words(self) -> int:
        """Registers of one operand."""
        return self.m * self.k * BYTES[self.element] // 256

    @property
    def results(self) -> int:
        return self.m * self.m // 64


BYTES = {"f32": 4, "f16": 2, "bf16": 2, "fp8": 1}
TORCH = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
SHAPES = {
    **{f"v_mfma_f32_16x16x{k}_{e}": Shape(16, k, e) for k, e in ((4, "f32"), (16, "f16"), (16, "bf16"), (32, "f16"),
         (32, "bf16"))},
    **{f"v_mfma_f32_32x32x{k}_{e}": Shape(32, k, e) for k, e in ((2, "f32"), (8, "f16"), (8, "bf16"), (16, "f16"), (16,
         "bf16"))},
    "v_mfma_f32_16x16x32_fp8_fp8": Shape(16, 32, "fp8"), "v_mfma_f32_32x32x16_fp8_fp8": Shape(32, 16, "fp8"),
    "v_mfma_f32_16x16x128_f8f6f4": Shape(16, 128, "fp8"), "v_mfma_f32_32x32x64_f8f6f4": Shape(32, 64, "fp8"),
    "v_mfma_scale_f32_16x16x128_f8f6f4": Shape(16, 128, "fp8"),
}  # fmt: skip
COVERED = set(SHAPES)
SCALED = "v_mfma_scale_f32_16x16x128_f8f6f4"


# ---- layout --------------------------------------------------------------------------------------------------
def place_of(shape: Shape, row: int, k: int) -> tuple[int, int]:
    """Lane and position within the lane of element (row, k) of A, or (k, row) of B."""
    groups = 64 // shape.m
    if shape.k * shape.m == 2048 and shape.element == "fp8":  # two halves of 16 per lane
        half, within = divmod(k, shape.k // 2)
        return row + shape.m * (within // 16), 16 * half + within % 16
    run = shape.k // groups
    return row + shape.m * (k // run), k % run


def matrix(state: State, shape: Shape, first: int, wave: int) -> np.ndarray:
    """Operand as (row, k) float64."""
    lanes = np.ascontiguousarray(state.v[first : first + shape.words, wave].T)
    elements = torch.from_numpy(lanes.view(np.uint8)).view(TORCH[shape.element]).double().numpy()
    return np.array([[elements[place_of(shape, row, k)] for k in range(shape.k)] for row in range(shape.m)])


def result_place(shape: Shape, row: int, column: int) -> tuple[int, int]:
    """Register and lane of element (row, column) of C and D."""
    if shape.m == 16:
        return row % 4, column + 16 * (row // 4)
    return row % 4 + 4 * (row // 8), column + 32 * (row // 4 % 2)


def accumulator(state: State, shape: Shape, first: int, wave: int) -> np.ndarray:
    registers = state.v[first : first + shape.results, wave].view(np.float32)
    return np.array(
        [[registers[result_place(shape, i, j)] for j in range(shape.m)] for i in range(shape.m)], np.float64
    )


# ---- values --------------------------------------------------------------------------------------------------
def fill(rng, state: State, shape: Shape, first: int, integers: bool) -> None:
    """Elements of one operand: integers up to 3, or normal numbers over a few binades."""
    shape_ = (state.waves, 64, shape.words * 4 // BYTES[shape.element])
    values = (
        rng.integers(-3, 4, shape_) if integers else rng.standard_normal(shape_) * np.exp2(rng.integers(-3, 4, shape_))
    )
    stored = torch.tensor(values, dtype=torch.float32).to(TORCH[shape.element])
    state.v[first : first + shape.words] = np.moveaxis(stored.view(torch.uint8).numpy().view(np.uint32), -1, 0)


def fill_accumulator(rng, state: State, shape: Shape, first: int, integers: bool) -> None:
    size = (shape.results, state.waves, 64)
    values = rng.integers(-50, 51, size) if integers else rng.standard_normal(size)
    state.v[first : first + shape.results] = values.astype(np.float32).view(np.uint32)


def name_of(first: int, count: int) -> str:
    letter, first = ("a", first - 256) if first >= 256 else ("v", first)
    return f"{letter}{first}" if count == 1 else f"{letter}[{first}:{first + count - 1}]"


def text_of(name: str, d: int, a: int, b: int, c: int | None) -> str:
    shape = SHAPES[name]
    last = "0" if c is None else name_of(c, shape.results)
    text = f"{name} {name_of(d, shape.results)}, {name_of(a, shape.words)}, {name_of(b, shape.words)}, {last}"
    return text + (", v200, v201 op_sel_hi:[0,0,0]" if name == SCALED else "")


def verify(name: str, before: State, after: State, d: int, a: int, b: int, c: int | None, exact: bool) -> None:
    """D of every wave, and every other register."""
    shape = SHAPES[name]
    for wave in range(before.waves):
        left, right = matrix(before, shape, a, wave), matrix(before, shape, b, wave)
        start = 0.0 if c is None else accumulator(before, shape, c, wave)
        want, got = left @ right.T + start, accumulator(after, shape, d, wave)
        bound = (shape.k + 2) * 2.0**-24 * (np.abs(left) @ np.abs(right).T + np.abs(start))
        assert (np.abs(got - want) <= (0 if exact else bound)).all(), f"{name} wave {wave}: {np.abs(got - want).max()}"
    rest = after.copy()
    rest.v[d : d + shape.results] = before.v[d : d + shape.results]
    assert before.differences(rest)[:1] == []


def operands(seed: str, name: str, integers: bool, *places: int, c: int | None = None) -> State:
    """A state whose operands at `places` and accumulator at `c` hold numbers; scales of one."""
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    before = State.random(rng, WAVES, vector=VECTOR)
    before.v[200:202] = 0x7F7F7F7F
    if c is not None:
        fill_accumulator(rng, before, SHAPES[name], c, integers)
    for first in places:
        fill(rng, before, SHAPES[name], first, integers)
    return before


# ---- one instruction -----------------------------------------------------------------------------------------
# D, A, B, C: C is 0, D, elsewhere; accumulation registers; D over an operand; A and B the same
FORMS = [
    (40, 0, 10, None),
    (40, 0, 10, 40),
    (40, 0, 10, 80),
    (256, 0, 10, 256),
    (40, 264, 10, 40),
    (0, 0, 10, 80),
    (40, 0, 0, 40),
]


@pytest.mark.parametrize("integers", [True, False], ids=["integers", "numbers"])
@pytest.mark.parametrize("name", SHAPES)
def test_product(name, integers):
    for form in FORMS:
        _, a, b, c = form
        before = operands(f"{name}{form}{integers}", name, integers, *{a, b}, c=c)
        for sparse in (False, True):
            verify(name, before, execute(text_of(name, *form), before, sparse=sparse), *form, exact=integers)


@pytest.mark.parametrize("name", SHAPES)
def test_exec_does_not_matter(name):
    before = operands(name, name, True, 0, 10, c=40)
    before.set_pair(EXEC, partial_exec(np.random.default_rng(5), WAVES))
    verify(name, before, execute(text_of(name, 40, 0, 10, 40), before), 40, 0, 10, 40, exact=True)


@pytest.mark.parametrize("name", [n for n in SHAPES if SHAPES[n].element != "fp8"])
def test_infinities_and_nans_reach_their_row_only(name):
    shape = SHAPES[name]
    before = operands(name, name, True, 0, 10)
    one = torch.tensor([float("inf")] * 4).to(TORCH[shape.element]).view(torch.uint8).numpy()
    before.v[0, :, 3] = one.view(np.uint32)[0]  # elements of row 3
    got = accumulator(execute(text_of(name, 40, 0, 10, None), before), shape, 40, 0)
    assert not np.isfinite(got[3]).any() or (matrix(before, shape, 10, 0) == 0).any()
    assert np.isfinite(np.delete(got, 3, axis=0)).all()


def test_scales_choose_blocks_of_32():
    """Lane 16 s + row of a scale register carries the exponent of that row's k in [32 s, 32 s + 32)."""
    shape = SHAPES[SCALED]
    before = operands("scales", SCALED, True, 0, 10, c=40)
    rng = np.random.default_rng(7)
    for index in (200, 201):
        before.v[index] = rng.integers(120, 134, (4, WAVES, 64)).astype(np.uint32).T.reshape(64, WAVES, 4).transpose(
            1, 0, 2).copy().astype(np.uint8).view(np.uint32)[..., 0]  # fmt: skip
    for option, byte_a, byte_b in (("op_sel_hi:[0,0,0]", 0, 0), ("op_sel:[1,0,0] op_sel_hi:[0,1,0]", 1, 2)):
        text = text_of(SCALED, 40, 0, 10, 40).replace("op_sel_hi:[0,0,0]", option)
        after = execute(text, before)
        for wave in range(WAVES):
            sides = []
            for first, register, byte in ((0, 200, byte_a), (10, 201, byte_b)):
                exponents = (before.v[register, wave] >> (8 * byte) & 0xFF).astype(float).reshape(4, 16).T
                sides.append(matrix(before, shape, first, wave) * np.exp2(np.repeat(exponents, 32, axis=1) - 127))
            want = sides[0] @ sides[1].T + accumulator(before, shape, 40, wave)
            bound = 130 * 2.0**-24 * (np.abs(sides[0]) @ np.abs(sides[1]).T + 50)
            assert (np.abs(accumulator(after, shape, 40, wave) - want) <= bound).all()


EXTREMES = (0, 1, 86, 135, 254, 255)


def e8m0(exponents: np.ndarray) -> np.ndarray:
    """2^(e - 127) in float64; 255 is NaN."""
    return np.where(exponents == 255, np.nan, np.exp2(exponents.astype(np.float64) - 127))


def check_extremes(before: State, after: State, value: int) -> None:
    """Every element against float64: NaN where it must be, else within the bound or rounded out of float32."""
    shape = SHAPES[SCALED]
    for wave in range(WAVES):
        sides = []
        for first, register in ((0, 200), (10, 201)):
            exponents = (before.v[register, wave] & 0xFF).reshape(4, 16).T
            sides.append(matrix(before, shape, first, wave) * e8m0(np.repeat(exponents, 32, axis=1)))
        start, got = accumulator(before, shape, 40, wave), accumulator(after, shape, 40, wave)
        want, nan = sides[0] @ sides[1].T + start, np.isnan(sides[0] @ sides[1].T)
        bound = 130 * 2.0**-24 * (np.abs(sides[0]) @ np.abs(sides[1]).T + np.abs(start))
        with np.errstate(over="ignore", invalid="ignore"):
            fits = (np.abs(got - want) <= bound) | (want.astype(np.float32) == got)
        assert np.isnan(got[nan]).all(), f"scale {value}, wave {wave}"
        assert fits[~nan].all(), f"scale {value}, wave {wave}: first {np.argwhere(~fits & ~nan)[:1].tolist()}"


@pytest.mark.parametrize("register", [200, 201], ids=["A", "B"])
def test_a_scale_changes_its_own_row_or_column_only(register):
    """Whatever one row's scales are: that row is right, and every other row keeps its bits."""
    shape = SHAPES[SCALED]
    before = operands("extremes", SCALED, False, 0, 10, c=40)
    lanes = np.arange(64) % 16 == 3  # of row 3 of A, or column 3 of B
    expected = accumulator(execute(text_of(SCALED, 40, 0, 10, 40), before), shape, 40, 0)
    for value in EXTREMES:
        changed = before.copy()
        changed.v[register, :, lanes] = value * 0x01010101
        after = execute(text_of(SCALED, 40, 0, 10, 40), changed)
        got, axis = accumulator(after, shape, 40, 0), 0 if register == 200 else 1
        assert np.array_equal(np.delete(got, 3, axis), np.delete(expected, 3, axis)), value
        assert not np.array_equal(np.take(got, 3, axis), np.take(expected, 3, axis)), value
        check_extremes(changed, after, value)


def test_products_that_multiply_together_do_not_share_scales():
    """A product keeps its bits beside one with scales that float32 operands cannot carry."""
    texts = [
        text_of(SCALED, 40, 0, 10, 40),
        text_of(SCALED, 44, 20, 10, 44).replace("v200, v201", "v202, v201"),
    ]
    assert translate(assemble("\n".join(texts))).source.count(" = products(") == 1
    before = operands("neighbours", SCALED, False, 0, 10, 20, c=40)
    fill_accumulator(np.random.default_rng(4), before, SHAPES[SCALED], 44, False)
    results = []
    for value in (127, *EXTREMES):
        before.v[202] = value * 0x01010101
        results.append(execute("\n".join(texts), before).v)
    assert all(np.array_equal(got[40:44], results[0][40:44]) for got in results[1:])
    assert not any(np.array_equal(got[44:48], results[0][44:48]) for got in results[1:])


# ---- several instructions ------------------------------------------------------------------------------------
TINY = "v_mfma_f32_16x16x16_bf16"


def run_one_by_one(texts: list[str], before: State) -> State:
    """Each instruction in a kernel of its own."""
    for text in texts:
        before = execute(text, before)
    return before


SEQUENCES = {
    "chain on one accumulator": [(40, 0, 10, 40), (40, 2, 12, 40), (40, 4, 14, 40)],
    "grid of independent products": [(40, 0, 10, 40), (44, 0, 12, 44), (48, 2, 10, 48), (52, 2, 12, 52)],
    "chain through another register": [(40, 0, 10, 40), (44, 2, 12, 40)],
    "accumulator read before it is overwritten": [(44, 0, 10, 40), (40, 2, 12, None)],
    "operand overwritten by a result": [(40, 0, 10, 40), (10, 2, 12, None)],
    "result as operand": [(40, 0, 10, 40), (44, 40, 12, 44)],
    "partial overlap of results": [(40, 0, 10, 40), (42, 2, 12, 42)],
    "same result twice": [(40, 0, 10, None), (40, 2, 12, None)],
}


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_queued_products(sequence):
    """Products that the emulator gathers give what they give one at a time."""
    texts = [text_of(TINY, *form) for form in SEQUENCES[sequence]]
    before = operands(sequence, TINY, True, 0, 2, 4, 10, 12, 14, c=40)
    fill_accumulator(np.random.default_rng(3), before, SHAPES[TINY], 44, True)
    assert run_one_by_one(texts, before).differences(execute("\n".join(texts), before))[:1] == []


BETWEEN = [
    "v_mov_b32_e32 v0, 0", "v_mov_b32_e32 v41, 1.0", "v_add_f32_e32 v60, v40, v41", "v_accvgpr_write_b32 a0, v60",
    "v_accvgpr_mov_b32 a1, a9", "v_swap_b32 v60, v10", "v_writelane_b32 v11, 0, 5", "ds_write_b32 v61, v42",
    "ds_read_b32 v1, v61", "v_readfirstlane_b32 s3, v43", "v_permlane32_swap_b32_e32 v60, v11", "s_mov_b64 exec, -1",
    "v_cmp_lt_f32_e32 vcc, v40, v41", "v_mov_b64_e32 v[10:11], 0",
         "v_mov_b32_dpp v10, v60 row_shr:1 row_mask:0xf bank_mask:0xf",
]  # fmt: skip


@pytest.mark.parametrize("between", BETWEEN)
def test_other_instructions_see_and_change_what_they_should(between):
    """An instruction between two products neither overtakes the first nor falls behind the second."""
    a = 256 if "accvgpr" in between else 0
    first, second = text_of(TINY, 40, a, 10, 40), text_of(TINY, 44, a, 10, 44)
    rng = np.random.default_rng(11)
    before = State.random(rng, WAVES, vector=VECTOR, lds=64)
    for place in (0, 10, 256):
        fill(rng, before, SHAPES[TINY], place, True)
    for place in (40, 44):
        fill_accumulator(rng, before, SHAPES[TINY], place, True)
    before.v[61] = 4 * rng.integers(0, 16, (WAVES, 64))
    texts = [first, between, second]
    want = run_one_by_one(texts, before)
    assert want.differences(execute("\n".join(texts), before))[:1] == []


def test_products_multiply_together_across_a_use_of_their_result():
    """A result read between two products, and its registers used again, do not split their batch."""
    forms = [(40, 0, 10, None), (40, 0, 12, None)]
    texts = [text_of(TINY, *forms[0]), "v_add_f32_e32 v60, v40, v41", text_of(TINY, *forms[1])]
    before = operands("together", TINY, True, 0, 10, 12)
    assert run_one_by_one(texts, before).differences(execute("\n".join(texts), before))[:1] == []
    assert translate(assemble("\n".join(texts))).source.count(" = products(") == 1
    texts[1] = "v_mov_b32_e32 v12, 0"
    assert translate(assemble("\n".join(texts))).source.count(" = products(") == 2


def test_scaled_and_plain_products_on_one_accumulator():
    """Only instructions of one name multiply together."""
    plain = "v_mfma_f32_16x16x128_f8f6f4"
    before = operands("mixed", SCALED, True, 0, 10, 20, 30, c=40)
    before.v[200:202] = 0x81818181
    texts = [text_of(plain, 40, 0, 10, 40), text_of(SCALED, 40, 20, 30, 40)]
    assert run_one_by_one(texts, before).differences(execute("\n".join(texts), before))[:1] == []
