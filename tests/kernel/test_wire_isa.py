# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What must and must not stand in the machine code of the all-reduces with fp8 on the wire. Nothing is executed."""

from __future__ import annotations

import pytest

from mori_gemm_ar.commands.shipped import wire_all_reduces
from mori_gemm_ar.compile.store import default_store
from mori_gemm_ar.isa import Instruction, Kernel, basic_blocks, parse_isa
from mori_gemm_ar.layout import AllReduceConfig, DType, Stage, Wire
from tests.kernel.test_allreduce_isa import code, loops, scalar_base

CONFIGS = list(wire_all_reduces())
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.key)
LOSSY = [wire for wire in Wire if wire.lossy]
# Of bf16 and eight ranks: registers and instructions of the kernel, then instructions of the loops that move data
# (staging, sums, for rows also quantising, gather).
BOUNDS = {
    Wire.FP8: {"vgpr": 60, "sgpr": 72, "instructions": 765, "loops": [37, 159, 172]},
    Wire.FP8_BOTH: {"vgpr": 58, "sgpr": 70, "instructions": 1251, "loops": [405, 161, 195]},
    Wire.FP8_ROW: {"vgpr": 62, "sgpr": 77, "instructions": 757, "loops": [42, 160, 148, 30]},
}


def kernel_of(config: AllReduceConfig) -> Kernel:
    return parse_isa(default_store().get(config).isa).kernel(config.kernel_name)


def eight(wire: Wire) -> AllReduceConfig:
    return AllReduceConfig(8, DType.BF16, Stage.TWO, wire=wire)


def data_loops(kernel: Kernel) -> list[tuple[Instruction, ...]]:
    """Loops that load runs or packs; the polling loop's load is scoped."""
    found = [code(kernel, block) for block in loops(kernel)]
    return [block for block in found if any("_load_dwordx" in i.name and not i.has("sc1") for i in block)]


@every_config
def test_nothing_spills_and_the_audit_passes(config: AllReduceConfig) -> None:
    manifest = default_store().get(config).manifest
    resources = manifest["resources"]
    assert resources["vgpr_spills"] == resources["sgpr_spills"] == resources["scratch_bytes"] == 0
    assert resources["vgpr"] <= 64 and resources["agpr"] == 0 and resources["lds_bytes"] == 4
    assert manifest["audit"]["verdict"] == "pass" and manifest["audit"]["declared"]


@pytest.mark.parametrize("wire", LOSSY, ids=lambda wire: wire.value)
def test_resources_stay_within_their_bounds(wire: Wire) -> None:
    resources = default_store().get(eight(wire)).manifest["resources"]
    bounds = BOUNDS[wire]
    assert {name: resources[name] for name in ("vgpr", "sgpr", "instructions") if resources[name] > bounds[name]} == {}
    lengths = [len(block) for block in data_loops(kernel_of(eight(wire)))]
    assert len(lengths) == len(bounds["loops"])
    assert all(n <= most for n, most in zip(sorted(lengths), sorted(bounds["loops"]), strict=True)), lengths


@every_config
def test_addresses_stay_scalar(config: AllReduceConfig) -> None:
    """No access to runs or packs has a vector address, and no loop picks addresses lane by lane (a waterfall)."""
    kernel = kernel_of(config)
    for block in basic_blocks(kernel):
        wide = [i for i in code(kernel, block) if "_dwordx" in i.name and i.name[:2] != "s_" and not i.has("sc1")]
        assert all(scalar_base(instruction) for instruction in wide)
        if wide:
            assert not [i for i in code(kernel, block) if i.name.startswith("v_readfirstlane")]


@every_config
def test_the_gather_loads_from_different_ranks_before_it_stores(config: AllReduceConfig) -> None:
    """All links are busy in every iteration: eight bytes of each rank, then everything is widened."""
    gathers = [
        block
        for block in data_loops(kernel_of(config))
        if sum(i.name == "buffer_store_dwordx4" for i in block) == config.world
        and any(i.name.startswith("v_cvt_pk_f32_fp8") for i in block)
    ]
    (gather,) = gathers
    runs = [i for i in gather if i.name == "global_load_dwordx2"]
    assert len({scalar_base(load) for load in runs}) == len(runs) == config.world
    loads = [i.index for i in gather if "_load_" in i.name]
    assert len(loads) == config.world * (1 if config.wire.per_row else 2)
    assert max(loads) < min(i.index for i in gather if "_store_" in i.name)


@every_config
def test_a_run_is_converted_by_pairs(config: AllReduceConfig) -> None:
    """Four instructions widen a run, four quantise it, and no element is converted alone, but for the ragged tail."""
    bodies = data_loops(kernel_of(config))
    widened = sum(i.name.startswith("v_cvt_pk_f32_fp8") for block in bodies for i in block)
    packed = sum(i.name == "v_cvt_pk_fp8_f32" for block in bodies for i in block)
    legs = 2 if config.wire.both else 1
    assert widened == 4 * config.world * legs
    assert packed == 4 + (4 * config.world if config.wire.both else 0)
