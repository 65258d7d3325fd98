# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Every exception and warning that the library raises on purpose.

A message reads `name=value must be rule; way out`. A collective entry point raises on every rank or on none.
"""

from __future__ import annotations


class MoriGemmArError(Exception):
    """Base of all errors of this library."""


class ConfigError(MoriGemmArError, ValueError):
    """An argument breaks a rule; nothing was allocated or launched."""


class ClosedError(MoriGemmArError, RuntimeError):
    """A resource is used after `close()`."""


class ConcurrentUseError(MoriGemmArError, RuntimeError):
    """An op that belongs to one thread is called from another one."""


class MissingDependencyError(MoriGemmArError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


class CompileError(MoriGemmArError, RuntimeError):
    """FlyDSL could not turn a kernel into code for gfx950."""


class HipError(MoriGemmArError, RuntimeError):
    """A call of the HIP runtime failed; the message names the call and gives HIP's own text."""


class CacheWarning(UserWarning):
    """A cache entry or directory was unusable and was rebuilt or replaced."""


class TransportWarning(UserWarning):
    """Another transport is in force than "auto" would have preferred; the message names the reason."""


class RendezvousError(MoriGemmArError, RuntimeError):
    """Ranks did not meet: one is missing, late, or left with an error."""


class CollectiveSetupError(MoriGemmArError, RuntimeError):
    """A collective `create` failed on some rank; every rank raises it, naming that rank and the step."""


class CollectiveError(MoriGemmArError, RuntimeError):
    """A collective call failed on the device; the op refuses further work."""


class CollectiveTimeout(CollectiveError):
    """A device wait ran out of its budget; the message names phase, rank, peer, expected and seen value."""


class CopyEngineTimeout(CollectiveTimeout):
    """A rank's own copy engine did not finish in time: no peer is at fault, and peers may time out because of it."""


class CollectiveMismatch(CollectiveError):
    """Ranks entered the same call with different sizes, dtypes or stages."""


class IsaError(MoriGemmArError, ValueError):
    """ISA text that is truncated, foreign, or holds something this library does not know."""


class EmulatorError(MoriGemmArError, RuntimeError):
    """A kernel did something on the emulated node that real hardware would punish or that is not modelled."""


class MemoryFault(EmulatorError):
    """An access outside every known region; the message names kernel, line, lane and address."""


class RaceError(EmulatorError):
    """Two accesses to one place, one a write, that nothing orders; the message names both and what is missing."""


class DeadlockError(EmulatorError):
    """No wave can progress; the message lists the waves, where they stand and what each waits for."""
