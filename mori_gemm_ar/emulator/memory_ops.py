# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Memory instructions: scalar loads, global, flat, scratch, buffer and LDS access, atomics, cache maintenance."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mori_gemm_ar.emulator.emit import Emitter, handles
from mori_gemm_ar.errors import IsaError
from mori_gemm_ar.isa import EXEC, M0, Instruction, Literal, Operand, Reg

SC0, NT, SC1 = 1, 2, 16


@dataclass(frozen=True, slots=True)
class Access:
    """Shape of a load or store: bytes per lane, number of 32-bit registers, sign extension, destination half."""

    nbytes: int
    registers: int
    signed: bool = False
    half: int = -1


ACCESS = {
    "ubyte": Access(1, 1),
    "sbyte": Access(1, 1, True),
    "ushort": Access(2, 1),
    "sshort": Access(2, 1, True),
    "byte": Access(1, 1),
    "short": Access(2, 1),
    "dword": Access(4, 1),
    "dwordx2": Access(8, 2),
    "dwordx3": Access(12, 3),
    "dwordx4": Access(16, 4),
    "ubyte_d16": Access(1, 1, False, 0),
    "ubyte_d16_hi": Access(1, 1, False, 1),
    "sbyte_d16": Access(1, 1, True, 0),
    "sbyte_d16_hi": Access(1, 1, True, 1),
    "short_d16": Access(2, 1, False, 0),
    "short_d16_hi": Access(2, 1, False, 1),
    "byte_d16_hi": Access(1, 1, False, 1),
}
_DS = {
    "b8": "byte", "b16": "short", "b32": "dword", "b64": "dwordx2", "b96": "dwordx3", "b128": "dwordx4",
    "u8": "ubyte", "i8": "sbyte", "u16": "ushort", "i16": "sshort", "u8_d16": "ubyte_d16", "u16_d16": "short_d16",
    "u8_d16_hi": "ubyte_d16_hi", "i8_d16": "sbyte_d16", "i8_d16_hi": "sbyte_d16_hi", "u16_d16_hi": "short_d16_hi",
    "b8_d16_hi": "byte_d16_hi", "b16_d16_hi": "short_d16_hi",
}  # fmt: skip
LOADS = tuple(k for k in ACCESS if k not in ("byte", "short", "byte_d16_hi"))
STORES = ("byte", "short", "dword", "dwordx2", "dwordx3", "dwordx4", "byte_d16_hi", "short_d16_hi")
# Atomic operations: LLVM name -> (operation of the memory model, 64-bit)
_ATOMICS = {
    "swap": "swap", "add": "add", "sub": "sub", "smin": "smin", "umin": "umin", "smax": "smax", "umax": "umax",
    "and": "and", "or": "or", "xor": "xor", "inc": "inc", "dec": "dec", "cmpswap": "cmpswap", "add_f32": "fadd",
    "pk_add_f16": "pk_add_f16", "pk_add_bf16": "pk_add_bf16", "add_f64": "fadd64",
}  # fmt: skip
_BUFFER_ATOMICS = ("add_f32", "pk_add_f16", "pk_add_bf16")
_DS_ATOMICS = {
    "add_u32": "add", "sub_u32": "sub", "inc_u32": "inc", "dec_u32": "dec", "min_i32": "smin", "max_i32": "smax",
    "min_u32": "umin", "max_u32": "umax", "and_b32": "and", "or_b32": "or", "xor_b32": "xor", "add_f32": "fadd",
}  # fmt: skip


def policy(i: Instruction) -> int:
    """Cache policy bits of an access, as LLVM numbers them: sc0 1, nt 2, sc1 16."""
    return SC0 * i.has("sc0") | NT * i.has("nt") | SC1 * i.has("sc1")


def _rows(e: Emitter, operand: Operand, access: Access, write: bool) -> str:
    reg = operand.reg
    if reg is None or reg.file == "s" or reg.count != access.registers:
        raise IsaError(f"operand {operand} must be {access.registers} vector registers")
    view, half = ("w", access.half) if access.half >= 0 else ("u", -1)
    names = [e.vreg(part, view, half) for part in reg]
    if write:
        e.wrote(reg)
    return f"({', '.join(names)},)"


