# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Votes before anything is fused: all ranks go on, or none does and every one knows whose reason it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from mori_gemm_ar.errors import MoriGemmArError

if TYPE_CHECKING:
    from mori_gemm_ar.runtime import Group

T = TypeVar("T")


class Refused(MoriGemmArError, RuntimeError):
    """The plugin stays off on every rank; the message names ranks and reasons."""


def vote(group: Group, step: str, action: Callable[[], T]) -> T:
    """Collective: run `action`, which itself meets nobody, and return its result once it succeeded on all ranks.

    Raises `Refused` on every rank when it raised on one, whatever that was, and `RendezvousError` when one is missing.
    """
    result: T | None = None
    reason: str | None = None
    try:
        result = action()
    except Exception as error:
        reason = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
    reasons = cast("list[str | None]", group.exchange(step, reason))
    refusing = [f"rank {rank}: {why}" for rank, why in enumerate(reasons) if why is not None]
    if refusing:
        raise Refused(f"{step}: {'; '.join(refusing)}")
    return cast(T, result)


def vote_equal(group: Group, step: str, facts: dict[str, object]) -> None:
    """Collective: raises `Refused` on every rank unless all gave the same facts; names those that differ."""
    everyone = cast("list[dict[str, object]]", group.exchange(step, facts))
    names = [name for name in everyone[0] if any(other.get(name) != everyone[0][name] for other in everyone)]
    if names or any(other.keys() != everyone[0].keys() for other in everyone):
        listing = "; ".join(
            f"{name} is " + ", ".join(f"{other.get(name)!r} on rank {rank}" for rank, other in enumerate(everyone))
            for name in names
        )
        raise Refused(f"{step}: {listing}; start all ranks alike")
