# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The oracle itself, against values worked out by hand and against NumPy's own arithmetic."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from tests.kernel import pcode
from tests.kernel.pcode import run, wave
from tests.kernel.pcode_errata import ERRATA
from tests.kernel.pcode_lang import PcodeSyntaxError, parse
from tests.kernel.pcode_values import PcodeUnsupported

pytest.importorskip(pcode.PACKAGE)

LANES = list(range(64))
INF, NAN, SNAN = 0x7F800000, 0x7FC00000, 0x7F800001


def f32(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]


def f64(value: float) -> int:
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def f16(value: float) -> int:
    return int(np.float16(value).view(np.uint16))


def words(*values: int) -> int:
    """Little-endian 32-bit words as one operand."""
    return sum(value << (32 * i) for i, value in enumerate(values))


# mnemonic, sources, other inputs, expected fields of the outcome
CASES = [
    # Scalar
    ("s_mov_b64", (0x123456789ABCDEF0,), {}, {"d0": 0x123456789ABCDEF0}),
    ("s_add_u32", (0xFFFFFFFF, 2), {}, {"d0": 1, "scc": 1}),
    ("s_addc_u32", (0xFFFFFFFF, 0), {"scc": 1}, {"d0": 0, "scc": 1}),
    ("s_add_i32", (0x7FFFFFFF, 1), {}, {"d0": 0x80000000, "scc": 1}),
    ("s_sub_u32", (1, 2), {}, {"d0": 0xFFFFFFFF, "scc": 1}),
    ("s_subb_u32", (5, 5), {"scc": 1}, {"d0": 0xFFFFFFFF, "scc": 1}),
    ("s_mul_hi_u32", (0xFFFFFFFF, 0xFFFFFFFF), {}, {"d0": 0xFFFFFFFE}),
    ("s_mul_hi_i32", (0xFFFFFFFF, 2), {}, {"d0": 0xFFFFFFFF}),
    ("s_lshl1_add_u32", (0x80000003, 5), {}, {"d0": 11, "scc": 1}),
    ("s_ashr_i32", (0x80000000, 31), {}, {"d0": 0xFFFFFFFF, "scc": 1}),
    ("s_lshr_b64", (1 << 63, 0x47), {}, {"d0": 1 << 56, "scc": 1}),
    ("s_bfe_u32", (0xABCD1234, 8 << 16 | 4), {}, {"d0": 0x23, "scc": 1}),
    ("s_bfe_u32", (0xABCD1234, 32 << 16), {}, {"d0": 0xABCD1234, "scc": 1}),
    ("s_bfe_i32", (0xF0, 4 << 16 | 4), {}, {"d0": 0xFFFFFFFF, "scc": 1}),
    ("s_bfm_b32", (4, 8), {}, {"d0": 0xF00}),
    ("s_cselect_b32", (7, 9), {"scc": 0}, {"d0": 9}),
    ("s_cmp_lg_u64", (1 << 40, 0), {}, {"scc": 1}),
    ("s_cmpk_gt_i32", (3, 0xFFFF), {}, {"scc": 1}),
    ("s_cmp_lt_i32", (0xFFFFFFFF, 0), {}, {"scc": 1}),
    ("s_movk_i32", (0x8000,), {}, {"d0": 0xFFFF8000}),
    ("s_addk_i32", (0xFFFF,), {"d0": 5}, {"d0": 4, "scc": 0}),
    ("s_abs_i32", (0xFFFFFFFB,), {}, {"d0": 5, "scc": 1}),
    ("s_brev_b32", (1,), {}, {"d0": 0x80000000}),
    ("s_bcnt1_i32_b64", (0xF0F,), {}, {"d0": 8, "scc": 1}),
    ("s_ff1_i32_b64", (1 << 37,), {}, {"d0": 37}),
    ("s_ff1_i32_b32", (0,), {}, {"d0": 0xFFFFFFFF}),
    ("s_flbit_i32_b32", (0x00800000,), {}, {"d0": 8}),
    ("s_bitset1_b32", (13,), {"d0": 1}, {"d0": 0x2001}),
    ("s_pack_ll_b32_b16", (0x11112222, 0x33334444), {}, {"d0": 0x44442222}),
    ("s_and_saveexec_b64", (0b110,), {"exec_mask": 0b011}, {"d0": 0b011, "exec_mask": 0b010, "scc": 1}),
    ("s_sext_i32_i8", (0x180,), {}, {"d0": 0xFFFFFF80}),
    ("s_min_i32", (0xFFFFFFFF, 1), {}, {"d0": 0xFFFFFFFF, "scc": 1}),
    ("s_cbranch_scc1", (), {"scc": 1, "imm": 0xFFFE, "pc": 100}, {"pc": 96}),
    ("s_load_dwordx2", (), {"addr": 8, "offset": 4, "mem": bytearray(range(32))}, {"d0": 0x131211100F0E0D0C}),
    # Vector integer
    ("v_add_co_u32_e64", (0xFFFFFFFF, 2), {"lane": 3}, {"d0": 1, "vcc": 8}),
    ("v_addc_co_u32_e32", (1, 2), {"lane": 3, "vcc": 8}, {"d0": 4, "vcc": 0}),
    ("v_subb_co_u32_e32", (0, 0), {"lane": 1, "vcc": 2}, {"d0": 0xFFFFFFFF, "vcc": 2}),
    ("v_subrev_u32_e32", (1, 3), {}, {"d0": 2}),
    ("v_lshl_add_u64", (0x1_0000_0001, 4, 0x10), {}, {"d0": 0x10_0000_0020}),
    ("v_mad_u64_u32", (0xFFFFFFFF, 0xFFFFFFFF, (1 << 64) - 1), {}, {"d0": 0xFFFFFFFE00000000, "d1": 1}),
    ("v_mad_i64_i32", (0xFFFFFFFF, 5, 3), {}, {"d0": (1 << 64) - 2}),
    ("v_mul_hi_u32", (0x80000000, 6), {}, {"d0": 3}),
    ("v_mul_i32_i24_e32", (0x00FFFFFF, 0x01000002), {}, {"d0": 0xFFFFFFFE}),
    ("v_mul_u32_u24_e32", (0xFF000003, 4), {}, {"d0": 12}),
    ("v_ashrrev_i32_e32", (33, 0x80000000), {}, {"d0": 0xC0000000}),
    ("v_lshlrev_b64", (36, 1), {}, {"d0": 1 << 36}),
    ("v_bfe_u32", (0x12345678, 8, 8), {}, {"d0": 0x56}),
    ("v_bfe_i32", (0x12348678, 8, 8), {}, {"d0": 0xFFFFFF86}),
    ("v_bfi_b32", (0xFF00FF00, 0x12345678, 0x9ABCDEF0), {}, {"d0": 0x12BC56F0}),
    ("v_perm_b32", (0x07060504, 0x03020100, 0x0C0D0602), {}, {"d0": 0x00FF0602}),
    ("v_perm_b32", (0x80000000, 0, 0x0B030201), {}, {"d0": 0xFF000000}),
    ("v_alignbit_b32", (0x12345678, 0x9ABCDEF0, 8), {}, {"d0": 0x789ABCDE}),
    ("v_alignbyte_b32", (0x12345678, 0x9ABCDEF0, 1), {}, {"d0": 0x789ABCDE}),
    ("v_sad_u32", (3, 10, 1), {}, {"d0": 8}),
    ("v_sad_u8", (0x01FF0305, 0x02000503, 100), {}, {"d0": 100 + 1 + 255 + 2 + 2}),
    ("v_bitop3_b32", (0b1100, 0b1010, 0b0110), {"bitop3": 0x96}, {"d0": 0b1100 ^ 0b1010 ^ 0b0110}),
    ("v_bitop3_b32", (0xF0F0F0F0, 0xCCCCCCCC, 0xAAAAAAAA), {"bitop3": 0x6C}, {"d0": 0x6C6C6C6C}),
    ("v_xad_u32", (6, 3, 1), {}, {"d0": 6}),
    ("v_lshl_or_b32", (3, 4, 1), {}, {"d0": 0x31}),
    ("v_med3_i32", (5, 0xFFFFFFFF, 2), {}, {"d0": 2}),
    ("v_max3_u32", (5, 0xFFFFFFFF, 2), {}, {"d0": 0xFFFFFFFF}),
    ("v_cndmask_b32_e32", (1, 2), {"lane": 5, "vcc": 1 << 5}, {"d0": 2}),
    ("v_bfrev_b32_e32", (0x00000003,), {}, {"d0": 0xC0000000}),
    ("v_ffbh_u32_e32", (0x00010000,), {}, {"d0": 15}),
    ("v_ffbl_b32_e32", (0,), {}, {"d0": 0xFFFFFFFF}),
    ("v_bcnt_u32_b32", (0xFF, 3), {}, {"d0": 11}),
    ("v_mbcnt_lo_u32_b32", (0xFFFFFFFF, 2), {"lane": 40}, {"d0": 34}),
    ("v_mbcnt_hi_u32_b32", (0xFFFFFFFF, 34), {"lane": 40}, {"d0": 42}),
    ("v_cmp_gt_i32_e32", (1, 0xFFFFFFFF), {"lane": 2}, {"vcc": 4}),
    ("v_cmp_gt_u32_e64", (1, 0xFFFFFFFF), {"lane": 2, "vcc": 1}, {"d0": 0, "vcc": 1}),
    ("v_mov_b32_dpp", (77,), {}, {"d0": 77}),
    ("v_swap_b32", (1,), {"d0": 2}, {"d0": 1, "s0": 2}),
    ("v_pk_add_u16", (0xFFFF0001, 0x00010002), {}, {"d0": 3}),
    ("v_pk_mov_b32", (words(1, 2), words(3, 4)), {"opsel": 0b01}, {"d0": words(2, 3)}),
    ("v_prng_b32", (0x80000001,), {}, {"d0": 2 ^ 197}),
    # Vector float
    ("v_add_f32_e32", (f32(1.0), f32(2**-24)), {}, {"d0": f32(1.0)}),
    ("v_add_f32_e32", (f32(-1.0), f32(1.0)), {}, {"d0": 0}),
    ("v_sub_f32_e32", (INF, INF), {}, {"d0": NAN}),
    ("v_mul_f32_e32", (0x00000001, f32(0.5)), {}, {"d0": 0}),
    ("v_mul_f32_e32", (0x00000003, f32(0.5)), {}, {"d0": 2}),
    ("v_fma_f32", (0x3F800001, 0x3F800001, f32(-1.0)), {}, {"d0": f32(2**-22 + 2**-46)}),
    ("v_fma_f32", (0x3F800001, 0x3F7FFFFF, f32(-1.0)), {}, {"d0": f32(2**-24 - 2**-47)}),
    ("v_fmac_f32_e32", (f32(3.0), f32(4.0)), {"d0": f32(5.0)}, {"d0": f32(17.0)}),
    ("v_fma_f64", (f64(0.1), f64(10.0), f64(-1.0)), {}, {"d0": f64(2.0**-54)}),
    ("v_pk_fma_f32", (words(f32(2.0), f32(3.0)), words(f32(5.0), f32(7.0)), words(f32(1.0), f32(-1.0))), {},
     {"d0": words(f32(11.0), f32(20.0))}),
    ("v_fma_mix_f32", (f16(2.0) << 16, f32(3.0), f16(0.5)), {"opsel_hi": 0b101, "opsel": 0b001}, {"d0": f32(6.5)}),
    ("v_fma_mixlo_f16", (f32(1.5), f32(2.0), f32(0.25)), {"d0": 0xABCD0000}, {"d0": 0xABCD0000 | f16(3.25)}),
    ("v_med3_f32", (f32(3.0), f32(1.0), f32(2.0)), {}, {"d0": f32(2.0)}),
    ("v_max_f32_e32", (f32(-0.0), f32(0.0)), {}, {"d0": 0}),
    ("v_min_f32_e32", (f32(0.0), f32(-0.0)), {}, {"d0": 0x80000000}),
    ("v_max_f32_e32", (NAN, f32(1.0)), {}, {"d0": f32(1.0)}),
    ("v_max_f32_e32", (SNAN, f32(1.0)), {}, {"d0": 0x7FC00001}),
    ("v_maximum3_f32", (f32(1.0), NAN, f32(2.0)), {}, {"d0": NAN}),
    ("v_cmp_class_f32_e64", (SNAN, 1 << 0), {}, {"d0": 1}),
    ("v_cmp_class_f32_e64", (NAN, 1 << 1), {}, {"d0": 1}),
    ("v_cmp_class_f32_e64", (INF | 1 << 31, 1 << 2), {"lane": 7}, {"d0": 1 << 7}),
    ("v_cmp_class_f32_e64", (0x00000001, 1 << 7), {}, {"d0": 1}),
    ("v_cmp_class_f32_e64", (0x80000000, 1 << 6), {}, {"d0": 0}),
    ("v_cmp_nlt_f32_e32", (NAN, 0), {}, {"vcc": 1}),
    ("v_cmp_lg_f32_e32", (NAN, 0), {}, {"vcc": 0}),
    ("v_cmp_neq_f32_e32", (NAN, 0), {}, {"vcc": 1}),
    ("v_trunc_f32_e32", (f32(-0.75),), {}, {"d0": 0x80000000}),
    ("v_floor_f32_e32", (f32(-0.25),), {}, {"d0": f32(-1.0)}),
    ("v_ceil_f32_e32", (f32(1.25),), {}, {"d0": f32(2.0)}),
    ("v_rndne_f32_e32", (f32(2.5),), {}, {"d0": f32(2.0)}),
    ("v_rndne_f32_e32", (0x3EFFFFFF,), {}, {"d0": 0}),
    ("v_rndne_f32_e32", (f32(8388609.0),), {}, {"d0": f32(8388609.0)}),
    ("v_fract_f32_e32", (f32(-1e-10),), {}, {"d0": 0x3F7FFFFF}),
    ("v_fract_f32_e32", (f32(2.75),), {}, {"d0": f32(0.75)}),
    ("v_frexp_mant_f32_e32", (f32(-6.0),), {}, {"d0": f32(-0.75)}),
    ("v_frexp_exp_i32_f32_e32", (f32(-6.0),), {}, {"d0": 3}),
    ("v_frexp_exp_i32_f32_e32", (0x00000001,), {}, {"d0": -148 & 0xFFFFFFFF}),
    ("v_frexp_exp_i32_f32_e32", (0,), {}, {"d0": 0}),
    ("v_ldexp_f32", (f32(1.5), -149 & 0xFFFFFFFF), {}, {"d0": 2}),
    ("v_ldexp_f32", (0x00000001, 200), {}, {"d0": f32(2.0**51)}),
    ("v_rcp_f32_e32", (f32(4.0),), {}, {"d0": f32(0.25)}),
    ("v_rcp_f32_e32", (0x80000000,), {}, {"d0": INF | 1 << 31}),
    ("v_sqrt_f32_e32", (f32(9.0),), {}, {"d0": f32(3.0)}),
    ("v_rsq_f32_e32", (f32(16.0),), {}, {"d0": f32(0.25)}),
    ("v_exp_f32_e32", (f32(-3.0),), {}, {"d0": f32(0.125)}),
    ("v_log_f32_e32", (f32(8.0),), {}, {"d0": f32(3.0)}),
    ("v_div_scale_f32", (f32(3.0), f32(3.0), f32(1.0)), {"vcc": 1}, {"d0": f32(3.0), "vcc": 0}),
    ("v_div_fmas_f32", (f32(2.0), f32(3.0), f32(1.0)), {"vcc": 0}, {"d0": f32(7.0)}),
    ("v_div_fixup_f32", (f32(0.333), f32(-3.0), f32(1.0)), {}, {"d0": f32(-0.333)}),
    ("v_div_fixup_f32", (f32(1.0), 0, f32(1.0)), {}, {"d0": INF}),
    # Conversions
    ("v_cvt_f32_i32_e32", (0xFFFFFFFF,), {}, {"d0": f32(-1.0)}),
    ("v_cvt_f32_u32_e32", (0xFFFFFFFF,), {}, {"d0": f32(2.0**32)}),
    ("v_cvt_f32_ubyte2_e32", (0x00AB0000,), {}, {"d0": f32(171.0)}),
    ("v_cvt_i32_f32_e32", (f32(-2.9),), {}, {"d0": 0xFFFFFFFE}),
    ("v_cvt_i32_f32_e32", (f32(3e9),), {}, {"d0": 0x7FFFFFFF}),
    ("v_cvt_u32_f32_e32", (f32(-1.0),), {}, {"d0": 0}),
    ("v_cvt_u32_f32_e32", (NAN,), {}, {"d0": 0}),
    ("v_cvt_f16_f32_e32", (f32(65520.0),), {}, {"d0": 0x7C00}),
    ("v_cvt_f16_f32_e32", (f32(2.0**-25),), {}, {"d0": 0}),
    ("v_cvt_f32_f16_e32", (0x0001,), {}, {"d0": f32(2.0**-24)}),
    ("v_cvt_f64_f32_e32", (f32(0.1),), {}, {"d0": f64(float(np.float32(0.1)))}),
    ("v_cvt_pkrtz_f16_f32", (f32(1 + 2**-10 + 2**-11), f32(-65520.0)), {}, {"d0": 0xFBFF3C01}),
    ("v_cvt_pk_bf16_f32", (0x3F808000, 0x3F818000), {}, {"d0": 0x3F823F80}),
    ("v_cvt_pk_bf16_f32", (0x7F800001, 0x7F7FFFFF), {}, {"d0": 0x7F807FC0}),
    ("v_cvt_pk_fp8_f32", (f32(448.0), f32(-0.0625)), {"d0": 0xAAAABBBB}, {"d0": 0xAAAA987E}),
    ("v_cvt_pk_fp8_f32", (f32(1e6), f32(1.0)), {"d0": 0xAAAABBBB, "opsel": 8}, {"d0": 0x387FBBBB}),
    ("v_cvt_pk_fp8_f32", (f32(17.0), f32(19.0)), {}, {"d0": 0x5A58}),
    ("v_cvt_pk_bf8_f32", (f32(57344.0), f32(1e6)), {}, {"d0": 0x7C7B}),
    ("v_cvt_f32_fp8_e32", (0x7E,), {}, {"d0": f32(448.0)}),
    ("v_cvt_f32_fp8_sdwa", (0x01000000,), {"sdwa": 3}, {"d0": f32(2.0**-9)}),
    ("v_cvt_pk_f32_fp8_e32", (0xB8387E01,), {}, {"d0": words(f32(2.0**-9), f32(448.0))}),
    ("v_cvt_pk_f32_fp8_sdwa", (0xB8387E01,), {"sdwa": 5}, {"d0": words(f32(1.0), f32(-1.0))}),
    ("v_cvt_f32_bf16_e32", (0xC0A0,), {}, {"d0": f32(-5.0)}),
    ("v_cvt_scalef32_pk_fp8_f32", (f32(896.0), f32(2.0), f32(2.0)), {"d0": 0xAAAA0000}, {"d0": 0xAAAA387E}),
    ("v_cvt_scalef32_pk_f32_fp8", (0x387E, f32(0.5)), {}, {"d0": words(f32(224.0), f32(0.5))}),
    ("v_cvt_scalef32_f32_fp8", (0x38000000, f32(8.0)), {"opsel": 3}, {"d0": f32(8.0)}),
    ("v_cvt_scalef32_pk_fp4_f32", (f32(100.0), f32(-1.5), f32(1.0)), {"d0": 0xFFFFFFFF}, {"d0": 0xFFFFFFB7}),
    ("v_cvt_scalef32_pk_bf16_fp8", (0x7E38, f32(1.0)), {}, {"d0": 0x43E03F80}),
    # Memory
    ("ds_read_b64", (), {"addr": 4, "offset": 4, "mem": bytearray(range(16))}, {"d0": 0x0F0E0D0C0B0A0908}),
    ("ds_read2st64_b32", (), {"offset0": 0, "offset1": 1, "mem": bytearray(range(256)) + b"\5\0\0\0"},
     {"d0": words(0x03020100, 5)}),
    ("ds_read_u16_d16_hi", (), {"addr": 2, "offset": 2, "d0": 0xAAAABBBB, "mem": bytearray(b"\0\0\0\0\1\2")},
     {"d0": 0x0201BBBB}),
    ("global_load_sbyte", (), {"addr": 0x100000000, "saddr": 2, "offset": -1, "mem": {0x100000001: 0x80}},
     {"d0": 0xFFFFFF80}),
    ("global_load_dwordx3", (), {"mem": bytearray(range(12))}, {"d0": words(0x03020100, 0x07060504, 0x0B0A0908)}),
]  # fmt: skip


