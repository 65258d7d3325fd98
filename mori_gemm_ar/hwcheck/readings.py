# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Microbenchmarks that give one constant of the time model each, with its spread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Any

import numpy as np
import torch

from mori_gemm_ar.errors import CollectiveError, CollectiveTimeout, ConfigError
from mori_gemm_ar.hwcheck.hardware import Rank
from mori_gemm_ar.hwcheck.launching import CheckWindow, launch_of, loaded, submit
from mori_gemm_ar.hwcheck.settings import Effort
from mori_gemm_ar.hwcheck.timer import Timer
from mori_gemm_ar.layout.gemm import QuantizeConfig
from mori_gemm_ar.layout.gemm_terms import Recipe
from mori_gemm_ar.layout.hwcheck import Load, LoadConfig, Scope
from mori_gemm_ar.layout.machine import MI355X
from mori_gemm_ar.layout.terms import WAVE_LANES
from mori_gemm_ar.model import costs
from mori_gemm_ar.model.explanation import PULL_BLOCKS
from mori_gemm_ar.model.values import Values

UNITS = {field.name: str(field.metadata["unit"]) for field in fields(Values)}
_PUT_COUNTS = (1, 2, 4, 8)
_SMALL = 1 << 12  # bytes of a put whose dispatch is what takes time
RESULT_BYTES = 4096  # behind both areas of a window
_WAVES = 8
_THREE = 0x40  # two of these bytes are 3.0 in bf16
_QUANTIZE_K = 1024
_QUANTIZE_ROWS = (64, 1024)


@dataclass(frozen=True, slots=True)
class Reading:
    """One constant: median of the samples, and the least and the greatest of them."""

    constant: str
    value: float
    low: float
    high: float
    samples: int
    how: str

    @classmethod
    def of(cls, constant: str, samples: Sequence[float], how: str) -> Reading:
        """From one value for each sample."""
        return cls(constant, median(samples), min(samples), max(samples), len(samples), how)


class Bench:
    """Times work, and loads on a window where there is one. Every method is collective; the slowest rank counts."""

    def __init__(self, rank: Rank, timer: Timer, window: CheckWindow | None = None) -> None:
        self.rank, self.timer, self._window = rank, timer, window
        self.effort: Effort = rank.settings.effort

    @property
    def window(self) -> CheckWindow:
        """The window of the loads."""
        if self._window is None:
            raise ConfigError("window=None must be a CheckWindow to launch loads on")
        return self._window

    @property
    def area(self) -> int:
        """Bytes that loads read from, and as many that they write to."""
        return (self.window.nbytes - RESULT_BYTES) // 2

    @property
    def _result(self) -> int:
        return self.window.nbytes - RESULT_BYTES

    def launch(self, config: LoadConfig, blocks: int = 1, **changed: int) -> Callable[[], None]:
        """Something that queues one launch."""
        window, rank = self.window, self.rank
        queues = window.queues
        arguments = {
            "base": window.base, "stride": window.stride, "rank": rank.rank, "world": rank.size, "source": 0,
            "target": self.area, "nbytes": 0, "blocks": blocks, "table": queues.table if queues else 0,
            "per_peer": queues.per_peer if queues else 1, "queues": 1, "peers": 0, "puts": 1,
            "budget": rank.wait_ticks, "result": window.address + self._result,
        } | changed  # fmt: skip
        launch = launch_of(loaded(rank.target, config), arguments, blocks)
        return lambda: submit(rank.target, [launch])

    def times(
        self, action: Callable[[], object], everyone: bool = True, graph: bool = False, heavy: bool = False
    ) -> list[float]:
        """One time for each sample, after a first run that is not timed. `everyone`: all ranks at once.

        heavy: one sample is enough where times are predicted.
        """
        if (everyone or self.rank.rank == 0) and not self.timer.predicted:
            action()
            self.rank.target.synchronize()
        own = []
        for _ in range(1 if heavy and self.timer.predicted else self.effort.samples):
            if everyone:
                self.rank.world.exchange("meet", None)
            if everyone or self.rank.rank == 0:
                own.append(self.timer.time_us(action, graph))
        told = [times for times in self.rank.world.exchange("times", own) if isinstance(times, list) and times]
        return [max(sample) for sample in zip(*told, strict=True)]

    def fill(self, byte: int) -> None:
        """Source area to one byte, target area to zeros, on all ranks."""
        self.rank.target.fill(self.window.address, self.area, byte)
        self.rank.target.fill(self.window.address + self.area, self.area, 0)
        self.rank.world.exchange("areas are filled", None)

    def require_target(self, what: str, right: bytes, own: bool = True, offset: int = 0) -> None:
        """Raise `CollectiveError` on all ranks unless the target area holds these bytes; `own`: on this rank, too."""
        found = self.rank.target.read(self.window.address + self.area + offset, len(right)) if own else right
        complaint = None if found == right else f"{what} left {found[:8].hex()}... where {right[:8].hex()}... belongs"
        for number, text in enumerate(self.rank.world.exchange(what, complaint)):
            if text is not None:
                raise CollectiveError(f"rank {number}: {text}")

    def require_no_timeout(self) -> None:
        """Raise `CollectiveTimeout` on all ranks when a wait of one of them ran out."""
        late = self.rank.world.exchange("late", self.window.words(self._result, 1)[0])
        if any(late):
            raise CollectiveTimeout(f"puts of rank {[bool(n) for n in late].index(True)} were not done in time")


