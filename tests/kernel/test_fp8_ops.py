# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""e4m3fn conversions against torch and the manual's pseudocode, and copies from memory to LDS."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mori_gemm_ar.emulator.fp8_ops import decode_e4m3, decode_planes, encode_e4m3
from mori_gemm_ar.errors import EmulatorError, IsaError
from tests.kernel import pcode
from tests.kernel.instructions import M0, State, execute

CODES = np.arange(256, dtype=np.uint8)


def test_every_code_decodes_as_torch_decodes_it() -> None:
    expected = torch.from_numpy(CODES).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(decode_e4m3(CODES), expected)
    planes = decode_planes(CODES.view(np.uint32).reshape(2, 32))
    np.testing.assert_array_equal(planes.swapaxes(1, 2).reshape(-1), expected)


def test_a_nan_code_in_any_byte_of_a_word_is_seen() -> None:
    for byte in range(4):
        for nan in (0x7F, 0xFF):
            word = np.array([0x7E7EFEFE & ~(0xFF << 8 * byte) | nan << 8 * byte], np.uint32)
            assert np.isnan(decode_planes(word[None]))[0, :, 0].tolist() == [n == byte for n in range(4)]


def floats(rng: np.random.Generator) -> np.ndarray:
    """Random bits, values near every rounding boundary, and the edges of the format."""
    values = decode_e4m3(CODES[:0x7F].copy())
    middle = (values[1:] + values[:-1]) / 2
    near = np.concatenate([values, middle, [464.0, 480.0, 1e30, np.inf, 2.0**-10, 2.0**-11, 1e-40]]).astype(np.float32)
    near = np.concatenate([near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))])
    bits = rng.integers(0, 2**32, 50_000, np.uint32).view(np.float32)
    return np.concatenate([near, -near, bits, [np.float32(np.nan)]])


def test_encoding_rounds_as_torch_rounds() -> None:
    x = floats(np.random.default_rng(1))
    expected = torch.from_numpy(x).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    got = encode_e4m3(x).astype(np.uint8)
    # Past 464, halfway to the code after 448, torch saturates on some versions; the instruction gives NaN.
    nan = np.isnan(x) | (np.abs(x) > 464)
    np.testing.assert_array_equal((got & 0x7F) == 0x7F, nan)
    np.testing.assert_array_equal(got[~nan], expected[~nan])


def test_encoding_rounds_as_the_manual_says() -> None:
    pytest.importorskip(pcode.PACKAGE)
    x = floats(np.random.default_rng(2))[:1200]
    for value, code in zip(x.view(np.uint32).tolist(), encode_e4m3(x).tolist(), strict=True):
        if not np.isnan(np.uint32(value).view(np.float32)):
            assert pcode.run("v_cvt_pk_fp8_f32", value, value).d0 & 0xFF == code, hex(value)


# --- copies to LDS ---


class Source:
    """Memory that is copied, and a descriptor of its first `records` bytes in s[8:11]."""

    def __init__(self, records: int) -> None:
        rng = np.random.default_rng(3)
        self.data = rng.integers(0, 256, 8192, np.uint8)
        self.before = State.random(rng, waves=2, vector=8, lds=8192)
        self.before.set_pair(8, np.full(2, self.data.ctypes.data, np.uint64))
        self.before.s[10], self.before.s[11], self.before.s[12] = records, 0x27000, 64
        self.before.s[M0] = [256, 4096]
        lane = np.arange(64, dtype=np.uint32)
        self.before.v[1] = (lane ^ 5) * 16 + np.array([[0], [1024]], np.uint32)
        self.before.set_pair(14, np.full(2, self.data.ctypes.data, np.uint64))
        self.before.v[2:4] = 0

    def run(self, text: str, sparse: bool = False) -> np.ndarray:
        return execute(text, self.before, sparse=sparse, memory={"data": self.data}).lds

    def expected(self, nbytes: int, immediate: int, scalar: int, records: int) -> np.ndarray:
        lds = self.before.lds.copy()
        for wave in range(2):
            for lane in range(64):
                target = int(self.before.s[M0][wave]) + immediate + lane * nbytes
                source = int(self.before.v[1][wave, lane]) + immediate + scalar
                inside = source + nbytes <= records
                lds[target : target + nbytes] = self.data[source : source + nbytes] if inside else 0
        return lds


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("width", "nbytes"), [("dword", 4), ("dwordx3", 12), ("dwordx4", 16)])
def test_buffer_copy(width: str, nbytes: int, sparse: bool) -> None:
    source = Source(records=8192)
    lds = source.run(f"buffer_load_{width} v1, s[8:11], s12 offen offset:32 lds\ns_waitcnt vmcnt(0)", sparse)
    np.testing.assert_array_equal(lds, source.expected(nbytes, 32, 64, 8192))


def test_lanes_past_the_end_copy_zeros() -> None:
    source = Source(records=1500)
    lds = source.run("buffer_load_dwordx4 v1, s[8:11], 0 offen lds")
    np.testing.assert_array_equal(lds, source.expected(16, 0, 0, 1500 // 16 * 16))


def test_global_copy() -> None:
    source = Source(records=0)
    lds = source.run("global_load_lds_dwordx4 v1, s[14:15] offset:16")
    np.testing.assert_array_equal(lds, source.expected(16, 16, 0, 8192))


def test_inactive_lanes_leave_their_place_alone() -> None:
    source = Source(records=8192)
    lds = source.run("s_mov_b64 exec, 0xff\nbuffer_load_dwordx4 v1, s[8:11], 0 offen lds")
    expected = source.expected(16, 0, 0, 8192)
    for wave in range(2):
        start = int(source.before.s[M0][wave])
        expected[start + 128 : start + 1024] = source.before.lds[start + 128 : start + 1024]
    np.testing.assert_array_equal(lds, expected)


def test_a_scalar_offset_past_the_size_is_refused() -> None:
    source = Source(records=63)
    with pytest.raises(EmulatorError, match="scalar offset"):
        source.run("buffer_load_dwordx4 v1, s[8:11], s12 offen lds")


def test_a_copy_past_the_lds_is_refused() -> None:
    source = Source(records=8192)
    source.before.s[M0] = 7680
    with pytest.raises(EmulatorError, match="LDS access"):
        source.run("buffer_load_dwordx4 v1, s[8:11], 0 offen lds")


@pytest.mark.parametrize(
    "text",
    [
        "buffer_load_ushort v1, s[8:11], 0 offen lds",
        "v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[4:11], v[4:11], 0 cbsz:4",
        "v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[4:11], v[4:11], 0, v4, v5",
        "v_cvt_pk_fp8_f32 v1, v2, v3 op_sel:[1,0,0]",
    ],
)
def test_what_is_not_modelled_is_refused(text: str) -> None:
    with pytest.raises(IsaError):
        execute(text, State.random(np.random.default_rng(4), waves=1, vector=16, lds=8192))
