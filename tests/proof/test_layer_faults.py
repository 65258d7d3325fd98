# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Faults that others shipped in a fused GEMM, rebuilt in ours, and the check that catches each by name.

L6, an under-waited main loop, is in test_copies_in_flight.py and family `gemm`, whose loop this is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from mori_gemm_ar.ar.wire import sum_through
from mori_gemm_ar.audit import audit_text
from mori_gemm_ar.compile.store import CodeObject
from mori_gemm_ar.errors import CollectiveError, RaceError
from mori_gemm_ar.isa import parse_isa
from mori_gemm_ar.layout.fused_window import FUSED_CONTROL, FusedWindow
from mori_gemm_ar.op import GemmAllReduceOp
from mori_gemm_ar.proof import WrongResult, original
from mori_gemm_ar.proof.copies import LAST_MOMENT
from mori_gemm_ar.proof.gemm import require_bits
from mori_gemm_ar.proof.layers import GEMM, LAYERS, LayerPipeline
from mori_gemm_ar.proof.pipelines import Codes, kernel_named
from mori_gemm_ar.runtime import RankContext
from tests.proof.test_known_faults import changed

_NAMED = {pipeline.name: pipeline for pipeline in LAYERS}
PUT, STORE, SPLIT = (_NAMED[f"{name}-pulled-w2"] for name in ("fused-sdma-2", "fused-lsa", "split-sdma"))
NOTICED = (WrongResult, CollectiveError, RaceError)
RELEASE = "\tbuffer_wbl2 sc0 sc1\n\ts_waitcnt vmcnt(0)\n"


def text(pipeline: LayerPipeline, kernel: str) -> str:
    return kernel_named(pipeline, kernel).code.isa


def failed_rules(pipeline: LayerPipeline, kernel: str, isa: str) -> tuple[str, ...]:
    return audit_text(isa, kernel_named(pipeline, kernel).config).failed


def running(**texts: str) -> Codes:
    """Every rank runs these texts."""

    def pick(rank: int, name: str, code: CodeObject) -> CodeObject:
        return replace(code, isa=texts[name]) if name in texts else code

    return pick


def shows_without_the_detector(pipeline: LayerPipeline, codes: Codes) -> bool:
    """Whether weak memory alone gives wrong sums or a hang."""
    unwatched = replace(pipeline, races=False)
    for seed in range(6):
        try:
            unwatched.calls(seed, codes)
        except NOTICED:
            return True
    return False


# --- faults of the kernels ---


def one_barrier_more_in_half_of_the_waves(pipeline: LayerPipeline) -> str:
    code = kernel_named(pipeline, GEMM).code
    lines, first = code.isa.splitlines(), parse_isa(code.isa).kernel(code.kernel).instructions[0]
    half = "\tv_readfirstlane_b32 s100, v0\n\ts_cmp_lt_u32 s100, 256\n\ts_cbranch_scc1 .Lhalf\n\ts_barrier\n.Lhalf:\n"
    lines[first.line - 1] = half + lines[first.line - 1]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("pipeline", [PUT, STORE], ids=lambda p: p.name)
def test_l4_half_of_the_waves_are_a_barrier_ahead(pipeline: LayerPipeline) -> None:
    """Their last barrier meets the others' last but one: tiles are handed over half written."""
    isa = one_barrier_more_in_half_of_the_waves(pipeline)
    assert "barrier_balance" in failed_rules(pipeline, GEMM, isa)
    with pytest.raises(RaceError, match="barrier"):
        pipeline.calls(0, running(gemm=isa))


def test_l7_a_release_in_another_kernel_cleans_one_cache_of_many() -> None:
    """The GEMM does not release what it stored for peers; the kernel that meets them does."""
    gemm = changed(text(STORE, GEMM), r"\tbuffer_wbl2 sc0 sc1\n\ts_waitcnt vmcnt\(0\)\n", "")
    meet = changed(text(STORE, "meet"), r"(\tglobal_store_dwordx2 [^\n]* sc0 sc1\n)", RELEASE + r"\1")
    assert "released_end" in failed_rules(STORE, GEMM, gemm)
    codes = running(gemm=gemm, meet=meet)
    with pytest.raises(RaceError, match=r"landing .*no writeback of system scope"):
        STORE.calls(0, codes)
    assert shows_without_the_detector(STORE, codes)


