# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""16-bit and packed vector instructions.

A 16-bit instruction clears the upper half of its destination, as LLVM relies on (`zeroesHigh16BitsOfDest`), except
those that choose halves by op_sel: they leave the other half alone.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import numpy as np
import torch

from tests.kernel import pcode_float
from tests.kernel.instruction_rows import Row, sdwa, spell
from tests.kernel.instruction_values import decode, divide, encode, exact, ieee, larger, smaller
from tests.kernel.table_float import finite_or_same
from tests.kernel.table_integer import truth_table

_FMA = exact(lambda a, b, c: a * b + c)
_OPEN_HALF = "no manual says what becomes of the upper half, and LLVM does not rely on it; it is cleared here"


def _row(name: str, results: str, sources: str, encoding: str, reference: Callable, *more: str, ulps: int = 0) -> Row:
    return Row(name, results, sources, reference, spell(results, sources, encoding, floats=True) + more, ulps)


def _op_sel(name: str, kind: str, reference: Callable, floats: bool = False) -> Row:
    """Three sources and a destination whose halves op_sel chooses."""
    texts = ["v12, v1, v5, v8", "v12, v1, s3, v8", "v12, v1, v5, s3", "v1, v1, v5, v1",
         "v12, v1, v5, v8 op_sel:[1,0,1,0]",
             "v12, v1, v5, v8 op_sel:[0,1,0,1]", "v8, v1, s3, v8 op_sel:[0,1,1,1]"]  # fmt: skip
    texts += ["v12, -v1, |v5|, v8"] if floats else []
    return Row(name, f"{kind}:sel", f"{kind} {kind} {kind}", reference, tuple(f" {text}" for text in texts))


def lanewise(formula: Callable) -> Callable:
    """A formula on both halves of its packed sources."""
    return lambda *pairs: tuple(formula(*(pair[half] for pair in pairs)) for half in (0, 1))


def _packed(name: str, kind: str, count: int, formula: Callable, *more: str, raw: str = "") -> Row:
    """A packed instruction on float16, 16-bit integers or float32."""
    pair = WIDE if kind == "f32" else NARROW
    d, names = pair[0], pair[1 : 1 + count]
    scalar = "s[8:9]" if kind == "f32" else "s3"
    ones, mixed = ",".join("1" * count), ",".join("01"[:count] if count == 2 else "010")
    flipped = ",".join(str(1 - int(bit)) for bit in mixed.split(","))
    texts = [f"{d}, {', '.join(names)}", f"{names[0]}, {', '.join(names)}", f"{d}, {', '.join([scalar, *names[1:]])}"]
    texts += [f"{d}, {', '.join(names)} op_sel_hi:[{bits}]" for bits in (mixed, flipped)]
    texts += [
        f"{d}, {', '.join(names)} op_sel:[{mixed}] op_sel_hi:[{flipped}]",
        f"{d}, {', '.join(names)} op_sel:[{ones}]",
    ]
    if kind[0] == "f":
        texts += [
            f"{d}, {', '.join(names)} neg_lo:[{mixed}] neg_hi:[{mixed}]",
            f"{d}, {', '.join(names)} neg_lo:[{ones}]",
        ]
        texts += [f"{d}, {', '.join(names)} op_sel_hi:[{mixed}] neg_lo:[{flipped}] neg_hi:[{ones}]"]
        texts += [f"{d}, {', '.join(names)} clamp"]
    sources = " ".join([f"{raw or kind}x2"] * count)
    return Row(name, f"{kind}x2", sources, lanewise(formula), tuple(f" {text}" for text in texts) + more)


WIDE = ("v[14:15]", "v[2:3]", "v[6:7]", "v[10:11]")
NARROW = ("v12", "v1", "v5", "v8")
_INTEGER_CONSTANTS = (" v12, v1, 5", " v12, v1, -3", " v12, -1, v5 op_sel_hi:[0,1]")
_COUNTS = (" v12, 3, v5", " v12, 15, v5 op_sel_hi:[0,1]")
_FLOAT_CONSTANTS = (" v12, v1, 2.0", " v12, v1, 0.5 op_sel_hi:[1,0]")

