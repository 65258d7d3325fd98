# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What a kernel hands to the compiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DeviceKernel:
    """A traced-on-demand FlyDSL kernel: a function that takes one struct of scalars, and how it is launched."""

    name: str  # symbol in the ISA text
    function: Any  # @flyc.kernel
    arguments: type  # @fx.struct; its fields are the kernel arguments, in order
    threads: int
    waves_per_simd: int | None = None  # registers are kept low enough for this many; None leaves it to the compiler

    @property
    def argument_types(self) -> dict[str, str]:
        """Field name -> "i32", "u64", "f32", ..., in order."""
        fields = self.arguments.__annotations__.items()
        return {name: _type_label(dsl_type) for name, dsl_type in fields}


def _type_label(dsl_type: Any) -> str:
    letter = "f" if dsl_type.is_float else "i" if dsl_type.signed else "u"
    return f"{letter}{dsl_type.width}"
