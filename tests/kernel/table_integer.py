# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Vector instructions on integers and bits, and all integer comparisons."""

from __future__ import annotations

import operator
from collections.abc import Callable

from tests.kernel.instruction_rows import Row, sdwa, spell
from tests.kernel.table_scalar import lowest_one, reverse, signed, signs_above, zeros_above

W32, W64 = (1 << 32) - 1, (1 << 64) - 1


def _row(
    name: str, results: str, sources: str, encoding: str, reference: Callable, *more: str, clamp: bool = False
) -> Row:
    return Row(name, results, sources, reference, spell(results, sources, encoding, clamp=clamp) + more)


def permute_bytes(high: int, low: int, selector: int) -> int:
    """Each selector byte picks one of eight bytes, a sign fill of an odd byte, 0x00 or 0xff."""
    source = (high << 32 | low).to_bytes(8, "little")
    out = []
    for choice in selector.to_bytes(4, "little"):
        if choice <= 7:
            out.append(source[choice])
        elif choice <= 11:
            out.append(0xFF if source[2 * (choice - 8) + 1] & 0x80 else 0)
        else:
            out.append(0 if choice == 12 else 0xFF)
    return int.from_bytes(bytes(out), "little")


def truth_table(a: int, b: int, c: int, table: int, width: int) -> int:
    """Bit by bit: entry a * 4 + b * 2 + c of the table."""
    bits = (table >> ((a >> n & 1) * 4 + (b >> n & 1) * 2 + (c >> n & 1)) & 1 for n in range(width))
    return sum(bit << n for n, bit in enumerate(bits))


def signed_field(value: int, offset: int, size: int) -> int:
    offset, size = offset % 32, size % 32
    return signed(value >> offset, size) if size else 0


def carry(kind: str) -> Callable:
    """Result and carry or borrow of add, sub and subrev, with a carry in where the mask is given."""

    def evaluate(a: int, b: int, c: int = 0) -> tuple[int, bool]:
        if kind == "add":
            return a + b + c, a + b + c > W32
        a, b = (b, a) if kind == "subrev" else (a, b)
        return a - b - c, a - b - c < 0

    return evaluate


def multiply_add_64(is_signed: bool) -> Callable:
    """64-bit multiply-add; the second result is bit 64 of the exact sum in two's complement."""
    top = 64

    def evaluate(a: int, b: int, c: int) -> tuple[int, int]:
        total = a * b + c
        return total, total >> top & 1

    return evaluate


_WORD1, _BYTE0, _BYTE1, _BYTE3 = "WORD_1", "BYTE_0", "BYTE_1", "BYTE_3"
_CARRY_IN = {"add": "v_addc_co_u32", "sub": "v_subb_co_u32", "subrev": "v_subbrev_co_u32"}
_CARRY_ROWS = [
    Row(
        f"v_{kind}_co_u32", "u32 mask", "u32 u32", carry(kind),
        ("_e32 v12, vcc, v1, v5", "_e32 v12, vcc, s3, v5", "_e32 v12, vcc, 0x1000, v5", "_e32 v5, vcc, -4, v5",
         "_e64 v12, s[20:21], v1, s3", "_e64 v1, s[4:5], v1, v1",
         "_e64 v12, s[20:21], -3, v5", "_e64 v12, s[20:21], s3, v5"),
    )
    for kind in _CARRY_IN
] + [
    Row(
        name, "u32 mask", "u32 u32 mask", carry(kind),
        ("_e32 v12, vcc, v1, v5, vcc", "_e32 v12, vcc, 0, v5, vcc", "_e32 v5, vcc, -3, v5, vcc",
         "_e64 v12, s[20:21], v1, v5, s[8:9]", "_e64 v12, s[8:9], 0, 0, s[8:9]", "_e64 v1, vcc, v1, v5, s[8:9]",
         "_e64 v12, s[20:21], 0, v5, vcc"),
    )
    for kind, name in _CARRY_IN.items()
]  # fmt: skip

