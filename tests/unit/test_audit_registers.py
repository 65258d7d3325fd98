# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Which registers an instruction reads and writes: implicit ones, tied ones, and none that nobody knows."""

from __future__ import annotations

import pytest

from mori_gemm_ar.audit.operations import Kind, decode
from mori_gemm_ar.audit.registers import EXEC_MASK, bits_of, name_of, reads_writes
from mori_gemm_ar.errors import IsaError
from tests.unit.audit_texts import kernel_of


def effects(text: str) -> tuple[set[str], set[str]]:
    """(reads without exec, writes) as names."""
    reads, writes = reads_writes(kernel_of(text).instructions[0])
    return {name_of(b) for b in bits_of(reads & ~EXEC_MASK)}, {name_of(b) for b in bits_of(writes)}


CASES = [
    ("s_mov_b32 s0, s1", "s1", "s0"),
    ("s_add_u32 s0, s1, s2", "s1 s2", "s0 scc"),
    ("s_addc_u32 s0, s1, 0", "s1 scc", "s0 scc"),
    ("s_mul_i32 s0, s1, s2", "s1 s2", "s0"),
    ("s_addk_i32 s0, 0x10", "s0", "s0 scc"),
    ("s_bitset1_b32 s0, 13", "s0", "s0"),
    ("s_cselect_b32 s0, s1, 0", "s1 scc", "s0"),
    ("s_cmp_lt_u32 s0, s1", "s0 s1", "scc"),
    ("s_and_saveexec_b64 s[2:3], vcc", "vcc_lo vcc_hi", "s2 s3 exec_lo exec_hi scc"),
    ("s_load_dwordx4 s[4:7], s[0:1], 0x8", "s0 s1", "s4 s5 s6 s7"),
    ("s_memrealtime s[2:3]", "", "s2 s3"),
    ("v_mov_b32_e32 v0, v1", "v1", "v0"),
    ("v_add_co_u32_e32 v0, vcc, v1, v2", "v1 v2", "v0 vcc_lo vcc_hi"),
    ("v_addc_co_u32_e64 v0, s[2:3], v1, v2, s[4:5]", "v1 v2 s4 s5", "v0 s2 s3"),
    ("v_cmp_eq_u32_e64 s[2:3], v0, v1", "v0 v1", "s2 s3"),
    ("v_cndmask_b32_e32 v0, v1, v2, vcc", "v1 v2 vcc_lo vcc_hi", "v0"),
    ("v_div_fmas_f32 v0, v1, v2, v3", "v1 v2 v3 vcc_lo vcc_hi", "v0"),
    ("v_fmac_f32_e32 v0, v1, v2", "v0 v1 v2", "v0"),
    ("v_cvt_pk_fp8_f32 v0, v1, v2", "v0 v1 v2", "v0"),  # writes a half and keeps the other
    ("v_permlane16_swap_b32_e32 v0, v1", "v0 v1", "v0 v1"),
    ("v_mad_u64_u32 v[0:1], s[2:3], v4, v5, v[6:7]", "v4 v5 v6 v7", "v0 v1 s2 s3"),
    ("v_readfirstlane_b32 s0, v1", "v1", "s0"),
    ("v_mov_b32_dpp v0, v1 row_shr:1 row_mask:0xf bank_mask:0xf", "v0 v1", "v0"),
    ("v_mov_b32_dpp v0, v1 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:1", "v1", "v0"),
    ("v_add_u16_sdwa v0, v1, v2 dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD src1_sel:DWORD",
     "v0 v1 v2", "v0"),
    ("v_mfma_f32_16x16x32_bf16 v[0:3], v[4:5], v[6:7], v[0:3]", "v0 v1 v2 v3 v4 v5 v6 v7", "v0 v1 v2 v3"),
    ("v_mfma_f32_16x16x32_bf16 a[0:3], v[4:5], v[6:7], 0", "v4 v5 v6 v7", "a0 a1 a2 a3"),
    ("v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[8:15], v[16:23], 0, v24, v25 op_sel_hi:[0,0,0]",
     " ".join(f"v{n}" for n in range(8, 26)), "v0 v1 v2 v3"),
    ("global_load_dwordx2 v[0:1], v2, s[4:5]", "v2 s4 s5", "v0 v1"),
    ("global_load_short_d16_hi v0, v[2:3], off", "v0 v2 v3", "v0"),
    ("global_store_dword v[0:1], v2, off", "v0 v1 v2", ""),
    ("global_atomic_add v0, v1, s[2:3]", "v0 v1 s2 s3", ""),
    ("global_atomic_add v0, v1, v2, s[2:3] sc0", "v1 v2 s2 s3", "v0"),
    ("global_atomic_cmpswap v0, v1, v[2:3], s[4:5] sc0", "v1 v2 v3 s4 s5", "v0"),
    ("buffer_load_dword v0, v1, s[4:7], s2 offen", "v1 s4 s5 s6 s7 s2", "v0"),
    ("buffer_load_dwordx4 v1, s[4:7], s2 offen lds", "v1 s4 s5 s6 s7 s2 m0", ""),
    ("buffer_store_dwordx2 v[0:1], v2, s[4:7], 0 offen", "v0 v1 v2 s4 s5 s6 s7", ""),
    ("ds_read2_b32 v[0:1], v2 offset1:8", "v2", "v0 v1"),
    ("ds_write2_b32 v0, v1, v2 offset1:8", "v0 v1 v2", ""),
    ("ds_bpermute_b32 v0, v1, v2", "v1 v2", "v0"),
    ("buffer_wbl2 sc0 sc1", "", ""),
    ("s_waitcnt vmcnt(0)", "", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "reads", "writes"), CASES, ids=[case[0].split()[0] for case in CASES])
