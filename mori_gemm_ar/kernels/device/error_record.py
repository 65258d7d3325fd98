# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""How a kernel tells the host what it waited for in vain."""

from __future__ import annotations

import flydsl.expr as fx

from mori_gemm_ar.layout import ErrorStatus, ErrorWord


def write_error(record, phase, rank, peer, block, expected, seen):
    """Fill the error record at an address. `expected` and `seen` are pairs (epoch, tag).

    The status says which it was: an epoch behind ours is a late peer, any other unequal word is of another call.
    """
    (expected_epoch, expected_tag), (seen_epoch, seen_tag) = expected, seen
    # Arithmetic, because a comparison would be kept as a lane mask through the polling loop.
    behind = (seen_epoch - expected_epoch) >> 31
    status = fx.Uint32(int(ErrorStatus.MISMATCH)) - behind
    words = {
        ErrorWord.STATUS: status,
        ErrorWord.PHASE: phase,
        ErrorWord.RANK: rank,
        ErrorWord.PEER: peer,
        ErrorWord.BLOCK: block,
        ErrorWord.EXPECTED_EPOCH: expected_epoch,
        ErrorWord.SEEN_EPOCH: seen_epoch,
        ErrorWord.EXPECTED_TAG: expected_tag,
        ErrorWord.SEEN_TAG: seen_tag,
    }
    to = fx.inttoptr(fx.PointerType.get(fx.Uint32.ir_type, fx.AddressSpace.Global, 16), record)
    # Volatile stores reach the host's memory in this order, four words at once: the status comes last.
    fx.generic_store(to + 8, words[ErrorWord.SEEN_TAG], volatile=True)
    for first in (4, 0):
        four = [words[ErrorWord(first + word)] for word in range(4)]
        fx.generic_store(to + first, fx.Vector.from_elements(four), volatile=True)
