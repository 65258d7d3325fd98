# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What a GEMM refuses and what it does with odd operands: orders of scales, encodings, zeros, NaN, foreign rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.gemm import GemmOp, preshuffle_b, quantize_1x128, quantize_mxfp8
from mori_gemm_ar.layout import Recipe
from tests.kernel.gemm_data import FP8, check, make, op_for, random_operands

M, N, K = 4, 128, 256


def ones(rows: int) -> torch.Tensor:
    return torch.ones(rows, K).to(FP8)


def row_scales() -> torch.Tensor:
    """[M, K/128] with a_scale[m] = (2^m, 4 * 2^m): rows of C are 640 * 2^m."""
    powers = torch.exp2(torch.arange(M, dtype=torch.float32))
    return torch.stack([powers, 4 * powers], dim=1)


B_SCALE = torch.ones(1, 2)
EXPECTED = (640 * torch.exp2(torch.arange(M, dtype=torch.float32)))[:, None].expand(M, N)


def multiply(a_scale: torch.Tensor, b_layout: str = "row") -> torch.Tensor:
    return op_for(Recipe.BLOCKSCALE, N, K, b_layout)(ones(M), ones(N), a_scale, B_SCALE)


# --- orders of the A scales ---


@pytest.mark.parametrize(
    "a_scale",
    [row_scales().t().contiguous(), row_scales().t().contiguous().t(), row_scales().t().contiguous().reshape(-1)],
    ids=["k-block-major", "column-major", "flat"],
)
def test_orders_that_cannot_be_misread(a_scale: torch.Tensor) -> None:
    assert torch.equal(multiply(a_scale).float(), EXPECTED)


def test_row_by_row_is_refused_with_both_readings() -> None:
    with pytest.raises(ConfigError, match=r"a_scale\.stride.*row by row is one reading.*K block by K block the other"):
        multiply(row_scales())


def test_a_square_is_refused() -> None:
    with pytest.raises(ConfigError, match="must not be square"):
        op_for(Recipe.BLOCKSCALE, N, K, "row")(ones(2), ones(N), torch.ones(2, 2), B_SCALE)


def test_one_row_reads_alike_both_ways() -> None:
    op, scales = op_for(Recipe.BLOCKSCALE, N, K, "row"), torch.tensor([[2.0, 3.0]])
    for a_scale in (scales, scales.t().contiguous(), scales.reshape(-1)):
        assert (op(ones(1), ones(N), a_scale, B_SCALE) == 640).all()


