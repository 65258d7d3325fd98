# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The K loop: copies two steps ahead, fragments half a step ahead, one barrier for each step.

A step multiplies four quarters, (A half, B half), in an order that keeps one side of the pair:

    even step  a0 b0 | a0 b1 | barrier | a1 b1 | a1 b0      odd step  a0 b1 | a0 b0 | barrier | a1 b0 | a1 b1
    LDS reads     b1 |    a1 |         |   a0' |   b1'                   b0 |    a1 |         |   a0' |   b0'

Each quarter reads what the next one needs into the registers of the half that is no longer used (' = next step), so a
fragment is read once and LDS reads run under the MFMAs. Slot s of LDS holds the steps of parity s.

The barrier hands over both slots. Before it, every wave has waited for
 - lgkmcnt(0), if step + 2 is going to refill this step's slot: its reads of that slot are over (a1 was the last);
 - vmcnt(n): its copies of step + 1 have landed, where n is the number of vector-memory operations that it issued after
   the last of them. Operations of a wave finish in order, so n younger ones may be under way. `_Issued` replays the
   order of issue and counts: 0 in the loop, where nothing follows the copies of step + 1 up to this barrier, and the
   copies of step 1 at the barrier of the prologue, which hands over step 0.
Every wave executes every barrier: there is no stagger between waves, and all counts agree at every point.
"""

from __future__ import annotations

import itertools

import flydsl.compiler as flyc
import flydsl.expr as fx

from mori_gemm_ar.errors import CompileError
from mori_gemm_ar.kernels.device import assembly, library
from mori_gemm_ar.kernels.device.assembly import Barrier
from mori_gemm_ar.kernels.gemm.place import WAVE_M
from mori_gemm_ar.layout.gemm_terms import K_STEP

_A_TILES = WAVE_M // 16
_A_HALF = _A_TILES // 2


class _Issued:
    """Vector-memory operations of one wave in the order of issue: copies by step, others."""

    def __init__(self):
        self.after = {}

    def copies(self, step, count):
        self.other(count)
        self.after[step] = 0

    def other(self, count):
        self.after = {step: n + count for step, n in self.after.items()}

    def younger(self, step):
        """Operations after the last copy of a step: how many may be under way when that step is handed over."""
        return self.after[step]


class Pipeline:
    """Runs the sum over K of one tile."""

    def __init__(self, config, a, b, scaling):
        self.a, self.b, self.scaling = a, b, scaling
        self.steps = config.k // K_STEP
        self.tiles = config.tile.wave_n // 16
        self.b_half = self.tiles // 2

    @flyc.jit
    def run(self):
        """Accumulators of fragments (i, t) in order, unscaled where the recipe scales at the end."""
        # An odd number of steps begins with an odd one, so that the rest is pairs of an even and an odd one.
        first = self.steps % 2
        issued, copies = _Issued(), len(self.a.pieces) + len(self.b.pieces)
        scales = self.scaling.load(0)
        assembly.keep_order()
        for step, slot in ((0, first), (1, 1 - first))[: self.steps]:
            for start in self.copies_of(step, slot):
                start()
            issued.copies(step, copies)
        Barrier.handover("prologue", issued.younger(0), lgkmcnt=None)
        a0, b0 = self.read_a(first, 0), self.read_b(first, first)
        self.allowed = self.younger_in_loop(issued, copies)
        total = [fx.Vector.filled(4, 0.0, fx.Float32) for _ in range(_A_TILES * self.tiles)]
        if self.steps % 2:
            total, a0, b0, scales = self.step(total, a0, b0, scales, 0, 1, self.steps > 1, self.steps > 1)
        if self.steps > 1:
            # Pinned, or short loops are unrolled: more code to fetch, to audit and to mutate. The last pair, which
            # copies nothing, is a loop of one round: outside one, accumulators are not tied to their registers.
            end = fx.Int32(library.pin_uniform_u32(self.steps))
            for step in range(fx.Int32(first), end - 2, fx.Int32(2)):
                total, a0, b0, scales = self.step(total, a0, b0, scales, step, 0, True, True)
                total, a0, b0, scales = self.step(total, a0, b0, scales, step + 1, 1, True, True)
            for step in range(end - 2, end, fx.Int32(2)):
                total, a0, b0, scales = self.step(total, a0, b0, scales, step, 0, False, True)
                total, a0, b0, scales = self.step(total, a0, b0, scales, step + 1, 1, False, False)
        return total

    def step(self, total, a0, b_first, scales, step, parity, refill, more):
        """One step of K. `parity` is also the slot and the half of B that comes first; it alternates.

        refill: whether there is a step + 2 to copy; more: whether there is a step + 1.
        """
        total = list(total)
        factors = self.scaling.begin(scales)
        b_other = self.read_b(parity, 1 - parity)
        self.quarter(total, a0, b_first, factors, 0, parity)
        a1 = self.read_a(parity, 1)
        self.quarter(total, a0, b_other, factors, 0, 1 - parity)
        copies, b_next = [], b_other
        if more:
            Barrier.handover("step", self.allowed, lgkmcnt=0 if refill else None)
            scales = self.scaling.load(step + 1)
            a0 = self.read_a(1 - parity, 0)
        if refill:
            copies = self.copies_of(step + 2, parity)
        self.quarter(total, a1, b_other, factors, 1, 1 - parity, copies)
        if more:
            b_next = self.read_b(1 - parity, 1 - parity)
        self.quarter(total, a1, b_first, factors, 1, parity)
        self.scaling.settle(total)
        return total, a0, b_next, scales

    def younger_in_loop(self, issued, copies):
        """vmcnt of the loop's barrier, by replaying two of them; it has to be the same at both."""
        counts = []
        for step in (0, 1):
            if self.steps > 1:
                counts.append(issued.younger(step + 1))
                issued.other(self.scaling.loads)
                issued.copies(step + 2, copies)
        if len(set(counts)) > 1:
            raise CompileError(f"vmcnt={counts} must be equal at every barrier of the loop")
        return counts[0] if counts else None

    def copies_of(self, step, slot):
        """Callables that start one copy each, of both operands of a step."""
        return self.a.copies(slot, step) + self.b.copies(slot, step)

    def read_a(self, slot, half):
        return [self.a.read(slot, half * _A_HALF + i) for i in range(_A_HALF)]

    def read_b(self, slot, half):
        return [self.b.read(slot, half * self.b_half + t) for t in range(self.b_half)]

    def quarter(self, total, a, b, factors, a_half, b_half, between=()):
        """Multiply one quarter into `total`; reads stand before it, and `between` is spread over its MFMAs."""
        assembly.keep_order()
        share = -(-len(between) // (len(a) * len(b)))
        for number, (i, t) in enumerate(itertools.product(range(len(a)), range(len(b)))):
            row, column = a_half * _A_HALF + i, b_half * self.b_half + t
            self.scaling.multiply(total, row * self.tiles + column, a[i], b[t], factors, row)
            for start in between[number * share : (number + 1) * share]:
                start()
            if between:
                assembly.keep_order()
        assembly.keep_order()
