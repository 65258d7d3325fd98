# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Matrix instructions. Independent MFMAs of a segment wait in a queue and run as one batched float32 matmul.

Operand layout of MxNxK with one block (CDNA3 and CDNA4 ISA, matrix layouts): lane l holds row l % M and the K/(64/M)
consecutive k from l // M on. Result: column l % N; row 4*(l // 16) + r for 16x16, 8*(r // 4) + 4*(l // 32) + r % 4 for
32x32. The 128 k of an f8 row come in two halves: lane 16*q + row holds [16q, 16q + 16) and 64 + [16q, 16q + 16). In the
scaled form lane 16*s + row of the scale operand carries the exponent of that row's k in [32s, 32s + 32). MFMA ignores
the execution mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mori_gemm_ar.emulator.emit import Emitter, handles
from mori_gemm_ar.emulator.fp8_ops import decode_words
from mori_gemm_ar.errors import IsaError
from mori_gemm_ar.isa import Instruction, Literal, Reg


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """M = N, K and the element type of one MFMA."""

    m: int
    k: int
    element: str

    @property
    def operand_registers(self) -> int:
        """Registers of an A or B operand."""
        return self.m * self.k * {"f32": 4, "fp8": 1}.get(self.element, 2) // 256

    @property
    def result_registers(self) -> int:
        """Registers of the accumulator."""
        return self.m * self.m // 64

    @property
    def groups(self) -> int:
        """Lane groups that hold different k of the same row."""
        return 64 // self.m


_SHAPES = {
    f"v_mfma_f32_{m}x{m}x{k}_{element}": MatrixShape(m, k, element)
    for m, k, elements in (
        (16, 4, ("f32",)),
        (32, 2, ("f32",)),
        (16, 16, ("f16", "bf16")),
        (32, 8, ("f16", "bf16")),
        (16, 32, ("f16", "bf16")),
        (32, 16, ("f16", "bf16")),
    )
    for element in elements
}
# The f8f6f4 forms with cbsz and blgp 0, which is e4m3 on both sides.
_SHAPES.update(
    {
        "v_mfma_f32_16x16x32_fp8_fp8": MatrixShape(16, 32, "fp8"),
        "v_mfma_f32_32x32x16_fp8_fp8": MatrixShape(32, 16, "fp8"),
        "v_mfma_f32_16x16x128_f8f6f4": MatrixShape(16, 128, "fp8"),
        "v_mfma_f32_32x32x64_f8f6f4": MatrixShape(32, 64, "fp8"),
        "v_mfma_scale_f32_16x16x128_f8f6f4": MatrixShape(16, 128, "fp8"),
    }
)
_PLAIN_EXPONENTS = (127 - 40, 127 + 40)  # scales up to 2^40 keep products of e4m3 values far inside float32


@dataclass(frozen=True, slots=True)
class Side:
    """The A or the B operand: elements, and the register and byte that hold its scales, if it has scales."""

    reg: Reg
    scale: Reg | None = None
    byte: int = 0

    def reads(self) -> tuple[Reg, ...]:
        """Registers it still has to read."""
        return (self.reg,) if self.scale is None else (self.reg, self.scale)


@dataclass(frozen=True, slots=True)
class PendingMatrix:
    """A queued MFMA."""

    shape: MatrixShape
    d: Reg
    a: Side
    b: Side
    c: Reg | None

    def reads(self) -> tuple[Reg, ...]:
        """Registers it still has to read."""
        return self.a.reads() + self.b.reads() + (() if self.c is None else (self.c,))


def overlap(first: Reg, second: Reg) -> bool:
    """Whether two register runs share a register."""
    if first.file != second.file:
        return False
    return first.index < second.index + second.count and second.index < first.index + first.count


@handles(*_SHAPES)
def _matrix(e: Emitter, i: Instruction) -> None:
    shape = _SHAPES[i.name]
    for name in ("cbsz", "abid", "blgp"):
        if i.option(name):
            raise IsaError(f"{i}: {name} is not modelled")
    d, a, b = (o.reg for o in i.operands[:3])
    c = i.operands[3]
    if d is None or a is None or b is None or c.neg:
        raise IsaError(f"{i}: operands must be registers")
    if c.reg is None and not (isinstance(c.value, Literal) and c.value.value == 0):
        raise IsaError(f"{i}: the accumulator must be registers or 0")
    sizes = (d.count, a.count, b.count)
    if sizes != (shape.result_registers, shape.operand_registers, shape.operand_registers):
        raise IsaError(f"{i}: register counts {sizes} do not fit {shape}")
    sides = _sides(i, a, b) if i.name.startswith("v_mfma_scale_") else (Side(a), Side(b))
    new = PendingMatrix(shape, d, *sides, c.reg)
    if not _joins(e.pending, new):
        flush(e)
    e.pending.append(new)


