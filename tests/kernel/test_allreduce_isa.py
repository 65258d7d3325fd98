# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What must and must not stand in the all-reduce kernels' machine code. Nothing is executed here."""

from __future__ import annotations

from functools import cache

import pytest

from mori_gemm_ar.compile.build import build
from mori_gemm_ar.isa import BasicBlock, Instruction, Kernel, Reg, basic_blocks, parse_isa
from mori_gemm_ar.layout import AllReduceConfig, DType, Gather, Stage

CONFIGS = [
    AllReduceConfig(world, dtype, stage, gather=gather)
    for world in (2, 3, 8)
    for dtype in DType
    for stage, gather in ((Stage.ONE, Gather.INTERLEAVED), *((Stage.TWO, gather) for gather in Gather))
]
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.key)


@cache
def kernel_of(config: AllReduceConfig) -> Kernel:
    return parse_isa(build(config).isa).kernel(config.kernel_name)


def code(kernel: Kernel, block: BasicBlock) -> tuple[Instruction, ...]:
    return kernel.instructions[block.start : block.end]


def find(kernel: Kernel, name: str, *flags: str) -> list[int]:
    """Positions of an instruction with these flags."""
    return [i.index for i in kernel.instructions if i.name == name and all(i.has(flag) for flag in flags)]


def waits_for_all(instruction: Instruction) -> bool:
    return instruction.name == "s_waitcnt" and "vmcnt(0)" in instruction.text


def loops(kernel: Kernel) -> list[BasicBlock]:
    """Blocks that branch back to themselves."""
    return [block for block in basic_blocks(kernel) if block.number in block.successors]


def scalar_base(instruction: Instruction) -> str | None:
    """The scalar pair that a global access starts from; None when each lane has a 64-bit address of its own."""
    scalars = [str(o.value) for o in instruction.operands if isinstance(o.value, Reg) and o.value.file == "s"]
    return scalars[-1] if scalars else None


def wide_loads(block: tuple[Instruction, ...]) -> list[Instruction]:
    """The 16-byte loads that are not bounded: from windows, and in one stage also from the caller's input."""
    return [instruction for instruction in block if instruction.name == "global_load_dwordx4"]


ADDITIONS = {"v_add_f32": 1, "v_fma_mix_f32": 1, "v_pk_add_f32": 2, "v_pk_add_f16": 2}


def additions(block: tuple[Instruction, ...]) -> int:
    """Elements that a block adds. FlyDSL's LLVM writes a sum of two halves as an equal half addition."""
    return sum(ADDITIONS.get(instruction.name, 0) for instruction in block)


def pack_loops(kernel: Kernel) -> tuple[tuple[Instruction, ...], list[tuple[Instruction, ...]]]:
    """(the loop that sums packs, the loops that move packs), of those with unbounded 16-byte loads."""
    found = [code(kernel, block) for block in loops(kernel)]
    found = [block for block in found if wide_loads(block)]
    (summing,) = [block for block in found if additions(block)]
    return summing, [block for block in found if block is not summing]


# --- registers ---

# What amd-mori 1.2.4 takes for less: no staging, no bounded wait, no ragged tail. Its instructions: 242 and 375.
BOUNDS = {
    Stage.ONE: {"vgpr": 58, "sgpr": 52, "instructions": 345},
    Stage.TWO: {"vgpr": 62, "sgpr": 75, "instructions": 515},
}


@every_config
def test_nothing_spills(config: AllReduceConfig) -> None:
    resources = build(config).manifest["resources"]
    assert resources["vgpr_spills"] == resources["sgpr_spills"] == resources["scratch_bytes"] == 0
    assert resources["vgpr"] <= 64
    assert resources["agpr"] == 0
    assert resources["lds_bytes"] == 4


@pytest.mark.parametrize("stage", Stage)
def test_resources_stay_within_their_bounds(stage: Stage) -> None:
    resources = build(AllReduceConfig(8, DType.BF16, stage)).manifest["resources"]
    assert {name: resources[name] for name in BOUNDS[stage] if resources[name] > BOUNDS[stage][name]} == {}


@every_config
def test_addresses_of_packs_stay_scalar(config: AllReduceConfig) -> None:
    """No 16-byte access has a vector address, and no loop picks addresses lane by lane (a waterfall)."""
    kernel = kernel_of(config)
    for block in basic_blocks(kernel):
        wide = [i for i in code(kernel, block) if i.name.endswith("dwordx4") and not i.name.startswith("s_")]
        # The three stores of the error record are based on scalars too.
        assert all(scalar_base(instruction) for instruction in wide)
        if wide:
            assert not [i for i in code(kernel, block) if i.name.startswith("v_readfirstlane")]


def test_a_world_of_one_only_copies() -> None:
    kernel = kernel_of(AllReduceConfig(1, DType.FP32, Stage.ONE))
    names = {instruction.name for instruction in kernel.instructions}
    assert not names & {"s_barrier", "buffer_wbl2", "buffer_inv", "s_memrealtime", "v_pk_add_f32"}
    assert len(kernel.instructions) < 50


# --- barrier ---


