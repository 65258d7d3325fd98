# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The audit's register table against the emulator, which was written from another description of the same machine."""

from __future__ import annotations

from typing import Any

import pytest

from mori_gemm_ar.audit.registers import EXEC_MASK, M0_MASK, SCC, names_of, reads_writes
from mori_gemm_ar.commands.shipped import shipped_configs
from mori_gemm_ar.compile.store import default_store
from mori_gemm_ar.emulator import translate
from mori_gemm_ar.emulator.emit import HANDLERS, Emitter
from mori_gemm_ar.isa import Instruction, parse_isa

assert translate, "imported for its handlers"

SCALARS = 512  # position of s0 in a set
OTHERS = SCC | EXEC_MASK | M0_MASK  # the emulator does not bind these by name
# One kernel of each kind: the others hold no other mnemonics.
KINDS = {
    config.key: config
    for config in shipped_configs()
    if "w8_" in config.key or "gemm_" in config.key or "quant" in config.key
}
# Packed 64-bit operations may use one half of a pair twice; the audit counts the pair.
WHOLE_PAIRS = ("v_pk_add_f32", "v_pk_mul_f32", "v_pk_fma_f32", "v_pk_mov_b32")


def emulated(i: Instruction) -> tuple[int, int]:
    """(registers that the emulator's code touches, registers that it writes), as sets."""
    emitter = Emitter()
    HANDLERS[i.name](emitter, i)
    touched = written = 0
    for file, index in emitter.written:
        written |= 1 << index + (SCALARS if file == "s" else 0)
    for binding in emitter.bindings.values():
        width = 3 if binding.file == "p" else 1
        touched |= width << binding.index + (0 if binding.file == "v" else SCALARS)
    return touched | written, written


@pytest.mark.parametrize("config", KINDS.values(), ids=lambda config: config.key)
def test_same_registers(config: Any) -> None:
    code = default_store().get(config)
    seen = set()
    for i in parse_isa(code.isa).kernel(code.kernel).instructions:
        if i.text in seen or i.name not in HANDLERS:
            continue
        seen.add(i.text)
        reads, writes = reads_writes(i)
        touched, written = emulated(i)
        assert written & ~OTHERS == writes & ~OTHERS, f"{i}: {names_of(written ^ writes)}"
        extra, missing = (reads | writes) & ~touched & ~OTHERS, touched & ~(reads | writes) & ~OTHERS
        assert not missing, f"{i}: {names_of(missing)}"
        assert not extra or i.name in WHOLE_PAIRS, f"{i}: {names_of(extra)}"
    assert len(seen) > 20