def _address(e: Emitter, i: Instruction, vector: Operand, scalar: Operand | None) -> str:
    """64-bit address of a global or flat access."""
    offset = i.option("offset")
    if scalar is not None and scalar.reg is not None:
        base = e.spair(scalar.reg.index, column=True)
        if vector.reg is None:
            raise IsaError(f"{i}: a scalar base needs a 32-bit vector offset")
        text = f"{base} + {e.src(vector)}"
    else:
        text = e.src64(vector)
    if offset:
        text += f" + u8({offset})" if offset > 0 else f" - u8({-offset})"
    return text


def _access(name: str, prefix: str) -> Access:
    return ACCESS[name.removeprefix(prefix)]


@handles(*(f"{s}_load_{k}" for s in ("global", "flat") for k in LOADS))
def _load(e: Emitter, i: Instruction) -> None:
    access = _access(i.name, i.name.split("_")[0] + "_load_")
    address = _address(e, i, i.operands[1], i.operands[2] if len(i.operands) > 2 else None)
    rows = _rows(e, i.operands[0], access, True)
    e.line(f"g.load({i.index}, k, {address}, {e.constant(access)}, {rows}, {policy(i)})")


@handles(*(f"{s}_store_{k}" for s in ("global", "flat") for k in STORES))
def _store(e: Emitter, i: Instruction) -> None:
    access = _access(i.name, i.name.split("_")[0] + "_store_")
    address = _address(e, i, i.operands[0], i.operands[2] if len(i.operands) > 2 else None)
    rows = _rows(e, i.operands[1], access, False)
    e.line(f"g.store({i.index}, k, {address}, {e.constant(access)}, {rows}, {policy(i)})")


@handles(
    *(f"{s}_atomic_{o}{w}" for s in ("global", "flat") for o in _ATOMICS for w in (("",) if "_" in o else ("", "_x2")))
)
def _atomic(e: Emitter, i: Instruction) -> None:
    """`sc0` makes the old value come back; it is not a scope here."""
    match = re.fullmatch(r"(global|flat)_atomic_(\w+?)(_x2)?", i.name)
    assert match is not None
    operation, wide = _ATOMICS[match[2]], bool(match[3]) or match[2].endswith("f64")
    returns = i.has("sc0")
    operands = list(i.operands)
    destination = operands.pop(0) if returns else None
    address = _address(e, i, operands[0], operands[1 + 1] if len(operands) > 2 else None)
    count = (2 if wide else 1) * (2 if operation == "cmpswap" else 1)
    data = operands[1].reg
    if data is None or data.count != count:
        raise IsaError(f"{i}: data must be {count} vector registers")
    sources = f"({', '.join(e.vreg(part) for part in data)},)"
    rows = "None"
    if destination is not None:
        rows = _rows(e, destination, Access(8 if wide else 4, 2 if wide else 1), True)
    e.line(f"g.atomic({i.index}, k, {address}, '{operation}', {wide}, {sources}, {rows}, {policy(i) & SC1})")


@handles(*(f"scratch_load_{k}" for k in LOADS), *(f"scratch_store_{k}" for k in STORES))
def _scratch(e: Emitter, i: Instruction) -> None:
    is_load = i.name.startswith("scratch_load_")
    access = _access(i.name, "scratch_load_" if is_load else "scratch_store_")
    data, vector, scalar = (
        (i.operands[0], i.operands[1], i.operands[2]) if is_load else (i.operands[1], i.operands[0], i.operands[2])
    )
    parts = [f"u4({i.option('offset') & 0xFFFFFFFF})"]
    parts += [e.src(o) for o in (vector, scalar) if o.reg is not None]
    rows = _rows(e, data, access, is_load)
    e.line(
        f"g.scratch_{'load' if is_load else 'store'}({i.index}, k, {' + '.join(parts)}, {e.constant(access)}, {rows})"
    )


def _buffer_parts(e: Emitter, i: Instruction, vector: Operand, resource: Operand, scalar: Operand) -> str:
    """Arguments that locate a buffer access: descriptor words, per-lane offset, scalar offset, immediate."""
    if i.has("idxen"):
        raise IsaError(f"{i}: structured buffers are not modelled")
    if resource.reg is None or resource.reg.count != 4:
        raise IsaError(f"{i}: the descriptor must be four scalar registers")
    base, records = e.spair(resource.reg.index), e.spair(resource.reg.index + 2)
    lane_offset = e.src(vector) if i.has("offen") else "None"
    return f"{base}, {records}, {lane_offset}, {e.ssrc(scalar)}, {i.option('offset')}"


