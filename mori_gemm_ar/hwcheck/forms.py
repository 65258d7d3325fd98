# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Instructions in the forms in which shipped kernels use them, with registers renamed: what semantics are tried on.

The list is a file of the package; `python -m mori_gemm_ar.hwcheck.forms` prints it anew from the code objects of a
store, and a test compares it with the kernels.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

from mori_gemm_ar.isa import Instruction, Kernel

LIST = Path(__file__).with_name("instructions.txt")
_REGISTER = re.compile(r"\b([vsa])(?:(\d+)\b|\[(\d+):(\d+)\])")
_OFFSET = re.compile(r"\b(offset[01]?):(\d+)")
_LITERAL = re.compile(r"-?\b(?:0x[0-9a-f]+|\d+(?:\.\d+)?)\b")
# First free register of each file; what stands before belongs to the text around an instruction.
FIRST = {"v": 16, "s": 40, "a": 0}
_MEMORY = re.compile(r"(global|buffer|ds|s)_(load|store|atomic|read|write)")
# Synchronisation, control flow and time: these have no result that a text of their own could show.
_WITHOUT_RESULT = re.compile(
    r"s_(endpgm|branch|cbranch_\w+|barrier|waitcnt|nop|sleep|setprio|memrealtime|sethalt|icache_inv|dcache_\w+)"
    r"|buffer_(wbl2|inv)"
)


class Kind(Enum):
    """How an instruction is tried."""

    REGISTERS = "registers"  # registers in, registers out
    MATRIX = "matrix"  # the same; the order of a sum is the hardware's own
    MEMORY = "memory"  # an address has to be made for it
    KERNELS = "kernels"  # inside of whole kernels only


@dataclass(frozen=True, slots=True)
class Form:
    """One spelling. `text` is complete; `registers` are those that it names: (file, first, count), in order."""

    mnemonic: str
    text: str

    @property
    def kind(self) -> Kind:
        """How it is tried."""
        return kind_of(self.mnemonic)

    @property
    def registers(self) -> tuple[tuple[str, int, int], ...]:
        """All register runs that the text names, once each."""
        runs = (_run(match) for match in _REGISTER.finditer(_operands(self.text)))
        return tuple(dict.fromkeys(runs))

    @property
    def operands(self) -> tuple[str, ...]:
        """Operand texts in order, without modifiers behind the last one."""
        listed = re.split(r",\s*(?![^\[(]*[\])])", _operands(self.text))
        return tuple(part.split(" ")[0] if n == len(listed) - 1 else part for n, part in enumerate(listed))


def kind_of(mnemonic: str) -> Kind:
    """How an instruction of this name is tried."""
    if _WITHOUT_RESULT.fullmatch(mnemonic):
        return Kind.KERNELS
    if mnemonic.startswith("v_mfma"):
        return Kind.MATRIX
    return Kind.MEMORY if _MEMORY.match(mnemonic) else Kind.REGISTERS


def _operands(text: str) -> str:
    return text.partition(" ")[2]


def _run(match: re.Match[str]) -> tuple[str, int, int]:
    first = int(match[2] or match[3])
    return match[1], first, int(match[2] or match[4]) - first + 1


def spelled(file: str, first: int, count: int) -> str:
    """A run of registers as assembly names it."""
    return f"{file}{first}" if count == 1 else f"{file}[{first}:{first + count - 1}]"


def form_of(instruction: Instruction) -> Form:
    """The instruction with registers renamed in the order in which they appear, and small memory offsets."""
    if kind_of(instruction.name) is Kind.KERNELS:
        return Form(instruction.name, instruction.name)
    text = re.sub(r"\s+", " ", instruction.text.partition(";")[0].strip())
    head, _, operands = text.partition(" ")
    places: dict[tuple[str, int, int], int] = {}
    free = dict(FIRST)

    def rename(match: re.Match[str]) -> str:
        run = _run(match)
        if run not in places:
            places[run] = free[run[0]]
            free[run[0]] += -(-run[2] // 4) * 4
        return spelled(run[0], places[run], run[2])

    renamed = _REGISTER.sub(rename, operands)
    if kind_of(instruction.name) is Kind.MEMORY:
        renamed = _OFFSET.sub(lambda m: f"{m[1]}:{_near(m[1], int(m[2]))}", renamed)
        if instruction.name.startswith("s_load"):
            renamed = re.sub(r"0x[0-9a-f]+$", "0x10", renamed)
    return Form(instruction.name, f"{head} {renamed}".strip())


def _near(name: str, offset: int) -> int:
    """An offset inside of the memory that an instruction is tried on."""
    if name == "offset":
        return offset if offset < 256 else 16 + offset % 240 // 16 * 16
    return 1 if name == "offset0" else 2


def forms_of(kernels: Iterable[Kernel]) -> list[Form]:
    """One form for each mnemonic, encoding, kinds of operands and modifiers; literals keep the first value seen."""
    found: dict[str, Form] = {}
    for kernel in kernels:
        for instruction in kernel.instructions:
            form = form_of(instruction)
            found.setdefault(_LITERAL.sub("#", form.text), form)
    return sorted(found.values(), key=lambda form: (form.mnemonic, form.text))


@cache
def listed_forms() -> tuple[Form, ...]:
    """The forms of the package's list."""
    return tuple(_lines(LIST.read_text(encoding="utf-8")))


def _lines(text: str) -> Iterator[Form]:
    for line in text.splitlines():
        if line and not line.startswith("#"):
            mnemonic, _, rest = line.partition(": ")
            yield Form(mnemonic, rest)


def to_text(forms: Iterable[Form]) -> str:
    """The list as its file keeps it."""
    head = "# SPDX-License-Identifier: MIT\n# Copyright (c) 2026 mori_gemm_ar contributors\n"
    return head + "".join(f"{form.mnemonic}: {form.text}\n" for form in forms)


def main() -> None:
    """Print the list of what the kernels of the default store use."""
    from mori_gemm_ar.compile.store import default_store
    from mori_gemm_ar.runtime import kernel_of

    codes = sorted(default_store().held(), key=lambda code: code.key)
    own = ("assembly_", "message_", "buffering_", "engine_", "copies_", "load_")
    sys.stdout.write(to_text(forms_of(kernel_of(code) for code in codes if not code.key.startswith(own))))


if __name__ == "__main__":
    main()