@pytest.mark.parametrize(
    ("a_scale", "message"),
    [
        (torch.ones(2, 4, dtype=torch.bfloat16), "a_scale.dtype=torch.bfloat16 must be torch.float32"),
        (torch.ones(2, 4, dtype=torch.uint8), "a_scale.dtype=torch.uint8 must be torch.float32"),
        (torch.ones(4, 1), r"a_scale.shape=\(4, 1\) must be \(2, 4\)"),
        (torch.ones(9), r"a_scale.shape=\(9,\) must be"),
        (torch.ones(1, 2), r"a_scale.shape=\(1, 2\) must be"),
        (torch.ones(2, 4, device="meta"), "a_scale.device=meta must be cpu"),
        (torch.ones(2, 8)[:, ::2], "a_scale.stride"),
        (None, "a_scale=NoneType must be a torch.Tensor"),
    ],
)
def test_wrong_a_scales_are_refused(a_scale: torch.Tensor, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        multiply(a_scale)


def test_swapped_scales_are_refused() -> None:
    op = op_for(Recipe.BLOCKSCALE, N, K, "row")
    with pytest.raises(ConfigError, match=r"a_scale.shape=\(1, 2\)"):
        op(ones(M), ones(N), B_SCALE, row_scales().t().contiguous())


def test_e8m0_scales_are_exponents() -> None:
    e8m0 = getattr(torch, "float8_e8m0fnu", None)
    op = op_for(Recipe.MXFP8, N, K, "row")
    a_scale, b_scale = torch.full((8, 1, 16, 4), 128, dtype=torch.uint8), torch.full((4, 8), 127, dtype=torch.uint8)
    assert (op(ones(M), ones(N), a_scale, b_scale) == 512).all()
    if e8m0 is not None:
        assert (op(ones(M), ones(N), a_scale.view(e8m0), b_scale.view(e8m0)) == 512).all()
    with pytest.raises(ConfigError, match=r"b_scale.dtype=torch.float32 must be torch.uint8"):
        op(ones(M), ones(N), a_scale, torch.ones(4, 8))


# --- the operands ---


def test_the_order_of_b_is_what_the_caller_says() -> None:
    operands = random_operands(Recipe.BLOCKSCALE, M, N, K, 1)
    out = [op_for(Recipe.BLOCKSCALE, N, K, order) for order in ("row", "preshuffled")]
    results = [operands.run(op) for op in out]
    assert torch.equal(results[0], results[1])
    swapped = out[0](operands.a, preshuffle_b(operands.b), operands.a_scale, operands.b_scale)
    assert not torch.equal(swapped, results[0])


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize(
    ("convert", "message"),
    [
        (lambda t: t.view(torch.uint8).view(torch.float8_e4m3fnuz), "fnuz must be torch.float8_e4m3fn; its values"),
        (lambda t: t.float().to(torch.float8_e5m2), "float8_e5m2 must be torch.float8_e4m3fn; quantise"),
        (lambda t: t.bfloat16(), "bfloat16 must be torch.float8_e4m3fn"),
        (lambda t: t.view(torch.uint8), "uint8 must be torch.float8_e4m3fn"),
        (lambda t: t[:, :128], "shape="),
        (lambda t: t.t().contiguous().t(), "stride"),
        (lambda t: torch.empty(t.numel() + 16, dtype=torch.uint8)[1 : 1 + t.numel()].view(FP8).view(t.shape), "align"),
        (lambda t: t.to("meta"), "device=meta must be cpu"),
        (lambda t: t[None], "shape="),
        (lambda t: [1.0], "must be a torch.Tensor"),
    ],
)
def test_wrong_operands_are_refused(name: str, convert, message: str) -> None:
    operands = {"a": ones(M), "b": ones(N)}
    operands[name] = convert(operands[name])
    with pytest.raises(ConfigError, match=f"{name}.*{message}"):
        op_for(Recipe.BLOCKSCALE, N, K, "row")(operands["a"], operands["b"], torch.ones(2, M), B_SCALE)


def test_wrong_out_is_refused() -> None:
    op, scale = op_for(Recipe.BLOCKSCALE, N, K, "row"), torch.ones(2, M)
    wrong = (
        torch.empty(M, N),
        torch.empty(M + 1, N, dtype=torch.bfloat16),
        torch.empty(N, M, dtype=torch.bfloat16).t(),
    )
    for out in wrong:
        with pytest.raises(ConfigError, match="out"):
            op(ones(M), ones(N), scale, B_SCALE, out)
    shared = torch.zeros(M * N * 2, dtype=torch.uint8)
    with pytest.raises(ConfigError, match="overlap"):
        op(shared[: M * K].view(FP8).view(M, K), ones(N), scale, B_SCALE, shared.view(torch.bfloat16).view(M, N))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 20}, "n=20 must be a multiple of 16"),
        ({"n": 0}, "n=0 must be one of"),
        ({"k": 64}, "k=64 must be one of"),
        ({"k": 192}, "k=192 must be a multiple of 128"),
        ({"quant": "BlockScale"}, "quant='BlockScale' must be one of 'ptpc', 'blockscale', 'mxfp8'"),
        ({"b_layout": "shuffled"}, "b_layout='shuffled' must be one of 'row', 'preshuffled'"),
        ({"device": "cuda"}, "device='cuda' must be one of"),
    ],
)
def test_create_names_the_rule(change: dict, message: str) -> None:
    arguments = {"n": 16, "k": 128, "quant": "ptpc", "b_layout": "row", "device": "emulated"} | change
    with pytest.raises(ConfigError, match=message):
        GemmOp.create(**arguments)


def test_no_rows() -> None:
    out = op_for(Recipe.BLOCKSCALE, N, K, "row")(ones(0), ones(N), torch.ones(2, 0), B_SCALE)
    assert out.shape == (0, N)


def test_the_documented_example_runs() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "gemm.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict = {}
    exec(example, names)
    exact = names["x"].float() @ names["w"].t()
    assert float((names["c"].float() - exact).norm() / exact.norm()) < 0.06


def test_warmup_runs_every_kernel() -> None:
    op_for(Recipe.MXFP8, N, K, "row").warmup()


# --- scales at the edges ---


@pytest.mark.parametrize("m", [4, 130])
@pytest.mark.parametrize(
    "values", [(0.0, 1.0), (1.0, 0.0), (1e-40, 1.0), (1e30, 1e-30), (1e38, 1e-38), (2.0**-149, 1.0)]
)
def test_block_scales_with_a_finite_product(values: tuple[float, float], m: int) -> None:
    g = torch.Generator().manual_seed(4)
    a, b = ((torch.randn(rows, K, generator=g) * 16).to(FP8) for rows in (m, N))
    a_scale, b_scale = torch.ones(m, 2), torch.ones(1, 2)
    if max(values) > 1:  # neither factor alone leaves room for the sum
        a_scale[:] = torch.tensor(values)
        b_scale = 1 / torch.tensor([values])
    else:
        a_scale[0], a_scale[1] = torch.tensor(values), torch.tensor(values[::-1])
    operands = make(Recipe.BLOCKSCALE, a, b, a_scale, b_scale)
    out = operands.run(op_for(Recipe.BLOCKSCALE, N, K, "row"))
    assert torch.isfinite(out).all()
    check(out, operands, K)