def line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Intercept and slope of the line with the least relative errors."""
    weights = 1.0 / np.maximum(np.asarray(y, np.float64), 1e-9)
    columns = np.stack([np.ones(len(x)), np.asarray(x, np.float64)], axis=1) * weights[:, None]
    (base, slope), *_ = np.linalg.lstsq(columns, np.asarray(y) * weights, rcond=None)
    return float(base), float(slope)


def lines(x: Sequence[float], times: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """A line for each sample; times[i] are the samples at x[i]."""
    return [line(x, column) for column in zip(*times, strict=True)]


def _gbs(us_per_byte: float) -> float:
    return 1e-3 / us_per_byte


# --- launches ---


def graph_readings(bench: Bench) -> Iterator[Reading]:
    """Empty kernels, on a stream and in graphs of one, three and many."""
    empty = bench.launch(LoadConfig(Load.NOTHING))
    alone = bench.times(empty, everyone=False)
    graphs = {count: bench.times(_replay(bench, empty, count), False, graph=True) for count in (1, 3, 20, 40)}
    yield Reading.of("graph_one_us", _less(graphs[1], alone, 1), "graph of one empty kernel less the kernel")
    yield Reading.of("graph_layer_us", _less(graphs[3], alone, 3), "graph of three empty kernels less three of them")
    each = [(b - a) / 20 for a, b in zip(graphs[20], graphs[40], strict=True)]
    yield Reading.of("graph_call_us", _less(each, alone, 1), "graphs of 20 and 40 empty kernels")


def _less(times: Sequence[float], alone: Sequence[float], count: int) -> list[float]:
    return [time - count * one for time, one in zip(times, alone, strict=True)]


def _replay(bench: Bench, action: Callable[[], None], count: int) -> Callable[[], object]:
    if bench.rank.rank:
        return lambda: None
    with bench.rank.target.record() as recording:
        for _ in range(count):
            action()
    return recording.replay


# --- copy engines ---


def put_readings(bench: Bench) -> Iterator[Reading]:
    """Sizes on one link and on all, then numbers of puts on one queue and on two."""
    rank, peers = bench.rank, bench.rank.size - 1
    bench.fill(rank.rank + 1)
    one_link, all_links = _sizes(bench, 1), _sizes(bench, peers)
    yield Reading.of("sdma_phase_us", [base for base, _ in all_links], f"puts of several sizes to {peers} peers")
    how = "puts of several sizes on all links at once" if peers == MI355X.links else f"the same, on {peers} of 7 links"
    yield Reading.of("sdma_rate_gbs", [_gbs(slope) for _, slope in all_links], how)
    if peers == MI355X.links:
        ratios = [both[1] / one[1] for one, both in zip(one_link, all_links, strict=True)]
        yield Reading.of("few_links_ratio", ratios, "rate of one link alone over that of seven")
    per_byte = median(slope for _, slope in all_links)
    bench.fill(rank.rank + 1)  # the bytes of longer puts would hide what small ones leave out
    single, double = _counts(bench, 1, per_byte), _counts(bench, 2, per_byte)
    # The last puts all came from the rank before.
    bench.require_target("puts", bytes([(rank.rank - 1) % rank.size + 1]) * (_SMALL * _PUT_COUNTS[-1]))
    yield Reading.of("sdma_put_us", single, "1 to 8 small puts on one queue")
    hidden = [min(max(1.0 - two / one, 0.0), 1.0) for one, two in zip(single, double, strict=True)]
    yield Reading.of("put_hidden_share", hidden, "the same on two queues to the peer")
    bench.require_no_timeout()


def _sizes(bench: Bench, peers: int) -> list[tuple[float, float]]:
    sizes = [nbytes for nbytes in bench.effort.put_bytes if nbytes <= bench.area]
    config = LoadConfig(Load.PUTS)
    return lines(sizes, [bench.times(bench.launch(config, nbytes=nbytes, peers=peers)) for nbytes in sizes])


def _counts(bench: Bench, queues: int, per_byte: float) -> list[float]:
    """Microseconds of one more put on a link, without its bytes."""
    counts = [count for count in _PUT_COUNTS if count >= queues]
    times = [
        bench.times(bench.launch(LoadConfig(Load.PUTS), nbytes=_SMALL, peers=1, queues=queues, puts=count // queues))
        for count in counts
    ]
    return [slope - _SMALL * per_byte for _, slope in lines(counts, times)]


# --- releases ---


def release_readings(bench: Bench) -> Iterator[Reading]:
    """Every wave releases a line that it wrote; the same without the release is taken off."""
    names = {Scope.AGENT: "release_agent_us", Scope.SYSTEM: "release_system_us"}
    for scope, name in names.items():
        counts, extra = [], []
        for blocks, waves in bench.effort.releases:
            with_it, without = (
                bench.times(bench.launch(LoadConfig(Load.RELEASES, each, waves), blocks), everyone=False)
                for each in (scope, Scope.NONE)
            )
            counts.append(float(blocks * waves))
            extra.append(_less(with_it, without, 1))
        last = int(max(counts)) * WAVE_LANES - 1  # a thread's number is what it stores
        bench.require_target("stores", last.to_bytes(4, "little"), bench.rank.rank == 0, 4 * last)
        slopes = [float(np.dot(counts, one) / np.dot(counts, counts)) for one in zip(*extra, strict=True)]
        yield Reading.of(name, slopes, "1 to 3584 workgroups, of 1 to 8 waves")


# --- local memory and loads from peers ---


def sum_readings(bench: Bench) -> Iterator[Reading]:
    """Slices of the own window summed into one."""
    parts = max(2, bench.rank.size)
    sizes = [nbytes for nbytes in bench.effort.sum_bytes if nbytes * parts <= bench.area]
    config = LoadConfig(Load.SUM, waves=_WAVES, parts=parts)
    bench.fill(_THREE)
    times = [bench.times(bench.launch(config, _blocks(nbytes), nbytes=nbytes), everyone=False) for nbytes in sizes]
    total = torch.tensor([3.0 * parts], dtype=torch.bfloat16).view(torch.uint8).numpy().tobytes()
    bench.require_target("sums", total * (sizes[-1] // 2), bench.rank.rank == 0)
    found = lines([float(nbytes * (parts + 1)) for nbytes in sizes], times)
    yield Reading.of("reduce_base_us", [base for base, _ in found], f"sums of {parts} slices of several sizes")
    yield Reading.of("reduce_rate_tbs", [1e-6 / slope for _, slope in found], "the same; bytes read and written")


def _blocks(nbytes: int) -> int:
    return min(MI355X.compute_units, max(1, nbytes // (16 * WAVE_LANES * _WAVES)))


def pull_readings(bench: Bench) -> Iterator[Reading]:
    """Every peer's bytes loaded into the own window, all ranks at once."""
    peers = bench.rank.size - 1
    sizes = [nbytes for nbytes in bench.effort.sum_bytes if nbytes * peers <= bench.area]
    config = LoadConfig(Load.PULL, waves=_WAVES, parts=bench.rank.size)
    bench.fill(bench.rank.rank + 1)
    times = [bench.times(bench.launch(config, PULL_BLOCKS, nbytes=nbytes)) for nbytes in sizes]
    there = [(bench.rank.rank + 1 + place) % bench.rank.size for place in range(peers)]
    bench.require_target("loads from peers", b"".join(bytes([peer + 1]) * sizes[-1] for peer in there))
    found = lines([float(nbytes) for nbytes in sizes], times)
    yield Reading.of("pull_base_us", [base for base, _ in found], f"loads of several sizes from {peers} peers")
    yield Reading.of("lsa_rate_gbs", [_gbs(slope) for _, slope in found], "the same")


