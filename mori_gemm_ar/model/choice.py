# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Which path a layer takes: a pure function of its shape and the constants file, equal on every rank.

Plans are compared at the pessimistic value of every unmeasured constant. None is taken that its own prediction puts
behind the split layer, neither there nor at the expected values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mori_gemm_ar.layout.rules import require
from mori_gemm_ar.model.constants import Constants, Override
from mori_gemm_ar.model.modes import DEFAULT_STRIPE, FUSED, Phase, Plan, Prediction, predict, reason_not_plan
from mori_gemm_ar.model.terms import Case, Layer, Mode, Tail, Tile, Transport, Wire, member
from mori_gemm_ar.model.tiles import TILES, TileGrid
from mori_gemm_ar.model.values import Values

CHUNKS = (1, 2, 4, 8, 16)  # puts of a slice worth trying; more never paid in a measurement
OFFERED = (Tail.PHASED,)  # tails that choices may take; the others are predicted only
# Simplest first: it wins a tie.
MODES = (Mode.GEMM_ONLY, Mode.SPLIT_LSA, Mode.SPLIT_SDMA, Mode.FUSED_SDMA, Mode.FUSED_LSA)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A legal plan with its times, predicted, for each case."""

    plan: Plan
    expected: Prediction
    pessimistic_us: float
    optimistic_us: float

    @property
    def expected_us(self) -> float:
        return self.expected.total_us

    @property
    def phases(self) -> tuple[Phase, ...]:
        return self.expected.phases


@dataclass(frozen=True, slots=True)
class Refusal:
    """A path that is not taken, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The path of a layer. `best` holds the best plan of each mode, the chosen one among them, slowest last."""

    layer: Layer
    chosen: Candidate
    best: tuple[Candidate, ...]
    refused: tuple[Refusal, ...]
    overridden: bool = False


@dataclass(frozen=True, slots=True)
class Cases:
    """The numbers of a constants file, once for each case."""

    expected: Values
    pessimistic: Values
    optimistic: Values

    @classmethod
    def of(cls, constants: Constants) -> Cases:
        return cls(*(constants.at(case) for case in (Case.EXPECTED, Case.PESSIMISTIC, Case.OPTIMISTIC)))

    def candidate(self, layer: Layer, plan: Plan) -> Candidate:
        """Price a plan; ConfigError when it cannot run the layer."""
        require(reason_not_plan(layer, plan))
        slow, fast = (predict(values, layer, plan).total_us for values in (self.pessimistic, self.optimistic))
        return Candidate(plan, predict(self.expected, layer, plan), slow, fast)


def plans(layer: Layer, mode: Mode, tail: Tail = Tail.PHASED) -> Iterator[Plan]:
    """Every plan of a mode that is worth pricing, legal or not."""
    gathers = (Transport.SDMA, Transport.LSA)
    # A bf16 gather by loads has never been timed apart from an all-reduce.
    pulled = layer.wire is not Wire.BF16 and tail is Tail.PHASED and mode is not Mode.SPLIT_LSA
    for tile in TILES[layer.quant]:
        for gather in gathers if pulled else gathers[:1]:
            if mode is Mode.FUSED_SDMA:
                bands = TileGrid.of(layer, tile).bands(0)
                for chunks in sorted({min(chunks, max(bands, 1)) for chunks in CHUNKS}):
                    yield Plan(mode, tile, chunks, gather, tail)
            else:
                yield Plan(mode, tile, gather=gather, stripe=DEFAULT_STRIPE if mode is Mode.FUSED_LSA else None)


def best_of(cases: Cases, layer: Layer, mode: Mode, tail: Tail = Tail.PHASED) -> Candidate | Refusal:
    """The best plan of a mode at the pessimistic values, or why there is none."""
    found: list[Candidate] = []
    reason = None
    for plan in plans(layer, mode, tail):
        refused = reason_not_plan(layer, plan)
        if refused is None:
            found.append(cases.candidate(layer, plan))
        else:
            reason = reason or refused
    if not found:
        return Refusal(mode.value if tail is Tail.PHASED else f"{mode.value}, {tail.value}", reason or "no plan")
    return min(found, key=lambda candidate: (candidate.pessimistic_us, candidate.plan.chunks))


def choose(constants: Constants, layer: Layer, offered: tuple[Tail, ...] = OFFERED) -> Choice:
    """The path of a layer, its rivals and the refused paths."""
    cases = Cases.of(constants)
    best: list[Candidate] = []
    refused: list[Refusal] = []
    for mode in MODES[1:] if layer.world > 1 else MODES[:1]:
        for tail in Tail if mode is Mode.FUSED_SDMA else (Tail.PHASED,):
            if tail not in offered:
                refused.append(Refusal(f"{mode.value}, {tail.value}", "this version does not offer it"))
                continue
            outcome = best_of(cases, layer, mode, tail)
            if isinstance(outcome, Refusal):
                refused.append(outcome)
            else:
                best.append(outcome)
    plain = [candidate for candidate in best if candidate.plan.mode not in FUSED]
    rivals = [candidate for candidate in best if _never_slower(candidate, plain)]
    chosen = min(rivals, key=lambda candidate: candidate.pessimistic_us)  # the first, simplest one of equals
    forced = _override(constants, cases, layer)
    refused.extend(_slower(candidate, forced or chosen) for candidate in best if candidate is not (forced or chosen))
    ordered = tuple(sorted([*best, *([forced] if forced else [])], key=lambda candidate: candidate.pessimistic_us))
    return Choice(layer, forced or chosen, ordered, tuple(refused), overridden=forced is not None)


def _never_slower(candidate: Candidate, plain: list[Candidate]) -> bool:
    return all(
        candidate.pessimistic_us <= split.pessimistic_us and candidate.expected_us <= split.expected_us
        for split in plain
        if split.plan.mode is not candidate.plan.mode and candidate.plan.mode in FUSED
    )


def _slower(candidate: Candidate, chosen: Candidate) -> Refusal:
    reason = f"predicted {candidate.pessimistic_us:.1f} us against {chosen.pessimistic_us:.1f} us"
    return Refusal(candidate.plan.label, f"{reason}, both at the pessimistic value of what is unmeasured")


def _override(constants: Constants, cases: Cases, layer: Layer) -> Candidate | None:
    """The measured plan of the layer's bucket, if the file has one; an illegal one is an error, not ignored."""
    for entry in constants.overrides:
        if _covers(entry, layer):
            mode = member("overrides.mode", entry.mode, Mode)
            stripe = DEFAULT_STRIPE if mode is Mode.FUSED_LSA else None
            plan = Plan(mode, Tile(entry.tile_m, entry.tile_n), entry.chunks, stripe=stripe)
            return cases.candidate(layer, plan)
    return None


def _covers(entry: Override, layer: Layer) -> bool:
    shape = (entry.n, entry.k, entry.world, entry.quant, entry.wire)
    same = shape == (layer.n, layer.k, layer.world, layer.quant.value, layer.wire.value)
    return same and entry.m_low <= layer.m <= entry.m_high
