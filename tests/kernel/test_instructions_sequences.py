# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Many instructions in one kernel give what they give one at a time.

The tables check single instructions; this checks what the translator keeps between them: lane masks, constants,
temporaries, the execution mask, and copies of registers when waves are no slice of the register file.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernel import table_float, table_integer, table_packed, table_scalar
from tests.kernel.instruction_check import partial_exec
from tests.kernel.instructions import EXEC, State, execute

LENGTH = 40
TEXTS = [
    row.name + form
    for table in (table_scalar, table_integer, table_float, table_packed)
    for rows in (getattr(table, "ROWS", []), getattr(table, "COMPARE_ROWS", []))
    for row in rows
    for form in row.forms
    if " a" not in form
]
LANE_MOVES = [
    "v_mov_b32_dpp v12, v1 row_shr:1 row_mask:0xf bank_mask:0xf",
         "v_add_u32_dpp v5, v8, v5 quad_perm:[1,0,3,2] row_mask:0xa bank_mask:0xf",
    "ds_swizzle_b32 v8, v12 offset:swizzle(SWAP,1)", "v_readfirstlane_b32 s3, v12", "v_readlane_b32 s5, v1, 7",
         "v_writelane_b32 v5, s3, 9",
    "v_swap_b32 v1, v8", "v_permlane32_swap_b32_e32 v5, v12",
]  # fmt: skip


def same(first: State, second: State) -> list[str]:
    """Differences apart from the sign and payload of NaNs, which depend on how NumPy orders its operands."""
    for state in (first, second):
        bits = state.v & np.uint32(0x7FFFFFFF)
        state.v[bits > 0x7F800000] = 0x7FC00000
    return first.differences(second)


@pytest.mark.parametrize("seed", range(24))
def test_random_program(seed):
    rng = np.random.default_rng(seed)
    texts = [str(rng.choice(LANE_MOVES if rng.random() < 0.1 else TEXTS)) for _ in range(LENGTH)]
    before = State.random(rng, 4)
    if seed % 2:
        before.set_pair(EXEC, partial_exec(rng, 4))
    want = before
    for text in texts:
        want = execute(text, want)
    got = execute("\n".join(texts), before, sparse=seed % 4 > 1)
    assert same(want, got)[:3] == [], "\n".join(texts)
