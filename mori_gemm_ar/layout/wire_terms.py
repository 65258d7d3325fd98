# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What may cross the links of an all-reduce instead of the tensor's elements, and the constants of those formats."""

from __future__ import annotations

from enum import Enum

from mori_gemm_ar.errors import ConfigError

GROUP = 32  # consecutive elements that share an e8m0 scale
RUN = 8  # elements of one lane: a 16-byte pack of 16-bit elements, eight e4m3 bytes
RUNS = GROUP // RUN  # neighbouring lanes that hold a group
ROW_UNIT = 16  # columns of a row with a scale of its own are a multiple: every row starts at a 16-byte boundary
MX_SCALE_BYTES = 1
ROW_SCALE_BYTES = 4
NAN_CODES = 0x7F7F7F7F  # four e4m3 NaNs: payload of a group or row that holds a NaN or an infinity


class Wire(Enum):
    """What crosses the links. The legs are scatter (partial sums to the owner of a slice) and gather (its sum to all).

    Payloads are e4m3fn bytes. An owner uses what it sends, so all ranks hold the same bits.
    """

    EXACT = "exact"  # the elements themselves
    FP8 = "fp8"  # gather: e4m3 with one e8m0 scale for each 32 elements; scatter exact
    FP8_BOTH = "fp8-both"  # the same on both legs; a rank's own partial sum is quantised too
    FP8_ROW = "fp8-row"  # gather: e4m3 with one fp32 scale for each row; scatter exact

    @property
    def lossy(self) -> bool:
        """Whether a result differs from the exact one."""
        return self is not Wire.EXACT

    @property
    def label(self) -> str:
        """The value as a part of a symbol."""
        return self.value.replace("-", "")

    @property
    def both(self) -> bool:
        """Whether the scatter leg is quantised too."""
        return self is Wire.FP8_BOTH

    @property
    def per_row(self) -> bool:
        """Whether a scale belongs to a row, so that the shape of the tensor matters."""
        return self is Wire.FP8_ROW

    @property
    def scale_bytes(self) -> int:
        """Bytes of one scale: e8m0 or fp32; none without payload bytes of its own."""
        return {Wire.EXACT: 0, Wire.FP8_ROW: ROW_SCALE_BYTES}.get(self, MX_SCALE_BYTES)

    @classmethod
    def parse(cls, value: object) -> Wire:
        """The member, or the one with this value; ConfigError for anything else, also for near misses like "FP8"."""
        for member in cls:
            if value is member or (isinstance(value, str) and value == member.value):
                return member
        legal = ", ".join(repr(member.value) for member in cls)
        raise ConfigError(f"wire={value!r} must be one of {legal}; 'exact' changes no bit")
