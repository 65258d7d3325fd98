# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Section 2: what the memory model and the engines' model rule out must not happen; what they allow is counted.

Ranks 2 i and 2 i + 1 are a pair, and all pairs run at once. A test that the model forbids to read old words is refuted
by the first one; all tests are refuted by a wait that runs out.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from mori_gemm_ar.hwcheck.hardware import Rank
from mori_gemm_ar.hwcheck.launching import CheckWindow, launch_of, loaded, submit
from mori_gemm_ar.hwcheck.litmus_tests import (
    COPIES_TESTS,
    ENGINE_TESTS,
    LENGTH,
    LOCAL_TESTS,
    PAIR_TESTS,
    Litmus,
    Side,
)
from mori_gemm_ar.hwcheck.report import Verdict
from mori_gemm_ar.hwcheck.section import Log
from mori_gemm_ar.layout.hwcheck import MAX_COPIES, OUTCOMES, BufferingConfig
from mori_gemm_ar.layout.terms import PACK_BYTES, WAVE_LANES

# Offsets in each rank's window.
_DATA, _SOURCE, _FLAGS, _RESULT = 0, 1 << 18, 1 << 19, (1 << 19) + 4096
_RESULT_BYTES = 1 << 18
_WINDOW = _RESULT + _RESULT_BYTES
_FLAG, _ANSWER, _SIGNAL, _WORD = _FLAGS, _FLAGS + 512, _FLAGS + 1024, _FLAGS + 2048
_ITERATIONS = (_RESULT_BYTES - 64) // 4  # of a launch of store buffering, which keeps a word for each
_COPY_ITERATIONS = 64
_COPY_BLOCKS = 8


def litmus(rank: Rank, log: Log) -> None:
    """All tests that this number of ranks allows. Collective."""
    log.section.data["memory"] = "as the machine has it" if rank.weak else "always current: nothing can be refuted"
    for copies in COPIES_TESTS:
        _copies(rank, log, copies)
    with CheckWindow.create(rank.world, rank.target, _WINDOW, queues=2 if rank.size > 1 else 0) as window:
        for test in LOCAL_TESTS:
            _run(rank, log, window, test)
        for test in PAIR_TESTS:
            if rank.size > 1:
                _run(rank, log, window, test)
            else:
                log.add(test.name, Verdict.NOT_RUN, "needs two ranks", model=test.model)
        for test in ENGINE_TESTS:
            if rank.size == 1:
                log.add(test.name, Verdict.NOT_RUN, "needs two ranks", model=test.model)
            elif window.queues is None or window.engine_fault is not None:
                log.add(test.name, Verdict.FAILED, f"no copy engines: {window.engine_fault}", model=test.model)
            else:
                _run(rank, log, window, test)


def _run(rank: Rank, log: Log, window: CheckWindow, test: Litmus) -> None:
    """Launch until the outcomes are enough or the time is spent. Collective."""
    histogram: Counter[str] = Counter()
    launches = 0
    loaded(rank.target, test.config)  # before the ranks meet: a peer's wait has a budget
    for _ in range(rank.settings.effort.launches):
        if any(rank.world.exchange("time", rank.budget.left < 0)):
            break
        histogram += _launch(rank, window, test)
        launches += 1
    if not launches:
        log.out_of_time(test.name)
        return
    judge(log, test, histogram, launches)


def judge(log: Log, test: Litmus, histogram: Counter[str], launches: int) -> None:
    """Compare a histogram with what the model allows."""
    counts = {outcome: histogram[outcome] for outcome in OUTCOMES}
    data: dict[str, Any] = {"model": test.model, "forbids_old": test.forbids_old, "histogram": counts}
    data["launches"] = launches
    shown = ", ".join(f"{outcome} {count}" for outcome, count in counts.items() if count)
    wrong = None
    if counts["late"]:
        wrong = f"{counts['late']} waits ran out: {shown}"
    elif test.forbids_old and counts["old"]:
        wrong = f"old words after {test.model}: {shown}"
    if wrong is None and not test.forbids_old:
        log.add(test.name, Verdict.NOTE, f"{shown}; the model allows both", **data)
    else:
        log.judge(test.name, wrong, shown, **data)


