# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Which target runs: what a machine offers, the rule, and the vote. A GPU is never silently replaced by emulation."""

from __future__ import annotations

import enum
import importlib.metadata
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mori_gemm_ar.errors import ConfigError, MissingDependencyError
from mori_gemm_ar.isa.text import TARGET
from mori_gemm_ar.runtime.cco import DISTRIBUTION, MINIMUM_VERSION
from mori_gemm_ar.runtime.group import Group, agree, require_equal
from mori_gemm_ar.runtime.target import Target

_TOPOLOGY = "sys/class/kfd/kfd/topology/nodes"
_DRIVER = "dev/kfd"
_DEVICES = ("auto", "rocm", "emulated")


class DeviceKind(enum.Enum):
    """A target, by the name that `device=` takes."""

    ROCM = "rocm"
    EMULATED = "emulated"


@dataclass(frozen=True, slots=True)
class Offers:
    """What this machine and this Python offer, each found without starting a GPU."""

    gpus: tuple[str, ...] = ()  # architectures of the AMD GPUs that the driver shows
    driver: str | None = None  # why this process cannot open the driver
    torch_hip: str | None = None  # HIP version that torch was built for
    torch_gpus: int = 0  # devices that torch shows, after HIP_VISIBLE_DEVICES and the like
    mori: str | None = None  # version of amd-mori

    @property
    def wanted(self) -> bool:
        """Whether there is a GPU that the kernels are made for."""
        return TARGET in self.gpus


@dataclass(frozen=True, slots=True)
class Lack:
    """Something that the rocm target needs, and how to get it."""

    what: str
    way_out: str

    def __str__(self) -> str:
        return f"{self.what}; {self.way_out}"


def probe(root: Path = Path("/")) -> Offers:
    """Look at the driver's topology and at installed packages. `root` is for tests."""
    gpus = _gpus(root / _TOPOLOGY)
    driver = root / _DRIVER
    if gpus and not driver.exists():
        gpus = ()  # a container that was not given the host's GPUs
    denied = None
    if gpus and not os.access(driver, os.R_OK | os.W_OK):
        denied = f"{driver} may not be opened"
    torch_hip, torch_gpus = _torch() if gpus else (_torch_build(), 0)
    return Offers(gpus, denied, torch_hip, torch_gpus, distribution_version(DISTRIBUTION))


def _gpus(topology: Path) -> tuple[str, ...]:
    found = []
    for properties in sorted(topology.glob("*/properties")):
        try:
            text = properties.read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        match = re.search(r"^gfx_target_version (\d+)$", text, re.MULTILINE)
        if match and int(match[1]):  # a node without a GPU has 0
            found.append(gfx_name(int(match[1])))
    return tuple(found)


def gfx_name(version: int) -> str:
    """The driver's number as LLVM names it: 90500 is gfx950, 90010 gfx90a."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _torch_build() -> str | None:
    import torch

    return getattr(torch.version, "hip", None)


def _torch() -> tuple[str | None, int]:
    import torch

    hip = _torch_build()
    return hip, torch.cuda.device_count() if hip else 0


def distribution_version(name: str) -> str | None:
    """Version of an installed distribution, found without importing it."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def lacks_of_rocm(offers: Offers) -> list[Lack]:
    """All that the rocm target needs and does not find; empty when it can run."""
    lacks = []
    if not offers.wanted:
        have = ", ".join(offers.gpus) or "none"
        lacks.append(Lack(f"an AMD GPU must be a {TARGET} (MI355X), found {have}", "use such a machine"))
    if offers.driver is not None:
        lacks.append(Lack(offers.driver, "add the user to the groups render and video, or start it with the device"))
    if offers.torch_hip is None:
        lacks.append(Lack("torch must be a ROCm build", "install torch from the ROCm wheel index of pytorch.org"))
    elif offers.wanted and offers.driver is None and not offers.torch_gpus:
        lacks.append(Lack("torch must show a GPU", "check HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES"))
    least = ".".join(map(str, MINIMUM_VERSION))
    if offers.mori is None:
        lacks.append(Lack(f"{DISTRIBUTION} must be installed", "pip install 'mori_gemm_ar[rocm]'"))
    elif _numbers(offers.mori) < MINIMUM_VERSION:
        lacks.append(Lack(f"{DISTRIBUTION}={offers.mori} must be {least} or later", f"pip install -U {DISTRIBUTION}"))
    return lacks


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def choose_device(device: str = "auto", offers: Offers | None = None) -> DeviceKind:
    """The target that `device` stands for on this machine.

    "auto": rocm with a gfx950, emulated without an AMD GPU. Raises ConfigError for another GPU or name, and
    MissingDependencyError for a gfx950 that cannot be used as it is.
    """
    if device not in _DEVICES:
        raise ConfigError(f"device={device!r} must be one of {', '.join(map(repr, _DEVICES))}; leave it out for 'auto'")
    if device == DeviceKind.EMULATED.value:
        return DeviceKind.EMULATED
    offers = probe() if offers is None else offers
    if device == "auto" and not offers.gpus:
        return DeviceKind.EMULATED
    lacks = lacks_of_rocm(offers)
    if not lacks:
        return DeviceKind.ROCM
    error = MissingDependencyError if offers.wanted else ConfigError
    text = ". And ".join(map(str, lacks))
    raise error(f"device={device!r} must be able to run here: {text}. To run on the CPU, say device='emulated'")


def open_target(group: Group, device: str, emulated: Callable[[], Target]) -> Target:
    """The caller's target, not collective; `emulated` makes that one. Ranks then compare `name`, see `vote_device`."""
    if choose_device(device) is DeviceKind.EMULATED:
        return emulated()
    from mori_gemm_ar.runtime.rocm import rocm_target

    return rocm_target(group)


def vote_device(group: Group, device: str = "auto", offers: Offers | None = None) -> DeviceKind:
    """Collective: the target of all ranks. Raises on every rank when one cannot choose, or chooses differently."""
    kind = agree(group, "choose a device", lambda: choose_device(device, offers))
    require_equal(group, "compare devices", "device", kind.value)
    return kind
