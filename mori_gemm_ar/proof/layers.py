# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Pipelines of the fused op: the GEMM that sends its tiles, and every tail.

Even seeds replay a recording, whose calls follow each other without a host between them; odd ones call one by one, and
operands are overwritten as soon as a call returns. With every fourth seed, a rank then stays away or makes another
call, and a copy engine is dead. GPUs hold a few workgroups at a time, less than half of a grid. Two seeds of sixteen
run under the race detector.

Kernels that another family or pipeline proves are run here but not mutated again; of a fused GEMM, which is that of
family `gemm` up to its first store of C, only what follows is mutated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from mori_gemm_ar.ar.wire import sum_through
from mori_gemm_ar.compile.store import CodeObject
from mori_gemm_ar.emulator import EngineFaults, EngineSettings
from mori_gemm_ar.emulator.adversary import Adversary
from mori_gemm_ar.errors import CollectiveTimeout, CopyEngineTimeout
from mori_gemm_ar.layout import BLayout, GemmConfig, Recipe, Tile, Wire
from mori_gemm_ar.layout.bands import BandsConfig
from mori_gemm_ar.layout.copy_queue import HANDLE_OFFSETS, UNIT_BYTES
from mori_gemm_ar.layout.fused import FusedConfig
from mori_gemm_ar.layout.ownership import OwnerSlices
from mori_gemm_ar.layout.pull import PullConfig
from mori_gemm_ar.layout.sdma import SdmaConfig, SdmaPhase, Transport
from mori_gemm_ar.layout.stream import STREAM_CHUNKS, StreamConfig
from mori_gemm_ar.layout.terms import ceil_div
from mori_gemm_ar.op import GemmAllReduceOp, Mode, Tail, Tuning
from mori_gemm_ar.plan import ENGINE_MODES, LayerSpec
from mori_gemm_ar.proof.copies import LAST_MOMENT
from mori_gemm_ar.proof.gemm import Operands, require_bits
from mori_gemm_ar.proof.pipelines import Codes, ProvedKernel, watched_node
from mori_gemm_ar.proof.scenario import failing, odd_one_out, with_failures
from mori_gemm_ar.runtime import LocalWorld, RankContext

GEMM, BANDS = "gemm", "bands"
K = 128  # one step of the main loop
NARROW, WIDE = 64, 288  # columns: one of tiles, so that rows cost little, or two, the last one ragged
TILE = Tile.M128_N256
RESIDENCY = 4
_WATCHED = (0, 3)  # of sixteen seeds; a detector needs no unlucky order, and takes most of the time
_POINTER = 8  # bytes
_BUSY = 4  # bands of a slice, a chunk each
_FEW = 3  # ranks, up to which the sum has nine workgroups


