# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""One base for everything that is acquired and must be given back, and the stack that rolls back half-built objects."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from mori_gemm_ar.errors import ClosedError

R = TypeVar("R", bound="Resource")


class Resource:
    """Acquire in `__init__`, release in `_release`; `close` may be called any number of times."""

    def __init__(self) -> None:
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def require_open(self) -> None:
        """Raise `ClosedError` after `close`."""
        if self._closed:
            raise ClosedError(f"{type(self).__name__} must be open; create a new one")

    def close(self) -> None:
        """Give everything back. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._release()

    def _release(self) -> None:
        raise NotImplementedError

    def __enter__(self: R) -> R:
        self.require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Rollback:
    """Releases in reverse order. The first error of a release is raised after all of them have run."""

    def __init__(self) -> None:
        self._releases: list[Callable[[], object]] = []

    def add(self, release: Callable[[], object]) -> None:
        """Register the undo of what was just acquired."""
        self._releases.append(release)

    def run(self, *, quiet: bool = False) -> None:
        """Release everything; with `quiet` errors are dropped, because another one is already on its way."""
        first: Exception | None = None
        while self._releases:
            try:
                self._releases.pop()()
            except Exception as error:
                first = first or error
        if first is not None and not quiet:
            raise first
