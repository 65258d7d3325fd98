# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What ranks do with the fused op in the tests with processes; see `process_jobs`."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import pytest
import torch.distributed as dist

from mori_gemm_ar.errors import CollectiveError
from mori_gemm_ar.integrations import mori_compat
from mori_gemm_ar.op import GemmAllReduceOp
from mori_gemm_ar.runtime import ProcessWorld
from tests.ranks.layers import FUSED_SDMA, MAIN_WAYS, K, N, create, layer
from tests.ranks.nursery import Rank, write
from tests.ranks.process_jobs import held
from tests.ranks.test_gemm_ar_outputs import Recorded
from tests.ranks.worlds import require_bits

KEPT: list[GemmAllReduceOp] = []  # until the interpreter ends


def layers(rank: Rank) -> list[str]:
    """Each way: ragged, few and no rows, a replay between them. The modes that ran."""
    rank.init()
    world, found = ProcessWorld.from_group(), []
    for way in MAIN_WAYS:
        with create(world, way, 300) as op:
            recorded = Recorded(op, (300,))
            for number, m in enumerate((300, 5, 0)):
                data = layer(rank.size, m, number)
                require_bits(op(*data.of(rank.rank)), data.expected(), way=way, m=m, rank=rank.rank)
                recorded.require(recorded.replay(number), way=way, rank=rank.rank)
            op.check()
            found.append(op.plan(300).mode.value)
            del recorded  # results keep the window
        world.barrier()
        assert held()["windows"] == 0
    return found


def layers_of_groups(rank: Rank) -> dict[str, bool]:
    """A pair first, then the whole, calls interleaved; rank 2 is not in the pair."""
    rank.init()
    pair = dist.new_group([0, 1])
    ops = {"01": create(pair, FUSED_SDMA, 256)} if rank.rank < 2 else {}
    ops["012"] = create(None, FUSED_SDMA, 384)
    for number in range(2):
        for op in ops.values():
            data = layer(op.world_size, op.m_max, number)
            require_bits(op(*data.of(op.rank)), data.expected(), world=op.world_size, rank=op.rank)
    for op in ops.values():
        op.close()
    return dict.fromkeys(ops, True)


def layers_until_failure(rank: Rank) -> None:
    """Calls for ever; writes down what ends them, and how long that took after a peer was killed. Exit code 3."""
    rank.init()
    op = create(None, FUSED_SDMA, 128 * rank.size, timeout_s=60)
    data = layer(rank.size, 128 * rank.size, 0)
    operands = data.of(rank.rank)
    start = time.monotonic()
    try:
        while True:
            start = time.monotonic()
            require_bits(op(*operands), data.expected())
            rank.mark(f"called {rank.rank}")
    except CollectiveError as error:
        write(rank.folder / f"error {rank.rank}", f"{time.monotonic() - start:.3f} {type(error).__name__}: {error}")
        op.close()
        sys.stdout.flush()
        raise SystemExit(3) from None


def layers_left_open(rank: Rank) -> bool:
    """The interpreter ends with an op that nobody closed, after its group."""
    rank.init()
    op = create(None, FUSED_SDMA, 256)
    KEPT.append(op)
    data = layer(rank.size, 256, 0)
    require_bits(op(*data.of(rank.rank)), data.expected(), rank=rank.rank)
    rank.outlive()
    dist.destroy_process_group()
    return True


@dataclass
class Communicator:
    """What the peer's code holds: of `mori.cco`, only rank and size are looked at."""

    rank: int
    nranks: int


def as_the_peer(rank: Rank) -> tuple[int, ...]:
    """Code in the peer's style over a communicator; then one whose ranks are not the group's."""
    rank.init()
    size = rank.size
    vmm = 2 * mori_compat.GemmAllReduceOp.window_bytes_for(size, m_max=300, n=N)
    with mori_compat.GemmAllReduceOp(Communicator(rank.rank, size), n=N, k=K, m_max=300) as op:
        data = layer(size, 300, 0)
        a, b, a_scale, b_scale = data.of(rank.rank)
        out = op(a, mori_compat.preshuffle_b(b), a_scale, b_scale)
        require_bits(out.clone(), data.expected(), rank=rank.rank)
        assert op.window_bytes * 2 == vmm
        place = (op.rank, op.world_size, op.m_max)
    with pytest.raises(ValueError, match="must be the rank in the default group"):
        mori_compat.GemmAllReduceOp(Communicator(1 - rank.rank, size), n=N, k=K, m_max=300)
    return place