def convert_readings(bench: Bench) -> Iterator[Reading]:
    """The quantiser of block scales on several numbers of rows."""
    target, k = bench.rank.target, _QUANTIZE_K
    config = QuantizeConfig(Recipe.BLOCKSCALE, k)
    moved, times = [], []
    for rows in _QUANTIZE_ROWS:
        tensors = {
            "x": torch.ones(rows, k, dtype=torch.bfloat16, device=target.torch_device),
            "out": torch.empty(rows, k, dtype=torch.uint8, device=target.torch_device),
            "scale": torch.empty(k // 128, rows, dtype=torch.float32, device=target.torch_device),
        }
        launch = launch_of(
            loaded(target, config), {name: one.data_ptr() for name, one in tensors.items()} | {"m": rows},
            config.blocks(rows),
        )  # fmt: skip
        moved.append(float(sum(one.numel() * one.element_size() for one in tensors.values())))
        times.append(bench.times(lambda launch=launch, held=tensors: submit(target, [launch], held), False))  # type: ignore[misc]
    yield Reading.of("convert_rate_tbs", [1e-6 / slope for _, slope in lines(moved, times)], "the quantiser")


# --- from readings and rows together ---


def sdma_call_reading(values: Values, found: Sequence[Mapping[str, Any]], world: int) -> Reading | None:
    """What an all-reduce by copy engines takes above its phases, as these values have them."""
    rest = [
        float(row["time_us"]) - costs.sdma_allreduce_us(replace(values, sdma_ar_us=0.0), row["m"], row["n"], world)
        for row in found
        if row.get("benchmark") == "all_reduce" and row["resolved"]["backend"] == "sdma" and row["validated"]
    ]
    return Reading.of("sdma_ar_us", rest, "all-reduces by copy engines less their phases as read") if rest else None
