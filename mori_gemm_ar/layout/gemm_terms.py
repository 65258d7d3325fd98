# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Closed sets of the fp8 GEMM: recipes, layouts of B, output tiles."""

from __future__ import annotations

from enum import Enum

K_STEP = 128  # elements of K in one step of every kernel: one MFMA, and one block of the block-scale recipe
N_UNIT = 16  # columns of one MFMA; N is a multiple of it
MX_BLOCK = 32  # elements that share an e8m0 exponent, along K and for B along N too
SCALE_BLOCK = 128  # edge of a B block of the block-scale recipe
MX_ROWS = 64  # rows whose mxfp8 A scales interleave, four to a dword
SHUFFLE_K = 64  # a preshuffled B is made of 16 x 64 blocks of 1024 bytes
MAX_OUTPUT_BYTES = 2**32  # C is addressed with 32-bit offsets when it lies in a window
MAX_K = 2**22  # a tile's row offsets stay below 2^31 bytes


class Recipe(Enum):
    """How operands are scaled. C = scale * sum over k of A * B, accumulated in fp32, rounded once to bf16.

    PTPC: per token, per channel. a_scale fp32 [M], b_scale fp32 [N]; (sum over k) * (a_scale * b_scale).
    BLOCKSCALE: A in 1 x 128 blocks, B in 128 x 128 blocks. a_scale fp32 [K/128, M], b_scale fp32 [ceil(N/128), K/128];
    each K block's sum is multiplied by the product of its two scales, itself rounded to fp32, and added with one
    rounding. No quotient of scales is formed: any finite scales with a finite product work, zero included.
    MXFP8: exponents (e8m0, value 2^(e - 127), 255 is NaN), A in 1 x 32 and B in 32 x 32 blocks. a_scale uint8
    [K/32, ceil(M/64), 16, 4]: the exponent of row 64 g + 16 i + r stands at [:, g, r, i]; entries of rows past M are
    never used for a stored row. b_scale uint8 [ceil(N/32), K/32]. The hardware scales inside the product.
    """

    PTPC = "ptpc"
    BLOCKSCALE = "blockscale"
    MXFP8 = "mxfp8"


class BLayout(Enum):
    """Order of B's bytes. Nothing in a tensor tells the two apart, so the caller says which it is."""

    ROW = "row"  # [N, K], K fastest
    PRESHUFFLED = "preshuffled"  # (N/16, K/64, 4, 16, 16): aiter's shuffle_weight (16, 16), mori's preshuffle_b


SMALL_RECIPES = (Recipe.BLOCKSCALE, Recipe.MXFP8)  # those that have a kernel for few rows


class SmallRows(Enum):
    """Rows that a kernel for few rows has room for."""

    M16 = 16
    M32 = 32
    M64 = 64

    @property
    def least(self) -> int:
        """Fewest rows for which no smaller kernel has room."""
        return 1 + max((rows.value for rows in SmallRows if rows.value < self.value), default=0)


class Tile(Enum):
    """Rows and columns of C that a workgroup of eight waves computes: (tile_m, tile_n, waves along m, along n)."""

    M128_N256 = (128, 256, 2, 4)
    M256_N256 = (256, 256, 4, 2)
    M256_N128 = (256, 128, 4, 2)

    @property
    def m(self) -> int:
        """Rows."""
        return self.value[0]

    @property
    def n(self) -> int:
        """Columns."""
        return self.value[1]

    @property
    def waves_m(self) -> int:
        """Waves along M; each computes 64 rows."""
        return self.value[2]

    @property
    def waves_n(self) -> int:
        """Waves along N."""
        return self.value[3]

    @property
    def wave_n(self) -> int:
        """Columns of one wave."""
        return self.n // self.waves_n

    @property
    def label(self) -> str:
        """ "128x256"."""
        return f"{self.m}x{self.n}"


# --- quantisation of activations ---

E4M3_MAX = 448.0
E4M3_INVERSE_MAX = float.fromhex("0x1.24924ap-9")  # 1 / 448 rounded to fp32
SCALE_FLOOR = 2.0**-126  # smallest normal fp32: below it an inverse overflows
MX_EXPONENT_SHIFT = 8  # 448 = 1.75 * 2^8
MX_ROUND_UP = 0x1FFFFF  # carries into the exponent of an fp32 whose mantissa is above 1.75
MX_NAN = 255