@pytest.mark.parametrize(("mnemonic", "sources", "inputs", "expected"), CASES, ids=[case[0] for case in CASES])
def test_known_value(mnemonic, sources, inputs, expected):
    outcome = run(mnemonic, *sources, **inputs)
    got = {name: getattr(outcome, name) for name in expected}
    assert got == expected, f"{mnemonic} {[hex(s) for s in sources]} {inputs}: {pcode.text(mnemonic)}"


@pytest.mark.parametrize(
    ("mnemonic", "start", "inputs", "returned", "stored"),
    [
        ("global_atomic_inc", 5, {"data": 5}, 5, 0),
        ("global_atomic_inc", 4, {"data": 5}, 4, 5),
        ("global_atomic_dec", 0, {"data": 5}, 0, 5),
        ("global_atomic_cmpswap", 7, {"data": words(9, 7)}, 7, 9),
        ("global_atomic_smax", 0xFFFFFFFF, {"data": 1}, 0xFFFFFFFF, 1),
        ("global_atomic_add_f32", f32(1.5), {"data": f32(2.0)}, f32(1.5), f32(3.5)),
        ("global_atomic_pk_add_bf16", 0x3F804000, {"data": 0x3F803F80}, 0x3F804000, 0x40004040),
        ("flat_atomic_swap", 1, {"data": 2}, 1, 2),
        ("buffer_atomic_umin", 9, {"data": 2}, 9, 2),
        ("ds_add_rtn_u32", 0xFFFFFFFF, {"data": 2}, 0xFFFFFFFF, 1),
        ("ds_max_rtn_u32", 3, {"data": 8}, 3, 8),
        ("ds_cmpst_rtn_b32", 3, {"data": 3, "data2": 8}, 3, 8),
    ],
)
def test_atomic(mnemonic, start, inputs, returned, stored):
    memory = bytearray(12)
    memory[4:8] = start.to_bytes(4, "little")
    outcome = run(mnemonic, addr=0, offset=4, mem=memory, **inputs)
    assert (outcome.d0, int.from_bytes(memory[4:8], "little")) == (returned, stored)


