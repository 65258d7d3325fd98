# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""GPU 0 writes, its copy engine carries it to GPU 1, GPU 1 reads: with all parts, and with any one of them missing."""

from __future__ import annotations

from dataclasses import replace

import torch

from mori_gemm_ar.compile.store import CodeObject
from mori_gemm_ar.emulator import EngineSettings, KernelLaunch, MemoryRegion, Node
from mori_gemm_ar.emulator.observer import Observer
from mori_gemm_ar.emulator.weak import WeakMemory
from mori_gemm_ar.runtime import kernel_of, pack_arguments
from tests.kernel.sdma_kernels import HANDOVER_THREADS, build_receive, build_send

CALLS = 3
BUDGET = 1_000_000_000


def edited(code: CodeObject, old: str, new: str, count: int = 1) -> CodeObject:
    """The code with one place of its text changed; the place has to be there."""
    assert code.isa.count(old) >= count, f"{code.kernel} no longer has {old!r}"
    return replace(code, isa=code.isa.replace(old, new, count), key=f"{code.key} edited")


def hand_over(
    send: CodeObject | None = None,
    receive: CodeObject | None = None,
    *,
    seed: int | None = None,
    races: Observer | None = None,
    engines: EngineSettings | None = None,
) -> bool:
    """Whether `CALLS` calls in a row bring the right words. seed: of weak memory; None is functional memory."""
    send, receive = send or build_send(), receive or build_receive()
    memory = WeakMemory(seed) if seed is not None else None
    node = Node(2, memory=memory, races=races, engines=engines)
    queues = node.engines.open(0, 2, 1)
    src, dst, out = (torch.zeros(HANDOVER_THREADS, dtype=torch.int32) for _ in range(3))
    flag, signal = torch.zeros(16, dtype=torch.int64), torch.zeros(16, dtype=torch.int64)
    for name, tensor, home, shared in (
        ("source", src, 0, False), ("target", dst, 1, True), ("out", out, 1, False), ("flag", flag, 1, True),
        ("signal", signal, 0, True),
    ):  # fmt: skip
        nbytes = tensor.numel() * tensor.element_size()
        node.regions.add(MemoryRegion(name, tensor.data_ptr(), nbytes, home, symmetric=shared))
    handle = int.from_bytes(node.memory.host_view(queues.table + 8, 8), "little")  # to peer 1
    right = True
    for epoch in range(1, CALLS + 1):
        sends = (handle, src, dst, flag, signal[1:], epoch, BUDGET)
        receives = (flag, dst, out, epoch, BUDGET)
        for gpu, code, values in ((0, send, sends), (1, receive, receives)):
            kernel = kernel_of(code)
            scalars = [v.data_ptr() if isinstance(v, torch.Tensor) else v for v in values]
            arguments = pack_arguments(kernel.args, scalars)
            node.submit(gpu, KernelLaunch(kernel, (1, 1, 1), (HANDOVER_THREADS, 1, 1), arguments, kernel.name))
        node.run()
        right &= bool((out == torch.arange(HANDOVER_THREADS, dtype=torch.int32) * 3 + epoch).all())
    return right


def outcomes(send: CodeObject | None = None, receive: CodeObject | None = None, seeds: int = 12) -> set[bool]:
    """Results under weak memory, over seeds."""
    return {hand_over(send, receive, seed=seed) for seed in range(seeds)}
