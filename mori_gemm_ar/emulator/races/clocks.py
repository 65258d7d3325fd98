# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""How far the waves of a pool have come: operations issued, completed, joined by barriers, and released.

Counts of a row of the pool go on when another workgroup takes the row, so that old positions count as past.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from mori_gemm_ar.emulator.races.knowledge import MAX_WAVES, Agent, Knowledge, Known, Publication, Scope, Signal

_TOKENS = itertools.count(1)


class WaveClocks:
    """Positions per row (one wave in one slot); `vm` operations are those that `vmcnt` counts, LDS ones `lgkmcnt`."""

    def __init__(self, slots: int, waves: int) -> None:
        rows = slots * waves
        self.slots, self.waves = slots, waves
        counts = [np.zeros(rows, np.int64) for _ in range(8)]
        # joined: issued at the last barrier; published: complete at the last barrier.
        self.issued, self.completed, self.joined, self.published = counts[:4]
        self.lds_issued, self.lds_completed, self.lds_joined, self.lds_published = counts[4:]
        self.actor = np.zeros(rows, np.int64)
        self.lane = np.zeros(rows, np.int64)  # which readers' array of the ledger
        self.agents: list[Agent | None] = [None] * slots
        self._knowledge: list[Knowledge | None] = [None] * rows
        self.token = np.zeros(rows, np.int64)  # equal where the knowledge is the same
        # By scope - 1: stores per wave that are released, as this row knows and as the whole workgroup knows.
        self._released = np.zeros((2, rows, waves), np.int64)
        self._group_released = np.zeros((2, slots, waves), np.int64)
        self._attempted = np.zeros((2, slots, waves), np.int64)
        self._covered = np.zeros((2, slots, waves), np.int64)
        self._changed = np.zeros(rows, bool)
        self._writebacks: list[tuple[int, int, Scope, np.ndarray]] = []
        self._flags: list[tuple[int, int, Signal, bool]] = []

    def rows_of(self, slot: int) -> slice:
        """Rows of a workgroup."""
        return slice(slot * self.waves, (slot + 1) * self.waves)

    def agent_of(self, row: int) -> Agent:
        """The workgroup whose wave a row is."""
        agent = self.agents[row // self.waves]
        assert agent is not None, "a wave that runs belongs to a workgroup"
        return agent

    def known(self, row: int) -> Knowledge:
        """What a wave knows."""
        knowledge = self._knowledge[row]
        assert knowledge is not None, "a wave that runs belongs to a workgroup"
        return knowledge

    def _learn(self, rows: slice, knowledge: Knowledge) -> None:
        self._knowledge[rows] = [knowledge] * (rows.stop - rows.start)
        self.token[rows] = next(_TOKENS)

    # ---- workgroups ------------------------------------------------------------------------------------------
    def begin(self, agent: Agent, knowledge: Knowledge, lane: int) -> None:
        """A workgroup takes its slot."""
        rows = self.rows_of(agent.slot)
        self.agents[agent.slot] = agent
        self.actor[rows] = agent.number * MAX_WAVES + np.arange(self.waves)
        self.lane[rows] = lane
        for counts in (self.completed, self.joined, self.published):
            counts[rows] = self.issued[rows]
        for counts in (self.lds_completed, self.lds_joined, self.lds_published):
            counts[rows] = self.lds_issued[rows]
        self._learn(rows, knowledge)
        self._changed[rows] = False

    def end(self, slot: int) -> Known:
        """A workgroup has ended: everything it did is complete. Returns what it knew."""
        rows = self.rows_of(slot)
        self.completed[rows] = self.issued[rows]
        self._settle(np.arange(rows.start, rows.stop))
        self.join([slot])
        agent = self.agents[slot]
        assert agent is not None
        agent.final = self._group_released[Scope.SYSTEM - 1, slot].tolist()
        return self.known(rows.start).ordered

    def join(self, slots: Sequence[int]) -> None:
        """Barrier: what a wave completed, released and knows, the workgroup now knows."""
        shape, chosen = (self.slots, self.waves), np.asarray(slots)
        for target, source in (
            (self.joined, self.issued),
            (self.published, self.completed),
            (self.lds_joined, self.lds_issued),
            (self.lds_published, self.lds_completed),
        ):
            target.reshape(shape)[chosen] = source.reshape(shape)[chosen]
        changed = self._changed.reshape(shape)[chosen].any(axis=1)
        for slot in chosen[changed].tolist():
            rows = self.rows_of(slot)
            self._changed[rows] = False
            own = self._released[:, rows].max(axis=1)
            np.maximum(self._group_released[:, slot], own, out=self._group_released[:, slot])
            merged = self.known(rows.start)
            for row in range(rows.start + 1, rows.stop):
                merged = merged.joined(self.known(row))
            self._learn(rows, merged)

    # ---- waits -----------------------------------------------------------------------------------------------
    def wait(self, rows: np.ndarray | slice, count: int) -> None:
        """`s_waitcnt vmcnt`."""
        self.completed[rows] = np.maximum(self.completed[rows], self.issued[rows] - count)
        if self._writebacks or self._flags:
            self._settle(np.arange(len(self.issued))[rows])

    def wait_lds(self, rows: np.ndarray | slice, count: int) -> None:
        """`s_waitcnt lgkmcnt`, of which scalar loads only take their own share."""
        self.lds_completed[rows] = np.maximum(self.lds_completed[rows], self.lds_issued[rows] - count)

    def _settle(self, rows: np.ndarray) -> None:
        """Writebacks and flag loads of these rows that are complete take effect."""
        waiting = set(rows.tolist())
        kept = []
        for row, position, scope, covered in self._writebacks:
            if row in waiting and position <= self.completed[row]:
                for level in range(scope):
                    np.maximum(self._released[level, row], covered, out=self._released[level, row])
                self._changed[row] = True
            else:
                kept.append((row, position, scope, covered))
        self._writebacks = kept
        unread = []
        for entry in self._flags:
            row, position, signal, ordered = entry
            if row in waiting and position <= self.completed[row]:
                self._hear(row, signal, ordered)
            else:
                unread.append(entry)
        self._flags = unread

    def _hear(self, row: int, signal: Signal, ordered: bool) -> None:
        before = self.known(row)
        if ordered:
            after = before._replace(ordered=before.ordered.joined(signal.known))
        else:
            after = before._replace(heard=before.heard.joined(signal.known))
        self._learn(slice(row, row + 1), after)
        self._changed[row] = True

    # ---- synchronisation -------------------------------------------------------------------------------------
    def write_back(self, rows: np.ndarray, scope: Scope) -> None:
        """`buffer_wbl2`: covers what its wave issued, and what the others had complete at the last barrier."""
        if scope is Scope.NONE:
            return
        for row in rows.tolist():
            slot, wave = divmod(row, self.waves)
            members = self.rows_of(slot)
            covered = self.published[members].copy()
            covered[wave] = self.issued[row]
            self._writebacks.append((row, int(self.issued[row]), scope, covered))
            for level in range(scope):
                np.maximum(self._covered[level, slot], covered, out=self._covered[level, slot])
                np.maximum(self._attempted[level, slot], self.issued[members], out=self._attempted[level, slot])

    def invalidate(self, rows: np.ndarray, scope: Scope) -> None:
        """`buffer_inv`."""
        for row in rows.tolist():
            self._learn(slice(row, row + 1), self.known(row).acquired(scope))
            self._changed[row] = True

    def listen(self, row: int, signal: Signal, ordered: bool) -> None:
        """A flag was loaded; it counts once its load is complete."""
        self._flags.append((row, int(self.issued[row]), signal, ordered))

    def unread(self, slot: int) -> list[tuple[int, Publication]]:
        """Flags that waves of a workgroup have loaded and not waited for."""
        return [
            (row % self.waves, signal.publication) for row, _, signal, _ in self._flags if row // self.waves == slot
        ]

    def publish(self, rows: np.ndarray, scope: Scope, site: int, numbers: int) -> list[Publication]:
        """What scoped stores of these rows say, numbered from `numbers`."""
        slots, waves = rows // self.waves, rows % self.waves
        here = np.arange(len(rows))
        members = slots[:, None] * self.waves + np.arange(self.waves)
        ordered = self.published[members]
        ordered[here, waves] = self.completed[rows]
        released = np.maximum(self._group_released[:, slots], self._released[:, rows]).tolist()
        issued = self.issued[members]
        issued[here, waves] -= 1  # the store itself
        lists = [a.tolist() for a in (rows, waves, ordered, issued, self.completed[members])]
        attempted, covered = self._attempted[:, slots].tolist(), self._covered[:, slots].tolist()
        return [
            Publication(
                numbers + n,
                self.agent_of(row),
                wave,
                scope,
                site,
                self.known(row).ordered,
                before,
                (released[0][n], released[1][n]),
                done,
                complete,
                (attempted[0][n], attempted[1][n]),
                (covered[0][n], covered[1][n]),
            )
            for n, (row, wave, before, done, complete) in enumerate(zip(*lists, strict=True))
        ]