def test_stores_write_only_their_bytes():
    memory = bytearray(b"\xff" * 32)
    run("global_store_short_d16_hi", addr=0, offset=2, data=0x1234ABCD, mem=memory)
    run("ds_write2_b32", addr=8, offset0=0, offset1=2, data=1, data2=2, mem=memory)
    run("buffer_store_byte", addr=31, data=0xABCDEF77, mem=memory)
    want = bytearray(b"\xff" * 32)
    want[2:4], want[8:12], want[16:20], want[31] = b"\x34\x12", b"\1\0\0\0", b"\2\0\0\0", 0x77
    assert memory == want


def test_lane_reads_and_writes():
    values = [1000 + lane for lane in LANES]
    assert wave("v_readlane_b32", values, 68).d0 == 1004, "the lane number wraps at 64"
    assert wave("v_readfirstlane_b32", values, exec_mask=0b11000).d0 == 1003
    assert wave("v_readfirstlane_b32", values, exec_mask=0).d0 == 1000
    assert wave("v_writelane_b32", 5, 3, d0=values).d0 == values[:3] + [5] + values[4:]


def test_permutes_between_lanes():
    values = [1000 + lane for lane in LANES]
    reverse = [4 * (63 - lane) for lane in LANES]
    assert wave("ds_bpermute_b32", addr=reverse, data=values).d0 == values[::-1]
    assert wave("ds_bpermute_b32", addr=reverse, data=values, offset=4).d0 == values[:1] + values[:0:-1]
    half = wave("ds_bpermute_b32", addr=reverse, data=values, exec_mask=(1 << 32) - 1, d0=7).d0
    assert half == [0] * 32 + [7] * 32, "a disabled source lane gives 0, a disabled destination stays"
    assert wave("ds_permute_b32", addr=[8] * 64, data=values).d0 == [0, 0, 1063] + [0] * 61