class _Untested(GemmAllReduceOp):
    """The op without its self-test, which runs shipped code before a mutant is in place."""

    def _self_test(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class LayerPipeline:
    """The op in one mode with one tail. chunks: of fused-sdma. own: names of the kernels that are mutated here."""

    name: str
    world: int
    mode: Mode
    gather: Transport
    chunks: int = 1
    wire: Wire = Wire.EXACT
    n: int = NARROW
    own: tuple[str, ...] = ()
    races: bool = True
    tail: Tail = Tail.PHASED
    queues: int = 1

    # ---- kernels ---------------------------------------------------------------------------------------------
    @property
    def tuning(self) -> Tuning:
        """Leaves the model no choice."""
        return Tuning(
            gather=self.gather, chunks=self.chunks, tile=TILE, queues=self.queues, batch_invariant=True, tail=self.tail
        )

    @property
    def gemm(self) -> GemmConfig:
        """The product."""
        return GemmConfig(Recipe.BLOCKSCALE, self.n, K, TILE, BLayout.ROW)

    @property
    def spec(self) -> LayerSpec:
        """What the op is created for."""
        world, most, gemm = self.world, max(self.sizes()), self.gemm
        return LayerSpec(world, gemm.n, gemm.k, most, gemm.recipe, gemm.b_layout, self.wire, self.mode, self.tuning)

    def configs(self) -> dict[str, Any]:
        """Compile keys of the mode's own kernels, by name."""
        found: dict[str, Any] = {}
        for config in self.spec.kernels():
            if isinstance(config, FusedConfig):
                found[GEMM] = config
            elif isinstance(config, BandsConfig):
                found[BANDS] = config
            elif isinstance(config, SdmaConfig | PullConfig | StreamConfig):
                found[config.phase.value] = config
        for phase in self._replaced(found):
            found.pop(phase.value, None)
        return found

    def _replaced(self, found: dict[str, Any]) -> tuple[SdmaPhase, ...]:
        """Phases of the all-reduce by copy engines that only calls without rows run, as other kernels take over."""
        if self.tail is Tail.STREAMED:
            return (SdmaPhase.SCATTER, SdmaPhase.REDUCE)
        return (SdmaPhase.REDUCE,) if BANDS in found else ()

    def kernels(self) -> tuple[ProvedKernel, ...]:
        """What is mutated here."""
        configs = self.configs()
        kernels = (ProvedKernel.shipped(name, configs[name]) for name in self.own)
        return tuple(replace(k, since=first_store(k.code)) if k.name == GEMM else k for k in kernels)

    # ---- scenarios -------------------------------------------------------------------------------------------
    def sizes(self) -> tuple[int, ...]:
        """M of the calls: nine workgroups and a ragged tile; a band of tiles for each rank; two, most of them empty."""
        band, bands = TILE.m, max(self.chunks, 5 if self.world <= _FEW else 2)
        return self.world * (bands - 1) * band + 77, self.world * band, self.world * band + 1

    def exercise(self, seed: int, codes: Codes, adversary: Adversary | None = LAST_MOMENT) -> None:
        """Run the scenarios; see `Pipeline`."""
        watched = self if seed % 16 in _WATCHED else replace(self, races=False)
        watched.calls(seed, codes, adversary)
        if self.mode is Mode.SPLIT_SDMA:
            watched.shared_queues(seed, codes, adversary)
        if seed % 4 == 2 and (self.tail is Tail.STREAMED or self.wire.both):
            # One op alone pushes chunks in turn; those of two ops meet, of a stream if there are many. A turn that is
            # skipped is a race first, and a wrong sum seldom.
            chunks = STREAM_CHUNKS if self.tail is Tail.STREAMED else self.chunks
            replace(self, chunks=chunks).shared_queues(seed, codes, adversary)
        if with_failures(seed):
            watched.failures(seed, codes, adversary)

    def calls(self, seed: int, codes: Codes, adversary: Adversary | None = LAST_MOMENT) -> None:
        """The calls, with a result in the caller's memory and two in the window."""
        sizes = self.sizes()
        make_calls = self._eager if seed % 2 else self._recorded

        def rank_body(context: RankContext) -> list[torch.Tensor]:
            with self.make(context, codes, timeout_s=1.0) as op:
                return make_calls(op, seed, context.rank, sizes)

        self._check(self.new_world(seed, adversary).run(rank_body), seed, sizes)

    def shared_queues(self, seed: int, codes: Codes, adversary: Adversary | None = LAST_MOMENT) -> None:
        """Two ops of each rank put to the same queues, from two threads; in short calls or many chunks, puts meet."""
        rows = (20, 60, 20) if self.mode is Mode.SPLIT_SDMA else (_BUSY * TILE.m,) * 2
        sizes = tuple(each * self.world for each in rows)

        def rank_body(context: RankContext) -> list[list[torch.Tensor]]:
            with self.make(context, codes, timeout_s=1.0) as first, self.make(context, codes, timeout_s=1.0) as second:
                second._require_window().queues = first._require_window().queues

                def other() -> list[torch.Tensor]:
                    second.bind()
                    return self._eager(second, seed + 1, context.rank, sizes)

                thread = context.spawn(other)
                return [self._eager(first, seed, context.rank, sizes), thread.join()]

        results = self.new_world(seed, adversary).run(rank_body)
        for number in range(2):
            self._check([both[number] for both in results], seed + number, sizes)

    def _eager(self, op: GemmAllReduceOp, seed: int, rank: int, sizes: tuple[int, ...]) -> list[torch.Tensor]:
        results = []
        for call, m in enumerate(sizes):
            arguments = self.operands(seed, call, rank, m).arguments(self.gemm)
            results.append(op(*arguments, self._place(call, m)).clone())
            spoil(arguments)
        return results

    def _recorded(self, op: GemmAllReduceOp, seed: int, rank: int, sizes: tuple[int, ...]) -> list[torch.Tensor]:
        operands = [self.operands(seed, call, rank, m).arguments(self.gemm) for call, m in enumerate(sizes)]
        with op.target.record() as recording:
            results = [op(*operands[call], self._place(call, m)) for call, m in enumerate(sizes)]
        recording.replay()
        op.check()
        return [result.clone() for result in results]

    def _check(self, results: list[list[torch.Tensor]], seed: int, sizes: tuple[int, ...]) -> None:
        """Raise `WrongResult` unless all ranks got the sum of the products in rank order, as the wire delivers it."""
        for call, m in enumerate(sizes):
            operands = [self.operands(seed, call, rank, m) for rank in range(self.world)]
            expected = sum_through([one.product(self.gemm.recipe) for one in operands], self.wire)
            for rank in range(self.world):
                require_bits(f"call {call}, m={m}, rank {rank}", results[rank][call], expected)

    def _place(self, call: int, m: int) -> torch.Tensor | None:
        """The first result goes to the caller's memory, so that no two of three share an output of the window."""
        return torch.full((m, self.gemm.n), float("nan"), dtype=torch.bfloat16) if call == 0 else None

    def failures(self, seed: int, codes: Codes, adversary: Adversary | None = LAST_MOMENT) -> None:
        """A rank stays away or makes another call; a copy engine is dead, or the turn at its queue never comes."""
        world, make = partial(self.new_world, seed, adversary), partial(self.make, codes=codes, timeout_s=0.01)
        small, other = self.sizes()[1:]

        def call(op: GemmAllReduceOp, rank: int, *, odd: bool) -> None:
            op(*self.operands(seed, 0, rank, other if odd else small).arguments(self.gemm))

        odd_one_out(world, make, call, self._left_out(other))
        if self.mode not in ENGINE_MODES and self.gather is not Transport.SDMA:
            return
        # A rank whose own engine failed still sums what has come by then, for nobody: that is a race, and harmless.
        world = partial(replace(self, races=False).new_world, seed, adversary)

        def rank_body(context: RankContext, *, stuck: bool) -> None:
            expected = (
                (CopyEngineTimeout, (1,)) if context.rank == 0 else (CollectiveTimeout, self._stuck(context.rank))
            )
            op = make(context)
            if stuck and context.rank == 0:
                _reserve(op)
            failing(context, op, partial(call, rank=context.rank, odd=False), expected)

        world(EngineFaults(dead=((0, 1, None),))).run(partial(rank_body, stuck=False))
        if self.mode is Mode.FUSED_SDMA:
            world().run(partial(rank_body, stuck=True))

    def _left_out(self, m: int) -> range:
        """Ranks that get no chunk in a call of m rows. Streamed, they wait for one before they meet anybody."""
        owners = ceil_div(m, OwnerSlices(self.world, m, TILE.m).slice_rows)
        return range(owners if self.tail is Tail.STREAMED else self.world, self.world)

    def _stuck(self, rank: int) -> tuple[int, ...]:
        """Whom a rank may name when rank 0 gives nothing to rank 1. Streamed, the others only miss both at the end."""
        return (0, 1) if self.tail is Tail.STREAMED and rank > 1 else (0,)

    # ---- parts -----------------------------------------------------------------------------------------------
    def operands(self, seed: int, call: int, rank: int, m: int) -> Operands:
        """What a rank brings to a call."""
        return Operands.random(self.gemm, m, seed * 64 + rank, call)

    def new_world(self, seed: int, adversary: Adversary | None, faults: EngineFaults = EngineFaults()) -> LocalWorld:  # noqa: B008  frozen
        """Ranks on a node that holds few workgroups."""
        node = partial(watched_node, seed=seed, adversary=adversary, races=self.races, residency=RESIDENCY)
        return LocalWorld(self.world, seed, node=node, engines=EngineSettings(seed=seed, faults=faults))

    def make(self, context: RankContext, codes: Codes, timeout_s: float) -> GemmAllReduceOp:
        """One rank's op with the code objects that `codes` picks."""
        gemm, spec = self.gemm, self.spec
        op = _Untested.create(
            context, n=gemm.n, k=gemm.k, m_max=spec.m_max, quant=gemm.recipe, b_layout=gemm.b_layout,
            mode=self.mode, wire=self.wire, timeout_s=timeout_s, tuning=self.tuning,
        )  # fmt: skip
        for name, config in self.configs().items():
            op._codes[config] = codes(context.rank, name, op._codes[config])
        return op


def spoil(arguments: tuple[torch.Tensor, ...]) -> None:
    """Overwrite operands."""
    for argument in arguments:
        argument.flatten().view(torch.uint8).fill_(255)


def _reserve(op: GemmAllReduceOp) -> None:
    """Take a place in rank 0's queue to rank 1, as one who dies before it is its turn."""
    queues = op._require_window().queues
    assert queues is not None, "the mode has engines"
    handle = int.from_bytes(op.target.read(queues.table + _POINTER * queues.per_peer, _POINTER), "little")
    word = int.from_bytes(op.target.read(handle + HANDLE_OFFSETS["cachedWptr"], _POINTER), "little")
    reserved = int.from_bytes(op.target.read(word, _POINTER), "little")
    op.target.write(word, (reserved + UNIT_BYTES).to_bytes(_POINTER, "little"))


def first_store(code: CodeObject) -> int:
    """Line of the first store of C in a GEMM."""
    lines = enumerate(code.isa.splitlines(), start=1)
    return next(line for line, text in lines if re.match(r"\s*(buffer|global)_store_", text))


def _pipelines() -> list[LayerPipeline]:
    """Copy engines have a put of the tail's own in split-sdma only, so that its MEET is mutated there."""
    pulled, pushed, sends = Transport.LSA, Transport.SDMA, (GEMM, "sum", "pull")
    found = []
    for world in (2, 3, 8):
        found += [
            LayerPipeline(f"fused-sdma-2-pulled-w{world}", world, Mode.FUSED_SDMA, pulled, 2, own=sends),
            LayerPipeline(f"fused-lsa-pulled-w{world}", world, Mode.FUSED_LSA, pulled, own=(GEMM, "meet")),
            LayerPipeline(f"split-sdma-pulled-w{world}", world, Mode.SPLIT_SDMA, pulled, own=("meet",)),
            LayerPipeline(f"fused-sdma-1-pushed-w{world}", world, Mode.FUSED_SDMA, pushed),
        ]
    return [
        *found,
        LayerPipeline("fused-sdma-8-pulled-w2", 2, Mode.FUSED_SDMA, pulled, 8),
        LayerPipeline("fused-sdma-2-pushed-wide-w2", 2, Mode.FUSED_SDMA, pushed, 2, n=WIDE),
        LayerPipeline("fused-lsa-pushed-w2", 2, Mode.FUSED_LSA, pushed),
        LayerPipeline("fused-lsa-pulled-wide-w2", 2, Mode.FUSED_LSA, pulled, n=WIDE),
        LayerPipeline("fused-sdma-2-pulled-fp8-w2", 2, Mode.FUSED_SDMA, pulled, 2, Wire.FP8, own=("sum", "pull")),
        *_banded(),
        *_streamed(),
    ]


def _streamed() -> list[LayerPipeline]:
    """Chunks are summed as they come; the second pipeline of two ranks has two queues to each peer."""
    stream = partial(LayerPipeline, mode=Mode.FUSED_SDMA, gather=Transport.SDMA, chunks=2, tail=Tail.STREAMED)
    own = (GEMM, "sum", "end")
    alone = [stream(f"fused-sdma-2-streamed-w{world}", world, own=own) for world in (2, 3, 8)]
    return [*alone, stream("fused-sdma-2-streamed-queues-w2", 2, queues=2)]


def _banded() -> list[LayerPipeline]:
    """Partial sums are sent in fp8. No family but this one has the gather of two ranks."""
    band = partial(LayerPipeline, mode=Mode.FUSED_SDMA, gather=Transport.SDMA, chunks=2, wire=Wire.FP8_BOTH)
    return [
        band("fused-sdma-2-fp8-both-w2", 2, own=(GEMM, BANDS, "gather")),
        band("fused-sdma-2-fp8-both-w3", 3, own=(GEMM, BANDS)),
    ]


LAYERS = tuple(_pipelines())
