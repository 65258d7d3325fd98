# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Kernels to Python: each straight-line segment becomes one function over all waves that stand at its start.

A segment ends at a branch, a barrier, the end of the program, a sleep, a label, or after a write to EXEC, so that the
execution mask is constant inside it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from mori_gemm_ar.emulator import (
    float_helpers,
    fp8_ops,
    helpers,
    matrix_math,
    matrix_ops,
    memory_ops,
    packed_ops,
    scalar_ops,
    vector_ops,
)
from mori_gemm_ar.emulator.emit import HANDLERS, Binding, Emitter
from mori_gemm_ar.errors import IsaError
from mori_gemm_ar.isa import EXEC, Instruction, Kernel, basic_blocks
from mori_gemm_ar.isa.cfg import is_branch

assert memory_ops and packed_ops, "imported for their handlers"


class Ending(enum.Enum):
    """How a segment hands over control."""

    FALL = enum.auto()  # continues with the next segment
    JUMP = enum.auto()  # unconditional branch
    BRANCH = enum.auto()  # per-wave condition
    BARRIER = enum.auto()  # waits for the workgroup
    SLEEP = enum.auto()  # yields, then continues
    END = enum.auto()  # the wave is done


@dataclass(slots=True)
class Segment:
    """One translated segment. `waits`: part of a polling loop. `publishes`: ends at a scoped store or a fence."""

    number: int
    start: int
    end: int
    ending: Ending
    condition: str = ""
    target: int = -1
    waits: bool = False
    publishes: bool = False
    bindings: tuple[Binding, ...] = ()
    written: frozenset[tuple[str, int]] = frozenset()
    masked: bool = True
    function: Callable | None = None


@dataclass(slots=True)
class Program:
    """A translated kernel."""

    kernel: Kernel
    segments: list[Segment]
    vector_registers: int
    source: str = field(repr=False, default="")

    def instruction(self, index: int) -> Instruction:
        """The instruction at a position, for reports."""
        return self.kernel.instructions[index]


# Round to nearest even, denormals kept, IEEE minimum and maximum, a clamped NaN is 0, conversions overflow.
_FLOAT_MODE = {
    "amdhsa_float_round_mode_32": 0,
    "amdhsa_float_round_mode_16_64": 0,
    "amdhsa_float_denorm_mode_32": 3,
    "amdhsa_float_denorm_mode_16_64": 3,
    "amdhsa_ieee_mode": 1,
    "amdhsa_dx10_clamp": 1,
    "amdhsa_fp16_overflow": 0,
}
_BRANCHES = {
    "s_cbranch_scc0",
    "s_cbranch_scc1",
    "s_cbranch_vccz",
    "s_cbranch_vccnz",
    "s_cbranch_execz",
    "s_cbranch_execnz",
}
_POLLS = re.compile(r"^(s_sleep|s_memrealtime|s_memtime|(global|flat)_atomic_)")
_WORKS = re.compile(r"(_store_|^ds_|^v_mfma|^buffer_store|_atomic_pk)")


def _writes_exec(i: Instruction) -> bool:
    if "saveexec" in i.name:
        return True
    if not i.operands or not i.name.startswith("s_") or i.name.startswith(("s_cmp", "s_bitcmp", "s_store")):
        return False
    reg = i.operands[0].reg
    return reg is not None and matrix_ops.overlap(reg, EXEC)


def _ending(i: Instruction) -> tuple[Ending, str]:
    if i.name == "s_branch":
        return Ending.JUMP, ""
    if i.name in _BRANCHES:
        return Ending.BRANCH, i.name.removeprefix("s_cbranch_")
    if is_branch(i):
        raise IsaError(f"{i}: this branch is not modelled")
    simple = {"s_barrier": Ending.BARRIER, "s_endpgm": Ending.END, "s_sleep": Ending.SLEEP}
    return simple.get(i.name, Ending.FALL), ""


def _publishes(i: Instruction) -> bool:
    scoped_store = "_store_" in i.name and i.has("sc1")
    return scoped_store or "_atomic_" in i.name or i.name in ("buffer_wbl2", "buffer_inv")


def _split(kernel: Kernel, weak: bool) -> list[Segment]:
    starts = []
    for block in basic_blocks(kernel):
        starts.append(block.start)
        for index in range(block.start, block.end - 1):
            i = kernel.instructions[index]
            if _ending(i)[0] is not Ending.FALL or _writes_exec(i) or (weak and _publishes(i)):
                starts.append(index + 1)
    starts = sorted(set(starts))
    number = {start: n for n, start in enumerate(starts)}
    segments = []
    for n, start in enumerate(starts):
        end = starts[n + 1] if n + 1 < len(starts) else len(kernel.instructions)
        last = kernel.instructions[end - 1]
        ending, condition = _ending(last)
        segment = Segment(n, start, end, ending, condition)
        if last.target:
            segment.target = number[kernel.labels[last.target]]
        segment.publishes = weak and _publishes(last)
        segments.append(segment)
    return segments


def _mark_waits(kernel: Kernel, segments: list[Segment]) -> None:
    """A polling loop repeats a scoped load, an atomic, a sleep or a clock read, and does no other work."""
    for last in segments:
        if last.ending not in (Ending.JUMP, Ending.BRANCH) or last.target > last.number:
            continue
        body = [kernel.instructions[i] for i in range(segments[last.target].start, last.end)]
        polls = any(_POLLS.match(i.name) or ("_load_" in i.name and (i.has("sc0") or i.has("sc1"))) for i in body)
        if polls and not any(_WORKS.search(i.name) for i in body):
            for segment in segments[last.target : last.number + 1]:
                segment.waits = True