def test_row_swaps():
    old, new = [100 + lane for lane in LANES], [200 + lane for lane in LANES]
    swapped = wave("v_permlane16_swap_b32_e32", new, d0=old)
    assert swapped.d0 == old[:16] + new[:16] + old[32:48] + new[32:48]
    assert swapped.s0 == old[16:32] + new[16:32] + old[48:] + new[48:]
    swapped = wave("v_permlane32_swap_b32_e32", new, d0=old)
    assert (swapped.d0, swapped.s0) == (old[:32] + new[:32], old[32:] + new[32:])


def test_wave_masks():
    compare = wave("v_cmp_lt_u32_e64", LANES, 4, exec_mask=0b110110, vcc=0xF0)
    assert (compare.d0, compare.vcc) == (0b110, 0xF0)
    assert wave("v_cmp_lt_u32_e32", LANES, 4).vcc == 0b1111
    assert wave("v_cmpx_lt_u32_e32", LANES, 4, exec_mask=0b110110).exec_mask == 0b110
    total = wave("v_add_co_u32_e32", [0xFFFFFFFF] * 64, LANES, exec_mask=0b111, d0=9)
    assert (total.vcc, total.d0[:4]) == (0b110, [0xFFFFFFFF, 0, 1, 9])
    assert wave("v_mad_u64_u32", 1, 1, [(1 << 64) - 1] * 2 + [0] * 62).d1 == 0b11


