# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Element types of a payload."""

from __future__ import annotations

from enum import Enum

from mori_gemm_ar.errors import ConfigError


class DType(Enum):
    """An element type: (label, bytes, code in a call tag). The code is wire format and never changes."""

    BF16 = ("bf16", 2, 0)
    FP16 = ("fp16", 2, 1)
    FP32 = ("fp32", 4, 2)

    @property
    def label(self) -> str:
        return self.value[0]

    @property
    def nbytes(self) -> int:
        return self.value[1]

    @property
    def code(self) -> int:
        return self.value[2]

    @classmethod
    def from_label(cls, label: str) -> DType:
        """The member with this label; ConfigError for anything else, also for near misses like "BF16"."""
        for member in cls:
            if member.label == label:
                return member
        labels = ", ".join(member.label for member in cls)
        raise ConfigError(f"dtype={label!r} must be one of {labels}; convert the tensor to one of them")
