# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What the caller hands to an all-reduce, checked and turned into memory that a kernel can use."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.layout import DType, rules

TORCH_DTYPES = {torch.bfloat16: DType.BF16, torch.float16: DType.FP16, torch.float32: DType.FP32}
_NAMES = ", ".join(str(d).removeprefix("torch.") for d in TORCH_DTYPES)


@dataclass(frozen=True, slots=True)
class Span:
    """A byte range."""

    start: int
    nbytes: int

    @staticmethod
    def of(tensor: torch.Tensor) -> Span:
        """Memory of a contiguous tensor."""
        return Span(tensor.data_ptr(), tensor.numel() * tensor.element_size())

    def overlaps(self, other: Span) -> bool:
        """Whether a byte belongs to both."""
        return self.start < other.start + other.nbytes and other.start < self.start + self.nbytes


@dataclass(frozen=True, slots=True)
class Operands:
    """Contiguous source and destination of one call; `copy_to` receives the destination afterwards."""

    source: torch.Tensor
    destination: torch.Tensor
    copy_to: torch.Tensor | None

    @property
    def numel(self) -> int:
        """Elements to reduce."""
        return self.source.numel()


def dtype_of(dtype: object) -> DType:
    """The element type of a torch dtype, or `ConfigError`."""
    if dtype not in TORCH_DTYPES:
        raise ConfigError(f"dtype={dtype} must be one of {_NAMES}; convert the tensor")
    return TORCH_DTYPES[dtype]  # type: ignore[index]


def check_input(x: object, max_bytes: int, device: str) -> DType:
    """Raise `ConfigError` unless `x` can be reduced; returns its dtype."""
    if not isinstance(x, torch.Tensor):
        raise ConfigError(f"x={type(x).__name__} must be a torch.Tensor")
    if x.dtype not in TORCH_DTYPES:
        raise ConfigError(f"x.dtype={x.dtype} must be one of {_NAMES}; cast it first")
    if x.device != torch.device(device):
        raise ConfigError(f"x.device={x.device} must be {device}, where this op runs; move the tensor first")
    if x.layout is not torch.strided:
        raise ConfigError(f"x.layout={x.layout} must be torch.strided; call x.to_dense() first")
    rules.require(rules.reason_not_fitting(x.numel() * x.element_size(), max_bytes))
    return TORCH_DTYPES[x.dtype]


def check_output(out: object, x: torch.Tensor) -> None:
    """Raise `ConfigError` unless `out` can take the sum of `x`."""
    if not isinstance(out, torch.Tensor):
        raise ConfigError(f"out={type(out).__name__} must be a torch.Tensor or None")
    for name in ("shape", "dtype", "device"):
        mine, theirs = getattr(out, name), getattr(x, name)
        if mine != theirs:
            raise ConfigError(f"out.{name}={mine} must equal x.{name}={theirs}")
    # Elements that share memory cannot each hold their own sum.
    if any(stride == 0 and size > 1 for stride, size in zip(out.stride(), out.shape, strict=True)):
        raise ConfigError(f"out.stride={out.stride()} must not be expanded; pass a tensor with memory of its own")
    if out.requires_grad:
        raise ConfigError("out.requires_grad=True must be False; the sum is written outside autograd")


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether memory holds the elements in order and as they are: `conj().imag` is a lazily negated view."""
    return tensor.is_contiguous() and not tensor.is_neg()


def prepare(x: torch.Tensor, out: torch.Tensor | None, window: Span, input_start: int, *, copies: bool) -> Operands:
    """Contiguous operands for the kernel.

    Copies are made where the kernel cannot work in place: strided tensors, parts of the window that peers may be
    reading, and an `out` that overlaps `x` at another place. With `copies=False` (recording on a target that does not
    record host copies) these raise `ConfigError`.
    """

    def refuse(name: str, why: str) -> None:
        if not copies:
            raise ConfigError(
                f"{name} {why}, which needs a copy that a recording does not hold; pass a contiguous tensor"
            )

    source = x.detach()
    if not _is_plain(source):
        refuse("x", "must be contiguous")
        source = source.contiguous().resolve_neg()
    target = torch.empty_like(source) if out is None else out.detach()
    destination, copy_to = target, None
    if not _is_plain(target):
        refuse("out", "must be contiguous")
        destination, copy_to = torch.empty_like(source), target
    for name, tensor in (("x", source), ("out", destination)):
        span = Span.of(tensor)
        if not span.overlaps(window) or span.start == input_start:
            continue
        refuse(name, "must be the whole window buffer or lie outside the window")
        if name == "x":
            source = source.clone()
        else:
            destination, copy_to = torch.empty_like(source), target
    first, second = Span.of(source), Span.of(destination)
    if first.start != second.start and first.overlaps(second):
        refuse("out", "must be x itself or not overlap it")
        source = source.clone()
    return Operands(source, destination, copy_to)