def test_rounding_agrees_with_numpy():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 2**32, (2, 300), dtype=np.uint32)
    b[:100] = a[:100] ^ 0x80000001  # near-cancellation
    x, y = a.view(np.float32), b.view(np.float32)
    with np.errstate(all="ignore"):
        want = {
            "v_add_f32_e32": x + y,
            "v_sub_f32_e32": x - y,
            "v_mul_f32_e32": x * y,
            "v_sqrt_f32_e32": np.sqrt(x),
            "v_rcp_f32_e32": np.float32(1) / x,
            "v_cvt_f16_f32_e32": x.astype(np.float16),
            "v_rndne_f32_e32": np.rint(x),
            "v_floor_f32_e32": np.floor(x),
            "v_ceil_f32_e32": np.ceil(x),
            "v_frexp_mant_f32_e32": np.frexp(x)[0],
        }
    for mnemonic, reference in want.items():
        got = np.array([run(mnemonic, int(p), int(q)).d0 for p, q in zip(a, b, strict=True)])
        same = (got == reference.view(f"u{reference.itemsize}")) | np.isnan(reference)
        assert same.all(), f"{mnemonic}: {[(hex(a[i]), hex(b[i]), hex(got[i])) for i in np.flatnonzero(~same)[:5]]}"


def test_fma_rounds_once():
    # Exponents within 4 of each other: x87's 64 bits hold the 48-bit product and the sum exactly.
    if np.finfo(np.longdouble).nmant < 63:
        pytest.skip("needs an 80-bit long double")
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2**23, (3, 300), dtype=np.uint32) | rng.integers(125, 129, (3, 300), dtype=np.uint32) << 23
    bits |= rng.integers(0, 2, (3, 300), dtype=np.uint32) << 31
    x, y, z = bits.view(np.float32).astype(np.longdouble)
    want = (x * y + z).astype(np.float32).view(np.uint32)
    for i, (p, q, r) in enumerate(bits.T.tolist()):
        assert run("v_fma_f32", p, q, r).d0 == want[i], (hex(p), hex(q), hex(r))
    twice = ((x * y).astype(np.float32) + z.astype(np.float32)).view(np.uint32)
    assert (twice != want).any(), "the inputs must tell a fused from an unfused product"