def test_l8_the_leader_counts_before_the_other_waves_have_come() -> None:
    after_c = r"(\tbuffer_store_dwordx4[^\n]*\n(?:\t[^\n]*\n|\.LBB[^\n]*\n)*?\ts_waitcnt vmcnt\(0\)\n)\ts_barrier\n"
    isa = changed(text(PUT, GEMM), after_c, r"\1")
    assert "publish_order" in failed_rules(PUT, GEMM, isa)
    with pytest.raises(RaceError, match=r"input .*no workgroup barrier"):
        PUT.calls(0, running(gemm=isa))


def test_l11_a_relaxed_counter() -> None:
    """Neither release nor acquire around the electing count."""
    isa = changed(text(PUT, GEMM), r"\tbuffer_wbl2 sc1\n\ts_waitcnt vmcnt\(0\)\n(\tglobal_atomic_inc)", r"\1")
    isa = changed(isa, r"(global_atomic_inc[^\n]*\n\ts_waitcnt vmcnt\(0\)\n)\tbuffer_inv sc1\n", r"\1")
    assert {"publish_order", "acquire_after_count"} <= set(failed_rules(PUT, GEMM, isa))
    with pytest.raises(RaceError, match=r"input .*no writeback"):
        PUT.calls(0, running(gemm=isa))
    assert shows_without_the_detector(PUT, running(gemm=isa))


@pytest.mark.parametrize("pipeline", [PUT, SPLIT], ids=lambda p: p.name)
def test_l13_two_submitters_of_one_queue(pipeline: LayerPipeline) -> None:
    """Two workgroups of a GEMM, or two ops: who does not wait for its turn overtakes a doorbell."""
    kernel = GEMM if pipeline is PUT else "meet"
    isa = changed(
        text(pipeline, kernel), r"v_cmp_eq_u64_e32 vcc, (v\[\d+:\d+\]), (v\[\d+:\d+\])\n", "s_mov_b64 vcc, exec\n"
    )
    scenario = pipeline.calls if pipeline is PUT else pipeline.shared_queues

    def seeds() -> None:
        for seed in range(8):
            scenario(seed, running(**{kernel: isa}), LAST_MOMENT)

    with pytest.raises(NOTICED):
        seeds()


def test_l16_sums_that_are_not_released() -> None:
    isa = changed(text(PUT, "sum"), r"\tbuffer_wbl2 sc0 sc1\n\ts_waitcnt vmcnt\(0\)\n", "")
    assert "released_end" in failed_rules(PUT, "sum", isa)
    with pytest.raises(RaceError, match=r"reduced .*no writeback of system scope"):
        PUT.calls(0, running(sum=isa))
    assert shows_without_the_detector(PUT, running(sum=isa))


# --- faults of the window ---


Arguments = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
Offsets = Callable[[int, str], "int | None"]


class Moved:
    """A window map that puts a region elsewhere, or is laid out anew for each M."""

    def __init__(self, window: object, offset: Callable[[str], int | None]) -> None:
        self._window, self._moved = window, offset

    def offset(self, name: str) -> int:
        moved = self._moved(name)
        return self._window.offset(name) if moved is None else moved  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self._window, name)


def with_maps(pipeline: LayerPipeline, sizes: tuple[int, ...], seed: int, offset: Offsets) -> None:
    """Back-to-back calls whose window is laid out as offset(m, region) says; None: as it should be."""

    def rank(context: RankContext) -> list[torch.Tensor]:
        with pipeline.make(context, original, timeout_s=0.05) as op:
            arguments = [
                pipeline.operands(seed, n, context.rank, m).arguments(pipeline.gemm) for n, m in enumerate(sizes)
            ]
            return list(recorded(op, sizes, arguments, offset))

    results = pipeline.new_world(seed, LAST_MOMENT).run(rank)
    for call, m in enumerate(sizes):
        products = [pipeline.operands(seed, call, r, m).product(pipeline.gemm.recipe) for r in range(2)]
        for rank_results in results:
            require_bits(f"call {call}", rank_results[call], sum_through(products, pipeline.wire))


