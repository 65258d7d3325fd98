# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Ranks that act together: exchange of small values, and steps that succeed on every rank or raise on every rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from mori_gemm_ar.errors import (
    CollectiveSetupError,
    CollectiveTimeout,
    ConfigError,
    CopyEngineTimeout,
    MoriGemmArError,
    RendezvousError,
)

T = TypeVar("T")


class Group(Protocol):
    """A set of ranks. Every method is collective and bounded in time."""

    @property
    def rank(self) -> int:
        """Position of the caller, 0 to size - 1."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def exchange(self, step: str, value: object) -> list[object]:
        """One value from every rank, in rank order. Raises `RendezvousError` naming ranks that do not come."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a rank reports about a step. `caused`: it failed because another rank did."""

    failed: bool
    message: str = ""
    caused: bool = False


def agree(group: Group, step: str, action: Callable[[], T]) -> T:
    """Run `action` on this rank and return its result once it succeeded on every rank.

    When it failed somewhere, a rank where it failed raises its own error; the others, and those that failed only
    because a peer did not come, raise `CollectiveSetupError` naming the failing rank, the step and the message.
    Nothing is released here: the caller rolls back. `action` itself does not exchange: ranks where it fails early
    would leave the others there.
    """
    error: Exception | None = None
    result: T | None = None
    try:
        result = action()
    except Exception as caught:
        error = caught
    report = _Outcome(False)
    if error is not None:
        caused = isinstance(error, CollectiveTimeout) and not isinstance(error, CopyEngineTimeout)
        report = _Outcome(True, f"{type(error).__name__}: {error}", caused)
    outcomes: list[object] = []
    try:
        outcomes = group.exchange(step, report)
    except RendezvousError:
        if error is None:  # else others are missing because of it
            raise
    failed = [(r, o) for r, o in enumerate(outcomes) if isinstance(o, _Outcome) and o.failed]
    failures = [(r, o.message) for r, o in failed if not o.caused] or [(r, o.message) for r, o in failed]
    if error is not None and not (report.caused and any(not o.caused for _, o in failed)):
        if isinstance(error, MoriGemmArError):
            raise error
        raise CollectiveSetupError(f"rank {group.rank} failed at step {step!r}: {report.message}") from error
    if failures:
        text = "; ".join(f"rank {r} failed at step {step!r}: {message}" for r, message in failures)
        raise CollectiveSetupError(text) from error
    return result  # type: ignore[return-value]


def require_equal(group: Group, step: str, what: str, value: object) -> None:
    """Raise `ConfigError` on every rank when the ranks gave different values."""
    values = group.exchange(step, value)
    if any(other != values[0] for other in values):
        listing = ", ".join(f"rank {r}: {v}" for r, v in enumerate(values))
        raise ConfigError(f"{what} must be equal on all ranks; got {listing}")