def _sides(i: Instruction, a: Reg, b: Reg) -> tuple[Side, Side]:
    """Operands of the scaled form; two bits of op_sel_hi and op_sel choose a byte of each scale register."""
    low, high = i.bits("op_sel", (0, 0, 0)), i.bits("op_sel_hi", ())
    if len(low) != 3 or len(high) != 3 or len(i.operands) != 6:
        raise IsaError(f"{i}: operands must be D, A, B, C and two scales, with op_sel_hi given")
    sides = []
    for position, (reg, operand) in enumerate(((a, i.operands[4]), (b, i.operands[5]))):
        scale = operand.reg
        if scale is None or scale.file == "s" or scale.count != 1:
            raise IsaError(f"{i}: scale {operand} must be one vector register")
        sides.append(Side(reg, scale, low[position] + 2 * high[position]))
    return sides[0], sides[1]


def _joins(pending: list[PendingMatrix], new: PendingMatrix) -> bool:
    """Whether `new` may run together with the queue: same shape, and it only continues whole accumulators."""
    inputs = new.a.reads() + new.b.reads()
    for old in pending:
        if old.shape != new.shape or any(overlap(old.d, read) for read in inputs):
            return False
        if any(overlap(new.d, read) for read in old.a.reads() + old.b.reads()):
            return False
        if old.c is not None and overlap(new.d, old.c) and new.d != old.d:
            return False
        if overlap(old.d, new.d) and not (old.d == new.d == new.c):
            return False
        if new.c is not None and overlap(old.d, new.c) and old.d != new.d:
            return False
    return True


def conflicts(pending: list[PendingMatrix], i: Instruction) -> bool:
    """Whether an instruction touches what queued MFMAs will write, or may overwrite what they still read."""
    registers = [o.reg for o in i.operands if o.reg is not None and o.reg.file != "s"]
    stores = "_store_" in i.name or i.name.startswith("ds_write")
    written = registers if "swap" in i.name else registers[: 0 if stores else 1]
    for old in pending:
        if any(overlap(old.d, r) for r in registers):
            return True
        if any(overlap(r, w) for r in old.reads() for w in written):
            return True
    return False


def flush(e: Emitter) -> None:
    """Emit the queue as grids of products that share operands; a chain on one accumulator extends K."""
    chains: dict[Reg, list[PendingMatrix]] = {}
    for item in e.pending:
        chains.setdefault(item.d, []).append(item)
    e.pending.clear()
    rows: dict[tuple[Side, ...], list[list[PendingMatrix]]] = {}
    for chain in chains.values():
        rows.setdefault(tuple(item.a for item in chain), []).append(chain)
    grids: dict[tuple, list[list[list[PendingMatrix]]]] = {}
    for row in rows.values():
        grids.setdefault(tuple(tuple(item.b for item in chain) for chain in row), []).append(row)
    for grid in grids.values():
        _emit_grid(e, grid)


def _emit_grid(e: Emitter, grid: list[list[list[PendingMatrix]]]) -> None:
    shape = grid[0][0][0].shape

    def names(regs: list[Reg]) -> str:
        return "(" + ", ".join(e.vreg(part) for reg in regs for part in reg) + ",)"

    def operand(sides: list[Side]) -> str:
        scales = [f"({e.vreg(side.scale)}, {8 * side.byte})" for side in sides if side.scale is not None]
        return f"{names([side.reg for side in sides])}, ({', '.join(scales)}{',' if scales else ''})"

    a = operand([item.a for row in grid for item in row[0]])
    b = operand([item.b for chain in grid[0] for item in chain])
    accumulators = []
    for row in grid:
        for chain in row:
            c = "None" if chain[0].c is None else names([chain[0].c])
            accumulators.append(f"({c}, {names([chain[0].d])})")
            e.wrote(chain[0].d)
    size = f"{len(grid)}, {len(grid[0])}, {len(grid[0][0])}"
    e.line(f"multiply_add(n, {e.constant(shape)}, {size}, ({a}), ({b}), ({', '.join(accumulators)},))")


