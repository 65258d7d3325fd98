# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Read the operands of a spelling by rules of our own, not by those of the emulator."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from tests.kernel.instruction_values import WIDTH, decode, encode
from tests.kernel.instructions import LANES, SPECIAL, State

U = np.uint64


@dataclass(frozen=True)
class Spelling:
    """A text cut into operands and options."""

    operands: list[str]
    options: dict[str, str]

    @staticmethod
    def of(form: str) -> Spelling:
        body = form.split(" ", 1)[1] if " " in form else ""
        option = re.compile(r"\s+(?:([a-z_0-9]+):(\[[^\]]*\]|\S+)|(clamp))")
        options = {m[1] or m[3]: m[2] or "" for m in option.finditer(" " + body)}
        operands = re.split(r",\s*(?![^\[(]*[\])])", option.sub("", " " + body).strip())
        return Spelling(operands, options)

    def bits(self, name: str, default: str) -> list[int]:
        return [int(x) for x in self.options.get(name, default).strip("[]").split(",")]


def registers(operand: str) -> tuple[str, list[int]] | None:
    """`v[2:3]` to ("v", [2, 3]); accumulation registers follow the vector registers; None for constants."""
    if operand in SPECIAL:
        first = SPECIAL[operand]
        return "s", [first, first + 1] if operand in ("vcc", "exec") else [first]
    match = re.fullmatch(r"([vsa])(?:(\d+)|\[(\d+):(\d+)\])", operand)
    if match is None:
        return None
    first, last = int(match[2] or match[3]), int(match[2] or match[4])
    shift = 256 if match[1] == "a" else 0
    return match[1].replace("a", "v"), list(range(first + shift, last + shift + 1))


def constant(text: str, kind: str) -> int:
    """Bits of a constant operand: small integers are sign-extended raw bits, floats have the type's own encoding."""
    top = (1 << WIDTH[kind]) - 1
    if "." in text:
        width = WIDTH[kind]
        bits = encode(
            kind if kind[0] == "f" else "f16" if kind == "r16" else "f64" if width == 64 else "f32", float(text)
        )
        assert bits is not None
        return bits & top
    value = int(text, 0)
    if text.startswith("0x") and kind == "f64":
        return value << 32
    if text.startswith("0x") and kind == "i64" and value >> 31:
        value -= 1 << 32
    return value & top


def strip(text: str) -> tuple[str, bool, bool, bool]:
    """Operand without modifiers, then neg, abs, sext."""
    neg = bool(re.match(r"-[vs|]", text))
    text = text[1:] if neg else text
    if match := re.fullmatch(r"(neg|sext)\((.*)\)", text):
        return match[2], match[1] == "neg", False, match[1] == "sext"
    return text.strip("|"), neg, text.startswith("|"), False


def words(state: State, operand: str, kind: str) -> np.ndarray:
    """Bits of a register or constant per wave and lane, without modifiers."""
    found = registers(operand)
    if found is None:
        return np.full((state.waves, LANES), constant(operand, kind), U)
    file, indices = found
    parts = [(state.v[i] if file == "v" else state.s[i][:, None]).astype(U) for i in indices]
    whole = parts[0] if len(parts) == 1 or WIDTH[kind] < 64 else parts[0] | parts[1] << U(32)
    return np.broadcast_to(whole, (state.waves, LANES)) & U((1 << max(WIDTH[kind], 32)) - 1)


def read(state: State, spelling: Spelling, operand: str, kind: str, number: int) -> np.ndarray:
    """Bits of source `number` per wave and lane with selection and float modifiers."""
    name, neg, absolute, sext = strip(operand)
    bits = words(state, name, kind)
    selection = spelling.options.get(f"src{number}_sel", "DWORD")
    if selection != "DWORD":
        part, index = selection.split("_")
        size = 8 if part == "BYTE" else 16
        bits = bits >> U(int(index) * size) & U((1 << size) - 1)
        if sext:
            bits = np.where(bits >> U(size - 1), bits | U(0xFFFFFFFF >> size << size), bits)
    if WIDTH[kind] == 16 and spelling.bits("op_sel", "0,0,0,0")[number] and registers(name):
        bits = bits >> U(16)
    bits = bits & U((1 << WIDTH[kind]) - 1)
    sign = U(1 << (WIDTH[kind] - 1))
    bits = bits & ~sign if absolute else bits
    return bits ^ sign if neg else bits


def packed_bits(
    state: State, spelling: Spelling, operand: str, kind: str, number: int
) -> tuple[np.ndarray, np.ndarray]:
    """Both elements of source `number` of a packed instruction; op_sel and neg choose per result half."""
    element = kind.removesuffix("x2")
    width = WIDTH[element]
    if registers(operand) is None and "." in operand:
        whole = np.full((state.waves, LANES), constant(operand, element), U)  # the upper half is zero
    else:
        whole = words(state, operand, "b64" if width == 32 else "b32")
    halves = []
    for select, negate, default in (("op_sel", "neg_lo", 0), ("op_sel_hi", "neg_hi", 1)):
        word = spelling.bits(select, ",".join([str(default)] * 3))[number]
        assert width == 16 or registers(operand) or not word, "the upper word of a constant is not defined"
        bits = whole >> U(word * width) & U((1 << width) - 1)
        if spelling.bits(negate, "0,0,0")[number]:
            bits = bits ^ U(1 << (width - 1))
        halves.append(bits)
    return halves[0], halves[1]


def packed(state: State, spelling: Spelling, operand: str, kind: str, number: int) -> list[tuple]:
    """Both elements, decoded."""
    halves = packed_bits(state, spelling, operand, kind, number)
    return list(zip(*(decode(kind.removesuffix("x2"), half.reshape(-1)) for half in halves), strict=True))


def mixed(state: State, spelling: Spelling, operand: str, number: int) -> list[float]:
    """Source `number` of v_fma_mix: float16 from the half that op_sel names where op_sel_hi is set, else float32."""
    kind = "f16" if spelling.bits("op_sel_hi", "0,0,0")[number] else "f32"
    return decode(kind, read(state, spelling, operand, kind, number).reshape(-1))