@pytest.mark.parametrize("m", [4, 130])
def test_an_infinite_or_nan_scale_stays_in_its_row(m: int) -> None:
    op, operands = op_for(Recipe.BLOCKSCALE, N, K, "row"), random_operands(Recipe.BLOCKSCALE, m, N, K, 6)
    clean = operands.run(op)
    for value in (float("nan"), float("inf")):
        operands.a_scale[1, 2] = value
        out = operands.run(op)
        assert not torch.isfinite(out[2]).any()
        rest = torch.arange(m) != 2
        assert torch.equal(out[rest], clean[rest])


# --- quantising ---


@pytest.mark.parametrize("k", [128, 384, 256])
@pytest.mark.parametrize("amax", [1e-35, 1e-36, 1e-38, 1e-40, 1e-44])
@pytest.mark.parametrize("recipe", [Recipe.BLOCKSCALE, Recipe.MXFP8], ids=lambda r: r.value)
def test_quantise_edges(recipe: Recipe, amax: float, k: int) -> None:
    quantise = quantize_1x128 if recipe is Recipe.BLOCKSCALE else quantize_mxfp8
    x = torch.zeros(5, k)
    x[1] = torch.randn(k, generator=torch.Generator().manual_seed(1))
    x[2, 7] = amax
    x[3], x[4] = x[1], x[1]
    x[3, 5], x[4, 9] = float("nan"), float("inf")
    x = x.bfloat16()
    op = op_for(recipe, 16, k, "row")
    data, scale = op.quantize(x)
    reference, reference_scale = quantise(x)
    finite = ~torch.isnan(reference.float())
    assert torch.equal(torch.isnan(data.float()), ~finite)
    assert torch.equal(data.view(torch.uint8)[finite], reference.view(torch.uint8)[finite])
    assert torch.equal(torch.nan_to_num(scale.float(), nan=-1.0), torch.nan_to_num(reference_scale.float(), nan=-1.0))
    assert torch.isfinite(data[:3].float()).all()
    alone, _ = op.quantize(x[1:2].contiguous())
    assert torch.equal(alone.view(torch.uint8), data[1:2].view(torch.uint8))

    b, b_scale = ones_b(k), torch.ones(1, k // 128) if recipe is Recipe.BLOCKSCALE else None
    b_scale = torch.full((1, k // 32), 127, dtype=torch.uint8) if b_scale is None else b_scale
    out = op(data, b, scale, b_scale)
    assert (out[0] == 0).all()
    assert torch.isfinite(out[:3]).all()
    # Within fp8 rounding, or zero where the floor of the scale is documented.
    assert float(out[2].double().abs().max()) <= 1.07 * float(x[2, 7])
    assert not torch.isfinite(out[3:]).any()


def ones_b(k: int) -> torch.Tensor:
    return torch.ones(16, k).to(FP8)


def test_widths_that_no_block_divides_are_refused() -> None:
    for k in (13, 192):
        with pytest.raises(ConfigError, match=f"k={k} must be"):
            quantize_1x128(torch.ones(5, k))
        with pytest.raises(ConfigError, match=f"k={k} must be"):
            quantize_mxfp8(torch.ones(5, k))


# --- rows of others ---


@pytest.mark.parametrize("recipe", list(Recipe), ids=lambda r: r.value)
def test_an_earlier_call_leaves_nothing_behind(recipe: Recipe) -> None:
    op, first = op_for(recipe, 256, 256), random_operands(recipe, 128, 256, 256, 1)
    first.a = torch.full((128, 256), 0x7E, dtype=torch.uint8)
    first.a[::3] = 0x7F
    first.a = first.a.view(FP8)
    first.a_scale.fill_(250 if recipe is Recipe.MXFP8 else 1e30)
    fresh = GemmOp.create(n=256, k=256, quant=recipe, b_layout="preshuffled", device="emulated")
    for m in (1, 3, 15, 17, 127):
        second = random_operands(recipe, m, 256, 256, m)
        alone = second.run(fresh)
        first.run(op)
        memory = torch.full((m + 1, 256), 5.0, dtype=torch.bfloat16)
        second.run(op, memory[:m])
        assert torch.equal(memory[:m].view(torch.int16), alone.view(torch.int16))
        assert (memory[m] == 5).all()


@pytest.mark.parametrize("recipe", list(Recipe), ids=lambda r: r.value)
def test_a_nan_row_stays_alone(recipe: Recipe) -> None:
    op, operands = op_for(recipe, 256, 256), random_operands(recipe, 17, 256, 256, 2)
    clean = operands.run(op)
    operands.a.view(torch.uint8)[5] = 0xFF
    out = operands.run(op)
    assert torch.isnan(out[5]).all()
    rest = torch.arange(17) != 5
    assert torch.equal(out[rest], clean[rest])
