# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""How copy engines behave, and what may be wrong with them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from mori_gemm_ar.errors import ConfigError

Place = tuple[int | None, int | None, int | None]  # rank, peer, queue; None stands for any
Places = tuple[Place, ...]
NOWHERE: Places = ()
EVERYWHERE: Places = ((None, None, None),)


@dataclass(frozen=True, slots=True)
class EngineFaults:
    """Switches. Each names the queues that it hits: `EVERYWHERE`, or (rank, peer, queue) with None for any."""

    absent: Places = NOWHERE  # the queue is not there, so the rank has none at all
    no_data: Places = NOWHERE  # packets are consumed, and no copy or signal happens: puts that were compiled out
    dead: Places = NOWHERE  # consumes nothing
    stalled: Places = NOWHERE  # consumes nothing after `stalled_after` packets
    late: Places = NOWHERE  # begins with what a doorbell brings only `late_ticks` after it
    torn: Places = NOWHERE  # of a copy only the first half lands, and it counts as done
    lost: Places = NOWHERE  # copies land, but the read pointer and the signals behind them never move
    stalled_after: int = 1
    late_ticks: int = 10_000_000  # of the 100 MHz clock

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name in ("stalled_after", "late_ticks"):
                if value < 0:
                    raise ConfigError(f"{one.name}={value} must not be negative")
                continue
            right = isinstance(value, tuple) and all(
                isinstance(place, tuple) and len(place) == 3 and all(n is None or isinstance(n, int) for n in place)
                for place in value
            )
            if not right:
                raise ConfigError(f"{one.name}={value!r} must be a tuple of (rank, peer, queue), with None for any")

    def hits(self, switch: str, rank: int, peer: int, queue: int) -> bool:
        """Whether a switch is on for a queue."""
        place = (rank, peer, queue)
        return any(
            all(want is None or want == have for want, have in zip(pattern, place, strict=True))
            for pattern in getattr(self, switch)
        )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How the engines of a node run. Every choice is legal, so a right program passes with any of them.

    seed: of their choices; None takes that of the weak memory, or of the world. ordered: copies of one queue land in
    the order in which they were posted. busy: probability that a copy moves a piece in a round.
    """

    seed: int | None = None
    ordered: bool = False
    busy: float = 0.5
    faults: EngineFaults = field(default_factory=EngineFaults)

    def __post_init__(self) -> None:
        if not 0.0 <= self.busy <= 1.0:
            raise ConfigError(f"busy={self.busy} must be a probability, 0..1")
