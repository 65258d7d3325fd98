# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What generated code calls for matrix instructions: operands to float32 matrices, products, accumulators.

Operand layout of MxNxK with one block (CDNA3 and CDNA4 ISA, matrix layouts): lane l holds row l % M and the K/(64/M)
consecutive k from l // M on. Result: column l % N; row 4*(l // 16) + r for 16x16, 8*(r // 4) + 4*(l // 32) + r % 4 for
32x32. The 128 k of an f8 row come in two halves: lane 16*q + row holds [16q, 16q + 16) and 64 + [16q, 16q + 16). In the
scaled form lane 16*s + row of the scale operand carries the exponent of that row's k in [32s, 32s + 32).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mori_gemm_ar.emulator.fp8_ops import REBIAS_EXPONENT, decode_planes


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


# Exponents of scales that float32 operands can carry: factors stay inside float32, and so do products.
_PLAIN_EXPONENTS = (127 - 40, 254 - REBIAS_EXPONENT)


@dataclass(frozen=True, slots=True)
class Matrices:
    """Operands of one side as (n, steps * K, count * M) float32; k in the order of parts of a word, then registers.

    Where scales lie outside `_PLAIN_EXPONENTS`, the values carry the nearest exponent inside and `excess` is what they
    still have to be multiplied by, in float64, for each k of a part; None if there are no such scales.
    """

    values: np.ndarray
    excess: np.ndarray | None = None

    def wide(self, waves: np.ndarray) -> np.ndarray:
        """The exact values of some waves in float64."""
        values = self.values[waves].astype(np.float64)
        if self.excess is None:
            return values
        parts = values.reshape(len(waves), -1, *self.excess.shape[1:])
        return (parts * self.excess[waves, None]).reshape(values.shape)

    def far(self) -> np.ndarray:
        """Which columns have such a scale, as (n, count * M)."""
        if self.excess is None:
            return np.zeros((len(self.values), self.values.shape[2]), bool)
        return (self.excess != 1).any(axis=1)


def _row_type(shape: MatrixShape) -> np.dtype:
    """M float32 as one opaque item: NumPy then moves whole rows instead of looping over them."""
    return np.dtype((np.void, 4 * shape.m))


def _operand(n: int, shape: MatrixShape, count: int, steps: int, registers, scales) -> Matrices:
    """Operands of one side, decoded and scaled."""
    size, row = steps * shape.operand_registers, _row_type(shape)
    gathered = np.empty((n, size, shape.groups, count), row)
    for position, register in enumerate(registers):
        operand, place = divmod(position, size)
        gathered[:, place, :, operand] = register.view(row)
    words = gathered.view(np.uint32).reshape(n, -1)
    if scales:
        return _scaled(words, shape, count, steps, scales)
    return Matrices(_PARTS[shape.element](words).reshape(n, -1, count * shape.m))


def _halves(words: np.ndarray) -> np.ndarray:
    n, size = words.shape
    parts = np.empty((n, 2, size), np.float32)
    halves = words.view(np.float16)
    parts[:, 0], parts[:, 1] = halves[:, ::2], halves[:, 1::2]
    return parts


def _brain_halves(words: np.ndarray) -> np.ndarray:
    n, size = words.shape
    parts = np.empty((n, 2, size), np.uint32)
    np.left_shift(words, np.uint32(16), out=parts[:, 0])
    np.bitwise_and(words, np.uint32(0xFFFF0000), out=parts[:, 1])
    return parts.view(np.float32)


_PARTS = {"f32": lambda words: words.view(np.float32), "f16": _halves, "bf16": _brain_halves, "fp8": decode_planes}


def _scaled(words: np.ndarray, shape: MatrixShape, count: int, steps: int, scales) -> Matrices:
    """Decoded, and scaled as far as float32 goes."""
    n = len(words)
    exponents = np.stack([(register >> np.uint32(shift)) & np.uint32(0xFF) for register, shift in scales])
    # Register halves h of lane group q hold k from 64 h + 16 q on, which lies in block 2 h + q // 2.
    blocks = exponents.reshape(count, steps, n, 2, 1, 2, 1, shape.m).transpose(2, 1, 3, 4, 5, 6, 0, 7)
    whole = (n, steps, 2, shape.operand_registers // 2, 2, shape.groups // 2, count, shape.m)
    chosen = np.broadcast_to(blocks, whole).reshape(n, 1, -1).astype(np.int32)
    low, high = _PLAIN_EXPONENTS
    plain = int(exponents.min()) >= low and int(exponents.max()) <= high
    carried = chosen if plain else chosen.clip(low, high)
    values = decode_planes(words, ((carried + REBIAS_EXPONENT) << 23).view(np.float32))
    values = values.reshape(n, -1, count * shape.m)
    if plain:
        return Matrices(values)
    excess = np.ldexp(1.0, chosen - carried)
    excess[chosen == 255] = np.nan
    return Matrices(values, excess.reshape(n, -1, count * shape.m))


def products(n: int, shape: MatrixShape, rows: int, columns: int, steps: int, a, b) -> np.ndarray:
    """A B for every pair of a rows x columns grid, summed over `steps`, in float32 in the order of BLAS.

    An element whose row or column has a scale that float32 operands cannot carry is summed in float64 instead; which of
    the two depends on nothing else, so that no element's bits depend on another one's scales.

    A side is (registers, ((scale register, shift), ...)). Axes of the result: wave, A operand, row block, lane group,
    row within four, B operand; one item is a row of M columns.
    """
    left, right = (_operand(n, shape, count, steps, *side) for count, side in ((rows, a), (columns, b)))
    with np.errstate(over="ignore", invalid="ignore"):
        product = np.matmul(left.values.swapaxes(1, 2), right.values)
        if left.excess is not None or right.excess is not None:
            rows_far, columns_far = left.far(), right.far()
            waves = np.flatnonzero(rows_far.any(axis=1) | columns_far.any(axis=1))
            exact = np.matmul(left.wide(waves).swapaxes(1, 2), right.wide(waves))
            product[waves] = np.where(rows_far[waves, :, None] | columns_far[waves, None], exact, product[waves])
    return product.view(_row_type(shape)).reshape(n, rows, shape.m // (4 * shape.groups), shape.groups, 4, columns)


def accumulate(tiles: np.ndarray, row: int, column: int, c, d) -> None:
    """D = C + one product of a grid; without C, D is the product."""
    for r, target in enumerate(d):
        part = tiles[:, row, r // 4, :, r % 4, column]
        if c is None:
            target.view(part.dtype)[...] = part
        else:
            np.add(c[r].view(np.float32), np.ascontiguousarray(part).view(np.float32), out=target.view(np.float32))
