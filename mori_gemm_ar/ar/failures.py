# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""From the error record that a kernel wrote to the exception that the host raises."""

from __future__ import annotations

import struct

from mori_gemm_ar.errors import CollectiveError, CollectiveMismatch, CollectiveTimeout, CopyEngineTimeout
from mori_gemm_ar.layout.allreduce import ERROR_WORDS, ErrorStatus, ErrorWord, Phase, decode_tag, error_words
from mori_gemm_ar.layout.fused import LayerTag

_PHASES = {
    Phase.ENTRY: "entry barrier (all inputs are there)",
    Phase.MIDDLE: "middle barrier (all slices are reduced)",
    Phase.LEAVE: "exit barrier (all inputs are read)",
    Phase.SCATTER_PUT: "scatter (its copy engines have sent all slices)",
    Phase.SCATTER: "scatter (all slices are here)",
    Phase.GATHER_PUT: "gather (its copy engines have sent its sums)",
    Phase.GATHER: "gather (all sums are here)",
    Phase.PULL: "pull (all slices are reduced)",
}


_BY_ENGINE = (Phase.SCATTER_PUT, Phase.SCATTER, Phase.GATHER_PUT, Phase.GATHER)


def _call(tag: int, phase: int) -> str:
    layer = LayerTag.of(tag)
    if layer is not None:
        gather = "pulled" if layer.pulled else "pushed by copy engine"
        return f"m={layer.m}, sums {gather}, output {layer.slot}"
    call = decode_tag(tag)
    how = "by copy engine" if phase in _BY_ENGINE else f"{call.stage.value}-stage"
    wire = f", wire {call.wire.value!r}" if call.wire.lossy else ""
    rows = f" in rows of {call.columns}" if call.columns is not None else ""
    return f"{call.numel} x {call.dtype.label}{rows}, {how}{wire}"


def failure_of(record: bytes, timeout_s: float, absent: dict[int, str] | None = None) -> CollectiveError | None:
    """The exception that an error record stands for, or None while it is clear.

    `absent`: ranks known to have died or given up, and how.
    """
    words = error_words(struct.unpack(f"<{ERROR_WORDS}I", record))
    status = words[ErrorWord.STATUS]
    if status == ErrorStatus.NONE:
        return None
    try:
        status, phase = ErrorStatus(status), _PHASES[Phase(words[ErrorWord.PHASE])]
    except ValueError:
        return CollectiveError(
            f"the error record holds words that no kernel writes: {[f'{word:#x}' for word in words.values()]}; "
            f"something wrote over the window's control part; create a new op"
        )
    rank, peer, block = words[ErrorWord.RANK], words[ErrorWord.PEER], words[ErrorWord.BLOCK]
    expected, seen = words[ErrorWord.EXPECTED_EPOCH], words[ErrorWord.SEEN_EPOCH]
    if Phase(words[ErrorWord.PHASE]) in (Phase.SCATTER_PUT, Phase.GATHER_PUT):
        return CopyEngineTimeout(
            f"rank {rank} waited {timeout_s:g} s for its own copy engine to rank {peer} at the {phase}, "
            f"call {expected}: the engine is dead, stuck or too slow; create a new op with transport='lsa', "
            f"or with a larger timeout_s if it is slow"
        )
    if status == ErrorStatus.TIMEOUT and absent:
        gone = {peer: absent[peer]} if peer in absent else absent
        fates = "; ".join(f"rank {lost} {fate}" for lost, fate in sorted(gone.items()))
        return CollectiveTimeout(
            f"{fates}; rank {rank} stood at the {phase}, block {block}, call {expected}, and waited for rank {peer}, "
            f"last seen at call {seen}; create a new op on the ranks that are left"
        )
    if status == ErrorStatus.TIMEOUT:
        return CollectiveTimeout(
            f"rank {rank} waited {timeout_s:g} s for rank {peer} at the {phase}, block {block}: "
            f"expected call {expected}, saw call {seen}; rank {peer} is dead, stuck or too slow; "
            f"create a new op, with a larger timeout_s if it is slow"
        )
    if seen != expected:
        return CollectiveMismatch(
            f"rank {peer} is already at call {seen}, but rank {rank} at call {expected}, at the {phase}; "
            f"all ranks must make the same calls in the same order; create a new op"
        )
    mine, theirs = (_call(words[tag], words[ErrorWord.PHASE]) for tag in (ErrorWord.EXPECTED_TAG, ErrorWord.SEEN_TAG))
    what = "all-reduce" if LayerTag.of(words[ErrorWord.EXPECTED_TAG]) is None else "GEMM and all-reduce"
    return CollectiveMismatch(
        f"rank {rank} called {what} with {mine}, but rank {peer} with {theirs}, at the {phase}, "
        f"call {expected}; all ranks must make the same calls in the same order; create a new op"
    )
