# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Final ISA text to data: kernels with instructions, directives and the argument table.

The text is what LLVM prints for `format=isa`: directives, labels, instructions (inline assembly has no leading tab),
an `.amdhsa_kernel` descriptor per kernel and one YAML metadata block. Unknown directives raise.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field

from mori_gemm_ar.errors import IsaError
from mori_gemm_ar.isa.operands import Label, Operand, Token, parse_operand

TARGET = "gfx950"
# Directives that carry nothing an executor or auditor needs.
_IGNORED = {
    ".amdhsa_code_object_version", ".text", ".globl", ".p2align", ".p2alignl", ".type", ".size", ".section", ".set",
    ".fill", ".protected", ".weak", ".hidden", ".ident", ".file", ".loc", ".cfi_sections", ".cfi_startproc",
    ".cfi_endproc", ".addrsig", ".addrsig_sym", ".amdgpu_lds", ".local", ".comm",
}  # fmt: skip
_RESOURCES = ("amdhsa_kernarg_size", "amdhsa_group_segment_fixed_size", "amdhsa_private_segment_fixed_size")
_ENCODING = re.compile(r"_(e32|e64|dpp|sdwa)$|_(e64_dpp)$")
_MODIFIER = re.compile(r"^([a-z_0-9]+):(.+)$")
_FLAGS = {
    "row_mirror", "row_half_mirror", "off", "offen", "idxen", "glc", "slc", "dlc", "scc", "sc0", "sc1", "nt", "lds",
    "gds", "clamp", "tfe", "done", "vm", "mul:2", "mul:4", "div:2", "bound_ctrl", "fi", "high", "saturate",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. `name` has no encoding suffix; `modifiers` maps flags to "" and options to their text."""

    index: int
    line: int
    name: str
    encoding: str
    operands: tuple[Operand, ...]
    modifiers: dict[str, str]
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"

    def has(self, flag: str) -> bool:
        """Whether a flag such as `sc1` or an option such as `offset` is present."""
        return flag in self.modifiers

    def option(self, name: str, default: int = 0) -> int:
        """Integer value of an option such as `offset:64`."""
        text = self.modifiers.get(name)
        return default if text is None else int(text, 0)

    def bits(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """Bit list of an option such as `op_sel:[0,1]`."""
        text = self.modifiers.get(name)
        return default if text is None else tuple(int(part) for part in text.strip("[]").split(","))

    @property
    def target(self) -> str | None:
        """Label of a branch, else None."""
        for operand in self.operands:
            if isinstance(operand.value, Label):
                return operand.value.name
        return None


@dataclass(frozen=True, slots=True)
class ArgSlot:
    """One kernel argument in the argument segment, in bytes."""

    offset: int
    size: int
    kind: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel: instructions, label positions (instruction index), descriptor, argument table and resources."""

    name: str
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    descriptor: dict[str, int]
    args: tuple[ArgSlot, ...]
    metadata: dict[str, int]
    sha: str

    @property
    def kernarg_bytes(self) -> int:
        """Size of the explicit and hidden argument segment."""
        return self.descriptor["amdhsa_kernarg_size"]

    @property
    def lds_bytes(self) -> int:
        """Statically allocated LDS of a workgroup."""
        return self.descriptor["amdhsa_group_segment_fixed_size"]

    @property
    def scratch_bytes(self) -> int:
        """Private memory of a lane."""
        return self.descriptor["amdhsa_private_segment_fixed_size"]


@dataclass(frozen=True, slots=True)
class IsaModule:
    """All kernels of one ISA text."""

    kernels: dict[str, Kernel]

    def kernel(self, name: str) -> Kernel:
        """The kernel called `name`; `IsaError` lists what the text holds otherwise."""
        if name not in self.kernels:
            raise IsaError(f"kernel={name!r} must be one of {sorted(self.kernels)}")
        return self.kernels[name]


@dataclass(slots=True)
class _Body:
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    closed: bool = False


def _split_top(text: str, separator: str) -> list[str]:
    """Split outside brackets and quotes."""
    parts, depth, quoted, start = [], 0, False, 0
    for i, char in enumerate(text):
        if char == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif char in "[(":
            depth += 1
        elif char in "])":
            depth -= 1
        elif char == separator and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _parse_instruction(text: str, index: int, line: int) -> Instruction:
    mnemonic, _, rest = text.partition(" ")
    mnemonic, rest = mnemonic.strip(), rest.strip()
    match = _ENCODING.search(mnemonic)
    encoding = (match[1] or match[2]) if match else ""
    name = mnemonic[: match.start()] if match else mnemonic
    operands: list[Operand] = []
    modifiers: dict[str, str] = {}
    try:
        if name == "s_waitcnt":
            operands = [Operand(Token(word)) for word in rest.replace("&", " ").split()]
        else:
            for position in _split_top(rest, ","):
                for n, word in enumerate(_split_top(position, " ")):
                    if n == 0 and word not in _FLAGS - {"off", "scc"} and not _MODIFIER.match(word):
                        operands.append(parse_operand(word))
                    elif word in _FLAGS:
                        modifiers[word.replace(":", "")] = ""
                    elif option := _MODIFIER.match(word):
                        modifiers[option[1]] = option[2]
                    else:
                        raise IsaError(f"modifier {word!r} is not known")
    except IsaError as error:
        raise IsaError(f"line {line}: {text}: {error}") from None
    return Instruction(index, line, name, encoding, tuple(operands), modifiers, text)


def _metadata(lines: list[str]) -> dict[str, tuple[tuple[ArgSlot, ...], dict[str, int]]]:
    """Argument slots and integer fields of each kernel in the YAML block that LLVM prints (a fixed subset of YAML)."""
    kernels: dict[str, tuple[tuple[ArgSlot, ...], dict[str, int]]] = {}
    slots: list[dict[str, str]] = []
    fields: dict[str, str] = {}

    def finish() -> None:
        if ".name" in fields:
            args = tuple(ArgSlot(int(s[".offset"]), int(s[".size"]), s[".value_kind"]) for s in slots)
            numbers = {k.lstrip("."): int(v) for k, v in fields.items() if re.fullmatch(r"-?\d+", v)}
            kernels[fields[".name"].strip("'\"")] = (args, numbers)

    for line in lines:
        indent, body = len(line) - len(line.lstrip()), line.strip()
        if body.startswith("- ") and indent <= 2 and "." in body:
            finish()
            slots, fields = [], {}
        key, _, value = body.removeprefix("- ").partition(":")
        if indent >= 6 and key.startswith("."):
            if body.startswith("- "):
                slots.append({})
            if slots:
                slots[-1][key] = value.strip()
        elif key.startswith(".") and value.strip():
            fields[key] = value.strip()
    finish()
    return kernels


class _Parser:
    """Line by line; a body runs from its label to `.Lfunc_end`, its descriptor and metadata follow."""

    def __init__(self) -> None:
        self.bodies: dict[str, _Body] = {}
        self.declared: set[str] = set()
        self.descriptors: dict[str, dict[str, int]] = {}
        self.metadata: list[str] = []
        self.target = ""
        self.finished = False
        self._body: _Body | None = None
        self._descriptor: dict[str, int] | None = None
        self._in_metadata = False

    def feed(self, number: int, raw: str) -> None:
        line = raw.split(";")[0].strip() if not self._in_metadata else raw
        if self._in_metadata:
            if line.strip() == ".end_amdgpu_metadata":
                self._in_metadata, self.finished = False, True
            else:
                self.metadata.append(line)
        elif not line or line.startswith("#"):
            return
        elif line.endswith(":"):
            self._label(line[:-1])
        elif line.startswith("."):
            self._directive(number, line)
        elif self._body is not None and not self._body.closed:
            self._body.instructions.append(_parse_instruction(line, len(self._body.instructions), number))
            self._body.lines.append(line)
        else:
            raise IsaError(f"line {number}: {line!r} stands outside a kernel")

    def _label(self, name: str) -> None:
        if name in self.declared:
            self._body = self.bodies.setdefault(name, _Body())
        elif name.startswith(".Lfunc_end"):
            if self._body is not None:
                self._body.closed = True
        elif self._body is None:
            raise IsaError(f"label {name!r} stands outside a kernel")
        else:
            self._body.labels[name] = len(self._body.instructions)
            self._body.lines.append(name + ":")

    def _directive(self, number: int, line: str) -> None:
        name, _, rest = line.partition("\t") if "\t" in line else line.partition(" ")
        name, rest = name.strip(), rest.strip()
        if name == ".amdgcn_target":
            self.target = rest.strip('"')
        elif name == ".type" and rest.endswith("@function"):
            self.declared.add(rest.split(",")[0])
        elif name == ".amdhsa_kernel":
            self._descriptor = self.descriptors.setdefault(rest, {})
        elif name == ".end_amdhsa_kernel":
            self._descriptor = None
        elif name.startswith(".amdhsa_") and self._descriptor is not None:
            self._descriptor[name[1:]] = int(rest, 0)
        elif name == ".amdgpu_metadata":
            self._in_metadata = True
        elif name not in _IGNORED:
            raise IsaError(f"line {number}: directive {name!r} is not known")


def parse_isa(text: str) -> IsaModule:
    """Parse ISA text for gfx950.

    Raises `IsaError` when the text is truncated (no metadata, a body without end), made for another target, or holds
    an unknown directive, operand or modifier. Mnemonics are checked by whoever executes or audits them.
    """
    try:
        return _parse(text)
    except IsaError:
        raise
    except (KeyError, ValueError) as error:
        raise IsaError(f"ISA text must be what the compiler printed; it is damaged: {error!r}") from error


def _parse(text: str) -> IsaModule:
    parser = _Parser()
    for number, raw in enumerate(text.splitlines(), start=1):
        parser.feed(number, raw)
    if not parser.target.endswith(TARGET):
        raise IsaError(f"target={parser.target!r} must end in {TARGET}; rebuild the code object for {TARGET}")
    if not parser.finished:
        raise IsaError("ISA text must end with its metadata block; it is truncated")
    metadata = _metadata(parser.metadata)
    kernels = {}
    for name, descriptor in parser.descriptors.items():
        body = parser.bodies.get(name)
        if body is None or not body.instructions or not body.closed or name not in metadata:
            raise IsaError(f"kernel {name!r} must have a body, an end label and metadata; the text is truncated")
        missing = [i.target for i in body.instructions if i.target and i.target not in body.labels]
        if missing:
            raise IsaError(f"kernel {name!r} branches to {missing[0]!r}, which is not defined")
        for resource in _RESOURCES:
            if descriptor.get(resource, -1) < 0:
                raise IsaError(f"kernel {name!r} must have a valid .{resource}; the text is damaged")
        args, numbers = metadata[name]
        sha = hashlib.sha256("\n".join([*body.lines, repr(sorted(descriptor.items()))]).encode()).hexdigest()
        kernels[name] = Kernel(name, tuple(body.instructions), body.labels, descriptor, args, numbers, sha)
    if not kernels:
        raise IsaError("ISA text must hold at least one kernel")
    return IsaModule(kernels)
