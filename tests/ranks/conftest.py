# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Fixtures of the tests of several ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ranks.processes import Launcher


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    """Starts ranks as processes; one for all tests of this test process."""
    started = Launcher()
    yield started
    started.close()