@handles(*(f"buffer_load_{k}" for k in LOADS))
def _buffer_load(e: Emitter, i: Instruction) -> None:
    access = _access(i.name, "buffer_load_")
    if i.has("lds"):
        parts = _buffer_parts(e, i, i.operands[0], i.operands[1], i.operands[2])
        return _emit_lds_copy(e, i, access, f"g.buffer_range({parts}, {access.nbytes})")
    parts = _buffer_parts(e, i, i.operands[1], i.operands[2], i.operands[3])
    rows = _rows(e, i.operands[0], access, True)
    e.line(f"g.buffer_load({i.index}, k, {parts}, {e.constant(access)}, {rows}, {policy(i)})")


def _emit_lds_copy(e: Emitter, i: Instruction, access: Access, source: str) -> None:
    """Lane l's item goes to LDS at M0 + offset + l * size; an inactive lane leaves its place alone."""
    if access.nbytes not in (4, 12, 16):
        raise IsaError(f"{i}: a copy to LDS must move 4, 12 or 16 bytes per lane")
    target = f"{e.sreg(M0.index)} + u4({i.option('offset') & 0xFFFFFFFF})"
    e.line(f"g.lds_copy({i.index}, k, *{source}, {target}, {e.constant(access)}, {policy(i)})")


@handles(*(f"global_load_lds_{k}" for k in ("dword", "dwordx3", "dwordx4")))
def _global_load_lds(e: Emitter, i: Instruction) -> None:
    access = _access(i.name, "global_load_lds_")
    address = _address(e, i, i.operands[0], i.operands[1])
    _emit_lds_copy(e, i, access, f"({address}, True)")


@handles(*(f"buffer_store_{k}" for k in STORES))
def _buffer_store(e: Emitter, i: Instruction) -> None:
    access = _access(i.name, "buffer_store_")
    parts = _buffer_parts(e, i, i.operands[1], i.operands[2], i.operands[3])
    rows = _rows(e, i.operands[0], access, False)
    e.line(f"g.buffer_store({i.index}, k, {parts}, {e.constant(access)}, {rows}, {policy(i)})")


@handles(*(f"buffer_atomic_{o}" for o in _BUFFER_ATOMICS))
def _buffer_atomic(e: Emitter, i: Instruction) -> None:
    """The data register also takes the old value, when `sc0` asks for it."""
    operation = _ATOMICS[i.name.removeprefix("buffer_atomic_")]
    parts = _buffer_parts(e, i, i.operands[1], i.operands[2], i.operands[3])
    returns = i.has("sc0")
    data = _rows(e, i.operands[0], ACCESS["dword"], returns)
    rows = data if returns else "None"
    e.line(f"g.buffer_atomic({i.index}, k, {parts}, '{operation}', {data}, {rows}, {policy(i) & SC1})")


@handles("buffer_wbl2", "buffer_inv")
def _cache_maintenance(e: Emitter, i: Instruction) -> None:
    action = "write_back" if i.name == "buffer_wbl2" else "invalidate"
    e.line(f"g.{action}({i.index}, {policy(i)})")


# ---- scalar memory -------------------------------------------------------------------------------------------
@handles(*(f"s_load_dword{n}" for n in ("", "x2", "x4", "x8", "x16")))
def _scalar_load(e: Emitter, i: Instruction) -> None:
    base = i.operands[1].reg
    if base is None or base.count != 2:
        raise IsaError(f"{i}: the base must be a scalar pair")
    offset = i.operands[2]
    constant = i.option("offset")
    text = e.spair(base.index)
    if isinstance(offset.value, Literal):
        constant += int(offset.value.value)
    else:
        text += f" + {e.ssrc(offset)}.astype(u8)"
    _scalar_rows(e, i, f"{text} + u8({constant & 0xFFFFFFFFFFFFFFFF})", "g.scalar_load")


