# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What kind of machine this is: GPU, driver, clocks, partition mode, versions. Read from the system, never guessed."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mori_gemm_ar import __version__
from mori_gemm_ar.compile.store import flydsl_version, source_digest
from mori_gemm_ar.errors import MoriGemmArError
from mori_gemm_ar.runtime.select import distribution_version, probe

_CARD_FILES = {
    "name": "product_name",
    "compute_partition": "current_compute_partition",
    "memory_partition": "current_memory_partition",
    "clock_levels": "pp_dpm_sclk",
    "memory_clock_levels": "pp_dpm_mclk",
    "performance_level": "power_dpm_force_performance_level",
    "firmware": "vbios_version",
    "link_width": "current_link_width",
}
_AMD = "0x1002"


def machine_facts(root: Path = Path("/")) -> dict[str, Any]:
    """The host and its AMD GPUs; null for what the system does not tell. `root` is for tests."""
    offers = probe(root)
    return {
        "host_cpu": _cpu(root),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "driver": _text(root / "sys/module/amdgpu/version"),
        "offers": asdict(offers),
        "gpus": list(_cards(root)),
        "visible": {
            name: os.environ.get(name) for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "MORI_ENABLE_SDMA")
        },
    }


def version_facts() -> dict[str, Any]:
    """Versions of all that a result depends on."""
    import torch

    hip: str | None
    try:
        from mori_gemm_ar.runtime.hip import open_hip

        hip = open_hip().version()
    except MoriGemmArError:
        hip = None
    return {
        "mori_gemm_ar": __version__,
        "sources": source_digest(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_hip": getattr(torch.version, "hip", None),
        "hip_runtime": hip,
        "rocm": _text(Path(os.environ.get("ROCM_PATH", "/opt/rocm"), ".info", "version")),
        "amd_mori": distribution_version("amd-mori"),
        "flydsl": flydsl_version(),
    }


def _cards(root: Path) -> Iterator[dict[str, Any]]:
    for device in sorted((root / "sys/class/drm").glob("card*/device")):
        if _text(device / "vendor") == _AMD:
            yield {name: _text(device / file) for name, file in _CARD_FILES.items()}


def _cpu(root: Path) -> str | None:
    for line in (_text(root / "proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
