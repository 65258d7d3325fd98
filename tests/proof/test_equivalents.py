# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Mutants that change nothing: waits that never wait, and those with a written reason."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

import pytest

from mori_gemm_ar.audit import audit_text
from mori_gemm_ar.isa import parse_isa
from mori_gemm_ar.proof import FAMILIES, PIPELINES, clean_seeds, kernel_named, pipeline_mutants, pipeline_named
from mori_gemm_ar.proof.idle import idle_waits
from mori_gemm_ar.proof.runner import equivalence, isa_hash
from mori_gemm_ar.proof.scenario import with_failures
from tests.kernel.isa_builder import tiny

LOAD, READ, SCALAR = "global_load_dword v2, v1, s[4:5]", "ds_read_b32 v3, v1", "s_load_dword s8, s[0:1], 0x0"


@pytest.mark.parametrize(
    ("before", "wait", "bound"),
    [
        ([], "vmcnt(0)", 0),
        ([LOAD], "vmcnt(0)", None),
        ([LOAD], "vmcnt(1)", 1),
        ([LOAD, LOAD], "vmcnt(1)", None),
        (["buffer_inv sc1"], "vmcnt(0)", None),
        ([LOAD, LOAD, "s_waitcnt vmcnt(1)", LOAD], "vmcnt(1)", None),
        ([LOAD, LOAD, "s_waitcnt vmcnt(1)", LOAD], "vmcnt(2)", 2),
        ([READ, READ], "lgkmcnt(2)", 2),
        ([READ, READ], "vmcnt(0)", 0),
        ([SCALAR], "lgkmcnt(1)", None),  # may count twice
        ([SCALAR], "lgkmcnt(2)", 2),
        # Where two paths meet, the one with more under way counts.
        ([LOAD, "s_cbranch_scc1 .LBB0_1", LOAD, ".LBB0_1:"], "vmcnt(1)", None),
        ([LOAD, "s_cbranch_scc1 .LBB0_1", LOAD, ".LBB0_1:"], "vmcnt(2)", 2),
        # A loop: nobody knows how many.
        ([".LBB0_1:", LOAD, "s_cbranch_scc1 .LBB0_1"], "vmcnt(60)", None),
        ([".LBB0_1:", "s_waitcnt vmcnt(0)", LOAD, "s_cbranch_scc1 .LBB0_1"], "vmcnt(1)", 1),
    ],
)
def test_a_wait_is_idle_if_no_path_brings_more(before: list[str], wait: str, bound: int | None) -> None:
    code = tiny("\n".join([*before, f"s_waitcnt {wait}", "s_endpgm"]), (8, 8, 8))
    kernel = parse_isa(code.isa).kernel(code.kernel)
    last = [i for i in kernel.instructions if i.name == "s_waitcnt"][-1]
    assert idle_waits(kernel).get((last.line, wait.partition("(")[0])) == bound


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("\ts_add_u32 s9, s10, s0", "\ts_add_u32 s9, s0, s10", True),
        ("\ts_addc_u32 s9, s10, 0", "\ts_addc_u32 s9, 0, s10", True),
        ("\ts_or_b64 exec, exec, s[0:1]", "\ts_or_b64 exec, s[0:1], exec", True),
        ("\ts_mul_i32 s9, s10, s0", "\ts_mul_i32 s9, s0, s10", True),
        ("\ts_add_u32 s9, s10, s0", "\ts_add_u32 s10, s9, s0", False),
        ("\ts_sub_u32 s9, s10, s0", "\ts_sub_u32 s9, s0, s10", False),
        ("\ts_andn2_b64 exec, exec, s[0:1]", "\ts_andn2_b64 exec, s[0:1], exec", False),
        ("\ts_waitcnt vmcnt(0)", "\ts_waitcnt vmcnt(1)", False),
    ],
)
def test_the_key_of_a_text_ignores_only_the_order_of_sources_that_commute(one: str, other: str, same: bool) -> None:
    assert (isa_hash(one) == isa_hash(other)) is same
    assert (isa_hash(f"{LOAD}\n{one}\n") == isa_hash(f"{LOAD}\n{other}\n")) is same


def test_written_reasons_are_for_mutants_that_there_are() -> None:
    """An entry of a text that has changed is of no use, and one that the audit refutes is wrong."""
    text = files("mori_gemm_ar.proof").joinpath("equivalents.json").read_text()
    mutants_of = cache(pipeline_mutants)
    for entry in json.loads(text)["equivalents"]:
        pipeline = pipeline_named(entry["pipeline"])
        (mutant,) = (
            m
            for m in mutants_of(pipeline)
            if (m.line, m.operator.value) == (entry["line"], entry["operator"])
            and isa_hash(kernel_named(pipeline, m.kernel).code.isa) == entry["isa"]
        )
        assert equivalence(pipeline, mutant) == entry["reason"]
        assert audit_text(mutant.isa, kernel_named(pipeline, mutant.kernel).config).ok


def test_equivalent_mutants_are_few() -> None:
    total = equal = 0
    for pipeline in PIPELINES:
        for mutant in pipeline_mutants(pipeline):
            total += 1
            equal += bool(mutant.idle or equivalence(pipeline, mutant))
    assert total > 2000
    assert equal < total / 20


def test_seeds_are_spread_over_a_family_or_given_to_each() -> None:
    spread, full = clean_seeds(PIPELINES, full=False), clean_seeds(PIPELINES, full=True)
    for family in FAMILIES:
        names = [pipeline.name for pipeline in family.pipelines]
        assert sorted(seed for name in names for seed in spread[name]) == list(range(family.spread))
        assert all(spread[name] for name in names)
        assert all(len(full[name]) == family.each for name in names)
        if family.name in ("lsa", "sdma"):
            assert all(any(map(with_failures, spread[name])) for name in names)
    one = PIPELINES[0]
    assert clean_seeds([one], full=False, seeds=7) == {one.name: range(7)}
