# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What a hand-over through a copy engine needs: each part missing gives wrong words in weak memory, or a race."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from mori_gemm_ar.compile.store import CodeObject
from mori_gemm_ar.emulator.races.detector import RaceDetector
from mori_gemm_ar.errors import EmulatorError, RaceError
from tests.kernel.sdma_kernels import build_receive, build_send
from tests.proof.handover import edited, hand_over, outcomes

WAIT = "\t;;#ASMSTART\n\ts_waitcnt vmcnt(0)\n\t;;#ASMEND\n"


def _without_wait(code: CodeObject) -> CodeObject:
    """Nothing waits for the ring's stores before the doorbell."""
    return edited(code, _wait_of(code), "")


def _wait_of(code: CodeObject) -> str:
    found = re.search(r"\s*;;#ASMSTART\n\s*s_waitcnt vmcnt\(0\)\n\s*;;#ASMEND", code.isa)
    assert found is not None
    return found[0]


@pytest.mark.parametrize("wait", ["drain", "signal"])
def test_with_all_parts_it_is_right(wait: str) -> None:
    assert outcomes(build_send(wait=wait)) == {True}
    assert hand_over(build_send(wait=wait), races=RaceDetector())
    assert hand_over(build_send(wait=wait), seed=1, races=RaceDetector())


MISSING: dict[str, Callable[[], tuple[CodeObject, CodeObject]]] = {
    "source not released": lambda: (build_send(release=False), build_receive()),
    "no drain": lambda: (build_send(wait="none"), build_receive()),
    "flag before the drain": lambda: (build_send(early=True), build_receive()),
    "flag before the signal": lambda: (build_send(wait="signal", early=True), build_receive()),
    "no acquire": lambda: (build_send(), build_receive("none")),
    "acquire at agent scope": lambda: (build_send(), build_receive("agent")),
}


@pytest.mark.parametrize("name", MISSING)
def test_each_part_is_needed_in_weak_memory(name: str) -> None:
    send, receive = MISSING[name]()
    assert False in outcomes(send, receive)


@pytest.mark.parametrize("name", MISSING)
@pytest.mark.parametrize("seed", [None, 0])
def test_each_missing_part_is_a_race(name: str, seed: int | None) -> None:
    send, receive = MISSING[name]()
    with pytest.raises(RaceError, match="copy engine of GPU 0 to peer 1, queue 0"):
        hand_over(send, receive, seed=seed, races=RaceDetector())


def test_the_ring_is_waited_for_before_the_doorbell() -> None:
    """Without it the engine reads what the ring held before: an old packet, or none."""
    send = _without_wait(build_send())

    def fails(seed: int) -> bool:
        try:
            return not hand_over(send, seed=seed)
        except EmulatorError:
            return True

    assert any(fails(seed) for seed in range(12))
    with pytest.raises(RaceError, match="ring"):
        hand_over(send, races=RaceDetector())
