# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""The stand-in's clock: what it was seen doing, priced by the time model. Every time is predicted, in microseconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mori_gemm_ar.errors import ConfigError
from mori_gemm_ar.hwcheck.standin import Seen
from mori_gemm_ar.layout.hwcheck import Load
from mori_gemm_ar.layout.terms import PACK_BYTES, Stage, ceil_div
from mori_gemm_ar.model import costs
from mori_gemm_ar.model.terms import Quant, Tile
from mori_gemm_ar.model.tiles import TILES, waves
from mori_gemm_ar.model.values import Values
from mori_gemm_ar.runtime import Launch

EMPTY_US = 1.3  # an empty kernel of the stand-in; no constant of the model depends on it
MANY = 8  # launches of a graph from which one more costs what the model says of many calls


def price(v: Values, seen: Seen, graph: bool, world: int) -> float:
    """Time of the launches on one GPU of `world`, as a replayed graph or on a stream."""
    total = 0.0
    for launch in seen.launches:
        total += _PRICES.get(_config(launch)["type"], _unpriced)(v, launch, seen, world)
    if not graph or not seen.launches:
        return total
    kinds = {_config(launch)["type"] for launch in seen.launches}
    return total + (0.0 if kinds & _AS_GRAPH else _overhead(v, len(seen.launches)))


def _overhead(v: Values, count: int) -> float:
    """What the replay of a graph adds to its kernels."""
    if count == 1:
        return v.graph_one_us
    return v.graph_layer_us if count < MANY else count * v.graph_call_us


def _config(launch: Launch) -> Mapping[str, Any]:
    return launch.code.manifest["config"]  # type: ignore[attr-defined,no-any-return]


def argument(launch: Launch, name: str) -> int:
    """An argument of a launch, unsigned."""
    for slot in launch.code.manifest["arguments"]:  # type: ignore[attr-defined]
        if slot["name"] == name:
            return int.from_bytes(launch.arguments[slot["offset"] : slot["offset"] + slot["size"]], "little")
    raise ConfigError(f"argument={name!r} must be one of kernel {launch.code.kernel}")


def _unpriced(v: Values, launch: Launch, seen: Seen, world: int) -> float:
    return EMPTY_US


# --- loads ---


def _load(v: Values, launch: Launch, seen: Seen, world: int) -> float:
    return _LOADS[Load[_config(launch)["load"]]](v, launch, seen)


def _puts(v: Values, launch: Launch, seen: Seen) -> float:
    """Links work side by side; on one link, every put after the first costs its dispatch."""
    links: dict[int, list[Sequence[int]]] = {}
    for (peer, _), sizes in seen.puts.items():
        links.setdefault(peer, []).append(sizes)
    rate = costs.link_rate_gbs(v, len(links) + 1) * costs.KB
    longest = 0.0
    for queues in links.values():
        puts = sum(len(sizes) for sizes in queues)
        each = v.sdma_put_us * (1.0 - v.put_hidden_share if len(queues) > 1 else 1.0)
        longest = max(longest, (puts - 1) * each + sum(map(sum, queues)) / rate)
    return v.sdma_phase_us + longest


def _releases(v: Values, launch: Launch, seen: Seen) -> float:
    return EMPTY_US + sum(costs.releases_us(v, count, system) for system, count in seen.releases.items())


def _streamed(v: Values, launch: Launch, seen: Seen) -> float:
    return v.reduce_base_us + seen.moved / (v.reduce_rate_tbs * costs.MB)


def _pulled(v: Values, launch: Launch, seen: Seen) -> float:
    world = int(_config(launch)["parts"])
    nbytes = seen.moved / 2 / (world - 1)  # each byte is loaded and stored
    return costs.pull_us(v, world, nbytes) - v.barrier_us


_LOADS: dict[Load, Callable[[Values, Launch, Seen], float]] = {
    Load.NOTHING: lambda v, launch, seen: EMPTY_US,
    Load.PUTS: _puts,
    Load.RELEASES: _releases,
    Load.SUM: _streamed,
    Load.PULL: _pulled,
}

# --- kernels that ship ---


def _all_reduce(v: Values, launch: Launch, seen: Seen, world: int) -> float:
    """Whole trips of the grid that was launched over the packs that it was given."""
    packs = argument(launch, "numel") * 2 // PACK_BYTES
    lanes = launch.grid[0] * launch.block[0]
    stage = Stage[_config(launch)["stage"]]
    trips = ceil_div(packs if stage is Stage.ONE else ceil_div(packs, world), lanes)
    trip = lanes * PACK_BYTES / (v.lsa_rate_gbs * (v.few_links_ratio if world < 8 else 1.0) * costs.KB)
    if stage is Stage.ONE:
        return v.lsa_one_stage_us + trips * trip
    return v.lsa_base_us + trips * 2 * trip + v.lsa_skew_us * (1.0 - 0.5 ** max(trips - 1, 0))


def _sdma(v: Values, launch: Launch, seen: Seen, world: int) -> float:
    """All of a call by copy engines at its last phase: both legs went over each link."""
    if _config(launch)["phase"] != "GATHER":
        return 0.0
    links: dict[int, int] = {}
    for (peer, _), sizes in seen.puts.items():
        links[peer] = links.get(peer, 0) + sum(sizes)
    leg = max(links.values()) / 2
    reduce = v.reduce_base_us + (world + 1) * leg / (v.reduce_rate_tbs * costs.MB)
    return v.sdma_ar_us + 2 * costs.push_us(v, world, leg) + reduce


def _gemm(v: Values, launch: Launch, seen: Seen, world: int) -> float:
    config = _config(launch)
    tile_m, tile_n = (int(part) for part in config["tile"][1:].split("_N"))
    quant, tile = Quant[config["recipe"]], Tile(tile_m, tile_n)
    if tile not in TILES[quant]:
        return _unpriced(v, launch, seen, world)
    wave = costs.wave_us(v, quant, tile, int(config["k"]))
    return v.gemm_base_us + waves(launch.grid[0], v.wave_partial_share) * wave


def _quantize(v: Values, launch: Launch, seen: Seen, world: int) -> float:
    return v.reduce_base_us + seen.moved / (v.convert_rate_tbs * costs.MB)


_PRICES: dict[str, Callable[[Values, Launch, Seen, int], float]] = {
    "LoadConfig": _load,
    "AllReduceConfig": _all_reduce,
    "SdmaConfig": _sdma,
    "GemmConfig": _gemm,
    "QuantizeConfig": _quantize,
}
# What the model prices as the replay of a graph already.
_AS_GRAPH = frozenset(("AllReduceConfig", "SdmaConfig"))
