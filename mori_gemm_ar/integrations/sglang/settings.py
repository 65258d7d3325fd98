# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""What the operator of a server switches: environment variables, each read once, and none unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum

from mori_gemm_ar.errors import ConfigError

SWITCH = "MORI_GEMM_AR_WO_B"
ATTRIBUTE = "_mori_gemm_ar"  # where an armed layer holds its `ArmedLayer`
_OFF = ("", "0")
_ON = "1"


class Seam(Enum):
    """Which call of SGLang is replaced."""

    ATTENTION = "attention"  # MQALayer._project_wo_b, the one place where DeepSeek V4 projects
    LINEAR = "linear"  # RowParallelLinear.forward, for any model


@dataclass(frozen=True, slots=True)
class Settings:
    """Equal on all ranks; compared when ranks vote."""

    seam: Seam = Seam.ATTENTION
    layers: tuple[str, ...] = ("wo_b",)  # last parts of the names of layers to fuse
    min_m: int = 4096  # fewer rows stay split; from here on the model predicts a gain, see docs/sglang.md
    max_m: int | None = None  # rows that the window has room for; None: the server's largest prefill
    wire: str = "exact"
    mode: str = "auto"
    device: str = "rocm"  # "emulated" is thousands of times slower and never chosen by itself
    timeout_s: float | None = None  # of each device wait; None: the target's own
    vote_s: float = 120.0  # how long ranks wait for each other in a vote
    capture: bool = False  # whether calls inside graph capture may be fused; no graph was ever captured on a GPU
    copy: bool = False  # hand out copies instead of the window
    check: int = 0  # every so many fused calls of a layer, compare with the split path on all ranks; 0: never
    agree: bool = False  # compare layer, rows and decision of every call across ranks
    histogram: int = 0  # log rows of fused and split calls every so many calls; 0: never

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Raises `ConfigError` for a variable that is unknown or has a value that breaks its rule."""
        given = {name: value for name, value in environment.items() if name.startswith(f"{SWITCH}_")}
        values: dict[str, object] = {}
        for field in fields(cls):
            name = variable(field.name)
            if name in given:
                values[field.name] = _READERS[field.name](name, given.pop(name))
        if given:
            known = ", ".join(variable(field.name) for field in fields(cls))
            raise ConfigError(f"{sorted(given)[0]} must be one of {known}; correct the name or unset it")
        return cls(**values)  # type: ignore[arg-type]


def variable(field: str) -> str:
    """Name of the environment variable of a setting."""
    return f"{SWITCH}_{field.upper()}"


def switched_on(environment: Mapping[str, str]) -> bool:
    """Whether the plugin shall do anything. Raises `ConfigError` for a value that is neither on nor off."""
    value = environment.get(SWITCH, "")
    if value not in (*_OFF, _ON):
        raise ConfigError(f"{SWITCH}={value!r} must be 1, or 0 or unset; set it alike on all ranks")
    return value == _ON


# ---- values --------------------------------------------------------------------------------------------------
def _whole(least: int) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise ConfigError(f"{name}={text!r} must be a whole number of {least} or more")
        return int(text)

    return read


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86400:
        raise ConfigError(f"{name}={text!r} must be a number of seconds above 0 and up to 86400")
    return value


def _flag(name: str, text: str) -> bool:
    if text not in (*_OFF, _ON):
        raise ConfigError(f"{name}={text!r} must be 1, or 0 or unset")
    return text == _ON


def _choice(*allowed: str) -> Callable[[str, str], str]:
    def read(name: str, text: str) -> str:
        if text not in allowed:
            raise ConfigError(f"{name}={text!r} must be one of {', '.join(map(repr, allowed))}")
        return text

    return read


def _names(name: str, text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise ConfigError(f"{name}={text!r} must be names of layers, separated by commas, each once")
    return names


def _seam(name: str, text: str) -> Seam:
    return Seam(_choice(*(seam.value for seam in Seam))(name, text))


_READERS: dict[str, Callable[[str, str], object]] = {
    "seam": _seam,
    "layers": _names,
    "min_m": _whole(1),
    "max_m": _whole(1),
    "wire": _choice("exact", "fp8", "fp8-both"),
    "mode": _choice("auto", "split-lsa", "split-sdma", "fused-sdma", "fused-lsa"),
    "device": _choice("rocm", "emulated"),
    "timeout_s": _seconds,
    "vote_s": _seconds,
    "capture": _flag,
    "copy": _flag,
    "check": _whole(0),
    "agree": _flag,
    "histogram": _whole(0),
}