_ORDER = {
    "lt": operator.lt, "eq": operator.eq, "le": operator.le, "gt": operator.gt, "ne": operator.ne, "ge": operator.ge
}  # fmt: skip
COMPARE_ROWS = [
    Row(f"v_cmp_{name}_{kind}", "mask", f"{kind} {kind}", operation,
        spell("mask", f"{kind} {kind}", "vopc") + ("_e32 vcc, 0xc0340000, v[6:7]",) * (kind == "i64"))
    for kind in ("u32", "i32", "u64", "i64", "u16", "i16")
    for name, operation in _ORDER.items()
] + [
    Row(
        f"v_cmp_{name}_u32", "mask", "u32 u32", _ORDER[name],
        ("_sdwa s[20:21], v1, s3 src0_sel:BYTE_0 src1_sel:DWORD",
             "_sdwa s[20:21], v1, v5 src0_sel:BYTE_0 src1_sel:DWORD",
         "_sdwa vcc, v1, v5 src0_sel:BYTE_3 src1_sel:WORD_1"),
    )
    for name in ("eq", "ne")
]  # fmt: skip

ROWS = [
    *_CARRY_ROWS,
    # moves and selections
    _row("v_mov_b32", "b32", "b32", "vop1", lambda a: a, "_e32 v12, 1.0", "_e32 v12, exec_lo", "_e32 v12, m0"),
    Row("v_mov_b32", "b32", "b32", lambda a: a,
        (sdwa("v1 WORD_1"), sdwa("sext(v1) BYTE_2"), sdwa("v1 BYTE_1",
             sel="dst_sel:BYTE_2 dst_unused:UNUSED_PRESERVE"))),
    _row("v_mov_b64", "b64", "b64", "vop1", lambda a: a, "_e32 v[14:15], 0x89abcdef", "_e32 v[14:15], 1.0"),
    Row("v_cndmask_b32", "b32", "b32 b32 mask", lambda a, b, m: b if m else a,
        ("_e32 v12, v1, v5, vcc", "_e32 v12, 2.0, v5, vcc", "_e32 v5, -3, v5, vcc", "_e64 v12, v1, v5, s[8:9]",
         "_e64 v12, v1, 0, vcc", "_e64 v12, 0, 1, s[8:9]", "_e64 v12, 0, v5, s[8:9]", "_e64 v1, v1, 1.0, s[8:9]",
              "_e64 v12, 5, -5, vcc",
         "_sdwa v12, v1, v5, vcc dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD")),
    Row("v_cndmask_b32", "f32", "f32 f32 mask", lambda a, b, m: b if m else a,
        ("_e64 v12, -v1, v5, s[8:9]", "_e64 v12, v1, |v5|, vcc")),
    # addition and multiplication
    _row("v_add_u32", "u32", "u32 u32", "vop2", operator.add, sdwa(f"v1 {_WORD1}", "v5 DWORD"),
         "_e64 v12, v1, 32 clamp",
         clamp=True),
    _row("v_sub_u32", "u32", "u32 u32", "vop2", operator.sub, "_e64 v12, v1, 1 clamp", clamp=True),
    _row("v_subrev_u32", "u32", "u32 u32", "vop2", lambda a, b: b - a, clamp=True),
    _row("v_mul_lo_u32", "u32", "u32 u32", "vop3", operator.mul),
    _row("v_mul_hi_u32", "u32", "u32 u32", "vop3", lambda a, b: a * b >> 32),
    _row("v_mul_hi_i32", "i32", "i32 i32", "vop3", lambda a, b: a * b >> 32),
    _row("v_mul_u32_u24", "u32", "u32 u32", "vop2", lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
         sdwa("v1 WORD_0", "s3 DWORD")),
    _row("v_mul_hi_u32_u24", "u32", "u32 u32", "vop2", lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 32),
    _row("v_mul_i32_i24", "i32", "b32 b32", "vop2", lambda a, b: signed(a, 24) * signed(b, 24)),
    _row("v_mad_u32_u24", "u32", "u32 u32 u32", "vop3", lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c),
    _row("v_mad_i32_i24", "i32", "b32 b32 i32", "vop3", lambda a, b, c: signed(a, 24) * signed(b, 24) + c),
    Row("v_mad_u64_u32", "u64 mask", "u32 u32 u64", multiply_add_64(False),
        (" v[14:15], s[20:21], v1, v5, v[10:11]", " v[14:15], vcc, v1, s3, v[14:15]", " v[14:15], s[20:21], v1, 3, 0",
         " v[2:3], s[20:21], v2, v3, v[2:3]", " v[14:15], s[20:21], s3, 24, v[10:11]",
              " v[14:15], s[20:21], v1, v5, s[8:9]",
         " v[14:15], s[20:21], s3, v5, 0", " v[14:15], s[20:21], s3, v5, v[10:11]",
              " v[14:15], s[20:21], v1, 3, v[10:11]",
         " v[14:15], s[20:21], v1, s3, 0", " v[14:15], s[20:21], v1, v5, 0")),
    Row("v_mad_i64_i32", "i64 mask", "i32 i32 i64", multiply_add_64(True),
        (" v[14:15], s[20:21], v1, v5, v[10:11]", " v[14:15], vcc, v1, -3, v[14:15]",
             " v[2:3], s[20:21], v2, v3, v[2:3]")),
    _row("v_add3_u32", "u32", "u32 u32 u32", "vop3", lambda a, b, c: a + b + c),
    _row("v_xad_u32", "u32", "u32 u32 u32", "vop3", lambda a, b, c: (a ^ b) + c),
    _row("v_sad_u32", "u32", "u32 u32 u32", "vop3", lambda a, b, c: abs(a - b) + c),
    # shifts; 32-bit counts are modulo 32, the count of v_lshl_add_u64 modulo 8
    _row("v_lshlrev_b32", "b32", "b32 b32", "vop2", lambda n, a: a << n % 32, sdwa("v1 DWORD", "v5 BYTE_0")),
    _row("v_lshrrev_b32", "b32", "b32 b32", "vop2", lambda n, a: a >> n % 32),
    _row("v_ashrrev_i32", "i32", "b32 i32", "vop2", lambda n, a: a >> n % 32),
    _row("v_lshlrev_b64", "b64", "b32 b64", "vop3", lambda n, a: a << n % 64),
    _row("v_lshrrev_b64", "b64", "b32 b64", "vop3", lambda n, a: a >> n % 64),
    _row("v_ashrrev_i64", "i64", "b32 i64", "vop3", lambda n, a: a >> n % 64),
    _row("v_lshl_add_u32", "u32", "u32 u32 u32", "vop3", lambda a, n, c: (a << n % 32) + c),
    _row("v_add_lshl_u32", "u32", "u32 u32 u32", "vop3", lambda a, b, n: (a + b) << n % 32),
    _row("v_lshl_or_b32", "b32", "b32 b32 b32", "vop3", lambda a, n, c: a << n % 32 | c),
    _row("v_lshl_add_u64", "u64", "u64 u32 u64", "vop3", lambda a, n, c: (a << n % 8) + c,
         " v[14:15], v[2:3], 2, s[6:7]"),
    _row("v_alignbit_b32", "b32", "b32 b32 b32", "vop3", lambda a, b, n: (a << 32 | b) >> n % 32),
    _row("v_alignbyte_b32", "b32", "b32 b32 b32", "vop3", lambda a, b, n: (a << 32 | b) >> 8 * (n % 4)),
    # logic and bit fields
    _row("v_not_b32", "b32", "b32", "vop1", operator.invert),
    _row("v_and_b32", "b32", "b32 b32", "vop2", operator.and_, sdwa("sext(v1) WORD_1", "s3 DWORD")),
    _row("v_or_b32", "b32", "b32 b32", "vop2", operator.or_, sdwa("s3 DWORD", "v5 BYTE_0"), sdwa("v1 DWORD",
         "v5 WORD_0")),
    _row("v_xor_b32", "b32", "b32 b32", "vop2", operator.xor),
    _row("v_xnor_b32", "b32", "b32 b32", "vop2", lambda a, b: ~(a ^ b)),
    _row("v_and_or_b32", "b32", "b32 b32 b32", "vop3", lambda a, b, c: a & b | c),
    _row("v_or3_b32", "b32", "b32 b32 b32", "vop3", lambda a, b, c: a | b | c),
    *(
        Row("v_bitop3_b32", "b32", "b32 b32 b32", lambda a, b, c, t=table: truth_table(a, b, c, t, 32),
            tuple(f" {text} bitop3:{table:#x}" for text in ("v12, v1, v5, v8", "v8, s3, v5, 32", "v12, v1, 8, -1",
                 "v12, v1, s3, v8", "v12, v1, v5, s3",
                                                                  "v12, v1, v5, -2", "v12, v1, 8, v8",
                                                                       "v12, s3, v5, v8")))
        for table in (0x36, 0x6C, 0xC8, 0xF8, 0x01, 0x7F)
    ),
    _row("v_bfi_b32", "b32", "b32 b32 b32", "vop3", lambda m, a, b: m & a | ~m & b),
    _row("v_bfm_b32", "b32", "b32 b32", "vop3", lambda n, at: ((1 << n % 32) - 1) << at % 32),
    _row("v_bfe_u32", "u32", "u32 u32 u32", "vop3", lambda a, at, n: a >> at % 32 & ((1 << n % 32) - 1),
         " v12, v1, 4, 2"),
    _row("v_bfe_i32", "i32", "i32 u32 u32", "vop3", signed_field, " v12, v1, 0, 1"),
    _row("v_perm_b32", "b32", "b32 b32 b32", "vop3", permute_bytes, " v12, 0, s3, v8"),
    _row("v_bfrev_b32", "b32", "b32", "vop1", lambda a: reverse(a, 32), "_e32 v12, 1"),
    _row("v_ffbh_u32", "i32", "b32", "vop1", lambda a: zeros_above(a, 32)),
    _row("v_ffbh_i32", "i32", "i32", "vop1", signs_above),
    _row("v_ffbl_b32", "i32", "b32", "vop1", lowest_one),
    _row("v_bcnt_u32_b32", "u32", "b32 u32", "vop3", lambda a, b: bin(a).count("1") + b, " v12, v1, 0"),
    _row("v_mbcnt_lo_u32_b32", "u32", "b32 u32 lane", "vop3",
         lambda m, b, lane: b + bin(m & ((1 << lane) - 1) & W32).count("1"), " v12, exec_lo, 0", " v12, -1, v1"),
    _row("v_mbcnt_hi_u32_b32", "u32", "b32 u32 lane", "vop3",
         lambda m, b, lane: b + bin(m & ((1 << max(lane - 32, 0)) - 1)).count("1"), " v12, exec_hi, v1",
              " v12, -1, v1"),
    # order
    _row("v_min_u32", "u32", "u32 u32", "vop2", min),
    _row("v_max_u32", "u32", "u32 u32", "vop2", max),
    _row("v_min_i32", "i32", "i32 i32", "vop2", min),
    _row("v_max_i32", "i32", "i32 i32", "vop2", max),
    _row("v_min3_u32", "u32", "u32 u32 u32", "vop3", min),
    _row("v_max3_u32", "u32", "u32 u32 u32", "vop3", max),
    _row("v_min3_i32", "i32", "i32 i32 i32", "vop3", min),
    _row("v_max3_i32", "i32", "i32 i32 i32", "vop3", max),
    _row("v_med3_u32", "u32", "u32 u32 u32", "vop3", lambda *v: sorted(v)[1]),
    _row("v_med3_i32", "i32", "i32 i32 i32", "vop3", lambda *v: sorted(v)[1], " v12, s3, 4, 24"),
    # accumulation registers; v256 on in the register file
    *(
        Row(f"v_accvgpr_{name}_b32", "b32", "b32", lambda a: a, forms)
        for name, forms in (
            ("read", (" v12, a3",)), ("write", (" a0, v1", " a0, 0", " a0, s3", " a1, -4.0")), ("mov", (" a1, a0",)),
        )
    ),
]  # fmt: skip
