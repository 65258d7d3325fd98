# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Least squares of a handful of parameters, in plain Python: the same digits on every machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

STEP = 1e-4  # relative change of a parameter for its derivative
ITERATIONS = 30
CONVERGED = 1e-9  # relative change of all parameters
SINGULAR = 1e-7  # pivot of the scaled normal matrix below which a direction is not determined
STEP_LIMIT = 0.5  # largest relative change of a parameter in one iteration


@dataclass(frozen=True, slots=True)
class Solution:
    """Fitted parameters. The names in `undetermined` kept their start: no row tells them apart from the others."""

    values: tuple[float, ...]
    undetermined: tuple[int, ...]


def solve(residuals: Callable[[Sequence[float]], list[float]], start: Sequence[float]) -> Solution:
    """Gauss-Newton from `start`, every parameter kept at 0 or above.

    Residuals are relative errors. A parameter whose column is a combination of earlier ones stays where it is.
    """
    values = list(start)
    scale = [max(abs(value), 1e-3) for value in values]
    undetermined: tuple[int, ...] = ()
    for _ in range(ITERATIONS):
        base = residuals(values)
        columns = []
        for i, size in enumerate(scale):
            moved = residuals([value + (STEP * size if i == j else 0.0) for j, value in enumerate(values)])
            columns.append([(after - before) / STEP for after, before in zip(moved, base, strict=True)])
        steps, undetermined = _normal(columns, base)
        largest = 0.0
        for i, step in enumerate(steps):
            step = max(-STEP_LIMIT, min(STEP_LIMIT, step))
            new = max(values[i] + step * scale[i], 0.0)
            largest = max(largest, abs(new - values[i]) / scale[i])
            values[i] = new
            scale[i] = max(abs(new), 1e-3)
        if largest < CONVERGED:
            break
    return Solution(tuple(values), undetermined)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(left, right, strict=True))


def _normal(columns: list[list[float]], base: list[float]) -> tuple[list[float], tuple[int, ...]]:
    """Steps that minimise |base + J step|, with a zero step for what is not determined."""
    count = len(columns)
    matrix = [[_dot(left, right) for right in columns] for left in columns]
    right = [-_dot(column, base) for column in columns]
    norms = [matrix[i][i] ** 0.5 or 1.0 for i in range(count)]
    matrix = [[matrix[i][j] / (norms[i] * norms[j]) for j in range(count)] for i in range(count)]
    right = [right[i] / norms[i] for i in range(count)]
    kept: list[int] = []
    lower: list[list[float]] = []  # Cholesky rows of the kept parameters
    for i in range(count):
        row: list[float] = []
        for position, j in enumerate(kept):
            inner = sum(x * y for x, y in zip(row, lower[position], strict=False))
            row.append((matrix[i][j] - inner) / lower[position][position])
        pivot = matrix[i][i] - sum(x * x for x in row)
        if pivot > SINGULAR:
            kept.append(i)
            lower.append([*row, pivot**0.5])
    half: list[float] = []
    for position, i in enumerate(kept):
        inner = sum(x * y for x, y in zip(lower[position], half, strict=False))
        half.append((right[i] - inner) / lower[position][position])
    solved = [0.0] * len(kept)
    for position in reversed(range(len(kept))):
        rest = sum(lower[later][position] * solved[later] for later in range(position + 1, len(kept)))
        solved[position] = (half[position] - rest) / lower[position][position]
    steps = [0.0] * count
    for position, i in enumerate(kept):
        steps[i] = solved[position] / norms[i]
    return steps, tuple(i for i in range(count) if i not in kept)
