# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The ops as torch operators, so that `torch.compile` and graphs see them; importing this module defines them.

    mori_gemm_ar::all_reduce(Tensor x, Tensor(a!) out, str op_name) -> ()
    mori_gemm_ar::gemm_all_reduce(Tensor a, Tensor b, Tensor a_scale, Tensor b_scale, Tensor(a!) out, str op_name) -> ()

The result is an argument that is written, also where it lies in the window: a compiler then keeps every launch and
their order. A schema that returned a view of the window would let it read one result after the next call wrote it.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
import torch.fx

from mori_gemm_ar.ar import AllReduceOp
from mori_gemm_ar.errors import ClosedError, ConfigError
from mori_gemm_ar.op import GemmAllReduceOp

NAMESPACE = "mori_gemm_ar"
# Operands keep the strides that the caller gave them: a block scale is K block by K block, and says so by its strides.
_TAGS = tuple(getattr(torch.Tag, name) for name in ("needs_exact_strides",) if hasattr(torch.Tag, name))
_KEYS = ("CPU", "CUDA")  # the emulated target's tensors, and those of ROCm builds of torch


class Kind(Enum):
    """Which operator a registered op serves, by its schema's name."""

    ALL_REDUCE = "all_reduce"
    GEMM_ALL_REDUCE = "gemm_all_reduce"


_SCHEMAS = {
    Kind.ALL_REDUCE: "(Tensor x, Tensor(a!) out, str op_name) -> ()",
    Kind.GEMM_ALL_REDUCE: "(Tensor a, Tensor b, Tensor a_scale, Tensor b_scale, Tensor(a!) out, str op_name) -> ()",
}
_OPS: dict[Kind, dict[str, Any]] = {kind: {} for kind in Kind}


# ---- names -------------------------------------------------------------------------------------------------------
def register_op(name: str, op: Any) -> str:
    """Let the operators find an op by name; returns the name. Not collective.

    op: an open `AllReduceOp` or `GemmAllReduceOp`. It is kept alive until `unregister_op`; closing stays with whoever
    made it. Compiled code holds the name, so the op of a name may be replaced once the former one is closed or
    unregistered. Raises `ConfigError` for another object, an empty name or one that an open op has, `ClosedError` for
    a closed op.
    """
    kind = _kind_of(op)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"name={name!r} must be a text that is not empty")
    op.require_open()
    holder = _OPS[kind].get(name)
    if holder is not None and holder is not op and not holder.closed:
        raise ConfigError(f"name={name!r} must be free; unregister_op({name!r}) first, or choose another name")
    _OPS[kind][name] = op
    return name


def unregister_op(name: str) -> None:
    """Forget a name, of either operator. Raises `ConfigError` when there is none such."""
    held = [ops for ops in _OPS.values() if name in ops]
    if not held:
        raise ConfigError(f"name={name!r} must be registered; {_known()}")
    for ops in held:
        del ops[name]


def registered_ops() -> dict[str, tuple[str, ...]]:
    """Names by operator."""
    return {kind.value: tuple(ops) for kind, ops in _OPS.items()}


def _kind_of(op: Any) -> Kind:
    if isinstance(op, AllReduceOp):
        return Kind.ALL_REDUCE
    if isinstance(op, GemmAllReduceOp):
        return Kind.GEMM_ALL_REDUCE
    raise ConfigError(f"op={type(op).__name__} must be an AllReduceOp or a GemmAllReduceOp; create one")


def _known() -> str:
    names = [f"{name!r} ({kind.value})" for kind, ops in _OPS.items() for name in ops]
    return "there are " + ", ".join(names) if names else "there is none, see register_op"


def _op_named(kind: Kind, name: str) -> Any:
    op = _OPS[kind].get(name)
    if op is None:
        raise ConfigError(f"op_name={name!r} must be registered for {NAMESPACE}::{kind.value}; {_known()}")
    if op.closed:
        raise ClosedError(f"op_name={name!r} must be open; register_op({name!r}, ...) with a new op")
    return op


# ---- operators ---------------------------------------------------------------------------------------------------
def _all_reduce(x: torch.Tensor, out: torch.Tensor, op_name: str) -> None:
    _op_named(Kind.ALL_REDUCE, op_name)(x, out=out)


def _gemm_all_reduce(
    a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor, out: torch.Tensor, op_name: str
) -> None:
    _op_named(Kind.GEMM_ALL_REDUCE, op_name)(a, b, a_scale, b_scale, out=out)


def _shape_only(*arguments: Any) -> None:
    """What a trace runs instead: the operators return nothing and change no shape."""


def _define() -> torch.library.Library:
    library = torch.library.Library(NAMESPACE, "DEF")
    for kind, body in ((Kind.ALL_REDUCE, _all_reduce), (Kind.GEMM_ALL_REDUCE, _gemm_all_reduce)):
        library.define(kind.value + _SCHEMAS[kind], tags=_TAGS)
        for key in _KEYS:
            library.impl(kind.value, body, key)
        torch.library.register_fake(f"{NAMESPACE}::{kind.value}", _shape_only, lib=library)
        # A launch whose result nobody reads still is half of what its peers wait for.
        torch.fx.has_side_effect(getattr(getattr(torch.ops, NAMESPACE), kind.value).default)
    return library


_LIBRARY = _define()  # the definitions live as long as this object


# ---- for callers without a tensor to write to --------------------------------------------------------------------
def all_reduce(x: torch.Tensor, *, op_name: str, out: torch.Tensor | None = None) -> torch.Tensor:
    """Sum of `x` over all ranks by the op of that name, in `out` or a new tensor; may be compiled."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    torch.ops.mori_gemm_ar.all_reduce(x, out, op_name)
    return out


def gemm_all_reduce(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    *,
    op_name: str,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sum over all ranks of A B^T, [M, N] bf16, by the op of that name; may be compiled. See `GemmAllReduceOp`.

    out: where it is written; `op.output(m)` costs no copy and is written again by the call after the next. None: a new
    tensor.
    """
    out = a.new_empty((a.shape[0], b.shape[0]), dtype=torch.bfloat16) if out is None else out
    torch.ops.mori_gemm_ar.gemm_all_reduce(a, b, a_scale, b_scale, out, op_name)
    return out
