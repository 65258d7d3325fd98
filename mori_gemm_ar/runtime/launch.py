# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Launches as data: what runs, with which argument bytes, on which branch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.isa import ArgSlot, Kernel, parse_isa


class Code(Protocol):
    """What a launch needs of a code object."""

    @property
    def key(self) -> str:
        """Name of the configuration it was compiled for."""

    @property
    def kernel(self) -> str:
        """Symbol of the kernel."""

    @property
    def isa(self) -> str:
        """Final ISA text."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of the caller that a launch may touch: a name for reports, address and size in bytes."""

    name: str
    address: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch. `after` names launches of the same pipeline on other branches that must end first."""

    code: Code
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: bytes
    name: str
    branch: int = 0
    after: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if min(self.grid) < 1 or min(self.block) < 1:
            raise ConfigError(f"grid={self.grid}, block={self.block} must be positive")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Launches in submission order, and the caller's memory that they touch."""

    name: str
    launches: tuple[Launch, ...]
    buffers: tuple[Buffer, ...] = ()


# Operands of a pipeline that is prepared once and run with other memory each time: operand i is this address there.
STAND_IN = 0x5EED_0000_0000_0000


@dataclass(frozen=True, slots=True)
class Place:
    """Where the address of an operand stands in the arguments of a launch."""

    launch: int
    offset: int
    operand: int


def places_of(pipeline: Pipeline) -> tuple[Place, ...]:
    """Every argument that is the stand-in of an operand, a buffer of the pipeline; in order."""
    found = []
    for number, launch in enumerate(pipeline.launches):
        for offset in range(0, len(launch.arguments) - 7, 8):
            operand = int.from_bytes(launch.arguments[offset : offset + 8], "little") - STAND_IN
            if 0 <= operand < len(pipeline.buffers):
                found.append(Place(number, offset, operand))
    return tuple(found)


class Prepared(Protocol):
    """A pipeline whose operands are given anew at each run."""

    def run(self, addresses: Sequence[int]) -> None:
        """Queue the launches with these addresses of its buffers, in order, or record them."""


@lru_cache(maxsize=256)
def _parse(isa: str, name: str) -> Kernel:
    return parse_isa(isa).kernel(name)


def kernel_of(code: Code) -> Kernel:
    """The parsed kernel of a code object. Raises `IsaError` for foreign or damaged text."""
    return _parse(code.isa, code.kernel)


def pack_arguments(slots: Sequence[ArgSlot], values: Sequence[int]) -> bytes:
    """Argument segment from the table in the code object: little-endian scalars at their offsets.

    Values may be negative or unsigned as long as they fit; raises `ConfigError` otherwise.
    """
    explicit = [slot for slot in slots if not slot.kind.startswith("hidden_")]
    if len(explicit) != len(values):
        raise ConfigError(f"arguments={len(values)} must be {len(explicit)}, as the code object says")
    segment = bytearray(max((slot.offset + slot.size for slot in slots), default=0))
    for position, (slot, value) in enumerate(zip(explicit, values, strict=True)):
        if slot.kind != "by_value":
            raise ConfigError(f"argument {position} is {slot.kind}, but kernels take scalars only")
        if not -(1 << 8 * slot.size - 1) <= value < 1 << 8 * slot.size:
            raise ConfigError(f"argument {position}={value} must fit {slot.size} bytes")
        segment[slot.offset : slot.offset + slot.size] = (value & (1 << 8 * slot.size) - 1).to_bytes(
            slot.size, "little"
        )
    return bytes(segment)