HALF_ROWS = [
    *(
        _row(name, "f16", "f16 f16", "vop2", formula)
        for name, formula in (
            ("v_add_f16", lambda a, b: a + b), ("v_sub_f16", lambda a, b: a - b), ("v_subrev_f16", lambda a, b: b - a),
            ("v_mul_f16", lambda a, b: a * b),
        )
    ),
    _row("v_max_f16", "f16", "r16 r16", "vop2", ieee(16, larger)),
    _row("v_min_f16", "f16", "r16 r16", "vop2", ieee(16, smaller)),
    _op_sel("v_fma_f16", "f16", _FMA, floats=True),
    _row("v_rcp_f16", "f16", "f16", "vop1", lambda a: divide(1.0, a), ulps=1),
    _row("v_sqrt_f16", "f16", "f16", "vop1", lambda a: math.sqrt(a) if a > 0 else a if a == 0 else math.nan, ulps=1),
    _row("v_floor_f16", "f16", "f16", "vop1", finite_or_same(math.floor)),
    _row("v_ceil_f16", "f16", "f16", "vop1", finite_or_same(math.ceil)),
    _row("v_trunc_f16", "f16", "f16", "vop1", finite_or_same(math.trunc)),
    _row("v_rndne_f16", "f16", "f16", "vop1", finite_or_same(round)),
    _row("v_cvt_f16_u16", "f16", "u16", "vop1", float),
    _row("v_cvt_f16_i16", "f16", "i16", "vop1", float),
    _row("v_add_u16", "u16", "u16 u16", "vop2", operator.add, sdwa("v1 DWORD", "v5 WORD_1"), sdwa("v1 DWORD",
         "v5 BYTE_3"),
         sdwa("v1 BYTE_1", "v5 BYTE_3", sel="dst_sel:BYTE_1 dst_unused:UNUSED_PAD"), sdwa("v1 WORD_1", "v5 DWORD"),
         sdwa("v1 DWORD", "v5 DWORD", sel="dst_sel:BYTE_1 dst_unused:UNUSED_PAD")),
    _row("v_sub_u16", "u16", "u16 u16", "vop2", operator.sub, sdwa("v1 WORD_1", "v5 DWORD"), sdwa("v1 BYTE_1",
         "v5 DWORD")),
    _row("v_subrev_u16", "u16", "u16 u16", "vop2", lambda a, b: b - a),
    _row("v_mul_lo_u16", "u16", "u16 u16", "vop2", operator.mul, sdwa("v1 BYTE_1", "v5 DWORD"), sdwa("v1 WORD_1",
         "s3 DWORD"),
         sdwa("v1 BYTE_0", "s3 DWORD"), sdwa("v1 BYTE_1", "s3 DWORD"), sdwa("v1 WORD_1", "v5 DWORD"), sdwa("v1 BYTE_0",
              "v5 DWORD"),
         sdwa("sext(v1) BYTE_2", "v5 DWORD")),
    _op_sel("v_mad_u16", "u16", lambda a, b, c: a * b + c),
    _row("v_max_u16", "u16", "u16 u16", "vop2", max),
    _row("v_min_u16", "u16", "u16 u16", "vop2", min),
    _row("v_max_i16", "i16", "i16 i16", "vop2", max),
    _row("v_min_i16", "i16", "i16 i16", "vop2", min),
    _row("v_lshlrev_b16", "u16", "u16 u16", "vop2", lambda n, a: a << n % 16),
    _row("v_lshrrev_b16", "u16", "u16 u16", "vop2", lambda n, a: a >> n % 16),
    _row("v_ashrrev_i16", "i16", "u16 i16", "vop2", lambda n, a: a >> n % 16),
    *(
        Row("v_bitop3_b16", "b16", "b16 b16 b16", lambda a, b, c, t=table: truth_table(a, b, c, t, 16),
            tuple(f" {text} bitop3:{table:#x}" for text in ("v12, v1, v5, v8", "v1, v1, v5, s3", "v8, v1, s3, v8")), 0,
                 _OPEN_HALF)
        for table in (0xEC, 0xC8, 0x36)
    ),
    Row("v_pack_b32_f16", "b32", "b16 b16", lambda a, b: a | b << 16,
        (" v12, v1, v5", " v1, v1, v5", " v12, s3, v5", " v12, v1, v5 op_sel:[1,0,0]", " v12, v1, v5 op_sel:[0,1,0]")),
]  # fmt: skip

_MIX = {"v_fma_mix_f32": "f32", "v_fma_mixlo_f16": "f16:lo", "v_fma_mixhi_f16": "f16:hi"}


def mixed_fma(narrow: bool) -> Callable:
    """One rounding to float32, then for the half results one more to float16."""

    def evaluate(a: float, b: float, c: float):
        total = _FMA(a, b, c)
        bits = encode("f32", total) if narrow else None
        return total if bits is None else decode("f32", np.array([bits], np.uint64))[0]

    return evaluate


