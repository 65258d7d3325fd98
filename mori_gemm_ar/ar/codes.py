# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The code objects of an op: loaded when it is created, and after `freeze` no others."""

from __future__ import annotations

from typing import Any

from mori_gemm_ar.compile.store import CodeObject, default_store
from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.runtime import Target


class LoadedCodes(dict[Any, CodeObject]):
    """Code objects by config. One that is missing is compiled or loaded when it is asked for, until `freeze`."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._target = target
        self._frozen = False

    def freeze(self) -> None:
        """From now on a config that is not here is an error."""
        self._frozen = True

    def __missing__(self, config: Any) -> CodeObject:
        if self._frozen:
            raise ConfigError(f"config={config.key} must be loaded before freeze(); create the op for it, freeze later")
        code = default_store().get(config, self._target.code_form)
        self._target.load(code)
        self[config] = code
        return code
