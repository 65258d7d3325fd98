# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Launches as data, and argument segments packed from the table in the code object."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mori_gemm_ar.errors import ConfigError, IsaError
from mori_gemm_ar.isa import ArgSlot
from mori_gemm_ar.runtime import Launch, kernel_of, pack_arguments
from tests.kernel.isa_builder import TinyCode, isa_text, tiny

SLOTS = (ArgSlot(0, 8, "by_value"), ArgSlot(8, 4, "by_value"), ArgSlot(12, 4, "by_value"), ArgSlot(16, 8, "by_value"))
quick = settings(max_examples=100, deadline=None, database=None)


def test_scalars_stand_at_their_offsets_little_endian() -> None:
    packed = pack_arguments(SLOTS, (0x1122334455667788, 1, -2, -3))
    assert packed == struct.pack("<QIiq", 0x1122334455667788, 1, -2, -3)


@quick
@given(st.integers(-(2**63), 2**64 - 1), st.integers(-(2**31), 2**32 - 1))
def test_signed_and_unsigned_values_are_the_same_bits(wide: int, narrow: int) -> None:
    packed = pack_arguments(SLOTS[:2], (wide, narrow))
    assert packed == struct.pack("<QI", wide % 2**64, narrow % 2**32)


@pytest.mark.parametrize("value", [2**32, -(2**31) - 1, 2**40])
def test_a_value_that_does_not_fit(value: int) -> None:
    with pytest.raises(ConfigError, match=rf"argument 1={value} must fit 4 bytes"):
        pack_arguments(SLOTS, (0, value, 0, 0))


@pytest.mark.parametrize("count", [0, 3, 5])
def test_another_number_of_values(count: int) -> None:
    with pytest.raises(ConfigError, match=rf"arguments={count} must be 4, as the code object says"):
        pack_arguments(SLOTS, [0] * count)


def test_pointers_are_refused() -> None:
    with pytest.raises(ConfigError, match="argument 0 is global_buffer, but kernels take scalars only"):
        pack_arguments((ArgSlot(0, 8, "global_buffer"),), (0,))


def test_hidden_arguments_are_zero_and_need_no_value() -> None:
    slots = (*SLOTS[:1], ArgSlot(8, 4, "hidden_block_count_x"), ArgSlot(16, 8, "hidden_global_offset_x"))
    assert pack_arguments(slots, (-1,)) == b"\xff" * 8 + bytes(16)
    assert pack_arguments((), ()) == b""


@pytest.mark.parametrize(("grid", "block"), [((0, 1, 1), (64, 1, 1)), ((1, 1, 1), (64, 0, 1)), ((1, -1, 1), (1, 1, 1))])
def test_an_empty_launch_is_refused(grid: tuple[int, int, int], block: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match=r"grid=.*, block=.* must be positive"):
        Launch(tiny("s_endpgm"), grid, block, b"", "empty")


def test_kernel_of_parses_once() -> None:
    code = tiny("s_nop 3\ns_endpgm", (8, 4))
    assert kernel_of(code) is kernel_of(TinyCode(code.isa))
    assert [slot.size for slot in kernel_of(code).args] == [8, 4]


def test_kernel_of_foreign_code() -> None:
    with pytest.raises(IsaError, match="kernel='other' must be one of"):
        kernel_of(TinyCode(isa_text("s_endpgm"), kernel="other"))
    with pytest.raises(IsaError, match=r"truncated|damaged"):
        kernel_of(TinyCode(isa_text("s_endpgm")[:300]))
