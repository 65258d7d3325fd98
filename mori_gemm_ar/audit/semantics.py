# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""From an instruction to what it makes of values (see audit.values). What is not listed here keeps only uniformity.

The scope is addresses, wave numbers and conditions: 32-bit integers, lane masks, selects. Floats and the rest are
known to be uniform, or not known at all. A step is made once for each text of an instruction.
"""

from __future__ import annotations

from collections.abc import Callable

from mori_gemm_ar.audit.operations import Kind, Op
from mori_gemm_ar.audit.registers import SCC_BIT, bit_of, bits_of
from mori_gemm_ar.audit.values import (
    LANE,
    M32,
    UNIFORM,
    Node,
    Value,
    apply,
    constant,
    first_lane,
    is_constant,
    is_full,
    lane_mask,
    mask_and,
    mask_or,
    pick,
)
from mori_gemm_ar.errors import IsaError
from mori_gemm_ar.isa import EXEC, VCC, Instruction, Literal, Operand, Reg, Token

EXEC_BIT, VCC_BIT = bit_of(EXEC), bit_of(VCC)


class Values:
    """Values of registers at one point: bit position -> node; a register that is missing may hold anything.

    `lenient`: what is written under an unknown mask counts as written in all lanes. That is right for whoever reads it
    under the same mask, as addresses are.
    """

    __slots__ = ("known", "lenient")

    def __init__(self, known: dict[int, Node], lenient: bool = False) -> None:
        self.known, self.lenient = known, lenient

    def copy(self) -> Values:
        """An independent copy."""
        return Values(dict(self.known), self.lenient)

    def pair(self, bit: int) -> Value:
        """The 64-bit value of two neighbouring registers."""
        low, high = self.known.get(bit), self.known.get(bit + 1)
        if low is None or high is None:
            return None
        if low.op == "low" and high.op == "high" and low.args[0] is high.args[0]:
            return low.args[0]  # type: ignore[return-value]
        return apply("join", low, high)

    def put(self, bit: int, value: Value) -> None:
        """Set one register."""
        if value is None:
            self.known.pop(bit, None)
        else:
            self.known[bit] = value

    def put_pair(self, bit: int, value: Value) -> None:
        """Set two neighbouring registers to the halves of a value."""
        self.put(bit, apply("low", value))
        self.put(bit + 1, apply("high", value))

    def put_lanes(self, bit: int, new: Value) -> None:
        """Set a vector register where the execution mask says."""
        mask = self.pair(EXEC_BIT)
        if mask is not None or not self.lenient:
            new = pick(new, self.known.get(bit), mask)
        self.put(bit, new)


Step = Callable[[Values], None]
Read = Callable[[Values], Value]


def _bit(operand: Operand) -> int:
    if operand.reg is None:
        raise IsaError(f"operand {operand} must be a register")
    return bit_of(operand.reg)


def _read(operand: Operand, wide: bool = False) -> Read:
    """How a source is read; `wide` takes two registers."""
    value = operand.value
    if isinstance(value, Literal):
        node = constant(value.value) if isinstance(value.value, int) else UNIFORM
        return lambda values: node
    if isinstance(value, Reg):
        bit = bit_of(value)
        if wide:
            return lambda values: values.pair(bit)
        return lambda values: values.known.get(bit)
    if isinstance(value, Token) and value.text == "scc":
        return lambda values: values.known.get(SCC_BIT)
    return lambda values: None


# ---- scalar -------------------------------------------------------------------------------------------------------

Binary = Callable[[Value, Value], Value]


def _op(name: str) -> Binary:
    return lambda a, b: apply(name, a, b)


def _shift_add(bits: int) -> Binary:
    return lambda a, b: apply("add", apply("shl", a, constant(bits)), b)


def _scalar_bfe(a: Value, b: Value) -> Value:
    if b is None or b.op != "const" or not isinstance(b.args[0], int):
        return None
    return apply("bfe", a, constant(b.args[0] & 31), constant(b.args[0] >> 16 & 127))


def _set_bit(name: str) -> Binary:
    return lambda a, b: apply(name, a, apply("shl", constant(1), b))


_BINARY: dict[str, Binary] = {
    "s_add_u32": _op("add"), "s_add_i32": _op("add"), "s_sub_u32": _op("sub"), "s_sub_i32": _op("sub"),
    "s_and_b32": _op("and"), "s_or_b32": _op("or"), "s_xor_b32": _op("xor"), "s_andn2_b32": _op("andn2"),
    "s_orn2_b32": _op("orn2"), "s_lshl_b32": _op("shl"), "s_lshr_b32": _op("shr"), "s_ashr_i32": _op("sar"),
    "s_mul_i32": _op("mul"), "s_mul_hi_u32": _op("mul_hi"), "s_min_u32": _op("min_u"), "s_max_u32": _op("max_u"),
    "s_min_i32": _op("min_i"), "s_max_i32": _op("max_i"), "s_lshl1_add_u32": _shift_add(1),
    "s_lshl2_add_u32": _shift_add(2), "s_lshl3_add_u32": _shift_add(3), "s_lshl4_add_u32": _shift_add(4),
    "s_bfe_u32": _scalar_bfe, "s_addk_i32": _op("add"), "s_mulk_i32": _op("mul"),
    "s_bitset0_b32": _set_bit("andn2"), "s_bitset1_b32": _set_bit("or"),
}  # fmt: skip
_BINARY_64: dict[str, Binary] = {
    "and": mask_and, "or": mask_or, "xor": _op("xor64"), "andn2": _op("andn264"), "orn2": _op("orn264"),
}  # fmt: skip
# SCC of these says whether the result is not zero.
_TESTS_RESULT = ("s_and", "s_or", "s_xor", "s_andn2", "s_orn2", "s_lshl_", "s_lshr_", "s_ashr", "s_bfe")
_TIED = ("s_addk_i32", "s_mulk_i32", "s_bitset0_b32", "s_bitset1_b32")  # the destination is the first source
_KEEPS_SCC = ("s_mul", "s_bitset")


def _scalar_32(i: Instruction) -> Step:
    name, out = i.name, _bit(i.operands[0])
    function = _BINARY[name]
    tied = name in _TIED
    read_a, read_b = (_read(o) for o in (i.operands[:2] if tied else i.operands[1:3]))
    carry = {"s_add_u32": "add_carry", "s_sub_u32": "sub_borrow"}.get(name)
    tests, keeps_scc = name.startswith(_TESTS_RESULT), name.startswith(_KEEPS_SCC)

    def step(values: Values) -> None:
        a, b = read_a(values), read_b(values)
        result = function(a, b)
        values.put(out, result)
        if keeps_scc:
            return
        if tests:
            values.put(SCC_BIT, apply("nonzero", result))
        elif carry is not None:
            values.put(SCC_BIT, apply(carry, a, b))
        else:
            values.put(SCC_BIT, UNIFORM if a is not None and b is not None and a.uniform and b.uniform else None)

    return step


def _scalar_64(i: Instruction, function: Binary) -> Step:
    out, read_a, read_b = _bit(i.operands[0]), _read(i.operands[1], True), _read(i.operands[2], True)

    def step(values: Values) -> None:
        result = function(read_a(values), read_b(values))
        values.put_pair(out, result)
        values.put(SCC_BIT, apply("nonzero", result))

    return step


def _save_exec(i: Instruction) -> Step | None:
    kind = i.name[2 : -len("_saveexec_b64")]
    function = _BINARY_64.get(kind)
    if function is None:
        return None
    out, read = _bit(i.operands[0]), _read(i.operands[1], True)

    def step(values: Values) -> None:
        before, mask = values.pair(EXEC_BIT), read(values)
        after = function(mask, before)
        values.put_pair(out, before)
        values.put_pair(EXEC_BIT, after)
        values.put(SCC_BIT, apply("nonzero", after))

    return step


def _scalar_move(i: Instruction) -> Step:
    out = _bit(i.operands[0])
    if i.name.endswith("64"):
        read = _read(i.operands[1], True)
        return lambda values: values.put_pair(out, read(values))
    read = _read(i.operands[1])
    return lambda values: values.put(out, apply("mov", read(values)))


def _scalar_select(i: Instruction) -> Step:
    wide, out = i.name.endswith("64"), _bit(i.operands[0])
    read_a, read_b = (_read(o, wide) for o in i.operands[1:3])

    def step(values: Values) -> None:
        result = apply("select", read_a(values), read_b(values), values.known.get(SCC_BIT))
        (values.put_pair if wide else values.put)(out, result)

    return step


def _scalar_compare(i: Instruction) -> Step:
    wide, test = i.name.endswith("64"), i.name.split("_", 2)[2]
    read_a, read_b = (_read(o, wide) for o in i.operands[:2])
    return lambda values: values.put(SCC_BIT, apply(test, read_a(values), read_b(values)))


def _bit_test(i: Instruction) -> Step:
    read_a, read_b = (_read(o) for o in i.operands[:2])
    wanted = constant(int(i.name == "s_bitcmp1_b32"))
    return lambda values: values.put(SCC_BIT, apply("eq_u32", apply("bit", read_a(values), read_b(values)), wanted))


def _scalar(i: Instruction) -> Step | None:
    name = i.name
    if name in ("s_mov_b32", "s_movk_i32", "s_mov_b64"):
        return _scalar_move(i)
    if name in _BINARY:
        return _scalar_32(i)
    if name.startswith("s_cselect"):
        return _scalar_select(i)
    if name.endswith("_saveexec_b64"):
        return _save_exec(i)
    if name.endswith("_b64") and name[2:-4] in _BINARY_64:
        return _scalar_64(i, _BINARY_64[name[2:-4]])
    if name.startswith(("s_cmp_", "s_cmpk_")):
        return _scalar_compare(i)
    if name in ("s_bitcmp0_b32", "s_bitcmp1_b32"):
        return _bit_test(i)
    return None


# ---- vector -------------------------------------------------------------------------------------------------------


def _reversed(name: str) -> Callable[..., Value]:
    return lambda a, b: apply(name, b, a)


def _then(first: str, second: str) -> Callable[..., Value]:
    return lambda a, b, c: apply(second, apply(first, a, b), c)


def _count_below(low: bool) -> Callable[..., Value]:
    """Set bits of a half mask below each lane, plus a number: the lane number when the mask is full."""
    half = constant(32)
    count = apply("min_u", LANE, half) if low else apply("sub", apply("max_u", LANE, half), half)
    return lambda mask, addend: apply("add", count, addend) if is_constant(apply("mov", mask), M32) else None


_VECTOR: dict[str, Callable[..., Value]] = {
    "v_mov_b32": lambda a: apply("mov", a), "v_not_b32": lambda a: apply("not", a),
    "v_add_u32": _op("add"), "v_sub_u32": _op("sub"), "v_subrev_u32": _reversed("sub"),
    "v_and_b32": _op("and"), "v_or_b32": _op("or"), "v_xor_b32": _op("xor"),
    "v_lshlrev_b32": _reversed("shl"), "v_lshrrev_b32": _reversed("shr"), "v_ashrrev_i32": _reversed("sar"),
    "v_mul_lo_u32": _op("mul"), "v_mul_hi_u32": _op("mul_hi"), "v_mul_u32_u24": _op("mul24"),
    "v_min_u32": _op("min_u"), "v_max_u32": _op("max_u"), "v_min_i32": _op("min_i"), "v_max_i32": _op("max_i"),
    "v_add3_u32": _then("add", "add"), "v_or3_b32": _then("or", "or"), "v_and_or_b32": _then("and", "or"),
    "v_lshl_or_b32": _then("shl", "or"), "v_lshl_add_u32": _then("shl", "add"), "v_add_lshl_u32": _then("add", "shl"),
    "v_xad_u32": _then("xor", "add"), "v_mad_u32_u24": _then("mul24", "add"),
    "v_bfe_u32": lambda a, b, c: apply("bfe", a, b, c),
    "v_mbcnt_lo_u32_b32": _count_below(low=True), "v_mbcnt_hi_u32_b32": _count_below(low=False),
}  # fmt: skip
_ODD_ENCODINGS = frozenset({"dst_sel", "src0_sel", "src1_sel", "row_mask", "quad_perm", "clamp", "op_sel"})


def _vector(i: Instruction) -> Step | None:
    name, operands = i.name, i.operands
    if not _ODD_ENCODINGS.isdisjoint(i.modifiers):
        return None
    if name in _VECTOR or name == "v_bitop3_b32":
        return _vector_32(i)
    if name == "v_mov_b64":
        out, wide = _bit(operands[0]), _read(operands[1], True)

        def move(values: Values) -> None:
            value = wide(values)
            values.put_lanes(out, apply("low", value))
            values.put_lanes(out + 1, apply("high", value))

        return move
    if name == "v_cndmask_b32":
        out, zero, one = _bit(operands[0]), _read(operands[1]), _read(operands[2])
        mask = _read(operands[3], True)
        return lambda values: values.put_lanes(out, pick(one(values), zero(values), mask(values)))
    if name.startswith("v_cmp_") and name.endswith(("_u32", "_i32", "_u64", "_i64")):
        out, test = _bit(operands[0]), name.removeprefix("v_cmp_")
        a, b = (_read(o, name.endswith("64")) for o in operands[1:3])
        return lambda values: values.put_pair(
            out, mask_and(values.pair(EXEC_BIT), lane_mask(apply(test, a(values), b(values))))
        )
    if name == "v_readfirstlane_b32":
        out, read = _bit(operands[0]), _read(operands[1])
        return lambda values: values.put(out, first_lane(read(values), values.pair(EXEC_BIT)))
    if name == "v_readlane_b32":
        out, read = _bit(operands[0]), _read(operands[1])
        return lambda values: values.put(out, first_lane(read(values), None))
    return None


def _vector_32(i: Instruction) -> Step:
    out, reads = _bit(i.operands[0]), [_read(o) for o in i.operands[1:]]
    if i.name == "v_bitop3_b32":
        table = constant(i.option("bitop3"))
        return lambda values: values.put_lanes(out, apply("bitop3", *[read(values) for read in reads], table))
    function = _VECTOR[i.name]
    return lambda values: values.put_lanes(out, function(*[read(values) for read in reads]))


# ---- everything ---------------------------------------------------------------------------------------------------


def _unmodelled(i: Instruction, op: Op) -> Step:
    """Uniform when everything it reads is, else unknown."""
    writes, vector = bits_of(op.writes), i.name.startswith(("v_", "ds_"))
    if op.kind not in (None, Kind.SCALAR_LOAD):
        reads: list[int] = [-1]  # memory may hold anything: no register has this number
    else:
        reads = bits_of(op.reads)

    def step(values: Values) -> None:
        known = values.known
        for bit in reads:
            value = known.get(bit)
            if value is None or not value.uniform:
                for out in writes:
                    known.pop(out, None)
                return
        uniform = not vector or is_full(values.pair(EXEC_BIT))
        for out in writes:
            values.put(out, UNIFORM if uniform else None)

    return step


_STEPS: dict[str, Step | None] = {}
_STEPS_LIMIT = 100_000


def step_of(i: Instruction, op: Op) -> Step | None:
    """How an instruction changes values; None when it changes none."""
    if not op.writes:
        return None
    if i.text not in _STEPS:
        if len(_STEPS) >= _STEPS_LIMIT:
            _STEPS.clear()
        made = _scalar(i) if i.name.startswith("s_") else _vector(i) if i.name.startswith("v_") else None
        _STEPS[i.text] = made or _unmodelled(i, op)
    return _STEPS.get(i.text)
