# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Which transport an op gets: what was asked for, and what the ranks have."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from mori_gemm_ar.errors import ConfigError, TransportWarning
from mori_gemm_ar.layout import MI355X, rules
from mori_gemm_ar.layout.sdma import CcoDevice, Transport, reason_not_queues
from mori_gemm_ar.runtime import World

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class CopyEngines:
    """How an op uses copy engines: queues to each peer, and whose device code posts, "own" or "mori" (`CcoDevice`).

    Raises `ConfigError` for another value.
    """

    queues: int = 1
    cco_device: CcoDevice | str = CcoDevice.OWN

    def __post_init__(self) -> None:
        rules.require(reason_not_queues(self.queues))
        if self.cco_device not in (*CcoDevice, *(device.value for device in CcoDevice)):
            legal = ", ".join(repr(device.value) for device in CcoDevice)
            raise ConfigError(f"cco_device={self.cco_device!r} must be one of {legal}")
        object.__setattr__(self, "cco_device", CcoDevice(self.cco_device))

    @classmethod
    def of(cls, asked: int | CopyEngines) -> CopyEngines:
        """What `queues` of `create` says: a number, or everything."""
        return asked if isinstance(asked, CopyEngines) else cls(asked)

    @property
    def device(self) -> CcoDevice:
        """Whose device code posts."""
        return CcoDevice(self.cco_device)


def transport_named(name: object) -> Transport | None:
    """The transport that a caller asks for; None for "auto"."""
    if isinstance(name, Transport):
        return name
    if name == AUTO:
        return None
    for transport in Transport:
        if name == transport.value:
            return transport
    legal = ", ".join(repr(word) for word in (AUTO, *(t.value for t in Transport)))
    raise ConfigError(f"transport={name!r} must be one of {legal}")


def wants_engines(asked: Transport | None, world: int, max_bytes: int) -> bool:
    """Whether an op needs queues: when asked, or when some call of it would choose them."""
    if world == 1:
        return False
    return asked is Transport.SDMA or (asked is None and max_bytes >= MI355X.copy_bytes)


def reconcile_engines(
    world: World, asked: Transport | None, fault: str | None, name: str = "transport='sdma'", way_out: str = "'lsa'"
) -> bool:
    """Collective: whether all ranks have their queues. `fault`: why this one has none.

    Raises `ConfigError` on every rank where copy engines were asked for; with "auto" rank 0 warns. name, way_out: the
    option that asked for them, and its value that needs none.
    """
    option = name.partition("=")[0]
    faults = world.exchange("copy engines", fault)
    missing = [f"rank {rank}: {text}" for rank, text in enumerate(faults) if text is not None]
    if not missing:
        return True
    reason = "; ".join(missing)
    if asked is Transport.SDMA:
        raise ConfigError(f"{name} must have copy engines on all ranks, but {reason}; use {option}={way_out}")
    if world.rank == 0:
        warnings.warn(f"{option}='auto' resolves to {way_out} for all calls: {reason}", TransportWarning, stacklevel=3)
    return False
