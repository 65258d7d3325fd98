# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""A server, an attention layer and a row-parallel layer with the attributes and the split path of SGLang's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from mori_gemm_ar.gemm import preshuffle_b, quantize_1x128, quantize_mxfp8
from mori_gemm_ar.integrations.sglang.adapter import Adapter, ArmedLayer
from mori_gemm_ar.integrations.sglang.gates import Forward, Site
from mori_gemm_ar.integrations.sglang.settings import ATTRIBUTE, Seam, Settings
from mori_gemm_ar.runtime import World

N, K = 128, 128
SETTINGS = Settings(seam=Seam.LINEAR, min_m=1, max_m=24, device="emulated", vote_s=30.0)
_BLOCKS = {"blockscale": 128, "mxfp8": 32}


def weight_of(seed: int, n: int = N, k: int = K) -> torch.Tensor:
    """e4m3fn [n, k]."""
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed)).mul(0.5).to(torch.float8_e4m3fn)


class Linear(torch.nn.Module):
    """A `RowParallelLinear` after SGLang's weight processing. `group` sums its split path, by exchange."""

    def __init__(self, group: World, ranks: tuple[int, ...], quant: str = "blockscale", seed: int = 0) -> None:
        super().__init__()
        self.output_size, self.input_size_per_partition = N, K
        self.reduce_results, self.input_is_parallel = True, True
        self.use_dp_attention_reduce = self.use_decode_attn_tp = False
        self.tp_group = SimpleNamespace(ranks=list(ranks))
        self.group, self.quant = group, quant
        self.plain = weight_of(1000 * seed + group.rank)
        self.weight = torch.nn.Parameter(preshuffle_b(self.plain), requires_grad=False)
        self.register_parameter("bias", None)
        block = _BLOCKS[quant]
        generator = torch.Generator().manual_seed(seed + group.rank)
        exponents = torch.randint(124, 130, (N // block, K // block), generator=generator)
        if quant == "mxfp8":
            self.block_fp8_mxfp8_ready = self.mxfp8_aiter_preshuffled = True
            self.weight_scale_mx_e8m0 = exponents.to(torch.uint8)
        else:
            self.aiter_bpreshuffled = True
            self.weight_scale_inv = torch.exp2(exponents.float() - 127)
        self.scale = torch.exp2(exponents.float() - 127).repeat_interleave(block, 0).repeat_interleave(block, 1)
        self.splits = 0

    def forward(self, x: torch.Tensor, skip_all_reduce: bool = False) -> tuple[torch.Tensor, None]:
        """The split path: each rank's product rounded to bf16, added in fp32 in rank order."""
        self.splits += 1
        product = (dequantised(x, self.quant) @ (self.plain.float() * self.scale).t()).bfloat16()
        if skip_all_reduce:
            return product, None
        products: list[Any] = self.group.exchange("split path", product)
        return sum(part.float() for part in products).bfloat16(), None


def dequantised(x: torch.Tensor, quant: str) -> torch.Tensor:
    """What the activation is after quantisation, in fp32."""
    if quant == "blockscale":
        data, scale = quantize_1x128(x)
        return data.float() * scale.t().repeat_interleave(128, 1)
    data, packed = quantize_mxfp8(x)
    exponents = packed.permute(1, 3, 2, 0).reshape(-1, packed.shape[0])[: x.shape[0]]
    return data.float() * torch.exp2(exponents.float() - 127).repeat_interleave(32, 1)


class Attention(torch.nn.Module):
    """The part of `MQALayer` that projects."""

    def __init__(self, wo_b: Linear) -> None:
        super().__init__()
        self.wo_b = wo_b

    def _project_wo_b(self, o: Any, defer_all_reduce: bool = False) -> Any:
        out, _ = self.wo_b(o.flatten(1) if isinstance(o, torch.Tensor) else o, skip_all_reduce=defer_all_reduce)
        return out


class StandinServer:
    """A `Server` over any group."""

    version = "0.5.23"

    def __init__(self, group: World) -> None:
        self.ranks, self.rank = tuple(range(group.size)), group.rank
        self._group = group
        self.reason: str | None = None
        self.rows = 24
        self.flags = Forward()

    def group(self, timeout_s: float) -> World:
        """The group itself."""
        return self._group

    def refusal(self) -> str | None:
        """What a test has set."""
        return self.reason

    def max_rows(self) -> int:
        """What a test has set."""
        return self.rows

    def forward(self) -> Forward:
        """What a test has set."""
        return self.flags


def model_of(group: World, quants: tuple[str, ...] = ("blockscale",)) -> torch.nn.Module:
    """A tree with one attention layer for each quant, and a layer of another name."""
    ranks = tuple(range(group.size))
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(Attention(Linear(group, ranks, q, i)) for i, q in enumerate(quants))
    model.other = torch.nn.Linear(8, 8)
    return model


def rows(count: int, seed: int, rank: int) -> torch.Tensor:
    """bf16 [count, K], other data for another seed and rank."""
    return torch.randn(count, K, generator=torch.Generator().manual_seed(17 * seed + rank)).bfloat16()


def call(layer: Any, x: Any, **site: bool) -> torch.Tensor | None:
    """What the hook of a layer gets."""
    armed: ArmedLayer | None = layer.__dict__.get(ATTRIBUTE)
    return None if armed is None else armed.call(x, Site(**site))


def is_armed(model: torch.nn.Module) -> list[str]:
    """Names of armed layers."""
    return [name for name, module in model.named_modules() if ATTRIBUTE in module.__dict__]


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """relL2."""
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


__all__ = ["Adapter", "Attention", "Linear", "StandinServer", "call", "is_armed", "model_of", "relative_error", "rows"]
