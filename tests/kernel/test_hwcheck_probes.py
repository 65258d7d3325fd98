# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Probes of single instructions: the list covers the shipped kernels, agreement is found, and so is any difference."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from mori_gemm_ar.commands.shipped import shipped_configs
from mori_gemm_ar.compile.store import default_store
from mori_gemm_ar.hwcheck.alterations import parse_alteration
from mori_gemm_ar.hwcheck.forms import Form, Kind, form_of, forms_of, kind_of, listed_forms
from mori_gemm_ar.hwcheck.probes import Probe, probe_of, probes_of
from mori_gemm_ar.hwcheck.semantics import compare, run_probe
from mori_gemm_ar.hwcheck.settings import SectionName
from mori_gemm_ar.hwcheck.standin import StandInNode
from mori_gemm_ar.hwcheck.values import difference, inputs_of
from mori_gemm_ar.isa import Kernel
from mori_gemm_ar.layout import AllReduceConfig, DType, Recipe, Stage
from mori_gemm_ar.layout.gemm import GemmConfig
from mori_gemm_ar.layout.gemm_terms import BLayout, Tile
from mori_gemm_ar.layout.sdma import SdmaPhase, sdma_config
from mori_gemm_ar.runtime import Target, kernel_of
from mori_gemm_ar.runtime.alone import AloneWorld

# One of every way to compute, move and wait.
TRIED = (
    "v_max_u32", "v_cndmask_b32", "v_div_fixup_f32", "v_mad_u64_u32", "v_readfirstlane_b32", "s_and_saveexec_b64",
    "s_addc_u32", "global_store_byte", "buffer_load_dwordx4", "ds_read_b128", "s_load_dwordx4",
    "v_mfma_scale_f32_16x16x128_f8f6f4",
)  # fmt: skip
WAVES = 6


def kernels(configs: list) -> list[Kernel]:
    return [kernel_of(default_store().get(config)) for config in configs]


def stand_in(*alterations: str) -> Target:
    node = StandInNode(1, SectionName.SEMANTICS, tuple(map(parse_alteration, alterations)), 0)
    return AloneWorld(node).target("emulated")


@functools.cache
def sample() -> Probe:
    """One form of each, in one kernel."""
    forms = {form.mnemonic: form for form in reversed(listed_forms())}
    return probe_of([forms[name] for name in TRIED])


def differences(hardware: Target, probe: Probe) -> dict[str, str]:
    rng = np.random.default_rng(1)
    found = compare(hardware, stand_in(), probe, inputs_of(probe, WAVES, rng), rng)
    return {one.mnemonic: str(one) for one in found}


# --- the list ---


def test_the_list_has_what_kernels_of_each_kind_use() -> None:
    some = [
        AllReduceConfig(2, DType.BF16, Stage.TWO),
        sdma_config(2, DType.BF16, SdmaPhase.REDUCE),
        GemmConfig(Recipe.MXFP8, 256, 256, Tile.M256_N256, BLayout.ROW),
    ]
    used = {form.mnemonic for form in forms_of(kernels(some))}
    assert len(used) > 60
    assert used <= {form.mnemonic for form in listed_forms()}


@pytest.mark.slow
def test_the_list_is_that_of_all_shipped_kernels() -> None:
    used = forms_of(kernels(shipped_configs()))
    listed = listed_forms()
    assert {form.mnemonic for form in used} == {form.mnemonic for form in listed}


def test_only_what_has_no_result_is_left_to_kernels() -> None:
    left = {form.mnemonic for form in listed_forms() if form.kind is Kind.KERNELS}
    assert left <= {name for name in left if name.startswith(("s_", "buffer_wbl2", "buffer_inv"))}
    assert {"s_waitcnt", "s_barrier", "s_endpgm", "buffer_wbl2", "buffer_inv"} <= left
    tried = {block.form.mnemonic for probe in probes_of(listed_forms()) for block in probe.blocks}
    assert tried | left == {form.mnemonic for form in listed_forms()}
    assert not tried & left


def test_registers_are_renamed_in_order_and_kept_equal() -> None:
    (kernel,) = kernels([AllReduceConfig(2, DType.BF16, Stage.TWO)])
    texts = {form_of(instruction).text for instruction in kernel.instructions}
    assert "s_and_saveexec_b64 s[40:41], s[44:45]" in texts or "s_and_saveexec_b64 s[40:41], vcc" in texts
    assert kind_of("global_load_dwordx4") is Kind.MEMORY
    assert kind_of("ds_bpermute_b32") is Kind.REGISTERS
    assert Form("v_x", "v_x v16, v[20:21], v16").registers == (("v", 16, 1), ("v", 20, 2))


# --- probes ---


def test_an_honest_stand_in_agrees() -> None:
    assert differences(stand_in(), sample()) == {}


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("v_max_u32", "v_min_u32"),
        ("v_div_fixup_f32", "v_fma_f32"),
        ("s_addc_u32", "s_add_u32"),
        ("global_store_byte", "global_store_short"),
    ],
)
def test_an_altered_mnemonic_is_found_and_named(name: str, other: str) -> None:
    if name == "s_addc_u32":  # the text around an instruction uses it too
        probe = probe_of([form for form in listed_forms() if form.mnemonic == name][:1])
    else:
        probe = sample()
    found = differences(stand_in(f"mnemonic:{name}={other}"), probe)
    assert set(found) == {name}
    assert name in found[name] and "on the hardware and" in found[name]


def test_results_and_memory_are_those_of_all_waves() -> None:
    probe, rng = sample(), np.random.default_rng(2)
    data = inputs_of(probe, WAVES, rng)
    memory = rng.integers(0, 256, (WAVES, probe.memory_bytes), np.uint8)
    results, after = run_probe(stand_in(), probe, data, memory)
    assert results.shape == (WAVES, probe.output_slots, 64)
    assert (after != memory).any(axis=1).all()  # the store of a byte


# --- comparison ---


def matrix_block() -> tuple:
    probe, rng = sample(), np.random.default_rng(3)
    data = inputs_of(probe, WAVES, rng)
    results, _ = run_probe(stand_in(), probe, data, np.zeros((WAVES, probe.memory_bytes), np.uint8))
    block = next(block for block in probe.blocks if block.form.kind is Kind.MATRIX)
    return block, data, results


def test_the_order_of_a_sum_is_free_and_no_more() -> None:
    block, data, results = matrix_block()
    slot = block.first_output + next(n for n, one in enumerate(block.outputs) if one.name == "v16")
    for wave, ulps, same in ((1, 1, True), (0, 1, False), (1, 1 << 14, False)):
        other = results.copy()
        other[wave, slot, 5] += np.uint32(ulps)
        assert (difference(block, data, other, results) is None) is same, (wave, ulps)


def test_any_nan_will_do_for_a_nan() -> None:
    probe = sample()
    block = next(block for block in probe.blocks if block.form.mnemonic == "v_div_fixup_f32")
    data = inputs_of(probe, WAVES, np.random.default_rng(4))
    results = np.zeros((WAVES, probe.output_slots, 64), np.uint32)
    slot = block.first_output + len(block.outputs) - 1
    results[0, slot, 0] = 0x7FC00000
    other = results.copy()
    other[0, slot, 0] = 0x7FC00001
    assert difference(block, data, other, results) is None
    other[0, slot, 0] = 0x7F800000
    found = difference(block, data, other, results)
    assert found is not None and found.lane == 0 and found.hardware == 0x7F800000