def test_reads_and_writes(text: str, reads: str, writes: str) -> None:
    assert effects(text) == (set(reads.split()), set(writes.split()))


def test_vector_instructions_depend_on_exec() -> None:
    for text in ("v_mov_b32_e32 v0, v1", "global_load_dword v0, v1, s[2:3]", "ds_read_b32 v0, v1"):
        assert reads_writes(kernel_of(text).instructions[0])[0] & EXEC_MASK
    assert not reads_writes(kernel_of("s_mov_b32 s0, s1").instructions[0])[0] & EXEC_MASK


@pytest.mark.parametrize("text", ["v_wombat_b32 v0, v1", "s_set_gpr_idx_on s0, gpr_idx(SRC0)", "image_load v0, v1"])
def test_an_unknown_mnemonic_is_an_error(text: str) -> None:
    with pytest.raises(IsaError, match="does not know"):
        reads_writes(kernel_of(text).instructions[0])


def test_modifiers_of_other_generations_are_errors() -> None:
    with pytest.raises(IsaError, match="it is not gfx950's"):
        decode(kernel_of("global_load_dword v0, v[2:3], off glc").instructions[0])


@pytest.mark.parametrize(
    ("text", "kind", "nbytes"),
    [
        ("global_load_dwordx4 v[0:3], v4, s[0:1]", Kind.LOAD, 16),
        ("global_load_ushort v0, v1, s[0:1]", Kind.LOAD, 2),
        ("global_store_byte v0, v1, s[0:1]", Kind.STORE, 1),
        ("global_atomic_add_x2 v0, v[2:3], s[0:1]", Kind.ATOMIC, 8),
        ("buffer_load_dwordx4 v0, s[4:7], 0 offen lds", Kind.COPY, 16),
        ("ds_read_b128 v[0:3], v4", Kind.LDS_READ, 16),
        ("ds_read2_b64 v[0:3], v4 offset1:1", Kind.LDS_READ, 16),
        ("ds_read_b64_tr_b16 v[0:1], v4", Kind.LDS_READ, 8),
        ("ds_write_b16 v0, v1", Kind.LDS_WRITE, 2),
        ("ds_swizzle_b32 v0, v1 offset:swizzle(SWAP,1)", Kind.EXCHANGE, 4),
        ("s_load_dwordx8 s[8:15], s[0:1], 0x0", Kind.SCALAR_LOAD, 32),
        ("s_memrealtime s[0:1]", Kind.CLOCK, 8),
    ],
)
def test_accesses(text: str, kind: Kind, nbytes: int) -> None:
    access = decode(kernel_of(text).instructions[0]).access
    assert access is not None
    assert (access.kind, access.nbytes) == (kind, nbytes)


def test_waits_in_words_and_as_a_number() -> None:
    def waits(text: str) -> tuple[int | None, int | None]:
        op = decode(kernel_of(text).instructions[0])
        return op.wait_vm, op.wait_lgkm

    assert waits("s_waitcnt vmcnt(3) lgkmcnt(1)") == (3, 1)
    assert waits("s_waitcnt vmcnt(0) & lgkmcnt(0)") == (0, 0)
    assert waits("s_waitcnt lgkmcnt(0)") == (None, 0)
    assert waits("s_waitcnt vmcnt(63)") == (None, None)
    assert waits("s_waitcnt expcnt(0)") == (None, None)
    assert waits("s_nop 0") == (None, None)
