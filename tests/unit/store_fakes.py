# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Configs and builders for tests of the store: no compiler, but they count."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mori_gemm_ar.compile import store as store_module
from mori_gemm_ar.compile.hsaco import hsaco_digest
from mori_gemm_ar.compile.store import CodeForm, CodeObject, content_key, isa_digest
from mori_gemm_ar.errors import CacheWarning


@dataclass(frozen=True)
class FakeConfig:
    key: str = "fake_w4"


def fake_build(config: FakeConfig, form: CodeForm = CodeForm.ISA) -> CodeObject:
    isa = f"\t; code of {config.key}\n\ts_endpgm\n" * 20
    manifest = {"isa_sha256": isa_digest(isa), "flydsl": store_module.flydsl_version(), "text": 'ü "\\'}
    if form is CodeForm.ISA:
        return CodeObject(content_key(config.key), config.key, isa, manifest)
    hsaco = f"\x7fELF of {config.key}".encode()
    return CodeObject(content_key(config.key), config.key, isa, manifest | {"hsaco_sha256": hsaco_digest(hsaco)}, hsaco)


class Builder:
    """Counts; each build takes `seconds`."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.calls: list[str] = []
        self.seconds = seconds

    def __call__(self, config: FakeConfig, form: CodeForm = CodeForm.ISA) -> CodeObject:
        self.calls.append(config.key)
        time.sleep(self.seconds)
        return fake_build(config, form)


class LoggingBuilder:
    """Appends a line for each build to a file that all processes share."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __call__(self, config: FakeConfig, form: CodeForm = CodeForm.ISA) -> CodeObject:
        with self.log.open("a") as file:
            file.write(f"{config.key}\n")
        time.sleep(0.05)
        return fake_build(config, form)


@contextmanager
def one_cache_warning(*texts: str) -> Iterator[None]:
    """Exactly one CacheWarning is given, and it contains these texts."""
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        yield
    assert [warning.category for warning in record] == [CacheWarning]
    for text in texts:
        assert text in str(record[0].message)
