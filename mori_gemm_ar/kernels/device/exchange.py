# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""One wave gives every peer a run of bytes by copy engine, tells it when they have landed, and waits for all peers."""

from __future__ import annotations

from collections.abc import Mapping

import flydsl.compiler as flyc
import flydsl.expr as fx

from mori_gemm_ar.kernels.device import library, sdma
from mori_gemm_ar.kernels.device.error_record import write_error
from mori_gemm_ar.layout import CONTROL, PACK_BYTES, SLOT_BYTES, Phase

_FLAGS = {Phase.SCATTER: CONTROL.copy_flag(Phase.SCATTER, 0), Phase.GATHER: CONTROL.copy_flag(Phase.GATHER, 0)}
_PUTS = {Phase.SCATTER: Phase.SCATTER_PUT, Phase.GATHER: Phase.GATHER_PUT}


class Exchange:
    """Lane `peer * queues + q` serves queue q to a peer; lane `peer` of the first ones meets it.

    A flag is (epoch << 32) | tag. The epoch counts calls by copy engine, lives in device memory and is never reset.
    `submit` has the verbs of `sdma`: queue, put and drain.
    """

    epoch_offset = CONTROL.copy_epoch
    flags: Mapping[Phase, int] = _FLAGS

    def __init__(self, windows, lane, call, phase, submit=sdma):
        self.windows, self.phase, self.submit = windows, phase, submit
        self.rank, self.lane = fx.Uint32(windows.rank), fx.Uint32(lane)
        self.table, self.queues = call.table, fx.Uint32(call.queues)
        self.tag, self.budget, self.error = fx.Uint32(call.tag), call.budget, call.error
        self.peer = self.lane // self.queues
        self.queue = self.lane % self.queues
        self.epoch_address = windows.own + fx.Int64(self.epoch_offset)
        self.epoch = library.load_agent_u32(self.epoch_address) + 1
        self.word = (fx.Uint64(self.epoch) << 32) | fx.Uint64(self.tag)

    @flyc.jit
    def run(self, source, target, nbytes):
        """Put `nbytes` from `source` to `target`, both of this lane's peer, and meet all peers; whether all came.

        The caller owes that the source is released, and an acquire of system scope before what landed is read.
        """
        late = fx.Uint32(0)
        if self.serves():
            late = self.put(source, target, nbytes)
        met = fx.Uint32(0)
        if library.any_lane(late) == 0:
            missed = fx.Uint32(0)
            if self.meets():
                missed = self.meet()
            met = fx.Uint32(1) - library.any_lane(missed)
        else:
            if late != 0:
                self.fail(_PUTS[self.phase], self.peer, fx.Uint64(0))
        return met != 0

    def serves(self):
        return (self.peer < self.windows.world) & (self.peer != self.rank)

    def meets(self):
        return (self.lane < self.windows.world) & (self.lane != self.rank)

    def put(self, source, target, nbytes):
        """Put this lane's piece and wait until it has landed; 1 where the budget ran out."""
        packs = fx.Uint32((nbytes + (PACK_BYTES - 1)) // PACK_BYTES)
        piece = fx.Int64((packs + self.queues - 1) // self.queues) * PACK_BYTES
        start = fx.min(piece * fx.Int64(self.queue), nbytes)
        size = fx.min(piece, nbytes - start)
        queue = self.submit.queue(self.table, self.lane)
        late = self.submit.put(queue, target + start, source + start, size, self.budget)
        return late | self.submit.drain(queue, self.budget)

    def meet(self):
        """Tell a peer, and wait for it; 1 where another word came or none."""
        slot = fx.Int64(self.flags[self.phase])
        library.store_system_u64(self.windows.of(self.lane) + slot + fx.Int64(self.rank * SLOT_BYTES), self.word)
        seen = library.wait_epoch(self.windows.own + slot + fx.Int64(self.lane * SLOT_BYTES), self.epoch, self.budget)
        return self.judge(seen)

    @flyc.jit
    def judge(self, seen):
        wrong = fx.Uint32(0)
        if seen != self.word:
            wrong = fx.Uint32(1)
            self.fail(self.phase, self.lane, seen)
        return wrong

    @flyc.jit
    def fail(self, phase, peer, seen):
        """Write the error record, unless another lane has."""
        claim = self.windows.own + fx.Int64(CONTROL.claim)
        if library.claim_agent(claim, 0, 1) == 0:
            write_error(
                self.error, fx.Uint32(int(phase)), self.rank, peer, fx.Uint32(0),
                (self.epoch, self.tag), (fx.Uint32(seen >> 32), fx.Uint32(seen)),
            )  # fmt: skip

    @flyc.jit
    def publish_if(self, met):
        """The call is over on this rank, if all peers came: advance the epoch."""
        if (self.lane == 0) & met:
            library.store_agent_u32(self.epoch_address, self.epoch)
