# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Launches of the kernels of one rank: the product and the quantisers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mori_gemm_ar.compile.store import CodeObject
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.gemm.arguments import FP8, Contract
from mori_gemm_ar.layout import GemmProblem, QuantizeConfig, Recipe
from mori_gemm_ar.layout.gemm import AnyGemmConfig, a_scale_shape, b_scale_shape
from mori_gemm_ar.runtime import Buffer, Launch, Pipeline, Target, kernel_of, pack_arguments

SCALE_DTYPES = {Recipe.BLOCKSCALE: torch.float32, Recipe.MXFP8: torch.uint8}


def gemm_launch(
    code: CodeObject, config: AnyGemmConfig | QuantizeConfig, addresses: Sequence[int], m: int, more: Sequence[int] = ()
) -> Launch:
    """A launch for m > 0 rows. Arguments: the addresses in the kernel's order, m, and what follows it."""
    arguments = pack_arguments(kernel_of(code).args, [*addresses, m, *more])
    threads = code.manifest["resources"]["threads"]
    return Launch(code, (config.blocks(m), 1, 1), (threads, 1, 1), arguments, config.key)


def run_kernel(
    target: Target,
    code: CodeObject,
    config: AnyGemmConfig | QuantizeConfig,
    tensors: Mapping[str, torch.Tensor],
    m: int,
) -> None:
    """Run one kernel on named tensors in the kernel's order."""
    launch = gemm_launch(code, config, [tensor.data_ptr() for tensor in tensors.values()], m)
    buffers = [Buffer(n, t.data_ptr(), t.numel() * t.element_size()) for n, t in tensors.items()]
    target.submit(Pipeline(config.key, (launch,), tuple(buffers)))
    target.settle()


def blank_rows(contract: Contract, m: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(a, a_scale) of zeros and ones on the device: what a call takes that is made for its launches only."""
    return _blank(contract, (m, contract.k), a_scale_shape(contract.recipe, m, contract.k))


def blank_weight(contract: Contract) -> tuple[torch.Tensor, torch.Tensor]:
    """(b, b_scale) of the same kind."""
    return _blank(contract, (contract.n, contract.k), b_scale_shape(contract.recipe, contract.n, contract.k))


def _blank(contract: Contract, shape: tuple[int, ...], scales: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    operand = torch.zeros(shape, dtype=torch.uint8, device=contract.device).view(FP8)
    dtype = SCALE_DTYPES.get(contract.recipe, torch.float32)
    return operand, torch.ones(scales, dtype=dtype, device=contract.device)


def quantizer_of(recipe: Recipe, k: int) -> tuple[QuantizeConfig, ...]:
    """The quantiser of a recipe, if it has one."""
    return (QuantizeConfig(recipe, k),) if recipe in SCALE_DTYPES else ()


def quantize(
    target: Target, codes: Mapping[Any, CodeObject], contract: Contract, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """bf16 [M, K] to (a, a_scale), on the device; new tensors, equal to `quantize_1x128`'s and `quantize_mxfp8`'s.

    Not for PTPC. Raises `ConfigError`.
    """
    recipe, k = contract.recipe, contract.k
    config = QuantizeConfig(recipe, k)
    if x.dtype is not torch.bfloat16 or x.ndim != 2 or x.shape[1] != k or not x.is_contiguous():
        raise ConfigError(
            f"x={tuple(x.shape)} of {x.dtype} must be contiguous (M, {k}) of torch.bfloat16; convert it first"
        )
    m = x.shape[0]
    GemmProblem(m, contract.n, k, recipe)
    a = torch.empty(m, k, dtype=FP8, device=x.device)
    scale = torch.empty(a_scale_shape(recipe, m, k), dtype=SCALE_DTYPES[recipe], device=x.device)
    if m:
        run_kernel(target, codes[config], config, {"x": x, "a": a, "a_scale": scale}, m)
    return a, scale
