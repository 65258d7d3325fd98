# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Facts of a machine that decisions are computed from."""

from __future__ import annotations

from dataclasses import dataclass, fields

from mori_gemm_ar.layout.rules import reason_not_machine, require


@dataclass(frozen=True, slots=True)
class Machine:
    """One node of GPUs, every pair joined by one direct link. Rates and times are measured, not peak."""

    name: str
    isa: str
    compute_units: int
    xcds: int
    wave_lanes: int
    links: int  # per GPU, one to each peer
    max_world: int
    lds_bytes: int  # per compute unit
    remote_load_blocks: int  # grid at which remote loads saturate the links; more blocks only queue
    remote_fp8_blocks: int  # the same for remote loads of eight bytes per lane
    link_bytes_per_ns: int  # payload rate of one link in one direction
    copy_bytes: int  # payload of a call from which copy engines are about as fast, and leave the compute units free
    stage_ns: int  # what a second stage adds besides its bytes: release, flag and first remote load

    def __post_init__(self) -> None:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        labels = {name: values.pop(name) for name in ("name", "isa")}
        require(reason_not_machine(labels, counts=values))


MI355X = Machine(
    name="MI355X",
    isa="gfx950",
    compute_units=256,
    xcds=8,
    wave_lanes=64,
    links=7,
    max_world=8,
    lds_bytes=163840,
    # ROCm/mori `ops/gemm_ar/layout.py`, LSA_BLOCK_CAP: 286/361/583 us at 28/80/256 blocks, best 24.
    remote_load_blocks=24,
    # ROCm/mori `ops/gemm_ar`, fp8 gather by loads: 962/959/962/1138 us at 32/48/64/128 blocks, flat from 48 to 64; the
    # lower end, because the scatter leg of the same launch reads sixteen bytes per lane.
    remote_fp8_blocks=48,
    link_bytes_per_ns=59,
    # ROCm/mori pull request 662, [2048, 7168] bf16 on 8 ranks: below it the floor of 40 us against 28 us decides.
    copy_bytes=2048 * 7168 * 2,
    # ROCm/mori pull request 662, 8 ranks: two stages never take less than 28 us, one stage takes 150 us for 7.34 MB,
    # of which the link needs 124: 26 us. The two floors are 2 us apart.
    stage_ns=2000,
)
