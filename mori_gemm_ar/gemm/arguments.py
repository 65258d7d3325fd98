# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What the caller hands to a GEMM, checked before anything is launched. A byte view is taken after the checks only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import torch

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout.gemm import a_scale_shape, b_scale_shape
from mori_gemm_ar.layout.gemm_terms import Recipe

FP8 = torch.float8_e4m3fn
ALIGNMENT = 16  # bytes: one lane's access
E8M0 = getattr(torch, "float8_e8m0fnu", None)
_EXPONENTS = (torch.uint8,) if E8M0 is None else (torch.uint8, E8M0)
_FNUZ = "its values are not those of e4m3fn (a byte means twice as much); quantise anew"
Member = TypeVar("Member", bound=Enum)


def member_of(name: str, value: object, kind: type[Member]) -> Member:
    """A member of an enum, given as itself or by its value; `ConfigError` for anything else, also near misses."""
    if isinstance(value, kind):
        return value
    for member in kind:
        if isinstance(value, str) and value == member.value:
            return member
    raise ConfigError(f"{name}={value!r} must be one of {', '.join(repr(member.value) for member in kind)}")


@dataclass(frozen=True, slots=True)
class Contract:
    """What the operands of one op must look like."""

    recipe: Recipe
    n: int
    k: int
    device: str

    def check(self, a: object, b: object, a_scale: object, b_scale: object) -> int:
        """Raise `ConfigError` naming the operand that breaks the contract; returns M."""
        rows = self._matrix("a", a, None, self.k)
        self._matrix("b", b, self.n, self.k)
        self._a_scale(a_scale, rows)
        self._b_scale(b_scale)
        return rows

    def check_out(self, out: object, m: int, operands: tuple[torch.Tensor, ...]) -> None:
        """Raise `ConfigError` unless C can be written to `out`."""
        tensor = self._tensor("out", out)
        if tensor.dtype is not torch.bfloat16 or tuple(tensor.shape) != (m, self.n):
            raise ConfigError(
                f"out={tuple(tensor.shape)} of {tensor.dtype} must be ({m}, {self.n}) of torch.bfloat16; "
                f"leave it out to get a new tensor"
            )
        self._plain("out", tensor)
        if tensor.requires_grad:
            raise ConfigError("out.requires_grad=True must be False; the product is written outside autograd")
        start, end = _span(tensor)
        for operand in operands:
            first, last = _span(operand)
            if start < last and first < end:
                raise ConfigError("out must not overlap an operand; give it memory of its own")

    # ---- operands --------------------------------------------------------------------------------------------
    def _tensor(self, name: str, value: object) -> torch.Tensor:
        if not isinstance(value, torch.Tensor):
            raise ConfigError(f"{name}={type(value).__name__} must be a torch.Tensor")
        device = str(value.device) if ":" in self.device else value.device.type
        if device != self.device:
            raise ConfigError(f"{name}.device={value.device} must be {self.device}, where this op runs; move it first")
        return value

    def _plain(self, name: str, tensor: torch.Tensor) -> None:
        if not tensor.is_contiguous():
            raise ConfigError(f"{name}.stride={tuple(tensor.stride())} must be contiguous; call .contiguous() first")
        if tensor.data_ptr() % ALIGNMENT:
            raise ConfigError(
                f"{name}.data_ptr={tensor.data_ptr():#x} must be {ALIGNMENT}-byte aligned; clone it first"
            )

    def _matrix(self, name: str, value: object, rows: int | None, columns: int) -> int:
        tensor = self._tensor(name, value)
        if tensor.dtype is not FP8:
            way_out = _FNUZ if "fnuz" in str(tensor.dtype) else "quantise it first"
            raise ConfigError(f"{name}.dtype={tensor.dtype} must be {FP8}; {way_out}")
        wanted = (rows if rows is not None else "M", columns)
        if tensor.ndim != 2 or tensor.shape[1] != columns or (rows is not None and tensor.shape[0] != rows):
            raise ConfigError(f"{name}.shape={tuple(tensor.shape)} must be {wanted}; the op was created for it")
        self._plain(name, tensor)
        return tensor.shape[0]

    def _scale_dtype(self, name: str, tensor: torch.Tensor) -> None:
        allowed = _EXPONENTS if self.recipe is Recipe.MXFP8 else (torch.float32,)
        if tensor.dtype not in allowed:
            names = " or ".join(map(str, allowed))
            raise ConfigError(
                f"{name}.dtype={tensor.dtype} must be {names} for quant={self.recipe.value!r}; convert it"
            )

    def _a_scale(self, value: object, m: int) -> None:
        tensor = self._tensor("a_scale", value)
        self._scale_dtype("a_scale", tensor)
        shape = tuple(tensor.shape)
        wanted = a_scale_shape(self.recipe, m, self.k)
        if self.recipe is Recipe.BLOCKSCALE:
            self._block_scale_order(tensor, m, wanted[0])
            return
        if shape != wanted and not (self.recipe is Recipe.PTPC and shape == (m, 1)):
            way_out = "use pack_a_exponents" if self.recipe is Recipe.MXFP8 else "give one scale for each row"
            raise ConfigError(f"a_scale.shape={shape} must be {wanted}; {way_out}")
        self._plain_scale("a_scale", tensor)

    def _block_scale_order(self, tensor: torch.Tensor, m: int, blocks: int) -> None:
        """Physical order is K block, then row; metadata that could mean either order is refused."""
        shape, way_out = tuple(tensor.shape), "pass the flat physical order, K block by K block"
        k_major, row_major = (blocks, m), (m, blocks)
        if shape == (blocks * m,) or (shape == k_major and (shape != row_major or 1 in shape)):
            self._plain_scale("a_scale", tensor)
        elif shape == row_major:
            # The stride of an extent of one says nothing.
            strides = [s if extent > 1 else w for s, extent, w in zip(tensor.stride(), shape, (1, m), strict=True)]
            if strides != [1, m]:
                if shape == k_major:
                    readings = f"{k_major} K block by K block or {row_major} row by row"
                    raise ConfigError(f"a_scale.shape={shape} must not be square, it could be {readings}; {way_out}")
                raise ConfigError(
                    f"a_scale.stride={tuple(tensor.stride())} of [M, K/128] must be (1, {m}): row by row is one "
                    f"reading of these bytes, K block by K block the other; pass a_scale.t().contiguous() if it is "
                    f"row by row, or {way_out}"
                )
        else:
            raise ConfigError(
                f"a_scale.shape={shape} must be {k_major}, flat ({blocks * m},) or {row_major}; {way_out}"
            )

    def _b_scale(self, value: object) -> None:
        tensor = self._tensor("b_scale", value)
        self._scale_dtype("b_scale", tensor)
        shape, wanted = tuple(tensor.shape), b_scale_shape(self.recipe, self.n, self.k)
        if shape != wanted and not (self.recipe is Recipe.PTPC and shape in ((self.n, 1), (1, self.n))):
            raise ConfigError(f"b_scale.shape={shape} must be {wanted} for quant={self.recipe.value!r}; check a swap")
        self._plain_scale("b_scale", tensor)

    def _plain_scale(self, name: str, tensor: torch.Tensor) -> None:
        if not tensor.is_contiguous():
            raise ConfigError(f"{name}.stride={tuple(tensor.stride())} must be contiguous; call .contiguous() first")
        if tensor.data_ptr() % 4:
            raise ConfigError(f"{name}.data_ptr={tensor.data_ptr():#x} must be 4-byte aligned; clone it first")


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte of a contiguous tensor, and the one past its last."""
    start = tensor.data_ptr()
    return start, start + tensor.numel() * tensor.element_size()