def _scalar_rows(e: Emitter, i: Instruction, location: str, function: str) -> None:
    destination = i.operands[0].reg
    if destination is None or destination.file != "s":
        raise IsaError(f"{i}: the destination must be scalar registers")
    for special in (EXEC, M0):
        if destination.index <= special.index < destination.index + destination.count:
            raise IsaError(f"{i}: a load into {special} is not modelled")
    value = e.temp(f"{function}({i.index}, {location}, {destination.count})")
    for n, part in enumerate(destination):
        e.line(f"{e.sreg(part.index)}[...] = {value}[:, {n}]")
    e.wrote(destination)


# ---- LDS -----------------------------------------------------------------------------------------------------
def _ds_address(e: Emitter, i: Instruction, operand: Operand, offset: int) -> str:
    address = e.src(operand)
    return f"{address} + u4({offset})" if offset else address


@handles(*(f"ds_read_{k}" for k in _DS if k not in ("b8", "b16", "b8_d16_hi", "b16_d16_hi")))
def _ds_read(e: Emitter, i: Instruction) -> None:
    access = ACCESS[_DS[i.name.removeprefix("ds_read_")]]
    rows = _rows(e, i.operands[0], access, True)
    address = _ds_address(e, i, i.operands[1], i.option("offset"))
    e.line(f"g.lds_load({i.index}, k, {address}, {e.constant(access)}, {rows})")


@handles(*(f"ds_write_{k}" for k in ("b8", "b16", "b32", "b64", "b96", "b128", "b8_d16_hi", "b16_d16_hi")))
def _ds_write(e: Emitter, i: Instruction) -> None:
    access = ACCESS[_DS[i.name.removeprefix("ds_write_")]]
    rows = _rows(e, i.operands[1], access, False)
    address = _ds_address(e, i, i.operands[0], i.option("offset"))
    e.line(f"g.lds_store({i.index}, k, {address}, {e.constant(access)}, {rows})")


@handles("ds_read2_b32", "ds_read2_b64", "ds_read2st64_b32", "ds_read2st64_b64")
def _ds_read2(e: Emitter, i: Instruction) -> None:
    size = 8 if i.name.endswith("64") else 4
    unit = size * (64 if "st64" in i.name else 1)
    access = ACCESS["dwordx2" if size == 8 else "dword"]
    reg = i.operands[0].reg
    if reg is None or reg.count != 2 * access.registers:
        raise IsaError(f"{i}: destination must be {2 * access.registers} vector registers")
    address = e.temp(f"{e.src(i.operands[1])} + C0")
    for n in (0, 1):
        part = Operand(Reg(reg.file, reg.index + n * access.registers, access.registers))
        rows = _rows(e, part, access, True)
        e.line(
            f"g.lds_load({i.index}, k, {address} + u4({i.option(f'offset{n}') * unit}), {e.constant(access)}, {rows})"
        )


@handles("ds_write2_b32", "ds_write2_b64", "ds_write2st64_b32", "ds_write2st64_b64")
def _ds_write2(e: Emitter, i: Instruction) -> None:
    size = 8 if i.name.endswith("64") else 4
    unit = size * (64 if "st64" in i.name else 1)
    access = ACCESS["dwordx2" if size == 8 else "dword"]
    for n in (0, 1):
        rows = _rows(e, i.operands[1 + n], access, False)
        address = _ds_address(e, i, i.operands[0], i.option(f"offset{n}") * unit)
        e.line(f"g.lds_store({i.index}, k, {address}, {e.constant(access)}, {rows})")


@handles(
    *(f"ds_{o}" for o in _DS_ATOMICS), *(f"ds_{o.replace('_', '_rtn_', 1)}" for o in _DS_ATOMICS), "ds_wrxchg_rtn_b32"
)
def _ds_atomic(e: Emitter, i: Instruction) -> None:
    returns = "_rtn_" in i.name
    name = i.name.removeprefix("ds_").replace("_rtn_", "_")
    operation = "swap" if name == "wrxchg_b32" else _DS_ATOMICS[name]
    operands = list(i.operands)
    rows = _rows(e, operands.pop(0), ACCESS["dword"], True) if returns else "None"
    address = _ds_address(e, i, operands[0], i.option("offset"))
    e.line(f"g.lds_atomic({i.index}, k, {address}, '{operation}', ({e.src(operands[1])},), {rows})")
