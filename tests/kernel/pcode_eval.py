# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Evaluator of parsed pseudocode: typed values, C-like integer promotion, one rounding per float operation."""

from __future__ import annotations

import operator
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from tests.kernel import pcode_float as pf
from tests.kernel.pcode_float import FORMATS, Class, Rounding
from tests.kernel.pcode_lang import Node
from tests.kernel.pcode_values import (
    FLOAT_KINDS,
    Kind,
    PcodeUnsupported,
    Val,
    builtin,
    common,
    flag,
    promoted,
    raw,
    rounded,
    val,
)


@dataclass
class Vgprs:
    """`VGPR[lane][register]`."""

    registers: dict[int, list[int]]
    lane: int | None = None


@dataclass
class Memory:
    """`MEM[address]`, one byte per key or index."""

    data: MutableMapping[int, int] | bytearray

    def read(self, address: int, width: int) -> int:
        return sum(self.data[address + i] << (8 * i) for i in range((width + 7) // 8))

    def write(self, address: int, width: int, bits: int) -> None:
        for i in range((width + 7) // 8):
            self.data[address + i] = (bits >> (8 * i)) & 0xFF


@dataclass
class Place:
    """A bit range that a statement can assign: `width` None means the whole variable."""

    load: Callable[[int, int], int]
    store: Callable[[int, int, int], None]
    low: int = 0
    width: int | None = None


@dataclass
class Machine:
    """State of one evaluation: variables by name, among them the registers."""

    env: dict[str, Any]
    call_instruction: Callable[[str, list[Val]], Val]
    functions: dict[str, Node] = field(default_factory=dict)
    d0_type: Kind = ("b", 32)

    # Statements: a block returns None, "break", or the Val that it returned.

    def run(self, block: tuple[Node, ...]) -> Val | str | None:
        last = None
        for node in block:
            kind = node[0]
            if kind == "assign":
                self._assign(node[1], self.eval(node[2]))
            elif kind == "if":
                arm = next((body for test, body in node[1] if self._true(test)), node[2])
                result = self.run(arm)
                if result is not None:
                    return result
            elif kind == "for":
                result = self._loop(node)
                if result is not None:
                    return result
            elif kind == "declare":
                self._declare(*node[1:])
            elif kind == "lambda":
                self.functions[node[1]] = node
            elif kind == "return":
                return self.eval(node[1])
            elif kind == "break":
                return "break"
            elif kind == "value":
                last = self.eval(node[1]) if len(block) == 1 else None
        return last

    def _true(self, node: Node) -> bool:
        return self.eval(node).true()

    def _loop(self, node: Node) -> Val | str | None:
        _, name, first, last, body = node
        start = self.eval(first)
        for i in range(int(start), int(self.eval(last)) + 1):
            self.env[name] = val(start.kind, start.width, i)
            result = self.run(body)
            if result == "break":
                break
            if result is not None:
                return result
        return None

    def _declare(self, name: str, kind: Kind, count: int | None) -> None:
        if name in self.env and name != "RETURN_DATA":  # a declared input
            return
        blank = val(*kind, 0)
        self.env[name] = blank if count is None else [blank] * count

    # Assignment

    def _assign(self, targets: tuple[Node, ...], value: Val) -> None:
        for target in targets:
            if target[0] == "concat":
                low = 0
                for part in reversed(target[1]):
                    width = part[2][1]
                    self._assign((part,), val("b", width, value.bits >> low))
                    low += width
            elif target[0] == "name":
                self.env[target[1]] = flag(value.bits != 0) if target[1] == "SCC" else value
            else:
                if target[0] == "view":
                    value = self._converted(value, target[2])
                    if target[1] == ("name", "D0"):
                        self.d0_type = target[2]
                place = self._place(target)
                width = value.width if place.width is None else place.width
                place.store(place.low, width, value.bits & ((1 << width) - 1))

    def _converted(self, value: Val, kind: Kind) -> Val:
        """The value as the assigned type: floats convert, everything else keeps its bits."""
        if value.is_float and kind[0] in FLOAT_KINDS:
            return value if (value.kind, value.width) == kind else rounded(value.real(), kind, self.mode)
        return val(*kind, int(value))

    def _place(self, node: Node) -> Place:
        if node[0] == "name":
            return self._variable(node[1])
        if node[0] == "view":
            place = self._place(node[1])
            place.width = node[2][1] if place.width is None else min(place.width, node[2][1])
            return place
        if node[0] == "slice":
            place = self._place(node[1])
            high, low = int(self.eval(node[2])), int(self.eval(node[3]))
            return Place(place.load, place.store, place.low + low, high - low + 1)
        if node[0] == "index":
            return self._element(node)
        raise PcodeUnsupported(f"assignment to {node[0]}")

    def _variable(self, name: str) -> Place:
        def load(low: int, width: int) -> int:
            return (self.env[name].bits >> low) & ((1 << width) - 1)

        def store(low: int, width: int, bits: int) -> None:
            old = self.env.get(name) or Val("b", low + width, 0)
            kept = old.bits & ~(((1 << width) - 1) << low)
            self.env[name] = Val(old.kind, max(old.width, low + width), kept | bits << low)

        return Place(load, store)

    def _element(self, node: Node) -> Place:
        base = self.env.get(node[1][1]) if node[1][0] == "name" else None
        if node[1][0] == "index":
            base = self.eval(node[1])
        position = int(self.eval(node[2]))
        if isinstance(base, Memory):
            return Place(
                lambda low, width: base.read(position, width),
                lambda low, width, bits: base.write(position, width, bits),
                width=None,
            )
        if isinstance(base, Vgprs):
            register = base.registers[position]

            def store(low: int, width: int, bits: int) -> None:
                kept = register[base.lane] & ~(((1 << width) - 1) << low)
                register[base.lane] = kept | bits << low

            return Place(lambda low, width: (register[base.lane] >> low) & ((1 << width) - 1), store)
        if isinstance(base, list):

            def put(low: int, width: int, bits: int) -> None:
                base[position] = Val(base[position].kind, base[position].width, bits)

            return Place(lambda low, width: base[position].bits, put, width=base[position].width)
        place = self._place(node[1])
        return Place(place.load, place.store, place.low + position, 1)

    # Expressions

    def eval(self, node: Node) -> Any:
        return getattr(self, "_eval_" + node[0])(node)

    def _eval_number(self, node: Node) -> Val:
        return val(*node[1], node[2])

    def _eval_real(self, node: Node) -> Val:
        return rounded(pf.finite(Fraction(node[2])), node[1])

    def _eval_name(self, node: Node) -> Any:
        if node[1] not in self.env:
            raise PcodeUnsupported(f"name {node[1]}")
        return self.env[node[1]]

    def _eval_view(self, node: Node) -> Val:
        base, kind = node[1], node[2]
        if base[0] == "index" and isinstance(memory := self.env.get(base[1][1]), Memory):
            return val(*kind, memory.read(int(self.eval(base[2])), kind[1]))
        value = self.eval(base)
        if base[0] == "name" and base[1] in ("INF", "NAN"):
            return rounded(value.real(), kind)
        return val(*kind, value.bits)

    def _eval_index(self, node: Node) -> Any:
        base, position = self.eval(node[1]), int(self.eval(node[2]))
        if isinstance(base, list):
            return base[position]
        if isinstance(base, Memory):
            return val("b", 32, base.read(position, 32))
        if isinstance(base, Vgprs):
            if base.lane is None:
                return Vgprs(base.registers, position)
            return raw(base.registers[position][base.lane])
        return val("u", 1, base.bits >> position)

    def _eval_slice(self, node: Node) -> Val:
        value, high, low = self.eval(node[1]), int(self.eval(node[2])), int(self.eval(node[3]))
        if high >= low:
            return val("u", high - low + 1, value.bits >> low)
        width = low - high + 1
        return val("u", width, int(f"{(value.bits >> high) & ((1 << width) - 1):0{width}b}"[::-1], 2))

    def _eval_concat(self, node: Node) -> Val:
        bits = width = 0
        for part in node[1]:
            value = self.eval(part)
            bits, width = bits << value.width | value.bits, width + value.width
        return Val("b", width, bits)

    def _eval_cast(self, node: Node) -> Val:
        kind, value = node[1], self.eval(node[2])
        if kind[0] in FLOAT_KINDS:
            if value.exact:
                return Val(*kind, 0, value.exact)
            return rounded(value.real(), kind) if value.is_float else val(*kind, value.bits)
        return val(*kind, value.bits if value.is_float else int(value))

    def _eval_ternary(self, node: Node) -> Any:
        return self.eval(node[2] if self._true(node[1]) else node[3])

    def _eval_unary(self, node: Node) -> Val:
        value = self.eval(node[2])
        if node[1] == "!":
            return flag(not self._true(node[2]))
        if value.is_float:
            return rounded(pf.negated(value.real()), (value.kind, value.width), self.mode) if node[1] == "-" else value
        kind = promoted(value)
        return val(*kind, {"-": -int(value), "~": ~int(value), "+": int(value)}[node[1]])

    def _eval_binary(self, node: Node) -> Val:
        _, symbol, left, right = node
        if symbol == "&&":
            return flag(self._true(left) and self._true(right))
        if symbol == "||":
            return flag(self._true(left) or self._true(right))
        if symbol == "==" and right[0] == "view" and right[1] == ("name", "DENORM"):
            value = self.eval(left).real()
            return flag(value.kind is Class.FINITE and 0 < value.magnitude < _smallest_normal(right[2]))
        a, b = self.eval(left), self.eval(right)
        if symbol in _COMPARISONS:
            if symbol == "==" and right[0] == "unary" and right[2][0] == "real" and b.real().is_zero:
                return flag(a.bits == b.bits)  # `x == -0.0` with a written sign means that very zero
            return flag(_compared(symbol, a, b))
        if a.is_float or b.is_float:
            return self._float_binary(symbol, a, b)
        if symbol in ("<<", ">>"):
            shifted = int(a) << int(b) if symbol == "<<" else int(a) >> int(b)
            return val(*promoted(a), shifted)
        return val(*common(a, b), _INTEGER[symbol](int(a), int(b)))

    def _float_binary(self, symbol: str, a: Val, b: Val) -> Val:
        if symbol == "**":
            # Beyond +-5000 every format has over- or underflowed, whatever the other factor is.
            power = min(max(int(b), -5000), 5000)
            return Val(a.kind, a.width, 0, pf.finite(a.real().value ** power))
        kind = max((a, b), key=lambda x: 0 if x.exact else x.width)
        return rounded(_FLOAT[symbol](a.real(), b.real()), (kind.kind, kind.width), self.mode)

    def _eval_call(self, node: Node) -> Any:
        name, arguments = node[1], node[2]
        if name.startswith("Calc"):
            return self._address(name, arguments)
        if name in self.functions:
            _, _, parameters, body = self.functions[name]
            named = dict(zip(parameters, map(self.eval, arguments), strict=True))
            return Machine({**self.env, **named}, self.call_instruction).run(body)
        values = [self.eval(argument) for argument in arguments]
        function = builtin(name)
        return function(self.mode, *values) if function else self.call_instruction(name, values)

    def _address(self, name: str, arguments: tuple[Node, ...]) -> Val:
        """Sum of the parts, full width: the manual's `.b32` there is only the width of one register."""
        parts = [int(self.eval(node[1] if node[0] == "view" else node)) for node in arguments]
        if name == "CalcDsAddr":
            return val("u", 32, parts[0] + parts[1] + (parts[2] << 8))
        return val("u", 64, sum(parts))

    @property
    def mode(self) -> Rounding:
        return self.env.get("ROUND_MODE", Rounding.NEAREST_EVEN)


def _compared(symbol: str, a: Val, b: Val) -> bool:
    if a.is_float or b.is_float:
        order = pf.compared(a.real(), b.real())
        # Only `!=` holds for a NaN; `<>` is less-or-greater.
        return symbol == "!=" if order is None else _COMPARISONS[symbol](order, 0)
    kind = common(a, b)
    return _COMPARISONS[symbol](int(val(*kind, int(a))), int(val(*kind, int(b))))


def _smallest_normal(kind: Kind) -> Fraction:
    return Fraction(2) ** (1 - FORMATS[kind].bias)


_COMPARISONS = {
    "==": operator.eq, "!=": operator.ne, "<>": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_INTEGER = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv, "%": operator.mod,
    "&": operator.and_, "|": operator.or_, "^": operator.xor, "**": operator.pow,
}  # fmt: skip
_FLOAT = {
    "+": pf.added,
    "-": lambda a, b: pf.added(a, b if b.kind is Class.NAN else pf.negated(b)),
    "*": pf.multiplied,
    "/": pf.divided,
}
