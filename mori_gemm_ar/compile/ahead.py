# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Ahead-of-time stores: a directory of code objects with a manifest, for machines without our FlyDSL."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mori_gemm_ar import __version__
from mori_gemm_ar.compile.hsaco import find_linker
from mori_gemm_ar.compile.store import MANIFEST, CodeForm, CodeObject, CodeStore, Config, source_digest
from mori_gemm_ar.errors import ConfigError

_FORMAT = 1
_COPIED = ("config", "arguments", "resources", "isa_sha256", "hsaco_sha256", "linker", "audit", "arch", "flydsl")


def build_store(
    out: Path,
    configs: Sequence[Config],
    form: CodeForm = CodeForm.HSACO,
    linker: str | os.PathLike[str] | None = None,
    report: Callable[[CodeObject], None] = lambda code: None,
) -> Path:
    """Build what `out` lacks of these configs, then write its manifest, whose path is returned.

    The manifest lists all that the directory holds of this version's sources. `report` is called after each config.
    Raises ConfigError when the directory cannot be written, MissingDependencyError without FlyDSL or a linker and
    CompileError when either fails.
    """
    chosen = find_linker(linker) if form is CodeForm.HSACO else None
    manifest = out / MANIFEST
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not manifest.exists():
            _write(manifest, [])
    except OSError as error:
        raise ConfigError(f"out={str(out)!r} must be a writable directory ({error}); name another one") from error

    def build(config: Any, form: CodeForm) -> CodeObject:
        from mori_gemm_ar.compile.build import build as build_one

        return build_one(config, form, linker=chosen)

    store = CodeStore(out, build)
    for config in configs:
        report(store.get(config, form))
        path = store.path(config)
        if path is None or not path.exists():
            raise ConfigError(f"out={str(out)!r} must keep what is written to it; is its disk full?")
        path.with_suffix(".lock").unlink(missing_ok=True)
    _write(manifest, store.held())
    return manifest


def _write(manifest: Path, codes: Sequence[CodeObject]) -> None:
    document = {
        "format": _FORMAT,
        "library": __version__,
        "sources": source_digest(),
        "entries": [_entry(code) for code in codes],
    }
    temporary = manifest.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(temporary, manifest)


def _entry(code: CodeObject) -> dict[str, Any]:
    files = {form.value: f"{code.key}.{form.value}" for form in CodeForm if code.has(form)}
    kept = {name: code.manifest.get(name) for name in _COPIED}
    return {"key": code.key, "kernel": code.kernel, "files": files, **kept}
