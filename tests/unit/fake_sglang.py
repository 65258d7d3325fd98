# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""A package `sglang` with what the plugin hooks, named and shaped as in 0.5.23, for tests where it is not installed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from types import ModuleType
from typing import Any


class HookType(Enum):
    """Kinds of hooks."""

    AFTER = "after"
    AROUND = "around"


class MQALayer:
    """Projects through a layer."""

    def __init__(self, wo_b: Any) -> None:
        self.wo_b = wo_b

    def _project_wo_b(self, o: Any, defer_all_reduce: bool = False) -> Any:
        return ("split", o, defer_all_reduce)


class RowParallelLinear:
    """A layer."""

    def forward(
        self, input_: Any, skip_all_reduce: Any = False, forward_batch: Any = None, output_tensor: Any = None
    ) -> Any:
        """The split path."""
        return ("split", input_, skip_all_reduce, forward_batch, output_tensor), None


class Fp8LinearMethod:
    """A quantisation method."""

    def process_weights_after_loading(self, layer: Any) -> None:
        """Does nothing."""


class ModelRunner:
    """Loads a model."""

    is_draft_worker = False

    def load_model(self) -> None:
        """The model is its own name."""
        self.model = "model"


def wrapped(original: Callable[..., Any], hook: Callable[..., Any], kind: HookType) -> Callable[..., Any]:
    """As SGLang wraps."""

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if kind is HookType.AROUND:
            return hook(original, *args, **kwargs)
        result = original(*args, **kwargs)
        changed = hook(result, *args, **kwargs)
        return result if changed is None else changed

    return wrapper


_PLACES = {
    "sglang.srt.models.deepseek_v4": MQALayer,
    "sglang.srt.layers.linear": RowParallelLinear,
    "sglang.srt.layers.quantization.fp8": Fp8LinearMethod,
    "sglang.srt.model_executor.model_runner": ModelRunner,
}


@contextmanager
def fake_sglang() -> Iterator[dict[str, tuple[Callable[..., Any], HookType]]]:
    """Puts the package in place; yields what gets registered, by target. `apply` patches."""
    registered: dict[str, tuple[Callable[..., Any], HookType]] = {}
    registry = type("HookRegistry", (), {"register": staticmethod(lambda t, h, k: registered.update({t: (h, k)}))})
    names = [*_PLACES, "sglang.srt.plugins.hook_registry"]
    packages = {".".join(name.split(".")[:end]) for name in names for end in range(1, len(name.split(".")) + 1)}
    saved = {name: sys.modules.get(name) for name in packages}
    for name in sorted(packages):
        module = sys.modules[name] = ModuleType(name)
        module.__path__ = []
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], leaf, module)
    for name, original in _PLACES.items():
        # A copy, so that patches do not stay.
        own = {key: value for key, value in vars(original).items() if key not in ("__dict__", "__weakref__")}
        copy = type(original.__name__, (), own)
        setattr(sys.modules[name], original.__name__, copy)
    vars(sys.modules[names[-1]]).update(HookRegistry=registry, HookType=HookType)
    try:
        yield registered
    finally:
        for name, module_or_none in saved.items():
            if module_or_none is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module_or_none


def class_of(target: str) -> Any:
    """The class that a target's method belongs to."""
    module, name = target.rsplit(".", 2)[:2]
    return getattr(sys.modules[module], name)


def apply(registered: dict[str, tuple[Callable[..., Any], HookType]], but: str = "") -> None:
    """Patch all targets but one, as SGLang does when one fails."""
    for target, (hook, kind) in registered.items():
        if target != but:
            owner, name = class_of(target), target.rpartition(".")[2]
            setattr(owner, name, wrapped(getattr(owner, name), hook, kind))
