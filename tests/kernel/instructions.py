# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Execute one instruction, or a short text, in the emulator on register values that the test chooses.

    before = State.random(rng, waves=4)
    after = execute("v_add_u32_e32 v4, v1, v2", before)

Every wave and lane runs at once. `sparse` leaves a gap between the waves, so that they are no slice of the register
file: the emulator then works on copies and must write back what it changed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mori_gemm_ar.emulator import MemoryRegion, Node, translate
from mori_gemm_ar.emulator.pool import DONE, Pool
from mori_gemm_ar.isa import Kernel, parse_isa

LANES = 64
VCC, M0, EXEC = 106, 124, 126  # operand encodings of the special scalar registers
SPECIAL = {
    "vcc": VCC, "vcc_lo": VCC, "vcc_hi": VCC + 1, "m0": M0, "exec": EXEC, "exec_lo": EXEC, "exec_hi": EXEC + 1
}  # fmt: skip

_TEXT = """
\t.amdgcn_target "amdgcn-amd-amdhsa-unknown-gfx950"
\t.type\tk,@function
k:
.Llds{lds}_scratch{scratch}:
{body}
\ts_endpgm
.Lfunc_end0:
\t.amdhsa_kernel k
\t\t.amdhsa_group_segment_fixed_size {lds}
\t\t.amdhsa_private_segment_fixed_size {scratch}
\t\t.amdhsa_kernarg_size 0
{directives}\t.end_amdhsa_kernel
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .args:           []
    .name:           k
...
\t.end_amdgpu_metadata
"""


def assemble(body: str, lds_bytes: int = 0, scratch_bytes: int = 0, directives: str = "") -> Kernel:
    """A kernel around the text. The label keeps kernels apart that differ in their sizes only."""
    text = _TEXT.format(body=body, lds=lds_bytes, scratch=scratch_bytes, directives=directives)
    return parse_isa(text).kernel("k")


@dataclass
class State:
    """Vector registers (register, wave, lane), scalar registers (encoding, wave), SCC per wave, LDS and scratch bytes.

    Accumulation register n is vector register 256 + n, as in the register file.
    """

    v: np.ndarray
    s: np.ndarray
    scc: np.ndarray
    lds: np.ndarray
    scratch: np.ndarray

    @staticmethod
    def random(rng: np.random.Generator, waves: int, vector: int = 24, lds: int = 0, scratch: int = 0) -> State:
        """All registers and memories random, all lanes active. `lds` and `scratch` are bytes."""
        bits = np.iinfo(np.uint32).max
        s = rng.integers(0, bits, (128, waves), np.uint32, endpoint=True)
        s[EXEC : EXEC + 2] = bits
        return State(
            rng.integers(0, bits, (vector, waves, LANES), np.uint32, endpoint=True),
            s,
            rng.integers(0, 1, waves, endpoint=True).astype(bool),
            rng.integers(0, 255, lds, np.uint8, endpoint=True),
            rng.integers(0, 255, (waves, LANES, scratch), np.uint8, endpoint=True),
        )

    def copy(self) -> State:
        return State(self.v.copy(), self.s.copy(), self.scc.copy(), self.lds.copy(), self.scratch.copy())

    @property
    def waves(self) -> int:
        return len(self.scc)

    def pair(self, index: int) -> np.ndarray:
        """A scalar register pair as uint64 per wave."""
        return self.s[index].astype(np.uint64) | self.s[index + 1].astype(np.uint64) << np.uint64(32)

    def set_pair(self, index: int, value: np.ndarray) -> None:
        self.s[index], self.s[index + 1] = value & np.uint64(0xFFFFFFFF), value >> np.uint64(32)

    def lanes(self, index: int) -> np.ndarray:
        """A scalar register pair as one bool per wave and lane."""
        return (self.pair(index)[:, None] >> np.arange(LANES, dtype=np.uint64) & np.uint64(1)).astype(bool)

    def differences(self, other: State) -> list[str]:
        """Where two states differ, one line each."""
        found = []
        for name in ("v", "s", "scc", "lds", "scratch"):
            a, b = getattr(self, name), getattr(other, name)
            places = np.argwhere(a != b).tolist()
            found += [f"{name}{at}: {a[tuple(at)]:#x} and {b[tuple(at)]:#x}" for at in places]
        return found


def mask_of(lanes: np.ndarray) -> np.ndarray:
    """One bool per wave and lane to a uint64 per wave."""
    return (lanes.astype(np.uint64) << np.arange(LANES, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)


@dataclass
class _Preset:
    """A dispatch that sets the registers of the test instead of those of a launch."""

    state: State
    stride: int
    gpu: int = 0

    def workgroup(self, number: int) -> tuple[int, int, int]:
        return number, 0, 0

    def workgroup_done(self) -> None:
        pass

    def initialise(self, pool: Pool, waves: slice, workgroup: tuple[int, int, int]) -> None:
        chosen, state = np.arange(pool.V.shape[1])[:: self.stride], self.state
        pool.status[np.setdiff1d(np.arange(pool.V.shape[1]), chosen)] = DONE
        rows = pool.V.shape[0]
        assert rows <= len(state.v), f"the text names v{rows - 1}, but the state has {len(state.v)} vector registers"
        pool.V[:, chosen] = state.v[:rows]
        for index in range(128):
            pool.S[index >> 1, chosen, index & 1] = state.s[index]
        pool.scc[chosen] = state.scc
        pool.lds[: len(state.lds)] = state.lds
        if state.scratch.size:
            pool.scratch.reshape(-1, *state.scratch.shape[1:])[chosen] = state.scratch

    def read(self, pool: Pool) -> State:
        after, chosen = self.state.copy(), slice(None, None, self.stride)
        after.v[: pool.V.shape[0]] = pool.V[:, chosen]
        for index in range(128):
            after.s[index] = pool.S[index >> 1, chosen, index & 1]
        after.scc[:] = pool.scc[chosen]
        after.lds[:] = pool.lds[: len(after.lds)]
        if after.scratch.size:
            after.scratch[:] = pool.scratch.reshape(-1, *after.scratch.shape[1:])[chosen]
        return after


def execute(
    body: str,
    before: State,
    *,
    sparse: bool = False,
    memory: dict[str, np.ndarray] | None = None,
    workgroup: int = 0,
) -> State:
    """Run the text to its end on all waves of the state. `memory` names the arrays that it may touch."""
    node = Node(1, window=1 << 20)
    for name, array in (memory or {}).items():
        node.regions.add(MemoryRegion(name, array.ctypes.data, array.nbytes, 0))
    preset = _Preset(before, 2 if sparse else 1)
    kernel = assemble(body, len(before.lds), before.scratch.shape[-1])
    pool = Pool(node, translate(kernel), before.waves * preset.stride, 1)
    pool.place(preset, workgroup)  # type: ignore[arg-type]
    with np.errstate(all="ignore"):
        for _ in range(1000):
            if not pool.busy:
                return preset.read(pool)
            pool.run_round()
    raise AssertionError(f"the text does not end:\n{body}")
