# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What must and must not stand in the machine code of the copy-engine all-reduces with a lossy wire."""

from __future__ import annotations

import pytest

from mori_gemm_ar.commands.shipped import sdma_wire_all_reduces
from mori_gemm_ar.compile.store import default_store
from mori_gemm_ar.isa import Instruction, Kernel, parse_isa
from mori_gemm_ar.layout import DType, Wire
from mori_gemm_ar.layout.sdma import SdmaConfig, SdmaPhase, sdma_config
from tests.kernel.test_allreduce_isa import code, loops, scalar_base

CONFIGS = list(sdma_wire_all_reduces())
# Of bf16 at eight ranks: vector and scalar registers, instructions.
BOUNDS = {
    (Wire.FP8, SdmaPhase.SCATTER): (54, 41, 375),
    (Wire.FP8, SdmaPhase.REDUCE): (54, 66, 759),
    (Wire.FP8, SdmaPhase.GATHER): (50, 50, 250),
    (Wire.FP8_BOTH, SdmaPhase.SCATTER): (54, 74, 935),
    (Wire.FP8_BOTH, SdmaPhase.REDUCE): (54, 66, 819),
    (Wire.FP8_BOTH, SdmaPhase.GATHER): (50, 50, 250),
    (Wire.FP8_ROW, SdmaPhase.SCATTER): (54, 41, 375),
    (Wire.FP8_ROW, SdmaPhase.REDUCE): (54, 69, 744),
    (Wire.FP8_ROW, SdmaPhase.GATHER): (50, 42, 241),
}


def kernel_of(config: SdmaConfig) -> Kernel:
    return parse_isa(default_store().get(config).isa).kernel(config.kernel_name)


def data_loops(kernel: Kernel) -> list[tuple[Instruction, ...]]:
    """Loops that load runs or packs; those of polls and queues are scoped."""
    found = [code(kernel, block) for block in loops(kernel)]
    return [block for block in found if any("_load_dwordx" in i.name and not i.has("sc1") for i in block)]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.key)
def test_nothing_spills_and_the_audit_passes(config: SdmaConfig) -> None:
    manifest = default_store().get(config).manifest
    resources = manifest["resources"]
    assert resources["vgpr_spills"] == resources["sgpr_spills"] == resources["scratch_bytes"] == 0
    assert resources["vgpr"] <= 64 and resources["agpr"] == resources["lds_bytes"] == 0
    assert (manifest["audit"]["verdict"], manifest["audit"]["declared"]) == ("pass", True)


@pytest.mark.parametrize(("wire", "phase"), BOUNDS)
def test_resources_stay_within_their_bounds(wire: Wire, phase: SdmaPhase) -> None:
    resources = default_store().get(sdma_config(8, DType.BF16, phase, wire)).manifest["resources"]
    seen = tuple(resources[name] for name in ("vgpr", "sgpr", "instructions"))
    assert all(one <= most for one, most in zip(seen, BOUNDS[wire, phase], strict=True)), seen


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.key)
def test_addresses_of_data_stay_scalar(config: SdmaConfig) -> None:
    """No loop over data has a vector address, or picks addresses lane by lane."""
    for block in data_loops(kernel_of(config)):
        wide = [i for i in block if "_dwordx" in i.name and i.name[:2] != "s_"]
        assert wide and all(scalar_base(instruction) for instruction in wide)
        assert not [i for i in block if i.name.startswith("v_readfirstlane")]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.key)
def test_a_run_is_converted_by_pairs(config: SdmaConfig) -> None:
    """Four instructions widen a run, four quantise it."""
    bodies = data_loops(kernel_of(config))
    widened = sum(i.name.startswith("v_cvt_pk_f32_fp8") for block in bodies for i in block)
    packed = sum(i.name == "v_cvt_pk_fp8_f32" for block in bodies for i in block)
    every, both = 4 * config.world, config.wire.both
    wanted = {
        SdmaPhase.SCATTER: (0, every if both else 0),
        SdmaPhase.REDUCE: (every if both else 0, 4),
        SdmaPhase.GATHER: (every, 0),
    }
    assert (widened, packed) == wanted[config.phase]
