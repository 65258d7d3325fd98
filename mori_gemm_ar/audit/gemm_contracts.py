# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What the GEMMs and the quantisers declare."""

from __future__ import annotations

import re
from typing import Any

from mori_gemm_ar.audit.contract import (
    AGENT_LOOK,
    ARRIVAL,
    BESIDE_GEMM,
    CLAIM,
    MAX_SGPR,
    PUT_SCOPED,
    PUT_STORES,
    RECORD,
    SIGNAL_STORES,
    KernelContract,
    Posts,
    Publish,
    Spelling,
    counted,
)
from mori_gemm_ar.audit.policies import Policy

_GEMM_WAVES = 8
_BESIDE_REDUCE = 192  # vector registers of two GEMM waves that leave room for waves of 64 on a SIMD: 2 x 192 + 128
_ALL_VGPRS = 256  # at two waves per SIMD
_PACK_STORE = Spelling("buffer_store_dwordx4")
_LOCAL: dict[str, Any] = {"releases": 0, "polls": (), "scoped": (), "max_sgpr": MAX_SGPR}  # nobody else waits for it
_PEER_TILES = {
    ("blockscale", 128, 256): "GEMM blockscale 128x256",
    ("ptpc", 128, 256): "GEMM ptpc 128x256",
    ("ptpc", 256, 256): "GEMM ptpc 256x256",
    ("mxfp8", 256, 256): "GEMM mxfp8 256x256",
    ("mxfp8", 256, 128): "GEMM mxfp8 256x128 (narrow)",
}


def gemm_contract(name: str, recipe: str, rows: int, columns: int) -> KernelContract:
    """The tiled GEMM: C leaves in packs of 16 bytes, each thread storing its share of a tile of bf16."""
    tiles = rows * columns // 256 // _GEMM_WAVES  # of 16 x 16, for each wave: one matrix operation per 128 of K
    return KernelContract(
        name,
        waves=_GEMM_WAVES,
        max_vgpr=_ALL_VGPRS if rows == columns else _BESIDE_REDUCE,
        stores=((_PACK_STORE, rows * columns * 2 // (_GEMM_WAVES * 64 * 16)),),
        mfma_per_k_step=tiles,
        peer_row=_PEER_TILES.get((recipe, rows, columns), ""),
        **_LOCAL,
    )


def fused_contract(name: str, push: str, gemm: KernelContract, variant: str = "") -> KernelContract:
    """The GEMM that sends its tiles. Pushed by SDMA: the workgroup releases by its counter, whose last arriver puts a
    chunk. By LSA: it releases at system scope what it stored to the owner, and the next kernel tells the owner.

    variant: "signals", the engine tells the owner of each chunk; "fp8both", each pack leaves as codes and a scale.
    """
    assert gemm.stores is not None
    packs = gemm.stores[0][1]
    narrow = ((Spelling("buffer_store_dwordx2"), packs), (Spelling("buffer_store_byte"), packs))
    tiles = narrow if variant == "fp8both" else gemm.stores
    signals = SIGNAL_STORES if variant == "signals" else ()
    common: dict[str, Any] = {
        "waves": gemm.waves, "max_vgpr": gemm.max_vgpr, "max_sgpr": MAX_SGPR, "mfma_per_k_step": gemm.mfma_per_k_step,
        "releases": 1, "polls": (),
    }  # fmt: skip
    if push == "lsa":
        scoped = ((Spelling("buffer_wbl2", Policy.SYSTEM), 1),)
        return KernelContract(name, **common, ends=Policy.SYSTEM, posts=Posts(0), scoped=scoped, stores=gemm.stores)
    return KernelContract(
        name,
        **common,
        publishes=(Publish(ARRIVAL, release=Policy.SC1, acquire=Policy.SC1),),
        posts=Posts(1, Policy.SC1),
        # The claim, and the epoch for the record of a failure.
        scoped=counted(
            (ARRIVAL, 1), (Spelling("buffer_wbl2", Policy.SC1), 1), (Spelling("buffer_inv", Policy.SC1), 1),
            (AGENT_LOOK, 2), *PUT_SCOPED, (CLAIM, 1), *RECORD,
        ),
        stores=counted(*tiles, *PUT_STORES, *signals, *RECORD),
    )  # fmt: skip


def small_gemm_contract(name: str, rows: int) -> KernelContract:
    """The GEMM for few rows: eight waves share K, each holding all rows of 16 columns."""
    return KernelContract(
        name, waves=_GEMM_WAVES, max_vgpr=128, stores=((_PACK_STORE, 1),), mfma_per_k_step=rows // 16, **_LOCAL
    )


def quantize_contract(name: str, recipe: str) -> KernelContract:
    """The quantisers: 8 bytes of fp8 for each lane, and a scale of fp32 or E8M0."""
    scale = Spelling("buffer_store_byte" if recipe == "mxfp8" else "buffer_store_dword")
    stores = ((Spelling("buffer_store_dwordx2"), 1), (scale, 1))
    return KernelContract(name, waves=4, max_vgpr=BESIDE_GEMM, stores=stores, lds_bytes=0, **_LOCAL)


GEMM_NAME = re.compile(r"^gemm_(ptpc|blockscale|mxfp8)_(\d+)x(\d+)_n\d+_k\d+_\w+$")
FUSED_NAME = re.compile(r"^fused_(sdma|lsa)_w[2-8](?:_s\d+)?(?:_(signals|fp8both))?_(gemm_\w+)$")
SMALL_NAME = re.compile(r"^gemm_small_\w+_m(\d+)_n\d+_k\d+_\w+$")
QUANTIZE_NAME = re.compile(r"^quantize_(blockscale|mxfp8)_k\d+$")


def gemm_of(config: Any) -> KernelContract:
    """Of a `GemmConfig`."""
    return gemm_contract(config.kernel_name, config.recipe.value, config.tile.m, config.tile.n)


def gemm_named(match: re.Match[str]) -> KernelContract:
    """Of a match of `GEMM_NAME`."""
    return gemm_contract(match[0], match[1], int(match[2]), int(match[3]))


def fused_of(config: Any) -> KernelContract:
    """Of a `FusedConfig`."""
    variant = "signals" if config.signals else config.wire.label if config.wire.lossy else ""
    return fused_contract(config.kernel_name, config.push.value, gemm_of(config.gemm), variant)


def fused_named(match: re.Match[str]) -> KernelContract | None:
    """Of a match of `FUSED_NAME`; None if what it multiplies with is none of ours."""
    gemm = GEMM_NAME.match(match[3])
    return fused_contract(match[0], match[1], gemm_named(gemm), match[2] or "") if gemm else None
