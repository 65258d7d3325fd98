# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Matrix instructions: which of them multiply together. `matrix_math` does it.

Where a product is needed first, the instructions behind it in the segment whose operands already stand in their
registers are multiplied with it, as one batched matmul for each grid of shared operands. Each instruction then adds its
own product to its accumulator where it stands, so that nothing else needs to move. MFMA ignores the execution mask.
"""

from __future__ import annotations

from dataclasses import dataclass

from mori_gemm_ar.emulator.emit import AGPR_BASE, Emitter, Product, handles
from mori_gemm_ar.emulator.matrix_math import MatrixShape
from mori_gemm_ar.errors import IsaError
from mori_gemm_ar.isa import Instruction, Literal, Reg

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


def positions(reg: Reg) -> set[int]:
    """Where a run of vector registers stands in the register array; nothing for scalar registers."""
    first = reg.index + (AGPR_BASE if reg.file == "a" else 0)
    return set() if reg.file == "s" else set(range(first, first + reg.count))


@dataclass(frozen=True, slots=True)
class Side:
    """The A or the B operand: elements, and the register and byte that hold its scales, if it has scales."""

    reg: Reg
    scale: Reg | None = None
    byte: int = 0

    def reads(self) -> set[int]:
        """Positions of the registers it reads."""
        return positions(self.reg) | (set() if self.scale is None else positions(self.scale))

    def order(self) -> tuple[int, int, int]:
        """Sorts the operands of a grid, so that rows with the same ones are alike."""
        scale = -1 if self.scale is None else min(positions(self.scale))
        return min(positions(self.reg)), scale, self.byte


@dataclass(frozen=True, slots=True)
class Multiplication:
    """One MFMA: D = C + A B; C is 0 if None."""

    index: int
    shape: MatrixShape
    d: Reg
    a: Side
    b: Side
    c: Reg | None


Chain = list[Multiplication]  # that add to one accumulator, with nothing between them that touches it


def overlap(first: Reg, second: Reg) -> bool:
    """Whether two register runs share a register."""
    if first.file != second.file:
        return False
    return first.index < second.index + second.count and second.index < first.index + first.count


def _parse(i: Instruction) -> Multiplication:
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
    return Multiplication(i.index, shape, d, *sides, c.reg)


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


def written_by(i: Instruction) -> set[int]:
    """Positions of the vector registers that an instruction may write: those of its first operand, as a rule."""
    stores = "_store_" in i.name or i.name.startswith("ds_write")
    registers = [o.reg for o in i.operands if o.reg is not None]
    return set().union(
        *(positions(reg) for reg in (registers if "swap" in i.name else registers[: 0 if stores else 1]))
    )


def require_foreseen(i: Instruction, written: set[tuple[str, int]]) -> None:
    """Raise `IsaError` if an instruction wrote vector registers that `written_by` does not name."""
    if not {index for file, index in written if file == "v"} <= written_by(i):
        raise IsaError("it writes vector registers other than those of its first operand")


def _ready(first: Multiplication, name: str, e: Emitter) -> list[Chain]:
    """`first` and what follows it in the segment and reads nothing that is written in between."""
    chains = [[first]]
    open_chains: dict[Reg, Chain] = {first.d: chains[0]}
    written = positions(first.d)
    for i in e.ahead:
        new = None if i.index in e.products else _following(i, name, written)
        extended = open_chains.get(new.d) if new is not None and new.c == new.d else None
        touched = set().union(*(positions(o.reg) for o in i.operands if o.reg is not None))
        for reg in [reg for reg, chain in open_chains.items() if chain is not extended and positions(reg) & touched]:
            del open_chains[reg]
        written |= written_by(i)
        if new is None:
            continue
        if extended is None:
            chains.append(extended := [])
        extended.append(new)
        open_chains[new.d] = extended
    return chains


def _following(i: Instruction, name: str, written: set[int]) -> Multiplication | None:
    """A later MFMA of this name whose operands are ready."""
    if i.name != name:
        return None
    try:
        new = _parse(i)
    except (IsaError, IndexError, ValueError):
        return None  # reported where it stands
    return None if (new.a.reads() | new.b.reads()) & written else new


@handles(*_SHAPES)
def _matrix(e: Emitter, i: Instruction) -> None:
    this = _parse(i)
    if i.index not in e.products:
        for grid in _grids(_ready(this, i.name, e)):
            _emit_products(e, grid)
    product = e.products.pop(i.index)
    if product is not None:
        c = "None" if this.c is None else _names(e, [this.c])
        e.line(f"accumulate({product.name}, {product.row}, {product.column}, {c}, {_names(e, [this.d])})")
        if all(other is None or other.name != product.name for other in e.products.values()):
            e.line(f"del {product.name}")  # its memory serves the next one while it is in the cache
    e.wrote(this.d)


def _grids(chains: list[Chain]) -> list[list[list[Chain]]]:
    """Rows of chains with equal A operands; rows of a grid have equal B operands."""
    rows: dict[tuple[Side, ...], list[Chain]] = {}
    for chain in chains:
        rows.setdefault(tuple(item.a for item in chain), []).append(chain)
    grids: dict[tuple, list[list[Chain]]] = {}
    for row in rows.values():
        row.sort(key=lambda chain: [item.b.order() for item in chain])
        grids.setdefault(tuple(tuple(item.b for item in chain) for chain in row), []).append(row)
    return list(grids.values())


def _names(e: Emitter, regs: list[Reg]) -> str:
    return "(" + ", ".join(e.vreg(part) for reg in regs for part in reg) + ",)"


def _emit_products(e: Emitter, grid: list[list[Chain]]) -> None:
    """Multiply a grid; the first instruction of each chain will add it, and the others have nothing left to do."""

    def operand(sides: list[Side]) -> str:
        scales = [f"({e.vreg(side.scale)}, {8 * side.byte})" for side in sides if side.scale is not None]
        return f"{_names(e, [side.reg for side in sides])}, ({', '.join(scales)}{',' if scales else ''})"

    a = operand([item.a for row in grid for item in row[0]])
    b = operand([item.b for chain in grid[0] for item in chain])
    size = f"{len(grid)}, {len(grid[0])}, {len(grid[0][0])}"
    name = e.temp(f"products(n, {e.constant(grid[0][0][0].shape)}, {size}, ({a}), ({b}))")
    for row, chains in enumerate(grid):
        for column, chain in enumerate(chains):
            e.products[chain[0].index] = Product(name, row, column)
            e.products.update({link.index: None for link in chain[1:]})
