# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Operands of gfx950 instructions: registers, literals, labels, and tokens such as `hwreg(...)`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mori_gemm_ar.errors import IsaError


@dataclass(frozen=True, slots=True)
class Reg:
    """A run of `count` registers starting at `index` of a file: `v` vector, `s` scalar, `a` accumulation."""

    file: str
    index: int
    count: int = 1

    def __post_init__(self) -> None:
        limit = {"v": 256, "s": 128, "a": 256}.get(self.file)
        if limit is None:
            raise IsaError(f"register file={self.file!r} must be one of v, s, a")
        if self.index < 0 or self.count < 1 or self.index + self.count > limit:
            raise IsaError(f"register {self} must lie within {self.file}0..{self.file}{limit - 1}")

    def __str__(self) -> str:
        if self.count == 1:
            return f"{self.file}{self.index}"
        return f"{self.file}[{self.index}:{self.index + self.count - 1}]"

    def __iter__(self) -> Iterator[Reg]:
        return (Reg(self.file, self.index + i) for i in range(self.count))


# Special scalar registers live at their hardware operand encodings, so that aliases resolve by index.
VCC = Reg("s", 106, 2)
M0 = Reg("s", 124)
EXEC = Reg("s", 126, 2)
_SPECIAL = {
    "vcc": VCC,
    "vcc_lo": Reg("s", 106),
    "vcc_hi": Reg("s", 107),
    "exec": EXEC,
    "exec_lo": Reg("s", 126),
    "exec_hi": Reg("s", 127),
    "m0": M0,
    "flat_scratch": Reg("s", 102, 2),
    "flat_scratch_lo": Reg("s", 102),
    "flat_scratch_hi": Reg("s", 103),
    "xnack_mask": Reg("s", 104, 2),
    "xnack_mask_lo": Reg("s", 104),
    "xnack_mask_hi": Reg("s", 105),
}


@dataclass(frozen=True, slots=True)
class Literal:
    """An inline constant or 32-bit literal. Floats keep their value: the instruction decides the encoding."""

    value: int | float

    def __str__(self) -> str:
        return hex(self.value) if isinstance(self.value, int) and abs(self.value) > 64 else str(self.value)


@dataclass(frozen=True, slots=True)
class Label:
    """A branch target inside the same kernel."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Token:
    """Anything else an operand position may hold, e.g. `off`, `vmcnt(3)`, `hwreg(HW_REG_XCC_ID)`, `scc`."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand with its source modifiers."""

    value: Reg | Literal | Label | Token
    neg: bool = False
    absolute: bool = False
    sext: bool = False

    @property
    def reg(self) -> Reg | None:
        """The register, or None for anything else."""
        return self.value if isinstance(self.value, Reg) else None

    def __str__(self) -> str:
        text = str(self.value)
        text = f"|{text}|" if self.absolute else text
        text = f"sext({text})" if self.sext else text
        return f"-{text}" if self.neg else text


_REG = re.compile(r"^([vsa])(\d+)$")
_RANGE = re.compile(r"^([vsa])\[(\d+):(\d+)\]$")
_INT = re.compile(r"^-?(0x[0-9a-fA-F]+|\d+)$")
_FLOAT = re.compile(r"^-?(\d+\.\d*|\d*\.\d+|\d+)(e[+-]?\d+)?$")
_TOKEN = re.compile(r"^(off|null|scc|vccz|execz|src_[a-z_]+|[a-z_0-9]+\(.*\))$")


def parse_value(text: str) -> Reg | Literal | Label | Token:
    """Parse an operand without modifiers; raises `IsaError` for anything unknown."""
    if match := _REG.match(text):
        return Reg(match[1], int(match[2]))
    if match := _RANGE.match(text):
        low, high = int(match[2]), int(match[3])
        if high < low:
            raise IsaError(f"operand {text!r} must name a rising register range")
        return Reg(match[1], low, high - low + 1)
    if text in _SPECIAL:
        return _SPECIAL[text]
    if _INT.match(text):
        return Literal(int(text, 0))
    if _FLOAT.match(text):
        return Literal(float(text))
    if text.startswith((".L", "BB")):
        return Label(text)
    if _TOKEN.match(text):
        return Token(text)
    raise IsaError(f"operand {text!r} is not known; only gfx950 text printed by the pinned compiler is accepted")


def parse_operand(text: str) -> Operand:
    """Parse one operand with `-`, `|...|`, `neg(...)`, `abs(...)` and `sext(...)` modifiers."""
    body, neg, absolute, sext = text.strip(), False, False, False
    if body.startswith("-") and not _INT.match(body) and not _FLOAT.match(body):
        neg, body = True, body[1:]
    for prefix in ("neg(", "abs(", "sext("):
        if body.startswith(prefix) and body.endswith(")"):
            neg, absolute, sext = neg or prefix == "neg(", absolute or prefix == "abs(", sext or prefix == "sext("
            body = body[len(prefix) : -1]
    if len(body) > 2 and body.startswith("|") and body.endswith("|"):
        absolute, body = True, body[1:-1]
    return Operand(parse_value(body), neg, absolute, sext)
