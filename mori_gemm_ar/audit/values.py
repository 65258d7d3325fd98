# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What is known of a value without running the kernel: a constant, a function of the thread number, or only that all
threads of a workgroup hold the same.

A node is an expression over constants and the thread number; equal expressions are one object. UNIFORM stands for any
value that is equal in all threads of the workgroup, None for everything else. An expression is computed for all
threads of a workgroup at once, and only when a rule asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

LANES = 64
M32, M64 = (1 << 32) - 1, (1 << 64) - 1


class Node:
    """An expression. `op` names it, `args` are nodes or ints; `uniform`: equal in all threads."""

    __slots__ = ("__weakref__", "args", "op", "scalar", "uniform")

    def __init__(self, op: str, args: tuple[Node | int, ...], uniform: bool, scalar: bool) -> None:
        self.op, self.args, self.uniform, self.scalar = op, args, uniform, scalar

    def __repr__(self) -> str:
        return f"{self.op}({', '.join(map(str, self.args))})"


Value = Node | None
UNIFORM = Node("uniform", (), True, True)
THREAD = Node("thread", (), False, False)
LANE = Node("lane", (), False, False)

_NODES: WeakValueDictionary[tuple[object, ...], Node] = WeakValueDictionary()


def constant(value: int) -> Node:
    """A literal; the operation that uses it decides its width."""
    return _node("const", (value,), True, True)


def _node(op: str, args: tuple[Node | int, ...], uniform: bool, scalar: bool) -> Node:
    key = (op, *args)
    node = _NODES.get(key)
    if node is None:
        node = _NODES[key] = Node(op, args, uniform, scalar)
    return node


def is_full(value: Value) -> bool:
    """Whether a lane mask has all lanes."""
    return value is not None and value.op == "const" and value.args[0] & M64 == M64  # type: ignore[operator]


def is_constant(value: Value, number: int) -> bool:
    """Whether a value is this literal."""
    return value is not None and value.op == "const" and value.args[0] == number


def apply(op: str, *args: Value, reduces: bool = False) -> Value:
    """The value of an operation; `reduces` makes one value for each wave of what differs between lanes."""
    uniform = scalar = True
    for arg in args:
        if arg is None:
            return None
        uniform, scalar = uniform and arg.uniform, scalar and arg.scalar
    if UNIFORM in args:
        return UNIFORM if uniform else None
    if op not in _EVALUATE and op not in _SPECIAL:
        return UNIFORM if uniform else None
    if op == "pick":  # each lane chooses
        return _node(op, args, False, False)  # type: ignore[arg-type]
    if uniform and op in _EVALUATE:
        return constant(_EVALUATE[op](*[arg.args[0] for arg in args]))  # type: ignore[union-attr]
    return _node(op, args, uniform, scalar or reduces)  # type: ignore[arg-type]


# ---- operations on one lane ---------------------------------------------------------------------------------------


def _signed(value: int, bits: int = 32) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def _bitop3(a: int, b: int, c: int, table: int) -> int:
    result = 0
    for row in range(8):
        if table >> row & 1:
            result |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return result & M32


def _field(value: int, offset: int, width: int) -> int:
    return (value & M32) >> (offset & 31) & ((1 << (width & 31)) - 1)


def _compares(bits: int) -> dict[str, Callable[..., int]]:
    mask = (1 << bits) - 1
    tests: dict[str, Callable[[int, int], bool]] = {
        "eq": lambda a, b: a == b,
        "ne": lambda a, b: a != b,
        "lg": lambda a, b: a != b,
        "lt": lambda a, b: a < b,
        "le": lambda a, b: a <= b,
        "gt": lambda a, b: a > b,
        "ge": lambda a, b: a >= b,
    }
    table: dict[str, Callable[..., int]] = {}
    for name, test in tests.items():
        table[f"{name}_u{bits}"] = lambda a, b, t=test: int(t(a & mask, b & mask))
        table[f"{name}_i{bits}"] = lambda a, b, t=test: int(t(_signed(a, bits), _signed(b, bits)))
    return table


