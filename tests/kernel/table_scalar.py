# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Scalar instructions: moves, integer arithmetic, logic, bit fields, comparisons."""

from __future__ import annotations

import operator
from collections.abc import Callable

from tests.kernel.instruction_rows import Row, scalar

W32, W64 = (1 << 32) - 1, (1 << 64) - 1


def _row(name: str, results: str, sources: str, reference: Callable, *more: str, forms: tuple[str, ...] = ()) -> Row:
    return Row(name, results, sources, reference, (forms or scalar(results, sources)) + more)


def signed(value: int, width: int) -> int:
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


def with_condition(formula: Callable[..., int], width: int) -> Callable:
    """Result and SCC = result is not zero."""
    return lambda *v: (formula(*v), formula(*v) & ((1 << width) - 1) != 0)


def reverse(value: int, width: int) -> int:
    return int(f"{value:0{width}b}"[::-1], 2)


def lowest_one(value: int) -> int:
    return (value & -value).bit_length() - 1


def zeros_above(value: int, width: int) -> int:
    return width - value.bit_length() if value else -1


def signs_above(value: int) -> int:
    """Equal bits from the top, -1 when all are equal."""
    return -1 if value in (0, -1) else 32 - (value if value > 0 else ~value).bit_length()


def field(value: int, control: int, width: int, is_signed: bool) -> int:
    """Offset in the low bits, size in bits 22:16; `value` carries its sign."""
    offset, size = control & (width - 1), control >> 16 & 0x7F
    cut = value >> offset & ((1 << size) - 1)
    return signed(cut, size) if is_signed and 0 < size <= width else cut


_BITWISE = {
    "and": operator.and_, "or": operator.or_, "xor": operator.xor, "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b, "nand": lambda a, b: ~(a & b), "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}  # fmt: skip
_SAVE = {**_BITWISE, "andn1": lambda a, b: ~a & b, "orn1": lambda a, b: ~a | b}
_ORDER = {
    "eq": operator.eq, "lg": operator.ne, "gt": operator.gt, "ge": operator.ge, "lt": operator.lt, "le": operator.le
}  # fmt: skip

_LOGIC_ROWS = [
    _row(f"s_{name}_b{width}", f"b{width} scc", f"b{width} b{width}", with_condition(formula, width), *more)
    for name, formula in _BITWISE.items()
    for width, more in ((32, ()), (64, (" exec, exec, s[8:9]", " vcc, vcc, exec", " s[20:21], exec, -1")))
]
_SAVE_ROWS = [
    Row(
        f"s_{name}_saveexec_b64",
        "b64 exec scc",
        "b64 exec",
        lambda s, e, formula=formula: (e, formula(s, e) & W64, formula(s, e) & W64 != 0),
        (" s[20:21], s[8:9]", " s[20:21], vcc", " s[8:9], s[8:9]", " vcc, vcc"),
    )
    for name, formula in _SAVE.items()
]
_COMPARE_ROWS = [
    Row(f"s_cmp{k}_{name}_{kind}", "scc", f"{kind} {kind}", operation, forms)
    for name, operation in _ORDER.items()
    for kind in ("i32", "u32")
    for k, forms in (("", (" s3, s5", " s3, -9", " 0x80000000, s5", " s3, s3", " m0, 0x7fff")),)
] + [
    Row(f"s_cmp_{name}_u64", "scc", "u64 u64", _ORDER[name], (" s[8:9], s[10:11]", " vcc, 0", " exec, -1"))
    for name in ("eq", "lg")
]
# The 16-bit constant is sign-extended for signed comparisons and zero-extended for unsigned ones.
_COMPARE_ROWS += [
    Row(
        f"s_cmpk_{name}_{kind}",
        "scc",
        f"{kind} b32",
        lambda a, b, f=operation, kind=kind: f(a, signed(b, 16) if kind == "i32" else b & 0xFFFF),
        (" s3, 0x7f", " s3, 0x8000", " s3, 0xffff", " vcc_lo, 0x400"),
    )
    for name, operation in _ORDER.items()
    for kind in ("i32", "u32")
]