def divided(n: int, d: int) -> int:
    """The instructions that LLVM emits for an IEEE division of two f32."""
    minus, one = 1 << 31, f32(1.0)
    scaled_d = run("v_div_scale_f32", d, d, n).d0
    scaled_n = run("v_div_scale_f32", n, d, n)
    r = run("v_rcp_f32_e32", scaled_d).d0
    r = run("v_fma_f32", run("v_fma_f32", scaled_d ^ minus, r, one).d0, r, r).d0
    q = run("v_mul_f32_e32", scaled_n.d0, r).d0
    q = run("v_fma_f32", run("v_fma_f32", scaled_d ^ minus, q, scaled_n.d0).d0, r, q).d0
    rest = run("v_fma_f32", scaled_d ^ minus, q, scaled_n.d0).d0
    return run("v_div_fixup_f32", run("v_div_fmas_f32", rest, r, q, vcc=scaled_n.vcc).d0, d, n).d0


def test_division_errata_make_division_exact():
    rng = np.random.default_rng(2)
    n, d = rng.integers(0, 2**32, (2, 500), dtype=np.uint32)
    n[:100] &= 0x807FFFFF  # subnormal numerators, subnormal and huge denominators, both tiny
    d[100:200] &= 0x807FFFFF
    d[200:300] |= 0x7E000000
    n[300:400] &= 0x83FFFFFF
    d[300:400] &= 0x83FFFFFF
    with np.errstate(all="ignore"):
        want = n.view(np.float32) / d.view(np.float32)
    for i in np.flatnonzero(~np.isnan(want)):
        assert divided(int(n[i]), int(d[i])) == want.view(np.uint32)[i], (hex(n[i]), hex(d[i]))