# ---- run time ------------------------------------------------------------------------------------------------
def _row_type(shape: MatrixShape) -> np.dtype:
    """M float32 as one opaque item: NumPy then moves whole rows instead of looping over them."""
    return np.dtype((np.void, 4 * shape.m))


def _operand(n: int, shape: MatrixShape, count: int, steps: int, registers, exponents) -> np.ndarray:
    """Operands of one side to (n, count * M, steps * K); k runs in register order, alike on both sides."""
    words = np.stack(registers)
    if shape.element == "fp8":
        return _fp8(n, shape, count, steps, words, exponents)
    if shape.element == "f32":
        parts = words[None]
    elif shape.element == "bf16":
        parts = np.empty((2, *words.shape), np.uint32)
        np.left_shift(words, np.uint32(16), out=parts[0])
        np.bitwise_and(words, np.uint32(0xFFFF0000), out=parts[1])
    else:
        halves = words.view(np.float16).reshape(*words.shape, 2)
        parts = np.stack([halves[..., half].astype(np.float32) for half in (0, 1)])
    lanes = parts.view(_row_type(shape)).reshape(-1, count, steps, shape.operand_registers, n, shape.groups)
    matrix = np.ascontiguousarray(lanes.transpose(4, 2, 3, 0, 5, 1)).view(np.float32)
    return matrix.reshape(n, -1, count * shape.m).swapaxes(1, 2)


def _fp8(n: int, shape: MatrixShape, count: int, steps: int, words: np.ndarray, exponents) -> np.ndarray:
    """Move words first, a quarter of the bytes of the decoded values."""
    lanes = words.reshape(count, steps, shape.operand_registers, n, shape.groups, shape.m)
    values = decode_words(np.ascontiguousarray(lanes.transpose(3, 0, 5, 1, 4, 2)))
    if exponents is not None:
        # Register halves h of lane group q hold k from 64 h + 16 q on, which lies in block 2 h + q // 2.
        blocks = exponents.reshape(count, steps, n, 4, shape.m).transpose(2, 0, 4, 1, 3)
        chosen = blocks[..., [[0, 2], [0, 2], [1, 3], [1, 3]]]
        halves = values.reshape(n, count, shape.m, steps, shape.groups, 2, -1)
        if _is_plain(exponents):
            halves *= (chosen << 23).view(np.float32)[..., None]
        else:
            factors = np.ldexp(1.0, chosen - 127)
            factors[chosen == 255] = np.nan
            values = halves * factors[..., None]
    return values.reshape(n, count * shape.m, -1)


def _is_plain(exponents: np.ndarray) -> bool:
    low, high = _PLAIN_EXPONENTS
    return int(exponents.min()) >= low and int(exponents.max()) <= high


def _exponents(scales) -> np.ndarray | None:
    if not scales:
        return None
    return np.stack([(register >> np.uint32(shift)) & np.uint32(0xFF) for register, shift in scales]).astype(np.int32)


def multiply_add(n: int, shape: MatrixShape, rows: int, columns: int, steps: int, a, b, accumulators) -> None:
    """D = C + A B for every pair of a rows x columns grid; float32 accumulation in the order of BLAS.

    A side is (registers, ((scale register, shift), ...)). Scales that could leave float32 are applied in float64.
    """
    left = _operand(n, shape, rows, steps, a[0], _exponents(a[1]))
    right = _operand(n, shape, columns, steps, b[0], _exponents(b[1]))
    with np.errstate(over="ignore", invalid="ignore"):
        product = np.matmul(left, right.swapaxes(1, 2)).astype(np.float32, copy=False)
    # Axes: wave, A operand, row block, lane group, row within four, B operand; one item holds all columns.
    tiles = product.view(_row_type(shape)).reshape(n, rows, shape.m // (4 * shape.groups), shape.groups, 4, columns)
    lanes = np.ascontiguousarray(tiles.transpose(1, 5, 2, 4, 0, 3)).view(np.float32)
    lanes = lanes.reshape(rows * columns, shape.result_registers, n, 64)
    for tile, (c, d) in zip(lanes, accumulators, strict=True):
        for r, target in enumerate(d):
            if c is None:
                target.view(np.float32)[...] = tile[r]
            else:
                np.add(c[r].view(np.float32), tile[r], out=target.view(np.float32))
