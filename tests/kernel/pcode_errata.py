# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Places where the published pseudocode does not say what the hardware does, with the corrected text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Erratum:
    """`edits` are (published, corrected) pieces of text; an empty first piece stands for the whole text."""

    reason: str
    edits: tuple[tuple[str, str], ...]

    def corrected(self, text: str) -> str:
        for old, new in self.edits:
            if old not in text:
                raise AssertionError(f"erratum {self.reason!r} no longer applies: no {old!r} in {text!r}")
            text = text.replace(old, new) if old else new
        return text


def _nearest(kind: str) -> Erratum:
    reason = "floor(x + 0.5) rounds twice: wrong for 0.49999997, odd numbers above 2**23 and the sign of zero"
    return Erratum(reason, (("", f"D0.{kind} = rndne(S0.{kind})"),))


def _fract(kind: str, one: str, below_one: str) -> Erratum:
    keep = f"if D0.{kind} == {one} then\nD0.{kind} = {below_one}\nendif"
    published = f"D0.{kind} = S0.{kind} + -floor(S0.{kind})"
    return Erratum("stays below 1 where x - floor(x) rounds up to it", ((published, f"{published};\n{keep}"),))


def _frexp(kind: str, bias: int) -> Erratum:
    reason = "the exponent field is not the exponent of a subnormal number or of zero"
    return Erratum(reason, ((f"exponent(S0.{kind}) - {bias} + 1", f"frexp_exponent(S0.{kind})"),))


def _div_scale(kind: str, one: str, wide: str, power: int) -> Erratum:
    reason = (
        "VCC is one bit per lane; d0 is s0 where no case scales it; 1/denominator is judged in its own format; "
        "and a denominator too large for its reciprocal can only be scaled down"
    )
    tiny = f"(S2.{kind} / S1.{kind} == DENORM.{kind})) then\nVCC = 0x1LL;\nif S0.{kind} == S1.{kind} then\n"
    tiny += f"// Only scale the denominator\nD0.{kind} = ldexp(S0.{kind}, "
    edits = (
        (f"{tiny}{power})", f"{tiny}-{power})"),
        (f"1.0 / {wide} == DENORM.f64", f"{one} / S1.{kind} == DENORM.{kind}"),
        ("VCC = 0x0LL", f"VCC.u64[laneId] = 1'0U;\nD0.{kind} = S0.{kind}"),
        ("VCC = 0x1LL", "VCC.u64[laneId] = 1'1U"),
    )
    return Erratum(reason, edits)


def _div_fmas(kind: str, published: str, bias: int, power: int) -> Erratum:
    reason = "undoes the scaling of div_scale, which is by 64 or 128 and by the size of the quotient up or down"
    scale = f"{published.split()[0]} ** (exponent(S2.{kind}) > {bias} ? {power} : -{power})"
    return Erratum(reason, ((published, scale),))


def _div_fixup(kind: str) -> Erratum:
    published = f"sign_out ? -abs(S0.{kind}) : abs(S0.{kind})"
    overflow = f"isNAN(S0.{kind}) ? (sign_out ? -INF.{kind} : INF.{kind}) : ({published})"
    return Erratum("an overflow inside the division arrives here as a NaN", ((published, overflow),))


_MIX = Erratum("v_fma_mix of gfx940 and later rounds once", (("in[0] * in[1] + in[2]", "fma(in[0], in[1], in[2])"),))

ERRATA = {
    "v_rndne_f16": _nearest("f16"),
    "v_rndne_f32": _nearest("f32"),
    "v_rndne_f64": _nearest("f64"),
    "v_fract_f16": _fract("f16", "16'1.0", "16'F(0x3bff)"),
    "v_fract_f32": _fract("f32", "1.0F", "32'F(0x3f7fffff)"),
    "v_fract_f64": _fract("f64", "1.0", "64'F(0x3fefffffffffffffLL)"),
    "v_frexp_exp_i16_f16": _frexp("f16", 15),
    "v_frexp_exp_i32_f32": _frexp("f32", 127),
    "v_frexp_exp_i32_f64": _frexp("f64", 1023),
    "v_div_scale_f32": _div_scale("f32", "1.0F", "64'F(S1.f32)", 64),
    "v_div_scale_f64": _div_scale("f64", "1.0", "S1.f64", 128),
    "v_div_fmas_f32": _div_fmas("f32", "2.0F ** 32", 127, 64),
    "v_div_fmas_f64": _div_fmas("f64", "2.0 ** 64", 1023, 128),
    "v_div_fixup_f32": _div_fixup("f32"),
    "v_div_fixup_f64": _div_fixup("f64"),
    "v_mad_mix_f32": _MIX,
    "v_mad_mixlo_f16": _MIX,
    "v_mad_mixhi_f16": _MIX,
    "v_pk_mov_b32": Erratum(
        "the upper word of a 64-bit source lies outside its .u32 view", (("S0.u32[", "S0["), ("S1.u32[", "S1["))
    ),
    "v_bitop3_b16": Erratum("the destination is called D", (("\nD.b16", "\nD0.b16"),)),
    "v_bitop3_b32": Erratum("the destination is called D", (("\nD.b32", "\nD0.b32"),)),
    "v_cvt_off_f32_i4": Erratum(
        "the table is not printed: sixteenths of a signed nibble", (("", "D0.f32 = i32_to_f32(32'I(S0.i4)) * 0.0625F"),)
    ),
}
