# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""L6: eight waves copy tiles into a double-buffered LDS and read each other's parts; the wait at the barrier counts.

The derived bound: before a barrier hands a buffer on, at most the copies issued after the last copy into that buffer
may be in flight, here the COPIES of the next step.
"""

from __future__ import annotations

import pytest
import torch

from mori_gemm_ar.emulator import MemoryRegion, Node
from mori_gemm_ar.emulator.weak import WeakMemory
from tests.kernel.isa_builder import TinyCode, descriptor, isa_text, submit

WAVES, COPIES, STEPS = 8, 2, 6
WAVE_BYTES = 256  # one dword per lane
TILE_BYTES = WAVES * COPIES * WAVE_BYTES
SEEDS = range(6)


def _copies(step: int) -> list[str]:
    """Issue this wave's copies of one step into its buffer."""
    lines = []
    for copy in range(COPIES):
        target = step % 2 * TILE_BYTES + copy * WAVES * WAVE_BYTES
        source = step * TILE_BYTES + copy * WAVES * WAVE_BYTES
        lines += [
            f"s_add_u32 s12, s8, {target}",
            "s_mov_b32 m0, s12",
            f"s_mov_b32 s13, {source}",
            "s_nop 0",
            "buffer_load_dword v1, s[4:7], s13 offen lds",
        ]
    return lines


def _step(step: int, in_flight: int) -> list[str]:
    """Wait, hand the buffer on, read the neighbour's part of it, give it back, refill it."""
    lines = [f"s_waitcnt vmcnt({in_flight if step < STEPS - 1 else 0})", "s_barrier"]
    for copy in range(COPIES):
        offset = step % 2 * TILE_BYTES + copy * WAVES * WAVE_BYTES
        lines += [f"ds_read_b32 v4, v2 offset:{offset}", "s_waitcnt lgkmcnt(0)", "v_add_f32_e32 v3, v3, v4"]
    lines.append("s_barrier")
    return lines + (_copies(step + 2) if step + 2 < STEPS else [])


def kernel(in_flight: int) -> TinyCode:
    """Sum of all tiles' words, each wave summing its neighbour's; `in_flight` copies may be outstanding at a wait."""
    lines = [
        "s_load_dwordx4 s[4:7], s[0:1], 0x0",
        "s_load_dwordx2 s[10:11], s[0:1], 0x10",
        "v_readfirstlane_b32 s8, v0",
        "s_lshr_b32 s8, s8, 6",
        f"s_mul_i32 s8, s8, {WAVE_BYTES}",
        "v_lshlrev_b32_e32 v1, 2, v0",
        "v_add_u32_e32 v2, 64, v0",
        f"v_and_b32_e32 v2, {WAVES * 64 - 1}, v2",
        "v_lshlrev_b32_e32 v2, 2, v2",
        "v_mov_b32_e32 v3, 0",
        "s_waitcnt lgkmcnt(0)",
        *_copies(0),
        *_copies(1),
    ]
    for step in range(STEPS):
        lines += _step(step, in_flight)
    lines += ["global_store_dword v1, v3, s[10:11]", "s_endpgm"]
    return TinyCode(isa_text("\n".join(lines), (8, 8, 8), lds=2 * TILE_BYTES))


def right(in_flight: int, memory: WeakMemory | None) -> bool:
    node = Node(1, memory=memory)
    tiles = torch.randint(0, 9, (STEPS, COPIES, WAVES * 64)).float()
    result = torch.zeros(WAVES * 64)
    for name, tensor in (("tiles", tiles), ("result", result)):
        node.regions.add(MemoryRegion(name, tensor.data_ptr(), tensor.numel() * 4, 0))
    values = [*descriptor(tiles, tiles.numel() * 4), result]
    submit(node, kernel(in_flight), values, threads=WAVES * 64)
    node.run()
    return torch.equal(result, tiles.sum(dim=(0, 1)).roll(-64))


@pytest.mark.parametrize("in_flight", range(COPIES + 1))
def test_the_derived_bound_is_clean(in_flight: int) -> None:
    assert all(right(in_flight, WeakMemory(seed)) for seed in SEEDS)


@pytest.mark.parametrize("in_flight", [COPIES + 1, 2 * COPIES])
def test_one_copy_too_many_is_caught(in_flight: int) -> None:
    assert not all(right(in_flight, WeakMemory(seed)) for seed in SEEDS)


def test_functional_mode_is_blind_to_it() -> None:
    assert right(2 * COPIES, None)