# Operands come in the order of the text with the value shifted or subtracted from first, whatever the mnemonic.
_EVALUATE: dict[str, Callable[..., int]] = {
    "mov": lambda a: a & M32,
    "not": lambda a: ~a & M32,
    "add": lambda a, b: (a + b) & M32,
    "sub": lambda a, b: (a - b) & M32,
    "add_carry": lambda a, b: int((a & M32) + (b & M32) > M32),
    "sub_borrow": lambda a, b: int((a & M32) < (b & M32)),
    "addc": lambda a, b, c: (a + b + c) & M32,
    "and": lambda a, b: a & b & M32,
    "or": lambda a, b: (a | b) & M32,
    "xor": lambda a, b: (a ^ b) & M32,
    "andn2": lambda a, b: a & ~b & M32,
    "orn2": lambda a, b: (a | ~b) & M32,
    "shl": lambda a, n: a << (n & 31) & M32,
    "shr": lambda a, n: (a & M32) >> (n & 31),
    "sar": lambda a, n: _signed(a) >> (n & 31) & M32,
    "mul": lambda a, b: a * b & M32,
    "mul_hi": lambda a, b: (a & M32) * (b & M32) >> 32,
    "mul24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) & M32,
    "bfe": _field,
    "min_u": lambda a, b: min(a & M32, b & M32),
    "max_u": lambda a, b: max(a & M32, b & M32),
    "min_i": lambda a, b: min(_signed(a), _signed(b)) & M32,
    "max_i": lambda a, b: max(_signed(a), _signed(b)) & M32,
    "bitop3": _bitop3,
    "select": lambda a, b, c: (a if c else b) & M64,
    "join": lambda low, high: low & M32 | (high & M32) << 32,
    "low": lambda a: a & M32,
    "high": lambda a: a >> 32 & M32,
    "and64": lambda a, b: a & b & M64,
    "or64": lambda a, b: (a | b) & M64,
    "xor64": lambda a, b: (a ^ b) & M64,
    "andn264": lambda a, b: a & ~b & M64,
    "orn264": lambda a, b: (a | ~b) & M64,
    "not64": lambda a: ~a & M64,
    "shl64": lambda a, n: a << (n & 63) & M64,
    "shr64": lambda a, n: (a & M64) >> (n & 63),
    "nonzero": lambda a: int(a & M64 != 0),
    "bit": lambda a, n: a >> (n & 31) & 1,
    **_compares(32),
    **_compares(64),
}
# Across lanes: `first` the value of lane 0, `mask` one bit for each lane, `lane` the lane number, `pick` by lane mask.
_SPECIAL = frozenset({"first", "mask", "lane", "pick"})


# ---- lane masks ---------------------------------------------------------------------------------------------------


FULL, ZERO = constant(M64), constant(0)


def mask_and(one: Value, other: Value) -> Value:
    """AND of lane masks."""
    if is_full(one) or is_constant(other, 0):
        return other
    if is_full(other) or is_constant(one, 0):
        return one
    return apply("and64", one, other)


def mask_or(one: Value, other: Value) -> Value:
    """OR of lane masks."""
    if is_full(one) or is_constant(other, 0):
        return one
    if is_full(other) or is_constant(one, 0):
        return other
    return one if one is other else apply("or64", one, other)


def pick(one: Value, other: Value, mask: Value) -> Value:
    """`one` in the lanes of the mask, `other` elsewhere."""
    if one is other or is_full(mask):
        return one
    if is_constant(mask, 0):
        return other
    return None if UNIFORM in (one, other, mask) else apply("pick", one, other, mask)


def lane_mask(test: Value) -> Value:
    """One bit for each lane: whether its value is not zero."""
    if test is None or test is UNIFORM:
        return test
    if test.op == "const":
        return FULL if test.args[0] else ZERO
    return apply("mask", test, reduces=True)


def first_lane(value: Value, mask: Value) -> Value:
    """What v_readfirstlane gives: lane 0's value while all lanes are active, else only what all lanes agree on."""
    if value is None or value.scalar:
        return value
    return apply("first", value, reduces=True) if is_full(mask) else None


# ---- evaluation ---------------------------------------------------------------------------------------------------

Lanes = Sequence[int]


class Evaluator:
    """Computes nodes for the waves of one workgroup: a list for each wave, of one value or of one for each lane."""

    def __init__(self, waves: int) -> None:
        self.waves = waves
        self._known: dict[Node, list[Lanes]] = {}

    def of(self, node: Node) -> list[Lanes]:
        """Values in each wave: a list of one when all lanes hold the same, else 64."""
        stack = [node]
        while stack:
            top = stack[-1]
            missing = [arg for arg in top.args if isinstance(arg, Node) and arg not in self._known]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            if top not in self._known:
                self._known[top] = [self._wave(top, wave) for wave in range(self.waves)]
        return self._known[node]

    def per_wave(self, node: Node) -> list[int] | None:
        """One value for each wave, None when its lanes differ."""
        values = self.of(node)
        if any(min(lanes) != max(lanes) for lanes in values):
            return None
        return [lanes[0] for lanes in values]

    def _wave(self, node: Node, wave: int) -> Lanes:
        if node.op == "const":
            return [node.args[0]]  # type: ignore[list-item]
        if node.op == "thread":
            return range(LANES * wave, LANES * (wave + 1))
        if node.op == "lane":
            return range(LANES)
        args = [self._known[arg][wave] for arg in node.args if isinstance(arg, Node)]
        if node.op == "first":
            return [args[0][0]]
        if node.op == "mask":
            bits = 0
            for lane, value in enumerate(_spread(args[0])):
                bits |= (value & 1) << lane
            return [bits]
        if node.op == "pick":
            mask = args[2][0]
            one, other = _spread(args[0]), _spread(args[1])
            return [a if mask >> lane & 1 else b for lane, (a, b) in enumerate(zip(one, other, strict=True))]
        function = _EVALUATE[node.op]
        if all(len(arg) == 1 for arg in args):
            return [function(*[arg[0] for arg in args])]
        return [function(*lane) for lane in zip(*[_spread(arg) for arg in args], strict=True)]


def _spread(values: Lanes) -> Lanes:
    return values if len(values) == LANES else list(values) * LANES