def _launch(rank: Rank, window: CheckWindow, test: Litmus) -> Counter[str]:
    """One launch on all pairs; the outcomes of all of them. Collective."""
    rank.target.fill(window.address + _FLAGS, _RESULT - _FLAGS, 0)
    rank.target.fill(window.address + _RESULT, 64, 0)
    for region in (_DATA, _SOURCE):  # the second put's word is a flag too
        rank.target.fill(window.address + region + LENGTH, 8, 0)
    rank.world.exchange("flags are clear", None)
    pair = rank.rank // 2 * 2
    across = test.across
    reads = False
    if not across or pair + 1 < rank.size:
        reads = _submit(rank, window, test, pair)
    rank.target.synchronize()
    buffering = isinstance(test.config, BufferingConfig)
    own: Any = window.words(_RESULT, 3) if reads else None
    if buffering and own is not None:
        own = own, window.words(_RESULT + 64, _count(rank, test))
    answers = rank.world.exchange("outcomes", own)
    if buffering:
        return _buffered(answers)
    total: Counter[str] = Counter()
    for answer in answers:
        if isinstance(answer, list):
            total.update(dict(zip(OUTCOMES, answer, strict=True)))
    return total


def _buffered(answers: list[object]) -> Counter[str]:
    """Outcomes of store buffering: old where neither side saw the other's store."""
    total: Counter[str] = Counter()
    for first, second in zip(answers[::2], answers[1::2], strict=False):
        if isinstance(first, tuple) and isinstance(second, tuple):
            total["late"] += first[0][2] + second[0][2]
            seen = [a | b for a, b in zip(first[1], second[1], strict=True)]
            total["current"] += sum(seen)
            total["old"] += len(seen) - sum(seen)
    return total


def _count(rank: Rank, test: Litmus) -> int:
    count = rank.settings.effort.iterations
    return min(count, _ITERATIONS) if isinstance(test.config, BufferingConfig) else count


def _submit(rank: Rank, window: CheckWindow, test: Litmus, pair: int) -> bool:
    """Launch this rank's roles; whether it will have outcomes."""
    writer, reader = (pair, pair + 1) if test.across else (rank.rank, rank.rank)
    writes = rank.rank == writer
    other = reader if writes else writer
    code = loaded(rank.target, test.config)
    data = reader if test.data is Side.READER else writer
    arguments = {
        "role": 0 if writes else 1, "step": 1, "iterations": _count(rank, test), "budget": rank.wait_ticks,
        "data": window.at(data, _DATA), "source": window.at(writer, _SOURCE), "flag": window.at(reader, _FLAG),
        "answer": window.at(writer, _ANSWER), "signal": window.at(reader, _SIGNAL), "first": 0, "second": 0,
        "length": LENGTH, "result": window.at(rank.rank, _RESULT),
    }  # fmt: skip
    blocks = 1 if test.across else 2
    if isinstance(test.config, BufferingConfig):
        # Each side's own words lie with the other, which polls them.
        arguments |= {"flag": window.at(other, _WORD), "data": window.at(rank.rank, _WORD)}
        arguments |= {"answer": window.at(other, _ANSWER), "signal": window.at(rank.rank, _ANSWER)}
    elif test.engine and writes:
        arguments |= {"first": window.handle(reader, 0), "second": window.handle(reader, test.second_queue)}
    elif test.helper and writes:
        # The helper plays role 2, beside the writer; it is told in the writer's own memory.
        blocks, arguments["step"] = 2, 2
        arguments["signal"] = window.at(writer, _SIGNAL)
    submit(rank.target, [launch_of(code, arguments, blocks)])
    return isinstance(test.config, BufferingConfig) or rank.rank == reader


# --- L6 ---


def _copies(rank: Rank, log: Log, test: Litmus) -> None:
    """How many copies to LDS a handing-over barrier may leave under way. Collective; each GPU by itself."""
    iterations = min(_COPY_ITERATIONS, rank.settings.effort.iterations // 3)
    chunk = WAVE_LANES * PACK_BYTES
    device = rank.target.torch_device
    source = torch.randint(0, 1 << 30, (iterations * MAX_COPIES * chunk // 4,), dtype=torch.int32).to(device)
    result = torch.zeros(_COPY_BLOCKS, 3, dtype=torch.int32, device=device)
    code = loaded(rank.target, test.config)
    histogram: Counter[str] = Counter()
    launches = 0
    for _ in range(rank.settings.effort.launches):
        if any(rank.world.exchange("time", rank.budget.left < 0)):
            break
        arguments = {"source": source.data_ptr(), "iterations": iterations, "result": result.data_ptr()}
        submit(rank.target, [launch_of(code, arguments, _COPY_BLOCKS)], {"source": source, "result": result})
        rank.target.synchronize()
        for counts in rank.world.exchange("copies", result.sum(dim=0).tolist()):
            assert isinstance(counts, list)
            histogram.update(dict(zip(OUTCOMES, counts, strict=True)))
        launches += 1
    if launches:
        judge(log, test, histogram, launches)
    else:
        log.out_of_time(test.name)
