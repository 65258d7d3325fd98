# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Resources close once, half-built objects roll back in reverse, and the first error is the one that arrives."""

from __future__ import annotations

import pytest

from mori_gemm_ar.errors import ClosedError
from mori_gemm_ar.runtime import Resource, Rollback


class Thing(Resource):
    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.releases, self._fails = 0, fails

    def _release(self) -> None:
        self.releases += 1
        if self._fails:
            raise OSError("release")


def test_close_releases_once() -> None:
    thing = Thing()
    thing.require_open()
    assert not thing.closed
    thing.close()
    thing.close()
    assert thing.closed and thing.releases == 1


def test_a_closed_resource_refuses_use() -> None:
    thing = Thing()
    thing.close()
    for use in (thing.require_open, thing.__enter__):
        with pytest.raises(ClosedError, match="Thing must be open; create a new one"):
            use()


def test_the_block_closes_also_after_an_error() -> None:
    with pytest.raises(KeyError), Thing() as thing:
        raise KeyError("mine")
    assert thing.closed and thing.releases == 1


def test_a_release_that_fails_is_not_tried_again() -> None:
    thing = Thing(fails=True)
    with pytest.raises(OSError, match="release"):
        thing.close()
    thing.close()
    assert thing.closed and thing.releases == 1


def test_a_resource_must_say_how_it_is_released() -> None:
    with pytest.raises(NotImplementedError):
        Resource().close()


def test_rollback_runs_in_reverse_and_once() -> None:
    order: list[int] = []
    rollback = Rollback()
    for n in range(3):
        rollback.add(lambda n=n: order.append(n))
    rollback.run()
    rollback.run()
    assert order == [2, 1, 0]


@pytest.mark.parametrize("quiet", [False, True])
def test_rollback_runs_everything_and_raises_the_first_error(quiet: bool) -> None:
    order: list[str] = []

    def fail(name: str) -> None:
        order.append(name)
        raise OSError(name)

    rollback = Rollback()
    rollback.add(lambda: order.append("first"))
    for name in ("second", "third"):
        rollback.add(lambda name=name: fail(name))
    rollback.add(lambda: order.append("fourth"))
    if quiet:
        rollback.run(quiet=True)
    else:
        with pytest.raises(OSError, match="third"):
            rollback.run()
    assert order == ["fourth", "third", "second", "first"]
