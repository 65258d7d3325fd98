# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Random inputs of probes, and when two results of an instruction agree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mori_gemm_ar.hwcheck.forms import Form, Kind
from mori_gemm_ar.hwcheck.probes import STATE, Block, Probe
from mori_gemm_ar.layout.terms import WAVE_LANES

# Hardware may be off by one unit in the last place; everything else has one right result.
ROUNDED = ("v_rcp_f32", "v_rcp_f16", "v_rsq_f32", "v_sqrt_f32", "v_exp_f32", "v_log_f32", "v_rcp_iflag_f32")
_EDGES = np.array(
    [
        0, 1, 2, 31, 32, 63, 64, 127, 255, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF,
        0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x00000001, 0x00800000, 0x43E00000, 0x3C003C00,
    ],
    np.uint32,
)  # fmt: skip
_SMALL_FP8 = np.array([0x00, 0x38, 0x40, 0x44, 0xB8, 0xC0, 0xC4], np.uint8)  # 0, +-1, +-2, +-3 in e4m3
MATRIX_KINDS = 3  # integers, numbers, and the magnitudes of the same numbers, which give the bound
_K = {"32x32x64": 64, "16x16x128": 128, "16x16x32": 32, "32x32x16": 16}


def inputs_of(probe: Probe, waves: int, rng: np.random.Generator) -> np.ndarray:
    """uint32 [waves, slots, lanes] for all blocks of a probe. Wave 0 has all lanes active."""
    data = np.empty((waves, probe.input_slots, WAVE_LANES), np.uint32)
    for block in probe.blocks:
        for n, slot in enumerate(block.inputs):
            data[:, block.first_input + n] = _words(slot.name, waves, rng)
        if block.form.kind is Kind.MATRIX:
            _matrix(block, data, rng)
    return data


def _words(name: str, waves: int, rng: np.random.Generator) -> np.ndarray:
    if name in ("exec_lo", "exec_hi"):
        mask = rng.integers(0, 1 << 32, (waves, 1), np.uint32) | np.uint32(1 << 16)
        mask[0] = 0xFFFFFFFF
        return np.broadcast_to(mask, (waves, WAVE_LANES))
    shape = (waves, WAVE_LANES)
    if name == "scc":
        return rng.integers(0, 2, (waves, 1), np.uint32).repeat(WAVE_LANES, axis=1)
    random = rng.integers(0, 1 << 32, shape, np.uint32)
    small = rng.integers(-64, 65, shape, np.int32).view(np.uint32)
    floats = (rng.standard_normal(shape) * np.exp2(rng.integers(-6, 7, shape))).astype(np.float32).view(np.uint32)
    return np.choose(rng.integers(0, 5, shape), [random, small, floats, rng.choice(_EDGES, shape), random])


def _matrix(block: Block, data: np.ndarray, rng: np.random.Generator) -> None:
    """Operands of a product: by turns small integers, numbers, and their magnitudes."""
    waves = data.shape[0]
    place = {slot.name: block.first_input + n for n, slot in enumerate(block.inputs)}
    for name in STATE[:2]:
        data[:, place[name]] = 0xFFFFFFFF
    left, right, start = (_registers(block.form, n) for n in range(1, 4))
    for wave in range(waves):
        turn = wave % MATRIX_KINDS
        for name in (*left, *right):
            data[wave, place[name]] = _elements(turn, rng)
        for name in start:
            values = rng.integers(-50, 51, WAVE_LANES) if turn == 0 else rng.standard_normal(WAVE_LANES)
            data[wave, place[name]] = values.astype(np.float32).view(np.uint32)
        for operand in block.form.operands[4:]:
            exponent = rng.integers(124, 131, (WAVE_LANES, 4), np.uint8)
            if operand[0] == "v":
                data[wave, place[operand]] = exponent.view(np.uint32)[:, 0]
        if turn == MATRIX_KINDS - 1:
            _magnitudes(data, wave, place, (*left, *right), start, block)


def _elements(turn: int, rng: np.random.Generator) -> np.ndarray:
    """Four e4m3 numbers in each lane."""
    if turn == 0:
        return rng.choice(_SMALL_FP8, (WAVE_LANES, 4)).view(np.uint32)[:, 0]
    codes = rng.integers(0x18, 0x58, (WAVE_LANES, 4), np.uint8) | rng.integers(0, 2, (WAVE_LANES, 4), np.uint8) << 7
    return codes.astype(np.uint8).view(np.uint32)[:, 0]


