# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Stand-ins for packages of GPU kernels and media that SGLang imports, and that no path of this test calls."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

# None fits a CPU build of torch.
ABSENT = "flash_attn flashinfer gguf sgl_kernel torch_memory_saver torchaudio torchcodec torchvision".split()


class _AnyClass(type):
    """A class whose attributes are such classes too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyClass(name, (), {})


class _AnyModule(ModuleType):
    """A module that holds whatever is imported from it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyClass(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module of the absent packages."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """A spec for a module of these packages, None for others."""
        if name.partition(".")[0] not in ABSENT:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        """An empty package."""
        module = _AnyModule(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing runs."""


def install() -> None:
    """Before sglang is imported; transformers decides first that these are missing."""
    from transformers.utils import import_utils

    for name in ABSENT:
        available = vars(import_utils).get(f"is_{name}_available")
        if callable(available):
            available()  # it keeps its answer
    sys.meta_path.insert(0, _Finder())
