# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""docs/api.md is what the docstrings say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from mori_gemm_ar.ar import AllReduceOp

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def make_api() -> ModuleType:
    """The script."""
    spec = importlib.util.spec_from_file_location("make_api", ROOT / "docs" / "make_api.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_api_page_is_up_to_date(make_api: ModuleType) -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert page == make_api.page(), "docs/api.md must be what docstrings say; run: python docs/make_api.py"


def test_api_page_would_notice(make_api: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another text of a method, and another default of an argument."""
    page = make_api.page()
    monkeypatch.setattr(AllReduceOp.buffer, "__doc__", "Another text.")
    assert "Another text." in make_api.page() != page
    monkeypatch.undo()
    monkeypatch.setattr(AllReduceOp.create.__func__, "__kwdefaults__", {"device": "nowhere"})
    assert "device: str = 'nowhere'" in make_api.page()


def test_api_page_documents_everything_it_names(make_api: ModuleType) -> None:
    """No entry is without a text."""
    for entry in make_api.page().split("\n### ")[1:]:
        name, _, rest = entry.partition("\n")
        words = [line for line in rest.splitlines() if line and not line.startswith(("```", "#", " "))]
        assert words, f"{name} must have a docstring"
