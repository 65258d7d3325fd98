# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Where the peers are: addresses and slices of all ranks in scalar registers, with the rank known at run time only."""

from __future__ import annotations

import flydsl.expr as fx

from mori_gemm_ar.kernels.device import library


class Windows:
    """The symmetric windows of all ranks: rank p's starts at base + p * stride."""

    def __init__(self, world, base, stride, rank):
        self.world = world
        self.base, self.stride, self.rank = base, stride, rank
        self.own = self.of(rank)

    def of(self, rank):
        """Address of one rank's window; `rank` may differ from lane to lane."""
        return self.base + self.stride * fx.Int64(fx.Uint32(rank))

    def in_rank_order(self, offset):
        """Addresses of `offset` in the windows of ranks 0, 1, ..."""
        # Pinned here and below: computed early, sixteen registers would be held through the barrier.
        stride = library.pin_uniform_i64(self.stride)
        addresses = [self.base + offset]
        for _ in range(self.world - 1):
            # One addition for each rank; a product with the stride would take five scalar operations.
            addresses.append(addresses[-1] + stride)
        return addresses

    def around_ring(self, offset, slice_packs):
        """(address of `offset`, first pack of the slice) of ranks rank + 1, rank + 2, ... (mod world), at last `rank`.

        Rank p's slice starts at pack p * slice_packs.
        """
        stride, rank = library.pin_uniform_i64(self.stride), fx.Int32(library.pin_uniform_u32(self.rank))
        first, here = self.base + offset, self.own + offset
        address, start = here, slice_packs * rank
        stations = []
        for distance in range(1, self.world):
            wraps = rank == self.world - distance
            address = wraps.select(first, address + stride)
            start = wraps.select(fx.Int32(0), start + slice_packs)
            stations.append((address, start))
        return [*stations, (here, slice_packs * rank)]