PACKED_ROWS = [
    _packed("v_pk_add_f16", "f16", 2, lambda a, b: a + b, *_FLOAT_CONSTANTS),
    _packed("v_pk_mul_f16", "f16", 2, lambda a, b: a * b, *_FLOAT_CONSTANTS),
    _packed("v_pk_max_f16", "f16", 2, ieee(16, larger), raw="r16"),
    _packed("v_pk_min_f16", "f16", 2, ieee(16, smaller), raw="r16"),
    _packed("v_pk_fma_f16", "f16", 3, _FMA, " v12, v1, v5, 1.0"),
    _packed("v_pk_add_u16", "u16", 2, operator.add, *_INTEGER_CONSTANTS),
    _packed("v_pk_sub_u16", "u16", 2, operator.sub, *_INTEGER_CONSTANTS),
    _packed("v_pk_add_i16", "i16", 2, operator.add, *_INTEGER_CONSTANTS),
    _packed("v_pk_sub_i16", "i16", 2, operator.sub, *_INTEGER_CONSTANTS),
    _packed("v_pk_mul_lo_u16", "u16", 2, operator.mul, *_INTEGER_CONSTANTS),
    _packed("v_pk_mad_u16", "u16", 3, lambda a, b, c: a * b + c, " v12, v1, v5, -3"),
    _packed("v_pk_max_u16", "u16", 2, max, *_INTEGER_CONSTANTS),
    _packed("v_pk_min_u16", "u16", 2, min, *_INTEGER_CONSTANTS),
    _packed("v_pk_max_i16", "i16", 2, max, *_INTEGER_CONSTANTS),
    _packed("v_pk_min_i16", "i16", 2, min, *_INTEGER_CONSTANTS),
    _packed("v_pk_lshlrev_b16", "u16", 2, lambda n, a: a << n % 16, *_COUNTS),
    _packed("v_pk_lshrrev_b16", "u16", 2, lambda n, a: a >> n % 16, *_COUNTS),
    _packed("v_pk_ashrrev_i16", "i16", 2, lambda n, a: a >> n % 16, *_COUNTS),
    _packed("v_pk_add_f32", "f32", 2, lambda a, b: a + b, " v[14:15], v[2:3], 1.0 op_sel_hi:[1,0]",
            " v[14:15], v[14:15], v[2:3] op_sel_hi:[1,0] neg_lo:[0,1] neg_hi:[0,1]",
                 " v[2:3], v[2:3], v[6:7] op_sel:[0,1]",
            " v[14:15], v[2:3], v[6:7] op_sel:[0,1] neg_lo:[0,1] neg_hi:[0,1]"),
    _packed("v_pk_mul_f32", "f32", 2, lambda a, b: a * b, " v[2:3], v[2:3], v[6:7] op_sel_hi:[0,1]",
            " v[2:3], v[2:3], v[6:7] op_sel:[1,0]", " v[14:15], v[2:3], s[8:9] op_sel_hi:[1,0]",
            " v[14:15], v[2:3], 0.5 op_sel_hi:[1,0]"),
    _packed("v_pk_fma_f32", "f32", 3, _FMA, " v[10:11], v[2:3], v[6:7], v[10:11]"),
    Row("v_pk_mov_b32", "b32x2", "b32x2 b32x2", lambda a, b: (a[0], b[0]),
        (" v[14:15], v[2:3], v[6:7]", " v[14:15], v[2:3], v[6:7] op_sel:[1,0]", " v[2:3], v[2:3], v[2:3] op_sel:[1,0]",
         " v[14:15], s[8:9], v[6:7] op_sel:[0,1]", " v[6:7], v[2:3], v[6:7] op_sel:[1,1]")),
    *(
        Row(name, kind, "mix mix mix", mixed_fma(kind != "f32"),
            (" v12, v1, v5, v8 op_sel_hi:[1,1,0]", " v12, v1, v5, v8", " v12, v1, v5, neg(0)", " v12, s3, v5, neg(0)",
                 " v12, v1, v5, neg(0) op_sel_hi:[1,1,0]",
             " v12, v1, 1.0, v8 op_sel_hi:[1,1,0]", " v12, v1, 1.0, v8 op_sel_hi:[1,1,1]",
                  " v1, v1, v5, v1 op_sel_hi:[1,0,1]",
             " v12, v1, v5, v8 op_sel:[1,0,1] op_sel_hi:[1,1,1]", " v12, -v1, |v5|, v8 op_sel_hi:[1,1,0]",
             " v12, -|v1|, v5, -v8 op_sel:[1,0,0] op_sel_hi:[1,0,0] clamp"))
        for name, kind in _MIX.items()
    ),
]  # fmt: skip
# e4m3 without infinities: 0x7f and 0xff are the NaNs, and what rounds past 448 becomes one.
_E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double().tolist()


def to_e4m3(low: float, high: float) -> int:
    """Two bytes, each rounded to nearest even; a NaN keeps the sign of its source."""
    codes = [pcode_float.FORMATS["fp", 8].encode(pcode_float.from_float(abs(value))) for value in (low, high)]
    signs = [0x80 * (math.copysign(1.0, value) < 0) for value in (low, high)]
    return codes[0] | signs[0] | (codes[1] | signs[1]) << 8


FP8_ROWS = [
    Row("v_cvt_pk_fp8_f32", "b16:sel", "f32 f32", to_e4m3,
        (" v12, v1, v5", " v12, v1, v5 op_sel:[0,0,1]", " v12, v1, 0", " v1, v1, s3 op_sel:[0,0,1]",
             " v12, -v1, |v5|")),
    Row("v_cvt_pk_f32_fp8", "f32x2", "b16", lambda pair: (_E4M3[pair & 255], _E4M3[pair >> 8]),
        ("_e32 v[14:15], v1", "_e32 v[2:3], v2", "_sdwa v[14:15], v1 src0_sel:WORD_1",
             "_sdwa v[2:3], v3 src0_sel:WORD_0")),
    Row("v_cvt_f32_fp8", "f32", "b8", lambda code: _E4M3[code],
        ("_e32 v12, v1", "_e32 v1, v1", *(f"_sdwa v12, v1 src0_sel:BYTE_{n}" for n in range(4)))),
]  # fmt: skip
ROWS = HALF_ROWS + PACKED_ROWS + FP8_ROWS
