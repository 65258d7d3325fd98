# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Emission context: turns operands into NumPy expressions and records which registers a segment binds.

Conventions of the generated code: `n` waves run together. A vector register is an (n, 64) array, a scalar register an
(n,) array; in vector context scalars appear as (n, 1). `k` is the execution mask: `True` or an (n, 64) bool array.
A binding name carries file, index and view: `v4` uint32, `v4_f` float32, `v4_h1` upper float16, `s7_c` column,
`p6` the 64-bit pair s[6:7].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mori_gemm_ar.errors import IsaError
from mori_gemm_ar.isa import Instruction, Literal, Operand, Reg, Token

AGPR_BASE = 256  # accumulation registers follow the architectural ones in the register array
VIEWS = {"u": np.uint32, "i": np.int32, "f": np.float32}
HALVES = {"w": np.uint16, "j": np.int16, "h": np.float16}

Handler = Callable[["Emitter", Instruction], None]
HANDLERS: dict[str, Handler] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register a function that emits the instructions called `names`."""

    def register(handler: Handler) -> Handler:
        for name in names:
            if name in HANDLERS:
                raise ValueError(f"instruction {name!r} has two handlers")
            HANDLERS[name] = handler
        return handler

    return register


def _extended(value: int | float, view: str) -> int | float:
    """A constant as a 64-bit source: a literal is the upper half of a float64 and is sign-extended for int64."""
    if isinstance(value, float) or -16 <= value <= 64:
        return value
    if view == "d":
        return value << 32
    return value - (1 << 32) if view == "Q" and value >> 31 == 1 else value


@dataclass(frozen=True, slots=True)
class Binding:
    """What a name in the generated code refers to: register file, index, view letter, half, column shape."""

    file: str
    index: int
    view: str = "u"
    half: int = -1
    column: bool = False

    @property
    def name(self) -> str:
        """The identifier in the generated code."""
        suffix = "" if self.view == "u" else self.view
        suffix += "" if self.half < 0 else str(self.half)
        suffix += "c" if self.column else ""
        return f"{self.file}{self.index}" + (f"_{suffix}" if suffix else "")


@dataclass(frozen=True, slots=True)
class Product:
    """Where the product of a matrix instruction stands: name of the grid in the generated code, row, column."""

    name: str
    row: int
    column: int


@dataclass(slots=True)
class Emitter:
    """Collects the lines, bindings and constants of one segment."""

    lines: list[str] = field(default_factory=list)
    bindings: dict[str, Binding] = field(default_factory=dict)
    constants: dict[str, object] = field(default_factory=dict)
    written: set[tuple[str, int]] = field(default_factory=set)
    lane_masks: dict[int, str] = field(default_factory=dict)
    ahead: Sequence[Instruction] = ()  # the rest of the segment, for matrix instructions
    products: dict[int, Product | None] = field(default_factory=dict)  # by instruction; None: nothing is left to add
    temporaries: int = 0
    weak: bool = False

    # ---- output ----------------------------------------------------------------------------------------------
    def line(self, text: str) -> None:
        """Append one statement."""
        self.lines.append(text)

    def temp(self, expression: str) -> str:
        """Assign an expression to a fresh local and return its name."""
        self.temporaries += 1
        name = f"t{self.temporaries}"
        self.lines.append(f"{name} = {expression}")
        return name

    def constant(self, value: object) -> str:
        """Name of a constant object in the generated module."""
        label = str(value) if not isinstance(value, np.generic) else f"{type(value).__name__}_{value.tobytes().hex()}"
        name = "k_" + "".join(c if c.isalnum() else "_" for c in label)
        while (
            name in self.constants and self.constants[name] is not value and repr(self.constants[name]) != repr(value)
        ):
            name += "_"
        self.constants[name] = value
        return name

    def _bind(self, binding: Binding) -> str:
        self.bindings[binding.name] = binding
        return binding.name

    # ---- registers -------------------------------------------------------------------------------------------
    def vreg(self, reg: Reg, view: str = "u", half: int = -1) -> str:
        """A vector or accumulation register as an (n, 64) array."""
        index = reg.index + (AGPR_BASE if reg.file == "a" else 0)
        return self._bind(Binding("v", index, view, half))

    def sreg(self, index: int, view: str = "u", column: bool = False) -> str:
        """A scalar register as an (n,) or (n, 1) array."""
        return self._bind(Binding("s", index, view, -1, column))

    def spair(self, index: int, column: bool = False) -> str:
        """An even-aligned scalar register pair as uint64."""
        if index % 2:
            raise IsaError(f"s[{index}:{index + 1}] must be even-aligned as a 64-bit operand")
        return self._bind(Binding("p", index, "u", -1, column))

    def wrote(self, reg: Reg) -> None:
        """Record a write; forgets lane masks that it invalidates."""
        for part in reg:
            if part.file == "s":
                self.written.add(("s", part.index))
                self.lane_masks.pop(part.index & ~1, None)
            else:
                self.written.add(("v", part.index + (AGPR_BASE if part.file == "a" else 0)))

    # ---- sources ---------------------------------------------------------------------------------------------
    def _literal(self, value: int | float, view: str) -> str:
        if view == "f":
            bits = np.float32(value) if isinstance(value, float) else np.uint32(value & 0xFFFFFFFF).view(np.float32)
            return self.constant(bits)
        if view == "h":
            half = np.float16(value) if isinstance(value, float) else np.uint16(value & 0xFFFF).view(np.float16)
            return self.constant(half)
        if view in ("q", "d"):
            if isinstance(value, float):
                wide = np.float64(value).view(np.uint64)
            else:
                wide = np.uint64(value & 0xFFFFFFFFFFFFFFFF)
            return self.constant(wide if view == "q" else wide.view(np.float64))
        bits32 = np.float32(value).view(np.uint32) if isinstance(value, float) else np.uint32(value & 0xFFFFFFFF)
        if view in ("w", "j"):
            return self.constant(np.uint16(int(bits32) & 0xFFFF).view(HALVES[view]))
        return self.constant(bits32.view(VIEWS[view]))

    def src(self, operand: Operand, view: str = "u", half: int = 0) -> str:
        """A 32- or 16-bit source in vector context; float modifiers are applied."""
        value = operand.value
        if isinstance(value, Reg):
            if value.file == "s":
                if view in HALVES:
                    helper = {"w": "lo16", "j": "lo16i", "h": "lo16f"}[view]
                    column = self.sreg(value.index, "u", True)
                    text = (
                        f"{helper}({column})" if half == 0 else f"{helper}({column} >> {self.constant(np.uint32(16))})"
                    )
                else:
                    text = self.sreg(value.index, view, True)
            else:
                text = self.vreg(value, view, half if view in HALVES else -1)
        elif isinstance(value, Literal):
            text = self._literal(value.value, view)
        elif isinstance(value, Token) and value.text == "scc":
            text = "scc[:, None].astype(u4)"
        else:
            raise IsaError(f"operand {operand} is not a vector source")
        return self._modify(text, operand, view)

    def _modify(self, text: str, operand: Operand, view: str) -> str:
        if (operand.neg or operand.absolute) and view not in ("f", "h", "d"):
            raise IsaError(f"operand {operand} has a float modifier in an integer instruction")
        if operand.absolute:
            text = f"np.abs({text})"
        return f"np.negative({text})" if operand.neg else text

    def src64(self, operand: Operand, view: str = "q") -> str:
        """A 64-bit source in vector context as uint64 (`q`), int64 (`Q`) or float64 (`d`)."""
        value = operand.value
        if isinstance(value, Reg):
            if value.file == "s":
                text = self.spair(value.index, column=True)
            else:
                low, high = value
                text = f"join({self.vreg(low)}, {self.vreg(high)})"
            text = {"q": text, "Q": f"{text}.view(i8)", "d": f"{text}.view(f8)"}[view]
        elif isinstance(value, Literal):
            text = self._literal(_extended(value.value, view), "d" if view == "d" else "q")
            text = f"{text}.view(i8)" if view == "Q" else text
        else:
            raise IsaError(f"operand {operand} is not a 64-bit source")
        return self._modify(text, operand, view)

    def ssrc(self, operand: Operand, view: str = "u") -> str:
        """A 32-bit source in scalar context."""
        value = operand.value
        if isinstance(value, Reg) and value.file == "s":
            return self.sreg(value.index, view)
        if isinstance(value, Literal):
            return self._literal(value.value, view)
        if isinstance(value, Token) and value.text == "scc":
            return "scc.astype(u4)"
        raise IsaError(f"operand {operand} is not a scalar source")

    def ssrc64(self, operand: Operand) -> str:
        """A 64-bit source in scalar context."""
        value = operand.value
        if isinstance(value, Reg) and value.file == "s":
            return self.spair(value.index)
        if isinstance(value, Literal):
            return self._literal(value.value, "q")
        raise IsaError(f"operand {operand} is not a 64-bit scalar source")

    # ---- destinations ----------------------------------------------------------------------------------------
    def vdst(self, operand: Operand, view: str = "u", half: int = -1) -> str:
        """A vector destination; the caller writes it under mask `k`."""
        reg = operand.reg
        if reg is None or reg.file == "s":
            raise IsaError(f"operand {operand} must be a vector destination")
        name = self.vreg(Reg(reg.file, reg.index), view, half)
        self.wrote(Reg(reg.file, reg.index))
        return name

    def put(self, operand: Operand, expression: str, view: str = "u") -> None:
        """Write a 32-bit vector result under the mask."""
        self.line(f"np.copyto({self.vdst(operand, view)}, {expression}, where=k)")

    def put64(self, operand: Operand, expression: str) -> None:
        """Write a 64-bit vector result (uint64 expression) under the mask."""
        reg = operand.reg
        if reg is None or reg.count != 2 or reg.file == "s":
            raise IsaError(f"operand {operand} must be a pair of vector registers")
        low, high = reg
        value = self.temp(expression)
        self.line(f"np.copyto({self.vreg(low)}, low32({value}), where=k)")
        self.line(f"np.copyto({self.vreg(high)}, high32({value}), where=k)")
        self.wrote(reg)

    def sput(self, operand: Operand, expression: str) -> None:
        """Write a 32-bit scalar result."""
        reg = operand.reg
        if reg is None or reg.file != "s":
            raise IsaError(f"operand {operand} must be a scalar destination")
        self.line(f"{self.sreg(reg.index)}[...] = {expression}")
        self.wrote(Reg("s", reg.index))

    def sput64(self, operand: Operand, expression: str) -> None:
        """Write a 64-bit scalar result."""
        reg = operand.reg
        if reg is None or reg.file != "s":
            raise IsaError(f"operand {operand} must be a scalar destination")
        self.line(f"{self.spair(reg.index)}[...] = {expression}")
        self.wrote(Reg("s", reg.index, 2))

    # ---- lane masks ------------------------------------------------------------------------------------------
    def lane_mask(self, operand: Operand) -> str:
        """A scalar pair as an (n, 64) bool array, kept while the pair does not change."""
        reg = operand.reg
        if reg is None or reg.file != "s":
            raise IsaError(f"operand {operand} must be a scalar pair holding a lane mask")
        if reg.index not in self.lane_masks:
            self.lane_masks[reg.index] = self.temp(f"unpack({self.spair(reg.index)})")
        return self.lane_masks[reg.index]

    def put_lane_mask(self, operand: Operand, expression: str) -> None:
        """Write a lane mask: inactive lanes read as zero."""
        name = self.temp(f"lanes({expression}, k, n)")
        self.sput64(operand, f"pack({name})")
        reg = operand.reg
        assert reg is not None
        self.lane_masks[reg.index] = name
