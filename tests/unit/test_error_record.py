# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What the host makes of an error record, also of one that something else wrote over."""

from __future__ import annotations

import struct

import pytest

from mori_gemm_ar.ar.failures import failure_of
from mori_gemm_ar.errors import CollectiveTimeout
from mori_gemm_ar.layout.allreduce import ERROR_WORDS, ErrorStatus, ErrorWord, Phase


def record(**words: int) -> bytes:
    """A record of these words, the others 0."""
    values = [0] * ERROR_WORDS
    for name, value in words.items():
        values[ErrorWord[name]] = value
    return struct.pack(f"<{ERROR_WORDS}I", *values)


def test_clear() -> None:
    assert failure_of(record(), 1.0) is None


def test_timeout_names_both_ranks() -> None:
    failure = failure_of(record(STATUS=ErrorStatus.TIMEOUT, PHASE=Phase.ENTRY, RANK=1, PEER=3), 2.5)
    assert isinstance(failure, CollectiveTimeout)
    assert "rank 1 waited 2.5 s for rank 3" in str(failure)


@pytest.mark.parametrize(
    "words",
    [{"STATUS": 0x3F803F80}, {"STATUS": ErrorStatus.TIMEOUT, "PHASE": 0x40404040}],
    ids=["status", "phase"],
)
def test_a_damaged_record_is_reported_as_such(words: dict[str, int]) -> None:
    failure = failure_of(record(**words), 1.0)
    assert failure is not None
    assert "wrote over the window's control part" in str(failure)
    assert all(f"{value:#x}" in str(failure) for value in words.values())
