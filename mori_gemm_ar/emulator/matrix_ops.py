# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Matrix instructions. Independent MFMAs of a segment wait in a queue and run as one batched float32 matmul.

Operand layout of MxNxK with one block (CDNA3 and CDNA4 ISA, matrix layouts): lane l holds row l % M and the K/(64/M)
consecutive k from l // M on. Result: column l % N; row 4*(l // 16) + r for 16x16, 8*(r // 4) + 4*(l // 32) + r % 4 for
32x32. MFMA ignores the execution mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mori_gemm_ar.emulator.emit import Emitter, handles
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
        return self.m * self.k * (4 if self.element == "f32" else 2) // 256

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


@dataclass(frozen=True, slots=True)
class PendingMatrix:
    """A queued MFMA."""

    shape: MatrixShape
    d: Reg
    a: Reg
    b: Reg
    c: Reg | None

    def reads(self) -> tuple[Reg, ...]:
        """Registers it still has to read."""
        return (self.a, self.b) if self.c is None else (self.a, self.b, self.c)


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
    new = PendingMatrix(shape, d, a, b, c.reg)
    if not _joins(e.pending, new):
        flush(e)
    e.pending.append(new)


def _joins(pending: list[PendingMatrix], new: PendingMatrix) -> bool:
    """Whether `new` may run together with the queue: same shape, and it only continues whole accumulators."""
    for old in pending:
        if old.shape != new.shape or overlap(old.d, new.a) or overlap(old.d, new.b):
            return False
        if any(overlap(new.d, read) for read in (old.a, old.b)):
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
    stores = "store" in i.name or "write" in i.name
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
    rows: dict[tuple[Reg, ...], list[list[PendingMatrix]]] = {}
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

    a = names([item.a for row in grid for item in row[0]])
    b = names([item.b for chain in grid[0] for item in chain])
    accumulators = []
    for row in grid:
        for chain in row:
            c = "None" if chain[0].c is None else names([chain[0].c])
            accumulators.append(f"({c}, {names([chain[0].d])})")
            e.wrote(chain[0].d)
    size = f"{len(grid)}, {len(grid[0])}, {len(grid[0][0])}"
    e.line(f"multiply_add(n, {e.constant(shape)}, {size}, {a}, {b}, ({', '.join(accumulators)},))")


# ---- run time ------------------------------------------------------------------------------------------------
def _row_type(shape: MatrixShape) -> np.dtype:
    """M float32 as one opaque item: NumPy then moves whole rows instead of looping over them."""
    return np.dtype((np.void, 4 * shape.m))


def _decode(n: int, shape: MatrixShape, count: int, steps: int, registers) -> np.ndarray:
    """Operands of one side to (n, steps * K, count * M) float32; k runs in register order, alike on both sides."""
    words = np.stack(registers)
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
    return matrix.reshape(n, -1, count * shape.m)


def multiply_add(n: int, shape: MatrixShape, rows: int, columns: int, steps: int, a, b, accumulators) -> None:
    """D = C + A B for every pair of a rows x columns grid; float32 accumulation in the order of BLAS."""
    product = np.matmul(_decode(n, shape, rows, steps, a).swapaxes(1, 2), _decode(n, shape, columns, steps, b))
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
