# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Deliberate faults of the stand-in, by which hwcheck shows that it would notice them. A GPU takes none."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.model.values import Values


class Fault(Enum):
    """What may be wrong with the stand-in."""

    MNEMONIC = "mnemonic"  # NAME=OTHER: one instruction does what another one does
    WRITEBACK = "writeback"  # buffer_wbl2 does nothing
    WRITEBACK_SCOPE = "writeback-scope"  # a writeback at system scope reaches this GPU only
    INVALIDATE = "invalidate"  # buffer_inv does nothing
    ENGINE_STALE = "engine-stale"  # engines go on reading what they read from a place before
    ENGINE_ORDER = "engine-order"  # signals and read pointers overtake the copies before them
    LDS_COPY = "lds-copy"  # a wait for copies to LDS waits for one copy less
    CONSTANT = "constant"  # NAME=VALUE: another constant of the time model
    TORN = "torn"  # engines copy half of their bytes, in microbenchmarks and product


@dataclass(frozen=True, slots=True)
class Alteration:
    """A fault, and what it is about where it has to be told."""

    fault: Fault
    name: str = ""
    value: str = ""

    def __str__(self) -> str:
        return ":".join(filter(None, (self.fault.value, self.name))) + (f"={self.value}" if self.value else "")

    @property
    def number(self) -> float:
        """The value of an altered constant."""
        return float(self.value)


def parse_alteration(text: str) -> Alteration:
    """`fault`, `mnemonic:NAME=OTHER` or `constant:NAME=VALUE`. ConfigError for anything else."""
    head, _, rest = text.partition(":")
    name, _, value = rest.partition("=")
    known = {fault.value: fault for fault in Fault}
    if head not in known:
        raise ConfigError(f"alter={text!r} must begin with one of {', '.join(known)}")
    fault = known[head]
    takes = fault in (Fault.MNEMONIC, Fault.CONSTANT)
    if takes != bool(name and value) or (rest and not takes):
        shape = f"{head}:NAME={'OTHER' if fault is Fault.MNEMONIC else 'VALUE'}" if takes else head
        raise ConfigError(f"alter={text!r} must be {shape}")
    if fault is Fault.CONSTANT:
        _check_constant(text, name, value)
    return Alteration(fault, name, value)


def _check_constant(text: str, name: str, value: str) -> None:
    specs = {field.name: field.metadata for field in fields(Values)}
    if name not in specs:
        raise ConfigError(f"alter={text!r} must name a constant of the model, such as sdma_rate_gbs")
    try:
        number = float(value)
    except ValueError:
        raise ConfigError(f"alter={text!r} must give a number in {specs[name]['unit']}") from None
    if not specs[name]["low"] <= number <= specs[name]["high"]:
        low, high, unit = specs[name]["low"], specs[name]["high"], specs[name]["unit"]
        raise ConfigError(f"alter={text!r} must be {low} to {high} {unit}")
