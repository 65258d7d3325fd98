# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Texts of assembly around single instructions: registers in from memory, the instruction, all registers out again.

A slot is one 32-bit word for each lane of a wave. The state that an instruction may read or change without naming it
(EXEC, VCC, SCC, M0) is loaded before it and stored behind it like the registers that it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mori_gemm_ar.hwcheck.forms import Form, Kind
from mori_gemm_ar.layout.hwcheck import AssemblyConfig
from mori_gemm_ar.layout.terms import WAVE_LANES

SLOT_BYTES = 4 * WAVE_LANES
GROUP = 12  # instructions of one kernel
STATE = ("exec_lo", "exec_hi", "vcc_lo", "vcc_hi", "scc", "m0")
MEMORY_BYTES = 4096  # that an instruction with an address is tried on, for each wave
LDS_BYTES = 4096
_LDS_SLOTS = LDS_BYTES // SLOT_BYTES
_DESCRIPTOR_BYTES = 768  # a descriptor ends before the last lanes' places, so that its check is tried too
_RAW_BUFFER = 0x27000
# Registers of the text around: two vectors, and scalars for base address and state.
_WORD, _PLACE, _LANE16 = "v15", "v14", "v13"
_BASE, _EXEC, _VCC, _SCC, _M0 = 86, 84, 82, 81, 80
_SETTLE = ["s_nop 15", "s_nop 15"]  # no hazard of an instruction reaches over so many wait states


@dataclass(frozen=True, slots=True)
class Slot:
    """One register of an instruction's input or output."""

    name: str  # a register, a name of STATE, or lds<n>
    scalar: bool


@dataclass(frozen=True, slots=True)
class Block:
    """One instruction inside a probe: its slots, and where they begin among those of the kernel."""

    form: Form
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    first_input: int
    first_output: int
    memory: int | None  # byte offset of its part of the wave's memory


@dataclass(frozen=True, slots=True)
class Probe:
    """A kernel that tries several instructions, one after the other, each on values of its own."""

    config: AssemblyConfig
    blocks: tuple[Block, ...]
    input_slots: int
    output_slots: int
    memory_bytes: int


def probes_of(forms: Sequence[Form]) -> list[Probe]:
    """Probes of all forms that have a result of their own, `GROUP` to a kernel."""
    tried = [form for form in forms if form.kind is not Kind.KERNELS]
    return [probe_of(tried[at : at + GROUP]) for at in range(0, len(tried), GROUP)]


def probe_of(forms: Sequence[Form]) -> Probe:
    """One kernel for these forms."""
    blocks: list[Block] = []
    lines: list[str] = [f"v_lshlrev_b32 {_LANE16}, 2, $3"]
    clobbers = {_WORD, _PLACE, _LANE16, "vcc", "scc", *(f"s{n}" for n in range(_M0, _BASE + 2))}
    inputs = outputs = memory = 0
    for form in forms:
        block = _block(form, inputs, outputs, memory)
        blocks.append(block)
        inputs, outputs = inputs + len(block.inputs), outputs + len(block.outputs)
        memory += MEMORY_BYTES if block.memory is not None else 0
        lines += _Text(block).lines()
        clobbers |= {f"{file}{first + n}" for file, first, count in form.registers for n in range(count)}
    name = forms[0].mnemonic if len({form.mnemonic for form in forms}) == 1 else "mixed"
    lds = LDS_BYTES if any(_uses_lds(form) for form in forms) else 0
    listed = ",".join(f"~{{{register}}}" for register in sorted(clobbers))
    config = AssemblyConfig(name, "\n".join(lines) + "\n", listed, lds)
    return Probe(config, tuple(blocks), inputs, outputs, memory)


def _uses_lds(form: Form) -> bool:
    return form.kind is Kind.MEMORY and (form.mnemonic.startswith("ds_") or form.text.endswith(" lds"))


