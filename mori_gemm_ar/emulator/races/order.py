# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Which earlier accesses happen before a memory instruction, for many of them at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mori_gemm_ar.emulator.races.clocks import WaveClocks
from mori_gemm_ar.emulator.races.knowledge import MAX_WAVES, Agent, Knowledge, Publication, Scope, reach
from mori_gemm_ar.emulator.races.ledger import Ledger, Located

_CACHED = 1 << 17


@dataclass(slots=True)
class Operation:
    """One memory instruction of the waves `rows`. `data`: scope is only how it travels; it is no synchronisation."""

    clocks: WaveClocks
    rows: np.ndarray
    site: int
    position: np.ndarray
    scope: Scope
    data: bool = False
    epochs: np.ndarray | None = None


class Order:
    """The agents of a node, what their waves have published, and the happens-before relation between them."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.agents: list[Agent] = []
        self.publications: list[Publication] = []
        self._gpu = np.zeros(64, np.int64)  # by agent
        self._limits: dict[int, list[int]] = {}

    def add(self, agent: Agent) -> None:
        """Make an agent known."""
        if len(self.agents) == len(self._gpu):
            self._gpu = np.resize(self._gpu, 2 * len(self._gpu))
        self._gpu[len(self.agents)] = agent.gpu
        self.agents.append(agent)

    def settled(self, op: Operation, at: Located, lanes: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        """By program order, a barrier of the workgroup, or because different bytes are meant: the quick rules."""
        table, clocks = self._ledger.epochs, op.clocks
        row, actor = op.rows[at.wave[lanes]], table.actor[epochs]
        own = clocks.actor[row]
        same = actor // MAX_WAVES == own // MAX_WAVES
        fellow = row // clocks.waves * clocks.waves + np.where(same, actor % MAX_WAVES, 0)
        result = (actor == own) | (same & (table.position[epochs] <= clocks.joined[fellow]))
        if at.mask is not None:
            result |= (table.mask[epochs] & at.mask[lanes]) == 0
        return result

    def ordered(
        self, op: Operation, at: Located, lanes: np.ndarray, epochs: np.ndarray, *, was_write: bool, is_write: bool
    ) -> np.ndarray:
        """Whether earlier accesses (`epochs`) happen before those of `lanes`; stores also in the eyes of a reader."""
        table, clocks = self._ledger.epochs, op.clocks
        row, actor = op.rows[at.wave[lanes]], table.actor[epochs]
        first, second = actor // MAX_WAVES, clocks.actor[row] // MAX_WAVES
        gpu, home = self._gpu[second], self._ledger.home_of(at, lanes)
        system = (first != second) & ((self._gpu[first] != gpu) | (gpu != home))
        need = np.where(system, int(Scope.SYSTEM), int(Scope.AGENT))
        strong = table.scope[epochs] >= need
        reaches = need <= int(op.scope)
        # Whose word counts: 0 what completed, then by scope what was released, of what is known or also acquired.
        kind = np.zeros(len(epochs), np.int64)
        if was_write:
            acquired = np.zeros(len(epochs), bool) if is_write else ~reaches
            kind = np.where(first == second, 0, 1 + 4 * acquired + 2 * system + strong)
        keys = (clocks.token[row] << 34) | (first << 4) | kind
        result = table.position[epochs] <= self._limit(clocks, row, actor, keys)
        if not op.data:
            result |= strong & reaches & ~table.data[epochs]
        return result

    def _limit(self, clocks: WaveClocks, row: np.ndarray, actor: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """The last position of each actor's wave that counts, per element."""
        unique, where, inverse = np.unique(keys, return_index=True, return_inverse=True)
        limits = np.zeros((len(unique), MAX_WAVES), np.int64)
        if len(self._limits) > _CACHED:
            self._limits.clear()
        for n, (key, index) in enumerate(zip(unique.tolist(), where.tolist(), strict=True)):
            found = self._limits.get(key)
            if found is None:
                agent, knowledge = self.agents[int(actor[index]) // MAX_WAVES], clocks.known(int(row[index]))
                found = self._limits[key] = self._position(knowledge, agent, key & 15)
            limits[n, : len(found)] = found
        return limits[inverse.reshape(-1), actor % MAX_WAVES]

    def _position(self, knowledge: Knowledge, agent: Agent, kind: int) -> list[int]:
        if kind == 0:
            return reach(knowledge.ordered, agent, self.publications).ordered
        acquired, system, strong = (kind - 1) & 4, (kind - 1) & 2, (kind - 1) & 1
        known = knowledge.ordered
        if acquired:
            known = knowledge.system if system else knowledge.agent
        found = reach(known, agent, self.publications)
        return found.ordered if strong else found.released(Scope.SYSTEM if system else Scope.AGENT)

    @staticmethod
    def need(first: Agent, second: Agent, home: int | None) -> Scope:
        """The scope that orders two agents at an address of that home."""
        return Scope.AGENT if first.gpu == second.gpu == home else Scope.SYSTEM
