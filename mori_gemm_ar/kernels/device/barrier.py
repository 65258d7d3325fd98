# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The barrier of a block with its namesakes on all ranks, bounded in time."""

from __future__ import annotations

import flydsl.compiler as flyc
import flydsl.expr as fx

from mori_gemm_ar.kernels.device import library
from mori_gemm_ar.kernels.device.error_record import write_error
from mori_gemm_ar.kernels.device.memory import ElementArray
from mori_gemm_ar.layout import CONTROL, MAX_WORLD, SLOT_BYTES, WAVE_LANES, Phase

# One row of slots for both closing phases, so that every call writes every row that it may read: a slot that fell
# 2^31 calls behind would look as if it were ahead.
_REGIONS = {Phase.ENTRY: CONTROL.entry, Phase.MIDDLE: CONTROL.exit, Phase.LEAVE: CONTROL.exit}


class BlockBarrier:
    """Block b of every rank meets block b of every other rank, once for each phase of a call.

    A signal word is (epoch << 32) | tag. The epoch counts this block's calls, lives in device memory and is never
    reset; the tag says which call it is, so ranks that disagree find out. Slots: [phase][block][writing rank].
    A phase is given as its number among `phases`, so that one code serves them all.
    """

    def __init__(self, windows, block, tid, call, phases):
        self.windows = windows
        self.rank, self.block, self.tid = fx.Uint32(windows.rank), fx.Uint32(block), fx.Uint32(tid)
        self.tag, self.budget, self.error = fx.Uint32(call.tag), call.budget, call.error
        first, second = phases
        self.first_row = _REGIONS[first]
        self.row_growth = _REGIONS[second] - _REGIONS[first]
        self.phase_growth = int(second) - int(first)
        self.epochs = ElementArray(fx.Uint32, windows.own + fx.Int64(CONTROL.epochs), align=4)
        self.epoch = self.epochs.load(block) + 1
        self.word = (fx.Uint64(self.epoch) << 32) | fx.Uint64(self.tag)
        # One LDS word tells all waves what wave 0 saw: zero, or that the barrier failed.
        self.failed = fx.SharedAllocator().allocate(fx.Array[fx.Uint32, 1, 4]).peek().ptr
        self.failed.store(fx.Uint32(0))

    @flyc.jit
    def meet(self, number):
        """Signal, wait for all ranks, and return whether all came; the same in every thread of the block.

        Releases what any wave of this block wrote before, and acquires what the other ranks' blocks released, both
        at system scope. All waves have to call it. On False the caller owes that the block ends without publish().
        """
        # Each wave's own stores leave the wave here; the release below cleans the L2 that they went to.
        fx.rocdl.s_waitcnt(vmcnt=0)
        fx.gpu.barrier()
        if library.uniform(self.tid) < WAVE_LANES:
            library.release_system()
            # Pinned, or lane addresses are computed ahead of the loop and held in registers through every phase.
            lane = library.pin(self.tid)
            if lane < self.windows.world:
                self.signal(number, lane)
                self.wait(number, lane)
            library.acquire_system()
        fx.gpu.barrier()
        return library.uniform(self.failed.load()) == 0

    def signal(self, number, peer):
        """Store this call's word into the peer's slot. Relaxed: the caller owes a system release before."""
        slot = self._row(number) + self.rank * SLOT_BYTES
        library.store_system_u64(self.windows.of(peer) + fx.Int64(slot), self.word)

    @flyc.jit
    def wait(self, number, peer):
        """Poll the own slot of the peer until its word comes or the budget is spent; a failure is recorded.

        Relaxed: the caller owes a system acquire after it.
        """
        slot = self.windows.own + fx.Int64(self._row(number)) + fx.Int64(peer * SLOT_BYTES)
        seen = library.wait_epoch(slot, self.epoch, self.budget)
        if seen != self.word:
            self.failed.store(fx.Uint32(1))
            claim = self.windows.own + fx.Int64(CONTROL.claim)
            if library.claim_agent(claim, 0, 1) == 0:
                self._record(number, peer, seen)

    @flyc.jit
    def publish(self):
        """Advance this block's epoch: the call is over. The caller owes that meet() returned True in all phases."""
        if self.tid == 0:
            self.epochs.store(self.block, self.epoch)

    def _row(self, number):
        return self.block * (MAX_WORLD * SLOT_BYTES) + fx.Uint32(number) * self.row_growth + self.first_row

    def _record(self, number, peer, seen):
        seen_epoch, seen_tag = fx.Uint32(seen >> 32), fx.Uint32(seen)
        phase = fx.Uint32(number) * self.phase_growth
        write_error(self.error, phase, self.rank, peer, self.block, (self.epoch, self.tag), (seen_epoch, seen_tag))