class _Modifiers(dict[str, str]):
    """Modifiers of one instruction that remember which of them its handler asked for."""

    def __init__(self, modifiers: dict[str, str]) -> None:
        super().__init__(modifiers)
        self._asked = {"dst_unused"}  # has no meaning beside dst_sel:DWORD, where LLVM prints it all the same

    def __contains__(self, name: object) -> bool:
        self._asked.add(str(name))
        return super().__contains__(name)

    def __getitem__(self, name: str) -> str:
        self._asked.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """As `dict.get`."""
        self._asked.add(name)
        return super().get(name, default)

    def require_used(self) -> None:
        """Raise `IsaError` for a modifier that the handler would have ignored."""
        ignored = sorted(set(self) - self._asked)
        if ignored:
            raise IsaError(f"modifier {ignored[0]!r} is not modelled for this instruction")


def _no_code(e: Emitter, i: Instruction) -> None:
    """Control flow: the pool looks at how a segment ends."""


def _emit_segment(kernel: Kernel, segment: Segment, weak: bool) -> Emitter:
    emitter = Emitter(weak=weak)
    for index in range(segment.start, segment.end):
        i = kernel.instructions[index]
        plain = i.name in ("s_barrier", "s_endpgm", "s_sleep") or is_branch(i)
        handler = HANDLERS.get(i.name, _no_code if plain else None)
        if handler is None:
            raise IsaError(f"kernel {kernel.name!r}, {i}: instruction {i.name!r} is not known to the emulator")
        if i.name.startswith("v_mfma"):
            emitter.ahead = kernel.instructions[index + 1 : segment.end]
        modifiers = _Modifiers(i.modifiers)
        before, emitter.written = emitter.written, set()
        try:
            handler(emitter, replace(i, modifiers=modifiers))
            modifiers.require_used()
            matrix_ops.require_foreseen(i, emitter.written)
        except IsaError as error:
            raise IsaError(f"kernel {kernel.name!r}, {i}: {error}") from None
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise IsaError(f"kernel {kernel.name!r}, {i}: operands are not those of {i.name!r}") from error
        emitter.written |= before
    return emitter


_NAMESPACE = {
    **{name: value for name, value in vars(helpers).items() if not name.startswith("_")},
    **{name: value for name, value in vars(float_helpers).items() if not name.startswith("_")},
    **scalar_ops.scalar_namespace(),
    **vector_ops.vector_namespace(),
    "np": np,
    "products": matrix_math.products,
    "accumulate": matrix_math.accumulate,
    "encode_e4m3": fp8_ops.encode_e4m3,
    "unpack_e4m3": fp8_ops.unpack_e4m3,
}


@lru_cache(maxsize=64)
def _translate(sha: str, weak: bool, holder: _Holder) -> Program:
    kernel = holder.kernel
    segments = _split(kernel, weak)
    _mark_waits(kernel, segments)
    namespace = dict(_NAMESPACE)
    sources, highest = [], 0
    for segment in segments:
        emitter = _emit_segment(kernel, segment, weak)
        bindings = tuple(emitter.bindings.values())
        lines = list(emitter.lines)
        if any(re.search(r"\bscc\b", line) for line in lines):
            bindings += (Binding("scc", 0),)
        for name, value in emitter.constants.items():
            namespace[f"{name}_{segment.number}"] = value
        body = "\n    ".join(lines) or "pass"
        for name in sorted(emitter.constants, key=len, reverse=True):
            body = re.sub(rf"\b{re.escape(name)}\b", f"{name}_{segment.number}", body)
        unpacking = "".join(f"{b.name if b.file != 'scc' else 'scc'}, " for b in bindings)
        head = f"({unpacking}) = R\n    " if bindings else ""
        sources.append(f"def segment_{segment.number}(R, k, n, g):\n    {head}k0 = k\n    {body}\n")
        segment.bindings = bindings
        segment.written = frozenset(
            emitter.written | ({("scc", 0)} if any("scc[" in line for line in lines) else set())
        )
        segment.masked = any(re.search(r"\bk\b", line) for line in lines)
        highest = max([highest, *(b.index + 1 for b in bindings if b.file == "v")])
    source = "\n".join(sources)
    exec(compile(source, f"<{kernel.name} {sha[:8]}>", "exec"), namespace)
    for segment in segments:
        segment.function = namespace[f"segment_{segment.number}"]  # type: ignore[assignment]
    return Program(kernel, segments, max(highest, 3), source)


class _Holder:
    """Carries a kernel through the cache: equal when the instructions are equal."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __hash__(self) -> int:
        return hash(self.kernel.sha)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Holder) and self.kernel.sha == other.kernel.sha


def translate(kernel: Kernel, weak: bool = False) -> Program:
    """Translate a kernel; equal instruction text is translated once per process.

    Raises `IsaError` for a mnemonic, modifier, operand or float mode that is not modelled.
    """
    for name, value in _FLOAT_MODE.items():
        if kernel.descriptor.get(name, value) != value:
            raise IsaError(f"kernel {kernel.name!r}: {name}={kernel.descriptor[name]} must be {value}, LLVM's default")
    return _translate(kernel.sha, weak, _Holder(kernel))