def _block(form: Form, first_input: int, first_output: int, memory: int) -> Block:
    named = [Slot(f"{file}{first + n}", file == "s") for file, first, count in form.registers for n in range(count)]
    lds = [Slot(f"lds{n}", False) for n in range(_LDS_SLOTS if _uses_lds(form) else 0)]
    state = [Slot(name, True) for name in STATE]
    hidden = _addresses(form) if form.kind is Kind.MEMORY else set()
    shown = [slot for slot in named if slot.name not in hidden]
    global_memory = form.kind is Kind.MEMORY and not form.mnemonic.startswith("ds_")
    return Block(
        form, (*state, *named, *lds), (*state, *shown, *lds), first_input, first_output,
        memory if global_memory else None,
    )  # fmt: skip


def _addresses(form: Form) -> set[str]:
    """Registers that hold an address of this process and so differ between machines."""
    parts = _Addressing.of(form)
    runs = [run for run in (parts.scalar, parts.vector if parts.wide else None) if run is not None]
    return {name for run in runs for name in _names(run)} - (
        _names(_parse(form.operands[0])) if _loads(form) else set()
    )


def _loads(form: Form) -> bool:
    """Whether the first operand is a result."""
    return "_load" in form.mnemonic and not form.text.endswith(" lds")


def _names(run: tuple[str, int, int]) -> set[str]:
    file, first, count = run
    return {f"{file}{first + n}" for n in range(count)}


def _parse(operand: str) -> tuple[str, int, int]:
    body = operand[1:].strip("[]")
    low, _, high = body.partition(":")
    return operand[0], int(low), int(high or low) - int(low) + 1


def _scalar_run(operand: str) -> tuple[str, int, int] | None:
    return _parse(operand) if operand.startswith("s") else None


@dataclass(frozen=True, slots=True)
class _Addressing:
    """Which operands of a memory instruction make up its address."""

    vector: tuple[str, int, int] | None
    wide: bool  # the vector is a whole address
    scalar: tuple[str, int, int] | None  # base address, or descriptor
    offset: tuple[str, int, int] | None = None  # scalar offset

    @staticmethod
    def of(form: Form) -> _Addressing:
        family, _, rest = form.mnemonic.partition("_")
        operands = form.operands
        if family == "s":
            return _Addressing(None, False, _parse(operands[1]), _scalar_run(operands[2]))
        if family == "ds":
            at = 1 if rest.startswith("read") else 0
            return _Addressing(_parse(operands[at]), False, None)
        if family == "buffer":
            at = 0 if form.text.endswith(" lds") else 1
            return _Addressing(_parse(operands[at]), False, _parse(operands[at + 1]), _scalar_run(operands[at + 2]))
        at = 1 if rest.startswith("load") or (rest.startswith("atomic") and " sc0" in form.text) else 0
        base = operands[-1]
        wide = base == "off"
        return _Addressing(_parse(operands[at]), wide, None if wide else _parse(base))