# Instructions whose last source is the 16-bit constant of the encoding.
IMMEDIATES = ("s_movk_i32", "s_cmovk_i32", "s_addk_i32", "s_mulk_i32")
ROWS = [
    *_LOGIC_ROWS, *_SAVE_ROWS, *_COMPARE_ROWS,
    # moves
    _row("s_mov_b32", "b32", "b32", lambda a: a, " m0, s3", " vcc_lo, 0", " exec_hi, s3", " s20, 1.0"),
    _row("s_mov_b64", "b64", "b64", lambda a: a, " vcc, s[8:9]", " s[20:21], 0x89abcdef", " exec, -1",
         " s[20:21], -2.0"),
    _row("s_movk_i32", "i32", "b32", lambda a: signed(a, 16), forms=(" s20, 0x7f", " s20, 0x8000", " s20, 0xffff")),
    _row("s_cmov_b32", "b32", "b32 +b32 scc", lambda a, old, scc: a if scc else old),
    _row("s_cmov_b64", "b64", "b64 +b64 scc", lambda a, old, scc: a if scc else old),
    _row("s_cmovk_i32", "i32", "b32 +i32 scc", lambda a, old, scc: signed(a, 16) if scc else old,
         forms=(" s20, 0x8001",)),
    _row("s_cselect_b32", "b32", "b32 b32 scc", lambda a, b, scc: a if scc else b, " s20, -1, 0", " s20, 0x1234567, 0",
         " s20, 1, 0x1234567"),
    _row("s_cselect_b64", "b64", "b64 b64 scc", lambda a, b, scc: a if scc else b, " vcc, -1, 0", " s[8:9], exec, 0"),
    # arithmetic: SCC is carry, borrow, signed overflow or "first operand taken"
    _row("s_add_u32", "u32 scc", "u32 u32", lambda a, b: (a + b, a + b > W32)),
    _row("s_sub_u32", "u32 scc", "u32 u32", lambda a, b: (a - b, b > a)),
    _row("s_add_i32", "i32 scc", "i32 i32", lambda a, b: (a + b, signed(a + b, 32) != a + b)),
    _row("s_sub_i32", "i32 scc", "i32 i32", lambda a, b: (a - b, signed(a - b, 32) != a - b)),
    _row("s_addc_u32", "u32 scc", "u32 u32 scc", lambda a, b, c: (a + b + c, a + b + c > W32), " s20, 0, 0"),
    _row("s_subb_u32", "u32 scc", "u32 u32 scc", lambda a, b, c: (a - b - c, b + c > a)),
    _row("s_min_u32", "u32 scc", "u32 u32", lambda a, b: (min(a, b), a < b)),
    _row("s_max_u32", "u32 scc", "u32 u32", lambda a, b: (max(a, b), a >= b)),
    _row("s_min_i32", "i32 scc", "i32 i32", lambda a, b: (min(a, b), a < b)),
    _row("s_max_i32", "i32 scc", "i32 i32", lambda a, b: (max(a, b), a >= b)),
    _row("s_mul_i32", "i32", "i32 i32", operator.mul),
    _row("s_mul_hi_u32", "u32", "u32 u32", lambda a, b: a * b >> 32),
    _row("s_mul_hi_i32", "i32", "i32 i32", lambda a, b: a * b >> 32),
    _row("s_absdiff_i32", "i32 scc", "i32 i32", with_condition(lambda a, b: abs(signed(a - b, 32)), 32)),
    _row("s_abs_i32", "i32 scc", "i32", with_condition(abs, 32)),
    _row("s_addk_i32", "i32 scc", "b32 +i32", lambda k, d: (d + signed(k, 16), signed(d + signed(k, 16),
         32) != d + signed(k, 16)),
         forms=(" s20, 0x1000", " s20, 0x8000", " s20, 0xffff")),
    _row("s_mulk_i32", "i32", "b32 +i32", lambda k, d: d * signed(k, 16), forms=(" s20, 0x60", " s20, 0x8000")),
    *(
        _row(f"s_lshl{n}_add_u32", "u32 scc", "u32 u32", lambda a, b, n=n: ((a << n) + b, (a << n) + b > W32))
        for n in (1, 2, 3, 4)
    ),
    # shifts take the count modulo the width
    _row("s_lshl_b32", "u32 scc", "u32 u32", with_condition(lambda a, b: a << b % 32, 32)),
    _row("s_lshr_b32", "u32 scc", "u32 u32", with_condition(lambda a, b: a >> b % 32, 32)),
    _row("s_ashr_i32", "i32 scc", "i32 u32", with_condition(lambda a, b: a >> b % 32, 32)),
    _row("s_lshl_b64", "u64 scc", "u64 u32", with_condition(lambda a, b: a << b % 64, 64), " s[20:21], 1, s5"),
    _row("s_lshr_b64", "u64 scc", "u64 u32", with_condition(lambda a, b: a >> b % 64, 64)),
    _row("s_ashr_i64", "i64 scc", "i64 u32", with_condition(lambda a, b: a >> b % 64, 64)),
    # bits
    _row("s_not_b32", "b32 scc", "b32", with_condition(operator.invert, 32)),
    _row("s_not_b64", "b64 scc", "b64", with_condition(operator.invert, 64), " vcc, vcc"),
    _row("s_brev_b32", "b32", "b32", lambda a: reverse(a, 32)),
    _row("s_brev_b64", "b64", "b64", lambda a: reverse(a, 64)),
    _row("s_bcnt0_i32_b32", "i32 scc", "b32", with_condition(lambda a: bin(a ^ W32).count("1"), 32)),
    _row("s_bcnt1_i32_b32", "i32 scc", "b32", with_condition(lambda a: bin(a).count("1"), 32)),
    _row("s_bcnt0_i32_b64", "i32 scc", "b64", with_condition(lambda a: bin(a ^ W64).count("1"), 32)),
    _row("s_bcnt1_i32_b64", "i32 scc", "b64", with_condition(lambda a: bin(a).count("1"), 32), " s20, exec"),
    _row("s_ff0_i32_b32", "i32", "b32", lambda a: lowest_one(a ^ W32)),
    _row("s_ff1_i32_b32", "i32", "b32", lowest_one),
    _row("s_ff0_i32_b64", "i32", "b64", lambda a: lowest_one(a ^ W64)),
    _row("s_ff1_i32_b64", "i32", "b64", lowest_one, " s20, exec"),
    _row("s_flbit_i32_b32", "i32", "b32", lambda a: zeros_above(a, 32)),
    _row("s_flbit_i32_b64", "i32", "b64", lambda a: zeros_above(a, 64)),
    _row("s_flbit_i32", "i32", "i32", signs_above),
    _row("s_sext_i32_i8", "i32", "b32", lambda a: signed(a, 8)),
    _row("s_sext_i32_i16", "i32", "b32", lambda a: signed(a, 16)),
    _row("s_bfe_u32", "u32 scc", "u32 u32", with_condition(lambda a, c: field(a, c, 32, False), 32),
         " s20, s3, 0xd0003"),
    _row("s_bfe_i32", "i32 scc", "i32 u32", with_condition(lambda a, c: field(a, c, 32, True), 32),
         " s20, s3, 0x80004"),
    _row("s_bfe_u64", "u64 scc", "u64 u32", with_condition(lambda a, c: field(a, c, 64, False), 64)),
    _row("s_bfe_i64", "i64 scc", "i64 u32", with_condition(lambda a, c: field(a, c, 64, True), 64)),
    _row("s_bfm_b32", "b32", "b32 b32", lambda a, b: ((1 << a % 32) - 1) << b % 32),
    _row("s_pack_ll_b32_b16", "b32", "b32 b32", lambda a, b: a & 0xFFFF | b << 16),
    _row("s_pack_lh_b32_b16", "b32", "b32 b32", lambda a, b: a & 0xFFFF | b >> 16 << 16),
    _row("s_pack_hh_b32_b16", "b32", "b32 b32", lambda a, b: a >> 16 | b >> 16 << 16),
    _row("s_bitset0_b32", "b32", "b32 +b32", lambda n, d: d & ~(1 << n % 32)),
    _row("s_bitset1_b32", "b32", "b32 +b32", lambda n, d: d | 1 << n % 32),
    *(
        Row(
            f"s_bitcmp{want}_b{width}",
            "scc",
            f"b{width} b32",
            lambda a, n, width=width, want=want: (a >> n % width & 1) == want,
            (" s3, s5", " s3, 0", " 0x12345678, s5") if width == 32 else (" s[8:9], s5", " vcc, 63"),
        )
        for width in (32, 64)
        for want in (0, 1)
    ),
]  # fmt: skip
