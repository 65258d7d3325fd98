# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Section 1: every instruction of the shipped kernels, and every family of them, hardware against emulator."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import torch

from mori_gemm_ar.hwcheck.families import families
from mori_gemm_ar.hwcheck.forms import Form, Kind, listed_forms
from mori_gemm_ar.hwcheck.hardware import Rank
from mori_gemm_ar.hwcheck.launching import launch_of, loaded, submit
from mori_gemm_ar.hwcheck.probes import MEMORY_BYTES, SLOT_BYTES, Probe, probes_of
from mori_gemm_ar.hwcheck.section import Log
from mori_gemm_ar.hwcheck.values import Difference, difference, inputs_of
from mori_gemm_ar.layout.terms import WAVE_LANES
from mori_gemm_ar.runtime import Target
from mori_gemm_ar.runtime.alone import AloneWorld

_NO_MEMORY = 64  # bytes, where no instruction of a probe takes an address


def semantics(rank: Rank, log: Log) -> None:
    """Probes first, then whole kernels. Collective."""
    instructions(rank, log, listed_forms())
    families(rank, log)


def instructions(rank: Rank, log: Log, forms: tuple[Form, ...]) -> None:
    """Every form on random inputs; a check for each mnemonic. Collective: in processes, every GPU is tried."""
    found: dict[str, Difference] = {}
    tried: set[str] = set()
    if rank.rank == 0 or not rank.together:
        found, tried = _try_all(rank, log, probes_of(forms))
    differences = rank.world.exchange("instructions", {name: str(one) for name, one in found.items()})
    by_name = defaultdict(list)
    for form in forms:
        by_name[form.mnemonic].append(form.text)
    for name, texts in by_name.items():
        if name in tried:
            told = [(n, d[name]) for n, d in enumerate(differences) if isinstance(d, dict) and name in d]
            wrong = f"rank {told[0][0]}: {told[0][1]}" if told else None
            log.judge(name, wrong, f"{len(texts)} forms", forms=texts)
    log.section.data["coverage"] = {
        "probed": sorted(tried),
        "inside kernels only": sorted({form.mnemonic for form in forms if form.kind is Kind.KERNELS}),
        "not reached": sorted(
            name for name, kinds in _kinds(forms).items() if Kind.KERNELS not in kinds and name not in tried
        ),
    }


def _kinds(forms: tuple[Form, ...]) -> dict[str, set[Kind]]:
    kinds: dict[str, set[Kind]] = defaultdict(set)
    for form in forms:
        kinds[form.mnemonic].add(form.kind)
    return kinds


def _try_all(rank: Rank, log: Log, probes: list[Probe]) -> tuple[dict[str, Difference], set[str]]:
    found: dict[str, Difference] = {}
    tried: set[str] = set()
    effort = rank.settings.effort
    reference = AloneWorld().target("emulated")
    for turn in range(effort.rounds):
        for number, probe in enumerate(probes):
            if rank.budget.left < 0:
                if turn == 0:
                    log.out_of_time(f"instruction {probe.blocks[0].form.mnemonic}")
                return found, tried
            rng = np.random.default_rng([rank.settings.seed, turn, number])
            for one in compare(rank.target, reference, probe, inputs_of(probe, effort.waves, rng), rng):
                found.setdefault(one.mnemonic, one)
            tried |= {block.form.mnemonic for block in probe.blocks}
    return found, tried


def compare(
    hardware: Target, reference: Target, probe: Probe, data: np.ndarray, rng: np.random.Generator
) -> list[Difference]:
    """The first difference of each instruction of a probe."""
    waves = len(data)
    memory = rng.integers(0, 256, (waves, probe.memory_bytes or _NO_MEMORY), np.uint8)
    have, memory_have = run_probe(hardware, probe, data, memory)
    want, memory_want = run_probe(reference, probe, data, memory)
    found = []
    for block in probe.blocks:
        one = difference(block, data, have, want)
        if one is None and block.memory is not None:
            one = _memory_difference(block.memory, block.form, memory_have, memory_want)
        if one is not None:
            found.append(one)
    return found


def _memory_difference(first: int, form: Form, have: np.ndarray, want: np.ndarray) -> Difference | None:
    """Bytes that an instruction should have stored, or should not."""
    end = first + MEMORY_BYTES
    wrong = np.argwhere(have[:, first:end] != want[:, first:end])
    if not len(wrong):
        return None
    wave, at = (int(n) for n in wrong[0])
    bytes_ = int(have[wave, first + at]), int(want[wave, first + at])
    return Difference(form.mnemonic, form.text, f"memory + {at:#x}", wave, at // 16, *bytes_, {}, len(wrong))


def run_probe(target: Target, probe: Probe, data: np.ndarray, memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Output slots, uint32 [waves, slots, lanes], and the memory afterwards."""
    waves, device = len(data), target.torch_device
    source = torch.from_numpy(data.view(np.int32).copy()).to(device)
    result = torch.zeros(waves, probe.output_slots, WAVE_LANES, dtype=torch.int32, device=device)
    space = torch.from_numpy(memory.copy()).to(device)
    arguments = {
        "source": source.data_ptr(), "source_step": probe.input_slots * SLOT_BYTES,
        "result": result.data_ptr(), "result_step": probe.output_slots * SLOT_BYTES,
        "memory": space.data_ptr(), "memory_step": memory.shape[1],
    }  # fmt: skip
    launch = launch_of(loaded(target, probe.config), arguments, waves)
    submit(target, [launch], {"source": source, "result": result, "memory": space})
    target.synchronize()
    return result.cpu().numpy().view(np.uint32), space.cpu().numpy()