@every_config
def test_the_barrier_is_in_order(config: AllReduceConfig) -> None:
    """Drain, workgroup barrier, one release, its wait, flag, poll, one acquire, workgroup barrier."""
    kernel = kernel_of(config)
    text = kernel.instructions
    (release,), (acquire,) = find(kernel, "buffer_wbl2"), find(kernel, "buffer_inv")
    first, second = find(kernel, "s_barrier")
    (flag,), (poll,) = (find(kernel, name, "sc0", "sc1") for name in ("global_store_dwordx2", "global_load_dwordx2"))
    assert text[release].has("sc0") and text[release].has("sc1")
    assert text[acquire].has("sc0") and text[acquire].has("sc1")
    assert first < release < flag < poll < acquire < second
    # Every wave drains its own stores: the wait stands in the block of the barrier, ahead of it.
    (drain,) = [block for block in basic_blocks(kernel) if block.start <= first < block.end]
    assert any(waits_for_all(i) for i in text[drain.start : first])
    # The release is waited for before anything else is done.
    assert waits_for_all(text[release + 1])


@every_config
def test_the_wait_is_a_bounded_loop_of_scoped_loads(config: AllReduceConfig) -> None:
    kernel = kernel_of(config)
    (poll,) = find(kernel, "global_load_dwordx2", "sc0", "sc1")
    (loop,) = [block for block in loops(kernel) if block.start <= poll < block.end]
    names = [instruction.name for instruction in code(kernel, loop)]
    assert "s_memrealtime" in names
    assert names[-1] == "s_cbranch_vccnz"
    # Nothing but the poll touches memory while waiting.
    assert [name for name in names if name.startswith(("global", "buffer", "ds", "flat"))] == ["global_load_dwordx2"]
    # No other loop waits for memory that a peer writes.
    assert not [i for block in loops(kernel) if block != loop for i in code(kernel, block) if i.has("sc1")]


@every_config
def test_only_the_claim_is_a_read_modify_write_and_it_is_local(config: AllReduceConfig) -> None:
    kernel = kernel_of(config)
    atomics = [i for i in kernel.instructions if "_atomic_" in i.name]
    assert [i.name for i in atomics] == ["global_atomic_cmpswap"]
    assert not atomics[0].has("sc1")


@every_config
def test_the_status_is_the_last_word_of_the_error_record(config: AllReduceConfig) -> None:
    kernel = kernel_of(config)
    (claim,) = find(kernel, "global_atomic_cmpswap")
    record = [i for i in kernel.instructions if i.name.startswith("global_store") and i.has("sc1") and i.index > claim]
    assert [(i.name, i.option("offset")) for i in record] == [
        ("global_store_dword", 32),
        ("global_store_dwordx4", 16),
        ("global_store_dwordx4", 0),
    ]
    assert all(waits_for_all(kernel.instructions[i.index + 1]) for i in record)


@every_config
def test_all_waves_pass_the_same_barriers(config: AllReduceConfig) -> None:
    """Between the two barriers only wave 0's block is skipped; no barrier stands under a lane mask."""
    kernel = kernel_of(config)
    first, second = find(kernel, "s_barrier")
    skip = kernel.instructions[first + 1]
    assert skip.name in ("s_cbranch_scc0", "s_cbranch_scc1")
    after = kernel.labels[skip.target]
    assert after <= second
    assert not [i for i in kernel.instructions[after:second] if i.name.startswith(("s_cbranch", "s_branch"))]


# --- sums and gather ---


def bases(block: tuple[Instruction, ...]) -> list[str | None]:
    return [scalar_base(load) for load in wide_loads(block)]


@every_config
def test_a_sum_loads_from_each_rank_once(config: AllReduceConfig) -> None:
    summing, _ = pack_loops(kernel_of(config))
    assert len(set(bases(summing))) == len(bases(summing)) == config.world


@pytest.mark.parametrize("world", [2, 3, 8])
def test_the_gather_loads_from_different_ranks_before_it_stores(world: int) -> None:
    _, (gather,) = pack_loops(kernel_of(AllReduceConfig(world, DType.BF16, Stage.TWO)))
    assert len(set(bases(gather))) == len(bases(gather)) == world
    stores = [instruction.index for instruction in gather if instruction.name == "buffer_store_dwordx4"]
    assert len(stores) == world
    assert max(load.index for load in wide_loads(gather)) < min(stores)


@pytest.mark.parametrize("world", [2, 3, 8])
def test_the_sequential_control_stays_with_one_rank(world: int) -> None:
    config = AllReduceConfig(world, DType.BF16, Stage.TWO, gather=Gather.SEQUENTIAL)
    _, gathers = pack_loops(kernel_of(config))
    assert [len(bases(gather)) for gather in gathers] == [1] * world


@every_config
def test_a_pack_takes_one_addition_for_each_further_rank(config: AllReduceConfig) -> None:
    """One rounding, and nothing is contracted: the mixed form multiplies by one, which is exact."""
    summing, _ = pack_loops(kernel_of(config))
    elements = 16 // config.dtype.nbytes
    assert additions(summing) == (config.world - 1) * elements
    rounds = [i for i in summing if i.name in ("v_cvt_pk_bf16_f32", "v_cvt_pk_f16_f32")]
    in_half = any(i.name == "v_pk_add_f16" for i in summing)
    assert len(rounds) == (0 if config.dtype is DType.FP32 or in_half else elements // 2)
    products = [
        i for i in kernel_of(config).instructions if i.name.startswith(("v_fma", "v_mac", "v_mul_f", "v_pk_mul"))
    ]
    assert all(i.name == "v_fma_mix_f32" and "1.0" in i.text for i in products)
