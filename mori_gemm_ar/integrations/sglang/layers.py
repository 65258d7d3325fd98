# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What a layer must be for its product to be fused, read from the flags that SGLang's weight processing leaves.

Nothing in a tensor tells a shuffled weight from a plain one, so a layer without evidence stays split.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

FP8 = torch.float8_e4m3fn
BLOCK = 128  # edge of a weight block with an fp32 scale
MX_BLOCK = 32  # edge of a weight block with an exponent
_E8M0 = getattr(torch, "float8_e8m0fnu", torch.uint8)


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """What layers share an op by. n, k: of the product on one rank, whatever order the weight's bytes are in."""

    n: int
    k: int
    quant: str
    b_layout: str

    def __str__(self) -> str:
        return f"N={self.n} K={self.k} {self.quant} {self.b_layout}"


def named_layers(model: Any, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """(full name, layer) of the row-parallel layers whose name ends in one of `names`, in the model's order."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in names and hasattr(module, "reduce_results"):
            yield name, module


def shape_or_reason(layer: Any, ranks: tuple[int, ...]) -> Shape | str:
    """The layer's shape, or why it stays split. `ranks`: those of the server's tensor-parallel group."""
    return _reason_not_reduced(layer, ranks) or _operands_of(layer)[0]


def operands(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """B and its scale of a layer for which `shape_or_reason` gave a shape."""
    _, names = _operands_of(layer)
    weight, scale = (getattr(layer, name) for name in names)
    return weight.detach(), scale.detach()


def _reason_not_reduced(layer: Any, ranks: tuple[int, ...]) -> str | None:
    """Whether what follows the product is one sum over the whole tensor-parallel group, and nothing else."""
    if not getattr(layer, "reduce_results", False):
        return "reduce_results is off, the sum is somebody else's"
    if getattr(layer, "use_dp_attention_reduce", False):
        return "the sum is that of data-parallel attention"
    if tuple(getattr(getattr(layer, "tp_group", None), "ranks", ())) != ranks:
        return "its group is not the tensor-parallel group"
    if not getattr(layer, "input_is_parallel", True):
        return "its input is not split over the ranks yet"
    if getattr(layer, "bias", None) is not None:
        return "it has a bias"
    return None


def _operands_of(layer: Any) -> tuple[Shape | str, tuple[str, str]]:
    """Shape or reason, and the names of the weight and of its scale."""
    weight = getattr(layer, "weight", None)
    none = ("", "")
    if not isinstance(weight, torch.Tensor) or weight.dtype is not FP8:
        return f"its weight is {getattr(weight, 'dtype', None)}, not {FP8}", none
    n, k = getattr(layer, "output_size", None), getattr(layer, "input_size_per_partition", None)
    if tuple(weight.shape) != (n, k) or not weight.is_contiguous():
        return f"its weight {tuple(weight.shape)} is not a contiguous ({n}, {k})", none
    if getattr(weight, "_mxscale_w_scale", None) is not None:
        return "SGLANG_DSV4_DENSE_MXSCALE gives it other scales", none
    assert isinstance(n, int) and isinstance(k, int)
    if getattr(layer, "block_fp8_mxfp8_ready", False):
        return _mxfp8(layer, n, k), ("weight", "weight_scale_mx_e8m0")
    return _blockscale(layer, n, k), ("weight", "weight_scale_inv")


def _blockscale(layer: Any, n: int, k: int) -> Shape | str:
    """fp32 scales of 128 x 128 blocks."""
    reason = _reason_not_scale(layer, "weight_scale_inv", (torch.float32,), n, k, BLOCK)
    if reason is not None:
        return reason
    if getattr(layer, "aiter_bpreshuffled", False) is True:
        return Shape(n, k, "blockscale", "preshuffled")
    if getattr(layer, "keep_plain_weight_layout", False) is True:
        return Shape(n, k, "blockscale", "row")
    return "nothing tells the order of its weight: aiter_bpreshuffled and keep_plain_weight_layout are off"


def _mxfp8(layer: Any, n: int, k: int) -> Shape | str:
    """Exponents of 32 x 32 blocks, as SGLang's aiter route prepares them; the native route's lane order is not ours."""
    if getattr(layer, "mxfp8_native_ready", False):
        return "its weight is in the lane order of SGLang's native route; serve it by the aiter route"
    shuffled = getattr(layer, "mxfp8_aiter_preshuffled", None)
    if not isinstance(shuffled, bool):
        return "nothing tells the order of its weight: mxfp8_aiter_preshuffled is missing"
    reason = _reason_not_scale(layer, "weight_scale_mx_e8m0", (torch.uint8, _E8M0), n, k, MX_BLOCK)
    return reason or Shape(n, k, "mxfp8", "preshuffled" if shuffled else "row")


def _reason_not_scale(layer: Any, name: str, dtypes: tuple[torch.dtype, ...], n: int, k: int, block: int) -> str | None:
    scale, wanted = getattr(layer, name, None), (-(-n // block), k // block)
    if not isinstance(scale, torch.Tensor) or scale.dtype not in dtypes:
        return f"{name} is {getattr(scale, 'dtype', None)}, not {dtypes[0]}"
    if tuple(scale.shape) != wanted or not scale.is_contiguous():
        return f"{name} {tuple(scale.shape)} is not a contiguous {wanted}"
    return None
