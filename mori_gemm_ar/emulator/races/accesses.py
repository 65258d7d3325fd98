# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Checks of loads, stores and atomics on global memory against those before them."""

from __future__ import annotations

import numpy as np

from mori_gemm_ar.emulator.races.clocks import WaveClocks
from mori_gemm_ar.emulator.races.knowledge import MAX_WAVES, Known, Scope, Signal
from mori_gemm_ar.emulator.races.ledger import SET, Ledger, Located
from mori_gemm_ar.emulator.races.order import Operation, Order
from mori_gemm_ar.emulator.races.report import Conflict, global_race


class Accesses:
    """The rules. Raises `RaceError` at the second access of a conflicting pair without an edge between them.

    delayed: scoped stores can be read only after `landed` has named them.
    """

    def __init__(self, ledger: Ledger, delayed: bool) -> None:
        self.ledger, self.order, self._delayed = ledger, Order(ledger), delayed
        self._signals: list[Signal | None] = [None]
        self._sets: list[tuple[int, ...]] = []
        self._set_numbers: dict[tuple[int, ...], int] = {}
        self._pending: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}
        self._heard: set[tuple[int, int]] = set()

    # ---- accesses --------------------------------------------------------------------------------------------
    def load(self, op: Operation, flat: np.ndarray, wave: np.ndarray, nbytes: int) -> None:
        """Read of `nbytes` at each address by a wave of the operation."""
        at = self.ledger.locate(flat, wave, nbytes)
        if at is None:
            return
        self._begin(op, at)
        written = self.ledger.take(self.ledger.writes, at.index, at.granules)
        if written.any():
            self._check(op, at, written, was_write=True, is_write=False)
            if op.scope and not op.data:
                self._listen(op, at, written)
        self._note_readers(op, at)

    def store(self, op: Operation, flat: np.ndarray, wave: np.ndarray, nbytes: int) -> None:
        """Write of `nbytes` at each address."""
        ledger = self.ledger
        at = ledger.locate(flat, wave, nbytes)
        if at is None:
            return
        epochs = self._begin(op, at)
        self._check_write(op, at)
        if op.scope and not op.data:
            said = op.clocks.publish(op.rows, op.scope, op.site, len(self.order.publications))
            self.order.publications += said
            ledger.epochs.signal[epochs] = len(self._signals) + np.arange(len(said))
            self._signals += [Signal(one) for one in said]
            if self._delayed:
                self._hold(op, at)
                return
        fresh = self._spread(epochs, at)
        ledger.put(ledger.writes, at.index, at.granules, fresh)
        if len(op.rows) > 1:
            self._check_together(op, at, fresh)

    def atomic(self, op: Operation, flat: np.ndarray, wave: np.ndarray, nbytes: int) -> None:
        """Read-modify-writes, lane by lane in order: each continues what the location says."""
        ledger = self.ledger
        at = ledger.locate(flat, wave, nbytes)
        if at is None:
            return
        if (ledger.home_of(at, np.arange(len(at.index))) < 0).all():
            op.scope = Scope.SYSTEM  # on the host's memory they happen there, whatever their scope
        self._begin(op, at)
        said = op.clocks.publish(op.rows, op.scope, op.site, len(self.order.publications))
        self.order.publications += said
        for lane in range(len(at.index)):
            one = at.select(np.asarray([lane]))
            position = int(one.wave[0])
            before = ledger.take(ledger.writes, one.index, one.granules)
            self._check_write(op, one)
            chain = self._continue(op, one, before)
            epoch = ledger.epochs.add(
                op.clocks.actor[op.rows[position : position + 1]], op.position[position : position + 1], op.site,
                op.scope, False,
            )  # fmt: skip
            ledger.epochs.signal[epoch] = len(self._signals)
            self._signals.append(Signal(said[position], chain))
            ledger.put(ledger.writes, one.index, one.granules, np.repeat(epoch[:, None], one.granules, axis=1))

    def landed(self, clocks: WaveClocks, rows: np.ndarray, flat: np.ndarray) -> None:
        """Scoped stores of these rows take effect."""
        for row, address in zip(rows.tolist(), flat.tolist(), strict=True):
            waiting = self._pending.get((id(clocks), row, address))
            if waiting:
                epoch, index, granules = waiting.pop(0)
                self.ledger.writes[index : index + granules] = epoch

    # ---- parts -----------------------------------------------------------------------------------------------
    def _begin(self, op: Operation, at: Located) -> np.ndarray:
        """One epoch per wave."""
        if op.epochs is None:
            epochs = self.ledger.epochs
            op.epochs = epochs.add(op.clocks.actor[op.rows], op.position, op.site, op.scope, op.data)
        if at.mask is not None:
            masks = np.zeros(len(op.rows), np.uint8)
            np.bitwise_or.at(masks, at.wave, at.mask)
            self.ledger.epochs.mask[op.epochs] = masks
        return op.epochs

    @staticmethod
    def _spread(epochs: np.ndarray, at: Located) -> np.ndarray:
        return np.repeat(epochs[at.wave][:, None], at.granules, axis=1)

    def _hold(self, op: Operation, at: Located) -> None:
        assert op.epochs is not None
        rows, epochs = op.rows[at.wave].tolist(), op.epochs[at.wave].tolist()
        for row, epoch, address, index in zip(rows, epochs, at.address.tolist(), at.index.tolist(), strict=True):
            self._pending.setdefault((id(op.clocks), row, address), []).append((epoch, index, at.granules))

    def _runs(self, at: Located, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Starts (flat positions) and lanes of stretches with one wave, one region and one entry."""
        flat = values.reshape(-1)
        change = np.empty(len(flat), bool)
        change[0] = True
        np.not_equal(flat[1:], flat[:-1], out=change[1:])
        first = change.reshape(values.shape)[1:, 0]
        first |= at.wave[1:] != at.wave[:-1]
        if not isinstance(at.tract, int):
            first |= at.tract[1:] != at.tract[:-1]
        starts = np.flatnonzero(change)
        return starts, starts // at.granules

    # ---- conflicts -------------------------------------------------------------------------------------------
    def _check_write(self, op: Operation, at: Located) -> None:
        ledger = self.ledger
        written = ledger.take(ledger.writes, at.index, at.granules)
        if written.any():
            self._check(op, at, written, was_write=True, is_write=True)
        tracts = ledger.tracts_of(at)
        for tract in tracts:
            tract.written = True
        gpus = sorted(set().union(*(tract.lanes for tract in tracts)))
        if not gpus:
            return
        wide = at.repeated(len(gpus))
        index = wide.index + np.repeat(np.asarray(gpus) * len(ledger.writes), len(at.index))
        read = ledger.take(ledger.reads, index, at.granules)
        if read.any():
            self._check(op, wide, read, was_write=False, is_write=True)
            ledger.put(ledger.reads, index, at.granules, np.zeros_like(read))

    def _check(self, op: Operation, at: Located, values: np.ndarray, *, was_write: bool, is_write: bool) -> None:
        """All entries against the operation."""
        starts, lanes = self._runs(at, values)
        entry = values.reshape(-1)[starts]
        kept = entry != 0
        starts, lanes, entry = self._members(starts[kept], lanes[kept], entry[kept])
        self._require(op, at, starts, lanes, entry, was_write=was_write, is_write=is_write)

    def _members(self, starts: np.ndarray, lanes: np.ndarray, entry: np.ndarray):
        """The same with sets of epochs spread out."""
        if not (entry & SET).any():
            return starts, lanes, entry
        members = [self._sets[e & ~SET] if e & SET else (e,) for e in entry.tolist()]
        counts = [len(m) for m in members]
        flat = np.asarray([e for m in members for e in m], np.uint32)
        return np.repeat(starts, counts), np.repeat(lanes, counts), flat

    def _require(self, op: Operation, at: Located, starts, lanes, epochs, *, was_write: bool, is_write: bool) -> None:
        """Raise `RaceError` unless all epochs happen before the operation."""
        order = self.order
        rest = ~order.settled(op, at, lanes, epochs)
        if not rest.any():
            return
        starts, lanes, epochs = starts[rest], lanes[rest], epochs[rest]
        fine = order.ordered(op, at, lanes, epochs, was_write=was_write, is_write=is_write)
        if not fine.all():
            n = int(np.flatnonzero(~fine)[0])
            granule = int(at.index[lanes[n]]) + int(starts[n]) % at.granules
            self._raise(int(epochs[n]), op, int(at.wave[lanes[n]]), granule, was_write=was_write, is_write=is_write)

    def _check_together(self, op: Operation, at: Located, fresh: np.ndarray) -> None:
        """Waves that write one granule in one instruction; the last one's entry stands there now."""
        values = self.ledger.take(self.ledger.writes, at.index, at.granules)
        if not (values != fresh).any():
            return
        starts, lanes = self._runs(at, values)
        self._require(op, at, starts, lanes, values.reshape(-1)[starts], was_write=True, is_write=True)

    def _raise(self, epoch: int, op: Operation, wave: int, granule: int, *, was_write: bool, is_write: bool) -> None:
        epochs, row = self.ledger.epochs, int(op.rows[wave])
        actor = int(epochs.actor[epoch])
        first, second = self.order.agents[actor // MAX_WAVES], op.clocks.agent_of(row)
        region, address = self.ledger.region_at(granule)
        need = self.order.need(first, second, region.home if region else None)
        conflict = Conflict(
            first,
            actor % MAX_WAVES,
            int(epochs.position[epoch]),
            int(epochs.site[epoch]),
            was_write,
            Scope(int(epochs.scope[epoch])),
            second,
            row % op.clocks.waves,
            op.site,
            is_write,
            op.scope,
            need,
            region.describe(address) if region else "memory",
        )
        raise global_race(conflict, op.clocks, self.order.publications)

    # ---- flags -----------------------------------------------------------------------------------------------
    def _listen(self, op: Operation, at: Located, written: np.ndarray) -> None:
        """Scoped loads: what they read may tell of other waves."""
        starts, lanes = self._runs(at, written)
        entry = written.reshape(-1)[starts]
        told = self.ledger.epochs.signal[entry] != 0
        for lane, epoch in zip(lanes[told].tolist(), entry[told].tolist(), strict=True):
            self._hear(op, at, lane, epoch)

    def _hear(self, op: Operation, at: Located, lane: int, epoch: int) -> tuple[Signal, bool] | None:
        """The signal of an entry and whether both scopes suffice for it to order anything."""
        signal = self._signals[int(self.ledger.epochs.signal[epoch])]
        if signal is None:
            return None
        row = int(op.rows[at.wave[lane]])
        tract = self.ledger.tracts[at.tract_of(lane)]
        said = signal.publication
        need = self.order.need(said.agent, op.clocks.agent_of(row), tract.region.home if tract else None)
        enough = said.scope >= need and op.scope >= need
        knowledge = op.clocks.known(row)
        known = knowledge.ordered if enough else knowledge.heard
        once = (int(op.clocks.actor[row]), int(self.ledger.epochs.signal[epoch]))
        if known.get(said.actor) < said.number or (signal.chain is not None and once not in self._heard):
            self._heard.add(once)
            op.clocks.listen(row, signal, enough)
        return signal, enough

    def _continue(self, op: Operation, at: Located, before: np.ndarray) -> Known | None:
        """What a read-modify-write takes over from the location."""
        epoch = int(before[0, 0])
        if not epoch:
            return None
        heard = self._hear(op, at, 0, epoch)
        return heard[0].known if heard and heard[1] else None

    # ---- readers ---------------------------------------------------------------------------------------------
    def _note_readers(self, op: Operation, at: Located) -> None:
        ledger = self.ledger
        tracts = ledger.tracts_of(at)
        lanes = op.clocks.lane[op.rows]
        for tract in tracts:
            tract.lanes.update(np.unique(lanes).tolist())
        assert op.epochs is not None
        fresh = self._spread(op.epochs, at)
        index = at.index + (lanes * len(ledger.writes))[at.wave]
        self._add_readers(op, at, index, fresh)
        if len(op.rows) == 1 or not any(tract.written for tract in tracts):
            return
        # Several waves of a GPU may read one granule in one instruction; each round keeps one more of them.
        while True:
            lost = (ledger.take(ledger.reads, index, at.granules) != fresh).any(axis=1)
            if not lost.any():
                return
            at, index = at.select(lost), index[lost]
            fresh = self._add_readers(op, at, index, self._spread(op.epochs, at))

    def _add_readers(self, op: Operation, at: Located, index: np.ndarray, fresh: np.ndarray) -> np.ndarray:
        """Enter readers beside those that are there; returns the entries."""
        ledger = self.ledger
        before = ledger.take(ledger.reads, index, at.granules)
        if before.any():
            flat = fresh.reshape(-1)
            starts, lanes = self._runs(at, before)
            ends = np.append(starts[1:], len(flat))
            entry = before.reshape(-1)[starts]
            single = np.where((entry & SET) == 0, entry, 0)
            own = op.clocks.actor[op.rows[at.wave[lanes]]]
            shared = (entry != 0) & ((entry != single) | (ledger.epochs.actor[single] != own))
            if shared.any():
                self._share(op, at, starts[shared], ends[shared], lanes[shared], entry[shared], flat)
        ledger.put(ledger.reads, index, at.granules, fresh)
        return fresh

    def _share(self, op: Operation, at: Located, starts, ends, lanes, entry, fresh: np.ndarray) -> None:
        """Enter readers into the sets that stand there; readers known to be past are dropped."""
        actors = self.ledger.epochs.actor
        owner, lane, member = self._members(np.arange(len(entry)), lanes, entry)
        epoch = fresh[starts[owner]]
        past = actors[member] == actors[epoch]
        past |= self.order.ordered(op, at, lane, member, was_write=False, is_write=True)
        past &= member != epoch
        kept: list[list[int]] = [[] for _ in range(len(entry))]
        for n, one, gone in zip(owner.tolist(), member.tolist(), past.tolist(), strict=True):
            if not gone:
                kept[n].append(one)
        for members, start, end in zip(kept, starts.tolist(), ends.tolist(), strict=True):
            own = int(fresh[start])
            if members and members != [own]:
                fresh[start:end] = self._set_of((*members, own) if own not in members else tuple(members))

    def _set_of(self, members: tuple[int, ...]) -> int:
        """The entry that names a set."""
        if members not in self._set_numbers:
            self._set_numbers[members] = len(self._sets)
            self._sets.append(members)
        return self._set_numbers[members] | SET
