# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Small kernels for the race detector, and how to run them in functional (seed None) and in weak mode."""

from __future__ import annotations

import re
from weakref import WeakKeyDictionary

import pytest
import torch

from mori_gemm_ar.emulator import KernelLaunch, MemoryRegion, Node
from mori_gemm_ar.emulator.races import RaceDetector
from mori_gemm_ar.emulator.weak import WeakMemory
from mori_gemm_ar.errors import RaceError
from mori_gemm_ar.runtime import kernel_of, pack_arguments
from tests.kernel.isa_builder import TinyCode, isa_text

MODES = (None, 0, 1, 2)
modes = pytest.mark.parametrize("seed", MODES)
THREADS = 128  # two waves
_KEPT: WeakKeyDictionary[Node, list[torch.Tensor]] = WeakKeyDictionary()  # a node does not keep memory alive


def make_node(gpus: int, seed: int | None) -> Node:
    """A node under the detector."""
    return Node(gpus, memory=None if seed is None else WeakMemory(seed), races=RaceDetector())


def words(node: Node, name: str, count: int = 4 * THREADS, home: int = 0) -> torch.Tensor:
    """Zeroed dwords of a GPU that others reach."""
    tensor = torch.zeros(count, dtype=torch.int32)
    node.regions.add(MemoryRegion(name, tensor.data_ptr(), 4 * count, home, symmetric=True))
    _KEPT.setdefault(node, []).append(tensor)
    return tensor


def code(body: str, *, args: int = 3, lds: int = 0, name: str = "tiny") -> TinyCode:
    """A kernel that finds up to four addresses in s[4:5], s[6:7], s[8:9], s[10:11], and 4 * v0 in v1."""
    head = """
        s_load_dwordx8 s[4:11], s[0:1], 0x0
        v_lshlrev_b32_e32 v1, 2, v0
        v_mov_b32_e32 v3, 0
        v_mov_b32_e32 v4, 1
        v_readfirstlane_b32 s12, v0
        s_waitcnt lgkmcnt(0)
    """
    return TinyCode(isa_text(head + body + "\ns_endpgm", (8,) * args, lds=lds, name=name), name, name)


def submit(
    node: Node,
    program: TinyCode,
    values: list[torch.Tensor],
    *,
    gpu: int = 0,
    stream: int = 0,
    blocks: int = 1,
    threads: int = THREADS,
) -> None:
    """Queue a launch."""
    kernel = kernel_of(program)
    arguments = pack_arguments(kernel.args, [v.data_ptr() for v in values])
    node.submit(gpu, KernelLaunch(kernel, (blocks, 1, 1), (threads, 1, 1), arguments, program.kernel), stream)


def race(node: Node, *fragments: str) -> str:
    """Run until the race that has to come; its message holds the fragments."""
    with pytest.raises(RaceError) as caught:
        node.run()
    message = str(caught.value)
    for fragment in fragments:
        assert fragment in message, message
    return message


def lines_of(message: str) -> tuple[int, int]:
    """The lines of the two accesses of a message."""
    first, second = re.findall(r"^  .*? line (\d+):", message, re.MULTILINE)
    return int(first), int(second)


def line_of(program: TinyCode, start: str, number: int = 0) -> int:
    """Line of the n-th instruction that starts so."""
    found = [i.line for i in kernel_of(program).instructions if i.text.startswith(start)]
    return found[number]


def without(text: str, start: str, number: int = 0) -> str:
    """A text without its n-th line that starts so."""
    lines = text.splitlines()
    found = [n for n, line in enumerate(lines) if line.strip().startswith(start)]
    return "\n".join(lines[: found[number]] + lines[found[number] + 1 :])


# Arguments: data, flag, result. Every wave stores a part of the data; wave 0 publishes it.
PRODUCER = """
    v_add_u32_e32 v2, 100, v0
    global_store_dword v1, v2, s[4:5]
    s_waitcnt vmcnt(0)
    s_barrier
    s_cmp_lg_u32 s12, 0
    s_cbranch_scc1 .LBB0_9
    buffer_wbl2 {scope}
    s_waitcnt vmcnt(0)
    global_store_dword v3, v4, s[6:7] {scope}
.LBB0_9:
"""
# Wave 0 waits for the flag; every wave reads what the other wave of the producer has stored.
CONSUMER = """
    s_cmp_lg_u32 s12, 0
    s_cbranch_scc1 .LBB0_2
.LBB0_1:
    global_load_dword v5, v3, s[6:7] {scope}
    s_waitcnt vmcnt(0)
    v_cmp_eq_u32_e32 vcc, 0, v5
    s_cbranch_vccnz .LBB0_1
    buffer_inv {scope}
.LBB0_2:
    s_barrier
    v_xor_b32_e32 v6, 0x100, v1
    global_load_dword v2, v6, s[4:5]
    s_waitcnt vmcnt(0)
    global_store_dword v6, v2, s[8:9]
"""
AGENT, SYSTEM = "sc1", "sc0 sc1"
STORE = "global_store_dword v1, v4, s[4:5]"
LOAD = "global_load_dword v2, v1, s[4:5]\ns_waitcnt vmcnt(0)"


def message(seed: int | None, producer: str, consumer: str, gpus: tuple[int, int]) -> tuple[Node, torch.Tensor]:
    """Both kernels on streams of their own; data and flag live on the consumer's GPU."""
    node = make_node(2, seed)
    data, flag, result = (words(node, name, home=gpus[1]) for name in ("data", "flag", "result"))
    submit(node, code(consumer, name="consumer"), [data, flag, result], gpu=gpus[1])
    submit(node, code(producer, name="producer"), [data, flag, result], gpu=gpus[0], stream=1)
    return node, result