def _magnitudes(
    data: np.ndarray, wave: int, place: dict[str, int], factors: tuple[str, ...], start: tuple[str, ...], block: Block
) -> None:
    """The wave before it without signs."""
    for name, slot in place.items():
        mask = 0x7F7F7F7F if name in factors else 0x7FFFFFFF if name in start else 0xFFFFFFFF
        data[wave, slot] = data[wave - 1, slot] & np.uint32(mask)


def _registers(form: Form, position: int) -> tuple[str, ...]:
    operand = form.operands[position]
    if operand[0] not in "va" or (not operand[1].isdigit() and operand[1] != "["):
        return ()
    low, _, high = operand[1:].strip("[]").partition(":")
    return tuple(f"{operand[0]}{n}" for n in range(int(low), int(high or low) + 1))


# --- comparison ---


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two results of an instruction differ."""

    mnemonic: str
    text: str
    register: str
    wave: int
    lane: int
    hardware: int
    emulator: int
    operands: dict[str, str]
    count: int

    def __str__(self) -> str:
        operands = ", ".join(f"{name}={value}" for name, value in self.operands.items())
        return (
            f"{self.text}: {self.register} lane {self.lane} is {self.hardware:#010x} on the hardware and "
            f"{self.emulator:#010x} in the emulator; operands there {operands} ({self.count} differences)"
        )


def difference(block: Block, data: np.ndarray, hardware: np.ndarray, emulator: np.ndarray) -> Difference | None:
    """Compare a block's outputs, uint32 [waves, output slots of the probe, lanes]; `data` are the probe's inputs."""
    part = slice(block.first_output, block.first_output + len(block.outputs))
    have, want = hardware[:, part], emulator[:, part]
    wrong = have != want
    if wrong.any():
        wrong &= ~_tolerated(block, have, want)
    if not wrong.any():
        return None
    wave, slot, lane = (int(n) for n in np.argwhere(wrong)[0])
    values = {
        one.name: f"{int(data[wave, block.first_input + n, 0 if one.scalar else lane]):#010x}"
        for n, one in enumerate(block.inputs)
        if not one.name.startswith("lds")
    }
    got, expected = int(have[wave, slot, lane]), int(want[wave, slot, lane])
    register = block.outputs[slot].name
    return Difference(
        block.form.mnemonic, block.form.text, register, wave, lane, got, expected, values, int(wrong.sum())
    )


def _tolerated(block: Block, have: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Where both results are right: any NaN for a NaN of an f32 result, a rounded last place, the order of a sum."""
    name = block.form.mnemonic
    fine = np.zeros(have.shape, bool)
    if "_f32" in name and block.form.kind is not Kind.MEMORY:
        fine |= _is_nan(have) & _is_nan(want)
    if name in ROUNDED:
        fine |= np.abs(_ordered(have) - _ordered(want)) <= 1
    if block.form.kind is Kind.MATRIX:
        fine |= _within_bound(block, have, want)
    return fine


def _is_nan(bits: np.ndarray) -> np.ndarray:
    return (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)


def _ordered(bits: np.ndarray) -> np.ndarray:
    """Float bits as integers that are in the order of the floats."""
    magnitude = (bits & np.uint32(0x7FFFFFFF)).astype(np.int64)
    return np.where(bits >> np.uint32(31), -magnitude, magnitude)


def _within_bound(block: Block, have: np.ndarray, want: np.ndarray) -> np.ndarray:
    """fp32 sums of K products and a start in any order; the wave after a wave of numbers has the magnitudes' sum."""
    k = next((length for shape, length in _K.items() if shape in block.form.mnemonic), 128)
    fine = np.zeros(have.shape, bool)
    results = set(_registers(block.form, 0))
    chosen = [n for n, slot in enumerate(block.outputs) if slot.name in results]
    got, right = (np.ascontiguousarray(bits[:, chosen]).view(np.float32).astype(np.float64) for bits in (have, want))
    with np.errstate(all="ignore"):
        for wave in range(1, len(have)):
            turn = wave % MATRIX_KINDS
            if turn == 0:
                continue
            magnitude = right[wave + 1] if turn == 1 and wave + 1 < len(have) else np.abs(right[wave])
            bound = (k + 2) * 2.0**-24 * magnitude
            fine[wave, chosen] = np.abs(got[wave] - right[wave]) <= bound
    return fine
