# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Cache policies of gfx950 by name, and what an `aux` number of a raw buffer access turns into.

The numbers are pinned by a test that compiles one access for each: constants of other generations mean other things
here, and some mean nothing (lesson L2).
"""

from __future__ import annotations

import enum

from mori_gemm_ar.errors import IsaError
from mori_gemm_ar.isa import Instruction


class Policy(enum.Enum):
    """The cache modifiers of one memory instruction; the value is how the text spells them."""

    PLAIN = ""  # cached; others see it after a release and an acquire
    SC0 = "sc0"  # workgroup scope of a load or store; of an atomic: it returns the old value
    NT = "nt"  # a hint that the line is not used again; no scope
    SC0_NT = "sc0 nt"
    SC1 = "sc1"  # agent scope: the other XCDs of this GPU
    SC1_NT = "sc1 nt"
    SYSTEM = "sc0 sc1"  # system scope: other GPUs, the host, copy engines
    SYSTEM_NT = "sc0 sc1 nt"

    @property
    def reach(self) -> int:
        """0 workgroup or less, 1 agent, 2 system; of loads, stores, writebacks and invalidates."""
        return 2 if "sc0 sc1" in self.value else 1 if "sc1" in self.value else 0

    @property
    def scoped(self) -> bool:
        """Whether other XCDs or other GPUs see the access without a fence."""
        return self.reach > 0


# aux of llvm.amdgcn.raw.ptr.buffer.{load,store} -> policy on gfx950. 4 is ignored, so 5 is 1.
AUX = {
    0: Policy.PLAIN,
    1: Policy.SC0,
    2: Policy.NT,
    3: Policy.SC0_NT,
    4: Policy.PLAIN,
    5: Policy.SC0,
    16: Policy.SC1,
    17: Policy.SYSTEM,
}

_FLAGS = ("sc0", "sc1", "nt")
_FOREIGN = ("glc", "slc", "dlc", "scc")


def policy_of(i: Instruction) -> Policy:
    """The policy that an instruction spells; `IsaError` for modifiers of other generations."""
    for flag in _FOREIGN:
        if i.has(flag):
            raise IsaError(f"{i}: cache modifier {flag!r} must be one of {', '.join(_FLAGS)}; it is not gfx950's")
    return Policy(" ".join(flag for flag in _FLAGS if i.has(flag)))
