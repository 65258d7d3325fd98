# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What the caller of `AllReduceOp.create` asks for, checked before anything is allocated."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from mori_gemm_ar.ar import wire as wires
from mori_gemm_ar.ar.arguments import TORCH_DTYPES
from mori_gemm_ar.ar.sdma import sdma_configs
from mori_gemm_ar.ar.transport import AUTO, CopyEngines, transport_named, wants_engines
from mori_gemm_ar.compile.mori_bitcode import digest_of
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import AllReduceConfig, Stage, WindowMap, Wire, allreduce_window, rules
from mori_gemm_ar.layout.sdma import CcoDevice, SdmaConfig, Transport, probe_bytes, sdma_window
from mori_gemm_ar.runtime import Target

MAX_TIMEOUT_S = 24 * 3600.0  # a budget of this many 100 MHz ticks is far from overflowing 64 bits


@dataclass(frozen=True, slots=True)
class Options:
    """Equal on all ranks. `transport=None` and `stage=None` leave the choice to each call's size.

    bitcode: which amd-mori bitcode submits, as `SdmaConfig.bitcode`; known when there is a target, see `on`.
    """

    world: int
    max_bytes: int
    stage: Stage | None
    dtypes: tuple[torch.dtype, ...]
    transport: Transport | None
    queues: int
    wire: Wire = Wire.EXACT
    cco_device: CcoDevice = CcoDevice.OWN
    bitcode: str = ""

    @classmethod
    def checked(
        cls,
        world: int,
        max_bytes: int,
        stage: Stage | None,
        dtypes: Sequence[torch.dtype] | None,
        transport: Transport | str,
        queues: int | CopyEngines,
        wire: Wire | str = Wire.EXACT,
    ) -> Options:
        """Raises `ConfigError` for the first argument that breaks a rule."""
        rules.require(rules.reason_not_world(world) or rules.reason_not_max_bytes(max_bytes))
        wire = Wire.parse(wire)
        dtypes = wires.dtypes_of(wire, dtypes)
        unknown = [d for d in dtypes if d not in TORCH_DTYPES]
        if unknown or not dtypes:
            raise ConfigError(f"dtypes={list(dtypes)} must be a choice of {[str(d) for d in TORCH_DTYPES]}")
        if stage is not None and not isinstance(stage, Stage):
            raise ConfigError(f"stage={stage!r} must be Stage.ONE, Stage.TWO or None")
        wire = wires.effective(wire, world, stage)
        asked = transport_named(transport)
        if stage is not None and asked is Transport.SDMA:
            raise ConfigError(f"stage={stage} must be None with transport='sdma'; only load and store has stages")
        engines = CopyEngines.of(queues)
        device = engines.device if world > 1 else CcoDevice.OWN  # a world of one only copies
        options = cls(world, max_bytes, stage, tuple(dtypes), asked, engines.queues, wire, device)
        if device is CcoDevice.MORI and not options.wants_engines:
            name = AUTO if asked is None else asked.value
            raise ConfigError(
                f"cco_device='mori' must go with copy engines, but none are used with transport={name!r}, "
                f"stage={stage} and max_bytes={max_bytes}; use transport='sdma', or cco_device='own'"
            )
        return options

    def on(self, target: Target) -> Options:
        """With what the target has. Raises `ConfigError`, or `MissingDependencyError` for want of mori's bitcode."""
        if self.cco_device is CcoDevice.OWN:
            return self
        return dataclasses.replace(self, bitcode=digest_of(target.mori_bitcode()))

    @property
    def wants_engines(self) -> bool:
        """Whether some call may use copy engines."""
        return self.stage is None and wants_engines(self.transport, self.world, self.max_bytes)

    @property
    def compared(self) -> tuple[object, ...]:
        """What all ranks have to give alike, in a form that a message can show."""
        own = self.max_bytes, self.stage, tuple(map(str, self.dtypes)), self.transport, self.queues, self.wire.value
        return (*own, self.cco_device.value, self.bitcode) if self.bitcode else (*own, self.cco_device.value)

    def configs(self) -> Iterator[AllReduceConfig | SdmaConfig]:
        """Kernels that calls may need."""
        elements = [TORCH_DTYPES[dtype] for dtype in self.dtypes]
        if self.transport is not Transport.SDMA or self.world == 1:
            yield from wires.configs_of(self.world, self.dtypes, self.wire)
        elif self.wire.lossy:
            yield wires.measuring_config(self.world)
        if self.wants_engines:
            yield from sdma_configs(self.world, elements, self.wire, self.bitcode)

    def window(self) -> WindowMap:
        """The op's window; with copy engines it has room for a self-test of every queue."""
        if self.wants_engines:
            probe = probe_bytes(self.world, self.queues, self.wire)
            return sdma_window(max(self.max_bytes, probe), self.world, self.wire, self.cco_device)
        return allreduce_window(self.max_bytes, self.world, self.wire)


def checked_timeout(timeout_s: object, default: float) -> float:
    """Seconds of each wait, or `ConfigError`."""
    if timeout_s is None:
        return default
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise ConfigError(f"timeout_s={timeout_s!r} must be a number of seconds above 0 and up to {MAX_TIMEOUT_S:g}")
    return float(timeout_s)