def test_all_narrow_float_codes_round_trip():
    for code in range(256):
        wide = run("v_cvt_f32_fp8_e32", code).d0
        assert run("v_cvt_pk_fp8_f32", wide, wide).d0 == code * 0x101
        if code & 0x7F not in (0x7D, 0x7E, 0x7F):  # NaN payloads may change
            wide = run("v_cvt_f32_bf8_e32", code).d0
            assert run("v_cvt_pk_bf8_f32", wide, wide).d0 == code * 0x101


def test_every_text_parses_or_is_known_prose():
    prose = [name for name in pcode._texts() if not pcode.has_pcode(name)]
    assert sorted(name for name in prose if "mfma" not in name) == ["ds_swizzle_b32", "s_sleep", "s_waitcnt"]
    assert all(erratum.reason for erratum in ERRATA.values())
    assert all(pcode.has_pcode(name) for name in ERRATA)


def test_what_has_no_pseudocode_is_refused():
    with pytest.raises(pcode.NoPseudocode):
        run("ds_swizzle_b32", 1)
    with pytest.raises(pcode.NoPseudocode):
        run("v_accvgpr_read_b32", 1)
    with pytest.raises(PcodeUnsupported):
        run("v_cvt_sr_bf16_f32", 1, 2)
    with pytest.raises(PcodeSyntaxError):
        parse("D = A (16x128) * B")
    with pytest.raises(TypeError):
        run("v_mov_b32_e32", 1, execmask=1)