def recorded(
    op: GemmAllReduceOp,
    sizes: tuple[int, ...],
    arguments: Sequence[Arguments],
    offset: Offsets,
) -> list[torch.Tensor]:
    window = op._require_window()
    plain, results = window.map, []
    with op.target.record() as recording:
        for m, operands in zip(sizes, arguments, strict=True):
            window.map = Moved(plain, lambda name, m=m: offset(m, name))  # type: ignore[assignment,misc]
            results.append(op(*operands, torch.zeros(m, op.n, dtype=torch.bfloat16)))
    window.map = plain
    recording.replay()
    op.check()
    return results


SIZES = (257, 1101, 257)


def never(m: int, name: str) -> int | None:
    return None


@pytest.mark.parametrize("pipeline", [PUT, STORE], ids=lambda p: p.name)
def test_windows_as_they_are_hold_all_sizes(pipeline: LayerPipeline) -> None:
    """Negative control of L19 to L21."""
    with_maps(pipeline, SIZES, 0, never)


def test_l19_control_words_where_another_size_has_payload() -> None:
    """As if the counters' place depended on M: of one size, slots lie where the other counts its tiles."""

    def offset(m: int, name: str) -> int | None:
        return FUSED_CONTROL.tile_arrivals if name == "landing" and m == 257 else None

    with pytest.raises(NOTICED):
        with_maps(PUT, SIZES, 0, offset)


@pytest.mark.parametrize("pipeline", [PUT, STORE], ids=lambda p: p.name)
def test_l21_a_window_laid_out_for_each_size(pipeline: LayerPipeline) -> None:
    """A fast rank's slices of the next call arrive where a slow rank still has those of this one."""

    def offset(m: int, name: str) -> int | None:
        if name not in ("input", "reduced", "landing"):
            return None
        return FusedWindow(2, pipeline.n, m).map().offset(name)

    def seeds() -> None:
        for seed in range(4):
            with_maps(pipeline, SIZES, seed, offset)

    with pytest.raises(RaceError, match=r"landing|input|reduced"):
        seeds()


def remainder_instead_of_wrap(isa: str) -> str:
    """The counter never wraps, and who finds `before % (last + 1) == last` is elected."""
    never_wraps = changed(isa, r"v_mov_b32_e32 (v\d+), (s\d+)\n(\tbuffer_wbl2 sc1)", r"v_mov_b32_e32 \1, -1\n\3")
    loop = (
        r".Lmodulus:\n\ts_cmp_le_u32 \1, \2\n\ts_cbranch_scc1 .Lelect\n\ts_sub_u32 \1, \1, \2\n"
        r"\ts_sub_u32 \1, \1, 1\n\ts_branch .Lmodulus\n.Lelect:\n\ts_cmp_eq_u32 \1, \2\n\ts_cselect_b64"
    )
    return changed(never_wraps, r"\ts_cmp_eq_u32 (s\d+), (s\d+)\n\ts_cselect_b64", loop)


def test_l20_one_counter_for_two_moduli() -> None:
    """Sizes whose chunks have one tile and two count in the same place: the residue of one elects for the other."""
    codes = running(gemm=remainder_instead_of_wrap(text(PUT, GEMM)))

    def make_calls(pipeline: LayerPipeline, sizes: tuple[int, ...]) -> None:
        def rank(context: RankContext) -> list[torch.Tensor]:
            with pipeline.make(context, codes, timeout_s=0.05) as op:
                return pipeline._eager(op, 0, context.rank, sizes)

        pipeline._check(pipeline.new_world(0, LAST_MOMENT).run(rank), 0, sizes)

    make_calls(replace(PUT, races=False), (513, 513))  # one modulus: right
    with pytest.raises(RaceError, match="input"):
        make_calls(PUT, (513, 512, 513))
