# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What an all-reduce benchmark measures, its data, and when a result is right: bitwise, or within an error."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from benchmark.report import git_commit, versions
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import DType, Stage, Wire

if TYPE_CHECKING:
    import torch

TORCH_NAMES = {DType.BF16: "bfloat16", DType.FP16: "float16", DType.FP32: "float32"}
_BITS = {2: "int16", 4: "int32"}  # torch integer of an element's size, to compare bits

# Relative L2 of Gaussian data against the fp32 sum. The lower bound notices a wire that is not in force.
_WIRE_GATES = {Wire.FP8: (2.0e-2, 2.8e-2), Wire.FP8_ROW: (2.0e-2, 2.8e-2), Wire.FP8_BOTH: (3.0e-2, 4.2e-2)}
MANY = 4096  # elements from which a relative L2 hardly varies; below it only the worst case of a format bounds it
_E4M3_ROUNDING = 2.0**-4  # half a unit in the last of four bits
# Half a unit in the last place, and the relative L2 of one rounding: as published for bf16, scaled by precision.
_UNIT = {DType.BF16: 2.0**-8, DType.FP16: 2.0**-11, DType.FP32: 2.0**-24}
_ROUNDING = {dtype: 1.66e-3 * unit / _UNIT[DType.BF16] for dtype, unit in _UNIT.items()}
_MARGIN = 1.3  # a gate below this multiple of the format's own error catches what a loose one passes


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured. `stage=None` lets the library choose; `timeout_s=None` is the target's default.

    in_place: the sum goes into the input tensor. zero_copy: the input tensor lies in the op's window. backend, queues,
    wire: transport, copy-engine queues to each peer, and what crosses the links.
    """

    m: int
    n: int
    dtype: DType
    stage: Stage | None = None
    calls: int = 5
    warmup: int = 2
    seed: int = 0
    in_place: bool = False
    zero_copy: bool = False
    timeout_s: float | None = None
    backend: str = "auto"
    queues: int = 1
    wire: Wire = Wire.EXACT

    def __post_init__(self) -> None:
        for name, least in (("m", 0), ("n", 0), ("calls", 1), ("warmup", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least {least}")

    @property
    def max_bytes(self) -> int:
        """Capacity of the op; at least one byte."""
        return max(1, self.m * self.n * self.dtype.nbytes)

    @property
    def requested(self) -> dict[str, Any]:
        """What the caller asked for, before the library resolves it."""
        return {
            "device": "auto",
            "backend": self.backend,
            "queues": self.queues,
            "wire": self.wire.value,
            "stage": "auto" if self.stage is None else self.stage.value,
            "in_place": self.in_place,
            "zero_copy": self.zero_copy,
            "timeout_s": self.timeout_s,
        }

    @property
    def create_options(self) -> dict[str, Any]:
        """Keyword arguments of `AllReduceOp.create`."""
        return {
            "timeout_s": self.timeout_s,
            "stage": self.stage,
            "dtypes": (self.torch_dtype,),
            "transport": self.backend,
            "queues": self.queues,
            "wire": self.wire.value,
        }

    def origin(self, world_size: int) -> dict[str, Any]:
        """Fields of a row that say what was run, and of which code."""
        return {
            "world_size": world_size,
            "m": self.m,
            "n": self.n,
            "dtype": self.dtype.label,
            "calls": self.calls,
            "warmup": self.warmup,
            "seed": self.seed,
            "versions": versions(),
            "git_commit": git_commit(),
        }

    @property
    def torch_dtype(self) -> torch.dtype:
        """The element type as torch names it."""
        import torch

        return getattr(torch, TORCH_NAMES[self.dtype])


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """fp32 sum in rank order, and the sum of the inputs' norms."""

    total: torch.Tensor
    addends: float

    @property
    def norm(self) -> float:
        """Of the sum."""
        return float(self.total.double().norm())

    @property
    def spread(self) -> float:
        """At least 1: how much larger than its sum the data is, so how much an error of an addend weighs."""
        return self.addends / self.norm if self.norm else math.inf

    def rel_l2(self, difference: torch.Tensor) -> float:
        """Norm of a difference in fp64, relative to the sum; 0 for none, whatever the sum."""
        error = float(difference.norm())
        if error == 0.0:
            return 0.0
        return error / self.norm if self.norm else math.inf