class _Text:
    """The assembly of one block."""

    def __init__(self, block: Block) -> None:
        self.block, self.form = block, block.form

    def lines(self) -> list[str]:
        """Load, set up, run, and store."""
        return [
            f"; {self.form.text}", *self._load(), *self._address(), *self._enter(), self.form.text, *self._leave(),
            *self._store(),
        ]  # fmt: skip

    @staticmethod
    def _at(slot: int) -> str:
        return f"v_add_u32 {_PLACE}, {slot * SLOT_BYTES:#x}, $3"

    def _load(self) -> list[str]:
        lines = []
        for n, slot in enumerate(self.block.inputs):
            lines += [self._at(self.block.first_input + n), f"global_load_dword {_WORD}, {_PLACE}, $0"]
            lines += ["s_waitcnt vmcnt(0)", *self._put(slot)]
        return [*lines, *_SETTLE]

    def _put(self, slot: Slot) -> list[str]:
        """The loaded word to where it belongs."""
        state = dict(zip(STATE, (_EXEC, _EXEC + 1, _VCC, _VCC + 1, _SCC, _M0), strict=True))
        if slot.name in state:
            return [f"v_readfirstlane_b32 s{state[slot.name]}, {_WORD}"]
        if slot.scalar:
            return [f"v_readfirstlane_b32 {slot.name}, {_WORD}"]
        if slot.name.startswith("lds"):
            return [f"ds_write_b32 $3, {_WORD} offset:{int(slot.name[3:]) * SLOT_BYTES}", "s_waitcnt lgkmcnt(0)"]
        return [f"{'v_accvgpr_write_b32' if slot.name[0] == 'a' else 'v_mov_b32'} {slot.name}, {_WORD}"]

    def _address(self) -> list[str]:
        """Addresses: the wave's memory, 16 bytes for each lane."""
        if self.form.kind is not Kind.MEMORY:
            return []
        parts = _Addressing.of(self.form)
        lines = [f"s_mov_b64 s[{_BASE}:{_BASE + 1}], $2"]
        lines += [
            f"s_add_u32 s{_BASE}, s{_BASE}, {self.block.memory or 0:#x}",
            f"s_addc_u32 s{_BASE + 1}, s{_BASE + 1}, 0",
        ]
        if parts.scalar is not None:
            first = parts.scalar[1]
            lines += [f"s_mov_b32 s{first}, s{_BASE}", f"s_mov_b32 s{first + 1}, s{_BASE + 1}"]
            if parts.scalar[2] == 4:
                lines += [
                    f"s_and_b32 s{first + 1}, s{first + 1}, 0xffff",
                    f"s_mov_b32 s{first + 2}, {_DESCRIPTOR_BYTES:#x}",
                ]
                lines += [f"s_mov_b32 s{first + 3}, {_RAW_BUFFER:#x}"]
        if parts.offset is not None:
            lines.append(f"s_mov_b32 s{parts.offset[1]}, 64")
        if parts.vector is not None:
            first = parts.vector[1]
            if parts.wide:
                lines += [f"v_mov_b32 v{first}, {_LANE16}", f"v_mov_b32 v{first + 1}, 0"]
                lines.append(
                    f"v_lshl_add_u64 v[{first}:{first + 1}], s[{_BASE}:{_BASE + 1}], 0, v[{first}:{first + 1}]"
                )
            else:
                lines.append(f"v_mov_b32 v{first}, {_LANE16}")
        if _uses_lds(self.form):
            lines.append(f"s_mov_b32 s{_M0}, 0")
        return lines

    def _enter(self) -> list[str]:
        return [
            f"s_mov_b64 vcc, s[{_VCC}:{_VCC + 1}]", f"s_mov_b32 m0, s{_M0}", f"s_mov_b64 exec, s[{_EXEC}:{_EXEC + 1}]",
            f"s_cmp_lg_u32 s{_SCC}, 0", *_SETTLE,
        ]  # fmt: skip

    def _leave(self) -> list[str]:
        return [
            *_SETTLE, "s_waitcnt vmcnt(0) lgkmcnt(0)", f"s_cselect_b32 s{_SCC}, 1, 0",
            f"s_mov_b64 s[{_EXEC}:{_EXEC + 1}], exec", "s_mov_b64 exec, -1",
            f"s_mov_b64 s[{_VCC}:{_VCC + 1}], vcc", f"s_mov_b32 s{_M0}, m0", *_SETTLE,
        ]  # fmt: skip

    def _store(self) -> list[str]:
        state = dict(zip(STATE, (_EXEC, _EXEC + 1, _VCC, _VCC + 1, _SCC, _M0), strict=True))
        lines = []
        for n, slot in enumerate(self.block.outputs):
            if slot.name in state:
                lines.append(f"v_mov_b32 {_WORD}, s{state[slot.name]}")
            elif slot.name.startswith("lds"):
                lines += [f"ds_read_b32 {_WORD}, $3 offset:{int(slot.name[3:]) * SLOT_BYTES}", "s_waitcnt lgkmcnt(0)"]
            else:
                move = "v_accvgpr_read_b32" if slot.name[0] == "a" else "v_mov_b32"
                lines.append(f"{move} {_WORD}, {slot.name}")
            lines += [self._at(self.block.first_output + n), f"global_store_dword {_PLACE}, {_WORD}, $1"]
        return [*lines, "s_waitcnt vmcnt(0)"]
