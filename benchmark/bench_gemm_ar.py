# SPDX-License-Identifier: MIT
# Copyright (c) 2026 mori_gemm_ar contributors
"""Layer benchmark, fp8 GEMM and its all-reduce: verifies every call, then times; one RESULT_JSON line for each mode.

`layer_rank.measure` runs on one rank of any group, `run` and `run_here` supply the group, `main` is the command line.
Under torchrun every process is a rank; otherwise `--local-world` says how many this process shall hold. In
`torchrun --nproc-per-node=4 -- benchmark/bench_gemm_ar.py --m 1024`, the `--` keeps torchrun from reading `--m`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Read once, when NumPy and torch load: threads inside many small products only wait for each other. Below, the
# repository root makes `benchmark` importable when the script runs by path.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmark.layer_cases import Case, ModeChoice, chosen_modes
from benchmark.report import print_result, print_table, progress
from benchmark.start import refused, require_one_start
from mori_gemm_ar.errors import ConfigError, MoriGemmArError
from mori_gemm_ar.layout import BLayout, Recipe, Tile, Wire
from mori_gemm_ar.layout.fused import DEFAULT_STRIPE
from mori_gemm_ar.layout.sdma import Transport
from mori_gemm_ar.model.terms import Tail

if TYPE_CHECKING:
    from mori_gemm_ar.runtime import LocalWorld, RankContext, World

Row = dict[str, Any]
NAME = "gemm_ar"
GATHER_TIMEOUT_S = 300.0  # of torch's group, which carries products to be checked: a lost peer costs no half hour

# ---- all ranks -----------------------------------------------------------------------------------------------


def run(world_size: int, case: Case, mode: ModeChoice) -> list[Row]:
    """Rows of `world_size` ranks in this process."""
    from mori_gemm_ar.runtime import LocalWorld

    rows: list[Row] = []
    for one in _modes(world_size, case, mode, rows):
        with progress(one.value, case.warmup + case.calls) as on_call:
            world = LocalWorld(world_size, case.seed)
            work = partial(_measured, case=case, mode=one, on_call=on_call)
            fields = _attempt(partial(_first, world, work))
        rows.append(_row(world_size, case, one, fields))
    return _compared(rows)


def run_here(case: Case, mode: ModeChoice) -> tuple[bool, list[Row]]:
    """Collective over processes that torchrun started: whether all went well, and on rank 0 the rows."""
    import torch.distributed as dist

    # Its store is all that the library uses; the group itself carries products to be checked.
    dist.init_process_group("gloo", timeout=timedelta(seconds=GATHER_TIMEOUT_S))
    try:
        rank, size, rows = dist.get_rank(), dist.get_world_size(), list[Row]()
        for one in _modes(size, case, mode, rows):
            bar = progress(one.value, case.warmup + case.calls) if rank == 0 else nullcontext(lambda: None)
            with bar as on_call:
                step = partial(_measured, case=case, mode=one, on_call=on_call)
                fields = _attempt(partial(_connected, step))
            rows.append(_row(size, case, one, fields))
        rows = _compared(rows)
        valid = not any_failed(rows)
        if valid:
            dist.barrier()  # rank 0 may hold the store, so it must not end while others still read from it
        return valid, rows if rank == 0 else []
    finally:
        dist.destroy_process_group()


def _first(world: LocalWorld, work: Callable[[RankContext], Row]) -> Row:
    return world.run(work)[0]


def _connected(work: Callable[[World], Row]) -> Row:
    from mori_gemm_ar.runtime import connect

    return work(connect())


def _measured(world: World, case: Case, mode: ModeChoice, on_call: Callable[[], None]) -> Row:
    from benchmark.layer_rank import measure

    return measure(world, case, mode, on_call)


def _modes(world_size: int, case: Case, mode: ModeChoice, rows: list[Row]) -> list[ModeChoice]:
    """The modes to run. One that the library refuses is a row with the reason, if others that sum are left."""
    refused = {one: _refusal(world_size, case, one) for one in chosen_modes(mode)}
    left = [one for one, error in refused.items() if error is None]
    first = next((error for error in refused.values() if error is not None), None)
    if first is not None and not set(left) - {ModeChoice.GEMM_ONLY}:
        raise first
    for one, error in refused.items():
        if error is not None:
            rows.append(_row(world_size, case, one, dict.fromkeys(_MEASURED) | {"declined": str(error)}))
    return left


def _refusal(world_size: int, case: Case, mode: ModeChoice) -> ConfigError | None:
    from mori_gemm_ar.op.options import layer_spec

    if mode is ModeChoice.GEMM_ONLY:
        return None  # what its op refuses, that op says
    try:
        layer_spec(
            world_size, case.n, case.k, case.m_max, case.quant, case.b_layout, mode.value, case.wire, case.tuning(mode)
        )
    except ConfigError as error:
        return error
    return None


def _attempt(work: Callable[[], Row]) -> Row:
    """The measured fields; those of a failed row where a collective failed."""
    fields: Row = dict.fromkeys(_MEASURED)
    try:
        return fields | work()
    except ConfigError:
        raise
    except MoriGemmArError as error:
        return fields | {"validated": False, "failure": f"{type(error).__name__}: {error}"}


def _row(world_size: int, case: Case, mode: ModeChoice, fields: Row) -> Row:
    requested = {"mode": mode.value, **case.requested}
    return {"benchmark": NAME, "mode": mode.value, **fields, "requested": requested, **case.origin(world_size)}


# Fields of a row that only a run can fill; None in a row that failed before.
_MEASURED = (
    "validated",
    "failure",
    "declined",
    "rel_l2",
    "worst_tile_rel_l2",
    "gemm_rel_l2",
    "gemm_worst_tile_rel_l2",
    "largest_error_of_bound",
    "rows_compared_with_fp64",
    "bitwise_equal_across_ranks",
    "bitwise_equal_to_rank_order",
    "digest",
    "product_digest",
    "equal_bits_as",
    "calls_verified",
    "device",
    "time_us",
    "stat",
    "eager_us",
    "graph_us",
    "phases_us",
    "critical_rank",
    "emulated_wall_s",
    "emulated_wall_best_s",
    "predicted",
    "resolved",
)


def _compared(rows: list[Row]) -> list[Row]:
    """Rows in the order of the modes, each with the modes that gave its bits.

    On the same data all modes have the same products, and on an exact wire the same sums: a row that differs from the
    first one fails.
    """
    order = [mode.value for mode in ModeChoice]
    rows = sorted(rows, key=lambda row: order.index(row["mode"]))
    good = [row for row in rows if row["validated"]]
    for row in good:
        rivals = [other for other in good if other is not row and _comparable(row, other)]
        row["equal_bits_as"] = [other["mode"] for other in rivals if _differing(row, other) is None]
        first = next((other for other in rivals if order.index(other["mode"]) < order.index(row["mode"])), None)
        what = _differing(row, first) if first is not None else None
        if first is not None and what is not None:
            row |= {"validated": False, "failure": f"its {what} have other bits than those of {first['mode']}"}
    return rows


def _comparable(row: Row, other: Row) -> bool:
    """The emulator adds in the order of BLAS, which differs for the 64 x 128 elements of a wave of the widest tile."""
    if row["device"] != "emulated":
        return True
    wide = f"{Tile.M256_N256.m}x{Tile.M256_N256.n}"
    return (row["resolved"]["tile"] == wide) == (other["resolved"]["tile"] == wide)


def _differing(row: Row, other: Row) -> str | None:
    if (
        None not in (row["product_digest"], other["product_digest"])
        and row["product_digest"] != other["product_digest"]
    ):
        return "products"
    sums = (row["digest"], other["digest"])
    lossy = row["requested"]["wire"] != Wire.EXACT.value
    return "sums" if not lossy and None not in sums and sums[0] != sums[1] else None


def any_failed(rows: list[Row]) -> bool:
    """Whether a mode ran and went wrong, or none ran; a declined one did not."""
    ran = [row for row in rows if row["declined"] is None]
    return not ran or any(row["validated"] is not True for row in ran)


# ---- shown ---------------------------------------------------------------------------------------------------


def show(rows: list[Row]) -> None:
    """The rows as tables on stderr."""
    first = rows[0]
    shape = f"[{first['m']}, {first['k']}] x [{first['n']}, {first['k']}]"
    title = f"fp8 GEMM + all-reduce {shape}, {first['quant']}, {first['world_size']} ranks, wire "
    lines = [_line(row) for row in rows]
    columns = ("mode", "validated", "sum relL2", "worst tile", "GEMM relL2", "launches", "time", "predicted")
    print_table(title + first["requested"]["wire"], columns, lines)
    for row in rows:
        if row["failure"] or row["declined"]:
            print(f"{row['mode']}: {row['failure'] or row['declined']}", file=sys.stderr)
    if any(row["device"] == "emulated" for row in rows):
        print(
            "time: of this CPU, which executed gfx950 machine code; predicted: by the model, on MI355X", file=sys.stderr
        )


def _line(row: Row) -> tuple[str, ...]:
    if row["declined"] is not None:
        return (row["mode"], "not run", *["-"] * 6)
    resolved, predicted = row["resolved"] or {}, row["predicted"] or {}
    time = "-"
    if row["emulated_wall_s"] is not None:
        time = f"{row['emulated_wall_s']:.2f} s"
    elif row["time_us"] is not None:
        time = f"{row['time_us']:.1f} us"
    errors = (row["rel_l2"], row["worst_tile_rel_l2"], row["gemm_rel_l2"])
    return (
        row["mode"],
        f"yes, {row['calls_verified']} calls" if row["validated"] else "NO",
        *("-" if error is None else f"{error:.2e}" for error in errors),
        str(resolved.get("launches", "-")),
        time,
        f"{predicted['predicted_us']:.1f} us" if "predicted_us" in predicted else "-",
    )


# ---- command line --------------------------------------------------------------------------------------------


class TransportChoice(str, Enum):
    """Values of --transport."""

    AUTO = "auto"
    LSA = "lsa"
    SDMA = "sdma"


class TailChoice(str, Enum):
    """Values of --tail."""

    PHASED = "phased"
    STREAMED = "streamed"


class TileChoice(str, Enum):
    """Values of --tile."""

    AUTO = "auto"
    M128_N256 = "128x256"
    M256_N128 = "256x128"
    M256_N256 = "256x256"


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    local_world: Annotated[int | None, typer.Option(min=1, help="Run this many ranks in this process.")] = None,
    m: Annotated[int, typer.Option(min=0, help="Rows of A and of the result.")] = 1024,
    n: Annotated[int, typer.Option(help="Columns of the result; a multiple of 16.")] = 1024,
    k: Annotated[int, typer.Option(help="K of one rank; a multiple of 128.")] = 512,
    quant: Annotated[Recipe, typer.Option(help="How the operands are scaled.")] = Recipe.BLOCKSCALE,
    mode: Annotated[ModeChoice, typer.Option(help="How the layer runs; all: one row for each mode.")] = ModeChoice.ALL,
    wire: Annotated[Wire, typer.Option(help="What crosses the links; all but exact lose precision.")] = Wire.EXACT,
    transport: Annotated[
        TransportChoice, typer.Option(help="Who moves the sums to all ranks: copy engines or loads.")
    ] = TransportChoice.AUTO,
    chunks: Annotated[int | None, typer.Option(min=1, help="Puts of a slice, fused-sdma.")] = None,
    stripe: Annotated[
        int, typer.Option(min=1, help="Columns of tiles before the destination changes, fused-lsa.")
    ] = DEFAULT_STRIPE,
    tile: Annotated[TileChoice, typer.Option(help="Rows x columns of a workgroup's tile.")] = TileChoice.AUTO,
    queues: Annotated[int, typer.Option(help="Copy-engine queues to each peer.")] = 1,
    b_layout: Annotated[BLayout, typer.Option(help="Order of B's bytes.")] = BLayout.PRESHUFFLED,
    calls: Annotated[int, typer.Option(min=1, help="Calls after the warm-up; each one is verified.")] = 3,
    warmup: Annotated[int, typer.Option(min=0, help="Calls that are verified before.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of the data and of the order in which ranks run.")] = 0,
    verify_rows: Annotated[
        int, typer.Option(min=1, help="Rows of a call compared with fp64; bits are compared on all.")
    ] = 4096,
    timeout_s: Annotated[float | None, typer.Option(help="Budget of each wait on the device.")] = None,
    tail: Annotated[TailChoice, typer.Option(help="What follows the scatter of fused-sdma.")] = TailChoice.PHASED,
) -> None:
    """Verify GEMM and all-reduce in one or all modes, then time them. Exit 1: a check failed; 2: bad arguments."""
    try:
        require_one_start(local_world, "bench_gemm_ar", 2)
        gather = None if transport is TransportChoice.AUTO else Transport(transport.value)
        shape = None if tile is TileChoice.AUTO else next(t for t in Tile if f"{t.m}x{t.n}" == tile.value)
        case = Case(
            m, n, k, quant, wire, gather, chunks, stripe, shape, queues, b_layout, calls, warmup, seed, verify_rows,
            timeout_s, Tail(tail.value),
        )  # fmt: skip
        if local_world is None:
            valid, rows = run_here(case, mode)
        else:
            rows = run(local_world, case, mode)
            valid = not any_failed(rows)
    except ConfigError as error:
        raise refused("bench_gemm_ar", error) from None
    if rows:
        show(rows)
    for row in rows:
        print_result(row)
    if not valid:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