@dataclass(frozen=True, slots=True)
class Verdict:
    """One rank's result of one call. rel_l2 may be NaN or infinity; `failure` names what is wrong.

    `time_us` is a GPU's time; None where nothing ran on one.
    """

    rel_l2: float
    failure: str | None
    digest: str
    seconds: float
    time_us: float | None = None


def data(case: Case, call: int, rank: int) -> torch.Tensor:
    """The input of one rank in one call; no two are alike."""
    import torch

    key = hashlib.sha256(f"{case.seed} {call} {rank}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:7], "little"))
    return torch.randn((case.m, case.n), generator=generator).to(case.torch_dtype)


@lru_cache(maxsize=1)  # ranks that share a process share it
def reference(case: Case, call: int, world_size: int) -> Reference:
    """What a call must give."""
    total, addends = None, 0.0
    for rank in range(world_size):
        x = data(case, call, rank).float()
        total = x if total is None else total + x
        addends += float(x.double().norm())
    assert total is not None, "a world has a rank"
    return Reference(total, addends)


# --- gates ---


def wire_gate(case: Case, wire: Wire, expected: Reference, world_size: int) -> tuple[float, float]:
    """Least and largest relative L2 of a result that came over a lossy wire."""
    return lossy_gate(wire, case.m * case.n, case.dtype, expected.spread, world_size)


def lossy_gate(wire: Wire, elements: int, dtype: DType, spread: float, world_size: int) -> tuple[float, float]:
    """The same for Gaussian data of which `spread` is known, see `Reference`."""
    if elements >= MANY and world_size > 1:
        return _WIRE_GATES[wire]
    # Triangle inequality over the legs, and the rounding to the tensor's type.
    scatter = _E4M3_ROUNDING * spread if wire.both else 0.0
    return 0.0, scatter + (1.0 + scatter) * (_E4M3_ROUNDING + 2.0 * _UNIT[dtype])


def rounding_limit(case: Case, expected: Reference, world_size: int) -> float:
    """Largest relative L2 of a sum in any order that rounds each of its additions to the tensor's type.

    For many elements the growing total is rounded world - 1 times; for few, every rounding is taken at its worst.
    """
    if case.m * case.n >= MANY:
        steps = sum(k / world_size for k in range(2, world_size + 1))
        return _MARGIN * (_ROUNDING[case.dtype] + _ROUNDING[DType.FP32]) * math.sqrt(steps)
    unit = _UNIT[case.dtype] + _UNIT[DType.FP32]
    return ((1.0 + unit) ** (world_size - 1) - 1.0) * expected.spread


# --- verdicts ---


def _digest(result: torch.Tensor) -> str:
    import torch

    return hashlib.sha256(result.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def exact_verdict(result: torch.Tensor, expected: Reference, where: str, seconds: float, us: float | None) -> Verdict:
    """Compare bits with the sum rounded once, and say how far off the values are."""
    import torch

    rounded = expected.total.to(result.dtype)
    bits = getattr(torch, _BITS[result.element_size()])
    wrong = result.view(bits) != rounded.view(bits)
    failure, rel_l2 = None, 0.0
    if bool(wrong.any()):
        # Infinities of equal sign differ by zero here, not by NaN.
        rel_l2 = expected.rel_l2(torch.where(wrong, result.double() - rounded.double(), 0.0))
        row, column = (int(i) for i in wrong.nonzero()[0])
        failure = (
            f"{where}: y[{row}, {column}]={result[row, column].item()} must be {rounded[row, column].item()}; "
            f"{int(wrong.sum())} of {wrong.numel()} elements differ"
        )
    return Verdict(rel_l2, failure, _digest(result), seconds, us)


def close_verdict(
    result: torch.Tensor,
    expected: Reference,
    gate: tuple[float, float],
    where: str,
    seconds: float,
    us: float | None,
) -> Verdict:
    """Compare values with the fp32 sum; `gate` bounds the relative L2 on both sides."""
    rel_l2 = expected.rel_l2(result.double() - expected.total.double())
    least, largest = gate
    failure = None
    if result.numel() and not least <= rel_l2 <= largest:
        failure = f"{where}: rel_l2={rel_l2:.3e} must be within {least:.3e}..{largest:.3e}"
    return Verdict(rel_l2, failure, _digest(result), seconds, us)
